//! The readers of one tensor and who gets it from whom. Plain data, as all of the record.

use tensorlane_proto::frame::HOLDERS_MAX;

use crate::peer::{HolderLost, Holders, LostHolder, PeerKey, RelayToken, asks_on};

/// Most peers that are remembered to have a tensor, the latest. Each costs some 100 bytes.
pub(super) const KEPT_MAX: usize = 32;
/// Peers that are remembered to have altered a tensor. From so many on nobody but the owner is named for it.
pub(super) const ALTERED_MAX: usize = 64;

/// Source from which a reader gets its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum From {
    Owner,
    Peer(PeerKey),
    /// Had already: it has them.
    Had,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reader {
    pub(super) peer: PeerKey,
    pub(super) from: From,
    /// Set if its connection is lost.
    pub(super) away: bool,
    /// Set if it lives, and gave somebody nothing.
    pub(super) suspect: bool,
}

impl Reader {
    pub(super) fn has_all(&self) -> bool {
        self.from == From::Had
    }

    pub(super) fn is_well(&self) -> bool {
        !self.away && !self.suspect
    }
}

#[derive(Debug)]
pub(super) struct Readers {
    pub(super) pass: RelayToken,
    /// Time at which it was last asked for, in asks.
    pub(super) touched: u64,
    /// In the order in which they came, last had all, or were last refused. Who begins to get it gets it from one before it, or
    /// from one that has all.
    pub(super) all: Vec<Reader>,
    /// Peers that sent, or passed on, other bytes than the owner's.
    pub(super) altered: Vec<PeerKey>,
}

impl Readers {
    /// True if nothing has to be remembered.
    pub(super) fn is_nothing(&self) -> bool {
        self.all.is_empty() && self.altered.is_empty()
    }

    /// Source from which a reader gets its bytes already, if it does not notice that its connection with the owner is
    /// another one. The answer stays, whoever that is, and however well that one or its places are. None if it has lost
    /// it, or it is not there any more.
    pub(super) fn goes_on(&self, reader: usize, lost: &[LostHolder]) -> Option<Vec<PeerKey>> {
        match &self.all[reader].from {
            From::Owner => Some(Vec::new()),
            From::Peer(holder) => {
                let is_there = self.all.iter().any(|other| other.peer == *holder);
                let does = is_there && !names(lost, holder) && !self.altered.contains(holder);
                does.then(|| vec![holder.clone()])
            }
            From::Had => None,
        }
    }

    /// A reader says who did not do, and why. What says more of the way between the two is held against nobody, and what was
    /// heard before is nothing new: only of whom it has it from can it tell more.
    pub(super) fn learn(&mut self, reader: &PeerKey, lost: &[LostHolder]) {
        self.blame(lost);
        let Some(me) = self.all.iter().position(|other| other.peer == *reader) else { return };
        let From::Peer(holder) = self.all[me].from.clone() else { return };
        match lost.iter().find(|lost| lost.peer == holder).and_then(|lost| lost.why) {
            Some(HolderLost::Refused) => self.refused(me, &holder),
            Some(HolderLost::Stalled | HolderLost::Starved) => self.suspect(&holder),
            _ => {}
        }
    }

    /// Somebody says who altered it.
    pub(super) fn blame(&mut self, lost: &[LostHolder]) {
        for LostHolder { peer, .. } in lost.iter().filter(|lost| lost.why == Some(HolderLost::Altered)) {
            if !self.altered.contains(peer) {
                self.altered.push(peer.clone());
                self.altered.truncate(ALTERED_MAX);
            }
        }
    }

    /// A reader had nothing from one that was said to have it, or to be getting it.
    fn refused(&mut self, me: usize, holder: &PeerKey) {
        // Whoever has it by its own word and does not give it has let it go.
        let at = self.all.iter().position(|other| other.peer == *holder);
        let let_go = at.is_some_and(|at| self.all[at].has_all());
        // Whoever began after the reader did was named for what it had before, and is getting it well.
        let is_anew = at.is_some_and(|at| me < at);
        if !is_anew {
            self.suspect(holder);
        }
        // The reader begins anew, behind all who do not wait for it (`depth` sees to that).
        let reader = self.all.remove(me);
        self.all.push(reader);
        if let_go {
            self.all.retain(|other| other.peer != *holder);
        }
    }

    /// Marks a peer as suspect: one that is getting it and gives nothing may come back.
    fn suspect(&mut self, peer: &PeerKey) {
        let getting = self.all.iter_mut().filter(|other| other.peer == *peer && !other.has_all());
        getting.for_each(|other| other.suspect = true);
    }

