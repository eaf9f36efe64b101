//! Context of every row: the machine, the programs, the rows that are asked for.

use std::path::PathBuf;

use tensorlane_benches::cores::Cores;
use tensorlane_benches::style::Style;

use crate::rows::Row;

/// Pairs of every row: value and limit, one after the other.
pub(crate) const PAIRS: usize = 15;
/// Pairs before them that do not count.
pub(crate) const WARM_UP: usize = 2;

/// Bench: what every row needs.
pub(crate) struct Bench {
    pub(crate) cores: Cores,
    /// Directory of the programs that are measured.
    pub(crate) programs: PathBuf,
    pub(crate) style: Style,
    /// The rows that are measured; none: all.
    pub(crate) only: Vec<String>,
}

impl Bench {
    /// True if any of these rows is asked for.
    pub(crate) fn wants(&self, rows: &[&Row]) -> bool {
        self.only.is_empty() || rows.iter().any(|row| self.only.iter().any(|only| only == row.name))
    }

    /// Says what is being measured.
    pub(crate) fn progress(&self, what: &str) {
        println!("{}", self.style.faint(&format!("  {what}")));
    }
}
