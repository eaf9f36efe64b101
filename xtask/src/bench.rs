//! `cargo xtask bench`: builds the benchmarks as the programs ship and starts them where the user stands.

use std::env;

use crate::failure::Failure;
use crate::gloo;
use crate::parts::{PROGRAMS, RELEASE, build_programs};
use crate::place::Place;
use crate::python;
use crate::run::Job;
use crate::setup;
use crate::style::Style;

/// The program that measures.
const PROGRAM: &str = "bench";

/// The profile that ships: whoever measures another one measures what nobody runs.
const PROFILE: &str = "dist";

/// Has torch fetched, where `paths` would measure beside it and no Python has it.
const WITH_GLOO: &str = "--with-gloo";

/// Has the wheel of `python` built as it ships, which takes many times as long.
const AS_IT_SHIPS: &str = "--dist";

/// Has those fetched beside whom `python` measures, and whom no Python has yet.
const WITH_PEERS: &str = "--with-peers";

/// Measures from Python, from the root of the repository.
const BENCH_IN_PYTHON: &str = "benches/python/bench.py";

/// Tells the bench in Python which other Python has those beside whom it measures.
const PEERS: &str = "TENSORLANE_BENCH_PEERS";

/// Tells the program which Python has torch.
const PYTHON: &str = "TENSORLANE_BENCH_PYTHON";

/// Kinds of rows that are measured together.
const KINDS: [&str; 9] = ["local", "tcp", "paths", "channels", "pipes", "sets", "gpu", "cluster", "python"];

/// Options: what is measured.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Arguments for the program: it knows its own options.
    pub(crate) arguments: Vec<String>,
    /// Torch is to be there.
    pub(crate) with_gloo: bool,
}

/// Reads the words after `bench`; only what is measured, and what is ours, is checked here.
pub(crate) fn parse(words: &[String]) -> Result<Options, Failure> {
    let with_gloo = words.iter().any(|word| word == WITH_GLOO);
    let arguments: Vec<String> = words.iter().filter(|word| *word != WITH_GLOO).cloned().collect();
    match arguments.first().map(String::as_str) {
        Some(what) if with_gloo && what != "paths" && KINDS.contains(&what) => {
            Err(Failure::usage(format!("`{WITH_GLOO}` goes with `bench paths` alone")))
        }
        Some(what) if KINDS.contains(&what) => Ok(Options { arguments, with_gloo }),
        Some(other) => Err(Failure::usage(format!("`bench` measures {}, not `{other}`", kinds()))),
        None => Err(Failure::usage(format!("`bench` needs to know what to measure: {}", kinds()))),
    }
}

/// `a`, `b` or `c`, for messages.
fn kinds() -> String {
    let quoted: Vec<String> = KINDS.iter().map(|kind| format!("`{kind}`")).collect();
    match quoted.split_last() {
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Builds and runs the benchmark program with the user's arguments; gives its exit code.
pub(crate) fn bench(options: &Options, place: &Place, style: Style) -> Result<u8, Failure> {
    let arguments = &options.arguments;
    if let Some(("python", rest)) = arguments.split_first().map(|(what, rest)| (what.as_str(), rest)) {
        return from_python(rest, place, style);
    }
    let on_cluster = arguments.first().is_some_and(|what| what == "cluster");
    let (profile, build) = if on_cluster {
        // Images are made of the programs of this profile, and nothing of the measuring program's own is measured.
        setup::cluster_can_run(place, style, &place.cluster()).map_err(Failure::new)?;
        (
            RELEASE,
            Job::cargo(["build", "--profile", RELEASE, "--workspace", "--bin", PROGRAM, "--bin", "xtask"]),
        )
    } else {
        (PROFILE, build_programs(PROFILE, &[PROGRAM]))
    };
    if arguments.first().is_some_and(|what| what == "paths") {
        setup::provide(setup::PATHS_TOOLS, place, style)?;
    }
    let built = build.streamed(place, style)?;
    if !built.succeeded() {
        return Err(Failure::new(format!("the benchmarks could not be built: {}", built.shown()))
            .remedy("the first error above says why"));
    }
    // A relative `--json FILE` means a file where the user stands.
    let here = env::current_dir().map_err(|error| Failure::new(format!("no current directory: {error}")))?;
    let programs = place.programs(profile);
    let mut job = Job::new(programs.join(PROGRAM), arguments).env(PROGRAMS, &programs).inside(here);
    if options.with_gloo && env::var_os(PYTHON).is_none() {
        job = job.env(PYTHON, gloo::python(place, style)?);
    }
    Ok(job.streamed(place, style)?.exit_code())
}

/// Builds and installs the package, and measures it from Python beside others; gives the script's exit code.
fn from_python(arguments: &[String], place: &Place, style: Style) -> Result<u8, Failure> {
    let (ours, theirs): (Vec<_>, Vec<_>) = arguments
        .iter()
        .cloned()
        .partition(|argument| [AS_IT_SHIPS, WITH_PEERS].contains(&argument.as_str()));
    let asked = |flag: &str| ours.iter().any(|argument| argument == flag);
    let profile = if asked(AS_IT_SHIPS) { PROFILE } else { RELEASE };
    let python = python::installed(profile, place, style)?;
    // The client in Rust is measured beside ours.
    let built = build_programs(profile, &[PROGRAM]).streamed(place, style)?;
    if !built.succeeded() {
        return Err(Failure::new(format!("the client in Rust could not be built: {}", built.shown()))
            .remedy("the first error above says why"));
    }
    let peers = python::peers(asked(WITH_PEERS), place, style)?;
    let here = env::current_dir().map_err(|error| Failure::new(format!("no current directory: {error}")))?;
    let programs = place.programs(profile);
    let mut job = Job::new(python, [place.root().join(BENCH_IN_PYTHON)]).with(theirs).inside(here);
    job = job.env(PROGRAMS, &programs);
    if let Some(peers) = peers {
        job = job.env(PEERS, peers);
    }
    Ok(job.streamed(place, style)?.exit_code())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words).map_err(|failure| failure.what().to_owned())
    }

    #[test]
    fn what_the_program_knows_is_passed_on_and_torch_is_ours() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let plain = Options { arguments: words("paths --only overhead"), with_gloo: false };
        assert_eq!(parsed("paths --only overhead"), Ok(plain));
        let with = Options { arguments: words("paths --runs 1"), with_gloo: true };
        assert_eq!(parsed("paths --with-gloo --runs 1"), Ok(with));
        assert_eq!(
            parsed("sets --only set.create"),
            Ok(Options { arguments: words("sets --only set.create"), with_gloo: false })
        );
        let what = parsed("local --with-gloo").unwrap_err();
        assert!(what.contains("`bench paths` alone"), "{what}");
        assert!(parsed("--with-gloo").is_err());
        let what = parsed("nothing").unwrap_err();
        assert!(what.contains("`pipes`, `sets`") && what.contains("or `python`, not `nothing`"), "{what}");
        let line = "python --with-peers --dist --json a.json";
        assert_eq!(parsed(line), Ok(Options { arguments: words(line), with_gloo: false }));
    }
}
