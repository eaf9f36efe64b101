//! Maps: calls whose bytes stay where they are. When one is done its lease at the owner goes on, until whoever has the block
//! is done with it; see `transport::shm`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_memory::{Block, Foreign};
use tensorlane_proto::device::Device;
use tensorlane_proto::frame::{FrameError, PeerKind};
use tensorlane_proto::negotiate::Why;
use tensorlane_proto::{Failure, Incarnation, Reason};

use super::{Carrier, Effects, State, pull_done};
use crate::peer::api::MapFailed;
use crate::peer::calls::{Call, Head, Kind, Place};
use crate::peer::gpus::BorrowedMemory;
use crate::peer::link::Link;
use crate::peer::transport::shm::Found;

/// Time for which no maps are tried of a peer after one could not be had for want of the way.
const COOLING: Duration = Duration::from_secs(5);

impl State {
    /// Returns whether a call is a map.
    pub(in crate::peer) fn is_map(&self, number: u64) -> bool {
        self.calls.get(&number).is_some_and(|call| matches!(call.kind, Kind::Map(_)))
    }

    /// The head of a map came: it says where the bytes are.
    pub(in crate::peer) fn map_opened(
        &mut self,
        number: u64,
        link: &Arc<Link>,
        head: Head,
        place: Option<Place>,
    ) -> Result<Effects, FrameError> {
        let malformed = FrameError::Malformed(PeerKind::Pull.into());
        // On another connection by now it is answered there.
        let Some(call) = self.answered(number, PeerKind::Pull, link.id) else {
            return Ok(Effects::default());
        };
        let withdrawn = call.withdrawn;
        let Kind::Map(map) = &mut call.kind else { return Err(malformed) };
        let place = place.ok_or(malformed)?;
        if map.opened || place.bytes != map.bytes || head.descriptor.layout.bytes() != map.bytes {
            return Err(malformed);
        }
        map.opened = true;
        map.head = Some(head);
        map.place = Some(place);
        if withdrawn {
            // Nothing else comes. Its Cancel may have overtaken what was asked for at the node's socket.
            return Ok(self.over(number, true).1);
        }
        let Some(shm) = link.ways.shm() else { return Err(malformed) };
        if place.bytes == 0 {
            let (call, mut effects) = self.over(number, true);
            effects.finish.extend(call.zip(shm.empty()).and_then(|(call, block)| call.mapped(block, None)));
            return Ok(effects);
        }
        Ok(match shm.find(number, place.segment) {
            Found::Here(segment) => self.mapped(number, link, &segment),
            Found::Later => Effects::default(),
            Found::Never => self.not_mapped(number, link, no_way(), None),
        })
    }

    /// The head of a map came: the tensor is lent where it lies, in GPU memory.
    pub(in crate::peer) fn map_opened_on_gpu(
        &mut self,
        number: u64,
        link: &Arc<Link>,
        head: Head,
        allocation: u64,
    ) -> Result<Effects, FrameError> {
        let malformed = FrameError::Malformed(PeerKind::Pull.into());
        let Some(call) = self.answered(number, PeerKind::Pull, link.id) else {
            return Ok(Effects::default());
        };
        let withdrawn = call.withdrawn;
        let Kind::Map(map) = &mut call.kind else { return Err(malformed) };
        let Device::Cuda { uuid: Some(uuid), .. } = head.descriptor.device else { return Err(malformed) };
        let bytes = head.descriptor.layout.bytes();
        let fits = bytes == map.bytes && (1..=allocation).contains(&bytes);
        if map.opened || !map.gpus.contains(&uuid) || !fits {
            return Err(malformed);
        }
        (map.opened, map.head, map.allocation) = (true, Some(head), allocation);
        if withdrawn {
            return Ok(self.over(number, true).1);
        }
        let is_wanted = link.ways.shm().is_some_and(|shm| shm.want_gpu(number));
        Ok(if is_wanted { Effects::default() } else { self.not_mapped(number, link, no_way(), None) })
    }

    /// The descriptor of GPU memory is here. One that nobody waits for any more is closed.
    pub(in crate::peer) fn mapped_on_gpu(
        &mut self,
        number: u64,
        link: &Arc<Link>,
        memory: OwnedFd,
    ) -> Effects {
        let Some(call) = self.answered(number, PeerKind::Pull, link.id).filter(|call| !call.withdrawn) else {
            return Effects::default();
        };
        let Kind::Map(map) = &call.kind else { return Effects::default() };
        let Some(shm) = link.ways.shm() else { return Effects::default() };
        let (bytes, lease) = (map.allocation, shm.lease(link, number, map.id));
        let borrowed = BorrowedMemory { memory, bytes, lease };
        let (call, mut effects) = self.over(number, false);
        effects.finish.extend(call.and_then(|call| call.mapped(Block::nothing(), Some(borrowed))));
        effects
    }

