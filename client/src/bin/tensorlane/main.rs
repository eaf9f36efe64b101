//! The command `tensorlane` (also `kubectl tensorlane`): what a person asks a sidecar.
//!
//! Results go to standard output, as text or JSON; progress, and errors in the same form, go to standard error. Exit codes: 0 done, 1 it
//! failed, 2 it was called wrongly; `check` has one more, 3: nothing wrong was found, not everything could be looked at.

mod archive;
mod args;
mod channel;
#[cfg(feature = "kubernetes")]
mod check;
mod complaint;
mod fault;
mod file;
mod get;
#[cfg(feature = "kubernetes")]
mod inject;
mod inquire;
mod kept;
mod list;
mod mutable;
mod names;
mod output;
mod parse;
mod progress;
mod put;
mod routes;
mod set;
mod set_file;
mod signals;
mod sink;
mod source;
mod verify;
mod watch;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;

use crate::args::{Args, Command, Set};
use crate::output::Output;

/// Measures what decoders take of the heap.
#[cfg(test)]
#[global_allocator]
static METERING: tensorlane_memory::heap::MeteringAllocator = tensorlane_memory::heap::MeteringAllocator;

/// The exit code of a call that was wrong.
const MISUSE: u8 = 2;

fn main() -> ExitCode {
    let args = match read() {
        Ok(args) => args.settled(Instant::now()),
        Err(code) => return code,
    };
    let format = args.output;
    match run(args, &Output::new(format)) {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complaint::complain(&error, format);
            ExitCode::FAILURE
        }
    }
}

/// The command line; or the exit code, where it was wrong or asked for no more than a word of help.
fn read() -> std::result::Result<Args, ExitCode> {
    let words: Vec<OsString> = env::args_os().collect();
    Args::try_parse_from(&words).map_err(|error| {
        match complaint::misuse(&error, words.iter().map(OsString::as_os_str)) {
            Some(told) => {
                // Nobody is left to tell if this fails.
                let _ = writeln!(io::stderr(), "{told}");
                ExitCode::from(MISUSE)
            }
            None => error.exit(),
        }
    })
}

fn run(args: Args, output: &Output) -> Result<ExitCode> {
    #[cfg(feature = "kubernetes")]
    match &args.command {
        Command::Inject(inject) => return inject::run(output, inject).map(|()| ExitCode::SUCCESS),
        Command::Check => return check::run(&args.connection, output),
        _ => {}
    }
    if let Command::Set(Set::Verify(verify)) = &args.command {
        return verify::run(|| args.connection.connect(), output, verify);
    }
    let client = args.connection.connect()?;
    let done = match args.command {
        Command::Put(put) => put::run(&client, output, &put),
        Command::Get(get) => get::run(&client, output, &get),
        Command::Ls(ls) => list::ls(&client, output, &ls),
        Command::Watch(watch) => names::watch(&client, output, &watch),
        Command::Rm(rm) => list::rm(&client, output, &rm),
        Command::Describe(describe) => inquire::describe(&client, output, &describe),
        Command::Set(set) => set::run(&client, output, &set),
        Command::Channel(channel) => channel::run(&client, output, &channel),
        Command::Status => inquire::status(&client, output),
        Command::Peers => inquire::peers(&client, output),
        Command::Routes(routes) => routes::run(&client, output, &routes),
        #[cfg(feature = "kubernetes")]
        // They need no sidecar, and are done already.
        Command::Inject(_) | Command::Check => Ok(()),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
