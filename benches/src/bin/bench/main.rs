//! `bench`: Tensorlane beside the limits of this machine, in one run, and a verdict for every row.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use tensorlane_benches::cores::Cores;
use tensorlane_benches::limits::End;
use tensorlane_benches::style::Style;
use tensorlane_benches::{machine, sidecar, undo};
use tensorlane_memory::heap::CountingAllocator;

mod channels;
mod cluster;
mod context;
mod gpu;
mod groups;
mod local;
mod paths;
mod pipes;
mod py_get;
mod report;
mod rows;
mod sets;
mod shm;
mod tcp;

use context::Bench;
use groups::Group;
use rows::Measured;

/// Counts, for the rows that allocate nothing.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Measures Tensorlane and the limits of this machine, interleaved.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Within a pod: acquire, put, and what a killed process leaves.
    Local(Options),
    /// Between two sidecars, in two network namespaces where root allows it.
    Tcp(Options),
    /// Every path between two sidecars, beside the best that plain sockets do.
    Paths(PathsOptions),
    /// Messages to another process through rings of shared memory, and to another host.
    Channels(SomeOptions),
    /// Messages that are read by descriptor, allocation and read, in the pod and between hosts.
    Pipes(SomeOptions),
    /// Sets: rows that are read and committed, directories, versions.
    Sets(SomeOptions),
    /// GPU memory within a pod: put and got, beside what the driver does by itself.
    Gpu(Options),
    /// On the test cluster: the webhook, pods, what operator and sidecar take. Judged is what a thousand peers cost.
    Cluster(Options),
    /// The other end of a limit.
    #[command(subcommand, hide = true)]
    End(End),
    /// A process that answers messages.
    #[command(hide = true)]
    Echo(channels::Echo),
    /// A process at the other end of channels.
    #[command(hide = true)]
    ChannelEnd(channels::ChannelEnd),
    /// A process at the other end of a pipe.
    #[command(hide = true)]
    PipeEnd(pipes::PipeEnd),
    /// A process that gets tensors in GPU memory.
    #[command(hide = true)]
    GpuReader(gpu::Reader),
    /// A process that gets tensors for the bench in Python.
    #[command(hide = true)]
    PyGet(py_get::Getter),
    /// A process that holds tensors until it is killed.
    #[command(hide = true)]
    Hold(local::Hold),
}

#[derive(Debug, clap::Args)]
struct Options {
    /// Writes the rows to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Number of runs, in each of which everything is measured; the run in the middle counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

#[derive(Debug, clap::Args)]
struct PathsOptions {
    #[command(flatten)]
    options: Options,
    /// Measures these rows alone; again for each.
    #[arg(long, value_name = "ROW", value_parser = row_names())]
    only: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct SomeOptions {
    #[command(flatten)]
    options: Options,
    /// Measures these rows alone; again for each.
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
}

/// The rows that can be asked for.
fn row_names() -> PossibleValuesParser {
    PossibleValuesParser::new(paths::rows().map(|row| row.name))
}

fn main() -> ExitCode {
    let style = Style::of_this_terminal();
    let done = match Arguments::parse().what {
        What::Local(options) => measure(&options, Vec::new(), style, local::run),
        What::Tcp(options) => measure(&options, Vec::new(), style, tcp::run),
        What::Paths(PathsOptions { options, only }) => measure(&options, only, style, paths::run),
        What::Channels(options) => some(options, &channels::GROUPS, style),
        What::Pipes(options) => some(options, &pipes::GROUPS, style),
        What::Sets(options) => some(options, &sets::GROUPS, style),
        What::Gpu(options) => measure(&options, Vec::new(), style, gpu::run),
        What::Cluster(options) => measure(&options, Vec::new(), style, cluster::run),
        What::End(end) => end.run().map(|()| ExitCode::SUCCESS),
        What::Echo(echo) => echo.run().map(|()| ExitCode::SUCCESS),
        What::ChannelEnd(end) => end.run().map(|()| ExitCode::SUCCESS),
        What::PipeEnd(end) => end.run().map(|()| ExitCode::SUCCESS),
        What::GpuReader(reader) => reader.run().map(|()| ExitCode::SUCCESS),
        What::PyGet(getter) => getter.run().map(|()| ExitCode::SUCCESS),
        What::Hold(hold) => hold.run().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        undo::unless_signalled();
        eprintln!("{} {error:#}", style.bad("error:"));
        ExitCode::FAILURE
    })
}

/// Measures the groups of which a row is asked for.
fn some(options: SomeOptions, groups: &'static [Group], style: Style) -> Result<ExitCode> {
    let SomeOptions { options, only } = options;
    let names: Vec<&str> = groups::rows(groups).map(|row| row.name).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("no row is called {unknown:?}; these are: {}", names.join(", "));
    }
    measure(&options, only, style, |bench| Ok(groups::measure(bench, groups)))
}

/// Everything several times, the table of the runs in the middle, the file, and what was missed.
fn measure(
    options: &Options,
    only: Vec<String>,
    style: Style,
    run: impl Fn(&Bench) -> Result<Vec<Measured>>,
) -> Result<ExitCode> {
    undo::on_signals().context("cannot wait for signals")?;
    let bench = Bench { cores: Cores::here()?, programs: sidecar::programs()?, style, only };
    println!("{}", machine::description(bench.cores));
    if bench.cores.count < 2 {
        println!("one core alone: both ends of a round trip share it, and the bounds are not meant for that");
    }
    let mut runs = Vec::new();
    for number in 1..=options.runs {
        println!("\n{}", style.strong(&format!("run {number} of {}", options.runs)));
        let rows = run(&bench)?;
        println!("{}", report::table(&rows, style));
        runs.push(rows);
    }
    let rows = rows::median_of_runs(&runs);
    println!("\n{}", style.strong(&format!("median of {} runs", options.runs)));
    println!("{}\n\n{}", report::table(&rows, style), report::legend(&rows, style));
    if let Some(path) = &options.json {
        report::write_json(path, &rows)?;
    }
    let missed: Vec<&str> =
        rows.iter().filter(|row| row.passes() == Some(false)).map(|row| row.row.name).collect();
    if missed.is_empty() {
        println!("\n{}", style.good("every row reaches its bound"));
        return Ok(ExitCode::SUCCESS);
    }
    println!("\n{} {}", style.bad("missed:"), missed.join(", "));
    Ok(ExitCode::FAILURE)
}
