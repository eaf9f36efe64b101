//! Remainder of a pull whose bytes are here and not proven yet: its lease at the owner, and the word whether others may
//! have the tensor from us. Nobody is named a holder of what was found wrong.

use std::sync::{Arc, Weak};

use tensorlane_proto::Incarnation;

use super::remote::{Effects, Peer};
use super::shared::Shared;

/// The lease of a pull that is over but for its proof. It ends when this is dropped.
pub struct PullGuard {
    pub(super) shared: Weak<Shared>,
    pub(super) peer: Arc<Peer>,
    /// The call and the tensor.
    pub(super) pull: (u64, u64),
    /// The life of the owner.
    pub(super) expected: Option<Incarnation>,
    pub(super) holds: bool,
    /// While this is held, the connection to the owner is in use.
    _held: Arc<()>,
}

impl PullGuard {
    /// A guard of a pull, or of a ticket, at its owner.
    pub(super) fn new(
        (shared, peer): (Weak<Shared>, Arc<Peer>),
        pull: (u64, u64),
        expected: Option<Incarnation>,
    ) -> Self {
        let _held = Arc::clone(&peer.held);
        Self { shared, peer, pull, expected, holds: false, _held }
    }

    /// The tensor is here, proven, and may be had for others.
    pub fn holds(mut self) {
        self.holds = true;
    }
}

impl Drop for PullGuard {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut effects = Effects::default();
        self.peer.state.lock().end_lease(self.pull, self.expected, self.holds, &mut effects);
        shared.perform(effects);
    }
}

impl std::fmt::Debug for PullGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (call, id) = self.pull;
        f.debug_struct("PullGuard").field("call", &call).field("id", &id).finish_non_exhaustive()
    }
}
