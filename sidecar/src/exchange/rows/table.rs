//! The mutable sets of this sidecar, by number and by name. Pure; `S` is a set.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::rows::{REPEATS_MAX, SetId};

/// Mutable sets of one peer at most. Each costs some 5 KiB beside its rows and its layout, and up to 100 KiB for the commits that may be
/// repeated, less where there are many: 64 MiB of all.
pub(super) const SETS_MAX: usize = 4_096;
/// Bytes of heap that the layouts and writers of all mutable sets of one peer take at most.
pub(super) const LAYOUTS_BYTES_MAX: u64 = 64 << 20;

/// Commits that a set remembers for their repeats, which is entered as one of so many sets.
pub(super) const fn repeats_among(sets: usize) -> usize {
    match sets {
        0..=256 => REPEATS_MAX,
        257..=1_024 => REPEATS_MAX / 4,
        _ => REPEATS_MAX / 16,
    }
}

/// All mutable sets.
pub(super) struct Table<S> {
    sets: HashMap<u64, Entry<S>>,
    names: BTreeMap<TensorName, u64>,
    /// Sets on files, by the bits that outlive this sidecar.
    lasting: HashMap<u128, u64>,
    last: u64,
    /// Bytes of all layouts.
    layouts: u64,
}

struct Entry<S> {
    name: TensorName,
    set: Arc<S>,
    /// Bytes of its layout.
    layout: u64,
    /// Bits of a set on files.
    lasting: Option<u128>,
}

// === impl Table ===

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { sets: HashMap::new(), names: BTreeMap::new(), lasting: HashMap::new(), last: 0, layouts: 0 }
    }
}

impl<S> Table<S> {
    /// Enters a set, whose layout takes so many bytes of heap, and which `make` makes for its number. One on files has bits of
    /// its own, too.
    ///
    /// # Errors
    /// NAME_TAKEN, LIMIT_EXCEEDED.
    pub(super) fn create(
        &mut self,
        name: &TensorName,
        layout: u64,
        lasting: Option<u128>,
        make: impl FnOnce(u64) -> S,
    ) -> Result<Arc<S>, Failure> {
        self.check(name, layout)?;
        self.last += 1;
        self.layouts += layout;
        let set = Arc::new(make(self.last));
        self.sets.insert(self.last, Entry { name: name.clone(), set: Arc::clone(&set), layout, lasting });
        self.names.insert(name.clone(), self.last);
        self.lasting.extend(lasting.map(|bits| (bits, self.last)));
        Ok(set)
    }

    /// Checks that a set may be entered.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(super) fn check(&self, name: &TensorName, layout: u64) -> Result<(), Failure> {
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
        Ok(())
    }

    /// The set of an identity.
    pub(super) fn set(&self, id: SetId) -> Option<&Arc<S>> {
        self.entry(self.number(id)?)
    }

    fn number(&self, id: SetId) -> Option<u64> {
        match id {
            SetId::Memory { number, .. } => Some(number),
            SetId::Files(bits) => self.lasting.get(&bits).copied(),
        }
    }

    fn entry(&self, number: u64) -> Option<&Arc<S>> {
        self.sets.get(&number).map(|entry| &entry.set)
    }

    /// The set of a name.
    pub(super) fn named(&self, name: &str) -> Option<&Arc<S>> {
        self.entry(*self.names.get(&TensorName::new(name).ok()?)?)
    }

    /// Takes a set away; whoever reads it goes on.
    pub(super) fn remove(&mut self, id: SetId) {
        if let Some(entry) = self.number(id).and_then(|number| self.sets.remove(&number)) {
            if let Some(bits) = entry.lasting {
                self.lasting.remove(&bits);
            }
            self.names.remove(&entry.name);
            self.layouts -= entry.layout;
        }
    }

    /// Number of the sets.
    pub(super) fn count(&self) -> usize {
        self.sets.len()
    }

    /// Sets whose names begin so, by name.
    pub(super) fn beginning(&self, prefix: &str) -> impl Iterator<Item = &Arc<S>> {
        let named = self.names.iter().filter(move |(name, _)| name.as_str().starts_with(prefix));
        named.filter_map(|(_, number)| self.entry(*number))
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::identity::Incarnation;

    use super::*;

    const fn id(number: u64) -> SetId {
        SetId::Memory { incarnation: Incarnation(1), number }
    }

    #[test]
    fn a_set_is_found_by_its_name_until_it_is_removed_and_its_number_is_never_anothers() {
        let mut table = Table::default();
        let name: TensorName = TensorName::new("replay").unwrap();
        let first = *table.create(&name, 1, None, |id| id).unwrap();
        assert_eq!(table.create(&name, 1, None, |id| id).unwrap_err().reason, Reason::NameTaken);
        assert_eq!(table.named("replay").map(|set| **set), Some(first));
        table.remove(id(first));
        assert!(table.named("replay").is_none() && table.set(id(first)).is_none());
        assert!(*table.create(&name, 1, None, |id| id).unwrap() > first);
        assert_eq!((table.beginning("re").count(), table.beginning("x").count()), (1, 0));
    }

    #[test]
    fn sets_beyond_the_limit_are_refused() {
        let mut table = Table::default();
        for at in 0..SETS_MAX {
            table.create(&TensorName::new(&format!("{at}")).unwrap(), 1, None, |_| ()).unwrap();
        }
        let refused = table.create(&TensorName::new("more").unwrap(), 1, None, |_| ()).unwrap_err();
        assert_eq!(refused.reason, Reason::LimitExceeded);
    }

    #[test]
    fn commits_that_all_sets_remember_take_64_mib_at_most() {
        let all: usize = (1..=SETS_MAX).map(repeats_among).sum();
        assert!(all * 100 <= 64 << 20, "{all} commits of 100 bytes");
        assert_eq!(
            [1, 256, 257, 1_024, 1_025, SETS_MAX].map(repeats_among),
            [1_024, 1_024, 256, 256, 64, 64]
        );
    }

    #[test]
    fn layouts_beyond_their_bytes_are_refused_until_a_set_is_dropped() {
        let mut table = Table::default();
        let name = |text: &str| TensorName::new(text).unwrap();
        let first = *table.create(&name("a"), LAYOUTS_BYTES_MAX - 1, None, |id| id).unwrap();
        table.create(&name("b"), 1, None, |id| id).unwrap();
        let refused = table.create(&name("c"), 1, None, |id| id).unwrap_err();
        assert_eq!((refused.reason, refused.detail("limit")), (Reason::LimitExceeded, Some("67108864")));
        assert!(table.named("c").is_none());
        table.remove(id(first));
        table.create(&name("c"), 1, None, |id| id).unwrap();
    }

    #[test]
    fn a_set_on_files_is_found_by_its_bits_until_it_is_removed() {
        let mut table = Table::default();
        let name = TensorName::new("replay").unwrap();
        table.create(&name, 1, Some(77), |id| id).unwrap();
        assert!(table.set(SetId::Files(77)).is_some() && table.set(SetId::Files(7)).is_none());
        table.remove(SetId::Files(77));
        assert!(table.set(SetId::Files(77)).is_none() && table.named("replay").is_none());
    }
}
