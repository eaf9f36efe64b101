//! Readers: who has which tensor of ours, who is getting it, and from whom. Plain data: it knows no connection, no
//! clock and no byte.
//!
//! ```text
//!   degree 1:  owner ──> a ──> b ──> c           each passes on what has landed: the owner sends the tensor once
//!   degree 2:  owner ──> a ──> c, d
//!                   '──> b ──> e, f
//! ```
//! A reader that comes is given to whoever has all of it and the fewest readers; else to the owner while that has a place; else
//! to the reader that is nearest to the owner, has one, and came before it. So a reader never waits for one that waits for it.
//! It stays with whom it was given to until it says that this one does not do: what it does while its connection with the owner
//! is lost is what stands here. Whoever let its copy go may have told nobody. It refuses, which costs a round trip; the reader
//! then counts as the last that came, and may be given to any that do not wait for it, also to the one that refused once that
//! one is getting it anew.

use std::collections::HashMap;

use readers::{From, Reader, Readers};

use crate::peer::{HolderLost, Holders, LostHolder, PeerKey, RelayToken};

mod readers;

/// Most tensors that are remembered. Each costs up to 100 KiB while it is being read, a few hundred bytes after.
const TENSORS_MAX: usize = 1_024;
/// Most readers of one tensor that are remembered; the owner serves those that come beyond.
const READERS_MAX: usize = 1_024;

/// The record of all tensors.
#[derive(Debug)]
pub(super) struct Fanout {
    /// Most readers that one peer serves at a time.
    degree: usize,
    tensors: HashMap<u64, Readers>,
    asks: u64,
}

impl Fanout {
    /// Every peer serves `degree` readers of a tensor at a time, the owner too as long as another one can.
    pub(super) fn new(degree: usize) -> Self {
        Self { degree, tensors: HashMap::new(), asks: 0 }
    }

    /// A reader begins to get a tensor, or goes on over another connection, and `lost` did not do. None: nothing is
    /// remembered of it, for too much is; the owner serves it.
    pub(super) fn enter(
        &mut self,
        id: u64,
        reader: &PeerKey,
        lost: &[LostHolder],
        pass: RelayToken,
    ) -> Option<Holders> {
        let degree = self.degree;
        let readers = self.readers(id, pass)?;
        readers.learn(reader, lost);
        // What it had is not there any more, or it would not ask.
        readers.all.retain(|other| !(other.has_all() && other.peer == *reader));
        if let Some(known) = readers.all.iter().position(|other| other.peer == *reader) {
            (readers.all[known].away, readers.all[known].suspect) = (false, false);
            if let Some(peers) = readers.goes_on(known, lost) {
                return Some(readers.named(reader, lost, peers));
            }
        } else if readers.all.len() < READERS_MAX {
            readers.all.push(Reader { peer: reader.clone(), from: From::Owner, away: false, suspect: false });
        } else {
            return None;
        }
        let peers = readers.seek(reader, lost, degree);
        Some(readers.named(reader, lost, peers))
    }

    /// Holders that have all of a tensor, other than those that a reader was given.
    pub(super) fn spares(
        &self,
        id: u64,
        reader: &PeerKey,
        lost: &[LostHolder],
        peers: &[PeerKey],
    ) -> Vec<PeerKey> {
        self.tensors.get(&id).map_or_else(Vec::new, |readers| readers.spares(reader, lost, peers))
    }

    /// A tensor that came from others was not the owner's: they are not named for it any more.
    pub(super) fn blame(&mut self, id: u64, lost: &[LostHolder], pass: RelayToken) {
        let is_altered = |lost: &LostHolder| lost.why == Some(HolderLost::Altered);
        let worth = lost.iter().any(is_altered);
        if let Some(readers) = worth.then(|| self.readers(id, pass)).flatten() {
            readers.blame(lost);
        }
    }

    /// Readers known of a tensor, from now on if nothing was known. None if too much is.
    fn readers(&mut self, id: u64, pass: RelayToken) -> Option<&mut Readers> {
        if self.degree == 0 || !self.has_room(id) {
            return None;
        }
        self.asks += 1;
        let new = || Readers { pass, touched: 0, all: Vec::new(), altered: Vec::new() };
        let readers = self.tensors.entry(id).or_insert_with(new);
        readers.touched = self.asks;
        Some(readers)
    }

    /// A reader that is getting a tensor wants another holder than these.
    pub(super) fn seek(&mut self, id: u64, reader: &PeerKey, lost: &[LostHolder]) -> Vec<PeerKey> {
        let Some(readers) = self.tensors.get_mut(&id) else { return Vec::new() };
        readers.learn(reader, lost);
        readers.seek(reader, lost, self.degree)
    }

    /// A reader has all of a tensor, or does not want it any more.
    pub(super) fn left(&mut self, id: u64, reader: &PeerKey, holds: bool) {
        let Some(readers) = self.tensors.get_mut(&id) else { return };
        let known = readers.all.iter().position(|other| other.peer == *reader);
        let before = known.map(|known| readers.all.remove(known));
        if holds && before.is_some() {
            readers.all.push(Reader { peer: reader.clone(), from: From::Had, away: false, suspect: false });
            readers.forget_oldest();
        }
        if readers.is_nothing() {
            self.tensors.remove(&id);
        }
    }

    /// The connection with a peer is lost, or is back.
    pub(super) fn away(&mut self, peer: &PeerKey, away: bool) {
        let all = self.tensors.values_mut().flat_map(|readers| &mut readers.all);
        all.filter(|reader| reader.peer == *peer).for_each(|reader| reader.away = away);
    }

    /// Ends the record of that life of a peer.
    pub(super) fn gone(&mut self, peer: &PeerKey) {
        self.tensors.retain(|_, readers| {
            readers.all.retain(|reader| reader.peer != *peer);
            readers.altered.retain(|altered| altered != peer);
            !readers.is_nothing()
        });
    }

    /// Makes room for a tensor, by forgetting the one that was not asked for the longest and that nobody is getting.
    fn has_room(&mut self, id: u64) -> bool {
        if self.tensors.contains_key(&id) || self.tensors.len() < TENSORS_MAX {
            return true;
        }
        // Whoever is away may never come back.
        let is_idle = |readers: &Readers| readers.all.iter().all(|reader| reader.has_all() || reader.away);
        let idle = self.tensors.iter().filter(|(_, readers)| is_idle(readers));
        let oldest = idle.min_by_key(|(_, readers)| readers.touched).map(|(id, _)| *id);
        oldest.is_some_and(|oldest| self.tensors.remove(&oldest).is_some())
    }
}

#[cfg(test)]
mod tests;
