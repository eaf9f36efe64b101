//! A directory in memory: the twin of the others, for tests. Clones are one directory, so several sidecars can share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use super::{Directory, PeerEntry, PeerTable, PublishedOffer, TableError};

/// A table that a test sets, and that published entries go into.
#[derive(Clone, Debug)]
pub struct MemoryDirectory {
    table: watch::Sender<Arc<PeerTable>>,
    refreshes: Arc<AtomicU64>,
}

impl MemoryDirectory {
    /// Nobody is there.
    pub fn new() -> MemoryDirectory {
        MemoryDirectory { table: watch::Sender::new(Arc::default()), refreshes: Arc::default() }
    }

    /// Replaces the table.
    ///
    /// # Errors
    /// Everything that is wrong with the entries; the table stays as it was.
    pub fn set(&self, entries: Vec<PeerEntry>) -> Result<(), Vec<TableError>> {
        self.table.send_replace(Arc::new(PeerTable::new(entries)?));
        Ok(())
    }

    /// Number of times that somebody asked for a refresh.
    pub fn refreshes(&self) -> u64 {
        self.refreshes.load(Ordering::Relaxed)
    }
}

impl Default for MemoryDirectory {
    fn default() -> Self {
        MemoryDirectory::new()
    }
}

impl Directory for MemoryDirectory {
    fn publish(&self, offer: PublishedOffer) {
        self.table.send_modify(|table| {
            let others = table.iter().filter(|other| other.name != offer.entry.name);
            let mut entries: Vec<_> = others.map(|other| PeerEntry::clone(other)).collect();
            entries.push(offer.entry);
            match PeerTable::new(entries) {
                Ok(new) => *table = Arc::new(new),
                Err(errors) => tracing::error!(?errors, "an offer does not fit into the table"),
            }
        });
    }

    fn watch(&self) -> watch::Receiver<Arc<PeerTable>> {
        self.table.subscribe()
    }

    fn refresh(&self) {
        self.refreshes.fetch_add(1, Ordering::Relaxed);
        self.table.send_modify(|_| {});
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::identity::{Fingerprint, Incarnation};
    use tensorlane_proto::negotiate::{Offer, Require, VersionRange};

    use super::*;

    fn offer(name: &str, key: u8) -> PublishedOffer {
        let entry = PeerEntry {
            name: name.parse().unwrap(),
            addresses: Vec::new(),
            fingerprints: vec![Fingerprint([key; 32])],
            node: None,
            awaits_ip: false,
        };
        let offer = Offer {
            peer: entry.name.clone(),
            incarnation: Incarnation(1),
            versions: VersionRange { min: 1, max: 1 },
            transports: Vec::new(),
            node: None,
            gpus: Vec::new(),
            require: Require::NONE,
        };
        PublishedOffer { entry, offer }
    }

    #[test]
    fn what_one_publishes_all_see_and_a_later_offer_replaces_an_earlier_one() {
        let directory = MemoryDirectory::new();
        let (mut watch, twin) = (directory.watch(), directory.clone());
        twin.publish(offer("a", 1));
        twin.publish(offer("a", 2));
        twin.publish(offer("b", 3));
        assert!(watch.has_changed().unwrap());
        let table = Arc::clone(&watch.borrow_and_update());
        assert_eq!(table.len(), 2);
        assert!(table.claimants(&Fingerprint([1; 32])).is_empty());
        directory.refresh();
        assert!(
            watch.has_changed().unwrap(),
            "a refresh that found nothing new must wake whoever waits for it"
        );
        assert_eq!(twin.refreshes(), 1);
    }
}
