//! Calls that we made and that are not over. A call knows how it is written, and what it becomes when it ends; on which
//! connection it is, is for `remote`.

use std::sync::{Arc, Weak};
use std::time::Instant;

use tensorlane_memory::{Block, Landing};
use tensorlane_proto::encoded::PulledSmall;
use tensorlane_proto::frame::{self, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::{Descriptor, Failure, Incarnation, Selection, Transport};

use super::api::{LostHolder, MapFailed, Mapped, PeerKey, PullFailed, Pulled};
use super::channels::AttachDone;
use super::gpus::{BorrowedMemory, GpuId};
use super::lost;
use super::partial::{PartialTensor, RelayToken};
use super::paths::{FallBack, Paths, Travelled};
use super::pipe_calls::ConnectDone;
use super::pull_guard::PullGuard;
use super::questions;
use super::received::{AHEAD_SINCE, ReceivedRanges};
use super::relay::{self, RelayCall, RelayFetch};
use super::remote::Peer;
use super::shared::Shared;
use super::transport::lanes::{Reclaimed, Transfer};
use super::transport::{Choice, Way, Ways};

/// Takes the outcome of a pull. Runs on a reader thread: must not block.
pub type PullDone = Box<dyn FnOnce(Result<Pulled, PullFailed>) + Send>;
/// Takes the outcome of a map. Runs on a reader thread: must not block.
pub type MapDone = Box<dyn FnOnce(Result<Mapped, MapFailed>) + Send>;
/// Takes the outcome of a pull of small tensors. Runs on a reader thread: must not block.
pub type SmallDone = Box<dyn FnOnce(Result<Vec<PulledSmall>, Failure>) + Send>;
/// Takes the outcome of an inquiry. Runs on a reader thread: must not block.
pub type InquireDone = Box<dyn FnOnce(Result<v1::Inquired, Failure>) + Send>;

/// Takes the answer to a call about a set. Runs on a reader thread: must not block.
pub type SetDone = Box<dyn FnOnce(Result<v1::SetAnswer, Failure>) + Send>;

/// Takes the lease that a ticket became. Runs on a reader thread: must not block.
pub type RedeemDone = Box<dyn FnOnce(Result<PullGuard, Failure>) + Send>;

/// Takes names of another peer, or changes of them. Runs on a reader thread: must not block.
pub type WatchDone = Box<dyn FnOnce(Result<v1::WatchResponse, Failure>) + Send>;

/// Work that is left when a call is over, outside of every lock.
pub(super) type Finish = Box<dyn FnOnce() + Send>;

/// The beginning of the answer to a pull.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Head {
    pub(super) descriptor: Descriptor,
    pub(super) crc32c: Option<u32>,
    /// The owner copied it out of GPU memory.
    pub(super) staged: bool,
}

/// A pull and how far it is.
pub(super) struct PullCall {
    pub(super) id: u64,
    pub(super) selection: Selection,
    pub(super) bytes: u64,
    /// The byte length of the whole tensor as its reference states it.
    pub(super) stored: Option<u64>,
    /// The transport that was chosen for it.
    pub(super) transport: Transport,
    /// The way that its bytes come on the present connection.
    pub(super) way: Way,
    /// The head came on the present connection.
    pub(super) opened: bool,
    /// `None` while the reader thread writes into it, and while `transfer` has it.
    pub(super) landing: Option<Landing>,
    /// Holder of the landing while its bytes come from several sides. Outlives connections.
    pub(super) transfer: Option<Arc<Transfer>>,
    /// Packed bytes that are in the landing without a gap.
    pub(super) landed: u64,
    /// Bytes behind a gap that are there too, and are not sent on the control connection.
    pub(super) ahead: ReceivedRanges,
    /// Paths by which the present bytes came.
    pub(super) paths: Paths,
    /// Reason for which the present way is not the best, while nobody has counted that.
    pub(super) missed: Option<FallBack>,
    pub(super) head: Option<Head>,
    /// Readers that are served from it meanwhile.
    pub(super) growth: Option<Arc<PartialTensor>>,
    /// The version of the protocol on the present connection.
    pub(super) version: u32,
    /// Token that holders are shown.
    pub(super) pass: Option<RelayToken>,
    /// Holders that the owner has named and that were not asked.
    pub(super) holders: Vec<PeerKey>,
    /// Others that have all of it by the owner's word, for when the owner is lost.
    pub(super) spares: Vec<PeerKey>,
    /// The owner does not go on with it, and others do: what it fails with where they do not either.
    pub(super) orphaned: Option<Failure>,
    /// Set if what came from the owner last could not be read on the wire: then nothing may.
    pub(super) encrypted: bool,
    /// The holder that brings it now.
    pub(super) relay: Option<RelayFetch>,
    /// Holders that were asked.
    pub(super) turns: u32,
    /// Holders that did not do.
    pub(super) lost: Vec<LostHolder>,
    /// A holder was asked once more since its connection was replaced: once is enough.
    pub(super) asked_again: bool,
    /// The owner was asked who else there is.
    pub(super) seeking: bool,
    /// The connection on which the owner was asked what granules hash to, and has not answered.
    pub(super) proofs_asked: Option<u64>,
    /// The owner does not say it, so what others send is worth nothing.
    pub(super) unprovable: bool,
    /// Peer whose call it is, for the guard.
    pub(super) home: Option<(Weak<Shared>, Arc<Peer>)>,
    pub(super) done: Option<PullDone>,
    /// Failure that came while the reader thread had the landing: told as soon as that is back.
    pub(super) failed: Option<Failure>,
}

