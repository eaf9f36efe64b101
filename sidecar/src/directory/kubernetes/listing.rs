//! Listing of the API server, and the table that follows from it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorlane_proto::identity::{Fingerprint, PeerName};

use super::super::{PEERS_MAX, PeerEntry, PeerTable};
use super::object::SeenPeer;
use crate::metrics::label::{Label, LeftOut};

/// The keys that several peers claim, with all their names.
pub(super) type Conflicts = BTreeMap<Fingerprint, Vec<PeerName>>;

/// An object as it is listed.
#[derive(Debug, PartialEq)]
struct Listed {
    /// Entry of the table, or why there is none.
    entry: Result<Arc<PeerEntry>, LeftOut>,
    /// Addresses that it says and that are not its pod's.
    foreign: usize,
}

/// The objects of the exchange, as little of each as the table needs.
#[derive(Debug, Default)]
pub(super) struct Listing {
    by_name: BTreeMap<String, Listed>,
    entries: usize,
}

/// A table, and how many objects it leaves out, by [`LeftOut`].
#[derive(Debug, PartialEq)]
pub(super) struct Made {
    pub(super) table: PeerTable,
    pub(super) left_out: [i64; LeftOut::ALL.len()],
    /// Addresses of peers in the table that are not their pods', and that nobody dials.
    pub(super) foreign: usize,
}

impl Listing {
    /// An object is there, or has changed. Whether that makes a difference.
    pub(super) fn set(&mut self, seen: &SeenPeer) -> bool {
        let name = &seen.metadata.name;
        let old = self.by_name.get(name);
        let held = old.is_some_and(|old| old.entry.is_ok());
        let entry = match seen.entry() {
            // What is above the limit costs its name alone.
            Ok(_) if !held && self.entries >= PEERS_MAX => Err(LeftOut::TooMany),
            entry => entry.map(Arc::new),
        };
        let foreign = entry.as_ref().map_or(0, |_| seen.foreign_addresses());
        let new = Listed { entry, foreign };
        if old == Some(&new) {
            return false;
        }
        self.entries = self.entries - usize::from(held) + usize::from(new.entry.is_ok());
        self.by_name.insert(name.clone(), new);
        true
    }

    /// An object is gone. Whether that makes a difference.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let old = self.by_name.remove(name);
        self.entries -= usize::from(old.as_ref().is_some_and(|old| old.entry.is_ok()));
        old.is_some()
    }

    /// The table that follows, where `before` is the one that holds now.
    pub(super) fn table(&self, before: &PeerTable) -> Made {
        table_from(&self.by_name, before)
    }
}

/// The table of what is listed.
///
/// A key that several peers claim leaves nobody out. A status is written by the peer itself, so this says nothing about
/// who has the key; whoever proves it in a handshake does. Neither the order of the list nor what was listed before decides,
/// so a sidecar that starts now and one that runs for long say the same.
fn table_from(by_name: &BTreeMap<String, Listed>, before: &PeerTable) -> Made {
    let mut left_out = [0; LeftOut::ALL.len()];
    by_name
        .values()
        .filter_map(|listed| listed.entry.as_ref().err())
        .for_each(|why| left_out[why.index()] += 1);
    let foreign = by_name.values().map(|listed| listed.foreign).sum();
    let entries = by_name.values().filter_map(|listed| listed.entry.as_ref().ok()).cloned().collect();
    match PeerTable::of_claims(entries) {
        Ok(table) => Made { table, left_out, foreign },
        Err(errors) => {
            // Each entry is right by itself: it cannot happen, and if it does nobody is lost.
            tracing::error!(?errors, "the listed peers are no table: the last good one stays");
            Made { table: before.clone(), left_out, foreign }
        }
    }
}

