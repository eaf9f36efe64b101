//! The peer table: whole, consistent, and never changed once made.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::{ADDRESSES_MAX, FINGERPRINTS_MAX, Fingerprint, PEERS_MAX, PeerName};

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEntry {
    /// Name of the peer, and of no other one.
    pub name: PeerName,
    /// Addresses on which it listens, `host:port`; none for a peer that only connects to others.
    pub addresses: Vec<String>,
    /// Fingerprints of its keys: one, or two while a key is rotated.
    pub fingerprints: Vec<Fingerprint>,
    /// The node it is on, where known. A hint: being on one node is proven by doing.
    pub node: Option<String>,
    /// True until Kubernetes has told an IP of its pod: nobody can dial it yet.
    pub awaits_ip: bool,
}

/// As it stands in the peers file, in one line of YAML; without the node.
impl fmt::Display for PeerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fingerprints: Vec<String> = self.fingerprints.iter().map(ToString::to_string).collect();
        // Quoted: a name such as 0 or true would be read as something else.
        let (name, addresses) = (self.name.as_str(), &self.addresses);
        write!(f, "{{name: {name:?}, addresses: {addresses:?}, fingerprints: {fingerprints:?}}}")
    }
}

/// The peers of the exchange at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerTable {
    by_name: BTreeMap<PeerName, Arc<PeerEntry>>,
    /// Peers that say that a key is theirs: one peer, unless somebody copied it.
    by_fingerprint: HashMap<Fingerprint, Vec<Arc<PeerEntry>>>,
    /// Peers by the addresses that they list as numbers.
    by_address: HashMap<IpAddr, Vec<Arc<PeerEntry>>>,
}

/// Reason for which entries are no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// A peer without a key, or with too many.
    #[error("{peer} has {count} fingerprints; one is needed, and a second one while a key is rotated")]
    Fingerprints {
        /// Peer whose they are.
        peer: PeerName,
        /// Number of them.
        count: usize,
    },
    /// Too many addresses.
    #[error("{peer} has {count} addresses; at most {ADDRESSES_MAX} are taken")]
    Addresses {
        /// Peer whose they are.
        peer: PeerName,
        /// Number of them.
        count: usize,
    },
    /// Name given twice.
    #[error("{peer} is listed twice")]
    NameTwice {
        /// Name that is listed twice.
        peer: PeerName,
    },
    /// Key of two peers: who it is could not be said.
    #[error("{fingerprint} is listed for {first} and again for {second}")]
    FingerprintTwice {
        /// The key.
        fingerprint: Fingerprint,
        /// The first that has it.
        first: PeerName,
        /// The next one.
        second: PeerName,
    },
    /// Too many peers.
    #[error("{count} peers are listed; at most {PEERS_MAX} are taken")]
    Peers {
        /// Number of them.
        count: usize,
    },
}

