//! Alternative that users would take instead: `torch.distributed` over gloo, `send` and `recv` between two hosts, with
//! the tensor of the reader warm. Needs a Python that has torch.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::hosts::{Host, TwoHosts};
use crate::scratch::Scratch;
use crate::worker::{At, Worker};

/// Names the Python; `python3` without it.
pub const PYTHON: &str = "TENSORLANE_BENCH_PYTHON";
const SCRIPT: &str = include_str!("gloo.py");
/// Environment for quiet: one thread does its arithmetic, of which there is none, and it says nothing that is no error.
const QUIET: [(&str, &str); 3] =
    [("OMP_NUM_THREADS", "1"), ("PYTHONWARNINGS", "ignore"), ("TORCH_CPP_LOG_LEVEL", "ERROR")];

/// Two processes of which one fetches from the other.
#[derive(Debug)]
pub struct Gloo {
    // Dropped first: the end of its input makes it tell the other one to end.
    fetch: Worker,
    _send: Worker,
    torch: String,
}

/// The Python that has torch; why there is none.
///
/// # Errors
/// A sentence for people.
pub fn python() -> Result<PathBuf> {
    let named = std::env::var_os(PYTHON).unwrap_or_else(|| "python3".into());
    // Its whole path: the hosts may look elsewhere.
    let output = Command::new(&named)
        .args(["-c", "import sys, torch.distributed; print(sys.executable)"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} cannot be started", named.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let path = said.lines().last().filter(|_| output.status.success());
    let path = path.with_context(|| {
        let named = named.display();
        format!(
            "{named} has no torch: --with-gloo of `cargo xtask bench` fetches it, {PYTHON} names another one"
        )
    })?;
    Ok(PathBuf::from(path))
}

impl Gloo {
    /// Host A sends, host B fetches, at most `bytes` at a time.
    ///
    /// # Errors
    /// They do not start.
    pub fn start(hosts: &TwoHosts, scratch: &Scratch, python: &Path, bytes: u64) -> Result<Self> {
        let script = scratch.path().join("gloo.py");
        fs::write(&script, SCRIPT).with_context(|| format!("{} cannot be written", script.display()))?;
        let address = hosts.a.free_address()?;
        let words = |rank: &str| -> Vec<OsString> {
            let numbers =
                [rank.to_owned(), address.ip().to_string(), address.port().to_string(), bytes.to_string()];
            [script.clone().into_os_string()].into_iter().chain(numbers.map(OsString::from)).collect()
        };
        let start = |host: &Host, rank: &str| {
            let words = words(rank);
            let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
            // Else it asks what this machine's name is an address of, which is the loopback device's on most.
            let interface = [("GLOO_SOCKET_IFNAME", host.interface())];
            let variables = [&QUIET[..], &interface].concat();
            Worker::start_program(At { host: Some(host), core: None }, python, &words, &variables)
        };
        let (mut send, mut fetch) = (start(&hosts.a, "0")?, start(&hosts.b, "1")?);
        send.answer::<String>()?;
        let torch = fetch.answer()?;
        Ok(Self { fetch, _send: send, torch })
    }

    /// The version of torch.
    pub fn torch(&self) -> &str {
        &self.torch
    }

    /// The seconds of one fetch.
    ///
    /// # Errors
    /// An end is gone.
    pub fn seconds(&mut self, bytes: u64) -> Result<f64> {
        self.fetch.ask(&bytes)
    }
}
