//! Life of a simulated peer: its ledger, its sessions, and what it knows of each other peer.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorlane_memory::Arena;
use tensorlane_proto::ledger::{Answer, Event, Holder, Keep, Millis, Origin, PeerSlot, SessionId, TensorId};
use tensorlane_proto::negotiate::{NodeToken, Offer, Require, Transport, TransportOffer, VersionRange};
use tensorlane_proto::{Failure, Incarnation, PeerName};

use super::book::Book;
use super::pipes::PipeEnds;
use super::streams::Streams;
use super::wire::End;
use super::{Dice, Seen};
use crate::peer::remote::State;
use crate::peer::tests::world::fill;
use crate::peer::transport::measure::{Begun, Goodput};

/// Sessions of a peer.
const SESSIONS: u64 = 3;

/// A tensor that somebody put, named from anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Put {
    pub(super) owner: usize,
    pub(super) life: Incarnation,
    pub(super) id: TensorId,
    pub(super) bytes: u64,
    pub(super) seed: u64,
}

impl Put {
    pub(super) fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        fill(&mut bytes, self.seed);
        bytes
    }
}

/// A pull that was asked for.
pub(super) struct Get {
    pub(super) put: Put,
    pub(super) by: SessionId,
    pub(super) began: u64,
    pub(super) measured: Option<Begun>,
}

/// Outcomes that `done` was told.
pub(super) type Outcomes = Arc<Mutex<Vec<(u64, Result<Vec<u8>, Failure>)>>>;

/// State that is known of another peer.
#[derive(Default)]
pub(super) struct Other {
    pub(super) state: State<End>,
    /// The number of its present life as a holder.
    pub(super) slot: Option<(Incarnation, PeerSlot)>,
    pub(super) goodput: Goodput,
}

/// Life of a peer.
pub(super) struct Node {
    pub(super) number: usize,
    pub(super) life: Incarnation,
    pub(super) offer: Arc<Offer>,
    pub(super) book: Book,
    pub(super) others: BTreeMap<usize, Other>,
    pub(super) gets: BTreeMap<u64, Get>,
    pub(super) outcomes: Outcomes,
    /// Leases of sessions, once for each lease.
    pub(super) leases: Vec<(SessionId, TensorId)>,
    /// Bytes of its own tensors.
    pub(super) contents: BTreeMap<TensorId, Vec<u8>>,
    pub(super) streams: Streams,
    pub(super) pipes: PipeEnds,
    pub(super) next_call: u64,
    next_slot: u64,
    next_session: u64,
    sessions: Vec<SessionId>,
    pub(super) arena: Arc<Arena>,
}

pub(super) fn name(number: usize) -> PeerName {
    PeerName::new(["a", "b", "c", "d"][number]).expect("a letter is a name")
}

fn offer(number: usize, life: Incarnation, dice: &mut Dice) -> Offer {
    let some = |dice: &mut Dice, transport| {
        let with = TransportOffer::new(transport);
        if dice.one_in(8) { with } else { with.at("10.0.0.1:7000") }
    };
    let all = Transport::ALL.into_iter().skip(1);
    let transports = all.filter(|_| !dice.one_in(6)).collect::<Vec<_>>();
    Offer {
        peer: name(number),
        incarnation: life,
        versions: VersionRange { min: 1, max: 1 + dice.roll(3) as u16 },
        transports: transports.into_iter().map(|transport| some(dice, transport)).collect(),
        node: (!dice.one_in(4)).then(|| NodeToken(format!("node-{}", dice.roll(2)))),
        gpus: Vec::new(),
        require: Require::NONE,
    }
}

impl Node {
    pub(super) fn new(number: usize, peers: usize, dice: &mut Dice, arena: &Arc<Arena>) -> Self {
        let life = Incarnation(u128::from(dice.roll(u64::MAX)) << 8 | number as u128);
        Self {
            number,
            life,
            offer: Arc::new(offer(number, life, dice)),
            book: Book::new(),
            others: (0..peers)
                .filter(|other| *other != number)
                .map(|other| (other, Other::default()))
                .collect(),
            gets: BTreeMap::new(),
            outcomes: Outcomes::default(),
            leases: Vec::new(),
            contents: BTreeMap::new(),
            streams: Streams::default(),
            pipes: PipeEnds::default(),
            next_call: 1,
            next_slot: 0,
            next_session: SESSIONS,
            sessions: (0..SESSIONS).map(SessionId).collect(),
            arena: Arc::clone(arena),
        }
    }

    pub(super) fn other(&mut self, other: usize) -> &mut Other {
        self.others.get_mut(&other).expect("every peer knows every other")
    }

    pub(super) fn session(&self, dice: &mut Dice) -> SessionId {
        dice.pick(&self.sessions).expect("there is always one")
    }

    pub(super) fn lives(&self, session: SessionId) -> bool {
        self.sessions.contains(&session)
    }

    /// The number that a life of a peer has as a holder.
    pub(super) fn slot(&mut self, other: usize, life: Incarnation) -> PeerSlot {
        if let Some((_, slot)) = self.other(other).slot.filter(|(known, _)| *known == life) {
            return slot;
        }
        self.next_slot += 1;
        let slot = PeerSlot(self.next_slot);
        self.other(other).slot = Some((life, slot));
        slot
    }

