//! `cargo xtask test`: runs the parts, counts, and closes with one table and one line.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::TestOptions;
use crate::counts::{self, Counts};
use crate::failure::Failure;
use crate::parts::{Counted, Lane, Part, Plan, Step, Surroundings};
use crate::place::Place;
use crate::room;
use crate::run::tail;
use crate::style::Style;
use crate::table::{Row, Verdict, slowest, table};

/// Number of lines that are shown of a failed part's log.
const TAIL: usize = 60;

/// Words that a part leaves for the end of the run.
#[derive(Debug, Default)]
struct Told {
    counts: Counts,
    /// Notes on what was not looked at although nothing failed.
    notes: Vec<String>,
    /// Tests that failed.
    failed: Vec<String>,
    /// Tests and suites that were left out, with the reason.
    skipped: Vec<String>,
    /// Test programs of all parts, with the time that each one took.
    suites: Vec<Suite>,
}

impl Told {
    fn add(&mut self, other: Self) {
        self.counts += other.counts;
        self.notes.extend(other.notes);
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.suites.extend(other.suites);
    }
}

/// A test program that ran.
#[derive(Debug, Clone, PartialEq)]
struct Suite {
    part: String,
    program: String,
    took: Duration,
}

/// The part that builds Kubernetes.
const CLUSTER: &str = "cluster";

/// The reason why other parts leave tests to it, as the tests give it.
const FOR_CLUSTER: &str = "needs programs of Kubernetes";

/// Runs the chosen parts, both lanes at the same time; gives 1 if anything failed.
pub(crate) fn test(options: &TestOptions, place: &Place, style: Style) -> Result<u8, Failure> {
    let started = Instant::now();
    let chosen = options.chosen();
    let with_cluster = chosen.iter().any(|part| part.name == CLUSTER);
    let around = Surroundings { place, style, quick: options.quick, with_cluster };
    let mut all = Told { notes: room::before(place)?.into_iter().collect(), ..Told::default() };
    let failed = FirstFailure::new(options.fail_fast);
    let of = |lane| chosen.iter().copied().filter(move |part| part.lane == lane);
    let either = Mutex::new(of(Lane::Either));
    let rest = || std::iter::from_fn(|| either.lock().unwrap_or_else(PoisonError::into_inner).next());
    let (main, waiting) = thread::scope(|scope| {
        let waiting = scope.spawn(|| run_lane(of(Lane::Waiting).chain(rest()), &around, &failed));
        let main = run_lane(of(Lane::Main).chain(rest()), &around, &failed);
        let panicked = |_| Err(Failure::new("the second lane of the tests panicked"));
        (main, waiting.join().unwrap_or_else(panicked))
    });
    let mut rows: Vec<Row> = Vec::new();
    for (row, told) in main?.into_iter().chain(waiting?) {
        rows.push(row);
        all.add(told);
    }
    rows.sort_by_key(|row| chosen.iter().position(|part| part.name == row.part));
    settle(&mut rows, &mut all);
    println!("\n{}", closing(&rows, &all, started.elapsed(), style));
    Ok(u8::from(all.counts.failed > 0))
}

/// Runs parts one after the other.
fn run_lane<'a>(
    parts: impl Iterator<Item = &'a Part>,
    around: &Surroundings<'_>,
    failed: &FirstFailure,
) -> Result<Vec<(Row, Told)>, Failure> {
    let mut ended = Vec::new();
    for part in parts {
        let (row, told) = match failed.stops_others() {
            Some(failed) => left_out(part, format!("`{failed}` failed before it (--fail-fast)")),
            None => run(part, around)?,
        };
        if row.verdict == Verdict::Failed {
            failed.note(part.name);
        }
        ended.push((row, told));
    }
    Ok(ended)
}

/// The first part that failed, of both lanes.
#[derive(Debug)]
struct FirstFailure {
    /// Parts that have not begun yet are left out.
    stops: bool,
    part: Mutex<Option<&'static str>>,
}

impl FirstFailure {
    fn new(stops: bool) -> Self {
        Self { stops, part: Mutex::new(None) }
    }

