//! `tensorlane-sidecar`: reads its configuration and runs.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tensorlane_sidecar::config::{EXIT_BAD_CONFIG, Sources};
use tensorlane_sidecar::{app, logging};

/// The process beside the pod that keeps tensors and moves them between peers.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The configuration, YAML; each setting has a variable that beats it (see --print-config)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective configuration as YAML, with what each setting is for and where its value comes from
    #[arg(long)]
    print_config: bool,
    /// Print the line of the peers file about this sidecar, its key's fingerprint included; makes the key if there is none
    #[arg(long, conflicts_with = "print_config")]
    print_peer: bool,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are no mistakes; a closed output is nobody's loss.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(EXIT_BAD_CONFIG) } else { ExitCode::SUCCESS };
        }
    };
    let loaded = match Sources::read(arguments.config.as_deref()).and_then(|sources| sources.load()) {
        Ok(loaded) => loaded,
        Err(mistakes) => return fail(EXIT_BAD_CONFIG, &mistakes),
    };
    if arguments.print_config {
        return print(&loaded.to_yaml());
    }
    if arguments.print_peer {
        return app::peers_file_line(&loaded.config)
            .map_or_else(|error| fail(1, &error), |line| print(&line));
    }
    match app::run(&loaded.config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &error),
    }
}

fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(1, &error),
    }
}

fn fail(code: u8, why: &dyn std::fmt::Display) -> ExitCode {
    logging::say(why);
    ExitCode::from(code)
}
