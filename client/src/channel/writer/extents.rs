//! Memory of messages that are larger than a slot: asked of the sidecar for each of them, and freed when its slot is used again.
//!
//! A slot is claimed once every reader is past its message, or holds it no more. So whoever claims it frees the memory of that message,
//! and says so with the next request. What was not freed the sidecar frees with the channel.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorlane_memory::ring::{Place, Placed, Published, Slot};
use tensorlane_memory::{OutOfBounds, WriteView};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;

use super::super::place;
use super::claim::Claimant;
use super::out_of_slot;
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::origin::Origin;
use crate::segments::Segment;

/// Extents of the messages that a channel's ring has.
pub(super) struct Extents {
    client: Client,
    connection: Arc<Connection>,
    origin: Origin,
    channel: u64,
    slot_bytes: u64,
    /// Numbers of the extents, by the slots of their messages.
    by_slot: BTreeMap<u64, u64>,
}

/// Room of one message: its slot, and an extent where it is larger. Dropped without [`MessageRoom::publish`] it leaves nothing.
pub(super) struct MessageRoom<'a> {
    slot: Slot<'a>,
    bytes: u64,
    extent: Option<OwnExtent<'a>>,
}

/// Extent that is freed when this is dropped, unless a message lies in it.
struct OwnExtent<'a> {
    extents: &'a mut Extents,
    number: u64,
    place: Place,
    published: bool,
    _segment: Arc<Segment>,
}

// === impl Extents ===

impl Extents {
    pub(super) fn new(client: &Client, connection: &Arc<Connection>, channel: u64, slot_bytes: u64) -> Self {
        Self {
            client: client.clone(),
            connection: Arc::clone(connection),
            origin: connection.origin().again(),
            channel,
            slot_bytes,
            by_slot: BTreeMap::new(),
        }
    }

    /// Room for a message of so many bytes, in a slot that was claimed for it.
    pub(super) fn room<'a>(
        &'a mut self,
        slot: Slot<'a>,
        bytes: u64,
        claimant: &Claimant,
    ) -> Result<MessageRoom<'a>> {
        let last = slot.index().and_then(|index| self.by_slot.remove(&index));
        if let Some(last) = last {
            self.free(last);
        }
        if bytes <= self.slot_bytes {
            return Ok(MessageRoom { slot, bytes, extent: None });
        }
        let (number, place, segment) = self.make(bytes, claimant)?;
        let extent = OwnExtent { extents: self, number, place, published: false, _segment: segment };
        Ok(MessageRoom { slot, bytes, extent: Some(extent) })
    }

    fn make(&self, bytes: u64, claimant: &Claimant) -> Result<(u64, Place, Arc<Segment>)> {
        let wait = self.client.wait(Some(claimant.left()));
        let deadline_ms = wait.deadline_ms();
        let request =
            v1::ChannelExtentRequest { channel: self.channel, bytes, deadline_ms, ..Default::default() };
        let late = Late::Extent(self.channel);
        let reply: v1::ChannelExtentResponse =
            self.connection.call(SessionKind::ChannelExtent, &request, &wait, late)?;
        let found = place(self.connection.segments(), reply.location.as_ref());
        let (place, segment) = found.inspect_err(|_| self.free(reply.extent))?;
        Ok((reply.extent, place, segment))
    }

    fn free(&self, number: u64) {
        let end = v1::ChannelDetachRequest { channel: self.channel, extent: number, ..Default::default() };
        self.connection.detach(end, &self.origin);
    }
}

// === impl MessageRoom ===

impl MessageRoom<'_> {
    /// Sequence that the message will have.
    pub(super) fn sequence(&self) -> u64 {
        self.slot.sequence()
    }

    /// Place of the message; none for one that is dropped.
    pub(super) fn placed(&self) -> Option<Placed> {
        self.slot.placed()
    }

    /// Bytes of the message, to be written.
    pub(super) fn bytes(&mut self, offset: u64, len: u64) -> Result<WriteView> {
        OutOfBounds::check(offset, len, self.bytes).map_err(out_of_slot)?;
        match &self.extent {
            None => self.slot.bytes(offset, len).map_err(out_of_slot),
            Some(OwnExtent { place, .. }) => {
                WriteView::new(Arc::clone(&place.mapping), place.offset + offset, len)
                    .map_err(|error| Error::protocol(format!("an extent that cannot be written: {error}")))
            }
        }
    }

    /// Publishes the message, for every reader.
    pub(super) fn publish(self) -> Published {
        let Self { slot, bytes, extent } = self;
        let Some(mut extent) = extent else { return slot.publish(bytes) };
        let index = slot.index();
        let published = slot.publish_elsewhere(extent.number, bytes);
        // One that is dropped, for want of a slot, leaves its memory at once.
        if let Some(index) = index {
            extent.extents.by_slot.insert(index, extent.number);
            extent.published = true;
        }
        published
    }
}

impl Drop for OwnExtent<'_> {
    fn drop(&mut self) {
        if !self.published {
            self.extents.free(self.number);
        }
    }
}