    fn note(&self, part: &'static str) {
        self.part.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(part);
    }

    fn stops_others(&self) -> Option<&'static str> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner).filter(|_| self.stops)
    }
}

/// Tests that `unit` left to the part `cluster`, which builds the programs they need, were not left out once it has run.
fn settle(rows: &mut [Row], all: &mut Told) {
    if !rows.iter().any(|row| row.part == CLUSTER && !matches!(row.verdict, Verdict::Skipped(_))) {
        return;
    }
    for row in rows {
        let of_it =
            |line: &String| line.starts_with(&format!("{}: ", row.part)) && line.contains(FOR_CLUSTER);
        let count = all.skipped.iter().filter(|line| of_it(line)).count() as u64;
        all.skipped.retain(|line| !of_it(line));
        row.counts.skipped -= count;
        all.counts.skipped -= count;
    }
}

/// Everything after the last part. Its last line is the closing line, plain and alone.
fn closing(rows: &[Row], all: &Told, took: Duration, style: Style) -> String {
    let mut text = table(rows, took, style) + "\n";
    let suites = all.suites.iter().map(|suite| (format!("{} {}", suite.part, suite.program), suite.took));
    text += &slowest(suites.collect());
    let lists = [
        (style.bad("FAILED"), &all.failed),
        (style.warned("NOTE"), &all.notes),
        (style.warned("SKIPPED"), &all.skipped),
    ];
    for (word, lines) in lists {
        for line in lines {
            text += &format!("\n{word} {line}");
        }
    }
    text + "\n\n" + &all.counts.closing_line()
}

fn left_out(part: &Part, reason: String) -> (Row, Told) {
    let skipped = vec![format!("{}: {reason}", part.name)];
    let told = Told { counts: Counts::SKIPPED, skipped, ..Told::default() };
    let verdict = Verdict::Skipped(reason);
    (Row { part: part.name, verdict, counts: told.counts, took: Default::default() }, told)
}

/// Runs one part and says how it went.
fn run(part: &Part, around: &Surroundings<'_>) -> Result<(Row, Told), Failure> {
    let (place, style) = (around.place, around.style);
    println!("{} {}", style.strong(&format!("==> {}:", part.name)), part.about);
    let started = Instant::now();
    let log = place.log(part.name);
    if log.exists() {
        fs::remove_file(&log).map_err(|error| Failure::file("begin", &log, &error))?;
    }
    let mut told = match (part.plan)(around) {
        Plan::Run(steps) => perform(part.name, &steps, &log, around),
        Plan::Fail(reason) => {
            println!("    {}: {} {reason}", part.name, style.bad("FAILED"));
            let failed = vec![format!("{}: {reason}", part.name)];
            Told { counts: Counts::FAILED, failed, ..Told::default() }
        }
        Plan::Skip(reason) => {
            println!("    {}: {} {reason}", part.name, style.warned("SKIPPED"));
            return Ok(left_out(part, reason));
        }
    };
    let verdict = if told.counts.failed == 0 { Verdict::Ok } else { Verdict::Failed };
    if verdict == Verdict::Failed {
        show_why(&log, place, style);
        told.notes.extend(room::after_failure(place).map(|note| format!("{}: {note}", part.name)));
    }
    let took = started.elapsed();
    let word = if verdict == Verdict::Ok { style.good("ok") } else { style.bad("FAILED") };
    println!("    {}: {word}, {} in {:.1} s", part.name, told.counts.closing_line(), took.as_secs_f64());
    Ok((Row { part: part.name, verdict, counts: told.counts, took }, told))
}

