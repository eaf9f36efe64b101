//! Costs of asking: acquire, reserve and seal at any size, each at most a few round trips. The caller on one core,
//! the sidecar and the other end of the limit on another.

use std::cell::RefCell;
use std::hint::black_box;

use anyhow::{Context, Result};
use tensorlane_benches::limits::round_trip::UnixRoundTrip;
use tensorlane_benches::limits::warm;
use tensorlane_benches::pairs::{alone, interleaved, median_us, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::{cores, tensors};
use tensorlane_client::{AcquireOptions, Client, PutOptions, Target};

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{self, Measured};

/// Two tensors of 1 GiB, and some.
const ARENA: u64 = 3 << 30;
const GIB: u64 = 1 << 30;
/// Round trips of one value.
const ROUND_TRIPS: usize = 500;
/// Tensors of one batch.
const BATCH: usize = 1_000;
/// Batches of one value.
const BATCHES: usize = 20;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("round trips: the caller on one core, sidecar and limit on another");
    let scratch = Scratch::make()?;
    let far = Some(bench.cores.far);
    let options = SidecarOptions { core: far, ..SidecarOptions::new("local", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let raw = UnixRoundTrip::start(&scratch, far)?;
    let rows = cores::on(Some(bench.cores.near), || measure(&sidecar, raw))??;
    sidecar.end()?;
    Ok(rows)
}

fn measure(sidecar: &Sidecar, raw: UnixRoundTrip) -> Result<Vec<Measured>> {
    // Who writes is not who reads, as between two processes.
    let (writer, reader) = (sidecar.client()?, sidecar.client()?);
    let small = writer.put(&tensors::bytes(4096)?, &[7; 4096], &PutOptions::new())?;
    let large = writer.reserve(&tensors::bytes(GIB)?)?.seal(&PutOptions::new())?;
    let [small, large] = [&small, &large].map(|stored| Target::from(stored.reference()));
    tensors::settle(&writer)?;

    let raw = RefCell::new(raw);
    let round_trip = || raw.borrow_mut().median_us(ROUND_TRIPS);
    let acquire = |target: &Target| acquire_us(&reader, target);
    let rows = [
        Measured::new(&rows::ACQUIRE_4K, interleaved(PAIRS, WARM_UP, round_trip, || acquire(&small))?),
        Measured::new(
            &rows::ACQUIRE_1G,
            interleaved(PAIRS, WARM_UP, || acquire(&small), || acquire(&large))?,
        ),
        touch(&reader, &large)?,
        Measured::new(
            &rows::RESERVE_SEAL_1G,
            interleaved(PAIRS, WARM_UP, round_trip, || reserve_seal_us(&writer))?,
        ),
        batches(&writer, &reader)?,
    ];
    Ok(rows.into())
}

/// Time of an acquire and its release, in microseconds.
fn acquire_us(client: &Client, target: &Target) -> Result<f64> {
    let options = AcquireOptions::new();
    median_us(ROUND_TRIPS, || {
        drop(client.acquire(target, &options)?);
        Ok(())
    })
}

/// Acquire and read one byte of every page, beside the reading alone.
fn touch(client: &Client, target: &Target) -> Result<Measured> {
    let warm = warm::reader_view(GIB)?;
    let limit = || {
        let took = seconds(|| {
            black_box(warm.touch_pages());
            Ok(())
        })?;
        Ok(took * 1e6)
    };
    let options = AcquireOptions::new();
    let ours = || {
        let took = seconds(|| {
            let tensor = client.acquire(target, &options)?;
            black_box(tensor.view().context("a tensor without bytes")?.touch_pages());
            Ok(())
        })?;
        Ok(took * 1e6)
    };
    Ok(Measured::new(&rows::ACQUIRE_TOUCH_1G, interleaved(PAIRS, WARM_UP, limit, ours)?))
}

/// Room for 1 GiB and its seal, in microseconds; the writing between them is the caller's.
fn reserve_seal_us(client: &Client) -> Result<f64> {
    let (descriptor, options) = (tensors::bytes(GIB)?, PutOptions::new());
    median_us(ROUND_TRIPS / 4, || {
        drop(client.reserve(&descriptor)?.seal(&options)?);
        Ok(())
    })
}

/// Many small tensors in one call.
fn batches(writer: &Client, reader: &Client) -> Result<Measured> {
    let stored = tensors::put_pages(writer, BATCH)?;
    let targets: Vec<Target> = stored.iter().map(|stored| Target::from(stored.reference())).collect();
    let options = AcquireOptions::new();
    let rate = || {
        let took = median_us(BATCHES, || {
            for tensor in reader.acquire_many(&targets, &options) {
                drop(tensor?);
            }
            Ok(())
        })?;
        Ok(BATCH as f64 / took * 1e6)
    };
    Ok(Measured::new(&rows::BATCH_ACQUIRE_4K, alone(PAIRS, WARM_UP, rate)?))
}
