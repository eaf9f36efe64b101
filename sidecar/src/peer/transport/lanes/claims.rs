//! Granules that others than the owner have sent, and the owner's word for what they must be. Plain data: it knows no lane, no
//! landing and no clock.
//!
//! ```text
//!   came (its hash) ──here──> judged: the owner has said the hash ──same──> proven
//!                                          │                     └─other─> forged
//!                                          └──not yet──> waits ──said──> judged
//! ```
//! What the owner itself sent makes no claim, and needs no proof.

use std::collections::BTreeMap;
use std::ops::Range;

use tensorlane_proto::frame::{HASH_BYTES, PROOFS_MAX};

use crate::hashes::Hash;

/// Verdict on a granule that is here.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict<B> {
    /// The bytes are the owner's.
    Proven,
    /// The owner has not said yet what it must be.
    Waits,
    /// The bytes are not the owner's; who sent them.
    Forged(B),
    /// Nobody will say what it must be: it is to come from the owner.
    Worthless,
}

struct Claim<B> {
    hash: Hash,
    by: B,
    /// The granule came whole, and only the owner's word is missing.
    waits: bool,
}

/// Claims of a pull, and the hashes that its owner said. Each costs some 100 bytes, each hash 32.
pub(super) struct Claims<B> {
    /// The first granule that was to be proven, once that is known.
    from: Option<u64>,
    /// Hashes of that and those that follow.
    said: Vec<Hash>,
    claims: BTreeMap<u64, Claim<B>>,
    waiting: u64,
    /// Set if the owner does not say hashes.
    refused: bool,
}

impl<B> Default for Claims<B> {
    fn default() -> Self {
        Self { from: None, said: Vec::new(), claims: BTreeMap::new(), waiting: 0, refused: false }
    }
}

impl<B: Clone> Claims<B> {
    /// Somebody has sent a granule that hashes to this.
    pub(super) fn came(&mut self, granule: u64, hash: Hash, by: B) {
        self.forget(granule..granule + 1);
        self.claims.insert(granule, Claim { hash, by, waits: false });
    }

    /// Forgets granules, which do not count any more.
    pub(super) fn forget(&mut self, granules: Range<u64>) {
        for granule in granules {
            if self.claims.remove(&granule).is_some_and(|claim| claim.waits) {
                self.waiting -= 1;
            }
        }
    }

    /// A granule is here, whoever sent it.
    pub(super) fn judge(&mut self, granule: u64) -> Verdict<B> {
        let said = self.said_of(granule);
        let Some(claim) = self.claims.get_mut(&granule) else { return Verdict::Proven };
        let verdict = match said {
            Some(said) if said == claim.hash => Verdict::Proven,
            Some(_) => Verdict::Forged(claim.by.clone()),
            None if self.refused => Verdict::Worthless,
            None => {
                self.waiting += u64::from(!std::mem::replace(&mut claim.waits, true));
                return Verdict::Waits;
            }
        };
        self.forget(granule..granule + 1);
        verdict
    }

    /// Number of granules that wait for the owner's word.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// The granules of a tensor of so many whose hashes are to be said next. `from`: all before it is here and proven.
    pub(super) fn next(&mut self, from: u64, count: u64) -> Option<Range<u64>> {
        let first = *self.from.get_or_insert(from) + self.said.len() as u64;
        let next = first..count.min(first + u64::from(PROOFS_MAX));
        (!self.refused && !next.is_empty()).then_some(next)
    }

    /// Returns whether every granule of a tensor of so many can be proven that is not here.
    pub(super) fn are_all_said(&self, count: u64) -> bool {
        self.from.is_some_and(|from| from + self.said.len() as u64 >= count)
    }

    /// The owner says the hashes that were to be said next. Granules that waited for them, to be judged anew.
    pub(super) fn say(&mut self, hashes: &[u8]) -> Vec<u64> {
        let before = self.said.len() as u64;
        self.said.extend(hashes.as_chunks::<HASH_BYTES>().0);
        let from = self.from.unwrap_or_default();
        let waiting = self.claims.range(from + before..from + self.said.len() as u64);
        waiting.filter(|(_, claim)| claim.waits).map(|(granule, _)| *granule).collect()
    }

    /// The owner does not say any more. Granules that waited for it.
    pub(super) fn refuse(&mut self) -> Vec<u64> {
        self.refused = true;
        self.claims.iter().filter(|(_, claim)| claim.waits).map(|(granule, _)| *granule).collect()
    }

    fn said_of(&self, granule: u64) -> Option<Hash> {
        let at = granule.checked_sub(self.from?)?;
        self.said.get(usize::try_from(at).ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(of: u8) -> Hash {
        [of; HASH_BYTES]
    }

    fn said(hashes: &[u8]) -> Vec<u8> {
        hashes.iter().flat_map(|of| hash(*of)).collect()
    }

    #[test]
    fn what_the_owner_sent_is_proven_and_what_others_sent_waits_for_its_word() {
        let mut claims = Claims::default();
        assert_eq!(claims.judge(0), Verdict::Proven, "nobody else sent it");
        claims.came(1, hash(1), "b");
        claims.came(2, hash(9), "b");
        claims.came(4, hash(4), "c");
        assert_eq!(
            (claims.judge(1), claims.judge(2), claims.judge(2)),
            (Verdict::Waits, Verdict::Waits, Verdict::Waits)
        );
        assert_eq!(claims.waiting(), 2);
        assert_eq!(claims.next(1, 5), Some(1..5));
        assert!(!claims.are_all_said(5));
        assert_eq!(claims.say(&said(&[1, 2])), [1, 2]);
        assert_eq!((claims.judge(1), claims.judge(2)), (Verdict::Proven, Verdict::Forged("b")));
        assert_eq!((claims.waiting(), claims.next(1, 5)), (0, Some(3..5)));
        // It comes again, from the owner.
        assert_eq!(claims.judge(2), Verdict::Proven);
        assert!(claims.say(&said(&[3, 4])).is_empty(), "the other one is not here yet");
        assert!(claims.are_all_said(5) && claims.next(1, 5).is_none());
        assert_eq!(claims.judge(4), Verdict::Proven);
    }

    #[test]
    fn hashes_are_asked_for_in_order_and_not_too_many_at_once() {
        let mut claims: Claims<()> = Claims::default();
        let most = u64::from(PROOFS_MAX);
        assert_eq!(claims.next(3, 1000), Some(3..3 + most));
        assert_eq!(claims.next(7, 1000), Some(3..3 + most), "from where it was first asked");
        claims.say(&vec![0; PROOFS_MAX as usize * HASH_BYTES]);
        assert_eq!(claims.next(3, 1000), Some(3 + most..3 + 2 * most));
        assert_eq!(claims.next(3, 5 + most), Some(3 + most..5 + most));
    }

    #[test]
    fn what_nobody_proves_is_worthless_and_what_was_forgotten_is_the_owners() {
        let mut claims = Claims::default();
        claims.came(0, hash(1), "b");
        claims.came(1, hash(1), "b");
        assert_eq!(claims.judge(0), Verdict::Waits);
        assert_eq!(claims.refuse(), [0]);
        assert_eq!(
            (claims.judge(0), claims.judge(1), claims.waiting()),
            (Verdict::Worthless, Verdict::Worthless, 0)
        );
        claims.came(2, hash(1), "b");
        claims.forget(2..3);
        assert_eq!(claims.judge(2), Verdict::Proven);
        assert_eq!(claims.next(0, 5), None);
    }
}
