//! The gate that every call comes through: it counts what is under way, and closes when the sidecar ends. Knows no carrier
//! and no verb's work.
//!
//! ```text
//!   open  ----close---->  closed: nothing new begins, who waits is sent away, what moves bytes may finish
//! ```
//! A call enters before it is asked whether it may begin. So whoever closes the gate and then finds nobody under way knows
//! that nobody begins any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use tensorlane_proto::failure::{Failure, Reason};

use crate::cancel::Cancel;
use crate::metrics::label::Verb;

/// Entrance of all calls; see the module.
#[derive(Default)]
pub struct Gate {
    ending: Cancel,
    under_way: Arc<AtomicUsize>,
}

/// Call under way; it has finished when this is dropped.
#[must_use = "dropping it says that the call has finished"]
pub struct UnderWay(Arc<AtomicUsize>);

// === impl Gate ===

impl Gate {
    /// Counts a call in.
    pub fn enter(&self) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        UnderWay(Arc::clone(&self.under_way))
    }

    /// Checks whether a call of this verb may begin now.
    ///
    /// # Errors
    /// DRAINING, for a verb that begins something, once the gate is closed.
    pub fn admit(&self, verb: Verb) -> Result<(), Failure> {
        match self.is_closed() && begins_something(verb) {
            true => Err(draining()),
            false => Ok(()),
        }
    }

    /// Lets nothing new begin from now on, and sends away who waits.
    pub fn close(&self) {
        self.ending.cancel();
        fence(Ordering::SeqCst);
    }

    /// Returns whether the gate is closed.
    pub fn is_closed(&self) -> bool {
        self.ending.is_cancelled()
    }

    /// Raised when it closes, for those who wait.
    pub fn ending(&self) -> &Cancel {
        &self.ending
    }

    /// Returns the number of calls that are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }
}

// === impl UnderWay ===

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes the failure that a sidecar answers with when it takes nothing new.
pub(crate) fn draining() -> Failure {
    Failure::new(Reason::Draining, "the sidecar is ending and takes nothing new; retry at the next one")
}

/// Returns whether a verb asks for memory, bytes, leases or names; the others end something, or only look.
fn begins_something(verb: Verb) -> bool {
    match verb {
        Verb::Put
        | Verb::Reserve
        | Verb::Get
        | Verb::Acquire
        | Verb::Lookup
        | Verb::Watch
        | Verb::Name
        | Verb::PublishSet
        | Verb::ChannelCreate
        | Verb::ChannelAttach
        | Verb::ChannelWrite
        | Verb::ChannelRead
        | Verb::SetCreate
        | Verb::SetOpen
        | Verb::SetRead
        | Verb::SetCommit
        | Verb::SetSnapshot
        | Verb::PipeListen
        | Verb::PipeConnect
        | Verb::PipeAccept
        | Verb::Pipe
        | Verb::PutGpu
        | Verb::Stage
        | Verb::Ticket
        | Verb::Redeem => true,
        Verb::Fill
        | Verb::Seal
        | Verb::Abort
        | Verb::Release
        | Verb::Describe
        | Verb::List
        | Verb::Unname
        | Verb::ChannelDetach
        | Verb::ChannelExtent
        | Verb::ChannelStat
        | Verb::SetStat
        | Verb::SetDrop
        | Verb::PipeWrite
        | Verb::PipeRead
        | Verb::PipeEnd
        | Verb::OpenGpu
        | Verb::Status
        | Verb::Peers
        | Verb::Session => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_lets_nothing_new_begin_and_lets_the_old_finish() {
        let gate = Gate::default();
        let call = gate.enter();
        assert_eq!(gate.admit(Verb::Acquire), Ok(()));
        gate.close();
        assert!(gate.ending().is_cancelled());
        assert_eq!(gate.admit(Verb::Acquire).unwrap_err().reason, Reason::Draining);
        assert_eq!(gate.admit(Verb::Release), Ok(()));
        assert_eq!(gate.under_way(), 1);
        drop(call);
        assert_eq!(gate.under_way(), 0);
    }
}
