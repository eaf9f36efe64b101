//! Random histories of commits and reads over the pure machine, against a model that keeps every version whole.
//!
//! The machine is what an owner does: rows are proven, a commit checks its repeats and its version, takes rows where it extends,
//! and writes bands. The model is a list of versions, each a plain table. After every step all reads of the machine are those of
//! the model's latest version, in every leaf.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::failure::{Failure, Reason};
use crate::generated as v1;
use crate::ledger::RetryId;
use crate::selection::Selection;
use crate::{DType, Range};

const ROWS: u64 = 24;
/// Bytes of a row of the wide leaf: four rows are a band.
const WIDE: u64 = 200_000;

/// A table: the value of each row in each of two leaves.
type Plain = Vec<[u32; 2]>;

#[derive(Clone, Debug)]
enum Step {
    Write {
        place: Where,
        /// Leaves that are written, and the value of the first row; each next row has the next value.
        leaves: [bool; 2],
        value: u32,
        /// Versions behind the latest one that it expects.
        expects: Option<u64>,
        /// A number of the retry ids: small, so that some come again.
        retry: Option<u8>,
        /// Set if its bytes come; otherwise the writer ends before.
        comes: bool,
    },
    Read(Selection),
}

#[derive(Clone, Debug)]
enum Where {
    Rows(Selection),
    Extend(u64),
}

/// The pure machine, with rows where an owner has bytes.
struct Owner {
    layout: SetLayout,
    commits: Commits,
    /// The value at the first byte of each row in its band.
    bands: BTreeMap<(u64, u64), u32>,
}

impl Owner {
    fn new() -> Self {
        let leaf = |key: &str, shape: &[u64]| v1::SetLeaf {
            key: key.to_owned(),
            dtype: DType::U8.code().into(),
            row_shape: shape.to_vec(),
        };
        let layout = SetLayout::new(&[leaf("wide", &[WIDE]), leaf("thin", &[])], ROWS).unwrap();
        assert!(layout.band(ROWS - 1) > 3, "rows lie in many bands");
        Self { layout, commits: Commits::default(), bands: BTreeMap::new() }
    }

    /// The places of rows in a leaf, in order.
    fn places(&self, rows: &RowList, leaf: usize) -> Vec<(u64, u64)> {
        let leaf = &self.layout.leaves()[leaf];
        let of = |run: Run| {
            (0..run.length / leaf.row_bytes).map(move |at| (run.band, run.offset + at * leaf.row_bytes))
        };
        rows.runs(&self.layout, leaf).flat_map(of).collect()
    }

    fn read(&self, selection: &Selection) -> Result<(u64, Plain), Failure> {
        let rows = RowList::new(selection, &self.layout)?;
        let leaf =
            |leaf| self.places(&rows, leaf).into_iter().map(|at| self.bands.get(&at).copied().unwrap_or(0));
        Ok((self.commits.version(), leaf(0).zip(leaf(1)).map(|(wide, thin)| [wide, thin]).collect()))
    }

    fn write(&mut self, step: &Step) -> Result<Committed, Failure> {
        let Step::Write { place, leaves, value, expects, retry, comes } = step else { unreachable!() };
        let retry = retry.map(|number| RetryId([number; 16]));
        let expects = expects.map(|behind| self.commits.version().saturating_sub(behind));
        let before = self.commits.repeated(retry);
        let rows = match place {
            Where::Rows(selection) => RowList::new(selection, &self.layout)?,
            Where::Extend(count) => match before {
                Some(before) => RowList::Round { first: before.first, count: *count, of: ROWS },
                None => self.commits.take(*count, ROWS),
            },
        };
        let give_back = |commits: &mut Commits| {
            if before.is_none() {
                commits.give_back(&rows);
            }
        };
        if let Some(before) = before {
            return Ok(before);
        }
        if let Err(failure) = self.commits.check(expects) {
            give_back(&mut self.commits);
            return Err(failure);
        }
        if !comes {
            give_back(&mut self.commits);
            return Err(Failure::new(Reason::Cancelled, "the writer is gone"));
        }
        let committed = self.commits.commit(&rows, retry);
        for leaf in (0..2).filter(|leaf| leaves[*leaf]) {
            for (value, at) in (*value..).zip(self.places(&rows, leaf)) {
                self.bands.insert(at, value);
            }
        }
        Ok(committed)
    }
}

/// State that is due: every version that there was, and what repeats are answered with.
struct Model {
    versions: Vec<Plain>,
    cursor: usize,
    made: BTreeMap<u8, Committed>,
}

impl Model {
    fn latest(&self) -> u64 {
        self.versions.len() as u64 - 1
    }