    /// A session puts a tensor and keeps it.
    pub(super) fn put(&mut self, now: Millis, by: SessionId, bytes: u64, seed: u64) -> Option<Put> {
        let holder = Holder::Session(by);
        let reserved = self.book.apply(now, Event::Reserve { by: Some(holder), bytes, retry: None });
        let Ok(Answer::Reserved { id, .. }) = reserved else { return None };
        // Nothing of it can be leased before.
        let early = self.book.apply(now, Event::Lease { by: holder, id });
        assert!(early.is_err(), "a tensor that is not sealed was leased");
        let keep = Keep { lease: true, ..Keep::default() };
        self.book
            .apply(now, Event::Seal { by: Some(holder), id, keep, retry: None })
            .expect("its own reservation");
        self.leases.push((by, id));
        let put = Put { owner: self.number, life: self.life, id, bytes, seed };
        self.contents.insert(id, put.content());
        Some(put)
    }

    /// A session leases what is here.
    pub(super) fn lease(&mut self, now: Millis, by: SessionId, id: TensorId) -> bool {
        let leased = self.book.apply(now, Event::Lease { by: Holder::Session(by), id }).is_ok();
        if leased {
            self.leases.push((by, id));
        } else {
            assert!(self.book.freed.contains(&id), "{id} is refused, and was never freed");
        }
        leased
    }

    /// A whole tensor came: it is a copy now, and leased; or there is one already.
    pub(super) fn copy_in(&mut self, now: Millis, get: &Get) {
        if !self.lives(get.by) {
            return;
        }
        let origin = origin(&get.put);
        let by = Holder::Session(get.by);
        let id = match self.book.ledger.copy_of(&origin) {
            Some(id) => id,
            None => {
                let event = Event::CopyIn { origin, bytes: get.put.bytes, by, mapped: false };
                match self.book.apply(now, event) {
                    Ok(Answer::CopiedIn { id }) => {
                        self.leases.push((get.by, id));
                        return;
                    }
                    other => panic!("a copy is not taken: {other:?}"),
                }
            }
        };
        // It may end by its idleness just now.
        self.lease(now, get.by, id);
    }

    pub(super) fn release(&mut self, now: Millis, which: usize) {
        let (by, id) = self.leases.swap_remove(which);
        let released = self.book.apply(now, Event::Release { by: Holder::Session(by), id, count: 1 });
        assert!(released.is_ok(), "a lease that a session has cannot be given back: {released:?}");
    }

    /// A session ends, and another one begins.
    pub(super) fn end_session(&mut self, now: Millis, session: SessionId) {
        self.leases.retain(|(by, _)| *by != session);
        let holder = Holder::Session(session);
        self.book.apply(now, Event::HolderGone { holder }).expect("a holder may always go");
        self.sessions.retain(|other| *other != session);
        self.sessions.push(SessionId(self.next_session));
        self.next_session += 1;
    }

    pub(super) fn end_all_sessions(&mut self, now: Millis) {
        for session in self.sessions.clone() {
            self.end_session(now, session);
        }
    }

    /// Checks that leases of peers are exactly as long as their pulls: of each that is open on the present connection
    /// there is one, and there is none without an open pull.
    pub(super) fn check(&self) {
        self.streams.owned.check();
        for other in self.others.values() {
            let Some((life, slot)) = other.slot else { continue };
            let by = Holder::Peer(slot);
            let present =
                other.state.link.as_ref().filter(|link| link.incarnation == life).map(|link| link.wire);
            let mut open: BTreeMap<TensorId, (u64, u64)> = BTreeMap::new();
            for pull in other.state.open.values() {
                let (all, on_link) = open.entry(TensorId(pull.id)).or_default();
                *all += 1;
                *on_link += u64::from(Some(pull.link) == present);
            }
            for (id, (_, on_link)) in &open {
                let held = self.book.held(*id, by);
                assert!(
                    held >= *on_link,
                    "{on_link} pulls of {id} are open for {by}, which has {held} leases of it"
                );
            }
            for (id, held) in self.book.leased_by(by) {
                let all = open.get(&id).map_or(0, |(all, _)| *all);
                assert!(
                    held <= all,
                    "{by} has {held} leases of {id}, and {all} pulls are open that will end them"
                );
            }
        }
    }

    /// Everyone has let go, and the connections were up long enough.
    pub(super) fn assert_empty(&self, seen: &mut Seen) {
        self.book.assert_empty();
        self.streams.assert_empty();
        self.pipes.assert_empty();
        assert!(self.gets.is_empty(), "{} gets were never answered", self.gets.len());
        for other in self.others.values() {
            assert!(other.state.calls.is_empty(), "{} calls are left", other.state.calls.len());
            assert!(other.state.open.is_empty(), "{} pulls are left open", other.state.open.len());
        }
        seen.freed += self.book.freed.len() as u64;
    }
}

pub(super) fn origin(put: &Put) -> Origin {
    let (peer, incarnation) = (name(put.owner).as_str().into(), put.life.0);
    Origin { peer, incarnation, id: put.id.0, on_gpu: false }
}
