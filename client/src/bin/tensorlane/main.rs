//! The command `tensorlane` (also `kubectl tensorlane`): what a person asks a sidecar.
//!
//! Results go to standard output, as text or JSON; progress and errors go to standard error. Exit codes: 0 done, 1 it
//! failed, 2 it was called wrongly.

mod args;
mod file;
mod get;
#[cfg(feature = "kubernetes")]
mod inject;
mod inquire;
mod list;
mod output;
mod parse;
mod progress;
mod put;
mod sink;

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::args::{Args, Command};
use crate::output::Output;

fn main() -> ExitCode {
    let args = Args::parse().settled();
    let output = Output::new(args.output);
    match run(args, &output) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args, output: &Output) -> Result<()> {
    #[cfg(feature = "kubernetes")]
    if let Command::Inject(inject) = &args.command {
        return inject::run(inject);
    }
    let client = args.connection.connect()?;
    match args.command {
        Command::Put(put) => put::run(&client, output, &put),
        Command::Get(get) => get::run(&client, output, &get),
        Command::Ls(ls) => list::ls(&client, output, &ls),
        Command::Rm(rm) => list::rm(&client, output, &rm),
        Command::Describe(describe) => inquire::describe(&client, output, &describe),
        Command::Status => inquire::status(&client, output),
        Command::Peers => inquire::peers(&client, output),
        #[cfg(feature = "kubernetes")]
        Command::Inject(inject) => inject::run(&inject),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
