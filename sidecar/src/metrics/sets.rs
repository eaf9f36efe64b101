//! The metrics of mutable sets.

use prometheus::{IntCounter, IntGauge};

use super::family::Maker;
use super::groups::set;

/// Mutable sets, in memory and on files.
pub struct SetCounts {
    /// Commits.
    pub commits: IntCounter,
    /// Maps of rows.
    pub maps: IntCounter,
    /// Rows that were read.
    pub rows_read: IntCounter,
    /// Rows that were written.
    pub rows_written: IntCounter,
    /// Snapshots.
    pub snapshots: IntCounter,
    live: IntGauge,
    held: IntGauge,
    live_maps: IntGauge,
    bytes: IntGauge,
    open_files: IntGauge,
    torn_rows: IntGauge,
}

/// Totals of the mutable sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetTotals {
    /// Sets, in memory and on files.
    pub sets: u64,
    /// Bytes of the arena that those in memory take.
    pub held_bytes: u64,
    /// Maps of rows of contiguous sets.
    pub maps: u64,
    /// Bytes of the rows of those on files, written or not.
    pub file_bytes: u64,
    /// Files that are kept open.
    pub open_files: u64,
    /// Rows of which a leaf is torn.
    pub torn_rows: u64,
}

impl SetCounts {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            commits: make.counter(
                "set_commits_total",
                "Commits to mutable sets of this peer, from wherever. Not counted: those that were refused.",
            )?,
            maps: make.counter(
                "set_maps_total",
                "Maps of rows of contiguous sets of this peer. Not counted: those that were copies.",
            )?,
            rows_read: make.counter(
                "set_rows_read_total",
                "Rows of mutable sets of this peer that were read, each once for all its leaves. Not counted: rows of snapshots.",
            )?,
            rows_written: make.counter(
                "set_rows_written_total",
                "Rows of mutable sets of this peer that were written, each once for all its leaves. Not counted: those of refused commits.",
            )?,
            snapshots: make.counter(
                "set_snapshots_total",
                "Snapshots of mutable sets that were published. Not counted: copies of all rows that a reader got.",
            )?,
            live: make.gauge(
                "set_live_sets",
                "Mutable sets of this peer, in memory and on files. Not counted: sealed sets, which are names.",
            )?,
            held: make.gauge(
                "set_held_bytes",
                "Bytes of the arena that mutable sets in memory take. Not counted: rows that were never written, and sets on files.",
            )?,
            live_maps: make.gauge(
                "set_live_maps",
                "Maps of rows that commits to them wait for. Not counted: rows that were copied for a reader.",
            )?,
            bytes: make.gauge(
                "set_files_bytes",
                "Bytes of the rows of mutable sets on files, written or not. Not counted: blocks of the disk, and sets in memory.",
            )?,
            open_files: make.gauge(
                "set_open_files",
                "Files of mutable sets that are kept open. Not counted: those that a call uses and that are closed behind it.",
            )?,
            torn_rows: make.gauge(
                "set_torn_rows",
                "Rows of mutable sets on files of which a leaf is TORN_ROWS. Not counted: those of sets that could not be opened.",
            )?,
        })
    }

    /// Shows what there is now.
    pub fn show(&self, now: &SetTotals) {
        set(&self.live, now.sets);
        set(&self.held, now.held_bytes);
        set(&self.live_maps, now.maps);
        set(&self.bytes, now.file_bytes);
        set(&self.open_files, now.open_files);
        set(&self.torn_rows, now.torn_rows);
    }
}