    /// Finds a reader a holder: none, or one.
    pub(super) fn seek(&mut self, reader: &PeerKey, lost: &[LostHolder], degree: usize) -> Vec<PeerKey> {
        let Some(me) = self.all.iter().position(|other| other.peer == *reader) else { return Vec::new() };
        // Whoever asks does not get it where it did before.
        self.all[me].from = From::Owner;
        self.all[me].away = false;
        let chosen = self.choose(me, lost, degree).map(|chosen| self.all[chosen].peer.clone());
        self.all[me].from = chosen.clone().map_or(From::Owner, From::Peer);
        chosen.into_iter().collect()
    }

    fn choose(&self, me: usize, lost: &[LostHolder], degree: usize) -> Option<usize> {
        if !asks_on(lost) || self.altered.len() >= ALTERED_MAX {
            return None;
        }
        let may = |at: &usize| {
            let Reader { peer, .. } = &self.all[*at];
            let does = self.all[*at].is_well() && !keeps_off(lost, peer) && !self.altered.contains(peer);
            *at != me && does && self.served_by(*at, me) < degree
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
        // Those that came before: of two that lost each other neither is ever given to the other.
        let getting = (0..me).filter(|at| !self.all[*at].has_all()).filter(may);
        let reachable = getting.filter_map(|at| self.depth(at, me).map(|depth| (depth, at)));
        reachable.min().map(|(_, at)| at)
    }

    /// Spares: peers other than its holders that a reader may ask if the owner is lost, best first. They have all of
    /// it, so they wait for nobody, whatever else becomes of anyone's place in the record.
    pub(super) fn spares(&self, reader: &PeerKey, lost: &[LostHolder], peers: &[PeerKey]) -> Vec<PeerKey> {
        if self.altered.len() >= ALTERED_MAX {
            return Vec::new();
        }
        let does = |peer: &PeerKey| {
            peer != reader && !peers.contains(peer) && !keeps_off(lost, peer) && !self.altered.contains(peer)
        };
        let has = |at: &usize| self.all[*at].has_all() && self.all[*at].is_well();
        let mut spares: Vec<usize> =
            (0..self.all.len()).rev().filter(has).filter(|at| does(&self.all[*at].peer)).collect();
        // As where one is chosen: those with the fewest readers, of those the latest.
        spares.sort_by_key(|at| self.served_by(*at, *at));
        spares.into_iter().take(HOLDERS_MAX).map(|at| self.all[at].peer.clone()).collect()
    }

    /// Holders that a reader is told that was given to these.
    pub(super) fn named(&self, reader: &PeerKey, lost: &[LostHolder], peers: Vec<PeerKey>) -> Holders {
        let spares = self.spares(reader, lost, &peers);
        Holders { pass: self.pass, peers, spares }
    }

    /// Number of readers that a peer serves, without this one.
    pub(super) fn served_by(&self, at: usize, without: usize) -> usize {
        let peer = &self.all[at].peer;
        let served =
            |other: &Reader| matches!(&other.from, From::Peer(from) if from == peer) && other.is_well();
        self.all.iter().enumerate().filter(|(other, reader)| *other != without && served(reader)).count()
    }

    /// Number of peers that lie between the owner and this one; none where it waits for `me`, or for somebody of whom
    /// nothing is known any more: that one may wait for `me`.
    fn depth(&self, at: usize, me: usize) -> Option<usize> {
        let mut at = at;
        // It cannot be longer than all of them, whatever went wrong.
        for depth in 0..self.all.len() {
            if at == me {
                return None;
            }
            let From::Peer(from) = &self.all[at].from else { return Some(depth) };
            at = self.all.iter().position(|other| other.peer == *from)?;
        }
        None
    }

    /// Forgets the oldest of too many that have all.
    pub(super) fn forget_oldest(&mut self) {
        if self.all.iter().filter(|reader| reader.has_all()).count() > KEPT_MAX
            && let Some(oldest) = self.all.iter().position(Reader::has_all)
        {
            self.all.remove(oldest);
        }
    }
}

/// True if a peer is among those that did not do.
fn names(lost: &[LostHolder], peer: &PeerKey) -> bool {
    lost.iter().any(|lost| lost.peer == *peer)
}

/// True if a peer did not do, and does not now. One that refused was forgotten or is suspect, until it has it, or
/// begins, anew.
fn keeps_off(lost: &[LostHolder], peer: &PeerKey) -> bool {
    lost.iter().any(|lost| lost.peer == *peer && lost.why != Some(HolderLost::Refused))
}
