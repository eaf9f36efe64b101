//! `demo`: two sidecars, the weights of a real model, and an account of what moved and how fast.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tensorlane_benches::limits::End;
use tensorlane_benches::style::Style;
use tensorlane_benches::{sidecar, undo};

mod account;
mod model;
mod stage;
mod story;
mod worker;

/// Shows Tensorlane at work: two sidecars exchange the weights of a real model.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// The model, a file of safetensors.
    #[arg(long, value_name = "FILE", required = true)]
    weights: Option<PathBuf>,
    /// Directory of `tensorlane-sidecar` [default: $TENSORLANE_BIN_DIR, or that of this program].
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Fewer repetitions.
    #[arg(long)]
    fast: bool,
}

#[derive(Debug, Subcommand)]
enum Other {
    /// The other end of a limit.
    #[command(subcommand, hide = true)]
    End(End),
    /// Another process of a pod.
    #[command(hide = true)]
    Worker(worker::Process),
}

fn main() -> ExitCode {
    let style = Style::of_this_terminal();
    match run(Arguments::parse(), style) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            undo::unless_signalled();
            eprintln!("{} {error:#}", style.bad("error:"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments, style: Style) -> Result<()> {
    match arguments.other {
        Some(Other::End(end)) => end.run(),
        Some(Other::Worker(worker)) => worker.run(),
        None => {
            undo::on_signals().context("cannot wait for signals")?;
            let programs = arguments.bin_dir.map_or_else(sidecar::programs, Ok)?;
            let weights = arguments.weights.context("--weights names the model")?;
            story::tell(&weights, &programs, if arguments.fast { 2 } else { 7 }, style)
        }
    }
}
