//! Who has which tensor of ours, who is getting it, and from whom. Plain data: it knows no connection, no clock and no byte.
//!
//! ```text
//!   degree 1:  owner ──> a ──> b ──> c           each passes on what has landed: the owner sends the tensor once
//!   degree 2:  owner ──> a ──> c, d
//!                   '──> b ──> e, f
//! ```
//! A reader that comes is given to whoever has all of it and the fewest readers; else to the owner while that has a place; else
//! to the reader that is nearest to the owner and has one. So a reader never waits for one that waits for it.

use std::collections::HashMap;

use crate::peer::{Holders, Pass, PeerKey};

/// Most tensors that are remembered. Each costs up to 100 KiB while it is being read, a few hundred bytes after.
const TENSORS_MAX: usize = 1_024;
/// Most readers of one tensor that are remembered; the owner serves those that come beyond.
const READERS_MAX: usize = 1_024;
/// Most peers that are remembered to have a tensor, the latest. Each costs some 100 bytes.
const KEPT_MAX: usize = 32;

/// Where a reader gets its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    Owner,
    Peer(PeerKey),
    /// It has them.
    Had,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Reader {
    peer: PeerKey,
    from: From,
    /// Its connection is lost.
    away: bool,
    /// Somebody could not get anything from it.
    suspect: bool,
}

impl Reader {
    fn has_all(&self) -> bool {
        self.from == From::Had
    }

    fn is_well(&self) -> bool {
        !self.away && !self.suspect
    }
}

#[derive(Debug)]
struct Readers {
    pass: Pass,
    /// When it was last asked for, in asks.
    touched: u64,
    /// In the order in which they came, or last had all.
    all: Vec<Reader>,
}

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
        lost: &[PeerKey],
        pass: Pass,
    ) -> Option<Holders> {
        if self.degree == 0 || !self.has_room(id) {
            return None;
        }
        self.asks += 1;
        let readers = self.tensors.entry(id).or_insert_with(|| Readers { pass, touched: 0, all: Vec::new() });
        readers.touched = self.asks;
        let known = readers.all.iter().position(|other| other.peer == *reader);
        if let Some(known) = known {
            if let Some(holder) = readers.goes_on_from(known, lost, self.degree) {
                readers.all[known].away = false;
                return Some(Holders { pass: readers.pass, peers: vec![holder] });
            }
            readers.all.remove(known);
        }
        if readers.all.len() >= READERS_MAX {
            return None;
        }
        readers.all.push(Reader { peer: reader.clone(), from: From::Owner, away: false, suspect: false });
        let peers = readers.seek(reader, lost, self.degree);
        Some(Holders { pass: readers.pass, peers })
    }

    /// A reader that is getting a tensor wants another holder than these.
    pub(super) fn seek(&mut self, id: u64, reader: &PeerKey, lost: &[PeerKey]) -> Vec<PeerKey> {
        self.tensors.get_mut(&id).map(|readers| readers.seek(reader, lost, self.degree)).unwrap_or_default()
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
        if readers.all.is_empty() {
            self.tensors.remove(&id);
        }
    }

    /// The connection with a peer is lost, or is back.
    pub(super) fn away(&mut self, peer: &PeerKey, away: bool) {
        let all = self.tensors.values_mut().flat_map(|readers| &mut readers.all);
        all.filter(|reader| reader.peer == *peer).for_each(|reader| reader.away = away);
    }

    /// That life of a peer is over.
    pub(super) fn gone(&mut self, peer: &PeerKey) {
        self.tensors.retain(|_, readers| {
            readers.all.retain(|reader| reader.peer != *peer);
            !readers.all.is_empty()
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

impl Readers {
    /// The holder that a reader has, which does not notice that the reader's connection with the owner is another one.
    fn goes_on_from(&self, reader: usize, lost: &[PeerKey], degree: usize) -> Option<PeerKey> {
        let From::Peer(holder) = &self.all[reader].from else { return None };
        let at = self.all.iter().position(|other| other.peer == *holder && other.is_well())?;
        // Its place may have been given away meanwhile.
        let may = self.served_by(at, reader) < degree && !lost.contains(holder);
        may.then(|| holder.clone())
    }

    /// Finds a reader a holder: none, or one.
    fn seek(&mut self, reader: &PeerKey, lost: &[PeerKey], degree: usize) -> Vec<PeerKey> {
        // Whoever has it by its own word and does not give it has let it go; whoever is getting it may come back.
        self.all.retain(|other| !(other.has_all() && lost.contains(&other.peer)));
        for other in self.all.iter_mut().filter(|other| lost.contains(&other.peer)) {
            other.suspect = true;
        }
        let Some(me) = self.all.iter().position(|other| other.peer == *reader) else { return Vec::new() };
        // Whoever asks does not get it where it did before.
        self.all[me].from = From::Owner;
        self.all[me].away = false;
        let chosen = self.choose(me, lost, degree).map(|chosen| self.all[chosen].peer.clone());
        self.all[me].from = chosen.clone().map_or(From::Owner, From::Peer);
        chosen.into_iter().collect()
    }

    fn choose(&self, me: usize, lost: &[PeerKey], degree: usize) -> Option<usize> {
        let may = |at: &usize| {
            let other = &self.all[*at];
            *at != me && other.is_well() && !lost.contains(&other.peer) && self.served_by(*at, me) < degree
        };
        let holders = (0..self.all.len()).filter(|at| self.all[*at].has_all()).filter(may);
        // The latest of those with the fewest readers: it is the likeliest to have it still.
        if let Some(holder) = holders.rev().min_by_key(|at| self.served_by(*at, me)) {
            return Some(holder);
        }
        let direct = self.all.iter().enumerate().filter(|(at, _)| *at != me);
        if direct.filter(|(_, other)| other.from == From::Owner && other.is_well()).count() < degree {
            return None;
        }
        let getting = (0..self.all.len()).filter(|at| !self.all[*at].has_all()).filter(may);
        let reachable = getting.filter_map(|at| self.depth(at, me).map(|depth| (depth, at)));
        reachable.min().map(|(_, at)| at)
    }

    /// How many readers a peer serves, without this one.
    fn served_by(&self, at: usize, without: usize) -> usize {
        let peer = &self.all[at].peer;
        let served =
            |other: &Reader| matches!(&other.from, From::Peer(from) if from == peer) && other.is_well();
        self.all.iter().enumerate().filter(|(other, reader)| *other != without && served(reader)).count()
    }

    /// How many peers lie between the owner and this one; none where it waits for `me`.
    fn depth(&self, at: usize, me: usize) -> Option<usize> {
        let mut at = at;
        // It cannot be longer than all of them, whatever went wrong.
        for depth in 0..self.all.len() {
            if at == me {
                return None;
            }
            let From::Peer(from) = &self.all[at].from else { return Some(depth) };
            // One that is gone is being replaced: its reader is about to ask.
            let Some(next) = self.all.iter().position(|other| other.peer == *from) else {
                return Some(depth);
            };
            at = next;
        }
        None
    }

    /// Forgets the oldest of too many that have all.
    fn forget_oldest(&mut self) {
        if self.all.iter().filter(|reader| reader.has_all()).count() > KEPT_MAX
            && let Some(oldest) = self.all.iter().position(Reader::has_all)
        {
            self.all.remove(oldest);
        }
    }
}

#[cfg(test)]
mod tests;
