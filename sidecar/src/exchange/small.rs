//! Small tensors travel many in one frame: asked for together, each answered for itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use foldhash::quality::RandomState;
use prost::Message;
use smallvec::SmallVec;
use tensorlane_memory::{Block, Owner, Purpose};
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::encoded::{self, Alike, PulledSmall};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::ITEMS_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::Selection;
use tensorlane_proto::wire;

use super::Exchange;
use super::acquire::Terms;
use super::arrive::Arrival;
use super::fetch::{Fetch, Waiting};
use super::transfer::{Came, landing};
use crate::peer::{Paths, Way};
use crate::store::{AllocRequest, Copied};

/// Tensor bytes of one frame of small ones: under the limit of a frame by a wide margin for the descriptors, and few enough
/// that the owner reads one while another is sealed, opened or landed. Each costs a call.
const MANY_BYTES: u64 = 256 << 10;

/// The small tensors that are being fetched, and who waits for each but the first: that one goes with the call that brings it. An
/// entry is written on one thread and taken on another, so it is no larger than it must be.
pub(super) type SmallFetches = HashMap<Key, Vec<Waiting>, RandomState>;

/// A reference, as small as will do: which tensor, and a hash of all that is said of it. Two of one hash that differ all the same are
/// told apart when it has come.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Key {
    incarnation: Incarnation,
    id: u64,
    said: u64,
}

/// A small tensor that is to be fetched with others.
pub(super) struct Small {
    /// The first who waits for it.
    pub(super) first: Waiting,
    /// Number of its bytes that travel: without the gaps of its strides, with the repeats.
    pub(super) bytes: u64,
}

/// Small tensors that go into one frame.
pub(super) struct Many {
    peer: PeerName,
    incarnation: Incarnation,
    deadline: Instant,
    bytes: u64,
    /// Waiting, one for each of them.
    firsts: Vec<Waiting>,
}

// === impl Exchange ===

impl Exchange {
    /// Waits for a small tensor with whoever began to fetch it; else it is begun, and the first to wait for it given back.
    pub(super) fn join_small(&self, waiting: Waiting) -> Option<Waiting> {
        let mut fetches = self.small_fetches.lock();
        let key = Key::of(&waiting.fetch.reference, &fetches);
        match fetches.entry(key) {
            Entry::Occupied(mut others) => {
                others.get_mut().push(waiting);
                None
            }
            Entry::Vacant(none) => {
                none.insert(Vec::new());
                Some(waiting)
            }
        }
    }

    /// The fetch of a small tensor is over: whoever has joined the first.
    pub(super) fn end_small(&self, reference: &Reference) -> Vec<Waiting> {
        let mut fetches = self.small_fetches.lock();
        let key = Key::of(reference, &fetches);
        fetches.remove(&key).unwrap_or_default()
    }

    /// Many small tensors of one peer with one question.
    pub(super) fn pull_small(self: &Arc<Self>, many: Many) {
        let peers = match self.peers_or_fail() {
            Ok(peers) => peers,
            Err(failure) => return self.none_arrives(many, &failure),
        };
        let exchange = Arc::clone(self);
        let wanted = || many.firsts.iter().map(|first| &first.fetch.reference);
        let (ids, stored) = wanted().map(|wanted| (wanted.id(), wanted.bytes())).unzip();
        let asked = v1::PullMany { ids, stored };
        let (peer, incarnation, deadline) = (many.peer.clone(), many.incarnation, many.deadline);
        let begun = Instant::now();
        // Others may have come to wait for some of them: they go on until their deadline.
        peers.pull_small(&peer, Some(incarnation), asked, deadline, move |outcome| match outcome {
            Ok(tensors) => exchange.small_arrived(many, tensors, begun.elapsed().as_secs_f64()),
            Err(failure) => exchange.none_arrives(many, &failure),
        });
    }

    fn none_arrives(self: &Arc<Self>, many: Many, failure: &Failure) {
        many.firsts.into_iter().for_each(|first| self.small_fails(first, failure));
    }

    /// Each goes where it is waited for. Descriptors may be larger than what they describe: what found no place in the
    /// answer is asked for again, as long as every answer brings something.
    fn small_arrived(self: &Arc<Self>, many: Many, all: Vec<PulledSmall>, seconds: f64) {
        let Many { firsts, .. } = many;
        let some_came = !all.iter().all(found_no_place);
        let (mut again, mut landed) = (Vec::new(), Vec::with_capacity(all.len()));
        let mut alike = Likeness::of(seconds);
        let mut all = all.into_iter();
        for first in firsts {
            let small = all.next().unwrap_or_default();
            if some_came && found_no_place(&small) {
                again.push(first);
                continue;
            }
            match self.store.allocate_now(Owner::Sidecar, Purpose::Pull, small.data.len() as u64) {
                Some(block) => match self.small_into(&first.fetch.reference, small, block, &mut alike) {
                    Ok(arrival) => landed.push(Arrival { first: Some(first), ..arrival }),
                    Err(failure) => self.small_fails(first, &failure),
                },
                None => self.small_waits(first, small, seconds),
            }
        }
        self.all_arrived(landed);
        if !again.is_empty() {
            self.pull_small(Many { firsts: again, ..many });
        }
    }