fn perform(part: &str, steps: &[Step], log: &Path, around: &Surroundings<'_>) -> Told {
    let mut told = Told::default();
    let mut over = false;
    for step in steps {
        if over && step.counted != Counted::Cleanup {
            continue;
        }
        let before = fs::metadata(log).map_or(0, |log| log.len());
        let (succeeded, how) = match step.job.logged(log, around.place, around.style) {
            Ok(finished) => (finished.succeeded(), finished.shown()),
            Err(failure) => (false, failure.what().to_owned()),
        };
        let failure = format!("{part}: `{}`: {how}", step.job.shown());
        match (step.counted, succeeded) {
            (Counted::Tests, _) => add_tests(&mut told, part, &text_after(log, before), succeeded, failure),
            (Counted::Check, true) => told.counts += Counts::PASSED,
            (Counted::Preparation | Counted::Cleanup | Counted::Gate(_), true) => {}
            (Counted::Check | Counted::Preparation | Counted::Cleanup, false) => {
                told.counts += Counts::FAILED;
                told.failed.push(failure);
            }
            (Counted::Gate(note), false) => told.notes.push(format!("{part}: {note}")),
        }
        if !succeeded && matches!(step.counted, Counted::Preparation | Counted::Gate(_)) {
            over = true;
        }
    }
    told
}

/// Adds what test programs said. A job that failed without a failed test (it did not build, or a program died)
/// counts as one failure.
fn add_tests(told: &mut Told, part: &str, output: &str, succeeded: bool, failure: String) {
    let report = counts::report(output);
    told.counts += report.counts;
    told.failed.extend(report.failed.iter().map(|name| format!("{part}: {name}")));
    told.skipped.extend(report.ignored.iter().map(|name| format!("{part}: {name}")));
    let suite = |(program, took)| Suite { part: part.to_owned(), program, took };
    told.suites.extend(report.suites.into_iter().map(suite));
    told.notes.extend(report.again.iter().map(|case| format!("{part}: done again: {case}")));
    if !succeeded && report.counts.failed == 0 {
        told.counts += Counts::FAILED;
        told.failed.push(failure);
    } else if report.counts == Counts::default() {
        told.notes.push(format!("{part}: not one test ran"));
    }
    if report.filtered_out > 0 {
        told.notes
            .push(format!("{part}: --quick left out {} tests of modules called `slow`", report.filtered_out));
    }
}

/// Text that was added to a log after a place in it. Output of tests need not be UTF-8.
fn text_after(log: &Path, offset: u64) -> String {
    let mut bytes = Vec::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(offset))?;
        file.read_to_end(&mut bytes)
    });
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        // Without a log nothing was counted, and the job's own failure says so.
        Err(_) => String::new(),
    }
}

