//! Holders of the arena, by name: sessions, peers and sets as the ledger has them, and streams over gRPC.
//!
//! A put over gRPC has no reservation before its last byte, and all gets over gRPC lease in one name ([`OWN`]). So each
//! stream says here who it is, how much it keeps and when it last moved, for as long as it is under way.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::ledger::{Holder, PeerSlot, SessionId};

use super::sessions::OWN;
use super::{State, Store};
use crate::session::SessionLink;

/// Characters of a program's name that a line about it shows.
const SHOWN_MAX: usize = 32;

/// Program that opened a session or a connection, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Program {
    /// The name that it gave itself; over gRPC its user agent. Empty where it gave none.
    pub name: Arc<str>,
    /// Number of its process, as this sidecar sees processes; 0 where that is not known.
    pub process: u32,
    /// Address that it came from, where it came over TCP.
    pub address: Option<SocketAddr>,
}

/// An open session.
pub(super) struct Open {
    /// Link of a session that maps memory.
    pub(super) link: Option<Arc<SessionLink>>,
    pub(super) program: Arc<Program>,
    pub(super) since: Instant,
}

/// Direction of the bytes of a stream over gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Bytes come in.
    Put,
    /// Bytes go out.
    Get,
}

/// The streams over gRPC that keep bytes of the arena.
#[derive(Clone, Default)]
pub struct Streams(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

struct Entry {
    direction: Direction,
    program: Arc<Program>,
    since: Instant,
    moved: Instant,
    /// Bytes of blocks that are its own.
    bytes: u64,
    /// Tensors that it leases, with their bytes.
    tensors: BTreeMap<u64, u64>,
}

/// Streams of one program in one direction.
struct Together {
    /// Number of the oldest.
    number: u64,
    streams: u64,
    since: Instant,
    moved: Instant,
    bytes: u64,
    tensors: BTreeMap<u64, u64>,
}

/// Place of one stream among them; dropping it ends it.
pub struct Streaming {
    streams: Streams,
    number: u64,
}

/// Kind of those that keep bytes of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keeping {
    /// A session, a peer or a set.
    Holder(Holder),
    /// Streams of one program, by the number of the oldest.
    Streams(Direction, u64),
    /// Gets over gRPC that gather what they will bring out, together.
    Calls,
}

/// Share of one of them.
#[derive(Debug, Clone)]
pub struct Holding {
    /// The one that keeps them.
    pub by: Keeping,
    /// Program behind it, or the name of the peer.
    pub program: Arc<Program>,
    /// Time since it began; of streams, since the oldest did. None where that is not known.
    pub age: Option<Duration>,
    /// Of streams: time since one of them moved.
    pub still: Option<Duration>,
    /// Bytes of the tensors that it leases or reserves, each once.
    pub bytes: u64,
    /// Leases that it has.
    pub leases: u64,
    /// Tensors that it has begun and not sealed.
    pub reservations: u64,
    /// Number of streams that are told of together; 0 of others.
    pub streams: u64,
}

// === impl Streams ===

impl Streams {
    /// Enters a stream that keeps nothing yet.
    pub fn enter(&self, direction: Direction, program: Arc<Program>) -> Streaming {
        let now = Instant::now();
        let mut table = self.0.lock();
        table.next += 1;
        let number = table.next;
        let (bytes, tensors) = (0, BTreeMap::new());
        table.entries.insert(number, Entry { direction, program, since: now, moved: now, bytes, tensors });
        Streaming { streams: self.clone(), number }
    }

    /// Returns the number of streams that are under way.
    pub fn count(&self) -> usize {
        self.0.lock().entries.len()
    }

    /// All that keep bytes, those of one program and direction together; and the bytes of all tensors that they lease, each once.
    fn holdings(&self, now: Instant) -> (Vec<Holding>, u64) {
        let table = self.0.lock();
        let mut all: BTreeMap<(Direction, Arc<Program>), Together> = BTreeMap::new();
        for (number, entry) in &table.entries {
            if entry.bytes == 0 && entry.tensors.is_empty() {
                continue;
            }
            let key = (entry.direction, Arc::clone(&entry.program));
            all.entry(key).or_insert_with(|| Together::new(*number, entry)).add(entry);
        }
        drop(table);
        let leased: BTreeMap<&u64, &u64> = all.values().flat_map(|together| &together.tensors).collect();
        let leased = leased.into_values().sum();
        (all.into_iter().map(|(key, together)| together.holding(key, now)).collect(), leased)
    }
}

// === impl Together ===

impl Together {
    fn new(number: u64, first: &Entry) -> Self {
        let (since, moved) = (first.since, first.moved);
        Self { number, streams: 0, since, moved, bytes: 0, tensors: BTreeMap::new() }
    }

    fn add(&mut self, entry: &Entry) {
        self.streams += 1;
        self.moved = self.moved.max(entry.moved);
        self.bytes += entry.bytes;
        self.tensors.extend(&entry.tensors);
    }

