//! Metadata of tensors: each value once, however many tensors have it, and a bound on the bytes of all.
//!
//! ```text
//!   tensors --counted--> entry { metadata, its bytes }     one for each value that some tensor has
//!                          ^
//!   table: value -> entry, weakly                          the last tensor takes the entry out, and gives its bytes back
//! ```
//!
//! A tensor that the ledger has freed counts until the last one who may look at it is done, as its block does.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use tensorlane_proto::Metadata;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::{Failure, Reason};

use super::keeper::SHRUNK_BYTES;

/// Bytes of an entry beside its texts: its places in the table, which doubles, and its counts.
const ENTRY_BYTES: u64 = 128;

/// All metadata that some tensor has; clones are the same table.
#[derive(Debug, Clone)]
pub(super) struct SharedMetadata(Arc<Mutex<Table>>);

/// Descriptor whose metadata are the shared value, with the entry of it; no entry where there are none.
#[derive(Debug, Clone)]
pub(super) struct Described {
    pub(super) descriptor: Descriptor,
    pub(super) kept: Option<Arc<InternedMetadata>>,
}

#[derive(Debug)]
struct Table {
    entries: HashMap<Metadata, Weak<InternedMetadata>, RandomState>,
    bytes: u64,
    /// The most bytes since it has shrunk last.
    peak: u64,
    limit: u64,
}

/// Entry of the table: metadata that some tensor has. Tensors share it, and the last one ends it.
#[derive(Debug)]
pub(super) struct InternedMetadata {
    metadata: Metadata,
    bytes: u64,
    table: SharedMetadata,
}

// === impl SharedMetadata ===

impl SharedMetadata {
    /// An empty table for so many bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self(Arc::new(Mutex::new(Table { entries: HashMap::default(), bytes: 0, peak: 0, limit })))
    }

    /// Bytes of all entries, and the most there may be.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let table = self.0.lock();
        (table.bytes, table.limit)
    }

    /// Returns whether it has shrunk by much since it was the largest; from then on that counts anew.
    pub(super) fn has_shrunk(&self) -> bool {
        let mut table = self.0.lock();
        let has_shrunk = table.peak - table.bytes >= SHRUNK_BYTES;
        if has_shrunk {
            table.peak = table.bytes;
        }
        has_shrunk
    }

    /// Takes the metadata of a descriptor in, or the equal ones that are there.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED where they are new and there is no room for them.
    pub(super) fn keep(&self, descriptor: Descriptor) -> Result<Described, Failure> {
        if descriptor.metadata.is_empty() {
            return Ok(Described { descriptor, kept: None });
        }
        let mut table = self.0.lock();
        let found = table.entries.get(&descriptor.metadata).and_then(Weak::upgrade);
        let entry = match found {
            Some(entry) => entry,
            None => table.enter(descriptor.metadata.clone(), self)?,
        };
        drop(table);
        let descriptor = Descriptor { metadata: entry.metadata.clone(), ..descriptor };
        Ok(Described { descriptor, kept: Some(entry) })
    }
}

// === impl Table ===

impl Table {
    /// Enters metadata of which there is no live entry. One that is ending has its place no longer, and its bytes until it has ended.
    fn enter(&mut self, metadata: Metadata, own: &SharedMetadata) -> Result<Arc<InternedMetadata>, Failure> {
        let bytes = ENTRY_BYTES + metadata.heap_bytes() as u64;
        let sum = self.bytes.saturating_add(bytes);
        if sum > self.limit {
            return Err(too_much(bytes, sum, self.limit));
        }
        let entry = Arc::new(InternedMetadata { metadata: metadata.clone(), bytes, table: own.clone() });
        // The key, too, is the new value: an old one would keep its memory.
        self.entries.remove(&metadata);
        self.entries.insert(metadata, Arc::downgrade(&entry));
        self.bytes = sum;
        self.peak = self.peak.max(sum);
        Ok(entry)
    }
}

// === impl InternedMetadata ===

