//! The peers, the connections between them and what happens when: one queue in a time of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_memory::Arena;
use tensorlane_proto::ledger::{Event, Millis, TensorId, TensorName};
use tensorlane_proto::negotiate::{Policy, SameNode, Transport, TransportSet};
use tensorlane_proto::{Failure, Incarnation, Reason};

use super::node::{Node, Put};
use super::wire::{End, Wire};
use super::{Dice, Seen};
use crate::peer::remote::Effects;
use crate::peer::tests::world::arena;
use crate::peer::transport::measure::Outcome;

pub(super) const MS: u64 = 1000;
pub(super) const GRACE: u64 = 500 * MS;
pub(super) const PROGRESS: u64 = 200 * MS;
/// Happenings of one run at most: one that does not come to its end is stuck.
const MOST: u64 = 200_000;

/// Event that may happen.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    Arrive {
        wire: u64,
        side: usize,
        bytes: Vec<u8>,
    },
    Adopt {
        wire: u64,
        side: usize,
    },
    Notice {
        wire: u64,
        side: usize,
    },
    Write {
        wire: u64,
        side: usize,
    },
    /// End of what was not asked for again.
    Forget {
        wire: u64,
        side: usize,
    },
    Dial {
        pair: (usize, usize),
    },
    Act {
        node: usize,
    },
    Tick {
        node: usize,
    },
    Deadline {
        node: usize,
        life: Incarnation,
        owner: usize,
        call: u64,
    },
    /// Sessions of a peer do something with channels.
    Stream {
        node: usize,
    },
    /// A reader of a channel reads on.
    Consume {
        node: usize,
        life: Incarnation,
        reader: u64,
    },
    /// Sessions of a peer do something with pipes.
    Pipe {
        node: usize,
    },
    /// A message of a pipe was read.
    Take {
        node: usize,
        life: Incarnation,
        pipe: u64,
        sequence: u64,
    },
    Cut,
    Restart,
}

/// Messages of channels and pipes, for those who read them.
#[derive(Default)]
pub(super) struct WrittenMessages {
    /// Channels so far, each of which has a number.
    pub(super) channels: u64,
    /// Messages of each channel that was finished.
    pub(super) finished: BTreeMap<u64, u64>,
    /// Messages of pipes that were read, by the life of the listener, the pipe and the sequence.
    pub(super) read: BTreeSet<(Incarnation, u64, u64)>,
    /// Sequence after the last of each pipe that was finished.
    pub(super) pipes: BTreeMap<(Incarnation, u64), u64>,
}

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) now: u64,
    pub(super) base: Instant,
    pub(super) queue: BTreeMap<(u64, u64), Happening>,
    pub(super) sequence: u64,
    pub(super) nodes: Vec<Node>,
    pub(super) wires: BTreeMap<u64, Wire>,
    pub(super) next_wire: u64,
    /// The latest connection of each pair.
    pub(super) pairs: BTreeMap<(usize, usize), u64>,
    pub(super) dialing: BTreeSet<(usize, usize)>,
    pub(super) board: Vec<Put>,
    /// Times at which lives ended, and what they had freed.
    pub(super) dead: BTreeMap<Incarnation, (u64, BTreeSet<TensorId>)>,
    pub(super) policy: Policy,
    pub(super) same_node: SameNode,
    /// Everyone lets go: nothing new is asked, cut or restarted.
    pub(super) ending: bool,
    /// Channels and pipes are used, too.
    streams: bool,
    pub(super) written: WrittenMessages,
    pub(super) arena: Arc<Arena>,
    pub(super) seen: Seen,
}

