//! The order of commits: versions, the cursor of extensions, and commits that may be repeated.

use std::collections::{HashMap, VecDeque};

use super::list::RowList;
use crate::failure::{Failure, Reason};
use crate::ledger::RetryId;

/// Most commits of a set that are remembered for their repeats, the latest ones. Each takes 100 bytes.
pub const REPEATS_MAX: usize = 1_024;

/// A commit that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Version that it made.
    pub version: u64,
    /// The first row that it wrote.
    pub first: u64,
}

/// State of the commits of one set.
#[derive(Debug)]
pub struct Commits {
    version: u64,
    cursor: u64,
    /// Row behind the last extension whose commit was made: the cursor, but for one that has taken its rows and writes them.
    settled: u64,
    repeats: HashMap<RetryId, Committed>,
    order: VecDeque<RetryId>,
    /// Commits that are remembered.
    most: usize,
}

impl Default for Commits {
    fn default() -> Self {
        let (repeats, order, most) = (HashMap::new(), VecDeque::new(), REPEATS_MAX);
        Self { version: 0, cursor: 0, settled: 0, repeats, order, most }
    }
}

impl Commits {
    /// Number of commits.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Row that the next extension begins at.
    pub const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Row behind the last extension whose commit was made.
    pub const fn settled(&self) -> u64 {
        self.settled
    }

    /// The commits of an earlier life, oldest first: the latest version, the cursor, and those that may be repeated.
    pub fn restored(
        version: u64,
        cursor: u64,
        repeats: impl IntoIterator<Item = (RetryId, Committed)>,
    ) -> Self {
        let mut commits = Self { version, cursor, settled: cursor, ..Self::default() };
        repeats.into_iter().for_each(|(retry, committed)| commits.remember(retry, committed));
        commits
    }

    /// From now on so many of the latest commits are remembered for their repeats, [`REPEATS_MAX`] at most; others are forgotten.
    pub fn remember_at_most(&mut self, most: usize) {
        self.most = most.min(REPEATS_MAX);
        self.forget_oldest();
        self.repeats.shrink_to_fit();
        self.order.shrink_to_fit();
    }

    /// The commit that this one is a repeat of.
    pub fn repeated(&self, retry: Option<RetryId>) -> Option<Committed> {
        self.repeats.get(&retry?).copied()
    }

    /// Checks that the version is the expected one.
    ///
    /// # Errors
    /// VERSION_CHANGED with the latest version.
    pub fn check(&self, expects: Option<u64>) -> Result<(), Failure> {
        match expects {
            Some(expected) if expected != self.version => {
                let what = format!(
                    "the set is at version {}, not {expected}; read the rows again and write on top of them",
                    self.version
                );
                Err(Failure::new(Reason::VersionChanged, what).with("latest", self.version))
            }
            _ => Ok(()),
        }
    }

    /// Takes rows for an extension, round robin.
    pub fn take(&mut self, count: u64, of: u64) -> RowList {
        let first = self.cursor;
        self.cursor = (first + count) % of;
        RowList::Round { first, count, of }
    }

    /// Gives rows back that were taken and not written, if nobody has taken the next ones.
    pub fn give_back(&mut self, taken: &RowList) {
        if let RowList::Round { first, count, of } = *taken
            && self.cursor == (first + count) % of
        {
            self.cursor = first;
            self.settled = first;
        }
    }

    /// The commit to rows that would be made now, and the row behind the last extension then. Nothing is made.
    pub fn next(&self, rows: &RowList) -> (Committed, u64) {
        let settled = match *rows {
            RowList::Round { first, count, of } => (first + count) % of,
            _ => self.settled,
        };
        (Committed { version: self.version + 1, first: rows.first() }, settled)
    }

    /// A commit to rows is made now: the next version.
    pub fn commit(&mut self, rows: &RowList, retry: Option<RetryId>) -> Committed {
        let (committed, settled) = self.next(rows);
        (self.version, self.settled) = (committed.version, settled);
        if let Some(retry) = retry {
            self.remember(retry, committed);
        }
        committed
    }

    /// Forgets a commit whose rows could not be written: a repeat of it is made.
    pub fn failed(&mut self, retry: Option<RetryId>) {
        if let Some(retry) = retry
            && self.repeats.remove(&retry).is_some()
        {
            self.order.retain(|other| *other != retry);
        }
    }

    fn remember(&mut self, retry: RetryId, committed: Committed) {
        if self.repeats.insert(retry, committed).is_none() {
            self.order.push_back(retry);
        }
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        let over = self.order.len().saturating_sub(self.most);
        for oldest in self.order.drain(..over) {
            self.repeats.remove(&oldest);
        }
    }
}
