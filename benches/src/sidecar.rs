//! A sidecar as a user starts it: the program, a configuration file, a socket directory.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tensorlane_client::Client;

use crate::cores;
use crate::hosts::Host;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::wait;

/// Environment variable with the directory of the built programs.
pub const PROGRAMS_ENV: &str = "TENSORLANE_BIN_DIR";
/// Time that a sidecar may take to answer, its arena being populated meanwhile.
const START_MAX: Duration = Duration::from_secs(30);
/// Time that two sidecars may take to see each other: the peers file is read every second.
const MEET_MAX: Duration = Duration::from_secs(20);

/// Options with which a sidecar is started.
#[derive(Debug)]
pub struct SidecarOptions<'a> {
    /// Name of the sidecar as a peer.
    pub name: &'a str,
    /// The host that it runs on and listens at; none for a sidecar without peers.
    pub host: Option<&'a Host>,
    /// Bytes of its arena.
    pub arena: u64,
    /// The one core that it may use; any if none.
    pub core: Option<usize>,
    /// The setting `peers.fanOut`: readers of a large tensor that one peer serves at a time.
    pub fan_out: u8,
    /// More of the configuration, as lines of YAML.
    pub settings: &'a str,
}

impl<'a> SidecarOptions<'a> {
    /// A sidecar without peers, on any core.
    pub const fn new(name: &'a str, arena: u64) -> Self {
        Self { name, host: None, arena, core: None, fan_out: 1, settings: "" }
    }
}

/// A running sidecar. Dropped, it is ended.
#[derive(Debug)]
pub struct Sidecar {
    name: String,
    sockets: PathBuf,
    peers_file: PathBuf,
    listens: Option<SocketAddr>,
    process: Process,
    log: PathBuf,
}

/// The directory of the built programs: `$TENSORLANE_BIN_DIR`, or where this program lies.
///
/// # Errors
/// Neither is known.
pub fn programs() -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os(PROGRAMS_ENV) {
        return Ok(directory.into());
    }
    let program = std::env::current_exe().context("the path of this program is not known")?;
    program.parent().map(Path::to_owned).context("this program lies nowhere")
}

impl Sidecar {
    /// Starts one with its files in `scratch`, and waits until it answers.
    ///
    /// # Errors
    /// It does not start; with the end of its log.
    pub fn start(options: &SidecarOptions<'_>, programs: &Path, scratch: &Scratch) -> Result<Self> {
        let home = scratch.directory(options.name)?;
        let peers_file = home.join("peers.yaml");
        fs::write(&peers_file, "peers: []\n")?;
        let listens = options.host.map(Host::free_address).transpose()?;
        let sockets = scratch.directory(&format!("{}.run", options.name))?;
        let config = home.join("config.yaml");
        fs::write(&config, configuration(options, &home, &sockets, listens))?;

        let program = programs.join("tensorlane-sidecar");
        if !program.is_file() {
            bail!("{} is not there: build it, or set {PROGRAMS_ENV}", program.display());
        }
        let log = home.join("log");
        let mut command = options.host.map_or_else(|| Command::new(&program), |host| host.command(&program));
        command.arg("--config").arg(&config).stdin(Stdio::null());
        command.stdout(File::create(&log)?).stderr(File::options().append(true).open(&log)?);
        let what = format!("sidecar {}", options.name);
        let process = cores::on(options.core, || Process::start(what, &mut command))
            .context("cannot stay on one core")??;
        let sidecar = Self { name: options.name.into(), sockets, peers_file, listens, process, log };
        sidecar.client()?;
        Ok(sidecar)
    }

