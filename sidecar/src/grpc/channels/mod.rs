//! Channels over gRPC: a stream is the writer or the reader, and this process is it on the ring.
//!
//! - [`write`]: messages of a stream go into the ring.
//! - [`read`]: messages of the ring go into a stream.
//! - [`message`]: a message that comes in, part after part. Pure.
//!
//! Whatever ends a stream drops its conversation, and with it the writer or the reader.

mod message;
mod read;
mod write;

use std::sync::Arc;

use tensorlane_proto::failure::{Failure, Reason};

pub(super) use self::read::{Messages, read};
pub(super) use self::write::{Written, write};
use super::bounds::Bounds;
use super::call::Call;
use super::guests::Connection;
use super::lasting::LastingStream;
use crate::exchange::Exchange;

/// Longest name that a client gives itself, in bytes.
const CLIENT_BYTES_MAX: usize = 64;

/// A stream that has begun: who has opened it, and within which bounds.
pub(super) struct Begun {
    pub(super) exchange: Arc<Exchange>,
    pub(super) call: Call,
    pub(super) place: LastingStream,
    /// Name of the program, as its user agent says it.
    pub(super) program: Arc<str>,
    pub(super) bounds: Bounds,
    pub(super) connection: Option<Arc<Connection>>,
}

impl Begun {
    /// Name of the client among those who look at the channel.
    fn client(&self, given: &str) -> Result<Arc<str>, Failure> {
        if given.len() > CLIENT_BYTES_MAX {
            let message = format!(
                "the client's name has {} bytes, and {CLIENT_BYTES_MAX} are the most; shorten it",
                given.len()
            );
            return Err(Failure::new(Reason::InvalidArgument, message).with("most", CLIENT_BYTES_MAX));
        }
        Ok(match (given, &*self.program) {
            ("", "") => "gRPC".into(),
            ("", _) => Arc::clone(&self.program),
            (given, _) => given.into(),
        })
    }
}
