//! References of mutable sets: `ts1:EXCHANGE/PEER/INCARNATION/ID/CRC`.

use std::fmt;
use std::str::FromStr;

use crate::checksum;
use crate::failure::{Failure, Reason};
use crate::identity::{ExchangeName, Incarnation, PeerName};

/// Longest reference of a set, in bytes.
pub const SET_REFERENCE_BYTES_MAX: usize = 300;
const SCHEME: &str = "ts1:";

/// Names a mutable set from anywhere, for as long as it is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetReference {
    /// The exchange.
    pub exchange: ExchangeName,
    /// Owner of the set.
    pub peer: PeerName,
    /// The life of the owner: a set in memory ends with it.
    pub incarnation: Incarnation,
    /// Number of the set at its owner.
    pub id: u64,
}

impl SetReference {
    /// Returns whether a text is meant as a reference of a set.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl fmt::Display for SetReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{SCHEME}{}/{}/{}/{}", self.exchange, self.peer, self.incarnation, self.id);
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
        let &[exchange, peer, incarnation, id, _] = parts.as_slice() else {
            return Err(malformed("it does not have five parts"));
        };
        let number = || id.parse::<u64>().ok();
        let read = (exchange.parse().ok(), peer.parse().ok(), incarnation.parse().ok(), number());
        let (Some(exchange), Some(peer), Some(incarnation), Some(id)) = read else {
            return Err(malformed("one of its parts cannot be read"));
        };
        let reference = Self { exchange, peer, incarnation, id };
        // One spelling each: what is written again must be the same.
        match reference.to_string() == text {
            true => Ok(reference),
            false => Err(malformed("its checksum is another one")),
        }
    }
}