/// Place of the bytes of a tensor at its owner.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A map and how far it is.
pub(super) struct MapCall {
    pub(super) id: u64,
    /// Owner of the tensor, if it is a copy.
    pub(super) owner: Option<PeerKey>,
    pub(super) bytes: u64,
    /// GPUs that both reach, if it may come as memory of one of them.
    pub(super) gpus: Vec<GpuId>,
    /// Length of its allocation, where it does.
    pub(super) allocation: u64,
    /// Set if it was asked for at the node's socket, and is answered there or not at all.
    pub(super) at_node: bool,
    /// The head came on the present connection.
    pub(super) opened: bool,
    pub(super) head: Option<Head>,
    pub(super) place: Option<Place>,
    pub(super) done: Option<MapDone>,
}

/// Small tensors that were asked for together.
pub(super) struct SmallCall {
    pub(super) asked: v1::PullMany,
    /// Set if a connection stood still with the answer due on it: the next one is not asked for so much at once.
    pub(super) stood_still: bool,
    pub(super) done: Option<SmallDone>,
}

impl SmallCall {
    /// Bytes that the answer has beside what describes them.
    pub(super) fn bytes(&self) -> u64 {
        self.asked.stored.iter().fold(0, |sum: u64, one| sum.saturating_add(*one))
    }
}

/// Kind of the question.
pub(super) enum Kind {
    Pull(Box<PullCall>),
    /// Bytes of a pull, from a holder that is not the owner.
    Relay(Box<RelayCall>),
    Map(Box<MapCall>),
    Small(SmallCall),
    Inquire {
        question: Question,
        done: Option<InquireDone>,
    },
    /// An attach to a channel.
    Channel {
        message: v1::PeerChannelAttach,
        done: Option<AttachDone>,
    },
    /// A connect to a listener of pipes.
    PipeConnect {
        message: v1::PeerPipeConnect,
        done: Option<ConnectDone>,
    },
    /// A call about a mutable set.
    Set {
        message: Box<v1::SetCall>,
        done: Option<SetDone>,
    },
    /// A ticket of the tensor of this number.
    Redeem {
        message: v1::PeerRedeem,
        id: u64,
        /// Place from which its lease is ended.
        home: Option<(Weak<Shared>, Arc<Peer>)>,
        done: Option<RedeemDone>,
    },
    /// A watch of names.
    Watch {
        message: v1::WatchRequest,
        done: Option<WatchDone>,
    },
}

/// Question to a peer, kept until it is answered. Names are those of the caller, which may ask many peers for the same ones: they become a
/// message only while it is written.
pub struct Question {
    names: Arc<[TensorName]>,
    /// Everything else of the message; its targets stand behind the names.
    rest: v1::Inquire,
}

/// A call of ours.
pub(super) struct Call {
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) begun: Instant,
    pub(super) deadline: Instant,
    /// The only incarnation that can answer; learned when it is first sent, if the caller did not say.
    pub(super) expected: Option<Incarnation>,
    /// The connection that it is on.
    pub(super) sent_on: Option<u64>,
    /// Set if it was on a connection at some time, so the owner may hold a lease for it; or if what it goes on with was.
    pub(super) sent_before: bool,
    /// The caller has its outcome; we wait for the owner's last frame only.
    pub(super) withdrawn: bool,
    /// The number of the last attempt to connect that began before it.
    pub(super) attempt: u64,
}

