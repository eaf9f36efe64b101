//! Counts of what happened on all connections. Labels are words of enums, never names of peers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Counts by label.
#[derive(Debug, Default)]
pub struct Labelled(Mutex<BTreeMap<&'static str, u64>>);

impl Labelled {
    /// Counts one more.
    pub fn add(&self, label: &'static str) {
        *self.0.lock().entry(label).or_default() += 1;
    }

    /// The count of one label.
    pub fn count(&self, label: &str) -> u64 {
        self.0.lock().get(label).copied().unwrap_or(0)
    }

    /// All counts, by label.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        self.0.lock().iter().map(|(label, count)| (*label, *count)).collect()
    }
}

/// The counters of all connections.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were refused before their first frame, by reason.
    pub auth_refused: Labelled,
    /// Frames that ended their connection, by reason.
    pub frames_refused: Labelled,
    /// Connections that ended, by reason.
    pub closed: Labelled,
    /// Connections that found no seat, by the side that had none: `here`, `there`.
    pub no_seats: Labelled,
    /// Connections that came up, by who dialed: `us`, `them`.
    pub opened: Labelled,
    /// Lanes that came up, by what we do on them: `read`, `serve`.
    pub lanes_opened: Labelled,
    /// Lanes that were not opened, or not let in, because there were as many as there may be: `read`, `serve`.
    pub lanes_refused: Labelled,
    /// Lanes that ended, by reason.
    pub lanes_closed: Labelled,
    /// Pulls that did not come, or did not go on, in the best way, by reason.
    pub fallbacks: Labelled,
    /// QUIC connections that were bound, by who dialed: `us`, `them`.
    pub quic_opened: Labelled,
    /// QUIC connections whose other end was found at another address than before.
    pub quic_migrations: AtomicU64,
    /// Pulls that were asked for, by way: `stream`, `lanes`, `quic`, `shm`.
    pub pulls: Labelled,
    /// Peers of this node that were met at its socket, by who called: `us`, `them`.
    pub node_opened: Labelled,
    /// Meetings that ended, by reason.
    pub node_closed: Labelled,
    /// Calls at sockets of the node's directory that were refused, ours or theirs, by reason.
    pub node_refused: Labelled,
    /// Holders that a pull did not go on from, by reason.
    pub holders_lost: Labelled,
    /// Granules that holders sent and that were not their owners'.
    pub forged: AtomicU64,
    /// Tensor bytes that were received from others than their owners.
    pub relayed_in: AtomicU64,
    /// Tensor bytes that were sent of other peers' tensors.
    pub relayed_out: AtomicU64,
    /// Tensor bytes that were received.
    pub bytes_in: AtomicU64,
    /// Tensor bytes that were sent.
    pub bytes_out: AtomicU64,
}

impl Counters {
    pub(super) fn received(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn sent(&self, bytes: u64) {
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }
}