/// Peers that claim a key that somebody else claims too.
pub(super) fn conflicts(table: &PeerTable) -> Conflicts {
    let names = |peers: &[Arc<PeerEntry>]| peers.iter().map(|entry| entry.name.clone()).collect();
    table.contested().map(|(key, peers)| (key, names(peers))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::kubernetes::object::{SeenMeta, SeenStatus};

    fn peer(name: &str, keys: &[u8]) -> SeenPeer {
        let status = SeenStatus {
            addresses: vec!["10.0.0.7:9421".to_owned()],
            fingerprints: keys.iter().map(|&key| Fingerprint([key; 32]).to_string()).collect(),
            ..SeenStatus::default()
        };
        let metadata = SeenMeta { name: name.to_owned(), ..SeenMeta::default() };
        SeenPeer { metadata, status: Some(status), ..SeenPeer::default() }
    }

    fn listing(peers: &[SeenPeer]) -> Listing {
        let mut listing = Listing::default();
        peers.iter().for_each(|peer| _ = listing.set(peer));
        listing
    }

    fn names(made: &Made) -> Vec<&str> {
        made.table.iter().map(|entry| entry.name.as_str()).collect()
    }

    #[test]
    fn the_table_has_whoever_is_listed_and_counts_whom_it_leaves_out() {
        let mut listing = listing(&[peer("a", &[1]), peer("b", &[2, 3]), peer("c", &[])]);
        let made = listing.table(&PeerTable::default());
        assert_eq!(names(&made), ["a", "b"]);
        assert_eq!(made.left_out[LeftOut::NotPublished.index()], 1);
        assert!(listing.remove("a") && !listing.remove("a"));
        assert!(listing.set(&peer("c", &[4])));
        let made = listing.table(&made.table);
        assert_eq!((names(&made), made.left_out), (vec!["b", "c"], [0; LeftOut::ALL.len()]));
    }

    #[test]
    fn addresses_that_are_not_a_pods_own_are_counted_until_they_are() {
        let at = |ips: &[&str]| {
            let mut peer = peer("a", &[1]);
            peer.spec.pod_ips = Some(ips.iter().map(|&ip| ip.to_owned()).collect());
            peer
        };
        let mut listing = listing(&[at(&[]), peer("b", &[2])]);
        let made = listing.table(&PeerTable::default());
        assert_eq!((names(&made), made.foreign), (vec!["a", "b"], 1));
        assert!(listing.set(&at(&["10.0.0.7"])));
        assert_eq!(listing.table(&made.table).foreign, 0);
    }

    #[test]
    fn what_changes_nothing_is_no_change() {
        let mut listing = listing(&[peer("a", &[1]), peer("c", &[])]);
        assert!(!listing.set(&peer("a", &[1])) && !listing.set(&peer("c", &[])));
        assert!(listing.set(&peer("a", &[1, 2])) && listing.set(&peer("a", &[])));
    }

    #[test]
    fn whoever_copies_a_key_takes_nobody_out_of_the_table_however_it_came_about() {
        let liar = [peer("a", &[1, 2]), peer("b", &[2]), peer("c", &[3])];
        let before = listing(&[peer("b", &[2]), peer("c", &[3])]).table(&PeerTable::default()).table;
        // One that knew who had the key first, and one that has just started.
        for before in [before, PeerTable::default()] {
            let made = listing(&liar).table(&before);
            assert_eq!((names(&made), made.left_out), (vec!["a", "b", "c"], [0; LeftOut::ALL.len()]));
            let both = ["a", "b"].map(|name| name.parse().unwrap()).to_vec();
            assert_eq!(conflicts(&made.table), Conflicts::from([(Fingerprint([2; 32]), both)]));
        }
    }

    #[test]
    fn peers_above_the_limit_cost_their_names_alone() {
        let mut listing = Listing::default();
        for i in 0..PEERS_MAX + 2 {
            let mut peer = peer(&format!("p-{i}"), &[]);
            let mut key = [0; 32];
            key[..8].copy_from_slice(&i.to_be_bytes());
            peer.status.as_mut().unwrap().fingerprints = vec![Fingerprint(key).to_string()];
            listing.set(&peer);
        }
        let made = listing.table(&PeerTable::default());
        assert_eq!((made.table.len(), made.left_out[LeftOut::TooMany.index()]), (PEERS_MAX, 2));
        assert!(listing.remove("p-0") && listing.set(&peer("p-new", &[255])));
        assert_eq!(listing.table(&PeerTable::default()).table.len(), PEERS_MAX);
    }
}