impl Drop for InternedMetadata {
    fn drop(&mut self) {
        let mut table = self.table.0.lock();
        table.bytes -= self.bytes;
        // Another entry of the same value may have been made since the last tensor let go.
        if table.entries.get(&self.metadata).is_some_and(|entry| entry.strong_count() == 0) {
            table.entries.remove(&self.metadata);
        }
        if table.entries.capacity() > 64 && table.entries.len() < table.entries.capacity() / 8 {
            table.entries.shrink_to(64);
        }
    }
}

fn too_much(bytes: u64, sum: u64, limit: u64) -> Failure {
    let message = format!(
        "{bytes} bytes for these metadata would make {sum} for the metadata of all tensors, and they may take {limit} (an \
         eighth of arena.base): remove tensors, give many the same metadata, which are kept once, or raise arena.base"
    );
    let failure = Failure::new(Reason::LimitExceeded, message);
    failure.with("metadata_bytes", sum).with("metadata_bytes_max", limit)
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::{DType, Layout, Shape};

    use super::*;

    fn described(text: &str) -> Descriptor {
        let layout = Layout::contiguous(DType::U8, Shape::new(&[1]).unwrap()).unwrap();
        Descriptor { metadata: Metadata::new([("key", text)]).unwrap(), ..Descriptor::host(layout) }
    }

    /// Bytes that one such value takes.
    fn one() -> u64 {
        ENTRY_BYTES + described("a").metadata.heap_bytes() as u64
    }

    #[test]
    fn equal_metadata_are_one_value_until_the_last_tensor_goes() {
        let shared = SharedMetadata::new(10_000);
        let (first, second) = (shared.keep(described("a")).unwrap(), shared.keep(described("a")).unwrap());
        assert!(first.descriptor.metadata.is_same(&second.descriptor.metadata));
        assert_eq!(shared.bytes(), (one(), 10_000));
        let other = shared.keep(described("b")).unwrap();
        assert!(!other.descriptor.metadata.is_same(&first.descriptor.metadata));
        assert_eq!(shared.bytes().0, 2 * one());
        drop(first);
        assert_eq!(shared.bytes().0, 2 * one());
        drop(second);
        assert_eq!((shared.bytes().0, shared.0.lock().entries.len()), (one(), 1));
        drop(other);
        assert_eq!((shared.bytes().0, shared.0.lock().entries.len()), (0, 0));
    }

    #[test]
    fn metadata_without_entries_are_not_counted() {
        let shared = SharedMetadata::new(0);
        let plain = Descriptor { metadata: Metadata::default(), ..described("a") };
        assert!(shared.keep(plain).unwrap().kept.is_none());
        assert_eq!(shared.bytes(), (0, 0));
    }

    #[test]
    fn new_metadata_beyond_the_bound_are_refused_and_those_that_are_there_are_not() {
        let shared = SharedMetadata::new(2 * one());
        let kept = [shared.keep(described("a")).unwrap(), shared.keep(described("b")).unwrap()];
        let refused = shared.keep(described("c")).unwrap_err();
        assert_eq!(refused.reason, Reason::LimitExceeded);
        assert_eq!(refused.detail("metadata_bytes"), Some(&*(3 * one()).to_string()));
        assert!(refused.message.contains("an eighth of arena.base"), "{refused}");
        let again = shared.keep(described("b")).unwrap();
        drop(kept);
        let third = shared.keep(described("c")).unwrap();
        assert_eq!(shared.bytes().0, 2 * one());
        drop((again, third));
        assert_eq!(shared.bytes().0, 0);
    }

    #[test]
    fn a_table_that_loses_much_has_shrunk_once() {
        let shared = SharedMetadata::new(1 << 30);
        let many: Vec<_> =
            (0..2_600).map(|n| shared.keep(described(&n.to_string().repeat(1_000))).unwrap()).collect();
        assert!(shared.bytes().0 > SHRUNK_BYTES && !shared.has_shrunk());
        drop(many);
        assert!(shared.has_shrunk() && !shared.has_shrunk());
    }

    #[test]
    fn values_that_end_while_they_are_taken_again_leave_nothing_behind() {
        let shared = SharedMetadata::new(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..20_000 {
                        let kept = shared.keep(described(["a", "b"][n % 2])).unwrap();
                        drop(kept);
                    }
                });
            }
        });
        assert_eq!((shared.bytes().0, shared.0.lock().entries.len()), (0, 0));
    }
}
