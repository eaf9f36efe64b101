//! BLAKE3 hashes of a tensor's packed bytes, granule by granule: made by its owner when a reader first asks for them, and kept with
//! the tensor. They prove bytes that others send. Knows no wire.

use std::ops::Range;

use parking_lot::Mutex;
use tensorlane_proto::frame::HASH_BYTES;

pub use crate::sums::GRANULE;

/// The BLAKE3 hash of the bytes of a granule.
pub type Hash = [u8; HASH_BYTES];

/// Hashes of bytes that lie together, of which each granule has one.
pub fn of_granules(bytes: &[u8]) -> Vec<Hash> {
    bytes.chunks(GRANULE as usize).map(|granule| *blake3::hash(granule).as_bytes()).collect()
}

/// Hash of bytes that lie in parts.
pub fn of_parts(parts: &[&[u8]]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// The hash of each granule of a tensor, as far as somebody has made it. Costs 33 bytes for each granule from when it is first asked.
#[derive(Debug)]
pub struct Hashes(Mutex<Box<[Option<Hash>]>>);

impl Hashes {
    /// Of a tensor of so many packed bytes, none of which are hashed yet.
    pub fn new(bytes: u64) -> Self {
        Self(Mutex::new((0..bytes.div_ceil(GRANULE)).map(|_| None).collect()))
    }

    /// Number of granules.
    pub fn granules(&self) -> u64 {
        self.0.lock().len() as u64
    }

    /// The hashes of these granules one after the other; none where one of them is not known, or not there.
    pub fn of(&self, granules: &Range<u64>) -> Option<Vec<u8>> {
        let known = self.0.lock();
        let known = known.get(usize::try_from(granules.start).ok()?..usize::try_from(granules.end).ok()?)?;
        let mut all = Vec::with_capacity(known.len() * HASH_BYTES);
        for hash in known {
            all.extend_from_slice(hash.as_ref()?);
        }
        Some(all)
    }

    /// Returns whether the hash of a granule is known.
    pub fn knows(&self, granule: u64) -> bool {
        self.0.lock().get(granule as usize).is_some_and(Option::is_some)
    }

    /// Learns the hash of a granule.
    pub fn learn(&self, granule: u64, hash: Hash) {
        if let Some(known) = self.0.lock().get_mut(granule as usize) {
            *known = Some(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_said_of_what_is_known_and_of_nothing_else() {
        let content: Vec<u8> = (0..2 * GRANULE + 5).map(|at| (at * 7 + at / 251) as u8).collect();
        let (hashes, all) = (Hashes::new(content.len() as u64), of_granules(&content));
        assert_eq!((hashes.granules(), all.len()), (3, 3));
        assert_eq!(hashes.of(&(0..1)), None);
        for granule in [0, 2] {
            hashes.learn(granule, all[granule as usize]);
        }
        assert!(hashes.knows(0) && !hashes.knows(1) && !hashes.knows(3));
        assert_eq!(hashes.of(&(0..2)), None);
        assert_eq!(hashes.of(&(2..3)), Some(all[2].to_vec()));
        hashes.learn(1, all[1]);
        assert_eq!(hashes.of(&(0..3)), Some(all.concat()));
        let (beyond, backwards) = (0..4, Range { start: 2, end: 1 });
        assert!(hashes.of(&beyond).is_none() && hashes.of(&backwards).is_none());
    }

    #[test]
    fn a_hash_is_that_of_the_bytes_however_they_lie() {
        let content: Vec<u8> = (0..100_000u32).map(|at| (at * 7) as u8).collect();
        let (first, rest) = content.split_at(777);
        assert_eq!(vec![of_parts(&[first, rest])], of_granules(&content));
        assert_ne!(of_parts(&[rest, first]), of_parts(&[first, rest]));
    }
}
