//! The rows `fanout.*`: a tensor of one host that eight others want at the same time.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tensorlane_benches::hosts::star::{NAMES, Star};
use tensorlane_benches::limits::chain;
use tensorlane_benches::pairs::{Pair, interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions, introduce_all};
use tensorlane_benches::tensors;
use tensorlane_client::{AcquireOptions, Client, PutOptions, Tensor};

use super::MBIT;
use super::far::{PLAIN, TLS, without_copies};
use crate::context::Bench;
use crate::rows::{self, Measured, Row};

const BYTES: u64 = 256 << 20;
/// Room for the tensor, and for what pulls alone may take.
const ARENA: u64 = 640 << 20;
const READERS: usize = 8;
/// Each takes seconds, and the cables are slower than the machine.
const PAIRS: usize = 5;
const GET_MAX: Duration = Duration::from_secs(60);

pub(crate) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let star = match Star::make(READERS + 1, MBIT) {
        Ok(star) => star,
        Err(why) => {
            let missing = [&rows::FANOUT, &rows::FANOUT_SOURCE, &rows::FANOUT_TLS];
            return Ok(missing.map(|row| Measured::missing(row, &format!("{why:#}"))).into());
        }
    };
    let (plain, source) = measure(bench, &star, &rows::FANOUT, PLAIN)?;
    let (encrypted, _) = measure(bench, &star, &rows::FANOUT_TLS, TLS)?;
    Ok(vec![plain, source, encrypted])
}

/// Eight gets at once beside the chain, and what the owner sent.
fn measure(
    bench: &Bench,
    star: &Star,
    row: &'static Row,
    settings: &'static str,
) -> Result<(Measured, Measured)> {
    bench.progress(&format!(
        "{}: {} namespaces at {MBIT} Mbit/s; limit: a chain of plain sockets over the same cables",
        row.name,
        star.hosts.len()
    ));
    let scratch = Scratch::make()?;
    let start = |(name, host)| {
        let options = SidecarOptions { host: Some(host), settings, ..SidecarOptions::new(name, ARENA) };
        Sidecar::start(&options, &bench.programs, &scratch)
    };
    let sidecars = NAMES.into_iter().zip(&star.hosts).map(start).collect::<Result<Vec<_>>>()?;
    introduce_all(&sidecars)?;
    let clients = sidecars.iter().map(Sidecar::client).collect::<Result<Vec<_>>>()?;
    let (writer, readers) = clients.split_first().context("there are nine")?;
    let source = star.hosts.first().context("there are nine")?;
    let content: Vec<u8> = (0..(BYTES / 4096) as usize).flat_map(tensors::page).collect();
    let stored = writer.put(&tensors::bytes(BYTES)?, &content, &PutOptions::new())?;
    for reader in readers {
        tensors::settle(reader)?;
    }

    let mut sources = Vec::new();
    let get_all = || {
        readers.iter().try_for_each(without_copies)?;
        let before = source.cable_bytes()?;
        let mut tensors = Vec::new();
        let took = seconds(|| {
            tensors = all(readers, |reader| {
                let options = AcquireOptions::new().deadline(GET_MAX);
                Ok(reader.acquire(stored.reference(), &options)?)
            })?;
            Ok(())
        })?;
        prove(&tensors, &content)?;
        sources.push((source.cable_bytes()? - before) as f64 / BYTES as f64);
        Ok(took)
    };
    let pairs = interleaved(PAIRS, 1, || chain::seconds(star, BYTES), get_all)?;
    drop(stored);
    drop(clients);
    sidecars.into_iter().try_for_each(Sidecar::end)?;
    // The first one warmed up.
    let sources = sources.split_off(1).into_iter().map(|value| Pair { value, limit: None }).collect();
    Ok((Measured::new(row, pairs), Measured::new(&rows::FANOUT_SOURCE, sources)))
}

/// Runs a get at all readers at once.
fn all(readers: &[Client], get: impl Fn(&Client) -> Result<Tensor> + Sync) -> Result<Vec<Tensor>> {
    thread::scope(|scope| {
        let getting: Vec<_> = readers.iter().map(|reader| scope.spawn(|| get(reader))).collect();
        let joined = getting.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|tensor| tensor.map_err(|_| anyhow!("a reader panicked"))?).collect()
    })
}

/// Everyone got it just now, and as it was put.
fn prove(tensors: &[Tensor], content: &[u8]) -> Result<()> {
    for tensor in tensors {
        if tensor.moved().bytes != BYTES {
            bail!("{BYTES} bytes should have come from other peers: {}", tensor.moved());
        }
        if tensor.to_vec() != content {
            bail!("what came is not what was put: {}", tensor.moved());
        }
    }
    Ok(())
}
