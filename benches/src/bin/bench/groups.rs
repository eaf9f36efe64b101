//! Groups of rows that are measured together, each by itself: one that fails leaves the others.

use anyhow::Result;
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::{machine, undo};

use crate::context::Bench;
use crate::rows::{Measured, Row};

/// Rows that are measured together.
pub(crate) struct Group {
    pub(crate) rows: &'static [&'static Row],
    pub(crate) measure: fn(&Bench) -> Result<Vec<Measured>>,
}

/// Every row of some groups, in order.
pub(crate) fn rows(groups: &'static [Group]) -> impl Iterator<Item = &'static Row> {
    groups.iter().flat_map(|group| group.rows.iter().copied())
}

/// Measures the groups of which a row is asked for. Of a group that fails every row says what it failed with.
pub(crate) fn measure(bench: &Bench, groups: &[Group]) -> Vec<Measured> {
    let mut measured = Vec::new();
    for group in groups.iter().filter(|group| bench.wants(group.rows)) {
        match (group.measure)(bench) {
            Ok(rows) => measured.extend(rows.into_iter().filter(|row| bench.wants(&[row.row]))),
            Err(why) => {
                undo::unless_signalled();
                let wanted = group.rows.iter().filter(|row| bench.wants(&[row]));
                measured.extend(wanted.map(|row| Measured::missing(row, &format!("{why:#}"))));
            }
        }
    }
    measured
}

/// Two new hosts, said.
pub(crate) fn two_hosts(bench: &Bench) -> TwoHosts {
    let hosts = TwoHosts::make();
    bench.progress(&format!("{hosts}; congestion control {}", machine::congestion_control()));
    hosts
}
