//! Metrics of copies out of GPU memory.

use prometheus::IntCounter;

use super::family::{Counters, Gauges, Maker};
use super::groups::set;
use super::label::{StagingEnd, StagingState};

/// Copies of tensors in GPU memory, for those who cannot map it.
pub struct Staging {
    /// Tensors that are wanted.
    tensors: Gauges<(StagingState,)>,
    bytes: IntCounter,
    failures: Counters<(StagingEnd,)>,
}

// === impl Staging ===

impl Staging {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Staging {
            tensors: make.gauges(
                "gpu_staging_tensors",
                &["state"],
                "Tensors in GPU memory that are wanted in host memory and not there. Not counted: the copies that are there.",
            )?,
            bytes: make.counter(
                "gpu_staged_bytes_total",
                "Bytes that were copied out of GPU memory. Not counted: copies that came to nothing, and further readers of one.",
            )?,
            failures: make.all_counters(
                "gpu_staging_failures_total",
                &["reason"],
                "Times that a process was asked for a copy and did not make it. Not counted: tensors whose GPU no process reaches.",
            )?,
        })
    }

    /// Sets the gauges to a moment.
    pub fn show(&self, queued: u64, moving: u64) {
        for (state, count) in [(StagingState::Queued, queued), (StagingState::Moving, moving)] {
            set(self.tensors.at((state,)), count);
        }
    }

    /// A copy of so many bytes is here.
    pub fn done(&self, bytes: u64) {
        self.bytes.inc_by(bytes);
    }

    /// A process did not make its copy.
    pub fn ended(&self, end: StagingEnd) {
        self.failures.at((end,)).inc();
    }
}
