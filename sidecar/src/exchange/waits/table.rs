//! The table of waits for names: who waits for what, until when, and what that takes. Pure; knows no thread, clock or peer.
//!
//! ```text
//!   enter ──> asking: the first answers are on their way   ──wait──> waiting: until a name appears or the deadline
//!                └──────────────────────── remove, once it is answered ─────────────────────┘
//! ```
//! The two have bounds of their own, so that those who wait keep nobody out who only asks. What a peer asks is a wait from the first moment
//! on: look-ups of this pod take nothing of what peers may have.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{Holder, TensorName};

/// The number of a wait; never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::exchange) struct WaitId(u64);

/// A name that is waited for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::exchange) struct Key {
    /// The peer that is to have it; none for whichever.
    pub(in crate::exchange) at: Option<PeerName>,
    pub(in crate::exchange) name: TensorName,
}

/// In whose share a wait is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::exchange) enum Owner {
    /// A session of this pod; none for all calls without one together.
    Client(Option<Holder>),
    /// Another peer, in all of its lives.
    Peer(PeerName),
    /// The sidecar itself, for the few things that it looks after. No bound holds.
    Sidecar,
}

/// Bounds on what waits may take.
#[derive(Debug, Clone, Copy)]
pub(in crate::exchange) struct Bounds {
    /// Waits of one owner.
    pub(in crate::exchange) count: usize,
    /// Bytes of one owner.
    pub(in crate::exchange) bytes: u64,
    /// Bytes of all owners of the kind together.
    pub(in crate::exchange) all_bytes: u64,
}

/// The bounds of those who ask, of clients that wait, and of peers that wait.
#[derive(Debug, Clone, Copy)]
pub(in crate::exchange) struct Limits {
    pub(in crate::exchange) asking: Bounds,
    pub(in crate::exchange) clients: Bounds,
    pub(in crate::exchange) peers: Bounds,
}

/// Part of its bound from which on an owner has much: an eighth.
const MUCH: u64 = 8;

/// Kind of an entry, which says the bounds that hold for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Asking,
    Clients,
    Peers,
}

#[derive(Debug, Default, Clone, Copy)]
struct Load {
    count: usize,
    bytes: u64,
}

struct Entry<W> {
    waiter: W,
    owner: Owner,
    kind: Kind,
    bytes: u64,
    deadline: Instant,
    keys: Vec<Key>,
}

/// All waits; `W` is what is told.
pub(in crate::exchange) struct Table<W> {
    limits: Limits,
    entries: HashMap<WaitId, Entry<W>>,
    keys: HashMap<Key, BTreeSet<WaitId>>,
    deadlines: BTreeSet<(Instant, WaitId)>,
    shares: HashMap<(Kind, Owner), Load>,
    totals: HashMap<Kind, Load>,
    last: u64,
    changes: u64,
}

// === impl Table ===

