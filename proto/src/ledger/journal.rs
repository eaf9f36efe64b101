//! The journal of names: their latest changes, in order and numbered, for those who watch names.
//!
//! ```text
//!   sequence      5          6          7          8 = latest
//!   (forgotten)   policy +   policy ~   a -        policy ~       + appeared   ~ replaced   - gone
//!             ^
//!             oldest revision from which one can go on: 4, the state before the change 5
//! ```
//! A revision is the state after the change of its number. Who has seen revision `r` is told of the changes after it, or that they
//! are forgotten. Names as they were at a revision are those of now with the later changes undone, so that pages of one listing are
//! of one moment. Nothing is kept for anybody who watches.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::{Ledger, Limits, TensorId, TensorName};

/// Bytes that a change takes beside its name.
pub const CHANGE_BYTES: u64 = 96;

/// Change of a name. The two tensors differ, and there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameChange {
    /// Number of the change: one more than that of the change before.
    pub sequence: u64,
    /// The name.
    pub name: TensorName,
    /// Tensor that it stood for, if any.
    pub before: Option<TensorId>,
    /// Tensor that it stands for from then on, if any.
    pub after: Option<TensorId>,
}

/// Changes of names that begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The changes, in order.
    pub changes: Vec<NameChange>,
    /// Revision up to which there are no others; where to go on from.
    pub until: u64,
}

/// Reason for which changes after a revision cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRevision {
    /// Some of them are forgotten.
    Forgotten {
        /// Oldest such revision.
        oldest: u64,
    },
    /// Later than every revision until now.
    Ahead {
        /// The latest one.
        latest: u64,
    },
}

/// See the module.
#[derive(Default)]
pub(super) struct Journal {
    changes: VecDeque<NameChange>,
    latest: u64,
    bytes: u64,
}

// === impl Journal ===

impl Journal {
    /// Notes a change. The oldest ones go where there are too many of them.
    pub(super) fn note(
        &mut self,
        name: &TensorName,
        before: Option<TensorId>,
        after: Option<TensorId>,
        limits: &Limits,
    ) {
        if before == after {
            return;
        }
        self.latest += 1;
        // First, so that the buffer does not grow beyond the bound.
        while (self.changes.len() >= limits.name_changes
            || self.bytes + cost(name) > limits.name_change_bytes)
            && let Some(oldest) = self.changes.pop_front()
        {
            self.bytes -= cost(&oldest.name);
        }
        if limits.name_changes > 0 && cost(name) <= limits.name_change_bytes {
            self.bytes += cost(name);
            self.changes.push_back(NameChange { sequence: self.latest, name: name.clone(), before, after });
        }
    }

    fn oldest(&self) -> u64 {
        self.latest - self.changes.len() as u64
    }

    /// All changes after a revision.
    fn after(&self, revision: u64) -> Result<impl Iterator<Item = &NameChange>, NoRevision> {
        if revision > self.latest {
            return Err(NoRevision::Ahead { latest: self.latest });
        }
        let Some(skipped) = revision.checked_sub(self.oldest()) else {
            return Err(NoRevision::Forgotten { oldest: self.oldest() });
        };
        Ok(self.changes.range(usize::try_from(skipped).unwrap_or(usize::MAX).min(self.changes.len())..))
    }
}

fn cost(name: &TensorName) -> u64 {
    CHANGE_BYTES + name.as_str().len() as u64
}

// === impl Ledger ===

impl Ledger {
    /// The latest revision of the names: the number of their changes so far. A name that is given again to its own tensor is none.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.journal.latest
    }

    /// Changes and bytes of changes that are remembered.
    #[must_use]
    pub fn journal_size(&self) -> (usize, u64) {
        (self.journal.changes.len(), self.journal.bytes)
    }

    /// Changes after a revision of names that begin with `prefix`, at most `most`, among the next `looked` changes of all names.
    ///
    /// # Errors
    /// [`NoRevision`].
    pub fn changes_after(
        &self,
        prefix: &str,
        revision: u64,
        most: usize,
        looked: usize,
    ) -> Result<Changes, NoRevision> {
        let (mut changes, mut until) = (Vec::new(), revision);
        for change in self.journal.after(revision)?.take(looked) {
            if change.name.as_str().starts_with(prefix) {
                if changes.len() == most {
                    break;
                }
                changes.push(change.clone());
            }
            until = change.sequence;
        }
        Ok(Changes { changes, until })
    }

    /// Names that begin with `prefix` as they were at a revision, in order, at most `limit`, those after `after` (the last of the
    /// page before). Their tensors may be gone since.
    ///
    /// # Errors
    /// [`NoRevision`].
    pub fn list_at(
        &self,
        prefix: &str,
        after: Option<&TensorName>,
        limit: usize,
        revision: u64,
    ) -> Result<Vec<(TensorName, TensorId)>, NoRevision> {
        let mut then = BTreeMap::new();
        for change in self.journal.after(revision)? {
            if change.name.as_str().starts_with(prefix) && after.is_none_or(|after| change.name > *after) {
                then.entry(&change.name).or_insert(change.before);
            }
        }
        let start = match after.map(TensorName::as_str) {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let from = self.names.range::<str, _>((start, Bound::Unbounded));
        let unchanged = from.take_while(|(name, _)| name.as_str().starts_with(prefix));
        let mut unchanged = unchanged.filter(|(name, _)| !then.contains_key(name)).peekable();
        let mut undone = then.iter().filter_map(|(name, id)| id.map(|id| (*name, id))).peekable();
        let mut names = Vec::new();
        while names.len() < limit {
            let next = match (unchanged.peek(), undone.peek()) {
                (Some((now, _)), Some((then, _))) if now > then => undone.next(),
                (Some(_), _) => unchanged.next().map(|(name, id)| (name, *id)),
                (None, _) => undone.next(),
            };
            let Some((name, id)) = next else { break };
            names.push((name.clone(), id));
        }
        Ok(names)
    }
}
