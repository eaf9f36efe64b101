//! Watching names: changes after a revision, names of a revision, and who is told of the next change.
//!
//! Nothing is kept for whoever watches but a call that waits for the next change, and that is gone with the change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tensorlane_proto::generated::NameEventKind;
use tensorlane_proto::ledger::{NameChange, NoRevision, TensorId, TensorName};

use super::names::Wake;
use super::{State, Store, Tensor};

/// Changes of all names that are looked at under one lock. The rest of a long journal is looked at in further steps, and a listing
/// that has fallen behind by more is cut.
const LOOKED: usize = 16_384;
/// Changes of one step that are compared with the prefixes of those who wait. After more of them everybody looks.
const COMPARED: u64 = 1_024;

/// Called once, outside of the store's lock, with a revision up to which there was no change for it.
type Told = Box<dyn FnOnce(u64) + Send>;

/// A name that is there, or a change of a name.
pub struct NameEvent {
    /// Kind of the event.
    pub kind: NameEventKind,
    /// The name.
    pub name: TensorName,
    /// The tensor that it stands for, or stood for; none where that is gone.
    pub tensor: Option<Arc<Tensor>>,
    /// The number of the change.
    pub sequence: u64,
}

/// Answer to a question for changes after a revision.
pub enum News {
    /// Events in order, and the revision up to which there are no others. There may be none: then more is to be looked at.
    Events(Vec<NameEvent>, u64),
    /// Nothing yet: the next change will be told.
    Later(NameWatch),
}

/// A wait for the next change of names that begin alike; dropping it ends it.
pub struct NameWatch {
    store: Arc<Store>,
    prefix: Arc<str>,
    number: u64,
}

/// All who wait for changes, by what the names begin with.
#[derive(Default)]
pub(super) struct Watchers {
    waiting: HashMap<Arc<str>, BTreeMap<u64, Told>>,
    /// Prefixes of each length in bytes.
    lengths: BTreeMap<usize, usize>,
    /// Revision up to which changes were told.
    told: u64,
}

// === impl Store ===

impl Store {
    /// Changes after a revision of names that begin with `prefix`, at most `most`. If there are none `told` is called at the next
    /// one, unless the result is dropped before.
    ///
    /// # Errors
    /// The revision is forgotten, or was not yet.
    pub fn watch(
        self: &Arc<Self>,
        prefix: &Arc<str>,
        after: u64,
        most: usize,
        told: impl FnOnce(u64) + Send + 'static,
    ) -> Result<News, NoRevision> {
        let mut state = self.state.lock();
        let found = state.ledger.changes_after(prefix, after, most, LOOKED)?;
        if found.changes.is_empty() && found.until == state.ledger.revision() {
            let number = state.keeper.next_number();
            state.watchers.insert(prefix, number, Box::new(told));
            return Ok(News::Later(NameWatch {
                store: Arc::clone(self),
                prefix: Arc::clone(prefix),
                number,
            }));
        }
        let events = found.changes.into_iter().map(|change| state.event(change)).collect();
        Ok(News::Events(events, found.until))
    }

    /// Names that begin with `prefix` as they were at a revision, the latest if none is given, after `after` and at most `limit`;
    /// and the revision.
    ///
    /// # Errors
    /// The revision is forgotten, or was not yet.
    pub fn names_at(
        &self,
        prefix: &str,
        after: Option<&TensorName>,
        limit: usize,
        revision: Option<u64>,
    ) -> Result<(Vec<NameEvent>, u64), NoRevision> {
        let state = self.state.lock();
        let latest = state.ledger.revision();
        let revision = revision.unwrap_or(latest);
        if let Some(oldest) = latest.checked_sub(LOOKED as u64).filter(|oldest| revision < *oldest) {
            return Err(NoRevision::Forgotten { oldest });
        }
        let names = state.ledger.list_at(prefix, after, limit, revision)?;
        let event = |(name, id): (TensorName, TensorId)| NameEvent {
            kind: NameEventKind::Present,
            name,
            tensor: state.tensors.get(&id).cloned(),
            sequence: revision,
        };
        Ok((names.into_iter().map(event).collect(), revision))
    }

    /// Bytes of the changes of names that are remembered.
    pub fn journal_bytes(&self) -> u64 {
        self.state.lock().ledger.journal_size().1
    }
}

// === impl State ===

impl State {
    /// Wakes of those who wait for the changes that came since this was last asked; to be called outside of the lock.
    #[must_use]
    pub(super) fn names_changed(&mut self) -> Vec<Wake> {
        let latest = self.ledger.revision();
        let before = std::mem::replace(&mut self.watchers.told, latest);
        if self.watchers.waiting.is_empty() {
            return Vec::new();
        }
        let few = (latest - before <= COMPARED)
            .then(|| self.ledger.changes_after("", before, usize::MAX, usize::MAX).ok())
            .flatten();
        match few {
            Some(found) => {
                let told = |change: &NameChange| self.watchers.take(&change.name, change.sequence - 1);
                found.changes.iter().flat_map(told).collect()
            }
            // Each of them looks. One is cut only if this step alone changed more than is remembered.
            None => self.watchers.take_all(before),
        }
    }

