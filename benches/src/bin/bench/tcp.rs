//! The rows `tcp.*`: two sidecars on two hosts, and a process beside one that gets what lies at the other.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Result, bail};
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::limits::round_trip::{PAGE, TcpRoundTrip, UnixRoundTrip};
use tensorlane_benches::limits::tls::TlsFetch;
use tensorlane_benches::pairs::{interleaved, median_us, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions, introduce};
use tensorlane_benches::{cores, machine, tensors, wait};
use tensorlane_client::{AcquireOptions, Client, PutOptions, Target, Tensor};

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{self, Measured};

const ARENA: u64 = 1 << 30;
const LARGE: usize = 256 << 20;
/// Round trips of one value. Every get is of another tensor, for what was got stays as a copy.
const ROUND_TRIPS: usize = 200;
/// A copy that nobody holds goes at once, so that the next get moves all bytes again. No pull tries QUIC.
const NO_COPIES: &str = "gc:\n  copyIdle: 1ms\nprefer: tcp\n";
/// Time that a copy may stay once nobody holds it.
const COPY_MAX: Duration = Duration::from_secs(10);

pub(crate) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = TwoHosts::make();
    bench.progress(&format!("{hosts}; congestion control {}", machine::congestion_control()));
    Ok(vec![large(bench, &hosts)?, small(bench, &hosts)?])
}

/// Starts a sidecar on either host, each on a core if one is named, and lets them meet.
pub(crate) fn two_sidecars(
    bench: &Bench,
    hosts: &TwoHosts,
    scratch: &Scratch,
    arena: u64,
    cores: [Option<usize>; 2],
    settings: &str,
) -> Result<[Sidecar; 2]> {
    let start = |name, host, core| {
        let options = SidecarOptions { host: Some(host), core, settings, ..SidecarOptions::new(name, arena) };
        Sidecar::start(&options, &bench.programs, scratch)
    };
    let a = start("a", &hosts.a, cores[0])?;
    let b = start("b", &hosts.b, cores[1])?;
    introduce(&a, &b)?;
    Ok([a, b])
}

fn large(bench: &Bench, hosts: &TwoHosts) -> Result<Measured> {
    bench.progress("256 MiB over TLS: all cores, sidecars and limit alike");
    let mut limit = TlsFetch::start(hosts, LARGE as u64)?;
    let scratch = Scratch::make()?;
    let [a, b] = two_sidecars(bench, hosts, &scratch, ARENA, [None; 2], NO_COPIES)?;
    let (writer, reader) = (a.client()?, b.client()?);
    let bytes: Vec<u8> = (0..LARGE / 4096).flat_map(tensors::page).collect();
    let stored = writer.put(&tensors::bytes(LARGE as u64)?, &bytes, &PutOptions::new())?;
    let target = Target::from(stored.reference());
    tensors::settle(&reader)?;

    let rate = |seconds: f64| LARGE as f64 / seconds / 1e9;
    let get = || {
        without_copies(&reader)?;
        let mut tensor = None;
        let took = seconds(|| {
            tensor = Some(reader.acquire(&target, &AcquireOptions::new())?);
            Ok(())
        })?;
        moved(tensor.as_ref(), LARGE)?;
        Ok(rate(took))
    };
    let pairs = interleaved(PAIRS, WARM_UP, || Ok(rate(limit.seconds()?)), get)?;
    if reader.get(&target, &AcquireOptions::new())?.bytes != bytes {
        bail!("what came over is not what was put");
    }
    drop(stored);
    a.end()?;
    b.end()?;
    Ok(Measured::new(&rows::GET_256M_TLS, pairs))
}

fn small(bench: &Bench, hosts: &TwoHosts) -> Result<Measured> {
    bench.progress("4 KiB: the caller and host A on one core, host B on another, sidecars and limit alike");
    let [near, far] = [Some(bench.cores.near), Some(bench.cores.far)];
    let mut tcp = TcpRoundTrip::start(hosts, [near, far], PAGE)?;
    let scratch = Scratch::make()?;
    let mut unix = UnixRoundTrip::start(&scratch, far)?;
    let [a, b] = two_sidecars(bench, hosts, &scratch, ARENA, [near, far], "")?;
    let pairs = cores::on(near, || {
        let (writer, reader) = (a.client()?, b.client()?);
        let stored = tensors::put_pages(&writer, ROUND_TRIPS * (PAIRS + WARM_UP))?;
        tensors::settle(&reader)?;
        let limit = || Ok(tcp.median_us(ROUND_TRIPS)? + unix.median_us(ROUND_TRIPS)?);
        let next = Cell::new(0);
        let get = || {
            median_us(ROUND_TRIPS, || {
                let target = &stored[next.replace(next.get() + 1)];
                let tensor = reader.acquire(target.reference(), &AcquireOptions::new())?;
                moved(Some(&tensor), 4096)?;
                drop(tensor);
                Ok(())
            })
        };
        interleaved(PAIRS, WARM_UP, limit, get)
    })??;
    a.end()?;
    b.end()?;
    Ok(Measured::new(&rows::GET_4K, pairs))
}

/// Waits until the sidecar has no copy of another peer's tensor.
fn without_copies(client: &Client) -> Result<()> {
    client.flush()?;
    if !wait::until(COPY_MAX, || Ok(client.status()?.copies == 0))? {
        bail!("copies stay although nobody holds them: {:?}", client.status()?);
    }
    Ok(())
}

/// Proves that these bytes came from the other peer just now.
fn moved(tensor: Option<&Tensor>, bytes: usize) -> Result<()> {
    match tensor.map(Tensor::moved) {
        Some(moved) if moved.bytes == bytes as u64 => Ok(()),
        moved => bail!("{bytes} bytes should have come from the other peer: {moved:?}"),
    }
}
