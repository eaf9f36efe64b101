//! Parts of rows of mutable sets.
//!
//! ```text
//!   read rows, version 7 ── overwrite the part of each ── commit the rows, expects 7 ── VERSION_CHANGED: read again
//! ```
//! Rows travel whole. Nothing that another writer has committed meanwhile is lost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tensorlane_proto::{Failure, Layout, Range, Reason, Resolved, Selection};

use super::mutable::{Committed, MutableSet, Place, Rows};
use crate::error::{Error, Result};
use crate::wait::later;
use crate::wire;

/// Time that one read or commit has at least, where those before took the rest.
const STEP: Duration = Duration::from_secs(1);

impl MutableSet {
    /// Writes a part of rows of a leaf; the rest of the rows stays as it is. `part` has a range for each of the leading dimensions of one
    /// row; dimensions without one are written whole. The bytes are those of the part, packed, row after row.
    ///
    /// The rows are read and committed whole, on top of the version that was read. Where another writer was sooner, both are done again,
    /// until the deadline of the client. A part without elements is no commit: `None`.
    ///
    /// # Errors
    /// VERSION_CHANGED where others were sooner until the deadline, SELECTION_OUT_OF_RANGE for rows or a part that are not there or cut a
    /// byte, INVALID_ARGUMENT for another number of bytes, and as [`MutableSet::write`]. Nothing is written then.
    pub fn write_part(
        &self,
        key: &str,
        rows: &Selection,
        part: &[Range],
        bytes: &[u8],
    ) -> Result<Option<Committed>> {
        let until = later(self.client().deadline());
        loop {
            let left = until.saturating_duration_since(Instant::now()).max(STEP);
            let set = self.client().with_deadline(left).mutable_set(self.info());
            let Rows { version, leaves } = set.read(&[key], rows)?;
            let (_, read) = leaves.into_iter().next().ok_or_else(|| wire::missing("a leaf"))?;
            let layout = read.descriptor().layout.packed();
            let resolved = resolve(part, &layout)?;
            check_bytes(key, &resolved, bytes)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let mut whole = read.to_vec();
            // Given back before the new rows need room.
            drop(read);
            overwrite(&mut whole, &resolved, bytes)?;
            let count = layout.shape().first().copied().unwrap_or(0);
            let written = BTreeMap::from([(key, &whole[..])]);
            match set.write(&Place::Rows(rows.clone()), count, &written, Some(version)) {
                Err(error) if error.reason() == Some(Reason::VersionChanged) && Instant::now() < until => {}
                outcome => return outcome.map(Some),
            }
        }
    }
}

/// The part of rows of this layout, of which the first dimension counts the rows.
fn resolve(part: &[Range], layout: &Layout) -> Result<Resolved> {
    let ranges = std::iter::once(Range::FULL).chain(part.iter().copied()).collect();
    Selection::Ranges(ranges).resolve(layout).map_err(|error| Failure::from(error).into())
}

fn check_bytes(key: &str, part: &Resolved, bytes: &[u8]) -> Result<()> {
    if bytes.len() as u64 == part.bytes() {
        return Ok(());
    }
    let what = format!(
        "{} bytes for a part of {key} that is {} and has {}; give it exactly as many",
        bytes.len(),
        part.packed_layout(),
        part.bytes()
    );
    Err(Error::invalid(what))
}

/// Writes the bytes of a part to their places among those of whole rows.
fn overwrite(whole: &mut [u8], part: &Resolved, mut bytes: &[u8]) -> Result<()> {
    let outside = || Error::protocol("rows of another length than their layout says");
    for (offset, length) in part.runs() {
        // Runs lie in a tensor that is in memory here.
        let (offset, length) = (offset as usize, length as usize);
        let place = whole.get_mut(offset..offset + length).ok_or_else(outside)?;
        let (run, rest) = bytes.split_at_checked(length).ok_or_else(outside)?;
        place.copy_from_slice(run);
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::{DType, Shape};

    use super::*;

    fn layout(dtype: DType, shape: &[u64]) -> Layout {
        Layout::contiguous(dtype, Shape::new(shape).unwrap()).unwrap()
    }

    #[test]
    fn a_part_is_written_to_each_row_and_the_rest_stays() {
        let mut whole = vec![0; 2 * 3 * 4];
        let layout = layout(DType::U8, &[2, 3, 4]);
        let part = resolve(&[Range::new(1, 3), Range::FULL.step_by(2)], &layout).unwrap();
        let bytes: Vec<u8> = (1..=8).collect();
        check_bytes("x", &part, &bytes).unwrap();
        overwrite(&mut whole, &part, &bytes).unwrap();
        let first = [0, 0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0];
        let second = [0, 0, 0, 0, 5, 0, 6, 0, 7, 0, 8, 0];
        assert_eq!(whole, [first, second].concat());
    }

    #[test]
    fn a_part_of_another_length_or_place_is_refused_with_why() {
        let layout = layout(DType::U16, &[2, 3]);
        let part = resolve(&[Range::new(0, 2)], &layout).unwrap();
        let refused = check_bytes("x", &part, &[0; 7]).unwrap_err().to_string();
        assert!(refused.contains("7 bytes for a part of x that is u16[2, 2] and has 8"), "{refused}");
        let outside = resolve(&[Range::new(0, 4)], &layout).unwrap_err();
        assert_eq!(outside.reason(), Some(Reason::SelectionOutOfRange));
        let many = resolve(&[Range::FULL, Range::FULL], &layout).unwrap_err();
        assert_eq!(many.reason(), Some(Reason::SelectionOutOfRange));
        assert!(overwrite(&mut [0; 4], &part, &[0; 8]).is_err());
    }
}
