//! A mutable set of one leaf whose rows are told apart, and rows that are picked at random.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};
use tensorlane_benches::pairs::seconds;
use tensorlane_benches::tensors;
use tensorlane_client::Client;
use tensorlane_client::set::mutable::{MutableSet, Place, SetSpec};
use tensorlane_proto::{DType, Range, Selection};

pub(super) const KEY: &str = "rows";
/// Bytes of a commit that fills the set.
const FILL_BYTES: u64 = 64 << 20;

/// Shape of such a set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) rows: u64,
    pub(super) row_bytes: u64,
}

impl Table {
    pub(super) const fn bytes(self) -> u64 {
        self.rows * self.row_bytes
    }

    /// The set of that name.
    pub(super) fn spec(self, name: &str) -> SetSpec {
        SetSpec::new(name, self.rows).leaf(KEY, DType::U8, &[self.row_bytes])
    }

    /// Makes it; `writers` may write it, too.
    pub(super) fn create(self, client: &Client, name: &str, writers: &[&str]) -> Result<MutableSet> {
        Ok(client.create_set(&self.spec(name).writers(writers))?)
    }

    /// Writes every row, each with bytes of its own.
    pub(super) fn fill(self, set: &MutableSet) -> Result<()> {
        let step = (FILL_BYTES / self.row_bytes).clamp(1, self.rows);
        for first in (0..self.rows).step_by(step as usize) {
            let rows = first..(first + step).min(self.rows);
            let place = Selection::Ranges(vec![Range::new(rows.start, rows.end)]);
            write(set, &place, rows.end - rows.start, &self.content(rows, 0))?;
        }
        Ok(())
    }

    /// The bytes of some rows in a version.
    pub(super) fn content(self, rows: impl IntoIterator<Item = u64>, version: u64) -> Vec<u8> {
        let row = |row: u64| {
            let mut bytes = tensors::page(row as usize).repeat(self.row_bytes.div_ceil(4096) as usize);
            bytes.truncate(self.row_bytes as usize);
            bytes[..8].copy_from_slice(&version.to_le_bytes());
            bytes
        };
        rows.into_iter().flat_map(row).collect()
    }

    /// Microseconds of a read of these rows, which is of that version.
    pub(super) fn read_us(self, set: &MutableSet, rows: &[u64], version: u64) -> Result<f64> {
        let selection = Selection::rows(rows.to_vec());
        let mut read = None;
        let took = seconds(|| {
            read = Some(set.read(&[], &selection)?);
            Ok(())
        })?;
        let Some([(_, tensor)]) = read.as_ref().map(|read| &read.leaves[..]) else {
            bail!("one leaf should have been read: {read:?}")
        };
        ensure!(
            tensor.to_vec() == self.content(rows.iter().copied(), version),
            "what was read is not what was written"
        );
        Ok(took * 1e6)
    }

    /// Microseconds of a commit of these rows, whose bytes are made for that version.
    pub(super) fn commit_us(self, set: &MutableSet, rows: &[u64], version: u64) -> Result<f64> {
        let (bytes, place) = (self.content(rows.iter().copied(), version), Selection::rows(rows.to_vec()));
        Ok(seconds(|| write(set, &place, rows.len() as u64, &bytes))? * 1e6)
    }
}

fn write(set: &MutableSet, place: &Selection, count: u64, bytes: &[u8]) -> Result<()> {
    set.write(&Place::Rows(place.clone()), count, &BTreeMap::from([(KEY, bytes)]), None)?;
    Ok(())
}

/// Rows that are picked at random, the same ones in each run.
#[derive(Debug)]
pub(super) struct Picks(u64);

impl Picks {
    pub(super) const fn new() -> Self {
        Self(88_172_645_463_325_252)
    }

    /// So many rows, each once, in no order.
    pub(super) fn rows(&mut self, count: usize, of: u64) -> Vec<u64> {
        let (mut picked, mut seen) = (Vec::with_capacity(count), BTreeSet::new());
        while picked.len() < count {
            let row = self.next() % of;
            if seen.insert(row) {
                picked.push(row);
            }
        }
        picked
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_told_apart_and_picked_once() {
        let table = Table { rows: 8, row_bytes: 24 };
        let content = table.content([3, 5], 7);
        assert_eq!(content.len(), 48);
        assert_ne!(content[8..24], content[32..48]);
        assert_eq!(content[..8], 7u64.to_le_bytes());
        let mut picked = Picks::new().rows(8, 8);
        picked.sort_unstable();
        assert_eq!(picked, (0..8).collect::<Vec<_>>());
    }
}
