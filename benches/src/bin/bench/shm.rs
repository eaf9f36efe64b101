//! The rows `shm.*`: two sidecars of one node that share memory, and readers that map what lies at the other.

use std::hint::black_box;

use anyhow::{Context, Result, bail};
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::limits::round_trip::UnixRoundTrip;
use tensorlane_benches::pairs::{alone, interleaved, median_us};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::{cores, machine, tensors};
use tensorlane_client::{AcquireOptions, Client, PutOptions, Stored, Target};
use tensorlane_proto::Transport;
use tensorlane_proto::negotiate::Require;

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{self, Measured};
use crate::tcp::two_sidecars;

const GIB: u64 = 1 << 30;
/// Two tensors of that size, and some.
const ARENA: u64 = 5 << 29;
/// Round trips of one value.
const ROUND_TRIPS: usize = 200;
/// Readers of one tensor at a time.
const READERS: usize = 64;
/// Number of times that they come together.
const TIMES: usize = 3;
/// By how much shared memory of the machine may grow meanwhile. The tensor is there already, and readers map it: they need
/// none. What else runs on the machine may take a little.
const GROWTH_MAX: u64 = 1 << 20;

pub(crate) fn run(bench: &Bench, hosts: &TwoHosts) -> Result<Vec<Measured>> {
    bench.progress("shared memory: the caller on one core, both sidecars and the limit on another");
    let scratch = Scratch::make()?;
    let node = scratch.directory("node")?;
    let settings = format!("node:\n  directory: {}\n", node.display());
    let far = Some(bench.cores.far);
    let [a, b] = two_sidecars(bench, hosts, &scratch, ARENA, [far, far], &settings)?;
    let writer = a.client()?;
    let stored = writer.reserve(&tensors::bytes(GIB)?)?.seal(&PutOptions::new())?;
    tensors::settle(&writer)?;
    let raw = UnixRoundTrip::start(&scratch, far)?;
    let rows = cores::on(Some(bench.cores.near), || -> Result<_> {
        Ok(vec![get(&b.client()?, &stored, raw)?, readers(|| b.client(), &stored)?])
    })??;
    drop(stored);
    a.end()?;
    b.end()?;
    Ok(rows)
}

/// A map that is not allowed to be anything else, and its release.
fn get(reader: &Client, stored: &Stored, mut raw: UnixRoundTrip) -> Result<Measured> {
    let target = Target::from(stored.reference());
    let options = AcquireOptions::new().require(Require::SAME_NODE.and(Require::ZERO_COPY));
    let ours = || {
        median_us(ROUND_TRIPS, || {
            let tensor = reader.acquire(&target, &options)?;
            match (tensor.moved().transport, tensor.moved().bytes) {
                (Some(Transport::Shm), 0) => Ok(()),
                _ => bail!("it should have been mapped: {}", tensor.moved()),
            }
        })
    };
    Ok(Measured::new(&rows::SHM_GET_1G, interleaved(PAIRS, WARM_UP, || raw.median_us(ROUND_TRIPS), ours)?))
}

/// Sessions that map one tensor at the same time and read a byte of every page: what each costs in page tables.
fn readers(session: impl Fn() -> Result<Client>, stored: &Stored) -> Result<Measured> {
    let target = Target::from(stored.reference());
    let mut grown = 0;
    let each = || {
        let (tables, shared) = (page_tables()?, shared_memory()?);
        let mut held = Vec::new();
        for _ in 0..READERS {
            let client = session()?;
            let tensor = client.acquire(&target, &AcquireOptions::new())?;
            black_box(tensor.view().context("a tensor without bytes")?.touch_pages());
            held.push((client, tensor));
        }
        grown = grown.max(shared_memory()?.saturating_sub(shared));
        Ok((page_tables()?.saturating_sub(tables)) as f64 / READERS as f64 / f64::from(1 << 20))
    };
    let measured = Measured::new(&rows::SHM_READERS, alone(TIMES, 0, each)?);
    let note = Some(growth(grown));
    Ok(Measured { note, breach: breach(grown), ..measured })
}

fn growth(grown: u64) -> String {
    format!("shared memory of the machine grew by {} KiB at most", grown >> 10)
}

/// Fault of so much growth.
fn breach(grown: u64) -> Option<String> {
    (grown > GROWTH_MAX).then(|| format!("{}, and may by {} KiB", growth(grown), GROWTH_MAX >> 10))
}

/// Bytes of page tables of this process.
fn page_tables() -> Result<u64> {
    machine::bytes_of("/proc/self/status", "VmPTE:")
}

/// Bytes of shared memory of the whole machine.
fn shared_memory() -> Result<u64> {
    machine::bytes_of("/proc/meminfo", "Shmem:")
}

#[cfg(test)]
mod tests {
    use tensorlane_benches::pairs::Pair;

    use super::*;

    #[test]
    fn readers_for_whom_shared_memory_grows_miss_however_small_their_page_tables_are() {
        let row = |grown| {
            let small = vec![Pair { value: 0.5, limit: None }; TIMES];
            Measured { breach: breach(grown), ..Measured::new(&rows::SHM_READERS, small) }.passes()
        };
        assert_eq!(
            [row(0), row(GROWTH_MAX), row(GROWTH_MAX + 1), row(GIB)],
            [true, true, false, false].map(Some)
        );
    }
}
