//! Files of a set as its journal sees them: a disk, or in tests one that loses power.

use tensorlane_proto::failure::Failure;
use tensorlane_proto::rows::RowList;

use super::descriptors::Which;
use super::rows::NewBytes;
use crate::exchange::rows::memory::internal;

/// Files whose writes are on the disk once they are synced, and in any order and any part before that.
pub(super) trait Medium {
    /// Takes blocks, so that a write there meets no full disk.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED.
    fn reserve(&self, which: Which, offset: u64, bytes: u64) -> Result<(), Failure>;

    /// Writes bytes.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED: some may be written then.
    fn write(&self, which: Which, offset: u64, bytes: &[u8]) -> Result<(), Failure>;

    /// Writes the new rows of a leaf, whose file is looked up once for all of them.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED: some may be written then.
    fn write_leaf(&self, rows: &RowList, part: &NewBytes<'_>) -> Result<(), Failure>;

    /// Reads bytes, fewer where the file ends, and returns how many.
    ///
    /// # Errors
    /// STORAGE_FAILED.
    fn read(&self, which: Which, offset: u64, into: &mut [u8]) -> Result<usize, Failure>;

    /// Brings everything that was written to the disk.
    ///
    /// # Errors
    /// STORAGE_FULL, STORAGE_FAILED: nobody knows then what is there.
    fn sync(&self, which: Which) -> Result<(), Failure>;
}

/// Writes rows of leaves.
///
/// # Errors
/// STORAGE_FULL, STORAGE_FAILED: some may be written then.
pub(super) fn write_rows(on: &dyn Medium, rows: &RowList, parts: &[NewBytes<'_>]) -> Result<(), Failure> {
    parts.iter().try_for_each(|part| on.write_leaf(rows, part))
}

/// Hands the new rows of a leaf to `write`, a span at a time, each with its offset in the file.
///
/// # Errors
/// That of `write`.
pub(super) fn each_span(
    rows: &RowList,
    (_, leaf, bytes): &NewBytes<'_>,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut rest = *bytes;
    for (first, count) in rows.spans() {
        let bytes = usize::try_from(count * leaf.row_bytes).unwrap_or(usize::MAX);
        let (now, later) = rest.split_at_checked(bytes).ok_or_else(|| internal(&"too few new rows"))?;
        write(first * leaf.row_bytes, now)?;
        rest = later;
    }
    Ok(())
}
