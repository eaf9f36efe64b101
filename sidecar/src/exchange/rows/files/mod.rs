//! Mutable sets on files: directories of tensordict below `sets.root`, which this sidecar reads and writes by offsets and never maps.
//!
//! ```text
//!   ROOT/replay/ meta.json                 as tensordict writes it
//!                obs.memmap                 rows of a leaf; sparse at first
//!                .tensorlane/ set.json      identity of the set, true types, digest of the layout
//!                             commits       a ring of the last 1,024 commits: version, cursor, retry id
//!                             intent-NN     rows that a commit is writing; NN is the lowest lock that it holds
//!                             journal       new rows of commits that survive a loss of power, until they are synced where they belong
//!                             torn          rows that commits of dead lives were writing
//! ```
//!
//! A commit to files, under the locks of its rows: blocks are reserved, so that a full disk refuses it before a byte is changed; the
//! intent; the rows; the record; the intent is taken back. What a killed sidecar leaves of it is its intent, and the next
//! life says TORN_ROWS of these rows until they are written again. Where commits survive a loss of power there is no intent, but the
//! `journal`, which is on the disk before the rows change and is done again by the next life.
//!
//! No part of a path may be a link. A directory that was removed or replaced is noticed at the next call.

mod create;
mod descriptors;
mod failure;
mod journal;
mod keep;
mod medium;
mod open;
mod root;
mod rows;
#[cfg(test)]
mod tests;

pub(super) use self::create::taken;
pub(super) use self::keep::Identity;
pub(super) use self::open::{Directory, check_layout, check_terms, reference};
pub(super) use self::root::DirectoryName;
pub(in crate::exchange) use self::root::{Root, RootLimits};
pub(super) use self::rows::{FileSet, NewBytes};

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;

/// Durability of a set: what survives whose end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Durability {
    /// Commits survive the process of the sidecar; rows that were being written may be mixed.
    None,
    /// And rows that were being written are known.
    #[default]
    Process,
    /// Commits survive a loss of power, whole.
    Disk,
}

impl Durability {
    /// Reads the word of a request; none where it has none.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for what is none that this release knows.
    pub(super) fn asked(number: i32) -> Result<Option<Self>, Failure> {
        match v1::SetDurability::try_from(number) {
            Ok(v1::SetDurability::Unspecified) => Ok(None),
            Ok(v1::SetDurability::Process) => Ok(Some(Self::Process)),
            Ok(v1::SetDurability::None) => Ok(Some(Self::None)),
            Ok(v1::SetDurability::Disk) => Ok(Some(Self::Disk)),
            Err(_) => {
                let what = format!(
                    "the durability {number} is none that this release knows; use none, process or disk"
                );
                Err(Failure::new(Reason::InvalidArgument, what))
            }
        }
    }

    pub(super) const fn message(self) -> v1::SetDurability {
        match self {
            Self::None => v1::SetDurability::None,
            Self::Process => v1::SetDurability::Process,
            Self::Disk => v1::SetDurability::Disk,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Process => "process",
            Self::Disk => "disk",
        }
    }

    pub(super) fn by_word(word: &str) -> Option<Self> {
        [Self::None, Self::Process, Self::Disk].into_iter().find(|durability| durability.as_str() == word)
    }
}
