//! Alternatives that users would take instead of a replay buffer in a set: mapped files at one host, which others reach by torch RPC. They need
//! a Python that has torch, and one of them TorchRL.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::hosts::{Host, TwoHosts};
use crate::scratch::Scratch;
use crate::worker::{At, Worker};

const SCRIPT: &str = include_str!("replay.py");
/// Environment for quiet: it says nothing that is no error.
const QUIET: [(&str, &str); 2] = [("PYTHONWARNINGS", "ignore"), ("TORCH_CPP_LOG_LEVEL", "ERROR")];

/// Ways to keep the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayWay {
    /// TorchRL's memory-mapped storage.
    TorchRl,
    /// Memory-mapped tensor, a single one.
    Mapped,
}

impl ReplayWay {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::TorchRl, Self::Mapped];

    /// The module of Python that it needs, by which the script knows it, too.
    pub const fn module(self) -> &'static str {
        match self {
            Self::TorchRl => "torchrl",
            Self::Mapped => "torch",
        }
    }
}

/// Two processes of which one has a replay buffer, and the other extends it and samples from it.
#[derive(Debug)]
pub struct ReplayByRpc {
    // Dropped first: it calls the other one.
    trainer: Worker,
    _buffer: Worker,
    about: String,
}

/// Extensions and the sample behind them.
#[derive(Debug, Clone, Copy)]
pub struct ReplayStep {
    /// Extensions at once.
    pub writers: usize,
    /// Rows of each.
    pub extend: u64,
    /// Rows of the sample.
    pub sample: usize,
}

impl ReplayByRpc {
    /// Host A has the buffer, of so many rows of so many bytes, in files below `memory`; host B asks.
    ///
    /// # Errors
    /// The Python has no such module, or they do not start.
    pub fn start(
        hosts: &TwoHosts,
        memory: &Scratch,
        python: &Path,
        way: ReplayWay,
        (rows, row_bytes): (u64, u64),
    ) -> Result<Self> {
        let module = way.module();
        has(python, module)?;
        let script = memory.path().join("replay.py");
        fs::write(&script, SCRIPT).with_context(|| format!("{} cannot be written", script.display()))?;
        // No name of a module: the script's directory is where Python looks first.
        let folder = memory.directory(&format!("rows-{module}"))?;
        let address = hosts.a.free_address()?;
        let start = |host: &Host, rank: &str| {
            let [ip, port] = [address.ip().to_string(), address.port().to_string()];
            let [rows, row_bytes] = [rows, row_bytes].map(|number: u64| number.to_string());
            let words: [&OsStr; 8] = [
                script.as_os_str(),
                rank.as_ref(),
                ip.as_ref(),
                port.as_ref(),
                module.as_ref(),
                folder.as_os_str(),
                rows.as_ref(),
                row_bytes.as_ref(),
            ];
            // Else they ask what this machine's name is an address of, which is the loopback device's on most.
            let cable = [("TP_SOCKET_IFNAME", host.interface()), ("GLOO_SOCKET_IFNAME", host.interface())];
            let variables = [&QUIET[..], &cable].concat();
            Worker::start_program(At { host: Some(host), core: None }, python, &words, &variables)
        };
        let (mut buffer, mut trainer) = (start(&hosts.a, "0")?, start(&hosts.b, "1")?);
        buffer.answer::<String>()?;
        let about = trainer.answer()?;
        Ok(Self { trainer, _buffer: buffer, about })
    }

    /// Words for it, with its version.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// The seconds of one step.
    ///
    /// # Errors
    /// An end is gone.
    pub fn seconds(&mut self, step: ReplayStep) -> Result<f64> {
        let ReplayStep { writers, extend, sample } = step;
        self.trainer.ask(&(writers, extend, sample))
    }
}

/// Fails if a Python has no module of that name.
fn has(python: &Path, module: &str) -> Result<()> {
    let import = format!("import {module}");
    let found = Command::new(python).args(["-c", &import]).stdin(Stdio::null()).output();
    let found = found.with_context(|| format!("{} cannot be started", python.display()))?;
    ensure!(found.status.success(), "{} has no {module}", python.display());
    Ok(())
}
