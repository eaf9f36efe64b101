//! Mutable sets: a fixed layout of leaves, and rows that change. What rows are meant, where they lie, and which commit comes next.
//!
//! ```text
//!   SetLayout   leaves ── row bytes ── bands: rows that lie in one piece of memory, all leaves of them together
//!   RowList     rows that are read or written, proven to be there
//!   Commits     version, cursor of extensions, commits that may be repeated
//!   Holds       rows that are mapped, and commits that wait for them
//!   Intent, Record, Torn   what a set on files keeps beside its rows
//!   JournalHead  in front of what a commit writes, in the journal of a set that survives a loss of power
//!   Plan        the directory of a set on files: its files, and `meta.json` of each level
//! ```
//!
//! All of it is pure: no byte of a row is seen here.

mod commits;
#[cfg(feature = "set")]
mod directory;
#[cfg(test)]
mod histories;
mod holds;
mod journal;
mod layout;
mod list;
mod record;
mod reference;
#[cfg(test)]
mod tests;
mod torn;

pub use commits::{Commits, Committed, REPEATS_MAX};
#[cfg(feature = "set")]
pub use directory::{Found, Plan, PlannedFile, tree_of};
pub use holds::{HOLDS_MAX, HeldRows, HoldId, Holds, Touched, WaitId};
pub use journal::{JOURNAL_FILE, JOURNAL_HEAD_BYTES, JournalHead, check_journal_entry};
pub use layout::{BAND_BYTES, Leaf, Run, SET_ROWS_MAX, SETS_LEAVES_MAX, SetLayout};
pub use list::RowList;
pub use record::{
    COMMITS_FILE, INTENT_BYTES_MAX, INTENTS_MAX, Intent, NO_INTENT, RECORD_BYTES, Record, intent_file,
};
pub use reference::{SET_REFERENCE_BYTES_MAX, SetId, SetReference};
pub use torn::{TORN_FILE, Torn};