    fn event(&self, change: NameChange) -> NameEvent {
        let NameChange { sequence, name, before, after } = change;
        let kind = match (before, after) {
            (None, _) => NameEventKind::Appeared,
            (_, None) => NameEventKind::Gone,
            _ => NameEventKind::Replaced,
        };
        let tensor = after.or(before).and_then(|id| self.tensors.get(&id).cloned());
        NameEvent { kind, name, tensor, sequence }
    }
}

// === impl Watchers ===

impl Watchers {
    fn insert(&mut self, prefix: &Arc<str>, number: u64, told: Told) {
        let waiting = self.waiting.entry(Arc::clone(prefix)).or_default();
        if waiting.is_empty() {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        waiting.insert(number, told);
    }

    fn remove(&mut self, prefix: &Arc<str>, number: u64) {
        let Some(waiting) = self.waiting.get_mut(prefix) else { return };
        waiting.remove(&number);
        if waiting.is_empty() {
            self.take_prefix(prefix);
        }
    }

    /// Takes those who wait for a name that begins as this one does.
    fn take(&mut self, name: &TensorName, reached: u64) -> Vec<Wake> {
        let lengths: Vec<usize> =
            self.lengths.range(..=name.as_str().len()).map(|(length, _)| *length).collect();
        let prefixes = lengths.into_iter().filter_map(|length| name.as_str().get(..length));
        prefixes.flat_map(|prefix| self.take_prefix(prefix)).map(|told| wake(told, reached)).collect()
    }

    fn take_all(&mut self, reached: u64) -> Vec<Wake> {
        self.lengths.clear();
        let all = std::mem::take(&mut self.waiting).into_values().flat_map(BTreeMap::into_values);
        all.map(|told| wake(told, reached)).collect()
    }

    fn take_prefix(&mut self, prefix: &str) -> Vec<Told> {
        let Some(waiting) = self.waiting.remove(prefix) else { return Vec::new() };
        if let Some(count) = self.lengths.get_mut(&prefix.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
        waiting.into_values().collect()
    }
}

fn wake(told: Told, reached: u64) -> Wake {
    Box::new(move || told(reached))
}

// === impl NameWatch ===

impl NameWatch {
    /// Returns the latest revision that was compared with it, if nothing has changed for it until now; none if it was told.
    pub fn unchanged(&self) -> Option<u64> {
        let state = self.store.state.lock();
        let waits =
            state.watchers.waiting.get(&self.prefix).is_some_and(|all| all.contains_key(&self.number));
        waits.then_some(state.watchers.told)
    }
}

impl Drop for NameWatch {
    fn drop(&mut self) {
        self.store.state.lock().watchers.remove(&self.prefix, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn watchers(prefixes: &[&str]) -> (Watchers, mpsc::Receiver<(usize, u64)>) {
        let (mut watchers, (send, told)) = (Watchers::default(), mpsc::channel());
        for (number, prefix) in prefixes.iter().enumerate() {
            let send = send.clone();
            let told = move |reached| send.send((number, reached)).unwrap();
            watchers.insert(&Arc::from(*prefix), number as u64, Box::new(told));
        }
        (watchers, told)
    }

    fn take(watchers: &mut Watchers, told: &mpsc::Receiver<(usize, u64)>, name: &str) -> Vec<(usize, u64)> {
        watchers.take(&TensorName::new(name).unwrap(), 7).into_iter().for_each(|wake| wake());
        told.try_iter().collect()
    }

    #[test]
    fn a_name_is_told_to_each_whose_prefix_it_begins_with_and_once() {
        let (mut all, told) = watchers(&["a/", "", "a/b", "b", "a/", "ä", "a/bcd"]);
        assert_eq!(take(&mut all, &told, "a/bc"), [(1, 7), (0, 7), (4, 7), (2, 7)]);
        assert_eq!(take(&mut all, &told, "a/bc"), []);
        // The second byte of this name is the middle of a letter.
        assert_eq!(take(&mut all, &told, "ä"), [(5, 7)]);
        assert_eq!(take(&mut all, &told, "b"), [(3, 7)]);
        assert_eq!(all.lengths.len(), 1);
    }

    #[test]
    fn whoever_leaves_is_told_nothing_and_leaves_nothing() {
        let (mut all, told) = watchers(&["a", "a"]);
        all.remove(&Arc::from("a"), 0);
        all.remove(&Arc::from("a"), 0);
        all.remove(&Arc::from("b"), 1);
        assert_eq!(take(&mut all, &told, "a"), [(1, 7)]);
        assert!(all.waiting.is_empty() && all.lengths.is_empty());
    }
}
