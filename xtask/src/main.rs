//! Tasks that a developer of Tensorlane runs: `cargo xtask demo | test | bench | soak | cluster | images | generate |
//! setup`.
//!
//! It needs nothing but the standard library, so that a cold machine has it in seconds. It knows the other crates
//! by the names of their packages and programs only, never by their code.

mod bench;
mod cli;
mod cluster;
mod counts;
mod deadline;
mod demo;
mod deny;
mod failure;
mod gloo;
mod hash;
mod house;
mod images;
mod messages;
mod parts;
mod place;
mod pytest;
mod python;
mod room;
mod run;
mod setup;
mod soak;
mod style;
mod suites;
mod table;
mod test;
mod weights;

use std::process::ExitCode;

use cli::Command;
use failure::Failure;
use place::Place;
use style::Style;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let style = Style::of_this_terminal();
    match cli::parse(&arguments).and_then(|command| perform(command, style)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("{}", failure.shown(style));
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Runs one command; the number is the exit code of this program.
fn perform(command: Command, style: Style) -> Result<u8, Failure> {
    let place = Place::of_this_repository()?;
    match command {
        Command::Help => {
            print!("{}", cli::help());
            Ok(0)
        }
        Command::Test(options) => test::test(&options, &place, style),
        Command::Demo(options) => demo::demo(options, &place, style),
        Command::Bench(options) => bench::bench(&options, &place, style),
        Command::Soak(options) => soak::soak(options, &place, style),
        Command::Cluster(request) => cluster::perform(&request, &place, style),
        Command::Images(options) => images::images(&options, &place, style),
        Command::Generate => {
            let write = |program: &&str| parts::generate(program, &place, &[]);
            let messages = messages::written(&place, style)?;
            let programs =
                std::iter::once(parts::build_generators()).chain(parts::GENERATORS.iter().map(write));
            for job in programs.chain(messages) {
                let code = job.streamed(&place, style)?.exit_code();
                if code != 0 {
                    return Ok(code);
                }
            }
            Ok(0)
        }
        Command::House => house::house(&place, style),
        Command::Wheel(profile) => python::wheel(profile, &place, style),
        Command::Setup => {
            setup::provide(&[setup::TOOLS, setup::NETNS_TOOLS].concat(), &place, style)?;
            println!("everything that demo and test need is here");
            Ok(0)
        }
        Command::Weights => {
            println!("{}", place.short(&weights::fetched(&place, style)?));
            Ok(0)
        }
    }
}
