//! Waits of a writer: for the readers that it expects, then for the slot of each message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_memory::ring::{ClaimError, Deadline, LAYOUT_BYTES, Layout, RingWriter, Slot};
use tensorlane_proto::{Failure, Reason};

use super::super::table::Attached;
use super::super::{Timeout, expired, stopped};
use super::ChannelWriter;
use crate::connection::{Connection, SLICE};
use crate::error::{Error, Result};
use crate::origin::Origin;
use crate::wait::Wait;

/// Caller that waits for a slot, and says what it waited for.
pub(super) struct Claimant {
    pub(super) origin: Origin,
    deadline: Deadline,
    wait: Wait,
    connection: Arc<Connection>,
    attached: Arc<Attached>,
}

// === impl ChannelWriter ===

impl ChannelWriter {
    /// Returns a claimant for the next slot, once the readers that are expected are there.
    pub(super) fn claimant(&mut self, timeout: Timeout) -> Result<Claimant> {
        if self.origin.is_child() {
            return Err(Error::Forked);
        }
        let (deadline, wait) = self.client.patience(timeout);
        if self.connection.is_lost() {
            return Err(stopped(&self.connection, &wait));
        }
        if self.awaited > 0 {
            self.wait_for_readers(deadline, &wait)?;
            self.awaited = 0;
        }
        let (connection, attached) = (Arc::clone(&self.connection), Arc::clone(&self.attached));
        Ok(Claimant { deadline, wait, connection, attached, origin: self.origin })
    }

    /// Waits, before the first message, for the readers that are expected.
    fn wait_for_readers(&self, deadline: Deadline, wait: &Wait) -> Result<()> {
        loop {
            // Without a lock: what ends waits may call anything.
            if self.connection.is_lost() || wait.check().is_err() {
                return Err(stopped(&self.connection, wait));
            }
            let mut turn = self.attached.turn.lock();
            let there = self.attached.ring.len();
            if there >= self.awaited as usize {
                return Ok(());
            }
            let until = match deadline {
                Deadline::At(until) if Instant::now() < until => until.min(Instant::now() + SLICE),
                Deadline::Never => Instant::now() + SLICE,
                _ => {
                    let (awaited, name) = (self.awaited, &self.spec.name);
                    return Err(expired(format!(
                        "{there} of the {awaited} readers that the channel {name:?} expects are there"
                    )));
                }
            };
            let _ = self.attached.came.wait_until(&mut turn, until);
        }
    }
}

// === impl Claimant ===

impl Claimant {
    pub(super) fn claim<'a>(&self, ring: &'a mut RingWriter, layout: Layout<'_>) -> Result<Slot<'a>> {
        let stop = || self.connection.is_lost() || self.wait.check().is_err();
        ring.claim(layout, self.deadline, &stop).map_err(|error| match error {
            ClaimError::Blocked { reader, sequence, held } => self.blocked(reader, sequence, held),
            ClaimError::Stopped => stopped(&self.connection, &self.wait),
            ClaimError::Layout { bytes } => {
                let message = format!(
                    "the descriptors of the message have {bytes} bytes, and at most {LAYOUT_BYTES} fit; send fewer parts, or less metadata"
                );
                Failure::new(Reason::TooLarge, message).with("bytes", bytes).with("most", LAYOUT_BYTES).into()
            }
        })
    }

    /// Time that is left.
    pub(super) fn left(&self) -> Duration {
        match self.deadline {
            Deadline::Now => Duration::ZERO,
            Deadline::At(until) => until.saturating_duration_since(Instant::now()),
            Deadline::Never => Duration::MAX,
        }
    }

    fn blocked(&self, reader: u64, sequence: u64, held: Duration) -> Error {
        let client = self.attached.client_of(reader);
        let message = format!(
            "the next message needs the place of message {sequence}, which client {client:?} (reader {reader}) has not given back \
             for {held:.1?}; let it read on or end it, or make the channel with more slots"
        );
        let failure = Failure::new(Reason::BlockedBy, message).with("client", client).with("reader", reader);
        failure.with("sequence", sequence).with("held_ms", held.as_millis()).into()
    }
}
