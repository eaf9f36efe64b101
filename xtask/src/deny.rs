//! The part `deny`: cargo-deny over licences, sources, who depends on whom, and known vulnerabilities.

use crate::failure::Failure;
use crate::parts::{Counted, Plan, Step, Surroundings, step};
use crate::place::Place;
use crate::run::Job;

/// The line of cargo-deny that deny.toml is written for.
const VERSION: &str = "^0.20";

const NO_ADVISORIES: &str =
    "the advisory database cannot be fetched from here: known vulnerabilities were NOT checked";

/// Finds cargo-deny, or installs it into the cache of this user, and plans its checks.
pub(crate) fn plan(around: &Surroundings<'_>) -> Plan {
    match program(around) {
        Ok(program) => Plan::Run(steps(&program)),
        Err(failure) => Plan::Skip(failure.what().to_owned()),
    }
}

fn program(around: &Surroundings<'_>) -> Result<String, Failure> {
    if let Some(found) = installed(around.place) {
        return Ok(found);
    }
    if around.quick {
        return Err(Failure::new("cargo-deny is not installed, and --quick installs nothing"));
    }
    println!("    cargo-deny is installed, once, into the cache of this user");
    let job = Job::cargo(["install", "cargo-deny", "--locked", "--version", VERSION, "--root"])
        .with([around.place.tools()])
        // It runs for seconds, and optimizing it takes minutes.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "256");
    let log = around.place.log("deny-install");
    let finished = job.logged(&log, around.place, around.style)?;
    installed(around.place).ok_or_else(|| {
        let (how, log) = (finished.shown(), around.place.short(&log));
        Failure::new(format!("cargo-deny could not be installed ({how}, see {log})"))
    })
}

fn installed(place: &Place) -> Option<String> {
    let ours = place.tools().join("bin").join("cargo-deny").display().to_string();
    [ours, "cargo-deny".to_owned()].into_iter().find(|program| Job::new(program, ["--version"]).works(place))
}

fn steps(program: &str) -> Vec<Step> {
    let deny = |arguments: &[&str]| Job::new(program, arguments);
    vec![
        step(Counted::Check, deny(&["check", "--allow", "unused-wrapper", "licenses", "sources", "bans"])),
        step(Counted::Gate(NO_ADVISORIES), deny(&["fetch", "db"]).env("GIT_TERMINAL_PROMPT", "0")),
        step(Counted::Check, deny(&["check", "--disable-fetch", "advisories"])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_out_of_reach_is_a_note_and_not_a_success() {
        let steps = steps("cargo-deny");
        assert_eq!(steps[0].counted, Counted::Check);
        let Counted::Gate(note) = steps[1].counted else { panic!("the fetch must be a gate") };
        assert!(note.contains("NOT checked"));
        assert_eq!(steps[2].job.shown(), "cargo-deny check --disable-fetch advisories");
    }
}
