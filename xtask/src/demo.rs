//! `cargo xtask demo`: from a fresh machine to the running demo program.

use std::time::Instant;

use crate::cli::DemoOptions;
use crate::failure::Failure;
use crate::parts::{PROGRAMS, RELEASE, build_programs};
use crate::place::Place;
use crate::room;
use crate::run::Job;
use crate::setup;
use crate::style::Style;
use crate::weights;

/// The program that shows Tensorlane at work.
const PROGRAM: &str = "demo";

/// Provides tools, programs and weights, then starts the demo program; gives its exit code.
pub(crate) fn demo(options: DemoOptions, place: &Place, style: Style) -> Result<u8, Failure> {
    let started = Instant::now();
    let progress = |what: &str| {
        let elapsed = format!("[{:6.1} s]", started.elapsed().as_secs_f64());
        println!("{} {}", style.faint(&elapsed), style.strong(what));
    };
    room::before(place)?;
    progress("tools: python3, pip, ip");
    setup::provide(setup::TOOLS, place, style)?;
    progress("building the programs (minutes on a fresh machine, seconds later)");
    let built = build_programs(RELEASE, &[PROGRAM]).streamed(place, style)?;
    if !built.succeeded() {
        return Err(Failure::new(format!("the programs could not be built: {}", built.shown()))
            .remedy("the first error above says why"));
    }
    progress("real weights");
    let weights = weights::fetched(place, style)?;
    progress(&format!("the demo, with {}", place.short(&weights)));
    let programs = place.programs(RELEASE);
    let mut job = Job::new(programs.join(PROGRAM), ["--weights"])
        .with([&weights])
        .with(["--bin-dir"])
        .with([&programs])
        .env(PROGRAMS, &programs);
    if options.fast {
        job = job.with(["--fast"]);
    }
    let finished = job.streamed(place, style)?;
    progress(&format!("done: {}", finished.shown()));
    Ok(finished.exit_code())
}