    /// The segment of a map is here.
    pub(in crate::peer) fn mapped(&mut self, number: u64, link: &Arc<Link>, segment: &Foreign) -> Effects {
        let Some(call) = self.answered(number, PeerKind::Pull, link.id).filter(|call| !call.withdrawn) else {
            return Effects::default();
        };
        let Kind::Map(map) = &call.kind else { return Effects::default() };
        let (Some(place), Some(shm)) = (map.place, link.ways.shm()) else { return Effects::default() };
        let lease = shm.lease(link, number, map.id);
        match segment.block(place.offset, place.bytes, lease) {
            Ok(block) => {
                let (call, mut effects) = self.over(number, false);
                effects.finish.extend(call.and_then(|call| call.mapped(block, None)));
                effects
            }
            // Its lease has gone back with the error.
            Err(error) => {
                let why = format!("the owner says that the tensor lies outside of its segment: {error}");
                let failure = Failure::new(Reason::Internal, why);
                self.no_map(number, failure, false, Some(Why::SegmentRefused))
            }
        }
    }

    /// A map cannot be had this way, though its owner has the tensor. Of a call that is over, or on another connection by now,
    /// it says nothing. `why`: the reason, where more is known than that it failed.
    pub(in crate::peer) fn not_mapped(
        &mut self,
        number: u64,
        link: &Link,
        failure: Failure,
        why: Option<Why>,
    ) -> Effects {
        let call = self.answered(number, PeerKind::Pull, link.id);
        if call.is_none_or(|call| call.withdrawn) {
            return Effects::default();
        }
        self.no_map(number, failure, true, why)
    }

    /// The owner lends no more to this peer: the tensor comes another way. None where the failure is of another kind, or the call
    /// is no map.
    pub(in crate::peer) fn not_lent(&mut self, number: u64, failure: &Failure) -> Option<Effects> {
        let is_full = failure.reason == Reason::LimitExceeded && self.is_map(number);
        // What was refused is not leased.
        is_full.then(|| self.no_map(number, failure.clone(), false, Some(Why::LentFull)))
    }

    /// The node's socket does not take the question of a map; whether it goes to the control connection instead.
    pub(in crate::peer) fn leaves_node(&mut self, number: u64, link: u64) -> bool {
        match self.answered(number, PeerKind::Pull, link).map(|call| &mut call.kind) {
            Some(Kind::Map(map)) => std::mem::take(&mut map.at_node),
            _ => false,
        }
    }

    /// Returns whether a call is a map that was asked for at the node's socket and is to be answered there.
    pub(in crate::peer) fn awaits_node(&self, number: u64, link: u64) -> bool {
        self.calls.get(&number).is_some_and(|call| awaits_node(call, link))
    }

    /// All of them.
    pub(in crate::peer) fn all_awaiting_node(&self, link: u64) -> Vec<u64> {
        self.calls.values().filter(|call| awaits_node(call, link)).map(|call| call.number).collect()
    }

    /// The node's socket was lost, and with it the answer of a map. One that was asked for on the control connection after all is
    /// answered there.
    pub(in crate::peer) fn lost_at_node(&mut self, number: u64, link: u64, failure: Failure) -> Effects {
        match self.calls.get(&number).filter(|call| awaits_node(call, link)).map(|call| call.withdrawn) {
            Some(false) => self.no_map(number, failure, true, None),
            Some(true) => self.over(number, true).1,
            None => Effects::default(),
        }
    }

    fn no_map(&mut self, number: u64, failure: Failure, settle: bool, why: Option<Why>) -> Effects {
        // What is known of it stays, where others fail with it.
        let why = why.or(self.cooling().flatten());
        self.cooling = Some((Instant::now() + COOLING, why));
        let (call, mut effects) = self.over(number, settle);
        effects.finish.extend(call.and_then(|call| call.not_mapped(MapFailed::Way(failure))));
        effects
    }

    /// Nobody here maps a tensor any more: its owner is told, now or when that life of it is back.
    pub(in crate::peer) fn unmapped(&mut self, incarnation: Incarnation, call: u64, id: u64) -> Effects {
        let mut effects = Effects::default();
        match &self.link {
            Some(link) if link.incarnation == incarnation => effects.frame(link, pull_done(call, id, false)),
            None if self.incarnation == Some(incarnation) && self.owed.len() < super::OWED_MAX => {
                self.owed.push((call, id));
            }
            // That life is over, and its leases with it. Or there are too many: the end of its grace ends them.
            _ => {}
        }
        effects
    }

    /// Reason for which maps are not to be tried now, as far as it is known; none where they may be.
    pub(in crate::peer) fn cooling(&self) -> Option<Option<Why>> {
        self.cooling.filter(|(until, _)| Instant::now() < *until).map(|(_, why)| why)
    }
}

impl<L: Carrier> State<L> {
    /// A map that cannot be sent on a connection.
    pub(super) fn unsendable(&mut self, number: u64, effects: &mut Effects<L>) {
        self.cooling = Some((Instant::now() + COOLING, None));
        let Some(call) = self.calls.remove(&number) else { return };
        if call.sent_before {
            // The owner may have leased it on the connection before.
            self.settle(&call, effects);
        }
        effects.over.push((call.deadline, number));
        effects.finish.extend(call.not_mapped(MapFailed::Way(no_way())));
    }
}

fn awaits_node(call: &Call, link: u64) -> bool {
    call.sent_on == Some(link) && matches!(&call.kind, Kind::Map(map) if map.at_node && !map.opened)
}

fn no_way() -> Failure {
    let why = "it is not proven any more that the peer is on this node";
    Failure::new(Reason::PeerUnreachable, why)
}
