//! Open files of all sets, of which those used longest ago are closed. Whoever uses one keeps it open meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorlane_proto::failure::Failure;

/// A file of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Which {
    /// Rows of a leaf.
    Leaf(usize),
    /// The ring of commits.
    Commits,
    /// New rows that are on the disk before they are written where they belong.
    Journal,
    /// The intent of the commit that holds this lock, and none below it.
    Intent(usize),
}

/// Number of a set among those that were opened in this life, and a file of it.
type Key = (u64, Which);

/// The open files.
pub(super) struct Descriptors {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    files: HashMap<Key, (Arc<File>, u64)>,
    /// By when they were used.
    order: BTreeMap<u64, Key>,
    clock: u64,
}

impl Descriptors {
    /// Keeps so many files open at most.
    pub(super) fn new(most: usize) -> Self {
        Self { most, open: Mutex::default() }
    }

    /// Number of files that are kept open.
    pub(super) fn open(&self) -> usize {
        self.open.lock().files.len()
    }

    /// The file of a key, opened by `open` if it is not.
    ///
    /// # Errors
    /// That of `open`.
    pub(super) fn get(
        &self,
        key: Key,
        open: impl FnOnce() -> Result<File, Failure>,
    ) -> Result<Arc<File>, Failure> {
        if let Some(file) = self.open.lock().used(key) {
            return Ok(file);
        }
        // Not under the lock: a disk may be slow. Two at once open it twice, and one of them is kept.
        let file = Arc::new(open()?);
        // Closed behind the lock.
        let _closed = self.open.lock().enter(key, Arc::clone(&file), self.most);
        Ok(file)
    }

    /// Closes what is open of a set.
    pub(super) fn close(&self, set: u64) {
        let _closed: Vec<Arc<File>> = {
            let mut open = self.open.lock();
            let of: Vec<Key> = open.files.keys().filter(|(number, _)| *number == set).copied().collect();
            of.into_iter().filter_map(|key| open.remove(key)).collect()
        };
    }
}

impl Open {
    fn used(&mut self, key: Key) -> Option<Arc<File>> {
        let (file, used) = self.files.get_mut(&key)?;
        self.order.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.order.insert(self.clock, key);
        Some(Arc::clone(file))
    }

    fn enter(&mut self, key: Key, file: Arc<File>, most: usize) -> Vec<Arc<File>> {
        let mut closed = Vec::from_iter(self.remove(key));
        while self.files.len() >= most
            && let Some((_, oldest)) = self.order.first_key_value().map(|(at, key)| (*at, *key))
        {
            closed.extend(self.remove(oldest));
        }
        self.clock += 1;
        self.order.insert(self.clock, key);
        self.files.insert(key, (file, self.clock));
        closed
    }

    fn remove(&mut self, key: Key) -> Option<Arc<File>> {
        let (file, used) = self.files.remove(&key)?;
        self.order.remove(&used);
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_used_longest_ago_are_closed_first_and_no_more_are_open_than_may_be() {
        let descriptors = Descriptors::new(2);
        let open =
            |at| descriptors.get((1, Which::Leaf(at)), || Ok(File::open("/dev/null").unwrap())).unwrap();
        let kept = |at| descriptors.open.lock().files.contains_key(&(1, Which::Leaf(at)));
        let first = open(0);
        open(1);
        open(0);
        open(2);
        assert_eq!((kept(0), kept(1), kept(2), descriptors.open()), (true, false, true, 2));
        assert!(Arc::ptr_eq(&first, &open(0)));
        descriptors.close(1);
        assert_eq!(descriptors.open(), 0);
    }
}
