//! The owner's end of a lane: answers asks for bytes of pulls that are open on its control connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;
use prost::Message;
use tensorlane_proto::frame::{self, FrameError, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

use super::Lanes;
use super::wire::{Ask, LaneEnd, TICK, Wire};
use crate::peer::link::Link;
use crate::peer::partial::Ready;
use crate::peer::record_writer::OutgoingPull;
use crate::peer::shared::{Shared, count_out};

/// The pulls of one connection that may be asked for on its lanes.
#[derive(Default)]
pub(super) struct Serving(Mutex<HashMap<u64, Open>>);

/// A pull, and how far each lane has walked its selection. Gone with the pull, so that nothing keeps its block.
struct Open {
    fresh: OutgoingPull,
    walks: HashMap<u8, OutgoingPull>,
}

impl Serving {
    pub(super) fn open(&self, bulk: OutgoingPull) {
        self.0.lock().insert(bulk.call, Open { fresh: bulk, walks: HashMap::new() });
    }

    pub(super) fn close(&self, call: u64) {
        // Its blocks are dropped without the lock.
        let open = self.0.lock().remove(&call);
        drop(open);
    }

    pub(super) fn close_all(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all);
    }

    /// The bytes that are asked for: where the lane's own walk is, if that is not beyond them, else from the start.
    fn find(&self, ask: Ask, lane: u8) -> Result<Option<OutgoingPull>, FrameError> {
        let mut bulk = {
            let mut all = self.0.lock();
            let Some(open) = all.get_mut(&ask.call) else { return Ok(None) };
            let end = ask.offset.checked_add(ask.length).filter(|end| *end <= open.fresh.end);
            end.ok_or(FrameError::Malformed(PeerKind::Ask.into()))?;
            let walk = open.walks.remove(&lane).filter(|walk| walk.at <= ask.offset);
            walk.unwrap_or_else(|| open.fresh.clone())
        };
        // The way there may be long, over millions of runs: other lanes and pulls do not wait for it.
        let ahead = ask.offset.checked_sub(bulk.at).ok_or(FrameError::Malformed(PeerKind::Ask.into()))?;
        bulk.source.skip(ahead);
        bulk.at = ask.offset;
        Ok(Some(bulk))
    }

    /// A lane goes on from there, if the pull is still open.
    fn keep(&self, bulk: OutgoingPull, lane: u8) {
        let mut all = self.0.lock();
        let left = match all.get_mut(&bulk.call) {
            Some(open) => open.walks.insert(lane, bulk),
            None => Some(bulk),
        };
        drop(all);
        drop(left);
    }
}

/// Answers until the lane ends.
pub(super) fn run(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    lanes: &Lanes,
    number: u8,
    wire: &mut dyn Wire,
) -> LaneEnd {
    loop {
        let answered = wire.next_ask().and_then(|ask| answer(shared, link, lanes, number, ask, wire));
        if let Err(end) = answered {
            return end;
        }
    }
}

fn answer(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    lanes: &Lanes,
    number: u8,
    ask: Ask,
    wire: &mut dyn Wire,
) -> Result<(), LaneEnd> {
    // Its pings may stand behind what lanes carry; whoever asks lives.
    link.hear();
    let Some(mut bulk) = lanes.serving.find(ask, number)? else {
        let gone = Failure::new(Reason::Cancelled, "no pull of this number is open");
        return wire.refuse(ask.call, &gone);
    };
    // What is on its way here itself is waited for, but not for long: others may stand behind it on this lane.
    match bulk.source.wait(ask.length, Instant::now() + TICK) {
        Ready::Now => {}
        Ready::Later => {
            lanes.serving.keep(bulk, number);
            return wire.later(ask.call);
        }
        Ready::Gone => {
            let gone = Failure::new(Reason::NotFound, "the tensor does not come here any more");
            return wire.refuse(ask.call, &gone);
        }
    }
    let relayed = bulk.relayed;
    let crc32c = wire.answer(&mut bulk, ask.length)?;
    lanes.serving.keep(bulk, number);
    count_out(&shared.counters, &link.peer, ask.length);
    if relayed {
        shared.counters.relayed_out.fetch_add(ask.length, Ordering::Relaxed);
    }
    if let Some(crc32c) = crc32c {
        let sum = v1::Sum { offset: ask.offset, length: ask.length as u32, crc32c };
        link.submit(frame::encode(PeerKind::Sum.into(), 0, ask.call, &sum));
    }
    Ok(())
}

/// A sum that came over control: where its bytes begin, how many they are, and what they sum to.
pub(super) fn sum(body: &[u8]) -> Result<(u64, u64, u32), FrameError> {
    let sum = v1::Sum::decode(body).map_err(|_| FrameError::Malformed(PeerKind::Sum.into()))?;
    Ok((sum.offset, sum.length.into(), sum.crc32c))
}
