//! Entries of the journal of a set on files: what a commit writes, and its bytes, in front of which a head says that they are whole.
//!
//! ```text
//!   head    run, version, first row, cursor, retry id, lengths, checksum      88 bytes, written last
//!   plan    leaves and rows, as an [`Intent`]
//!   data    new rows, packed, one leaf after the other in the order of the plan
//! ```
//!
//! A journal begins with its first entry, and ends before the first bytes that are not an entry of the same run with a later
//! version. So what an earlier run left behind is none of it, however it is aligned. Pure: no file is opened here.

use super::commits::Committed;
use super::layout::SetLayout;
use super::record::{Intent, Record, opened, sealed};
use crate::failure::{Failure, Reason};
use crate::ledger::RetryId;

/// Name of the file in `.tensorlane` that is the journal.
pub const JOURNAL_FILE: &str = "journal";
/// Bytes of the head of an entry.
pub const JOURNAL_HEAD_BYTES: usize = 88;

/// Head of an entry of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// Random number of the run: from one emptying of the journal to the next one.
    pub run: u64,
    /// Record of the commit.
    pub record: Record,
    /// Bytes of the plan behind the head.
    pub plan_bytes: u64,
    /// Bytes of the new rows behind the plan.
    pub data_bytes: u64,
    /// Checksum of both.
    pub sum: u32,
}

// === impl JournalHead ===

impl JournalHead {
    /// Bytes of the whole entry; none where no file is that long.
    pub fn entry_bytes(&self) -> Option<u64> {
        (JOURNAL_HEAD_BYTES as u64).checked_add(self.plan_bytes)?.checked_add(self.data_bytes)
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let Record { committed, cursor, retry } = self.record;
        let [front, back] = halves(retry.unwrap_or(RetryId([0; 16])));
        let numbers = [self.run, committed.version, committed.first, cursor, u64::from(retry.is_some())];
        let rest = [front, back, self.plan_bytes, self.data_bytes, self.sum.into()];
        sealed(numbers.into_iter().chain(rest))
    }

    /// The head of these bytes; none where they are cut short, or are no head.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let numbers = opened(bytes.get(..JOURNAL_HEAD_BYTES)?)?;
        let numbers: [u64; 10] = numbers.try_into().ok()?;
        let [run, version, first, cursor, repeats, front, back, plan_bytes, data_bytes, sum] = numbers;
        let retry = (repeats != 0).then(|| joined(front, back));
        let record = Record { committed: Committed { version, first }, cursor, retry };
        Some(Self { run, record, plan_bytes, data_bytes, sum: u32::try_from(sum).ok()? })
    }

    /// Returns whether it follows an entry of its journal; the first entry follows none.
    pub fn follows(&self, before: Option<&Self>) -> bool {
        let is_later = |before: &Self| {
            self.run == before.run && self.record.committed.version > before.record.committed.version
        };
        before.is_none_or(is_later)
    }
}

/// Proves that an entry writes rows that a set has, all of them.
///
/// # Errors
/// UNSUPPORTED_FORMAT where it is an entry of another layout.
pub fn check_journal_entry(head: &JournalHead, plan: &Intent, layout: &SetLayout) -> Result<(), Failure> {
    let count = plan.pieces.iter().try_fold(0_u64, |sum, (_, count)| sum.checked_add(*count));
    let is_inside =
        |(first, count): &(u64, u64)| first.checked_add(*count).is_some_and(|end| end <= layout.rows());
    let bytes = |leaf: &usize| layout.leaves().get(*leaf)?.row_bytes.checked_mul(count?);
    let due = plan.leaves.iter().try_fold(0_u64, |sum, leaf| sum.checked_add(bytes(leaf)?));
    if due == Some(head.data_bytes) && plan.pieces.iter().all(is_inside) {
        return Ok(());
    }
    let version = head.record.committed.version;
    let what =
        format!("the commit {version} in the journal writes rows or leaves that the directory has not");
    Err(Failure::new(Reason::UnsupportedFormat, what).with("version", version))
}

fn halves(retry: RetryId) -> [u64; 2] {
    let number = u128::from_le_bytes(retry.0);
    // Both halves have 64 bits.
    [number as u64, (number >> 64) as u64]
}

fn joined(front: u64, back: u64) -> RetryId {
    RetryId((u128::from(front) | u128::from(back) << 64).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::crc32c;

    fn head(run: u64, version: u64) -> JournalHead {
        let committed = Committed { version, first: 7 };
        let retry = Some(RetryId(std::array::from_fn(|at| at as u8)));
        let record = Record { committed, cursor: 3, retry };
        JournalHead { run, record, plan_bytes: 4, data_bytes: 4, sum: crc32c(b"planrows") }
    }

    #[test]
    fn a_head_is_read_again_and_nothing_that_is_cut_or_garbled_is_one() {
        let bytes = head(5, 9).encode();
        assert_eq!((bytes.len(), JournalHead::decode(&bytes)), (JOURNAL_HEAD_BYTES, Some(head(5, 9))));
        assert_eq!(head(5, 9).entry_bytes(), Some(96));
        for at in 0..bytes.len() {
            assert_eq!(JournalHead::decode(&bytes[..at]), None);
            let mut garbled = bytes.clone();
            garbled[at] ^= 1;
            assert_eq!(JournalHead::decode(&garbled), None, "{at}");
        }
    }

    #[test]
    fn an_entry_follows_those_of_its_run_with_earlier_versions() {
        assert!(head(5, 9).follows(None) && head(5, 9).follows(Some(&head(5, 8))));
        assert!(!head(5, 9).follows(Some(&head(5, 9))) && !head(5, 9).follows(Some(&head(4, 8))));
    }

    #[test]
    fn an_entry_of_another_layout_is_refused() {
        use crate::DType;
        let leaf = |key: &str, row_shape: &[u64]| crate::generated::SetLeaf {
            key: key.to_owned(),
            dtype: DType::U8.code().into(),
            row_shape: row_shape.to_vec(),
        };
        let layout = SetLayout::new(&[leaf("a", &[2]), leaf("b", &[])], 10).unwrap();
        let plan = |leaves: &[usize], pieces: &[(u64, u64)]| Intent {
            version: 9,
            extends: false,
            leaves: leaves.to_vec(),
            pieces: pieces.to_vec(),
        };
        let check = |plan: &Intent, bytes: u64| {
            check_journal_entry(&JournalHead { data_bytes: bytes, ..head(5, 9) }, plan, &layout)
        };
        assert!(check(&plan(&[0, 1], &[(8, 2), (0, 1)]), 9).is_ok());
        for (leaves, pieces, bytes) in [
            (&[0, 1][..], &[(9, 2), (0, 1)][..], 9),
            (&[0, 2], &[(0, 3)], 9),
            (&[0, 1], &[(0, 3)], 8),
            (&[0], &[(u64::MAX, 2)], 4),
            (&[0], &[(0, u64::MAX), (0, 1)], 0),
        ] {
            let refused = check(&plan(leaves, pieces), bytes).unwrap_err();
            assert_eq!(refused.reason, Reason::UnsupportedFormat, "{leaves:?} {pieces:?}");
        }
    }
}