impl Question {
    /// Asks for these names, without a copy of them.
    pub fn of_names(names: Arc<[TensorName]>, rest: v1::Inquire) -> Self {
        Self { names, rest }
    }

    /// Number of what is asked for, and so of the results.
    pub(super) fn targets(&self) -> usize {
        self.names.len() + self.rest.targets.len()
    }

    fn message(&self) -> v1::Inquire {
        let named = |name: &TensorName| v1::Target {
            kind: Some(v1::target::Kind::Name(name.to_string())),
            peer: String::new(),
        };
        let targets = self.names.iter().map(named).chain(self.rest.targets.iter().cloned()).collect();
        v1::Inquire { targets, ..self.rest.clone() }
    }
}

impl From<v1::Inquire> for Question {
    fn from(rest: v1::Inquire) -> Self {
        Self { names: Arc::default(), rest }
    }
}

impl Kind {
    /// Returns whether it goes on with what was on a connection before, for which the other end waits.
    fn is_resumed(&self) -> bool {
        match self {
            Self::Channel { message, .. } => message.resume.is_some(),
            Self::PipeConnect { message, .. } => message.resume != 0,
            _ => false,
        }
    }
}

impl Call {
    pub(super) fn new(kind: Kind, deadline: Instant, number: u64, expected: Option<Incarnation>) -> Self {
        let sent_before = kind.is_resumed();
        Self {
            number,
            kind,
            begun: Instant::now(),
            deadline,
            expected,
            sent_on: None,
            sent_before,
            withdrawn: false,
            attempt: 0,
        }
    }

    /// The frame that asks, for what is still missing.
    pub(super) fn frame(&self) -> Vec<u8> {
        match &self.kind {
            Kind::Pull(pull) => {
                let selection = (pull.selection != Selection::All).then(|| (&pull.selection).into());
                // On lanes the reader says with each ask what it wants.
                let from = if pull.way == Way::Stream { pull.landed } else { 0 };
                let way = v1::Way::from(pull.way).into();
                let (spreads, lost) = (pull.spreads(), pull.lost.iter().map(lost::life).collect());
                let (id, bytes, stored, ahead) = (pull.id, pull.bytes, pull.stored, pull.ahead.spans());
                let asked = v1::Pull { id, selection, from, bytes, way, stored, ..v1::Pull::default() };
                let message = v1::Pull { spreads, lost, ahead, ..asked };
                frame::encode(PeerKind::Pull.into(), 0, self.number, &message)
            }
            Kind::Relay(relay) => frame::encode(PeerKind::Pull.into(), 0, self.number, &relay.message()),
            Kind::Map(map) => {
                let way = v1::Way::from(Way::Shm).into();
                let owner = map.owner.as_ref().map(relay::life);
                let cuda_uuids = map.gpus.iter().map(|uuid| uuid.to_vec().into()).collect();
                let asked = v1::Pull { id: map.id, bytes: map.bytes, way, owner, ..v1::Pull::default() };
                let message = v1::Pull { cuda_uuids, ..asked };
                frame::encode(PeerKind::Pull.into(), 0, self.number, &message)
            }
            Kind::Small(small) => frame::encode(PeerKind::PullMany.into(), 0, self.number, &small.asked),
            Kind::Inquire { question, .. } => {
                frame::encode(PeerKind::Inquire.into(), 0, self.number, &question.message())
            }
            Kind::Channel { message, .. } => {
                frame::encode(PeerKind::ChannelAttach.into(), 0, self.number, message)
            }
            Kind::PipeConnect { message, .. } => {
                frame::encode(PeerKind::PipeConnect.into(), 0, self.number, message)
            }
            Kind::Set { message, .. } => frame::encode(PeerKind::SetCall.into(), 0, self.number, &**message),
            Kind::Redeem { message, .. } => frame::encode(PeerKind::Redeem.into(), 0, self.number, message),
            Kind::Watch { message, .. } => {
                // From now on: it may have waited for a connection.
                let deadline_ms = questions::wait_ms(self.deadline.saturating_duration_since(Instant::now()));
                let asked = v1::WatchRequest { deadline_ms, ..message.clone() };
                frame::encode(PeerKind::Watch.into(), 0, self.number, &asked)
            }
        }
    }

