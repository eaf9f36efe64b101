//! Metrics that can be counted, and nothing about who counts them.
//!
//! Names have a grammar: `tensorlane_<module>_<what>_<unit>[_total]`, where the unit alone may say what. Labels come from
//! enums ([`label`]), never from a tensor, a name or a session, so the number of series is bounded when this is
//! compiled. The registry is passed in. Counting finds its series by index and costs an atomic addition; what is a
//! state (the arena, the ledger) is not counted along the way but asked for when somebody looks
//! ([`Metrics::on_scrape`]). The help of each metric says what it does not count.

use parking_lot::Mutex;
use prometheus::{Registry, TextEncoder};

mod directory;
mod family;
mod groups;
pub mod label;
mod sets;
mod staging;
mod tables;

pub use directory::Directory;
use family::Maker;
pub use family::{Counters, Family, Gauges, Histograms, Vector};
pub use groups::{Arena, ArenaBytes, Calls, Channels, Ledger, Live, Moves, Peers, Pipes, Sessions, Threads};
use label::FrameFault;
pub use sets::{SetCounts, SetTotals};
pub use staging::Staging;
pub use tables::TableGauges;

/// Asked before each scrape to bring gauges up to date.
pub type OnScrape = Box<dyn Fn(&Metrics) + Send + Sync>;

/// Every metric of the sidecar. Shared behind an `Arc`.
pub struct Metrics {
    /// Requests of workloads.
    pub calls: Calls,
    /// Bytes of tensors.
    pub moves: Moves,
    /// The memory.
    pub arena: Arena,
    /// Metrics of what lives, and of what ended.
    pub ledger: Ledger,
    /// Workloads.
    pub sessions: Sessions,
    /// Channels.
    pub channels: Channels,
    /// Pipes.
    pub pipes: Pipes,
    /// Sets on files.
    pub sets: SetCounts,
    /// Copies out of GPU memory.
    pub staging: Staging,
    /// Tables beside the arena.
    pub tables: TableGauges,
    /// Other peers.
    pub peers: Peers,
    /// The peer table.
    pub directory: Directory,
    /// Threads of the process.
    pub threads: Threads,
    registry: Registry,
    on_scrape: Mutex<Vec<OnScrape>>,
}

impl Metrics {
    /// Makes every metric in `registry`.
    ///
    /// # Errors
    /// The registry has some of them already: it belongs to another sidecar.
    pub fn new(registry: &Registry) -> prometheus::Result<Metrics> {
        let make = Maker(registry);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        make.constant("sidecar_build_info", "Always 1. Not counted: anything.", &version)?.set(1);
        Ok(Metrics {
            calls: Calls::new(&make)?,
            moves: Moves::new(&make)?,
            arena: Arena::new(&make)?,
            ledger: Ledger::new(&make)?,
            sessions: Sessions::new(&make)?,
            channels: Channels::new(&make)?,
            pipes: Pipes::new(&make)?,
            sets: SetCounts::new(&make)?,
            staging: Staging::new(&make)?,
            tables: TableGauges::new(&make)?,
            peers: Peers::new(&make)?,
            directory: Directory::new(&make)?,
            threads: Threads::new(&make)?,
            registry: registry.clone(),
            on_scrape: Mutex::new(Vec::new()),
        })
    }

    /// Calls `update` before each scrape. It must not wait, must not call this again, and must hold only a `Weak` of
    /// whatever holds these metrics.
    pub fn on_scrape(&self, update: OnScrape) {
        self.on_scrape.lock().push(update);
    }

    /// A frame closed its session.
    pub fn session_frame_rejected(&self, fault: impl Into<FrameFault>) {
        self.sessions.rejected_frames.at((fault.into(),)).inc();
    }

    /// Counts a session that was refused because there were `limits.sessions` already.
    pub fn session_refused(&self) {
        self.sessions.refused.inc();
    }

    /// A frame closed its peer's connection.
    pub fn peer_frame_rejected(&self, fault: impl Into<FrameFault>) {
        self.peers.rejected_frames.at((fault.into(),)).inc();
    }

    /// Pages could not be had.
    pub fn populate_failed(&self) {
        self.arena.populate_failures.inc();
    }

    /// Everything, in the text format of Prometheus.
    ///
    /// # Errors
    /// A metric that the format cannot carry.
    pub fn render(&self) -> prometheus::Result<String> {
        self.on_scrape.lock().iter().for_each(|update| update(self));
        self.directory.show_age();
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(test)]
mod tests;
