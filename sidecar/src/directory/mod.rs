//! Peers of the exchange: the peer table, and the places it comes from.
//!
//! A directory knows names, addresses and fingerprints. It never knows a transport, opens no connection to a peer and
//! asks nobody whether a peer lives. What holds for every directory:
//!
//! - [`Directory::watch`] gives the newest table at once and each later one. A table is whole: who is not in it is not
//!   in the exchange.
//! - A source that cannot be read changes nothing: the last good table stays. A table becomes empty only where the
//!   source says in so many words that nobody is there; losing the source is not a mass eviction.
//! - [`Directory::refresh`] and [`Directory::publish`] return at once. The work is done elsewhere, and errors are logged and
//!   counted there.

use std::sync::Arc;

use tensorlane_proto::identity::{Fingerprint, PeerName};
use tensorlane_proto::negotiate::Offer;
use tokio::sync::watch;

pub mod ask;
pub mod file;
pub mod kubernetes;
pub mod memory;
mod parse;
pub mod table;

pub use ask::table_after_refresh;
pub use file::FileDirectory;
pub use kubernetes::{KubernetesDirectory, KubernetesSettings};
pub use memory::MemoryDirectory;
pub use table::{PeerEntry, PeerTable, TableError};

/// A place where peers find each other. The contract is in the module's description.
pub trait Directory: Send + Sync {
    /// Makes this sidecar known. A later offer replaces an earlier one; publishing the same again is harmless.
    fn publish(&self, offer: PublishedOffer);

    /// The newest table now, and a wake-up for each later one.
    fn watch(&self) -> watch::Receiver<Arc<PeerTable>>;

    /// Reads the source again soon, because a peer came whose key is in no entry. Calls close to each other are one.
    /// When it is done the watch wakes up, with the same table where nothing is new.
    fn refresh(&self);

    /// Reason for which others refuse this sidecar, as the table lists it, with what to do. None where all is well, or
    /// where the entry is written by nobody else.
    fn own_lack(&self) -> Option<String> {
        None
    }

    /// Reason for which the table has been an old one for a while. None where its source answers.
    fn outage(&self) -> Option<String> {
        None
    }
}

/// Offer that a sidecar says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedOffer {
    /// Entry of the sidecar in the peer table.
    pub entry: PeerEntry,
    /// Offer of what the sidecar can speak, with its life.
    pub offer: Offer,
}

/// Fingerprints of one peer at a time: one, and a second one while a key is rotated.
pub const FINGERPRINTS_MAX: usize = 2;

/// Addresses of one peer; each is tried in its turn.
pub const ADDRESSES_MAX: usize = 8;

/// Peers of one table; each costs about a kilobyte.
pub const PEERS_MAX: usize = 10_000;