    /// Number of bytes that have come, and of all bytes, if the owner has begun to send them.
    pub(super) fn came_of(&self) -> Option<(u64, u64)> {
        let Kind::Pull(pull) = &self.kind else { return None };
        let came = pull
            .transfer
            .as_ref()
            .map_or(pull.landed, |transfer| pull.bytes.saturating_sub(transfer.missing()));
        (pull.opened && came > 0).then_some((came, pull.bytes))
    }

    /// Returns whether it brings the bytes of a tensor.
    pub(super) fn is_pull(&self) -> bool {
        matches!(self.kind, Kind::Pull(_))
    }

    /// Returns whether no more frames come for it on the control connection, whatever becomes of it.
    pub(super) fn is_answered(&self) -> bool {
        match &self.kind {
            Kind::Pull(pull) => pull.opened && pull.way != Way::Stream,
            Kind::Relay(relay) => relay.opened,
            Kind::Map(map) => map.opened,
            Kind::Small(_)
            | Kind::Inquire { .. }
            | Kind::Channel { .. }
            | Kind::PipeConnect { .. }
            | Kind::Set { .. }
            | Kind::Redeem { .. }
            | Kind::Watch { .. } => false,
        }
    }

    /// Chooses the way in which its bytes are to come on a connection.
    pub(super) fn choose_way(&mut self, ways: &Ways) {
        if let Kind::Pull(pull) = &mut self.kind {
            pull.opened = false;
            pull.seeking = false;
            // What has begun on lanes goes on on lanes: its landing is with them.
            let begun = pull.transfer.is_some().then(|| ways.go_on(pull.way)).flatten();
            let Choice { way, missed } = match begun {
                Some(way) => Choice { way, missed: None },
                None => ways.choose(pull.bytes, pull.transport),
            };
            pull.way = way;
            if way != Way::Stream {
                pull.ahead = ReceivedRanges::default();
            }
            pull.missed = missed.map(|(_, why)| why);
            if let Some((better, why)) = missed {
                pull.paths.left(better, why);
            }
        }
        if let Kind::Map(map) = &mut self.kind {
            (map.at_node, map.opened, map.place) = (false, false, None);
        }
        if let Kind::Relay(relay) = &mut self.kind {
            relay.way = ways.for_aid(relay.transport(), relay.encrypted()).unwrap_or(Way::Stream);
        }
    }

    /// The version of the protocol that is spoken on the connection that it goes to.
    pub(super) fn speak(&mut self, version: u32) {
        if let Kind::Pull(pull) = &mut self.kind {
            pull.version = version;
            if version < AHEAD_SINCE {
                pull.ahead = ReceivedRanges::default();
            }
        }
    }

    /// Returns whether it is of no use on another connection: the tensor can be had elsewhere at once.
    pub(super) fn ends_with_link(&self) -> bool {
        matches!(self.kind, Kind::Relay(_)) || self.is_passing()
    }

    /// Returns whether the caller can do without the answer, so that it keeps no seat.
    pub(super) fn yields(&self) -> bool {
        matches!(&self.kind, Kind::Inquire { question, .. } if question.rest.yields)
    }

    /// Returns whether it is for a connection that is there, and for no other one.
    pub(super) fn is_passing(&self) -> bool {
        self.is_for_neighbour() || self.yields()
    }

    /// Returns whether it is about a copy of a peer of this node.
    pub(super) fn is_for_neighbour(&self) -> bool {
        match &self.kind {
            Kind::Map(map) => map.owner.is_some(),
            Kind::Inquire { question, .. } => question.rest.copies,
            Kind::Pull(_)
            | Kind::Relay(_)
            | Kind::Small(_)
            | Kind::Channel { .. }
            | Kind::PipeConnect { .. }
            | Kind::Set { .. }
            | Kind::Redeem { .. }
            | Kind::Watch { .. } => false,
        }
    }

    /// Lets the holder go that brings its bytes, if one does.
    pub(super) fn end_aid(&mut self) -> Option<Finish> {
        match &mut self.kind {
            Kind::Pull(pull) => pull.end_aid(),
            _ => None,
        }
    }

    /// Returns whether its landing is with lanes.
    pub(super) fn needs_lanes(&self) -> bool {
        matches!(&self.kind, Kind::Pull(pull) if pull.transfer.is_some())
    }

    /// The way that its bytes come.
    pub(super) fn way(&self) -> Way {
        match &self.kind {
            Kind::Pull(pull) => pull.way,
            Kind::Relay(relay) => relay.way,
            Kind::Map(_) => Way::Shm,
            Kind::Small(_)
            | Kind::Inquire { .. }
            | Kind::Channel { .. }
            | Kind::PipeConnect { .. }
            | Kind::Set { .. }
            | Kind::Redeem { .. }
            | Kind::Watch { .. } => Way::Stream,
        }
    }