impl PeerTable {
    /// A table of these entries.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn new(entries: Vec<PeerEntry>) -> Result<PeerTable, Vec<TableError>> {
        let table = PeerTable::of_claims(entries.into_iter().map(Arc::new).collect())?;
        let twice = |(fingerprint, peers): (Fingerprint, &[Arc<PeerEntry>])| TableError::FingerprintTwice {
            fingerprint,
            first: peers[0].name.clone(),
            second: peers[1].name.clone(),
        };
        let errors: Vec<_> = table.contested().map(twice).collect();
        if errors.is_empty() { Ok(table) } else { Err(errors) }
    }

    /// A table of entries that the peers wrote themselves, of which some may claim the key of another one. Nobody is left
    /// out for that: whoever proves the key in a handshake says which of the claimants it is.
    ///
    /// # Errors
    /// Everything else that is wrong with them.
    pub(super) fn of_claims(entries: Vec<Arc<PeerEntry>>) -> Result<PeerTable, Vec<TableError>> {
        if entries.len() > PEERS_MAX {
            return Err(vec![TableError::Peers { count: entries.len() }]);
        }
        let mut table = PeerTable::default();
        let mut errors = Vec::new();
        for entry in entries {
            table.add(&entry, &mut errors);
        }
        if errors.is_empty() { Ok(table) } else { Err(errors) }
    }

    fn add(&mut self, entry: &Arc<PeerEntry>, errors: &mut Vec<TableError>) {
        let peer = || entry.name.clone();
        let (keys, addresses) = (entry.fingerprints.len(), entry.addresses.len());
        if !(1..=FINGERPRINTS_MAX).contains(&keys) {
            errors.push(TableError::Fingerprints { peer: peer(), count: keys });
        }
        if addresses > ADDRESSES_MAX {
            errors.push(TableError::Addresses { peer: peer(), count: addresses });
        }
        for &fingerprint in &entry.fingerprints {
            let claimants = self.by_fingerprint.entry(fingerprint).or_default();
            // A key that one entry lists twice is claimed once.
            if !claimants.iter().any(|other| Arc::ptr_eq(other, entry)) {
                claimants.push(Arc::clone(entry));
            }
        }
        let numbers = entry.addresses.iter().filter_map(|address| address.parse::<SocketAddr>().ok());
        for address in numbers.map(|address| address.ip().to_canonical()) {
            let there = self.by_address.entry(address).or_default();
            if !there.iter().any(|other| Arc::ptr_eq(other, entry)) {
                there.push(Arc::clone(entry));
            }
        }
        if self.by_name.insert(peer(), Arc::clone(entry)).is_some() {
            errors.push(TableError::NameTwice { peer: peer() });
        }
    }

    /// The peer of a name.
    pub fn peer(&self, name: &PeerName) -> Option<&Arc<PeerEntry>> {
        self.by_name.get(name)
    }

    /// The peers that say that the key of this fingerprint is theirs: at most one, unless somebody copied it.
    pub fn claimants(&self, fingerprint: &Fingerprint) -> &[Arc<PeerEntry>] {
        self.by_fingerprint.get(fingerprint).map_or(&[], Vec::as_slice)
    }

    /// The peers that list this address, in its canonical form. Those that list a name of DNS are not found so.
    pub fn at(&self, address: &IpAddr) -> &[Arc<PeerEntry>] {
        self.by_address.get(address).map_or(&[], Vec::as_slice)
    }

    /// The keys that several peers claim, and who does.
    pub fn contested(&self) -> impl Iterator<Item = (Fingerprint, &[Arc<PeerEntry>])> {
        let claims = self.by_fingerprint.iter().filter(|(_, claimants)| claimants.len() > 1);
        claims.map(|(fingerprint, claimants)| (*fingerprint, claimants.as_slice()))
    }

    /// All peers, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PeerEntry>> {
        self.by_name.values()
    }

    /// Number of peers.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns whether nobody is in the exchange.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, keys: &[u8]) -> PeerEntry {
        PeerEntry {
            name: name.parse().unwrap(),
            addresses: vec!["a:1".to_owned()],
            fingerprints: keys.iter().map(|&key| Fingerprint([key; 32])).collect(),
            node: None,
            awaits_ip: false,
        }
    }

    #[test]
    fn a_peer_is_found_by_its_name_and_by_each_of_its_keys() {
        let table = PeerTable::new(vec![entry("b", &[1, 2]), entry("a", &[3])]).unwrap();
        let name = |key| table.claimants(&Fingerprint([key; 32])).first().map(|entry| entry.name.as_str());
        assert_eq!((name(1), name(2), name(3), name(4)), (Some("b"), Some("b"), Some("a"), None));
        assert_eq!(table.peer(&"a".parse().unwrap()).unwrap().fingerprints, [Fingerprint([3; 32])]);
        let names: Vec<_> = table.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!((names, table.len(), table.is_empty()), (vec!["a", "b"], 2, false));
    }

    #[test]
    fn a_peer_is_found_by_its_addresses_in_either_form_and_not_by_a_name_of_dns() {
        let at = |name: &str, key, addresses: &[&str]| PeerEntry {
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            ..entry(name, &[key])
        };
        let twice = ["192.0.2.1:1", "192.0.2.1:2", "[2001:db8::1]:1"];
        let table =
            PeerTable::new(vec![at("a", 1, &twice), at("b", 2, &["[::ffff:192.0.2.1]:9", "b.example:1"])])
                .unwrap();
        let names = |address: &str| -> Vec<&str> {
            table.at(&address.parse().unwrap()).iter().map(|entry| entry.name.as_str()).collect()
        };
        assert_eq!((names("192.0.2.1"), names("2001:db8::1")), (vec!["a", "b"], vec!["a"]));
        assert!(names("192.0.2.2").is_empty());
    }

    #[test]
    fn entries_that_contradict_each_other_are_refused_all_at_once() {
        let mut crowded = entry("d", &[7]);
        crowded.addresses = vec!["a:1".to_owned(); 9];
        let entries = vec![entry("a", &[1]), entry("c", &[]), entry("a", &[4, 5, 6]), crowded];
        let errors: Vec<_> = PeerTable::new(entries).unwrap_err().iter().map(ToString::to_string).collect();
        for part in ["c has 0", "a has 3", "a is listed twice", "d has 9 addresses"] {
            assert!(errors.iter().any(|error| error.contains(part)), "{part} is not in {errors:?}");
        }
        assert_eq!(errors.len(), 4);
    }

    #[test]
    fn a_key_of_two_peers_is_a_mistake_in_a_file_and_a_claim_among_peers_that_speak_for_themselves() {
        let entries = vec![entry("a", &[1]), entry("b", &[1]), entry("c", &[2, 2])];
        let errors = PeerTable::new(entries.clone()).unwrap_err();
        assert_eq!(errors.len(), 1);
        assert!(errors[0].to_string().contains("for a and again for b"), "{errors:?}");
        let table = PeerTable::of_claims(entries.into_iter().map(Arc::new).collect()).unwrap();
        let contested: Vec<_> = table.contested().map(|(key, peers)| (key, peers.len())).collect();
        assert_eq!((table.len(), contested), (3, vec![(Fingerprint([1; 32]), 2)]));
    }
}
