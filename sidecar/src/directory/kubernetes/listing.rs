//! What the API server lists, and the table that follows from it. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tensorlane_proto::identity::{Fingerprint, PeerName};

use super::super::{PEERS_MAX, PeerEntry, PeerTable};
use super::object::SeenPeer;
use crate::metrics::label::{Label, LeftOut};

/// An entry, or why there is none.
type Listed = Result<Arc<PeerEntry>, LeftOut>;

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
}

impl Listing {
    /// An object is there, or has changed. Whether that makes a difference.
    pub(super) fn set(&mut self, seen: &SeenPeer) -> bool {
        let name = &seen.metadata.name;
        let old = self.by_name.get(name);
        let held = matches!(old, Some(Ok(_)));
        let new = match seen.entry() {
            // What is above the limit costs its name alone.
            Ok(_) if !held && self.entries >= PEERS_MAX => Err(LeftOut::TooMany),
            entry => entry,
        };
        let same = match (old, &new) {
            (Some(Ok(old)), Ok(new)) => **old == *new,
            (Some(Err(old)), Err(new)) => old == new,
            _ => false,
        };
        if same {
            return false;
        }
        self.entries = self.entries - usize::from(held) + usize::from(new.is_ok());
        self.by_name.insert(name.clone(), new.map(Arc::new));
        true
    }

    /// An object is gone. Whether that makes a difference.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let old = self.by_name.remove(name);
        self.entries -= usize::from(matches!(old, Some(Ok(_))));
        old.is_some()
    }

    /// The table that follows, where `before` is the one that holds now.
    pub(super) fn table(&self, before: &PeerTable) -> Made {
        table_from(&self.by_name, before)
    }
}

/// The table of what is listed.
///
/// A key that several peers claim belongs to the one that has it now, or to none of them: a status is written by the
/// peer itself, and whoever copies another's fingerprint must neither become it nor get it refused.
fn table_from(by_name: &BTreeMap<String, Listed>, before: &PeerTable) -> Made {
    let mut left_out = [0; LeftOut::ALL.len()];
    let entries = || by_name.values().filter_map(|listed| listed.as_ref().ok());
    by_name.values().filter_map(|listed| listed.as_ref().err()).for_each(|why| left_out[why.index()] += 1);
    let contested = contested(entries(), before);
    let honest = |entry: &&Arc<PeerEntry>| {
        let is_its_own = |key| contested.get(key).is_none_or(|holder| holder.as_ref() == Some(&entry.name));
        entry.fingerprints.iter().all(is_its_own)
    };
    let kept: Vec<_> = entries().filter(honest).cloned().collect();
    let dropped = entries().count() - kept.len();
    left_out[LeftOut::ContestedKey.index()] += i64::try_from(dropped).unwrap_or(i64::MAX);
    match PeerTable::of(kept) {
        Ok(table) => Made { table, left_out },
        Err(errors) => {
            // Each entry is right by itself and no key is there twice: it cannot happen, and if it does nobody is lost.
            tracing::error!(?errors, "the listed peers are no table: the last good one stays");
            Made { table: before.clone(), left_out }
        }
    }
}

/// The keys that more than one entry claims, and who has each: the peer that has it in `before`, if it still claims it.
fn contested<'a>(
    entries: impl Iterator<Item = &'a Arc<PeerEntry>> + Clone,
    before: &PeerTable,
) -> HashMap<Fingerprint, Option<PeerName>> {
    let claims = |entry: &'a Arc<PeerEntry>| entry.fingerprints.iter().map(move |key| (*key, entry));
    let mut first: HashMap<Fingerprint, &PeerEntry> = HashMap::new();
    let mut contested = HashMap::new();
    for (key, entry) in entries.clone().flat_map(claims) {
        if first.insert(key, entry).is_some() {
            contested.insert(key, None);
        }
    }
    if contested.is_empty() {
        return contested;
    }
    for (key, entry) in entries.flat_map(claims) {
        if let Some(holder) = contested.get_mut(&key)
            && before.holder_of(&key).is_some_and(|old| old.name == entry.name)
        {
            *holder = Some(entry.name.clone());
        }
    }
    contested
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
    fn what_changes_nothing_is_no_change() {
        let mut listing = listing(&[peer("a", &[1]), peer("c", &[])]);
        assert!(!listing.set(&peer("a", &[1])) && !listing.set(&peer("c", &[])));
        assert!(listing.set(&peer("a", &[1, 2])) && listing.set(&peer("a", &[])));
    }

    #[test]
    fn whoever_copies_a_key_neither_gets_it_nor_takes_it_away() {
        let before = listing(&[peer("b", &[2]), peer("c", &[3])]).table(&PeerTable::default()).table;
        let made = listing(&[peer("a", &[1, 2]), peer("b", &[2]), peer("c", &[3])]).table(&before);
        assert_eq!(names(&made), ["b", "c"]);
        assert_eq!(made.left_out[LeftOut::ContestedKey.index()], 1);
        let unknown =
            listing(&[peer("a", &[2]), peer("b", &[2]), peer("c", &[3])]).table(&PeerTable::default());
        assert_eq!(names(&unknown), ["c"], "nobody knows who had it first");
        assert_eq!(unknown.left_out[LeftOut::ContestedKey.index()], 2);
        let moved = listing(&[peer("a", &[2]), peer("b", &[4]), peer("c", &[3])]).table(&before);
        assert_eq!(names(&moved), ["a", "b", "c"], "a key that is given up is free");
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
