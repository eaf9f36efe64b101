//! References of mutable sets: `ts1:EXCHANGE/PEER/INCARNATION/ID/CRC` in memory, `ts1:EXCHANGE/PEER/files/ID/CRC` on files.

use std::fmt;
use std::str::FromStr;

use crate::checksum;
use crate::failure::{Failure, Reason};
use crate::identity::{ExchangeName, Incarnation, PeerName};

/// Longest reference of a set, in bytes.
pub const SET_REFERENCE_BYTES_MAX: usize = 300;
const SCHEME: &str = "ts1:";
/// Word in the place of an incarnation, of sets that survive it. No incarnation is written so.
const FILES: &str = "files";

/// Names a mutable set from anywhere, for as long as it is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetReference {
    /// The exchange.
    pub exchange: ExchangeName,
    /// Owner of the set.
    pub peer: PeerName,
    /// The set at its owner.
    pub id: SetId,
}

/// Identity of a mutable set at its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetId {
    /// A set in memory, which ends with that life of its owner.
    Memory {
        /// The life of the owner.
        incarnation: Incarnation,
        /// Number of the set in that life.
        number: u64,
    },
    /// A set on files, by random bits that are kept beside them.
    Files(u128),
}

impl SetId {
    /// The life of the owner that the set ends with; none for one that survives it.
    pub const fn incarnation(self) -> Option<Incarnation> {
        match self {
            Self::Memory { incarnation, .. } => Some(incarnation),
            Self::Files(_) => None,
        }
    }

    fn read(life: &str, id: &str) -> Option<Self> {
        match life {
            FILES => u128::from_str_radix(id, 16).ok().map(Self::Files),
            life => Some(Self::Memory { incarnation: life.parse().ok()?, number: id.parse().ok()? }),
        }
    }
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { incarnation, number } => write!(f, "{incarnation}/{number}"),
            Self::Files(id) => write!(f, "{FILES}/{id:032x}"),
        }
    }
}

impl SetReference {
    /// Returns whether a text is meant as a reference of a set.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl fmt::Display for SetReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{SCHEME}{}/{}/{}", self.exchange, self.peer, self.id);
        write!(f, "{text}/{:08x}", checksum::crc32c(text.as_bytes()))
    }
}

impl FromStr for SetReference {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let malformed = |what: &str| {
            let shown: String = text.chars().take(64).collect();
            let what = format!("{shown:?} is no reference of a set: {what}; copy it whole");
            Failure::new(Reason::ReferenceMalformed, what)
        };
        if text.len() > SET_REFERENCE_BYTES_MAX {
            return Err(malformed("it is too long"));
        }
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| malformed("it does not begin with ts1:"))?;
        let parts: Vec<&str> = rest.split('/').collect();
        let &[exchange, peer, life, id, _] = parts.as_slice() else {
            return Err(malformed("it does not have five parts"));
        };
        let read = (exchange.parse().ok(), peer.parse().ok(), SetId::read(life, id));
        let (Some(exchange), Some(peer), Some(id)) = read else {
            return Err(malformed("one of its parts cannot be read"));
        };
        let reference = Self { exchange, peer, id };
        // One spelling each: what is written again must be the same.
        match reference.to_string() == text {
            true => Ok(reference),
            false => Err(malformed("its checksum is another one")),
        }
    }
}
