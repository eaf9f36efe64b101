//! Channels: one writer, many readers, messages in shared memory.
//!
//! ```text
//!   channel_writer ──ChannelCreate──> sidecar        channel_reader ──ChannelAttach──> sidecar
//!        │                                                │      <── cursor, first sequence
//!        │  <── ChannelReader (cursor) ── the sidecar ────┘
//!        v                                                v
//!   claim slot, write, publish ═══ ring ═══ futex ═══> read, view, give back       no sidecar, no socket, no allocation
//! ```
//! A message that is larger than a slot, in a channel that grows, costs a call to the sidecar, which makes memory for it; and one of each
//! reader, which maps that.
//!
//! A reader is attached when its writer knows of it: from then on it misses nothing. The writer waits for the slowest reader
//! ([`Policy::Block`]), and an error of a wait names it; or it waits for nobody, and a reader is told what it missed
//! ([`Read::Gap`]). A process that dies is noticed by the sidecar, which says so in ring and cursor.

mod reader;
mod table;
mod writer;

use std::sync::Arc;
use std::time::Duration;

pub use self::reader::{Attachment, ChannelReader, End, Message, Read, ReadOptions, ReaderCloser};
pub(crate) use self::table::Channels;
pub use self::writer::{AttachedReaders, ChannelSpec, ChannelWriter, Loan, Part, Written};
use crate::client::Client;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::segments::{Segment, Segments};
use crate::wait::Wait;
use crate::wire;
use tensorlane_memory::ring::{Deadline, Place};
pub use tensorlane_memory::ring::{Placed, Policy};
use tensorlane_proto::frame::{CHANNELS_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

/// Time that a read or a write waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeout {
    /// The client's deadline.
    #[default]
    Default,
    /// Not at all: one try, which succeeds if it can.
    Now,
    /// So long.
    After(Duration),
    /// For ever, or until the other end is gone.
    Never,
}

/// Statuses of channels, as `tensorlane channel stat` shows them.
pub use tensorlane_proto::generated::{ChannelReaderStatus, ChannelStatus};

impl Client {
    /// Channels of this peer whose names begin with `prefix`, as they are now. Their readers and the patterns of peers that may read
    /// them have 4 MiB in all; what has no room is counted (`readers_left_out`, `allowed_left_out`). The channel of just this name
    /// comes first.
    ///
    /// # Errors
    /// What ended the call.
    pub fn channels(&self, prefix: &str) -> Result<Vec<ChannelStatus>> {
        let wait = self.wait(None);
        let connection = self.connection(&wait)?;
        check_version(&connection)?;
        let request = v1::ChannelStatRequest { prefix: prefix.to_owned() };
        let reply: v1::ChannelStatResponse =
            connection.call(SessionKind::ChannelStat, &request, &wait, Late::Nothing)?;
        Ok(reply.channels)
    }

    /// When a wait on a ring ends, and what may end it earlier.
    fn patience(&self, timeout: Timeout) -> (Deadline, Wait) {
        let after = match timeout {
            Timeout::Default => Some(self.deadline()),
            Timeout::After(after) => Some(after),
            Timeout::Now | Timeout::Never => None,
        };
        let deadline = match (timeout, after) {
            (Timeout::Now, _) => Deadline::Now,
            // What the clock cannot say is never.
            (_, Some(after)) => {
                std::time::Instant::now().checked_add(after).map_or(Deadline::Never, Deadline::At)
            }
            _ => Deadline::Never,
        };
        (deadline, self.wait(Some(Duration::MAX)))
    }
}

/// An older sidecar knows no channels.
fn check_version(connection: &Connection) -> Result<()> {
    connection.require(CHANNELS_SINCE, "channels came with", ": update the sidecar")
}

/// Says a policy as the sidecar does.
fn policy_message(policy: Policy) -> v1::ChannelPolicy {
    match policy {
        Policy::Block => v1::ChannelPolicy::Block,
        Policy::DropOldest => v1::ChannelPolicy::DropOldest,
        Policy::Latest => v1::ChannelPolicy::Latest,
    }
}

/// Policy of a channel; none where the sidecar says one that this release does not know.
pub fn policy_of(spec: &v1::ChannelSpec) -> Option<Policy> {
    Policy::ALL.into_iter().find(|policy| policy_message(*policy) as i32 == spec.policy)
}

/// The place of a ring or a cursor that the sidecar names, with the segment that it lies in.
fn place(segments: &Segments, location: Option<&v1::Location>) -> Result<(Place, Arc<Segment>)> {
    let location = location.ok_or_else(|| wire::missing("a place in memory"))?;
    let segment = segments.find(location.segment)?;
    Ok((Place { mapping: Arc::clone(segment.mapping()), offset: location.offset }, segment))
}

/// Why a wait on a ring was stopped before its deadline.
fn stopped(connection: &Connection, wait: &Wait) -> Error {
    if connection.is_lost() {
        return gone();
    }
    wait.check().err().unwrap_or(Error::Withdrawn)
}

/// The session through which a channel was had is over.
fn gone() -> Error {
    Error::lost("the sidecar of this channel is gone, and the channel with it")
}

/// Parts that a message cannot have, or does not have: a mistake of the caller.
fn parts_refused(failure: Failure) -> Error {
    Error::invalid(failure.message)
}

fn expired(what: impl Into<String>) -> Error {
    Failure::new(Reason::DeadlineExceeded, what).into()
}
