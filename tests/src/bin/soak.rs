//! Program that `cargo xtask soak` starts: laps of random puts, gets, kills and cuts until the time is over, each
//! checked from its history. It ends with 1 at the first lap that breaks a line.
//!
//! `soak --seed S --seconds N --histories FOLDER [--lap-seconds N]`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_tests::soak::history::{Kept, Recorder};
use tensorlane_tests::soak::lap;
use tensorlane_tests::soak::world::World;

struct Wanted {
    seed: u64,
    time: Duration,
    lap: Duration,
    histories: PathBuf,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(wanted) = wanted(&words) else {
        eprintln!("usage: soak --seed S --seconds N --histories FOLDER [--lap-seconds N]");
        return ExitCode::from(2);
    };
    println!("soak: seed {}, {} s", wanted.seed, wanted.time.as_secs());
    let recorder = Arc::new(Recorder::default());
    let mut world = World::start(&recorder);
    let end = Instant::now() + wanted.time;
    for number in 0.. {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let seed = lap::seed_of(wanted.seed, number);
        // Before it, so that a lap that never ends can be repeated.
        println!("lap {number}, seed {seed}");
        let panicked = wanted.histories.join(format!("panicked-{seed}.jsonl"));
        let kept = Kept { recorder: &recorder, to: &panicked };
        let report = lap::run(&mut world, &recorder, seed, left.min(wanted.lap), &|| false);
        drop(kept);
        println!("lap {number}, {report}");
        let history = wanted.histories.join("last.jsonl");
        if report.violations.is_empty() {
            if let Err(error) = report.save(&history) {
                eprintln!("{}: {error}", history.display());
            }
            continue;
        }
        return failed(&wanted, &report);
    }
    println!("soak: seed {}, nothing was broken", wanted.seed);
    ExitCode::SUCCESS
}

fn failed(wanted: &Wanted, report: &lap::Report) -> ExitCode {
    let history = wanted.histories.join(format!("broken-{}.jsonl", report.seed));
    for violation in &report.violations {
        println!("BROKEN {violation}");
    }
    match report.save(&history) {
        Ok(()) => println!("the history: {}", history.display()),
        Err(error) => println!("the history could not be written to {}: {error}", history.display()),
    }
    let seconds = wanted.lap.as_secs();
    println!(
        "seed {}; the same steps again: cargo xtask soak --seed {} --seconds {seconds}",
        wanted.seed, report.seed
    );
    ExitCode::FAILURE
}

fn wanted(words: &[String]) -> Option<Wanted> {
    let (mut seed, mut seconds, mut lap, mut histories) = (None, None, Some(60), None);
    for pair in words.chunks(2) {
        let [option, value] = pair else { return None };
        match option.as_str() {
            "--seed" => seed = value.parse().ok(),
            "--seconds" => seconds = value.parse().ok(),
            "--lap-seconds" => lap = value.parse().ok(),
            "--histories" => histories = Some(PathBuf::from(value)),
            _ => return None,
        }
    }
    let (time, lap) = (Duration::from_secs(seconds?), Duration::from_secs(lap?));
    Some(Wanted { seed: seed?, time, lap, histories: histories? })
}
