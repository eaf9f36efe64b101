//! The metrics of the peer table: what is in it, how old it is, and what was written of this peer.

use std::time::Instant;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};

use super::family::{Counters, Gauges, Maker};
use super::label::{LeftOut, Moved};

/// The peer table.
pub struct Directory {
    /// Peers in the table.
    pub peers: IntGauge,
    /// Peers that the source lists and the table leaves out.
    pub left_out: Gauges<(LeftOut,)>,
    /// Addresses that peers of the table say and that are not their pods'.
    pub foreign_addresses: IntGauge,
    /// Keys that several peers of the table claim.
    pub contested: IntGauge,
    /// Attempts to read it that failed.
    pub failed_reads: IntCounter,
    /// Attempts to write this peer's entry.
    pub writes: Counters<(Moved,)>,
    age: IntGauge,
    /// Time at which the source last said what holds; none if no source was ever asked.
    confirmed: Mutex<Option<Instant>>,
}

impl Directory {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Directory {
            peers: make
                .gauge("directory_listed_peers", "Peers in the table. Not counted: unreadable entries.")?,
            left_out: make.gauges(
                "directory_left_out_peers",
                &["reason"],
                "Peers that the source lists and the table leaves out. Not counted: a peers file that is refused whole.",
            )?,
            foreign_addresses: make.gauge(
                "directory_foreign_addresses",
                "Addresses that peers of the table publish and that are none of their pods' IPs, so that nobody dials them. Not counted: a peers file, which nobody but its writer speaks in.",
            )?,
            contested: make.gauge(
                "directory_contested_keys",
                "Keys that several peers of the table claim. Not counted: a peers file, which is refused for that.",
            )?,
            failed_reads: make.counter(
                "directory_failed_reads_total",
                "Attempts to read the table that failed. Not counted: attempts that found nothing new.",
            )?,
            writes: make.all_counters(
                "directory_writes_total",
                &["result"],
                "Attempts to write this peer's entry. Not counted: a peers file, which others write.",
            )?,
            age: make.gauge(
                "directory_age_seconds",
                "Seconds since the source of the table last said what holds, or since it was first asked. Not counted: a sidecar without a directory, which shows 0.",
            )?,
            confirmed: Mutex::default(),
        })
    }

    /// The source is asked from now on.
    pub fn asked(&self) {
        self.confirmed.lock().get_or_insert_with(Instant::now);
    }

    /// The source has just said what holds, or that nothing changed.
    pub fn confirmed(&self) {
        *self.confirmed.lock() = Some(Instant::now());
    }

    pub(super) fn show_age(&self) {
        let age = self.confirmed.lock().map_or(0, |at| at.elapsed().as_secs());
        self.age.set(i64::try_from(age).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::Registry;

    use super::*;

    #[test]
    fn the_age_is_that_of_the_last_word_of_the_source() {
        let directory = Directory::new(&Maker(&Registry::new())).unwrap();
        directory.show_age();
        assert_eq!(directory.age.get(), 0, "nobody was asked");
        let hour_ago = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        *directory.confirmed.lock() = Some(hour_ago);
        directory.asked();
        directory.show_age();
        assert!(directory.age.get() >= 3600, "asking is no answer");
        directory.confirmed();
        directory.show_age();
        assert!(directory.age.get() < 3600);
    }
}
