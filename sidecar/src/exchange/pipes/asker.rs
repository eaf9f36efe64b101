//! Asker of something about a pipe: a session of this pod, a stream over gRPC, or a connection of another peer for all clients there.

use std::sync::Arc;

use tensorlane_proto::failure::Failure;
use tensorlane_proto::ledger::{Holder, PeerSlot, SessionId};

use super::super::session_required;
use super::super::waits::Owner;
use super::hosted::Stream;
use super::table::Party;
use crate::exchange::Caller;
use crate::peer::PipeAsker;
use crate::session::SessionLink;

/// Connections of peers have numbers from here on where sessions have theirs.
const FIRST: u64 = 1 << 63;
/// Lives of peers that come back on other connections have accounts from here on.
const FIRST_LIFE: u64 = FIRST + (1 << 62);

/// See the module.
#[derive(Clone)]
pub(super) enum Asker {
    Session(Arc<SessionLink>),
    Stream(Arc<Stream>),
    /// The client that connects, empty where it is about a pipe that there is; and the account.
    Peer(PipeAsker, Arc<str>, SessionId),
}

impl Asker {
    /// The session of a caller.
    ///
    /// # Errors
    /// A caller without one has no pipes.
    pub(super) fn of(caller: &Caller) -> Result<Self, Failure> {
        caller.link.clone().map(Self::Session).ok_or_else(|| session_required("A pipe"))
    }

    pub(super) fn session(&self) -> SessionId {
        match self {
            Self::Session(link) => link.id(),
            Self::Stream(stream) => stream.session,
            Self::Peer(asker, ..) => peer_session(asker),
        }
    }

    pub(super) fn party(&self) -> Party {
        let (client, peer) = match self {
            Self::Session(link) => (Arc::clone(link.client()), None),
            Self::Stream(stream) => (Arc::clone(&stream.client), None),
            Self::Peer(asker, client, _) => (Arc::clone(client), Some(asker.key.name.clone())),
        };
        let account = match self {
            Self::Peer(.., account) => *account,
            _ => self.session(),
        };
        Party { session: self.session(), account, client, peer }
    }

    pub(super) fn owner(&self) -> Owner {
        match self {
            Self::Session(_) | Self::Stream(_) => Owner::Client(Some(Holder::Session(self.session()))),
            Self::Peer(asker, ..) => Owner::Peer(asker.key.name.clone()),
        }
    }

    /// Returns whether it has ended, and all that it has with it.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Session(link) => link.is_cut(),
            Self::Stream(stream) => stream.is_over(),
            Self::Peer(asker, ..) => asker.is_over(),
        }
    }
}

/// Number of a connection of a peer among sessions.
pub(super) fn peer_session(asker: &PipeAsker) -> SessionId {
    SessionId(FIRST + asker.link)
}

/// Account of a life of a peer that comes back on other connections.
pub(super) fn life_account(slot: PeerSlot) -> SessionId {
    SessionId(FIRST_LIFE + slot.0)
}