    /// A session with it.
    ///
    /// # Errors
    /// It does not answer; with the end of its log.
    pub fn client(&self) -> Result<Client> {
        let until = Instant::now() + START_MAX;
        loop {
            let error = match Client::connect(&self.sockets) {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if self.process.ended()?.is_some() || Instant::now() > until {
                let log = self.end_of_log();
                return Err(error).with_context(|| format!("{} does not answer; its log:\n{log}", self.name));
            }
            wait::pause();
        }
    }

    /// The directory of its sockets.
    pub fn sockets(&self) -> &Path {
        &self.sockets
    }

    /// The address at which peers reach it.
    ///
    /// # Errors
    /// It has no peers.
    pub fn address(&self) -> Result<SocketAddr> {
        self.listens.with_context(|| format!("{} listens nowhere", self.name))
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Asks it to end with SIGTERM, and checks that it does so with exit code 0.
    ///
    /// # Errors
    /// It did not end in time, or not well; with the end of its log.
    pub fn end(self) -> Result<()> {
        let log = self.log;
        let ended = self.process.terminate().and_then(|status| match status.code() {
            Some(0) => Ok(()),
            _ => bail!("sidecar {} ended with {status} after SIGTERM", self.name),
        });
        ended.with_context(|| format!("its log:\n{}", end_of(&log)))
    }

    /// The last lines of its log.
    pub fn end_of_log(&self) -> String {
        end_of(&self.log)
    }
}

fn end_of(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Lets two sidecars know each other by file, each the other's key, and waits until they are connected.
///
/// # Errors
/// They do not meet.
pub fn introduce(a: &Sidecar, b: &Sidecar) -> Result<()> {
    introduce_at([(a, a.address()?), (b, b.address()?)])
}

/// Introduces two sidecars as [`introduce`] does, each with an address that leads to it.
///
/// # Errors
/// They do not meet.
pub fn introduce_at([(a, at_a), (b, at_b)]: [(&Sidecar, SocketAddr); 2]) -> Result<()> {
    let clients = [a.client()?, b.client()?];
    let others = [(at_b, &clients[1]), (at_a, &clients[0])];
    for ((here, there), (address, there_client)) in [(a, b), (b, a)].into_iter().zip(others) {
        let fingerprint = there_client.status()?.fingerprint;
        let text = peers_text(&there.name, address, &fingerprint);
        // Renamed, so that nobody reads half a file.
        let whole = here.peers_file.with_extension("new");
        fs::write(&whole, text)?;
        fs::rename(&whole, &here.peers_file)?;
    }
    for ((here, there), client) in [(a, b), (b, a)].into_iter().zip(&clients) {
        let connected = || -> Result<bool> {
            let peers = client.peers()?;
            Ok(peers.iter().any(|peer| peer.name == there.name && peer.state == "connected"))
        };
        if !wait::until(MEET_MAX, connected)? {
            let peers = client.peers()?;
            bail!("{} does not reach {}: {peers:?}; its log:\n{}", here.name, there.name, here.end_of_log());
        }
    }
    Ok(())
}

/// Lets all of them know each other, each pair.
///
/// # Errors
/// They do not meet.
pub fn introduce_all(sidecars: &[Sidecar]) -> Result<()> {
    let clients = sidecars.iter().map(Sidecar::client).collect::<Result<Vec<_>>>()?;
    let mut text = String::from("peers:\n");
    for (sidecar, client) in sidecars.iter().zip(&clients) {
        let fingerprint = client.status()?.fingerprint;
        text.push_str(&peer_text(&sidecar.name, sidecar.address()?, &fingerprint));
    }
    for sidecar in sidecars {
        let whole = sidecar.peers_file.with_extension("new");
        fs::write(&whole, &text)?;
        fs::rename(&whole, &sidecar.peers_file)?;
    }
    for (sidecar, client) in sidecars.iter().zip(&clients) {
        let connected = || -> Result<bool> {
            let peers = client.peers()?;
            Ok(peers.iter().filter(|peer| peer.state == "connected").count() + 1 == sidecars.len())
        };
        if !wait::until(MEET_MAX, connected)? {
            let peers = client.peers()?;
            bail!("{} does not reach all: {peers:?}; its log:\n{}", sidecar.name, sidecar.end_of_log());
        }
    }
    Ok(())
}

fn configuration(
    options: &SidecarOptions<'_>,
    home: &Path,
    sockets: &Path,
    listens: Option<SocketAddr>,
) -> String {
    let mut text = format!(
        "peer: {}\nsockets:\n  directory: {}\narena:\n  size: {}\nstate:\n  directory: {}\nadmin:\n  listen: 'off'\n",
        options.name,
        sockets.display(),
        options.arena,
        home.join("state").display(),
    );
    if let Some(address) = listens {
        let file = home.join("peers.yaml");
        // Writing to a String does not fail.
        let (file, fan_out) = (file.display(), options.fan_out);
        let _ = write!(text, "peers:\n  listen: '{address}'\n  file: {file}\n  fanOut: {fan_out}\n");
    }
    text + options.settings
}

fn peers_text(name: &str, address: SocketAddr, fingerprint: &str) -> String {
    format!("peers:\n{}", peer_text(name, address, fingerprint))
}

fn peer_text(name: &str, address: SocketAddr, fingerprint: &str) -> String {
    format!("  - name: {name}\n    addresses: ['{address}']\n    fingerprints: ['{fingerprint}']\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_without_a_host_has_no_peers() {
        let options =
            SidecarOptions { settings: "gc:\n  copyIdle: 1ms\n", ..SidecarOptions::new("a", 1 << 30) };
        let text = configuration(&options, Path::new("/h"), Path::new("/s"), None);
        assert!(text.contains("peer: a\n") && text.contains("size: 1073741824\n"), "{text}");
        assert!(!text.contains("peers:") && text.ends_with("copyIdle: 1ms\n"), "{text}");
        let text =
            configuration(&options, Path::new("/h"), Path::new("/s"), Some(([198, 18, 0, 1], 9).into()));
        assert!(text.contains("peers:\n  listen: '198.18.0.1:9'\n  file: /h/peers.yaml\n"), "{text}");
    }
}
