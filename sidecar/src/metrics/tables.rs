//! Metrics of tables that are bounded in bytes.

use super::family::{Gauges, Maker};
use super::groups::set;
use super::label::TableKind;

/// Tables beside the arena, each a part of `arena.base`.
pub struct TableGauges {
    bytes: Gauges<(TableKind,)>,
    limits: Gauges<(TableKind,)>,
}

// === impl TableGauges ===

impl TableGauges {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(TableGauges {
            bytes: make.gauges(
                "sidecar_table_bytes",
                &["table"],
                "Bytes of tables beside the arena. Not counted: changes of names, remembered requests, what waits for names.",
            )?,
            limits: make.gauges(
                "sidecar_table_limit_bytes",
                &["table"],
                "Bytes that tables beside the arena may take. Not counted: other parts of arena.base.",
            )?,
        })
    }

    /// Sets the gauges of a table to a moment.
    pub fn show(&self, table: TableKind, bytes: u64, limit: u64) {
        set(self.bytes.at((table,)), bytes);
        set(self.limits.at((table,)), limit);
    }
}
