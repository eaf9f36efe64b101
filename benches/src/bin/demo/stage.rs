//! Stage of the story: two hosts, the limits of this machine, two sidecars that know each other.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use tensorlane_benches::cores::Cores;
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::limits::memory::Memcpy;
use tensorlane_benches::limits::tls::TlsFetch;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{self, Sidecar, SidecarOptions};
use tensorlane_benches::{stats, text};

use crate::account::Account;

/// Of either sidecar.
const ARENA: u64 = 1 << 30;

/// Limits of this machine without us with as many bytes as the model has. Kept, to be measured again beside ours.
pub(crate) struct Limits {
    bytes: u64,
    copy: Memcpy,
    fetch: TlsFetch,
}

impl Limits {
    /// Prepares both and says what they do.
    pub(crate) fn prepare(hosts: &TwoHosts, bytes: u64, account: &Account) -> Result<Self> {
        let source = Arc::new(vec![0x5a; usize::try_from(bytes)?]);
        let copy = Memcpy::best(&source, Cores::here()?.count)?;
        let mut limits = Self { bytes, copy, fetch: TlsFetch::start(hosts, bytes)? };
        let memcpy = median(|| limits.memcpy())?;
        account.say(&format!("memcpy, warm: {} ({})", text::rate(memcpy), limits.copy.way()));
        limits.tls()?;
        let tls = median(|| limits.tls())?;
        account.say(&format!("TLS 1.3 from host A to host B, one bare connection: {}", text::rate(tls)));
        account.say(
            "nothing else runs yet; both are measured again below, in turns with what is compared with them",
        );
        Ok(limits)
    }

    /// Speed of a copy, in bytes a second.
    pub(crate) fn memcpy(&self) -> Result<f64> {
        Ok(self.bytes as f64 / self.copy.seconds()?)
    }

    /// Speed of a fetch over TLS, in bytes a second.
    pub(crate) fn tls(&mut self) -> Result<f64> {
        Ok(self.bytes as f64 / self.fetch.seconds()?)
    }
}

fn median(mut rate: impl FnMut() -> Result<f64>) -> Result<f64> {
    let rates = (0..3).map(|_| rate()).collect::<Result<Vec<_>>>()?;
    stats::median(&rates).context("nothing was measured")
}

/// The two sidecars.
#[derive(Debug)]
pub(crate) struct Sidecars {
    pub(crate) a: Sidecar,
    pub(crate) b: Sidecar,
}

impl Sidecars {
    /// Starts them and lets them know each other by key.
    pub(crate) fn start(
        hosts: &TwoHosts,
        programs: &Path,
        scratch: &Scratch,
        account: &Account,
    ) -> Result<Self> {
        let start = |name, host| {
            // Copies that nobody holds go soon, so that bytes can be moved several times.
            let settings = "gc:\n  copyIdle: 50ms\n";
            let options = SidecarOptions { host: Some(host), settings, ..SidecarOptions::new(name, ARENA) };
            Sidecar::start(&options, programs, scratch)
        };
        let (a, b) = (start("a", &hosts.a)?, start("b", &hosts.b)?);
        for sidecar in [&a, &b] {
            let status = sidecar.client()?.status()?;
            let arena = status.arena.context("a status without an arena")?;
            account.say(&format!(
                "peer {}: process {}, arena {}, key {}",
                status.peer,
                sidecar.process().id(),
                text::bytes(arena.total),
                status.fingerprint
            ));
        }
        sidecar::introduce(&a, &b)?;
        account.holds("connected over TLS, each knows the other by its key from the peers file");
        Ok(Self { a, b })
    }

    /// Ends both, and checks that they end well.
    pub(crate) fn end(self, account: &Account) -> Result<()> {
        self.a.end()?;
        self.b.end()?;
        account.holds("SIGTERM: both sidecars ended with exit code 0");
        Ok(())
    }
}
