//! Extents: memory of messages that are larger than a slot of their channel, a block for each.
//!
//! ```text
//!   writer ── ChannelExtent {channel, bytes} ──> block in a segment of its session, kept in the table with its channel
//!   reader ── ChannelExtent {reader, extent} ──> the same block, which its session maps
//!   writer ── ChannelDetach {channel, extent} ──> freed: its slot is used again, so that every reader is past the message
//! ```
//! What is not freed ends with the channel: when its writer and all readers that drain it have. Messages that fit their slots never come
//! here. Another peer has slots for the largest message, so that its readers know no extents.

use std::sync::Arc;

use tensorlane_memory::ring::Message;
use tensorlane_memory::{Block, Purpose};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::SessionId;

use crate::exchange::{Caller, Exchange};
use crate::store::{AllocRequest, whole};

/// Memory of a message that was made for its writer, or found for a reader.
pub struct ChannelExtent {
    channel: u64,
    number: u64,
    /// The memory.
    pub block: Block,
}

// === impl ChannelExtent ===

impl ChannelExtent {
    /// The answer.
    pub fn message(&self) -> v1::ChannelExtentResponse {
        v1::ChannelExtentResponse { extent: self.number, location: Some(whole(&self.block)) }
    }

    /// Word that frees what was made; of what was found it frees nothing.
    pub fn end(&self) -> v1::ChannelDetachRequest {
        let extent = if self.channel > 0 { self.number } else { 0 };
        v1::ChannelDetachRequest { channel: self.channel, extent, ..Default::default() }
    }
}

// === impl Exchange ===

impl Exchange {
    /// Makes an extent for the caller, which writes the channel, or finds one for the caller's reader.
    pub fn channel_extent(
        self: &Arc<Self>,
        caller: Caller,
        request: &v1::ChannelExtentRequest,
        done: impl FnOnce(Result<ChannelExtent, Failure>) + Send + 'static,
    ) {
        let v1::ChannelExtentRequest { channel, reader, extent, bytes, deadline_ms } = *request;
        let link = match self.channel_caller(&caller) {
            Ok(link) => link,
            Err(failure) => return done(Err(failure)),
        };
        if reader > 0 {
            return done(self.extent_of_reader(link.id(), reader, extent, bytes));
        }
        let may = self.channels.table.lock().check_extent(link.id(), channel, bytes);
        if let Err(failure) = may {
            return done(Err(failure));
        }
        let deadline = self.deadline(deadline_ms);
        let queueing = caller.queueing(Purpose::Put, deadline);
        self.on_waiter(queueing, Box::new(done), move |exchange| {
            let block = exchange.store.allocate(&AllocRequest {
                writer: Some(&link),
                claimant: &caller.claimant(),
                purpose: Purpose::Put,
                bytes,
                deadline,
                cancel: &caller.cancel,
            })?;
            let kept = exchange.channels.table.lock().add_extent(link.id(), channel, bytes, block.clone());
            Ok(ChannelExtent { channel, number: kept?, block })
        });
    }

    fn extent_of_reader(
        &self,
        session: SessionId,
        reader: u64,
        number: u64,
        bytes: u64,
    ) -> Result<ChannelExtent, Failure> {
        let found = self.channels.table.lock().extent_for(session, reader, number);
        match found.filter(|block| block.len() >= bytes) {
            Some(block) => Ok(ChannelExtent { channel: 0, number, block }),
            None => {
                let message =
                    format!("the channel of reader {reader} has no extent {number} of {bytes} bytes");
                Err(Failure::new(Reason::NotFound, message).with("extent", number))
            }
        }
    }

    /// The writer of a channel needs an extent no more. One that is not its own is nothing.
    pub(super) fn channel_free(&self, session: SessionId, channel: u64, number: u64) {
        let freed = self.channels.table.lock().free_extent(session, channel, number);
        // Not under the lock: its memory goes back to the arena.
        drop(freed);
    }

    /// Finds the bytes of a message of a channel that this sidecar reads, where it is larger than a slot.
    pub(super) fn find_extent(&self, channel: u64, message: &mut Message) -> Result<(), Failure> {
        let Some(extent) = message.extent() else { return Ok(()) };
        let block = self.channels.table.lock().extent(channel, extent.number);
        if block.is_some_and(|block| message.found_in(&block).is_ok()) {
            return Ok(());
        }
        let sequence = message.sequence();
        let what =
            format!("message {sequence} is damaged: the channel has no extent {} for it", extent.number);
        Err(Failure::new(Reason::MessageDamaged, what).with("sequence", sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::super::hosted::check_growth;
    use super::super::table::Spec;
    use super::super::{far_spec, shape_of};
    use super::*;

    fn spec(growth: u64) -> Result<Spec, Failure> {
        let spec = v1::ChannelSpec {
            name: "c".into(),
            slots: 4,
            slot_bytes: 64,
            growth,
            ..v1::ChannelSpec::default()
        };
        shape_of(&spec).map(|(spec, _)| spec)
    }

    #[test]
    fn slots_of_another_peer_take_the_largest_message() {
        let far = |growth| far_spec(&spec(growth).unwrap());
        assert_eq!((far(0).slot_bytes, far(0).growth), (64, 0));
        assert_eq!((far(1_000).slot_bytes, far(1_000).growth), (1_000, 0));
    }

    #[test]
    fn growth_below_a_slot_is_refused_and_any_over_grpc() {
        let refused = spec(63).unwrap_err();
        assert_eq!(refused.reason, Reason::InvalidArgument);
        assert!(refused.message.contains("63") && refused.message.contains("slots of 64"), "{refused}");
        assert_eq!(check_growth(&spec(0).unwrap()), Ok(()));
        let refused = check_growth(&spec(64).unwrap()).unwrap_err();
        assert_eq!((refused.reason, refused.detail("growth")), (Reason::Unsupported, Some("64")));
    }
}