    /// Rows in the order of a selection; nothing where one is not there.
    fn rows(selection: &Selection) -> Option<Vec<usize>> {
        let size = usize::try_from(ROWS).unwrap();
        let rows: Vec<usize> = match selection {
            Selection::All => (0..size).collect(),
            Selection::Rows(list) => list.iter().map(|row| usize::try_from(*row).unwrap()).collect(),
            Selection::Ranges(ranges) => {
                let Range { start, stop, step } = ranges[0];
                (start.unwrap()..stop.unwrap())
                    .step_by(usize::try_from(step).unwrap())
                    .map(|row| row as usize)
                    .collect()
            }
        };
        rows.iter().all(|row| *row < size).then_some(rows)
    }

    fn write(&mut self, step: &Step) -> Result<Committed, Reason> {
        let Step::Write { place, leaves, value, expects, retry, comes } = step else { unreachable!() };
        let size = usize::try_from(ROWS).unwrap();
        let rows = match place {
            Where::Rows(selection) => Self::rows(selection).ok_or(Reason::SelectionOutOfRange)?,
            Where::Extend(count) => (0..*count as usize).map(|at| (self.cursor + at) % size).collect(),
        };
        if let Some(before) = retry.and_then(|retry| self.made.get(&retry)) {
            return Ok(*before);
        }
        if expects.is_some_and(|behind| behind.min(self.latest()) > 0) {
            return Err(Reason::VersionChanged);
        }
        if !comes {
            return Err(Reason::Cancelled);
        }
        let mut next = self.versions.last().unwrap().clone();
        for (value, row) in (*value..).zip(&rows) {
            for leaf in (0..2).filter(|leaf| leaves[*leaf]) {
                next[*row][leaf] = value;
            }
        }
        self.versions.push(next);
        let first = match place {
            Where::Extend(_) => self.cursor,
            Where::Rows(_) => rows.first().copied().unwrap_or(0),
        };
        if let Where::Extend(count) = place {
            self.cursor = (self.cursor + *count as usize) % size;
        }
        let committed = Committed { version: self.latest(), first: first as u64 };
        if let Some(retry) = retry {
            self.made.insert(*retry, committed);
        }
        Ok(committed)
    }
}

fn selections() -> impl Strategy<Value = Selection> {
    // One in some is beyond the end.
    let list = prop::collection::vec(0..ROWS + 1, 1..8).prop_map(Selection::rows);
    let range = (0..ROWS, 0..ROWS, 1..4u64)
        .prop_map(|(a, b, step)| Selection::Ranges(vec![Range::new(a.min(b), a.max(b) + 1).step_by(step)]));
    prop_oneof![Just(Selection::All), list, range]
}

fn steps() -> impl Strategy<Value = Step> {
    let place = prop_oneof![selections().prop_map(Where::Rows), (1..=ROWS).prop_map(Where::Extend)];
    let leaves = prop_oneof![Just([true, true]), Just([true, false]), Just([false, true])];
    let (expects, retry) = (prop::option::of(0..3u64), prop::option::of(0..6u8));
    let write = (place, leaves, 1..1_000_000u32, expects, retry, prop::bool::weighted(0.85)).prop_map(
        |(place, leaves, value, expects, retry, comes)| Step::Write {
            place,
            leaves,
            value,
            expects,
            retry,
            comes,
        },
    );
    prop_oneof![3 => write, 1 => selections().prop_map(Step::Read)]
}

proptest! {
    #[test]
    fn every_history_reads_whole_versions_and_commits_once(history in prop::collection::vec(steps(), 1..60)) {
        let mut owner = Owner::new();
        let size = usize::try_from(ROWS).unwrap();
        let mut model = Model { versions: vec![vec![[0; 2]; size]], cursor: 0, made: BTreeMap::new() };
        for step in &history {
            match step {
                Step::Write { .. } => {
                    let (made, due) = (owner.write(step), model.write(step));
                    prop_assert_eq!(made.map_err(|failure| failure.reason), due, "{:?}", step);
                }
                Step::Read(selection) => match (owner.read(selection), Model::rows(selection)) {
                    (Ok((version, read)), Some(rows)) => {
                        let of = &model.versions[usize::try_from(version).unwrap()];
                        let due: Plain = rows.iter().map(|row| of[*row]).collect();
                        prop_assert_eq!(read, due);
                    }
                    (read, rows) => prop_assert!(read.is_err() && rows.is_none(), "{:?}", selection),
                },
            }
            // Whatever it was: what is there is the latest version, whole.
            let (version, all) = owner.read(&Selection::All).unwrap();
            prop_assert_eq!((version, &all), (model.latest(), model.versions.last().unwrap()));
            prop_assert_eq!(owner.commits.cursor(), model.cursor as u64);
        }
    }
}