    fn holding(self, (direction, program): (Direction, Arc<Program>), now: Instant) -> Holding {
        Holding {
            by: Keeping::Streams(direction, self.number),
            program,
            age: Some(now.saturating_duration_since(self.since)),
            still: Some(now.saturating_duration_since(self.moved)),
            bytes: self.bytes + self.tensors.values().sum::<u64>(),
            leases: self.tensors.len() as u64,
            reservations: 0,
            streams: self.streams,
        }
    }
}

// === impl Streaming ===

impl Streaming {
    /// Notes that bytes moved.
    pub fn moved(&self) {
        self.change(|entry| entry.moved = Instant::now());
    }

    /// Notes how many bytes of blocks of its own it keeps now.
    pub fn keeps_bytes(&self, bytes: u64) {
        self.change(|entry| entry.bytes = bytes);
    }

    /// Notes the tensors that it leases: numbers and bytes.
    pub fn keeps(&self, tensors: BTreeMap<u64, u64>) {
        self.change(|entry| entry.tensors = tensors);
    }

    fn change(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.streams.0.lock().entries.get_mut(&self.number) {
            change(entry);
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        let gone = self.streams.0.lock().entries.remove(&self.number);
        drop(gone);
    }
}

// === impl Store ===

impl Store {
    /// The streams over gRPC that keep bytes of the arena.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Lists those that keep the most bytes of the arena, the largest first.
    pub fn holdings(&self, most: usize) -> Vec<Holding> {
        let now = Instant::now();
        let (streams, brought) = self.streams.holdings(now);
        let state = self.state.lock();
        // One more: our own name is told by its streams.
        let largest = state.ledger.largest_holders(most.saturating_add(1));
        let mut all: Vec<Holding> =
            largest.into_iter().filter_map(|weight| state.holding(weight, brought, now)).collect();
        drop(state);
        all.extend(streams);
        first(all, most)
    }

    /// Short words for a holder, such as `session 3 (trainer, process 12)`.
    pub fn named_holder(&self, holder: Holder) -> String {
        let state = self.state.lock();
        let program = match holder {
            Holder::Session(session) => state.sessions.get(&session).map(|open| Arc::clone(&open.program)),
            Holder::Peer(peer) => state.peers.get(&peer).map(Arc::clone),
            Holder::Manifest(_) => None,
        };
        drop(state);
        let known = program.map(|program| known(&program)).unwrap_or_default();
        if known.is_empty() { holder.to_string() } else { format!("{holder} ({})", known.join(", ")) }
    }

    /// Tells the name of a peer that may hold something.
    pub fn peer_named(&self, peer: PeerSlot, name: &str) {
        let mut state = self.state.lock();
        state.peers.entry(peer).or_insert_with(|| Program { name: name.into(), ..Program::default() }.into());
    }

    /// Forgets the name of a peer that is gone.
    pub fn peer_unnamed(&self, peer: PeerSlot) {
        let gone = self.state.lock().peers.remove(&peer);
        drop(gone);
    }
}

// === impl State ===

impl State {
    fn holding(
        &self,
        (holder, bytes, leases): (Holder, u64, u64),
        brought: u64,
        now: Instant,
    ) -> Option<Holding> {
        let holding = |by, bytes, program: Option<&Arc<Program>>, since: Option<Instant>| Holding {
            by,
            program: program.cloned().unwrap_or_default(),
            age: since.map(|since| now.saturating_duration_since(since)),
            still: None,
            bytes,
            leases,
            reservations: self.ledger.reservations_of(holder),
            streams: 0,
        };
        if holder == OWN {
            let rest = bytes.saturating_sub(brought);
            return (rest > 0).then(|| holding(Keeping::Calls, rest, None, None));
        }
        let (program, since) = match holder {
            Holder::Session(session) => {
                let open = self.sessions.get(&session);
                (open.map(|open| &open.program), open.map(|open| open.since))
            }
            Holder::Peer(peer) => (self.peers.get(&peer), None),
            Holder::Manifest(_) => (None, None),
        };
        Some(holding(Keeping::Holder(holder), bytes, program, since))
    }
}

// === impl Keeping ===

impl Keeping {
    /// Returns its kind in a word, and its number where it has one.
    pub fn kind(self) -> (&'static str, u64) {
        match self {
            Self::Holder(Holder::Session(SessionId(number))) => ("session", number),
            Self::Holder(Holder::Peer(PeerSlot(number))) => ("peer", number),
            Self::Holder(Holder::Manifest(id)) => ("set", id.0),
            Self::Streams(Direction::Put, number) => ("put", number),
            Self::Streams(Direction::Get, number) => ("get", number),
            Self::Calls => ("calls", 0),
        }
    }
}

// === impl Holding ===

impl fmt::Display for Holding {
    /// Writes one short line, such as `session 3 (trainer, process 12, for 4 s): 64 bytes in 1 leases`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            Keeping::Holder(holder) => write!(f, "{holder}")?,
            Keeping::Streams(direction, number) => {
                let what = match direction {
                    Direction::Put => "half-sent put",
                    Direction::Get => "unread get",
                };
                match self.streams {
                    0 | 1 => write!(f, "{what} {number} over gRPC")?,
                    more => write!(f, "{more} {what}s over gRPC from {number} on")?,
                }
            }
            Keeping::Calls => write!(f, "gets over gRPC that gather")?,
        }
        let mut known = known(&self.program);
        known.extend(self.age.map(|age| format!("for {} s", age.as_secs())));
        known.extend(self.still.map(|still| format!("still for {} s", still.as_secs())));
        if !known.is_empty() {
            write!(f, " ({})", known.join(", "))?;
        }
        write!(f, ": {} bytes", self.bytes)?;
        if matches!(self.by, Keeping::Streams(..)) {
            return Ok(());
        }
        write!(f, " in {} leases", self.leases)?;
        match self.reservations {
            0 => Ok(()),
            more => write!(f, " and {more} reservations"),
        }
    }
}

