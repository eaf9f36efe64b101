//! The table at the end of a test run.

use std::time::Duration;

use crate::counts::Counts;
use crate::style::Style;

/// How a part ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything in it passed.
    Ok,
    /// Something in it failed.
    Failed,
    /// It was left out, for this reason.
    Skipped(String),
}

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) part: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) counts: Counts,
    pub(crate) took: Duration,
}

/// The table: one line a part, columns aligned.
pub(crate) fn table(rows: &[Row], style: Style) -> String {
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
    text
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
            table(&rows, Style::plain()),
            "part      | result  | passed | failed | skipped | minutes\n\
             unit      | ok      |    132 |      0 |       2 |     1.5\n\
             local     | FAILED  |     10 |      1 |       0 |     0.1\n\
             netns     | SKIPPED |      0 |      0 |       1 |     0.0"
        );
    }
}
