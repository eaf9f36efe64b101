//! Requirement that a caller insists on.

use std::fmt;
use std::str::FromStr;

/// The classes of route that a caller insists on; all of them have to be met, or nothing is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Require {
    /// No byte is copied between the block and the reader's map.
    pub zero_copy: bool,
    /// The bytes stay on their node.
    pub same_node: bool,
    /// Nothing leaves the node unencrypted.
    pub encrypted: bool,
}

impl Require {
    /// Nothing: any route will do.
    pub const NONE: Require = Require { zero_copy: false, same_node: false, encrypted: false };
    /// Not a byte copied.
    pub const ZERO_COPY: Require = Require { zero_copy: true, ..Require::NONE };
    /// Node in common.
    pub const SAME_NODE: Require = Require { same_node: true, ..Require::NONE };
    /// Encrypted, or never on a wire.
    pub const ENCRYPTED: Require = Require { encrypted: true, ..Require::NONE };

    /// Both sets of requirements together.
    #[must_use]
    pub const fn and(self, other: Require) -> Require {
        Require {
            zero_copy: self.zero_copy || other.zero_copy,
            same_node: self.same_node || other.same_node,
            encrypted: self.encrypted || other.encrypted,
        }
    }
}

/// `zero_copy,encrypted`; nothing for none.
impl fmt::Display for Require {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all =
            [("zero_copy", self.zero_copy), ("same_node", self.same_node), ("encrypted", self.encrypted)];
        let mut separator = "";
        for (word, _) in all.into_iter().filter(|&(_, set)| set) {
            write!(f, "{separator}{word}")?;
            separator = ",";
        }
        Ok(())
    }
}

/// A word that is no requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown requirement {0:?}; there are zero_copy, same_node and encrypted")]
pub struct UnknownRequirement(pub String);

/// Reads what [`Display`](fmt::Display) prints, in any order.
impl FromStr for Require {
    type Err = UnknownRequirement;

    fn from_str(text: &str) -> Result<Require, UnknownRequirement> {
        text.split(',').filter(|word| !word.is_empty()).try_fold(Require::NONE, |require, word| {
            let one = match word {
                "zero_copy" => Require::ZERO_COPY,
                "same_node" => Require::SAME_NODE,
                "encrypted" => Require::ENCRYPTED,
                _ => return Err(UnknownRequirement(word.to_owned())),
            };
            Ok(require.and(one))
        })
    }
}
