//! Reads what libtest says about its tests, and adds it up.

use std::ops::AddAssign;
use std::time::Duration;

use crate::pytest;

/// Numbers of tests by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Counts {
    /// Check that passed.
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    /// Check that failed.
    pub(crate) const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
    /// Suite that was left out.
    pub(crate) const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    /// The closing line of a whole run.
    pub(crate) fn closing_line(self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Report in the output of one or many test programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The sum over all programs.
    pub(crate) counts: Counts,
    /// Tests that a filter left out.
    pub(crate) filtered_out: u64,
    /// Programs and names of tests that failed.
    pub(crate) failed: Vec<String>,
    /// Programs and names of tests that ignore themselves, with the reason where one is given.
    pub(crate) ignored: Vec<String>,
    /// Programs and what they say of cases that they did again (`tests/src/standstill.rs`).
    pub(crate) again: Vec<String>,
    /// Programs, with the time that their tests took.
    pub(crate) suites: Vec<(String, Duration)>,
}

/// Reads the output of `cargo test`, or of pytest.
pub(crate) fn report(output: &str) -> Report {
    let mut report = Report::default();
    let mut program = "";
    for line in output.lines() {
        if let Some(begun) = program_line(line) {
            program = begun;
        } else if let Some((counts, filtered_out)) = closing_line(line) {
            report.counts += counts;
            report.filtered_out += filtered_out;
            report.suites.extend(time_in(line).map(|took| (program.to_owned(), took)));
        } else if let Some(case) = line.strip_prefix("AGAIN ") {
            report.again.push(format!("{program} {case}"));
        } else if let Some((counts, took)) = pytest::closing_line(line) {
            report.counts += counts;
            report.suites.push((pytest::NAME.to_owned(), took));
        } else if let Some(name) = pytest::failed(line) {
            report.failed.push(name.to_owned());
        } else if let Some(reason) = pytest::skipped(line) {
            report.ignored.push(reason.to_owned());
        } else if let Some((name, result)) = test_line(line) {
            let name = format!("{program} {name}");
            match result.split_once(", ").unwrap_or((result, "")) {
                ("FAILED", _) => report.failed.push(name.trim().to_owned()),
                ("ignored", "") => report.ignored.push(name.trim().to_owned()),
                ("ignored", reason) => report.ignored.push(format!("{}: {reason}", name.trim())),
                _ => {}
            }
        }
    }
    report
}

/// Last words that failed tests printed themselves, a title before each, as test programs repeat it before they end.
pub(crate) fn last_words(output: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut inside = false;
    for line in output.lines() {
        let title = line.starts_with("---- ") && line.ends_with(" stdout ----");
        // After the last one comes the list of names.
        inside = title || (inside && line != "failures:");
        if inside && !line.is_empty() {
            words.push(line);
        }
    }
    words
}

/// The program in `Running tests/local_put.rs (target/release/deps/local_put-0123abcd)`, the crate in
/// `Doc-tests tensorlane_client`.
fn program_line(line: &str) -> Option<&str> {
    if let Some(name) = line.trim_start().strip_prefix("Doc-tests ") {
        return Some(name);
    }
    let (_, path) = line.trim_start().strip_prefix("Running ")?.strip_suffix(')')?.rsplit_once('(')?;
    let file = path.rsplit('/').next()?;
    Some(file.rsplit_once('-').map_or(file, |(name, _)| name))
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s`
fn closing_line(line: &str) -> Option<(Counts, u64)> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    let mut filtered_out = 0;
    for item in numbers.split("; ") {
        let Some((number, what)) = item.split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match what {
            "passed" => counts.passed = number,
            "failed" => counts.failed = number,
            "ignored" => counts.skipped = number,
            "filtered out" => filtered_out = number,
            _ => {}
        }
    }
    Some((counts, filtered_out))
}

/// The time in a closing line of libtest.
fn time_in(line: &str) -> Option<Duration> {
    let (_, seconds) = line.rsplit_once("finished in ")?;
    Duration::try_from_secs_f64(seconds.strip_suffix('s')?.parse().ok()?).ok()
}

/// `test the::name ... ok`
fn test_line(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.rsplit_once(" ... ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
   Compiling thing v0.1.0
     Running unittests src/lib.rs (target/release/deps/thing-1)

running 4 tests
test a::tensor_is_sealed ... ok
test a::tensor_is_lost ... FAILED
test a::needs_root ... ignored, needs root
test a::slow ... ignored

failures:

---- a::tensor_is_lost stdout ----
test result: not a closing line at all


failures:
    a::tensor_is_lost

test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s

     Running tests/b.rs (target/release/deps/b_suite-2)
running 3 tests
AGAIN one: it failed, and the machine had stood still for 1.2s
test lost_again ... FAILED
test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.00s
   Doc-tests thing
test src/lib.rs - Thing (line 3) - compile ... ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn the_closing_lines_of_all_programs_are_added_up() {
        let report = report(OUTPUT);
        assert_eq!(report.counts, Counts { passed: 4, failed: 2, skipped: 2 });
        assert_eq!(report.filtered_out, 7);
    }

    #[test]
    fn tests_that_failed_or_ignore_themselves_are_named_with_their_program() {
        let report = report(OUTPUT);
        assert_eq!(report.failed, ["thing a::tensor_is_lost", "b_suite lost_again"]);
        assert_eq!(report.ignored, ["thing a::needs_root: needs root", "thing a::slow"]);
    }

    #[test]
    fn what_was_done_again_is_named_with_its_program() {
        let said = "b_suite one: it failed, and the machine had stood still for 1.2s";
        assert_eq!(report(OUTPUT).again, [said]);
    }

    #[test]
    fn what_failed_tests_printed_is_found_between_what_others_did() {
        let words = ["---- a::tensor_is_lost stdout ----", "test result: not a closing line at all"];
        assert_eq!(last_words(OUTPUT), words);
        assert!(last_words("error[E0425]: cannot find value\n").is_empty());
    }

    #[test]
    fn output_without_tests_counts_nothing() {
        assert_eq!(report("error[E0425]: cannot find value\n"), Report::default());
    }

    #[test]
    fn the_closing_line_has_all_three_numbers() {
        let mut counts = Counts::PASSED;
        counts += Counts::FAILED;
        counts += Counts::SKIPPED;
        counts += Counts::PASSED;
        assert_eq!(counts.closing_line(), "2 passed, 1 failed, 1 skipped");
    }
}