/// Shows what failed tests said, which the output of other programs may follow; the end of the log if no test failed.
fn show_why(log: &Path, place: &Place, style: Style) {
    if !log.exists() {
        return;
    }
    let text = text_after(log, 0);
    let said = counts::last_words(&text);
    let lines = if said.is_empty() { tail(&text, TAIL) } else { said.into_iter().take(TAIL).collect() };
    let mut shown: String = lines.iter().map(|line| format!("    | {line}\n")).collect();
    shown += &format!("    {}", style.faint(&format!("the whole log: {}", place.short(log))));
    // In one piece: the other lane prints, too.
    println!("{shown}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::step;
    use crate::run::Job;
    use std::path::PathBuf;

    #[test]
    fn tests_that_another_part_has_run_since_were_not_left_out() {
        let skipped = |count| Counts { passed: 1, failed: 0, skipped: count };
        let row = |part, verdict, counts| Row { part, verdict, counts, took: Default::default() };
        let both = || Told {
            counts: skipped(2),
            skipped: vec![
                format!("unit: a: {FOR_CLUSTER}: build them"),
                "unit: b: a machine with it".to_owned(),
            ],
            ..Told::default()
        };
        let unit = || row("unit", Verdict::Ok, skipped(2));
        let (mut rows, mut all) = ([unit(), row(CLUSTER, Verdict::Ok, Counts::PASSED)], both());
        settle(&mut rows, &mut all);
        assert_eq!((all.skipped.len(), all.counts.skipped, rows[0].counts.skipped), (1, 1, 1));
        let left_out = row(CLUSTER, Verdict::Skipped("needs root".to_owned()), Counts::SKIPPED);
        for mut rows in [vec![unit(), left_out], vec![unit()]] {
            let mut all = both();
            settle(&mut rows, &mut all);
            assert_eq!((all.skipped.len(), rows[0].counts.skipped), (2, 2));
        }
    }

    fn scratch(name: &str) -> (Place, PathBuf) {
        let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        (Place::at(&root), root.join("part.log"))
    }

    fn told(name: &str, steps: &[(Counted, &str)]) -> Told {
        let (place, log) = scratch(name);
        let around = Surroundings { place: &place, style: Style::plain(), quick: false, with_cluster: false };
        let steps: Vec<Step> =
            steps.iter().map(|(counted, script)| step(*counted, Job::new("sh", ["-c", script]))).collect();
        let told = perform("part", &steps, &log, &around);
        fs::remove_dir_all(place.root()).unwrap();
        told
    }

    const GOOD: &str = "echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out'";

    #[test]
    fn a_failure_in_one_lane_stops_parts_of_the_other_only_if_asked() {
        for (stops, expected) in [(false, None), (true, Some("unit"))] {
            let failed = FirstFailure::new(stops);
            assert_eq!(failed.stops_others(), None);
            failed.note("unit");
            failed.note("cluster");
            assert_eq!(failed.stops_others(), expected);
        }
    }

    #[test]
    fn each_job_of_tests_is_counted_once() {
        let told = told("once", &[(Counted::Check, "true"), (Counted::Tests, GOOD), (Counted::Tests, GOOD)]);
        assert_eq!(told.counts, Counts { passed: 7, failed: 0, skipped: 2 });
        assert!(told.failed.is_empty());
    }

    #[test]
    fn a_job_that_dies_without_a_failed_test_is_a_failure() {
        let script = format!("{GOOD}; exit 101");
        let told = told("dies", &[(Counted::Tests, &script)]);
        assert_eq!(told.counts, Counts { passed: 3, failed: 1, skipped: 1 });
        assert!(told.failed[0].ends_with("exit code 101"), "{:?}", told.failed);
    }

    #[test]
    fn a_failed_test_is_not_counted_twice() {
        let script = "echo 'test a ... FAILED'; echo 'test result: FAILED. 0 passed; 1 failed'; exit 101";
        let told = told("twice", &[(Counted::Tests, script)]);
        assert_eq!(told.counts, Counts::FAILED);
        assert_eq!(told.failed, ["part: a"]);
    }

    #[test]
    fn a_failed_preparation_ends_the_part() {
        let told = told("preparation", &[(Counted::Preparation, "false"), (Counted::Tests, GOOD)]);
        assert_eq!(told.counts, Counts::FAILED);
    }

    #[test]
    fn a_cleanup_runs_after_whatever_failed_and_counts_where_it_fails() {
        let failed = told("cleanup", &[(Counted::Preparation, "false"), (Counted::Cleanup, "false")]);
        assert_eq!(failed.counts, Counts { passed: 0, failed: 2, skipped: 0 });
        let clean = told("clean", &[(Counted::Tests, GOOD), (Counted::Cleanup, "true")]);
        assert_eq!(clean.counts.failed, 0);
    }

    #[test]
    fn a_closed_gate_is_a_note_and_leaves_the_rest_out() {
        let told = told(
            "gate",
            &[(Counted::Check, "true"), (Counted::Gate("no way"), "false"), (Counted::Check, "true")],
        );
        assert_eq!(told.counts, Counts::PASSED);
        assert_eq!(told.notes, ["part: no way"]);
    }

    #[test]
    fn tests_that_never_ran_are_noted() {
        let told = told("none", &[(Counted::Tests, "true")]);
        assert_eq!(told.counts, Counts::default());
        assert_eq!(told.notes, ["part: not one test ran"]);
    }

    #[test]
    fn the_closing_line_is_the_last_and_alone() {
        let all = Told {
            counts: Counts { passed: 12, failed: 1, skipped: 1 },
            notes: vec!["deny: not checked".into()],
            failed: vec!["unit: a".into()],
            skipped: vec!["netns: needs root".into()],
            suites: Vec::new(),
        };
        let text = closing(&[], &all, Duration::ZERO, Style::plain());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[3..],
            [
                "FAILED unit: a",
                "NOTE deny: not checked",
                "SKIPPED netns: needs root",
                "",
                "12 passed, 1 failed, 1 skipped"
            ]
        );
    }
}
