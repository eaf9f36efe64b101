//! Records that a set on files keeps beside its rows, so that another life of its sidecar knows what was being done.
//!
//! ```text
//!   Intent   before rows are written: which, and by which commit    CRC, length, then little-endian numbers
//!   Record   after they are: version, first row, cursor, retry id   64 bytes each, at `version % 1024`
//!   Torn     rows of dead lives that nobody has written since       as an intent
//! ```
//!
//! Bytes that are cut short, or are no record, read as none. Pure: no file is opened here.

use super::commits::{Committed, REPEATS_MAX};
use super::list::RowList;
use super::torn::Torn;
use crate::checksum::crc32c;
use crate::ledger::RetryId;

/// Bytes of a [`Record`].
pub const RECORD_BYTES: usize = 64;
/// Bytes in front of the numbers of an intent: checksum and length.
const HEAD: usize = 8;
/// Bytes that take an intent back, at its beginning.
pub const NO_INTENT: [u8; HEAD] = [0; HEAD];

/// Name of the file in `.tensorlane` that has the records of the latest commits.
pub const COMMITS_FILE: &str = "commits";
/// Number of files of intents in `.tensorlane`: as many as a set has locks.
pub const INTENTS_MAX: usize = 64;
/// Most bytes of an intent: a head, all leaves, and a row list of single rows.
pub const INTENT_BYTES_MAX: u64 = 32 << 20;

/// Name of the file in `.tensorlane` that has the intent of a commit, by the lowest lock that it holds.
#[must_use]
pub fn intent_file(lock: usize) -> String {
    format!("intent-{lock:02}")
}

/// Rows that a commit writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Version that the commit makes.
    pub version: u64,
    /// Set where it extends: the next extension then begins at the first row again.
    pub extends: bool,
    /// Leaves that it writes.
    pub leaves: Vec<usize>,
    /// Rows that it writes: first row and number, in order.
    pub pieces: Vec<(u64, u64)>,
}

/// A commit whose rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Version and first row.
    pub committed: Committed,
    /// Row that the next extension begins at.
    pub cursor: u64,
    /// The id by which it may be repeated.
    pub retry: Option<RetryId>,
}

impl Intent {
    /// The intent of a commit.
    pub fn new(version: u64, leaves: Vec<usize>, rows: &RowList) -> Self {
        let extends = matches!(rows, RowList::Round { .. });
        Self { version, extends, leaves, pieces: rows.spans().collect() }
    }

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let head = [self.version, u64::from(self.extends), self.leaves.len() as u64];
        let leaves = self.leaves.iter().map(|leaf| *leaf as u64);
        let pieces = self.pieces.iter().flat_map(|(first, count)| [*first, *count]);
        sealed(head.into_iter().chain(leaves).chain(pieces))
    }

    /// The intent of these bytes; none where it was taken back, or was cut short before a row was written.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let numbers = opened(bytes)?;
        let (&[version, extends, leaves], rest) = numbers.split_first_chunk::<3>()?;
        let (leaves, pieces) = rest.split_at_checked(usize::try_from(leaves).ok()?)?;
        let leaves = leaves.iter().map(|leaf| usize::try_from(*leaf).ok()).collect::<Option<_>>()?;
        let pieces = pieces.chunks_exact(2).filter_map(|two| Some((*two.first()?, *two.last()?))).collect();
        Some(Self { version, extends: extends != 0, leaves, pieces })
    }
}

impl Record {
    /// Offset of the record of a version, in bytes.
    pub const fn offset(version: u64) -> u64 {
        version % REPEATS_MAX as u64 * RECORD_BYTES as u64
    }

    /// Encodes it.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let retry = self.retry.unwrap_or(RetryId([0; 16]));
        let numbers =
            [self.committed.version, self.committed.first, self.cursor, u64::from(self.retry.is_some())];
        let body: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).chain(retry.0).collect();
        let mut bytes = [0; RECORD_BYTES];
        let filled = crc32c(&body).to_le_bytes().into_iter().chain([0; 4]).chain(body);
        bytes.iter_mut().zip(filled).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Every record in these bytes, by version.
    pub fn decode_all(bytes: &[u8]) -> Vec<Self> {
        let mut records: Vec<Self> = bytes.chunks_exact(RECORD_BYTES).filter_map(Self::decode).collect();
        records.sort_unstable_by_key(|record| record.committed.version);
        records
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let body = bytes.get(HEAD..HEAD + 48)?;
        let (numbers, retry) = body.split_last_chunk::<16>()?;
        let mut numbers = numbers.chunks_exact(8).filter_map(number);
        let mut next = || numbers.next();
        let (version, first, cursor, repeats) = (next()?, next()?, next()?, next()?);
        let is_whole = crc32c(body).to_le_bytes().as_slice() == bytes.get(..4)? && version > 0;
        is_whole.then(|| Self {
            committed: Committed { version, first },
            cursor,
            retry: (repeats != 0).then_some(RetryId(*retry)),
        })
    }
}