    /// Has a small tensor that is here already, and for which there is no room, wait for it.
    fn small_waits(self: &Arc<Self>, first: Waiting, small: PulledSmall, seconds: f64) {
        let (reference, terms) = (first.fetch.reference.clone(), Arc::clone(&first.fetch.terms));
        let after = Arc::clone(self);
        let done = move |outcome: Result<Arrival, Failure>| match outcome {
            Ok(arrival) => after.all_arrived(vec![Arrival { first: Some(first), ..arrival }]),
            Err(failure) => after.small_fails(first, &failure),
        };
        let queueing = terms.caller.queueing(Purpose::Pull, terms.deadline);
        self.on_waiter(queueing, Box::new(done), move |exchange| {
            let bytes = small.data.len() as u64;
            let Terms { deadline, caller, .. } = &*terms;
            let alloc = AllocRequest {
                writer: None,
                claimant: &caller.claimant(),
                purpose: Purpose::Pull,
                bytes,
                deadline: *deadline,
                cancel: &caller.cancel,
            };
            let block = exchange.store.allocate(&alloc)?;
            exchange.small_into(&reference, small, block, &mut Likeness::of(seconds))
        });
    }

    /// Lands a small tensor in its block, and proves that it is what was asked for.
    fn small_into(
        &self,
        reference: &Reference,
        small: PulledSmall,
        block: Block,
        alike: &mut Likeness,
    ) -> Result<Arrival, Failure> {
        let PulledSmall { descriptor, data, crc32c, failure } = small;
        if let Some(failure) = failure {
            return Err(wire::failure(*failure));
        }
        let (descriptor, plain) = alike.descriptor(descriptor.unwrap_or_default())?;
        landing(&block)?.write(0, &data).map_err(|e| Failure::new(Reason::Internal, e.to_string()))?;
        self.approve(reference, &Selection::All, &descriptor, &block, crc32c, &Paths::default())?;
        let (came, reference) = (alike.came(block.len()), reference.clone());
        let wanted_by = SmallVec::new();
        // Where what lies on GPUs can be mapped, small ones come as all others do.
        let staged = false;
        let copied = Copied { reference, descriptor, plain, block, gpu: None, staged, crc32c, wanted_by };
        Ok(Arrival { copied, came, pull_guard: None, first: None })
    }
}

/// Likeness of the small tensor before, of those that came together: most are like it.
struct Likeness {
    /// Time in which they came together.
    seconds: f64,
    described: Alike<(Descriptor, Bytes)>,
    came: Option<(u64, Arc<Came>)>,
}

/// Puts a small tensor into the frame that goes the same way; one that it finds full is given back, and a new one begun.
pub(super) fn add_small(small: &mut Vec<Many>, one: Small) -> Option<Many> {
    let Some(many) = small.iter_mut().find(|many| many.is_for(&one)) else {
        small.push(Many::of(one));
        return None;
    };
    if many.has_room(&one) {
        many.bytes += one.bytes;
        many.firsts.push(one.first);
        return None;
    }
    Some(std::mem::replace(many, Many::of(one)))
}

// === impl Key ===

impl Key {
    fn of(reference: &Reference, fetches: &SmallFetches) -> Self {
        // A reference leaves its names out of its hash.
        let said = fetches.hasher().hash_one((reference, reference.peer()));
        Self { incarnation: reference.incarnation(), id: reference.id(), said }
    }
}

// === impl Many ===

impl Many {
    pub(super) fn of(one: Small) -> Self {
        let Small { first, bytes } = one;
        let Fetch { reference, terms, .. } = &first.fetch;
        let (peer, incarnation) = (reference.peer().clone(), reference.incarnation());
        Self { peer, incarnation, deadline: terms.deadline, bytes, firsts: vec![first] }
    }

    /// True if it goes where a small tensor comes from.
    fn is_for(&self, one: &Small) -> bool {
        let reference = &one.first.fetch.reference;
        self.peer == *reference.peer() && self.incarnation == reference.incarnation()
    }

    fn has_room(&self, one: &Small) -> bool {
        self.firsts.len() < ITEMS_MAX && self.bytes + one.bytes <= MANY_BYTES
    }
}

// === impl Likeness ===

impl Likeness {
    fn of(seconds: f64) -> Self {
        Self { seconds, described: Alike::default(), came: None }
    }

    /// A descriptor, and how we encode it ourselves.
    fn descriptor(&mut self, sent: Bytes) -> Result<(Descriptor, Bytes), Failure> {
        self.described.read(sent, |sent| {
            let malformed = |e: prost::DecodeError| {
                Failure::new(Reason::Internal, format!("what the owner sent is no descriptor: {e}"))
            };
            let descriptor = wire::descriptor(v1::Descriptor::decode(&sent[..]).map_err(malformed)?)?;
            let plain = encoded::without_metadata(&descriptor);
            Ok((descriptor, plain))
        })
    }

    /// Account of how so many bytes came.
    fn came(&mut self, bytes: u64) -> Arc<Came> {
        match &self.came {
            Some((known, came)) if *known == bytes => Arc::clone(came),
            _ => {
                let (way, seconds) = (Way::Stream, self.seconds);
                let (paths, transport) = (Paths::one(way, bytes), way.transport());
                let came = Arc::new(Came { transport, seconds, instead_of: None, paths, staged: None });
                self.came = Some((bytes, Arc::clone(&came)));
                came
            }
        }
    }
}

/// True if a small tensor is missing only because the answer was full of others.
fn found_no_place(small: &PulledSmall) -> bool {
    small.failure.as_ref().is_some_and(|failure| failure.reason == Reason::LimitExceeded.as_str())
}
