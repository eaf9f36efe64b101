//! Revisions of the names of a peer: what a watch has seen, and where it goes on.
//!
//! ```text
//! INCARNATION.SEQUENCE        00112233445566778899aabbccddeeff.42
//! ```
//! The names have revision 0 when an incarnation begins, and each change of a name makes the next one. Revisions of different
//! incarnations cannot be compared.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::failure::{Failure, Reason};
use crate::identity::Incarnation;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Revision {
    /// Incarnation of the peer.
    pub incarnation: Incarnation,
    /// Number of the latest change that is seen.
    pub sequence: u64,
}

/// A text that is no revision.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is no revision: 32 lower-case hexadecimal digits, '.' and a number, as a watch told it")]
pub struct RevisionError {
    /// The text, or the beginning of it.
    pub text: String,
}

impl From<RevisionError> for Failure {
    fn from(error: RevisionError) -> Self {
        Failure::new(Reason::InvalidArgument, error.to_string())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.incarnation, self.sequence)
    }
}

impl FromStr for Revision {
    type Err = RevisionError;

    fn from_str(text: &str) -> Result<Self, RevisionError> {
        let read = || {
            let (incarnation, sequence) = text.split_once('.')?;
            let revision = Self { incarnation: incarnation.parse().ok()?, sequence: sequence.parse().ok()? };
            // There is one spelling: no sign, no leading zero.
            (revision.to_string() == text).then_some(revision)
        };
        read().ok_or_else(|| RevisionError { text: text.chars().take(80).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_has_one_spelling() {
        let text = "00000000000000000000000000000a0f.42";
        let revision = Revision { incarnation: Incarnation(0xa0f), sequence: 42 };
        assert_eq!((text.parse(), revision.to_string()), (Ok(revision), text.to_owned()));
        for bad in ["", "42", ".42", &text[..33], &text.replace(".42", ".+42"), &text.replace(".42", ".042")]
        {
            assert!(bad.parse::<Revision>().is_err(), "{bad}");
        }
        let (long, max) = ("x".repeat(10_000), text.replace("42", "18446744073709551616"));
        assert_eq!(long.parse::<Revision>().unwrap_err().text.len(), 80);
        assert!(max.parse::<Revision>().is_err());
    }
}
