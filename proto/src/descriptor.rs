//! Knowledge of a tensor beside its bytes.
//!
//! Metadata is the user's: the exchange keeps it, bounds it and reads nothing into it.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use crate::device::Device;
use crate::layout::Layout;

/// The most entries of metadata.
pub const MAX_METADATA_ENTRIES: usize = 64;
/// The most bytes of a metadata key; the least is 1.
pub const MAX_METADATA_KEY_BYTES: usize = 128;
/// The most bytes of a metadata value.
pub const MAX_METADATA_VALUE_BYTES: usize = 4096;
/// The most bytes of all keys and values together.
pub const MAX_METADATA_BYTES: usize = 16 * 1024;

/// Layout, device and metadata: a tensor but for its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Dtype, shape, strides and byte length, proven to agree.
    pub layout: Layout,
    /// Device on which the bytes are.
    pub device: Device,
    /// Metadata that the user wrote beside it.
    pub metadata: Metadata,
}

impl Descriptor {
    /// A tensor in host memory without metadata.
    pub fn host(layout: Layout) -> Descriptor {
        Descriptor { layout, device: Device::Host, metadata: Metadata::default() }
    }
}

/// Metadata over a limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MetadataError {
    /// More than [`MAX_METADATA_ENTRIES`].
    #[error("more than {MAX_METADATA_ENTRIES} entries of metadata")]
    TooManyEntries,
    /// An empty key.
    #[error("a metadata key is empty")]
    EmptyKey,
    /// A key over [`MAX_METADATA_KEY_BYTES`].
    #[error("metadata key {key:?}... has {bytes} bytes; at most {MAX_METADATA_KEY_BYTES} are allowed")]
    KeyTooLong {
        /// The beginning of the key.
        key: String,
        /// Length of the key, in bytes.
        bytes: usize,
    },
    /// A value over [`MAX_METADATA_VALUE_BYTES`].
    #[error("metadata value of {key:?} has {bytes} bytes; at most {MAX_METADATA_VALUE_BYTES} are allowed")]
    ValueTooLong {
        /// The key.
        key: String,
        /// The bytes of the value.
        bytes: usize,
    },
    /// Everything together is over [`MAX_METADATA_BYTES`].
    #[error("metadata reaches {bytes} bytes at key {key:?}; at most {MAX_METADATA_BYTES} are allowed in all")]
    TooManyBytes {
        /// Key at which it went over.
        key: String,
        /// The bytes of all keys and values up to there.
        bytes: usize,
    },
    /// Key given twice.
    #[error("metadata key {key:?} is given twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
}

/// The user's words about a tensor, sorted by key, within the limits. Clones share one value, which never changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Metadata(Option<Arc<Entries>>);

/// Keys and values, sorted by key. At least one.
type Entries = [(Box<str>, Box<str>)];

/// Bytes that an allocation costs at least, and the unit in which it grows.
const ALLOCATION_BYTES: usize = 32;

impl Metadata {
    /// Takes entries until one goes over a limit; what comes after it is not looked at.
    ///
    /// # Errors
    /// A [`MetadataError`] that names the key and the sizes.
    pub fn new<K, V>(entries: impl IntoIterator<Item = (K, V)>) -> Result<Metadata, MetadataError>
    where
        K: Into<String>,
        V: Into<String>,
    {
        let mut taken = BTreeMap::new();
        let mut total = 0;
        for (key, value) in entries {
            let (key, value) = (key.into(), value.into());
            if taken.len() == MAX_METADATA_ENTRIES {
                return Err(MetadataError::TooManyEntries);
            }
            total += check_entry(&key, &value)?;
            if total > MAX_METADATA_BYTES {
                return Err(MetadataError::TooManyBytes { key, bytes: total });
            }
            if taken.contains_key(&key) {
                return Err(MetadataError::DuplicateKey { key });
            }
            taken.insert(key, value);
        }
        Ok(Metadata::sorted(taken))
    }

    fn sorted(entries: BTreeMap<String, String>) -> Metadata {
        if entries.is_empty() {
            return Metadata::default();
        }
        Metadata(Some(entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect()))
    }

