//! `tensorlane-node`: on each node, keeps the file systems in which sidecars of an exchange find each other, until SIGTERM. What is
//! mounted then stays.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tensorlane_operator::directories::{FileSystem, NodeDirectory, bytes, prepare};
use tokio::signal::unix::{SignalKind, signal};

/// Interval of looks: somebody may have removed a directory, or unmounted what was in it.
const LOOK: Duration = Duration::from_secs(10);

/// Gives each exchange a directory of its own on this node: a file system in memory with a size, for sockets of sidecars.
#[derive(Debug, Parser)]
#[command(name = "tensorlane-node", version)]
struct Args {
    /// The exchanges, such as ml/default.
    #[arg(required = true, value_name = "NAMESPACE/NAME")]
    exchanges: Vec<NodeDirectory>,
    /// Bytes of the files of each, from 64Ki to 1Ti.
    #[arg(long, default_value = "1Mi", value_name = "BYTES", value_parser = bytes)]
    bytes: u64,
    /// Files of each.
    #[arg(long, default_value_t = 4096, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(16..=1_000_000))]
    files: u64,
    /// The directory below which they are.
    #[arg(long, default_value = "/run/tensorlane", value_name = "DIR")]
    root: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Box::from).and_then(|runtime| runtime.block_on(keep(&args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prepares all directories, now and again until told to end. One that fails ends the process once the others are prepared: what a
/// namespace does to its own keeps none of others waiting.
async fn keep(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let wanted = FileSystem { bytes: args.bytes, files: args.files };
    let mut is_first = true;
    loop {
        let mut failed = None;
        for exchange in &args.exchanges {
            let changed = match prepare(&args.root, exchange, wanted) {
                Ok(changed) => changed,
                Err(error) => {
                    eprintln!("error: {error}");
                    failed = Some(error);
                    continue;
                }
            };
            let told = changed.map(|change| change.to_string());
            let told = told.or_else(|| is_first.then(|| "as wanted".to_owned()));
            if let Some(told) = told {
                let FileSystem { bytes, files } = wanted;
                writeln!(std::io::stdout(), "{exchange}: {told}, {bytes} bytes and {files} files")?;
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        is_first = false;
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}