impl<W: Clone> Table<W> {
    pub(in crate::exchange) fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            keys: HashMap::new(),
            deadlines: BTreeSet::new(),
            shares: HashMap::new(),
            totals: HashMap::new(),
            last: 0,
            changes: 0,
        }
    }

    /// Takes in somebody who asks. It is told at the deadline, and stays until it is removed.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the limit; nothing has changed then.
    pub(in crate::exchange) fn enter(
        &mut self,
        owner: Owner,
        bytes: u64,
        deadline: Instant,
        waiter: W,
    ) -> Result<WaitId, Failure> {
        let kind = match owner {
            Owner::Client(_) | Owner::Sidecar => Kind::Asking,
            Owner::Peer(_) => Kind::Peers,
        };
        self.book(kind, &owner, bytes)?;
        self.last += 1;
        let id = WaitId(self.last);
        self.deadlines.insert((deadline, id));
        let entry = Entry { waiter, owner, kind, bytes, deadline, keys: Vec::new() };
        self.entries.insert(id, entry);
        Ok(id)
    }

    /// From now on it waits for names, and is told of each as well as at `until`. Nothing for one that was removed.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the limit; it stays as it was then.
    pub(in crate::exchange) fn wait(
        &mut self,
        id: WaitId,
        keys: Vec<Key>,
        until: Instant,
    ) -> Result<(), Failure> {
        let Some(entry) = self.entries.get(&id) else { return Ok(()) };
        let (owner, before, bytes) = (entry.owner.clone(), entry.kind, entry.bytes);
        let kind = match owner {
            Owner::Client(_) | Owner::Sidecar => Kind::Clients,
            Owner::Peer(_) => Kind::Peers,
        };
        if kind != before {
            self.book(kind, &owner, bytes)?;
            self.unbook(before, &owner, bytes);
        }
        let has_keys = !keys.is_empty();
        for key in &keys {
            self.keys.entry(key.clone()).or_default().insert(id);
        }
        if let Some(entry) = self.entries.get_mut(&id) {
            self.deadlines.remove(&(entry.deadline, id));
            self.deadlines.insert((until, id));
            (entry.kind, entry.deadline, entry.keys) = (kind, until, keys);
        }
        self.changes += u64::from(has_keys);
        Ok(())
    }

    /// A wait is over. Whether it was there.
    pub(in crate::exchange) fn remove(&mut self, id: WaitId) -> bool {
        let Some(entry) = self.entries.remove(&id) else { return false };
        self.deadlines.remove(&(entry.deadline, id));
        self.unbook(entry.kind, &entry.owner, entry.bytes);
        for key in &entry.keys {
            if let Some(ids) = self.keys.get_mut(key) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.keys.remove(key);
                    self.changes += 1;
                }
            }
        }
        true
    }

    /// Takes those who wait for this name. They do not wait any more, but for those that are put back.
    pub(in crate::exchange) fn take(&mut self, key: &Key) -> Vec<(WaitId, W)> {
        let Some(ids) = self.keys.remove(key) else { return Vec::new() };
        self.changes += 1;
        let waiter = |id| self.entries.get(&id).map(|entry| (id, entry.waiter.clone()));
        ids.into_iter().filter_map(waiter).collect()
    }

    /// A wait goes on waiting for a name, if there is still such a wait.
    pub(in crate::exchange) fn put_back(&mut self, id: WaitId, key: &Key) {
        if self.entries.get(&id).is_some_and(|entry| entry.keys.contains(key)) {
            self.keys.entry(key.clone()).or_default().insert(id);
            self.changes += 1;
        }
    }

    /// Takes those whose deadline is over. Each is given once.
    pub(in crate::exchange) fn due(&mut self, now: Instant) -> Vec<W> {
        let mut due = Vec::new();
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            due.extend(self.entries.get(&id).map(|entry| entry.waiter.clone()));
        }
        due
    }

    pub(in crate::exchange) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// All of them, to be told of the end.
    pub(in crate::exchange) fn all(&self) -> Vec<W> {
        self.entries.values().map(|entry| entry.waiter.clone()).collect()
    }

    /// The names that somebody waits for, each once, with numbers of the owners who do. A number means an owner in this list alone.
    pub(in crate::exchange) fn wanted(&self) -> Vec<(Key, Vec<u32>)> {
        let mut numbers = HashMap::<&Owner, u32>::new();
        let mut wanted = Vec::with_capacity(self.keys.len());
        for (key, ids) in &self.keys {
            let mut owners = Vec::with_capacity(1);
            for entry in ids.iter().filter_map(|id| self.entries.get(id)) {
                let next = numbers.len() as u32;
                owners.push(*numbers.entry(&entry.owner).or_insert(next));
            }
            owners.sort_unstable();
            owners.dedup();
            wanted.push((key.clone(), owners));
        }
        wanted
    }

    /// A number that changes with the names that are waited for.
    pub(in crate::exchange) fn changes(&self) -> u64 {
        self.changes
    }

    /// Number of those that wait for names.
    pub(in crate::exchange) fn waiting(&self) -> usize {
        [Kind::Clients, Kind::Peers]
            .iter()
            .filter_map(|kind| self.totals.get(kind))
            .map(|load| load.count)
            .sum()
    }

    /// Bytes of all who ask or wait.
    pub(in crate::exchange) fn bytes(&self) -> u64 {
        self.totals.values().map(|load| load.bytes).sum()
    }

    /// Most bytes that all may have, whatever kind they are of.
    pub(in crate::exchange) fn most(&self) -> u64 {
        let Limits { asking, clients, peers } = self.limits;
        [asking, clients, peers].iter().map(|bounds| bounds.all_bytes).sum()
    }

    fn book(&mut self, kind: Kind, owner: &Owner, bytes: u64) -> Result<(), Failure> {
        let bounds = match kind {
            Kind::Asking => self.limits.asking,
            Kind::Clients => self.limits.clients,
            Kind::Peers => self.limits.peers,
        };
        let share = self.shares.get(&(kind, owner.clone())).copied().unwrap_or_default();
        let total = self.totals.get(&kind).copied().unwrap_or_default();
        let is_bounded = *owner != Owner::Sidecar;
        if is_bounded && share.count >= bounds.count {
            return Err(full(kind, owner, &format!("{} at a time", bounds.count), bounds.count as u64));
        }
        if is_bounded && share.bytes + bytes > bounds.bytes {
            return Err(full(kind, owner, &format!("{} bytes at a time", bounds.bytes), bounds.bytes));
        }
        // The last quarter is for those who have little: a few who take all that they may keep nobody out.
        let has_much = share.bytes + bytes > bounds.bytes / MUCH;
        let all_bytes = if has_much { bounds.all_bytes / 4 * 3 } else { bounds.all_bytes };
        if is_bounded && total.bytes + bytes > all_bytes {
            let most = format!("{all_bytes} bytes of all together at a time");
            return Err(full(kind, owner, &most, all_bytes));
        }
        for load in
            [self.shares.entry((kind, owner.clone())).or_default(), self.totals.entry(kind).or_default()]
        {
            load.count += 1;
            load.bytes += bytes;
        }
        Ok(())
    }

    fn unbook(&mut self, kind: Kind, owner: &Owner, bytes: u64) {
        let key = (kind, owner.clone());
        if let Some(share) = self.shares.get_mut(&key) {
            share.count -= 1;
            share.bytes -= bytes;
            if share.count == 0 {
                self.shares.remove(&key);
            }
        }
        if let Some(total) = self.totals.get_mut(&kind) {
            total.count -= 1;
            total.bytes -= bytes;
        }
    }
}

/// The refusal of one more.
fn full(kind: Kind, owner: &Owner, most: &str, limit: u64) -> Failure {
    let whose = match owner {
        Owner::Client(Some(_)) => "this session".to_owned(),
        Owner::Client(None) => "callers without a session".to_owned(),
        Owner::Peer(peer) => peer.to_string(),
        Owner::Sidecar => "this sidecar".to_owned(),
    };
    let what = if kind == Kind::Asking { "look-ups by name" } else { "waits for names" };
    let message =
        format!("{what} of {whose} may take {most}; wait for some to end, or ask for fewer names at once");
    Failure::new(Reason::LimitExceeded, message).with("limit", limit)
}

#[cfg(test)]
mod tests;