/// Arena for all runs of a test: its blocks come back, and making it takes longer than a run. Two tests that shared one
/// would find no room while the other one lets it grow.
fn shared_arena() -> Arc<Arena> {
    thread_local!(static ARENA: Arc<Arena> = arena(64 << 20));
    ARENA.with(Arc::clone)
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let arena = shared_arena();
        let peers = 2 + dice.roll(3) as usize;
        let nodes = (0..peers).map(|number| Node::new(number, peers, &mut dice, &arena)).collect();
        let allow = Transport::ALL
            .into_iter()
            .filter(|_| !dice.one_in(5))
            .fold(TransportSet::EMPTY, TransportSet::with);
        let prefer = dice.pick(&[None, Some(Transport::Tcp), Some(Transport::Quic)]).flatten();
        let same_node =
            dice.pick(&[SameNode::Unknown, SameNode::Proven, SameNode::Refuted]).unwrap_or_default();
        Self {
            dice,
            now: 0,
            base: Instant::now(),
            queue: BTreeMap::new(),
            sequence: 0,
            nodes,
            wires: BTreeMap::new(),
            next_wire: 1,
            pairs: BTreeMap::new(),
            dialing: BTreeSet::new(),
            board: Vec::new(),
            dead: BTreeMap::new(),
            policy: Policy { allow, prefer, ..Policy::default() },
            same_node,
            ending: false,
            streams: false,
            written: WrittenMessages::default(),
            arena,
            seen: Seen::default(),
        }
    }

    /// World in which peers use channels and pipes, too.
    pub(super) fn with_streams(seed: u64) -> Self {
        Self { streams: true, ..Self::new(seed) }
    }

    /// The whole run.
    pub(super) fn run(mut self) -> Seen {
        for a in 0..self.nodes.len() {
            if self.streams {
                self.soon(40 * MS, Happening::Stream { node: a });
                self.soon(40 * MS, Happening::Pipe { node: a });
            }
            self.soon(60 * MS, Happening::Act { node: a });
            self.soon(300 * MS, Happening::Tick { node: a });
            (a + 1..self.nodes.len()).for_each(|b| self.dial((a, b), 20 * MS));
        }
        self.soon(600 * MS, Happening::Cut);
        self.soon(1500 * MS, Happening::Restart);
        let length = 400 * MS + self.dice.roll(1600 * MS);
        self.until(length);
        self.ending = true;
        // Longer than any deadline, and than the grace thrice.
        self.until(self.now + 6000 * MS);
        self.ask_the_dead();
        self.let_go();
        self.until(self.now + 4000 * MS);
        let mut seen = self.seen;
        self.nodes.iter().for_each(|node| node.assert_empty(&mut seen));
        seen
    }

    pub(super) fn millis(&self) -> Millis {
        Millis(self.now / MS)
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    pub(super) fn at(&mut self, at: u64, what: Happening) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), what);
    }

    /// At some time within so many microseconds.
    pub(super) fn soon(&mut self, within: u64, what: Happening) {
        let at = self.now + 1 + self.dice.roll(within);
        self.at(at, what);
    }

    pub(super) fn until(&mut self, end: u64) {
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > end {
                break;
            }
            let ((at, sequence), what) = entry.remove_entry();
            self.now = at;
            self.seen.happenings += 1;
            self.seen.note(at ^ sequence << 32);
            assert!(self.seen.happenings < MOST, "it does not come to its end: {what:?}");
            self.happen(what);
            self.nodes.iter().for_each(Node::check);
        }
        self.now = end;
    }

    pub(super) fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrive { wire, side, bytes } => self.arrive(wire, side, &bytes),
            Happening::Adopt { wire, side } => self.adopt(wire, side),
            Happening::Notice { wire, side } => self.notice(wire, side),
            Happening::Write { wire, side } => self.write(wire, side),
            Happening::Forget { wire, side } => self.forget(wire, side),
            Happening::Dial { pair } => self.connect(pair),
            Happening::Act { node } => self.act(node),
            Happening::Tick { node } => self.tick(node),
            Happening::Deadline { node, life, owner, call } => {
                if self.nodes[node].life == life {
                    self.withdraw(node, owner, call, Reason::DeadlineExceeded);
                }
            }
            Happening::Stream { node } => self.stream_act(node),
            Happening::Consume { node, life, reader } => self.consume(node, life, reader),
            Happening::Pipe { node } => self.pipe_act(node),
            Happening::Take { node, life, pipe, sequence } => self.take(node, life, pipe, sequence),
            Happening::Cut => self.cut_one(),
            Happening::Restart => self.restart_one(),
        }
    }

    pub(super) fn perform(&mut self, node: usize, effects: Effects<End>) {
        let Effects { send, finish, .. } = effects;
        if let Some((end, frames)) = send {
            let side = self.wires[&end.wire].side_of(node);
            frames.iter().for_each(|frame| self.send(end.wire, side, frame));
        }
        finish.into_iter().for_each(|finish| finish());
        let told = std::mem::take(&mut *self.nodes[node].outcomes.lock());
        for (call, outcome) in told {
            self.told(node, call, outcome);
        }
        self.tell_attached(node);
        self.tell_connected(node);
    }

    pub(super) fn told(&mut self, node: usize, call: u64, outcome: Result<Vec<u8>, Failure>) {
        let get = self.nodes[node].gets.remove(&call).expect("an outcome is told once");
        let (put, now) = (get.put.clone(), self.millis());
        let died = self.dead.get(&put.life).map(|(at, _)| *at);
        let measured = match outcome {
            Ok(bytes) => {
                assert!(bytes == put.content(), "wrong bytes of {put:?}");
                assert!(died.is_none_or(|died| died >= get.began), "a life that was over has served {put:?}");
                self.seen.pulled += 1;
                self.nodes[node].copy_in(now, &get);
                Outcome::Came
            }
            Err(failure) => {
                self.explained(&failure, &put, died.is_some());
                Outcome::Unknown
            }
        };
        if let Some(begun) = get.measured {
            let now = self.instant();
            self.nodes[node].other(put.owner).goodput.ended(begun, measured, now);
        }
    }

    pub(super) fn explained(&mut self, failure: &Failure, put: &Put, died: bool) {
        match failure.reason {
            Reason::OwnerLost => {
                assert!(died, "{put:?} is said to be lost, and its owner lives");
                self.seen.owner_lost += 1;
            }
            Reason::NotFound => {
                let here = &self.nodes[put.owner];
                let freed = if here.life == put.life { Some(&here.book.freed) } else { None };
                let freed = freed.or_else(|| self.dead.get(&put.life).map(|(_, freed)| freed));
                assert!(
                    freed.is_some_and(|freed| freed.contains(&put.id)),
                    "{put:?} is not found, and was never freed"
                );
                self.seen.not_found += 1;
            }
            Reason::PeerUnreachable => self.seen.unreachable += 1,
            Reason::Cancelled | Reason::DeadlineExceeded => self.seen.withdrawn += 1,
            other => panic!("{put:?} ended with {other}: {failure}"),
        }
    }

    pub(super) fn withdraw(&mut self, node: usize, owner: usize, call: u64, why: Reason) {
        let here = &self.nodes[node];
        let is_asked = here.streams.is_attaching(call) || here.pipes.is_connecting(call);
        if is_asked || here.gets.contains_key(&call) {
            let failure = Failure::new(why, "nobody waits for it any more");
            let effects = self.nodes[node].other(owner).state.withdraw(call, failure);
            self.perform(node, effects);
        }
    }

    pub(super) fn tick(&mut self, node: usize) {
        let (now, millis) = (self.instant(), self.millis());
        self.nodes[node].book.apply(millis, Event::Tick).expect("time may always pass");
        self.nodes[node].streams.owned.expire(now);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let effects = self.nodes[node].other(other).state.give_up_lost(Duration::from_micros(GRACE), now);
            self.perform(node, effects);
        }
        self.soon(300 * MS, Happening::Tick { node });
    }

    /// References to lives that are over: everyone is connected, and says so at once.
    pub(super) fn ask_the_dead(&mut self) {
        let gone: Vec<Put> =
            self.board.iter().filter(|put| self.dead.contains_key(&put.life)).cloned().collect();
        for put in gone.into_iter().rev().take(4) {
            for node in (0..self.nodes.len()).filter(|node| *node != put.owner) {
                let linked = self.nodes[node].other(put.owner).state.link.is_some();
                assert!(linked, "{node} and {} are not connected, and nothing parts them", put.owner);
                let before = self.seen.owner_lost;
                let by = self.nodes[node].session(&mut self.dice);
                self.begin(node, put.clone(), by, Transport::Tcp, 2000 * MS);
                // A question to the present life, where the other one was never met.
                self.until(self.now + 300 * MS);
                assert!(
                    self.seen.owner_lost > before,
                    "{put:?} of a life that is over was not said to be lost"
                );
            }
        }
    }

    pub(super) fn let_go(&mut self) {
        let now = self.millis();
        for node in &mut self.nodes {
            node.end_all_sessions(now);
            for name in node.book.names() {
                let name = TensorName::new(&name).expect("it was one before");
                node.book.apply(now, Event::Unname { name }).expect("it is given");
            }
        }
    }
}
