//! `kubectl tensorlane`: what a person asks a cluster. Reads objects, and changes none.
//!
//! Results go to standard output, as text or JSON; errors go to standard error. Exit codes: 0 nothing is wrong, 1
//! something is, or it failed, 2 it was called wrongly, 3 nothing wrong was found but not everything could be read.

mod args;
mod events;
mod read;
mod settings;
mod show;
mod trouble;
mod watch;

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde_json::json;
use tensorlane_operator::findings::{self, Finding};
use tensorlane_operator::inspect::routes::{self, Matrix, Requires};
use tensorlane_operator::inspect::{cluster, explain, peers};
use tensorlane_proto::text::printable;

use crate::args::{Args, Command, Format};
use crate::read::Reader;
use crate::trouble::Trouble;
use crate::watch::Flow;

fn main() -> ExitCode {
    let args = Args::parse().checked().unwrap_or_else(|error| error.exit());
    // The client of Kubernetes takes the provider of the process; another one could not be set before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Box::from).and_then(|runtime| runtime.block_on(run(&args))) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {}", printable(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<u8, Box<dyn Error>> {
    let reader = connect(args).await?;
    match &args.command {
        Command::Check => found(args, &cluster::findings(&reader.cluster().await?)),
        Command::Explain { object } => found(args, &explain::findings(&reader.subject(object).await?)),
        Command::Peers { exchange } => {
            let listed = reader.peers().await?;
            let rows = peers::rows(&listed, exchange.as_deref());
            print(args, || json!(rows), || show::peers(&rows, args.all_namespaces))
        }
        Command::Routes { exchange, watch: false, .. } => {
            let (matrices, notes) = matrices(&reader, exchange.as_deref()).await?;
            notes.iter().for_each(|note| eprintln!("note: {}", printable(note)));
            print(args, || routes::json(&matrices), || show::routes(&matrices, args.all_namespaces))
        }
        Command::Routes { exchange, interval, .. } => {
            let mut told = Vec::new();
            let look = async || {
                let (matrices, notes) = matrices(&reader, exchange.as_deref()).await?;
                // Those that stay are not told again.
                notes
                    .iter()
                    .filter(|note| !told.contains(*note))
                    .for_each(|note| eprintln!("note: {}", printable(note)));
                told = notes;
                Ok(match args.output {
                    Format::Json => format!("{}\n", routes::json(&matrices)),
                    Format::Text => show::routes(&matrices, args.all_namespaces),
                })
            };
            watch::watch(Flow::here(args.output == Format::Json), *interval, look).await.map(|()| 0)
        }
    }
}

/// The routes of the exchange, or of each, and what cannot be known of them.
async fn matrices(
    reader: &Reader,
    exchange: Option<&str>,
) -> Result<(Vec<Matrix>, Vec<String>), Box<dyn Error>> {
    let exchanges = reader.exchanges(exchange).await?;
    let peers = reader.typed_peers().await?;
    let (requires, notes) = requires(reader).await;
    Ok((routes::matrices(&exchanges, &peers, &requires), notes))
}

/// Reads the requirements of pods for routes by their own annotations; what cannot be known is told, and no error.
async fn requires(reader: &Reader) -> (Requires, Vec<String>) {
    let mut notes = Vec::new();
    let pods = reader.pods().await.unwrap_or_else(|why| {
        notes.push(format!("what pods require of their routes is not known: {why}"));
        Vec::new()
    });
    let requires = routes::requires(pods);
    notes.extend(requires.wrong.iter().map(ToString::to_string));
    (requires, notes)
}

async fn connect(args: &Args) -> Result<Reader, Box<dyn Error>> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    // A context is one of a kubeconfig; without one a pod may ask, too.
    let file = match &args.kubeconfig {
        Some(file) => Kubeconfig::read_from(file).map(Some),
        None => listed(),
    };
    let config = match (file.map_err(|error| Trouble::of_config(&error))?, &args.context) {
        (Some(file), _) => {
            Config::from_custom_kubeconfig(file, &options).await.map_err(|error| Trouble::of_config(&error))
        }
        (None, Some(_)) => {
            Config::from_kubeconfig(&options).await.map_err(|error| Trouble::of_config(&error))
        }
        (None, None) => Config::infer().await.map_err(|error| Trouble::of_config(&error)),
    };
    let mut config = config?;
    if let Some(user) = &args.as_user {
        config.auth_info.impersonate = Some(user.clone());
        config.auth_info.impersonate_groups = Some(args.as_group.clone());
    }
    let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    Ok(Reader::new(
        Client::try_from(config).map_err(|error| Trouble::of_config(&error))?,
        namespace,
        args.all_namespaces,
        args.operator_namespace.clone(),
    ))
}

/// The kubeconfig of KUBECONFIG, as kubectl reads a list: files that are not there are passed over, unless all are.
fn listed() -> Result<Option<Kubeconfig>, KubeconfigError> {
    let list = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut files =
        std::env::split_paths(&list).filter(|file| !matches!(file.try_exists(), Ok(false))).peekable();
    if files.peek().is_none() {
        return Ok(None);
    }
    files.try_fold(Kubeconfig::default(), |all, file| all.merge(Kubeconfig::read_from(file)?)).map(Some)
}

fn found(args: &Args, all: &[Finding]) -> Result<u8, Box<dyn Error>> {
    print(args, || findings::json(all), || findings::text(all))?;
    Ok(findings::exit_code(all))
}

fn print(
    args: &Args,
    json: impl FnOnce() -> serde_json::Value,
    text: impl FnOnce() -> String,
) -> Result<u8, Box<dyn Error>> {
    let text = match args.output {
        Format::Json => format!("{:#}\n", json()),
        Format::Text => text(),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever read our output has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        written => Ok(written.map(|()| 0)?),
    }
}
