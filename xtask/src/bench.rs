//! `cargo xtask bench`: builds the benchmarks as the programs ship and starts them where the user stands.

use std::env;

use crate::failure::Failure;
use crate::parts::{PROGRAMS, RELEASE, build_programs};
use crate::place::Place;
use crate::run::Job;
use crate::setup;
use crate::style::Style;

/// The program that measures.
const PROGRAM: &str = "bench";

/// The profile that ships: whoever measures another one measures what nobody runs.
const PROFILE: &str = "dist";

/// Builds and runs the benchmark program with the user's arguments; gives its exit code.
pub(crate) fn bench(arguments: &[String], place: &Place, style: Style) -> Result<u8, Failure> {
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
    let built = build.streamed(place, style)?;
    if !built.succeeded() {
        return Err(Failure::new(format!("the benchmarks could not be built: {}", built.shown()))
            .remedy("the first error above says why"));
    }
    // A relative `--json FILE` means a file where the user stands.
    let here = env::current_dir().map_err(|error| Failure::new(format!("no current directory: {error}")))?;
    let programs = place.programs(profile);
    let job = Job::new(programs.join(PROGRAM), arguments).env(PROGRAMS, &programs).inside(here);
    Ok(job.streamed(place, style)?.exit_code())
}