    /// Takes its landing back from lanes of a way that this connection does not have, so that the rest comes on the control
    /// connection. False while one of them still writes.
    pub(super) fn leave_lanes(&mut self, way: Way) -> bool {
        let Kind::Pull(pull) = &mut self.kind else { return false };
        let Some(transfer) = &pull.transfer else { return false };
        let Some(reclaimed) = transfer.reclaim() else { return false };
        pull.paths.came(way, transfer.travelled());
        pull.paths.left(way, FallBack::LanesNotOffered);
        pull.go_on_with(reclaimed);
        true
    }

    /// Returns whether its bytes come on lanes.
    pub(super) fn has_lanes(&self) -> bool {
        matches!(&self.kind, Kind::Pull(pull) if pull.way != Way::Stream)
    }

    /// The kind of frame that answers it.
    pub(super) fn answer(&self) -> PeerKind {
        match self.kind {
            Kind::Pull(_) | Kind::Map(_) | Kind::Relay(_) => PeerKind::Pull,
            Kind::Small(_) => PeerKind::PullMany,
            Kind::Inquire { .. } => PeerKind::Inquire,
            Kind::Channel { .. } => PeerKind::ChannelAttach,
            Kind::PipeConnect { .. } => PeerKind::PipeConnect,
            Kind::Set { .. } => PeerKind::SetCall,
            Kind::Redeem { .. } => PeerKind::Redeem,
            Kind::Watch { .. } => PeerKind::Watch,
        }
    }

    /// The outcome is this failure. `None`: it was told before, or will be when the reader thread is done with the
    /// landing.
    pub(super) fn fail(&mut self, failure: Failure) -> Option<Finish> {
        match &mut self.kind {
            Kind::Pull(pull) => {
                let relay = pull.end_aid();
                if let Some(transfer) = pull.transfer.take() {
                    let Some(done) = pull.done.take() else { return relay };
                    let told = transfer.stop(Box::new(move |landing| {
                        done(Err(PullFailed { landing, failure }));
                    }));
                    return both(told, relay);
                }
                let Some(landing) = pull.landing.take() else {
                    if pull.done.is_some() {
                        pull.failed.get_or_insert(failure);
                    }
                    return relay;
                };
                let Some(done) = pull.done.take() else { return relay };
                both(Some(Box::new(move || done(Err(PullFailed { landing, failure })))), relay)
            }
            Kind::Relay(relay) => relay.fail(&failure),
            Kind::Map(map) => {
                let done = map.done.take()?;
                Some(Box::new(move || done(Err(MapFailed::Owner(failure)))))
            }
            Kind::Small(small) => {
                let done = small.done.take()?;
                Some(Box::new(move || done(Err(failure))))
            }
            Kind::Inquire { done, .. } => {
                let done = done.take()?;
                Some(Box::new(move || done(Err(failure))))
            }
            Kind::Channel { done, .. } => {
                let done = done.take()?;
                Some(Box::new(move || done(Err(failure))))
            }
            Kind::PipeConnect { done, .. } => {
                let done = done.take()?;
                Some(Box::new(move || done(Err(failure))))
            }
            Kind::Set { done, .. } => {
                let done = done.take()?;
                Some(Box::new(move || done(Err(failure))))
            }
            Kind::Redeem { done, .. } => {
                let done = done.take()?;
                Some(Box::new(move || done(Err(failure))))
            }
            Kind::Watch { done, .. } => {
                let done = done.take()?;
                Some(Box::new(move || done(Err(failure))))
            }
        }
    }

