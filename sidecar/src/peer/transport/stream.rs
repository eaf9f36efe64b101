//! Way `stream`: chunks on the control connection, in order, in turns with those of other pulls and behind every small frame.
//! What comes is landed by the reader thread of the connection.

use std::sync::Arc;
use std::time::Instant;

use super::{Suits, Transport, Way};
use crate::peer::calls::PullCall;
use crate::peer::outbox::Outbox;
use crate::peer::record_writer::OutgoingPull;
use crate::peer::send_error::SendError;

/// The chunks of one control connection.
pub(in crate::peer) struct Stream(Arc<Outbox>);

impl Stream {
    pub(in crate::peer) fn new(outbox: &Arc<Outbox>) -> Self {
        Self(Arc::clone(outbox))
    }
}

impl Transport for Stream {
    fn way(&self) -> Way {
        Way::Stream
    }

    fn suits(&self, _bytes: u64) -> Suits {
        Suits::Yes
    }

    fn serve(&self, head: Vec<u8>, bulk: OutgoingPull) -> Result<(), SendError> {
        self.0.submit_bulk(head, bulk)
    }

    fn close(&self, call: u64, end: Option<Vec<u8>>) -> Result<(), SendError> {
        if let Some(end) = end {
            self.0.cancel_bulk(call, end);
        }
        Ok(())
    }

    fn bring(&self, _call: u64, _deadline: Instant, _pull: &mut PullCall) {}

    fn tend(&self) -> Option<Instant> {
        None
    }

    fn end(&self) {}
}
