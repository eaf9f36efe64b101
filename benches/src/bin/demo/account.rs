//! Account of the demo: steps while they happen, and a table of all of them at the end.

use std::time::Duration;

use tensorlane_benches::style::Style;
use tensorlane_benches::text;

/// Legend of the columns.
const LEGEND: &str = "
of the limit: the rate, by what this machine does without Tensorlane, measured in turns with it: for a put a warm
              memcpy, for a get one bare TLS 1.3 connection. (What step 1 says of both was measured before
              anything else ran, and is often more.) 1.00 is as fast as that, and more is faster:
              large copies go around the caches, TLS without rustls's buffers; - is where no bytes have to move (a map), or too few to tell. The
              first time pays for what is kept afterwards: memory, maps, and the connection's windows.
path:         local is mapped memory of the same sidecar; tcp is TLS 1.3 between the two. \"not shm:\" says why no
              better path was taken: these two share no directory of a node.";

/// A single line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Work that was done.
    pub(crate) what: String,
    /// Bytes that moved.
    pub(crate) moved: u64,
    /// By which path.
    pub(crate) path: String,
    /// Time that it took.
    pub(crate) took: Duration,
    /// Rate of ours by the limit of this machine on that path; none if there is no limit to compare with.
    pub(crate) of_limit: Option<f64>,
}

/// The account of one run.
#[derive(Debug)]
pub(crate) struct Account {
    style: Style,
    steps: u32,
    lines: Vec<Line>,
}

impl Account {
    pub(crate) fn new(style: Style) -> Self {
        Self { style, steps: 0, lines: Vec::new() }
    }

    /// A new step begins.
    pub(crate) fn step(&mut self, what: &str) {
        self.steps += 1;
        println!("\n{}", self.style.strong(&format!("{}. {what}", self.steps)));
    }

    /// Something about the present step.
    pub(crate) fn say(&self, what: &str) {
        println!("   {what}");
    }

    /// Something of the present step that was checked and holds.
    pub(crate) fn holds(&self, what: &str) {
        println!("   {} {what}", self.style.good("ok"));
    }

    /// Something was done: told now, and once more in the table.
    pub(crate) fn did(&mut self, line: Line) {
        self.say(&format!(
            "{}: {} by {} in {}",
            line.what,
            text::bytes(line.moved),
            line.path,
            text::time(line.took)
        ));
        self.lines.push(line);
    }

    /// The table.
    pub(crate) fn table(&self) -> String {
        let head = format!(
            "{:44}  {:>9}  {:>8}  {:>10}  {:>12}  path",
            "what", "moved", "time", "rate", "of the limit"
        );
        let lines = self.lines.iter().map(|line| {
            let rate = (line.moved > 0).then(|| line.moved as f64 / line.took.as_secs_f64());
            format!(
                "{:44}  {:>9}  {:>8}  {:>10}  {:>12}  {}",
                line.what,
                text::bytes(line.moved),
                text::time(line.took),
                rate.map_or_else(|| "-".into(), text::rate),
                line.of_limit.map_or_else(|| "-".into(), |share| format!("{share:.2}")),
                line.path,
            )
        });
        [self.style.strong(&head)].into_iter().chain(lines).collect::<Vec<_>>().join("\n") + "\n" + LEGEND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_compares_with_the_limit_where_bytes_moved() {
        let mut account = Account::new(Style::plain());
        let line = Line {
            what: "get".into(),
            moved: 1_000_000,
            path: "tcp".into(),
            took: Duration::from_millis(1),
            of_limit: Some(0.5),
        };
        account.did(line.clone());
        account.did(Line { what: "map".into(), moved: 0, path: "local".into(), of_limit: None, ..line });
        let table = account.table();
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[1].starts_with("get ") && lines[1].ends_with("1.00 GB/s          0.50  tcp"),
            "{table}"
        );
        assert!(lines[2].starts_with("map ") && lines[2].ends_with("-             -  local"), "{table}");
    }
}
