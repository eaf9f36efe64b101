//! Knowledge of a tensor beside its bytes.
//!
//! Metadata is the user's: the exchange keeps it, bounds it and reads nothing into it.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::device::Device;
use crate::layout::Layout;

/// The most entries of metadata.
pub const MAX_METADATA_ENTRIES: usize = 64;
/// The most bytes of a metadata key; the least is 1.
pub const MAX_METADATA_KEY_BYTES: usize = 128;
/// The most bytes of a metadata value.
pub const MAX_METADATA_VALUE_BYTES: usize = 4096;
/// The most bytes of all keys and values together. Each tensor of a ledger may cost that much of its heap.
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

/// The user's words about a tensor, sorted by key, within the limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Metadata(BTreeMap<String, String>);

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
        Ok(Metadata(taken))
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// All entries, as they are kept.
    pub(crate) const fn entries(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// All entries, sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
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
