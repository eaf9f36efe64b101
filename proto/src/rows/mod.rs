//! Mutable sets: a fixed layout of leaves, and rows that change. What rows are meant, where they lie, and which commit comes next.
//!
//! ```text
//!   SetLayout   leaves ── row bytes ── bands: rows that lie in one piece of memory, all leaves of them together
//!   RowList     rows that are read or written, proven to be there
//!   Commits     version, cursor of extensions, commits that may be repeated
//! ```
//!
//! All of it is pure: no byte of a row is seen here.

mod commits;
#[cfg(test)]
mod histories;
mod layout;
mod list;
mod reference;
#[cfg(test)]
mod tests;

pub use commits::{Commits, Committed, REPEATS_MAX};
pub use layout::{BAND_BYTES, Leaf, Run, SET_ROWS_MAX, SETS_LEAVES_MAX, SetLayout};
pub use list::RowList;
pub use reference::{SET_REFERENCE_BYTES_MAX, SetReference};