impl Torn {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        sealed(self.pieces().flat_map(|(leaf, first, count)| [leaf as u64, first, count]))
    }

    /// The torn rows of these bytes; none where they are no such record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut torn = Self::default();
        // A note of no rows, as is left where they were all written again.
        if bytes == NO_INTENT {
            return Some(torn);
        }
        for piece in opened(bytes)?.chunks_exact(3) {
            let &[leaf, first, count] = piece else { continue };
            torn.add(usize::try_from(leaf).ok()?, first, count);
        }
        Some(torn)
    }
}

/// Numbers behind their checksum and length.
pub(super) fn sealed(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut bytes = vec![0; HEAD];
    numbers.for_each(|number| bytes.extend(number.to_le_bytes()));
    // At most 16 MiB of them, and a few: see the limits of rows and leaves.
    let len = u32::try_from(bytes.len() - HEAD).unwrap_or(u32::MAX).to_le_bytes();
    let sum = crc32c(bytes.get(HEAD..).unwrap_or_default()).to_le_bytes();
    bytes.iter_mut().zip(sum.into_iter().chain(len)).for_each(|(to, from)| *to = from);
    bytes
}

pub(super) fn opened(bytes: &[u8]) -> Option<Vec<u64>> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
    let (sum, len) = head.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len.first_chunk()?);
    let body = rest.get(..usize::try_from(len).ok()?)?;
    let is_whole = len > 0 && u32::from_le_bytes(*sum) == crc32c(body);
    is_whole.then(|| body.chunks_exact(8).filter_map(number).collect())
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().copied().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent() -> Intent {
        let rows = RowList::List([7, 8, 9, 2, u64::from(u32::MAX)].into());
        Intent::new(41, vec![0, 3], &rows)
    }

    #[test]
    fn an_intent_is_read_again_and_nothing_that_is_cut_short_is_one() {
        let bytes = intent().encode();
        assert_eq!(intent().pieces, [(7, 3), (2, 1), (u64::from(u32::MAX), 1)]);
        assert_eq!(Intent::decode(&bytes), Some(intent()));
        let longer = [bytes.clone(), vec![9; 40]].concat();
        assert_eq!(Intent::decode(&longer), Some(intent()), "an older, longer one lay there");
        for len in 0..bytes.len() {
            assert_eq!(Intent::decode(&bytes[..len]), None);
        }
        for at in 0..bytes.len() {
            let mut garbled = bytes.clone();
            garbled[at] ^= 1;
            assert_eq!(Intent::decode(&garbled), None, "{at}");
        }
        let mut back = bytes;
        back[..HEAD].copy_from_slice(&NO_INTENT);
        assert_eq!(Intent::decode(&back), None);
    }

    #[test]
    fn records_are_read_by_version_and_garbled_ones_are_none() {
        let record = |version, retry| Record {
            committed: Committed { version, first: version * 3 },
            cursor: 5,
            retry,
        };
        let mut ring = vec![0; RECORD_BYTES * REPEATS_MAX];
        let made =
            [record(1, None), record(1024, Some(RetryId([7; 16]))), record(1025, Some(RetryId([0; 16])))];
        for record in &made {
            let at = usize::try_from(Record::offset(record.committed.version)).unwrap();
            ring[at..at + RECORD_BYTES].copy_from_slice(&record.encode());
        }
        assert_eq!(Record::decode_all(&ring), made[1..], "the first one has its place taken");
        ring[usize::try_from(Record::offset(1025)).unwrap() + 20] ^= 1;
        assert_eq!(Record::decode_all(&ring), made[1..2]);
        assert_eq!(Record::decode_all(&[0; 1000]), []);
    }

    #[test]
    fn torn_rows_are_read_again() {
        let mut torn = Torn::default();
        torn.add(3, 10, 5);
        torn.add(0, 1, 1);
        assert_eq!(Torn::decode(&torn.encode()), Some(torn));
        assert_eq!(Torn::decode(&[0; 64]), None);
    }
}
