//! The rows as a table for people and as JSON for programs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use tensorlane_benches::stats::Spread;
use tensorlane_benches::style::Style;
use tensorlane_benches::text;

use crate::rows::{Bound, Measured};

/// A single row of the file. The names of the fields are read by others.
#[derive(Debug, Serialize)]
struct JsonRow<'a> {
    name: &'static str,
    value: Option<f64>,
    unit: &'static str,
    limit: Option<f64>,
    ratio: Option<f64>,
    n: usize,
    /// Note, if anything else is worth saying.
    note: Option<&'a str>,
    /// The rule besides the bound that was broken: with one the row misses, whatever its number is.
    breach: Option<&'a str>,
}

/// Writes the medians of each row.
pub(crate) fn write_json(path: &Path, rows: &[Measured]) -> Result<()> {
    fs::write(path, json(rows)?).with_context(|| format!("cannot write {}", path.display()))
}

/// A list with one row a line.
fn json(rows: &[Measured]) -> Result<String> {
    let lines = rows.iter().map(|measured| {
        serde_json::to_string(&JsonRow {
            name: measured.row.name,
            value: measured.value().map(|value| value.median),
            unit: measured.row.unit,
            limit: measured.limit().map(|limit| limit.median),
            ratio: measured.ratio(),
            n: measured.pairs.len(),
            note: measured.note.as_deref(),
            breach: measured.breach.as_deref(),
        })
    });
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    Ok(format!("[\n  {}\n]\n", lines.join(",\n  ")))
}

/// The table: medians, in brackets where the middle 80 % lie.
pub(crate) fn table(rows: &[Measured], style: Style) -> String {
    let head = format!(
        "{:31}{:9}  {:>26}  {:>26}  {:>6}  {:>10}  result",
        "row", "unit", "value", "limit", "ratio", "must be"
    );
    let mut text = style.strong(&head);
    for measured in rows {
        let row = measured.row;
        text += &format!(
            "\n{:31}{:9}  {:>26}  {:>26}  {:>6}  {:>10}  {}",
            row.name,
            row.unit,
            measured.value().map_or_else(String::new, spread),
            measured.limit().map_or_else(String::new, spread),
            measured.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            bound(row.bound),
            verdict(measured, style),
        );
        for note in measured.note.iter().chain(&measured.breach) {
            text += &format!("\n    {}", style.faint(note));
        }
    }
    text
}

/// Legend: what each limit is.
pub(crate) fn legend(rows: &[Measured], style: Style) -> String {
    let limits = rows.iter().map(|measured| format!("  {:31}{}", measured.row.name, measured.row.limit));
    let lines = limits.map(|line| style.faint(&line)).collect::<Vec<_>>();
    format!("{}\n{}", style.strong("limits"), lines.join("\n"))
}

fn verdict(measured: &Measured, style: Style) -> String {
    match measured.passes() {
        None => style.faint("reported"),
        Some(true) => style.good("PASS"),
        Some(false) => style.bad("MISS"),
    }
}

fn bound(bound: Bound) -> String {
    match bound {
        Bound::RatioAtMost(bound) => format!("<= {bound}"),
        Bound::RatioAtLeast(bound) => format!(">= {bound}"),
        Bound::AboveAtMost(bound) => format!("<= +{}", number(bound)),
        Bound::ValueAtMost(bound) => format!("<= {}", number(bound)),
        Bound::ValueAtLeast(bound) => format!(">= {}", number(bound)),
        Bound::Reported => String::new(),
    }
}

fn spread(spread: Spread) -> String {
    format!("{} [{} .. {}]", number(spread.median), number(spread.low), number(spread.high))
}

fn number(value: f64) -> String {
    if value >= 10_000.0 { text::grouped(value.round() as u64) } else { text::digits(value) }
}

#[cfg(test)]
mod tests {
    use tensorlane_benches::pairs::Pair;

    use super::*;
    use crate::rows;

    fn sample() -> Vec<Measured> {
        let mut put = Measured::new(&rows::PUT_COPY_1G, vec![Pair { value: 12.0, limit: Some(16.0) }; 11]);
        put.breach = Some("7 page faults".into());
        let batch = vec![Pair { value: 612_345.6, limit: None }; 13];
        let note = Some("by \"shm\"".into());
        vec![put, Measured { note, ..Measured::new(&rows::BATCH_ACQUIRE_4K, batch) }]
    }

    #[test]
    fn the_file_has_the_agreed_fields_and_null_where_there_is_no_limit() {
        assert_eq!(
            json(&sample()).unwrap(),
            r#"[
  {"name":"local.put_copy_1g","value":12.0,"unit":"GB/s","limit":16.0,"ratio":0.75,"n":11,"note":null,"breach":"7 page faults"},
  {"name":"local.batch_acquire_4k","value":612345.6,"unit":"tensors/s","limit":null,"ratio":null,"n":13,"note":"by \"shm\"","breach":null}
]
"#
        );
    }

    #[test]
    fn the_table_says_what_was_missed_and_why() {
        let table = table(&sample(), Style::plain());
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[1].contains("12.0 [12.0 .. 12.0]") && lines[1].ends_with("0.75     >= 0.95  MISS"),
            "{table}"
        );
        assert_eq!(lines[2].trim(), "7 page faults");
        assert!(lines[3].contains("612,346 [") && lines[3].ends_with(">= 500,000  PASS"), "{table}");
    }
}
