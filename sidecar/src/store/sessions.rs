//! Sessions and peers as holders: what they had goes back when they end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_memory::Block;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{Event, Holder, Millis, PeerSlot, SessionId};

use super::holdings::{Open, Program};
use super::{State, Store};
use crate::session::SessionLink;

/// The number of the sidecar's own session: what it is busy with for others.
const OWN_SESSION: SessionId = SessionId(0);
/// In whose name the sidecar itself holds what it is busy with.
pub const OWN: Holder = Holder::Session(OWN_SESSION);

// === impl Store ===

impl Store {
    /// A session on the socket began: its segments can be announced to it from now on.
    pub fn session_began(&self, link: &Arc<SessionLink>) {
        let program = Program { name: Arc::clone(link.client()), process: link.process(), address: None };
        self.enter_session(link.id(), Some(Arc::clone(link)), Arc::new(program));
    }

    /// A session without memory of its own began (gRPC).
    pub fn plain_session_began(&self, session: SessionId, program: Arc<Program>) {
        self.enter_session(session, None, program);
    }

    fn enter_session(&self, session: SessionId, link: Option<Arc<SessionLink>>, program: Arc<Program>) {
        let open = Open { link, program, since: Instant::now() };
        let before = self.state.lock().sessions.insert(session, open);
        drop(before);
    }

    /// True if a session is open.
    pub fn is_open(&self, session: SessionId) -> bool {
        self.state.lock().sessions.contains_key(&session)
    }

    /// A session ended. Its leases and reservations end now; the blocks that its process may still map (it was killed,
    /// or a child of it lives on) are not reused before its witnesses end.
    pub fn session_ended(&self, session: SessionId) {
        let holder = Holder::Session(session);
        let mut state = self.state.lock();
        state.sessions.remove(&session);
        let blocks: Vec<Block> = state
            .ledger
            .holdings(holder)
            .filter_map(|id| state.tensors.get(&id).map(|t| t.block.clone()))
            .collect();
        drop(state);
        self.pin(session, blocks);
        // Ending a holder is never refused.
        let _ = self.apply(Event::HolderGone { holder });
        self.arena.session_ended(session.0);
        self.keeper_wanted.ring();
    }

    /// Time for which a peer that is away is waited for.
    pub fn lease_grace(&self) -> Duration {
        self.settings.lease_grace
    }

    /// A peer's connection was lost: its leases wait for it.
    pub fn peer_away(&self, peer: PeerSlot) -> Result<(), Failure> {
        let grace = u64::try_from(self.lease_grace().as_millis()).unwrap_or(u64::MAX);
        let until = self.clock.now().after(Millis(grace));
        self.apply(Event::HolderAway { holder: Holder::Peer(peer), until }).map(|_| ())
    }

    /// A peer is connected again, in its incarnation.
    pub fn peer_back(&self, peer: PeerSlot) {
        // Coming back is never refused.
        let _ = self.apply(Event::HolderBack { holder: Holder::Peer(peer) });
    }

    /// A peer's incarnation is gone for good.
    pub fn peer_gone(&self, peer: PeerSlot) {
        // Ending a holder is never refused.
        let _ = self.apply(Event::HolderGone { holder: Holder::Peer(peer) });
        self.peer_unnamed(peer);
    }

    /// The link of an open session.
    pub fn link(&self, session: SessionId) -> Option<Arc<SessionLink>> {
        self.state.lock().sessions.get(&session).and_then(|open| open.link.clone())
    }
}

// === impl State ===

impl State {
    /// Nothing is given to a session that has ended: nobody would end it again.
    pub(super) fn check_open(&self, by: Option<Holder>) -> Result<(), Failure> {
        match by {
            Some(Holder::Session(session))
                if session != OWN_SESSION && !self.sessions.contains_key(&session) =>
            {
                Err(Failure::new(Reason::Cancelled, "the session has ended"))
            }
            _ => Ok(()),
        }
    }
}
