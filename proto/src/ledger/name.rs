//! The name of a tensor, valid by construction.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// A name within a peer: 1 to 512 bytes of UTF-8, no control characters, no `/` at either end, not as a reference begins. Cloning
/// is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorName(Arc<str>);

/// Reason for which a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing there.
    #[error("a name must not be empty")]
    Empty,
    /// Too long.
    #[error("a name of {bytes} bytes is too long: at most {} are allowed", TensorName::BYTES_MAX)]
    TooLong {
        /// Length of the name, in bytes.
        bytes: usize,
    },
    /// Would break listings and logs.
    #[error("a name must not contain control characters: found {found:?} at byte {at}")]
    Control {
        /// The character.
        found: char,
        /// Byte offset of the character.
        at: usize,
    },
    /// Begins as a reference: commands and clients that take both would misread it.
    #[error("a name must not begin with {REFERENCE_BEGINS:?}, as references do: {name:?}")]
    Reference {
        /// The text.
        name: String,
    },
    /// `peer/name` must split in one way only.
    #[error("a name must not start or end with '/': {name:?}")]
    Slash {
        /// The text.
        name: String,
    },
}

/// Beginning of every reference.
const REFERENCE_BEGINS: &str = "tl1:";

impl TensorName {
    /// The longest name in bytes. Longer ones cost that much in every listing.
    pub const BYTES_MAX: usize = 512;

    /// Checks a text.
    ///
    /// # Errors
    /// [`NameError`], with what is wrong.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > Self::BYTES_MAX {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        if let Some((at, found)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return Err(NameError::Control { found, at });
        }
        if text.starts_with(REFERENCE_BEGINS) {
            return Err(NameError::Reference { name: text.to_owned() });
        }
        if text.starts_with('/') || text.ends_with('/') {
            return Err(NameError::Slash { name: text.to_owned() });
        }
        Ok(Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for TensorName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

/// Lets a map of names be asked with a plain text.
impl Borrow<str> for TensorName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_names() {
        for text in ["a", "model/layer.0/weight", "Gewichte für größere Netze", &"x".repeat(512)] {
            assert_eq!(TensorName::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn each_mistake_is_told_with_its_value() {
        assert_eq!(TensorName::new(""), Err(NameError::Empty));
        assert_eq!(TensorName::new(&"x".repeat(513)), Err(NameError::TooLong { bytes: 513 }));
        assert_eq!(TensorName::new("a\nb"), Err(NameError::Control { found: '\n', at: 1 }));
        assert_eq!(TensorName::new("é\u{85}"), Err(NameError::Control { found: '\u{85}', at: 2 }));
        for text in ["/", "/a", "a/"] {
            assert_eq!(TensorName::new(text), Err(NameError::Slash { name: text.into() }));
        }
    }
}