    fn entries(&self) -> &Entries {
        self.0.as_deref().unwrap_or_default()
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        let entries = self.entries();
        let at = entries.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        entries.get(at).map(|(_, value)| &**value)
    }

    /// All entries, sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.entries().iter().map(|(key, value)| (&**key, &**value))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Bytes of memory that the value takes, however many share it: 0 where there is no entry. An estimate from above.
    pub fn heap_bytes(&self) -> usize {
        let texts = self.iter().map(|(key, value)| allocated(key.len()) + allocated(value.len()));
        let texts: usize = texts.sum();
        if self.is_empty() { 0 } else { texts + allocated(16 + size_of_val(self.entries())) }
    }

    /// Bytes of all keys and values.
    pub fn text_bytes(&self) -> usize {
        self.iter().map(|(key, value)| key.len() + value.len()).sum()
    }

    /// Returns whether two are one value in memory; those without entries are.
    pub fn is_same(&self, other: &Metadata) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

/// Bytes that an allocation of so many costs.
fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(ALLOCATION_BYTES) }
}

/// The bytes of an entry, if it is within its own limits.
fn check_entry(key: &str, value: &str) -> Result<usize, MetadataError> {
    if key.is_empty() {
        return Err(MetadataError::EmptyKey);
    }
    if key.len() > MAX_METADATA_KEY_BYTES {
        let shown = key.chars().take(32).collect();
        return Err(MetadataError::KeyTooLong { key: shown, bytes: key.len() });
    }
    if value.len() > MAX_METADATA_VALUE_BYTES {
        return Err(MetadataError::ValueTooLong { key: key.to_owned(), bytes: value.len() });
    }
    Ok(key.len() + value.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: usize, value: usize) -> Vec<(String, String)> {
        (0..count).map(|i| (format!("key-{i:03}"), "v".repeat(value))).collect()
    }

    #[test]
    fn metadata_at_its_limits_is_taken() {
        assert_eq!(Metadata::new(entries(64, 0)).unwrap().len(), 64);
        assert!(Metadata::new([("k".repeat(128), "v".repeat(4096))]).is_ok());
        let exact = 16 * 1024 - 4 * 7;
        assert!(Metadata::new(entries(4, exact / 4)).is_ok());
    }

    #[test]
    fn clones_share_one_value_and_equal_ones_need_not() {
        let one = Metadata::new([("b", "2"), ("a", "1")]).unwrap();
        let other = Metadata::new([("a", "1"), ("b", "2")]).unwrap();
        assert_eq!(one, other);
        assert!(one.is_same(&one.clone()) && !one.is_same(&other));
        assert!(Metadata::default().is_same(&Metadata::new(entries(0, 0)).unwrap()));
        assert_eq!((one.value("b"), one.value("c")), (Some("2"), None));
    }

    #[test]
    fn the_memory_of_metadata_is_at_least_that_of_their_texts() {
        assert_eq!(Metadata::default().heap_bytes(), 0);
        let small = Metadata::new([("k", "v")]).unwrap();
        assert_eq!(small.heap_bytes(), 64 + 2 * ALLOCATION_BYTES);
        let large = Metadata::new(entries(4, 4000)).unwrap();
        assert!((4 * 4007..4 * 4200).contains(&large.heap_bytes()), "{}", large.heap_bytes());
    }

    #[test]
    fn metadata_over_a_limit_is_refused_with_the_key() {
        assert_eq!(Metadata::new(entries(65, 0)), Err(MetadataError::TooManyEntries));
        assert_eq!(Metadata::new([("", "v")]), Err(MetadataError::EmptyKey));
        assert_eq!(
            Metadata::new([("k".repeat(129), "")]),
            Err(MetadataError::KeyTooLong { key: "k".repeat(32), bytes: 129 })
        );
        assert_eq!(
            Metadata::new([("a", "v".repeat(4097))]),
            Err(MetadataError::ValueTooLong { key: "a".into(), bytes: 4097 })
        );
        assert_eq!(
            Metadata::new(entries(4, 4090)),
            Err(MetadataError::TooManyBytes { key: "key-003".into(), bytes: 4 * 4097 })
        );
        assert_eq!(
            Metadata::new([("a", "1"), ("a", "2")]),
            Err(MetadataError::DuplicateKey { key: "a".into() })
        );
    }
}
