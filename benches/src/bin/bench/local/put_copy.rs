//! Putting bytes that lie elsewhere: one copy into the arena, as fast as this machine copies at all.

use std::cell::Cell;
use std::process;
use std::sync::Arc;

use anyhow::Result;
use tensorlane_benches::limits::memory::Memcpy;
use tensorlane_benches::pairs::{interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::{faults, tensors};
use tensorlane_client::{Client, PutOptions};

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{self, Measured, Row};

/// A tensor of 1 GiB while the one before is being released.
const ARENA: u64 = 3 << 30;
const MIB: usize = 1 << 20;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("copies: all cores, sidecar and limit alike");
    let sizes = [(&rows::PUT_COPY_64M, 64 * MIB), (&rows::PUT_COPY_1G, 1024 * MIB)];
    sizes.into_iter().map(|(row, size)| measure(bench, row, size)).collect()
}

fn measure(bench: &Bench, row: &'static Row, size: usize) -> Result<Measured> {
    let scratch = Scratch::make()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("local", ARENA), &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    // Written, so that its pages are there.
    let source = Arc::new(vec![0x5a; size]);
    let copy = Memcpy::best(&source, bench.cores.count)?;
    tensors::settle(&client)?;
    let limit = || Ok(rate(size, copy.seconds()?));
    // Until the session has its segments, which is not the steady state.
    interleaved(WARM_UP + 2, 0, limit, || Ok(rate(size, put(&client, &source)?)))?;
    tensors::settle(&client)?;

    let faults = [Cell::new(0), Cell::new(0)];
    let ours = || {
        let before = faults_of_both(&sidecar)?;
        let took = put(&client, &source)?;
        let after = faults_of_both(&sidecar)?;
        for (sum, (before, after)) in faults.iter().zip(before.into_iter().zip(after)) {
            sum.set(sum.get() + after - before);
        }
        Ok(rate(size, took))
    };
    let pairs = interleaved(PAIRS, 0, limit, ours)?;
    sidecar.end()?;

    let [here, there] = faults.map(Cell::into_inner);
    // The client alone writes the bytes. The sidecar's faults are pages of its own books, which grow until the ids that
    // it keeps for retries have reached their limit.
    let breach = (here > 0).then(|| format!("{here} page faults in the client during {PAIRS} puts"));
    let note = format!("memcpy: {}; page faults: {here} in the client, {there} in the sidecar", copy.way());
    Ok(Measured { note: Some(note), breach, ..Measured::new(row, pairs) })
}

/// Page faults so far: ours, and the sidecar's.
fn faults_of_both(sidecar: &Sidecar) -> Result<[u64; 2]> {
    Ok([faults::of(process::id())?, faults::of(sidecar.process().id())?])
}

/// The seconds of one put. Its release travels with the next one.
fn put(client: &Client, bytes: &[u8]) -> Result<f64> {
    let descriptor = tensors::bytes(bytes.len() as u64)?;
    let mut stored = None;
    let took = seconds(|| {
        stored = Some(client.put(&descriptor, bytes, &PutOptions::new())?);
        Ok(())
    })?;
    drop(stored);
    Ok(took)
}

fn rate(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}
