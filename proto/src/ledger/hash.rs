//! A hash for keys that are integers of our own making.
//!
//! Two multiplications for each word instead of SipHash's rounds: a lease is found in a few nanoseconds. Whoever chooses
//! such keys could make them collide, so it serves tensor ids and holders, which this sidecar numbers itself. Keys that
//! come from outside stay with the standard library's keyed hash (retry ids, tickets), or with a seeded one that is faster where
//! those who choose them have proven who they are (origins).

use std::hash::{BuildHasherDefault, Hasher};

/// Builds [`MixHasher`]s.
pub type BuildMix = BuildHasherDefault<MixHasher>;

/// The finisher of splitmix64: every bit of the key reaches every bit of the hash. One multiplication alone will not do:
/// ids in a row then fall into a ninth of the buckets.
#[derive(Default)]
pub struct MixHasher(u64);

/// 2⁶⁴ divided by the golden ratio, made odd: keeps the words of a key apart.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for MixHasher {
    fn write_u64(&mut self, word: u64) {
        let mut mixed = self.0.wrapping_add(GOLDEN) ^ word;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = mixed ^ (mixed >> 31);
    }

    /// Takes an enum's discriminant, which arrives here.
    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;
    use crate::ledger::{Holder, PeerSlot, SessionId, TensorId};

    /// Counts what a hash table looks at: low bits for the bucket, high bits for the tag.
    fn buckets(hashes: impl Iterator<Item = u64>) -> (usize, usize) {
        let (mut low, mut high) = (HashSet::new(), HashSet::new());
        for hash in hashes {
            low.insert(hash & 0xffff);
            high.insert(hash >> 57);
        }
        (low.len(), high.len())
    }

    #[test]
    fn ids_in_a_row_and_generations_in_a_row_spread() {
        let build = BuildMix::default();
        let slots = buckets((0..65536).map(|slot| build.hash_one(TensorId::new(1, slot))));
        let generations = buckets((0..65536).map(|g| build.hash_one(TensorId::new(g, 7))));
        // A perfectly random hash fills 63 % of as many buckets as keys.
        assert!(slots.0 > 36_000 && slots.1 == 128, "{slots:?}");
        assert!(generations.0 > 36_000 && generations.1 == 128, "{generations:?}");
    }

    #[test]
    fn a_session_and_a_peer_of_one_number_differ() {
        let build = BuildMix::default();
        for n in 0..1000 {
            assert_ne!(
                build.hash_one(Holder::Session(SessionId(n))),
                build.hash_one(Holder::Peer(PeerSlot(n)))
            );
        }
    }
}