/// Words about a program, as far as it is known.
fn known(program: &Program) -> Vec<String> {
    let Program { name, process, address } = program;
    let mut known = Vec::new();
    if !name.is_empty() {
        known.push(shown(name));
    }
    if *process != 0 {
        known.push(format!("process {process}"));
    }
    known.extend(address.map(|address| address.to_string()));
    known
}

/// The beginning of a name, without what a terminal would obey.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(SHOWN_MAX).collect()
}

/// The largest first, so many at most.
fn first(mut all: Vec<Holding>, most: usize) -> Vec<Holding> {
    all.sort_by_key(|held| (Reverse(held.bytes), held.by));
    all.truncate(most);
    all
}

/// The peers that were told, by their numbers as holders.
pub(super) type Peers = HashMap<PeerSlot, Arc<Program>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn held(by: Keeping, bytes: u64) -> Holding {
        let program = Program { name: "trainer\u{1b}[2J".into(), process: 12, address: None };
        let age = Some(Duration::from_secs(4));
        Holding {
            by,
            program: program.into(),
            age,
            still: None,
            bytes,
            leases: 1,
            reservations: 0,
            streams: 0,
        }
    }

    #[test]
    fn a_holder_says_who_it_is_in_one_short_line() {
        let session = held(Keeping::Holder(Holder::Session(SessionId(3))), 64);
        assert_eq!(session.to_string(), "session 3 (trainer[2J, process 12, for 4 s): 64 bytes in 1 leases");
        let reserving = Holding { reservations: 2, ..session };
        assert!(reserving.to_string().ends_with("64 bytes in 1 leases and 2 reservations"), "{reserving}");
        let address = Some("127.0.0.1:4711".parse().unwrap());
        let put = Holding {
            program: Program { name: "x".repeat(300).into(), process: 0, address }.into(),
            still: Some(Duration::from_secs(2)),
            ..held(Keeping::Streams(Direction::Put, 7), 1 << 40)
        };
        let line = put.to_string();
        assert!(line.starts_with("half-sent put 7 over gRPC (xxx") && line.len() <= 128, "{line}");
        assert!(line.ends_with(", 127.0.0.1:4711, for 4 s, still for 2 s): 1099511627776 bytes"), "{line}");
    }

    #[test]
    fn the_largest_come_first_and_they_are_bounded() {
        let all = (1..=9).map(|n| held(Keeping::Streams(Direction::Get, n), n)).collect();
        assert_eq!(first(all, 3).iter().map(|held| held.bytes).collect::<Vec<_>>(), [9, 8, 7]);
    }

    #[test]
    fn streams_of_one_program_are_told_of_together_and_what_they_share_once() {
        let streams = Streams::default();
        let program = |process| Arc::new(Program { process, ..Program::default() });
        let get = |process, tensors: &[(u64, u64)]| {
            let get = streams.enter(Direction::Get, program(process));
            get.keeps(tensors.iter().copied().collect());
            get
        };
        let five: Vec<_> = (0..5).map(|_| get(1, &[(7, 16)])).collect();
        let (_more, other) = (get(1, &[(7, 16), (8, 4)]), get(2, &[(7, 16)]));
        let put = streams.enter(Direction::Put, program(1));
        assert_eq!(streams.count(), 8, "one of them keeps nothing");
        put.keeps_bytes(8);
        let (holdings, leased) = streams.holdings(Instant::now());
        let told: Vec<_> = holdings.iter().map(|held| (held.by.kind(), held.bytes, held.streams)).collect();
        assert_eq!(told, [(("put", 8), 8, 1), (("get", 1), 20, 6), (("get", 7), 16, 1)]);
        assert_eq!(leased, 20);
        assert!(holdings[1].to_string().starts_with("6 unread gets over gRPC from 1 on (process 1"));
        drop((five, put, other));
        let (holdings, leased) = streams.holdings(Instant::now());
        assert_eq!((holdings.len(), holdings[0].by.kind(), leased), (1, ("get", 6), 20));
    }
}
