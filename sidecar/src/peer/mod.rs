//! The connections between this sidecar and the others: who they are, what they ask, how bytes come and go.
//!
//! One TLS 1.3 connection a pair, two threads a connection, no runtime. The reader asks (`Peers::pull`), the owner
//! serves (`Serve`); the bytes of a tensor go from the owner's block through one encryption, one socket and one
//! decryption into the reader's block. This module knows the arena's blocks, the peer table and the frames of the
//! peer protocol; it knows no ledger, no session and no name: what may be served, and for how long, is for `Serve`.
//!
//! ```text
//!   Peers ──── Peer (one a name: calls, incarnation, when to dial) ──── Link (one a connection)
//!     │                                                                  ├─ reader thread: record ─> parse ─> receive
//!     ├─ steward thread: deadlines, dials, pings                         └─ writer thread: outbox <─ submit (any thread)
//!     └─ listener thread ──> connect (TLS, who is it, Hello) ──────────────^
//! ```
//!
//! - A call outlives the connection it was sent on: it is repeated on the next one (a pull from the bytes that landed)
//!   until its deadline, or until the peer has been away for the grace; another incarnation on the other side ends it
//!   with OWNER_LOST.
//! - What callers hand in (`done`) and what they implement (`Serve`) runs on reader threads and must not block.
//! - Every thread is joined by [`Peers::stop`].

mod api;
mod calls;
mod connect;
mod counters;
mod dial;
mod handshake;
mod incoming;
mod link;
mod outbox;
mod parse;
mod peers;
mod pipe;
mod receive;
mod record;
mod remote;
mod serving;
mod shared;
mod source;
mod steward;
mod views;

pub use api::{
    Keys, Known, KnownPeer, Me, PeerKey, PeerState, PeerView, PeersConfig, PullFailed, PullOrder, Pulled,
    Serve, Served,
};
pub use calls::{InquireDone, PullDone, SmallDone};
pub use counters::Counters;
pub use peers::{CallHandle, Peers};
pub use source::Source;

#[cfg(test)]
mod tests;
