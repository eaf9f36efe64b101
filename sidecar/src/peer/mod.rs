//! The connections between this sidecar and the others: who they are, what they ask, how bytes come and go.
//!
//! A pair has a TLS 1.3 connection for control; each connection has two threads, and no runtime (QUIC has its own). The reader asks
//! (`Peers::pull`), the owner serves (`Serve`). The bytes of a tensor go from the owner's block into the reader's on that
//! connection or in another way (`transport`), with at most one encryption, one socket and one decryption between. This
//! module knows the arena's blocks, the peer table and the frames of the peer protocol. It knows no ledger, no session and
//! no name: `Serve` decides what may be served, and for how long.
//!
//! ```text
//!   Peers ──── Peer (one a name: calls, incarnation, when to dial) ──── Link (one a connection)
//!     │                                                                  ├─ reader thread: record ─> parse ─> receive
//!     ├─ scheduler thread: deadlines, dials, pings                         ├─ writer thread: outbox <─ submit (any thread)
//!     ├─ listener thread ──> connect, hello (TLS, who is it, Hello) ──^  └─ Ways: stream; lanes and quic, a thread a lane
//!     └─ QuicEndpoint: UDP, a runtime and its threads, for QUIC
//! ```
//!
//! - A call outlives the connection it was sent on: it is repeated on the next one (a pull from the bytes that landed)
//!   until its deadline, or until the peer has been away for the grace; another incarnation on the other side ends it
//!   with OWNER_LOST.
//! - What callers hand in (`done`) and what they implement (`Serve`) runs on reader threads and must not block.
//! - Every thread is joined by [`Peers::stop`], but for those that look up names of hosts (`resolve`).

mod api;
mod calls;
mod channels;
mod choosing;
mod claim;
mod connect;
mod counters;
mod dial;
mod exporter;
mod floor;
mod full;
mod gather_frame;
mod give_way;
mod gpus;
mod handshake;
mod hello;
mod lending;
mod link;
mod lost;
mod outbox;
mod own_addresses;
mod parse;
mod partial;
mod paths;
mod peers;
mod pipe_calls;
mod pull_guard;
mod questions;
mod race;
mod reach;
mod receive;
mod received;
mod record;
mod record_reader;
mod record_writer;
mod refused_keys;
mod relay;
mod remote;
mod resolve;
mod row_lists;
mod scheduler;
mod seats;
mod send_error;
mod serving;
mod sets;
mod shared;
mod shunned;
mod slowest;
mod small;
mod source;
mod standstill;
mod strangers;
mod transport;
mod views;

pub use api::{
    Asked, AskedLoan, Found, Holders, Keys, Known, KnownPeer, LostHolder, MapFailed, MapOrder, Mapped, Me,
    PeerKey, PeerState, PeerView, PeersConfig, PullFailed, PullOrder, Pulled, RelayRequest, RelaySource,
    Serve, Served, Sought, TellFound, TellProven,
};
pub use calls::{InquireDone, MapDone, PullDone, Question, RedeemDone, SetDone, SmallDone, WatchDone};
pub use channels::{
    AttachedHere, AttachedThere, ChannelLine, ChannelSink, ChannelSource, Misuse, OutgoingMessages,
    TellAttached,
};
pub use counters::Counters;
pub(crate) use give_way::give_way;
pub use gpus::{BorrowedMemory, GpuId, LentMemory, ReachableGpu, ServedOnGpu};
pub use lost::{HolderLost, asks_on};
pub use partial::{PartialTensor, RelayToken};
pub use paths::{FallBack, Path, Paths, Senders};
pub use peers::{CallHandle, PeerHold, Peers};
pub use pipe_calls::{PipeAsker, PipeCallHandle, PipeDone, PipeLine, PipeSink, PipeThere, TellConnected};
pub use pull_guard::PullGuard;
pub(crate) use remote::CALLS_MAX;
pub use resolve::Resolver;
pub use small::{SmallAnswer, SmallBytes, SmallTensor};
pub use source::Source;
pub(crate) use standstill::FEW_BYTES;
pub use transport::shm::NodeConfig;
pub use transport::{LanesConfig, Way, quic_settings};

#[cfg(test)]
mod sim;
#[cfg(test)]
pub(crate) mod tests;
