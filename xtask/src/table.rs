//! The table at the end of a test run.

use std::time::Duration;

use crate::counts::Counts;
use crate::style::Style;

/// Verdict on how a part ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything in it passed.
    Ok,
    /// Something in it failed.
    Failed,
    /// Left out, for this reason.
    Skipped(String),
}

/// A single line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) part: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) counts: Counts,
    pub(crate) took: Duration,
}

/// Number of the slowest suites that are named.
const SLOWEST: usize = 5;

/// The table: one line a part, columns aligned, and the wall time of the whole run. Parts overlap, so their minutes
/// add up to more.
pub(crate) fn table(rows: &[Row], took: Duration, style: Style) -> String {
    let mut text = style.strong("part      | result  | passed | failed | skipped | minutes");
    for row in rows {
        let result = match row.verdict {
            Verdict::Ok => style.good("ok     "),
            Verdict::Failed => style.bad("FAILED "),
            Verdict::Skipped(_) => style.warned("SKIPPED"),
        };
        let Counts { passed, failed, skipped } = row.counts;
        let minutes = row.took.as_secs_f64() / 60.0;
        text +=
            &format!("\n{:9} | {result} | {passed:6} | {failed:6} | {skipped:7} | {minutes:7.1}", row.part);
    }
    let all = took.as_secs_f64() / 60.0;
    text + &format!("\n{:9} |         |        |        |         | {all:7.1}", "whole run")
}

/// Lines that name the slowest test programs, slowest first.
pub(crate) fn slowest(mut suites: Vec<(String, Duration)>) -> String {
    suites.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    let line = |(name, took): &(String, Duration)| format!("\nslow: {:6.1} s {name}", took.as_secs_f64());
    suites.iter().take(SLOWEST).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_the_table_are_aligned() {
        let row = |part, verdict, counts, seconds| Row {
            part,
            verdict,
            counts,
            took: Duration::from_secs(seconds),
        };
        let rows = [
            row("unit", Verdict::Ok, Counts { passed: 132, failed: 0, skipped: 2 }, 90),
            row("local", Verdict::Failed, Counts { passed: 10, failed: 1, skipped: 0 }, 6),
            row("netns", Verdict::Skipped("needs root".into()), Counts::SKIPPED, 0),
        ];
        assert_eq!(
            table(&rows, Duration::from_secs(93), Style::plain()),
            "part      | result  | passed | failed | skipped | minutes\n\
             unit      | ok      |    132 |      0 |       2 |     1.5\n\
             local     | FAILED  |     10 |      1 |       0 |     0.1\n\
             netns     | SKIPPED |      0 |      0 |       1 |     0.0\n\
             whole run |         |        |        |         |     1.6"
        );
    }

    #[test]
    fn the_slowest_suites_are_named_slowest_first() {
        let suite = |name: &str, seconds: u64| (name.to_owned(), Duration::from_millis(seconds * 1000));
        let suites = (0..9).map(|number| suite(&format!("s{number}"), number)).collect();
        let text = slowest(suites);
        assert!(text.starts_with("\nslow:    8.0 s s8\n"), "{text}");
        assert_eq!(text.lines().count(), 1 + SLOWEST);
        assert_eq!(slowest(Vec::new()), "");
    }
}