    /// The bytes are mapped, or can be where they lie in GPU memory.
    pub(super) fn mapped(self, block: Block, gpu: Option<BorrowedMemory>) -> Option<Finish> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let Kind::Map(map) = self.kind else { return None };
        let MapCall { head: Some(head), done: Some(done), .. } = *map else { return None };
        let Head { descriptor, crc32c, staged } = head;
        Some(Box::new(move || done(Ok(Mapped { block, gpu, descriptor, crc32c, seconds, staged }))))
    }

    /// Ends the map with the reason for which it cannot be had.
    pub(super) fn not_mapped(self, failed: MapFailed) -> Option<Finish> {
        let Kind::Map(map) = self.kind else { return None };
        let done = map.done?;
        Some(Box::new(move || done(Err(failed))))
    }

    /// Returns whether its outcome comes with a guard, which says the last word of it.
    pub(super) fn is_receipted(&self) -> bool {
        let Kind::Pull(pull) = &self.kind else { return false };
        let is_told = pull.landing.is_some() && pull.head.is_some() && pull.done.is_some();
        is_told && pull.growth.is_some() && pull.home.is_some()
    }

    /// All bytes are in the landing.
    pub(super) fn pulled(self) -> Option<Finish> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let (is_receipted, number, expected) = (self.is_receipted(), self.number, self.expected);
        let Kind::Pull(mut pull) = self.kind else { return None };
        let relay = pull.end_aid();
        let PullCall {
            landing: Some(landing),
            head: Some(head),
            done: Some(done),
            mut paths,
            way,
            id,
            home,
            ..
        } = *pull
        else {
            return relay;
        };
        // A tensor without bytes came some way, too.
        paths.came(way, Travelled::default());
        let (Head { descriptor, crc32c, staged }, transport) = (head, way.transport());
        let home = home.filter(|_| is_receipted);
        let told: Finish = Box::new(move || {
            // Made here, without locks, for it takes one when it is dropped.
            let pull = (number, id);
            let pull_guard = home.map(|home| PullGuard::new(home, pull, expected));
            done(Ok(Pulled { landing, descriptor, crc32c, seconds, transport, paths, pull_guard, staged }));
        });
        both(Some(told), relay)
    }
}

/// Both of them, in this order.
fn both(first: Option<Finish>, second: Option<Finish>) -> Option<Finish> {
    match (first, second) {
        (Some(first), Some(second)) => Some(Box::new(move || {
            first();
            second();
        })),
        (first, second) => first.or(second),
    }
}

impl PullCall {
    /// A call that nobody was asked for yet. Wanted are the tensor, a part of it, and its number of bytes, as many as
    /// the landing has.
    pub(super) fn new(
        (id, selection, bytes): (u64, Selection, u64),
        transport: Transport,
        landing: Landing,
        growth: Option<Arc<PartialTensor>>,
        done: PullDone,
    ) -> Self {
        Self {
            id,
            selection,
            bytes,
            stored: None,
            transport,
            way: Way::Stream,
            opened: false,
            landing: Some(landing),
            transfer: None,
            landed: 0,
            ahead: ReceivedRanges::default(),
            paths: Paths::default(),
            missed: None,
            head: None,
            growth,
            version: 0,
            pass: None,
            holders: Vec::new(),
            spares: Vec::new(),
            orphaned: None,
            encrypted: true,
            relay: None,
            turns: 0,
            lost: Vec::new(),
            asked_again: false,
            seeking: false,
            proofs_asked: None,
            unprovable: false,
            home: None,
            done: Some(done),
            failed: None,
        }
    }

    /// Transfer in which its bytes come together; begun, if it was not yet.
    pub(super) fn transfer(&mut self, call: u64, deadline: Instant) -> Option<Arc<Transfer>> {
        if let Some(transfer) = &self.transfer {
            return Some(Arc::clone(transfer));
        }
        let landing = self.landing.take()?;
        let transfer = Transfer::growing(call, landing, self.landed, deadline, self.growth.clone());
        Some(Arc::clone(self.transfer.insert(transfer)))
    }

    /// Goes on with what came on lanes; the rest comes on the control connection.
    pub(super) fn go_on_with(&mut self, reclaimed: Reclaimed) {
        let Reclaimed { landing, prefix, ahead } = reclaimed;
        (self.landing, self.landed, self.transfer) = (Some(landing), prefix, None);
        self.ahead =
            if self.version < AHEAD_SINCE { ReceivedRanges::default() } else { ReceivedRanges::new(ahead) };
    }

    /// All before `at` has come. It may be said more than once.
    pub(super) fn has_come(&mut self, at: u64) {
        if at > self.landed {
            self.landed = self.ahead.pass(at);
        }
    }

    /// Takes the landing back from the reader thread; tells a failure that came meanwhile.
    pub(super) fn give_back(&mut self, landing: Landing, landed: u64) -> Option<Finish> {
        self.has_come(landed);
        let Some(failure) = self.failed.take() else {
            self.landing = Some(landing);
            return None;
        };
        let done = self.done.take()?;
        Some(Box::new(move || done(Err(PullFailed { landing, failure }))))
    }
}
