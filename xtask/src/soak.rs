//! `cargo xtask soak`: builds the sidecar and starts the program that puts, gets, kills and cuts at random.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::failure::Failure;
use crate::parts::{PROGRAMS, RELEASE, build_programs};
use crate::place::Place;
use crate::room;
use crate::run::Job;
use crate::setup;
use crate::style::Style;

/// The program that does it, and the one that it starts for each workload.
const PROGRAMS_OF_IT: [&str; 2] = ["soak", "actor"];

/// Time that it runs unless told otherwise.
const TIME: Duration = Duration::from_secs(600);

/// Time that it may take beyond its own: to start, and to give everything back.
const MARGIN: Duration = Duration::from_secs(600);

/// Duration, and seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// Wall time.
    pub(crate) time: Duration,
    /// Seed from which all steps follow; drawn if none is given.
    pub(crate) seed: Option<u64>,
}

/// Reads the words after `soak`.
pub(crate) fn parse(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options { time: TIME, seed: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (word.as_str(), None),
        };
        if !["--seconds", "--minutes", "--seed"].contains(&option) {
            return Err(Failure::usage(format!("`soak` has no option `{word}`")));
        }
        let value = value.or_else(|| words.next().map(String::as_str)).unwrap_or_default();
        let number: u64 = value
            .parse()
            .map_err(|_| Failure::usage(format!("`{option}` of `soak` needs a number, not `{value}`")))?;
        match option {
            "--seconds" => options.time = Duration::from_secs(number),
            "--minutes" => options.time = Duration::from_secs(number.saturating_mul(60)),
            _ => options.seed = Some(number),
        }
    }
    if options.time.is_zero() {
        return Err(Failure::usage("`soak` needs at least a second"));
    }
    Ok(options)
}

/// Builds what it needs and runs it; gives its exit code.
pub(crate) fn soak(options: Options, place: &Place, style: Style) -> Result<u8, Failure> {
    room::before(place)?;
    setup::network_namespaces(place, style).map_err(Failure::new)?;
    setup::provide(setup::NETNS_TOOLS, place, style)?;
    let built = build_programs(RELEASE, &PROGRAMS_OF_IT).streamed(place, style)?;
    if !built.succeeded() {
        return Err(Failure::new(format!("the programs could not be built: {}", built.shown()))
            .remedy("the first error above says why"));
    }
    let programs = place.programs(RELEASE);
    let (seed, seconds) = (options.seed.unwrap_or_else(seed_of_now), options.time.as_secs());
    let job =
        Job::new(programs.join("soak"), ["--seed", &seed.to_string(), "--seconds", &seconds.to_string()])
            .with(["--histories"])
            .with([place.soak()])
            .env(PROGRAMS, &programs)
            .at_most(options.time.saturating_add(MARGIN));
    Ok(job.streamed(place, style)?.exit_code())
}

/// Another one each time, and short enough to be typed again.
fn seed_of_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (now.as_secs() % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words).map_err(|failure| failure.what().to_owned())
    }

    #[test]
    fn time_and_seed_are_read_in_any_order_and_form() {
        let expected = Options { time: Duration::from_secs(120), seed: Some(7) };
        for line in ["--minutes 2 --seed 7", "--seed=7 --seconds=120", "--seconds 1 --seed 7 --minutes 2"] {
            assert_eq!(parsed(line), Ok(expected), "{line}");
        }
        assert_eq!(parsed(""), Ok(Options { time: TIME, seed: None }));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (line, word) in [
            ("--hours 1", "`--hours`"),
            ("--seed", "`--seed`"),
            ("--seconds x", "`x`"),
            ("--minutes=0", "at least a second"),
            ("soon", "`soon`"),
        ] {
            let what = parsed(line).unwrap_err();
            assert!(what.contains(word), "{line}: {what}");
        }
    }
}
