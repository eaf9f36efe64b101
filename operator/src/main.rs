//! `tensorlane-operator`: reads its arguments and runs until SIGTERM.

use std::process::ExitCode;

use clap::Parser;
use tensorlane_operator::app::{self, Args};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> ExitCode {
    let args = Args::parse();
    app::subscriber(args.log_level, std::io::stdout).init();
    // The client of Kubernetes takes the provider of the process; another one could not be set before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error),
    };
    match runtime.block_on(until_told(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error.as_ref()),
    }
}

async fn until_told(args: Args) -> Result<(), Box<dyn std::error::Error>> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("told to end");
        stop.cancel();
        // The rest is the end of the tasks.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = app::run(args, stop.clone()) => Ok(ended?),
        () = told => Ok(()),
    }
}

fn fail(why: &dyn std::error::Error) -> ExitCode {
    tracing::error!(error = %why, "tensorlane-operator cannot go on");
    ExitCode::FAILURE
}
