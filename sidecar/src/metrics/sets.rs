//! The metrics of mutable sets on files.

use prometheus::IntGauge;

use super::family::Maker;
use super::groups::set;

/// Mutable sets on files.
pub struct FileSets {
    bytes: IntGauge,
    open_files: IntGauge,
    torn_rows: IntGauge,
}

impl FileSets {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
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

    /// Shows bytes of rows, files that are open, and torn rows.
    pub fn show(&self, bytes: u64, open_files: u64, torn_rows: u64) {
        set(&self.bytes, bytes);
        set(&self.open_files, open_files);
        set(&self.torn_rows, torn_rows);
    }
}
