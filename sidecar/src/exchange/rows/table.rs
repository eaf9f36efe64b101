//! The mutable sets of this sidecar, by number and by name. Pure; `S` is a set.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::TensorName;

/// Mutable sets of one peer at most. Each costs some 5 KiB beside its rows and its layout, and up to
/// 100 KiB for the commits that may be repeated.
pub(super) const SETS_MAX: usize = 4_096;
/// Bytes of heap that the layouts and writers of all mutable sets of one peer take at most.
pub(super) const LAYOUTS_BYTES_MAX: u64 = 64 << 20;

/// All mutable sets.
pub(super) struct Table<S> {
    sets: HashMap<u64, Entry<S>>,
    names: BTreeMap<TensorName, u64>,
    last: u64,
    /// Bytes of all layouts.
    layouts: u64,
}

struct Entry<S> {
    name: TensorName,
    set: Arc<S>,
    /// Bytes of its layout.
    layout: u64,
}

// === impl Table ===

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { sets: HashMap::new(), names: BTreeMap::new(), last: 0, layouts: 0 }
    }
}

impl<S> Table<S> {
    /// Enters a set, whose layout takes so many bytes of heap, and which `make` makes for its number.
    ///
    /// # Errors
    /// NAME_TAKEN, LIMIT_EXCEEDED.
    pub(super) fn create(
        &mut self,
        name: &TensorName,
        layout: u64,
        make: impl FnOnce(u64) -> S,
    ) -> Result<Arc<S>, Failure> {
        if self.names.contains_key(name) {
            let what =
                format!("a mutable set {name} is here already; open it, drop it, or choose another name");
            return Err(Failure::new(Reason::NameTaken, what).with("name", name));
        }
        if self.sets.len() >= SETS_MAX {
            let what = format!("{SETS_MAX} mutable sets are here already; drop one");
            return Err(Failure::new(Reason::LimitExceeded, what).with("limit", SETS_MAX));
        }
        if self.layouts.saturating_add(layout) > LAYOUTS_BYTES_MAX {
            let what = format!(
                "the layouts of the mutable sets that are here take {} bytes, and this one {layout}; at most \
                 {LAYOUTS_BYTES_MAX} together: drop a set, or give it fewer leaves and shorter keys",
                self.layouts
            );
            return Err(Failure::new(Reason::LimitExceeded, what).with("limit", LAYOUTS_BYTES_MAX));
        }
        self.last += 1;
        self.layouts += layout;
        let set = Arc::new(make(self.last));
        self.sets.insert(self.last, Entry { name: name.clone(), set: Arc::clone(&set), layout });
        self.names.insert(name.clone(), self.last);
        Ok(set)
    }

    /// The set of a number.
    pub(super) fn set(&self, id: u64) -> Option<&Arc<S>> {
        self.sets.get(&id).map(|entry| &entry.set)
    }

    /// The set of a name.
    pub(super) fn named(&self, name: &str) -> Option<&Arc<S>> {
        self.set(*self.names.get(&TensorName::new(name).ok()?)?)
    }

    /// Takes a set away; whoever reads it goes on.
    pub(super) fn remove(&mut self, id: u64) {
        if let Some(entry) = self.sets.remove(&id) {
            self.names.remove(&entry.name);
            self.layouts -= entry.layout;
        }
    }

    /// Sets whose names begin so, by name.
    pub(super) fn beginning(&self, prefix: &str) -> impl Iterator<Item = &Arc<S>> {
        let named = self.names.iter().filter(move |(name, _)| name.as_str().starts_with(prefix));
        named.filter_map(|(_, id)| self.set(*id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_found_by_its_name_until_it_is_removed_and_its_number_is_never_anothers() {
        let mut table = Table::default();
        let name: TensorName = TensorName::new("replay").unwrap();
        let first = *table.create(&name, 1, |id| id).unwrap();
        assert_eq!(table.create(&name, 1, |id| id).unwrap_err().reason, Reason::NameTaken);
        assert_eq!(table.named("replay").map(|set| **set), Some(first));
        table.remove(first);
        assert!(table.named("replay").is_none() && table.set(first).is_none());
        assert!(*table.create(&name, 1, |id| id).unwrap() > first);
        assert_eq!((table.beginning("re").count(), table.beginning("x").count()), (1, 0));
    }

    #[test]
    fn sets_beyond_the_limit_are_refused() {
        let mut table = Table::default();
        for at in 0..SETS_MAX {
            table.create(&TensorName::new(&format!("{at}")).unwrap(), 1, |_| ()).unwrap();
        }
        let refused = table.create(&TensorName::new("more").unwrap(), 1, |_| ()).unwrap_err();
        assert_eq!(refused.reason, Reason::LimitExceeded);
    }

    #[test]
    fn layouts_beyond_their_bytes_are_refused_until_a_set_is_dropped() {
        let mut table = Table::default();
        let name = |text: &str| TensorName::new(text).unwrap();
        let first = *table.create(&name("a"), LAYOUTS_BYTES_MAX - 1, |id| id).unwrap();
        table.create(&name("b"), 1, |id| id).unwrap();
        let refused = table.create(&name("c"), 1, |id| id).unwrap_err();
        assert_eq!((refused.reason, refused.detail("limit")), (Reason::LimitExceeded, Some("67108864")));
        assert!(table.named("c").is_none());
        table.remove(first);
        table.create(&name("c"), 1, |id| id).unwrap();
    }
}
