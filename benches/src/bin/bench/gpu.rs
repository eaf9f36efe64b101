//! The rows `gpu.*`: tensors in GPU memory, put by this process and got by another of its pod.
//!
//! Over the stand-in for the driver nothing is measured: its memory is the host's, and its speed says nothing.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};
use tensorlane_benches::limits::round_trip::UnixRoundTrip;
use tensorlane_benches::pairs::{interleaved, median_us, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::tensors;
use tensorlane_benches::wait;
use tensorlane_benches::worker::{self, At, Worker};
use tensorlane_client::gpu::{Device, Gpu, Stream, probe};
use tensorlane_client::{AcquireOptions, Client, PutOptions, Stored, Target};
use tensorlane_cuda::{DeviceSegment, ImportedSegment, PinnedMapping};
use tensorlane_memory::{Mapping, WriteView};
use tensorlane_proto::{Layout, Metadata, Reference};

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{self, Measured, Row};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Bytes of the arena on the host, in which no tensor lies.
const ARENA: u64 = 64 * MIB;
/// Bytes of the arena where tensors are copied out of the GPU: one, while the one before is being released, beside the
/// share for pulls.
const STAGED_ARENA: u64 = 4 * GIB;
/// Gets of one value, of a tensor that is mapped.
const GETS: usize = 500;
/// Time in which the driver has freed an allocation for certain.
const FREE: Duration = Duration::from_millis(30);
/// Time that a tensor may take to be gone.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// The stand-in's name begins so.
const STAND_IN: &str = "fake GPU";

/// A process that gets tensors in GPU memory, one for each line that it is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Reader {
    /// The sockets of the sidecar.
    sockets: PathBuf,
}

/// Question to a reader, which answers with microseconds.
#[derive(Debug, Serialize, Deserialize)]
enum Question {
    /// Get of a tensor and its release.
    Get {
        reference: String,
        /// True if it is held first, so that every get finds it mapped.
        held: bool,
        /// Gets of which the median is told.
        count: usize,
    },
    /// Import of a descriptor of another process, and its map.
    Import { process: i32, descriptor: i32, bytes: u64 },
}

/// Measures all of them, on the first GPU.
pub(crate) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let found = probe().context("no GPU memory can be measured here")?;
    let first = found.devices.first().context("no GPU is here")?;
    if first.name.starts_with(STAND_IN) {
        bail!(
            "this is the stand-in for the driver, whose memory is the host's: it has no speed to be measured"
        );
    }
    let (major, minor) = (found.driver / 1000, found.driver % 1000 / 10);
    bench.progress(&format!("{}, a driver for CUDA {major}.{minor}", first.name));
    let scratch = Scratch::make()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("gpu", ARENA), &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let device = Device::open(first.index)?;
    let gpu = client.gpu(&device);
    let mut rows = Vec::new();
    for (row, bytes) in
        [(&rows::GPU_PUT_64M, 64 * MIB), (&rows::GPU_PUT_1G, GIB), (&rows::GPU_PUT_8G, 8 * GIB)]
    {
        rows.push(put(&gpu, row, bytes)?);
    }
    rows.push(in_place(&gpu)?);
    let sockets = sidecar.sockets().as_os_str();
    let reader = RefCell::new(Worker::start(At::default(), &[OsStr::new("gpu-reader"), sockets])?);
    for (row, bytes) in [(&rows::GPU_GET_2M, 2 * MIB), (&rows::GPU_GET_1G, GIB), (&rows::GPU_GET_8G, 8 * GIB)]
    {
        rows.push(get(&gpu, &reader, row, bytes)?);
    }
    let raw = RefCell::new(UnixRoundTrip::start(&scratch, None)?);
    let (small, middle, large) = (stored(&gpu, 2 * MIB)?, stored(&gpu, GIB)?, stored(&gpu, 8 * GIB)?);
    let again = |stored: &Stored| got_us(&reader, stored, true, GETS);
    let round_trip = || raw.borrow_mut().median_us(GETS);
    let pairs = interleaved(PAIRS, WARM_UP, round_trip, || again(&middle))?;
    rows.push(Measured::new(&rows::GPU_GET_AGAIN_1G, pairs));
    let pairs = interleaved(PAIRS, WARM_UP, || again(&small), || again(&large))?;
    rows.push(Measured::new(&rows::GPU_GET_AGAIN_8G, pairs));
    drop((small, middle, large, reader));
    sidecar.end()?;
    rows.push(staged(bench, &scratch, &device)?);
    Ok(rows)
}

/// Gets in host memory of what lies on the GPU, each of a new tensor, beside the copy alone.
fn staged(bench: &Bench, scratch: &Scratch, device: &Device) -> Result<Measured> {
    let sidecar = Sidecar::start(&SidecarOptions::new("staged", STAGED_ARENA), &bench.programs, scratch)?;
    let client = sidecar.client()?;
    let gpu = client.gpu(device);
    let made = DeviceSegment::create(device, GIB)?;
    let imported = ImportedSegment::import(device, made.export()?, made.bytes())?;
    let memory = memfd_create("bench-staged", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, GIB)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
    let mapping = Arc::new(Mapping::writer(memory.as_fd(), GIB)?);
    let pinned = PinnedMapping::new(device, Arc::clone(&mapping));
    let to = RefCell::new(WriteView::new(mapping, 0, GIB)?);
    let limit = || {
        let copy = || {
            imported.copy_to_view(0, &mut to.borrow_mut(), Some(&pinned), |_| true)?;
            Ok(())
        };
        Ok(rate(GIB, seconds(copy)?))
    };
    let options = AcquireOptions::new();
    let ours = || {
        let stored = stored(&gpu, GIB)?;
        let target = Target::from(stored.reference());
        let mut tensor = None;
        let took = seconds(|| {
            tensor = Some(client.acquire(&target, &options)?);
            Ok(())
        })?;
        drop(tensor);
        settle(&gpu, Some(stored))?;
        Ok(rate(GIB, took))
    };
    let measured = Measured::new(&rows::GPU_STAGED_1G, interleaved(PAIRS, WARM_UP, limit, ours)?);
    sidecar.end()?;
    Ok(measured)
}

/// Puts of memory of the device, each beside a bare copy of as much.
fn put(gpu: &Gpu, row: &'static Row, bytes: u64) -> Result<Measured> {
    let (from, to) =
        (DeviceSegment::create(gpu.device(), bytes)?, DeviceSegment::create(gpu.device(), bytes)?);
    let layout = layout(bytes)?;
    let limit = || {
        let copy = || Ok(to.copy_from_device(0, from.pointer(), bytes, Stream::default())?);
        Ok(rate(bytes, seconds(copy)?))
    };
    let ours = || {
        let mut stored = None;
        let took = seconds(|| {
            let put = gpu.put_device(&layout, from.pointer(), bytes, Stream::default(), &PutOptions::new());
            stored = Some(put?);
            Ok(())
        })?;
        settle(gpu, stored)?;
        Ok(rate(bytes, took))
    };
    Ok(Measured::new(row, interleaved(PAIRS, WARM_UP, limit, ours)?))
}

/// Room that is made on the device and put, beside the driver's part of it. What is written there is the caller's.
fn in_place(gpu: &Gpu) -> Result<Measured> {
    let limit = || {
        let mut made = None;
        let took = seconds(|| {
            let segment = DeviceSegment::create(gpu.device(), GIB)?;
            made = Some((segment.export()?, segment));
            Ok(())
        })?;
        drop(made);
        Ok(took * 1e6)
    };
    let ours = || {
        let mut stored = None;
        let took = seconds(|| {
            stored = Some(self::stored(gpu, GIB)?);
            Ok(())
        })?;
        settle(gpu, stored)?;
        Ok(took * 1e6)
    };
    Ok(Measured::new(&rows::GPU_PUT_IN_PLACE_1G, interleaved(PAIRS, WARM_UP, limit, ours)?))
}

/// First gets of another process, each of a new tensor, beside an import of as much.
fn get(gpu: &Gpu, reader: &RefCell<Worker>, row: &'static Row, bytes: u64) -> Result<Measured> {
    let made = DeviceSegment::create(gpu.device(), bytes)?;
    let exported = made.export()?;
    let (process, descriptor) = (getpid().as_raw_nonzero().get(), exported.as_raw_fd());
    // By the same process as ours: an import is faster where the memory is not mapped already.
    let limit = || reader.borrow_mut().ask(&Question::Import { process, descriptor, bytes: made.bytes() });
    let ours = || {
        let stored = stored(gpu, bytes)?;
        let took = got_us(reader, &stored, false, 1)?;
        settle(gpu, Some(stored))?;
        Ok(took)
    };
    Ok(Measured::new(row, interleaved(PAIRS, WARM_UP, limit, ours)?))
}

/// Room of so many bytes, put as it is.
fn stored(gpu: &Gpu, bytes: u64) -> Result<Stored> {
    Ok(gpu.reserve(&layout(bytes)?, &Metadata::default())?.put(&PutOptions::new())?)
}

/// Microseconds of a get and its release, as the reader measures them: the median.
fn got_us(reader: &RefCell<Worker>, stored: &Stored, held: bool, count: usize) -> Result<f64> {
    let reference = stored.reference().to_string();
    reader.borrow_mut().ask(&Question::Get { reference, held, count })
}

/// Gives up a tensor and waits until the sidecar has none, so that the next finds what this one found.
fn settle(gpu: &Gpu, stored: Option<Stored>) -> Result<()> {
    drop(stored);
    let is_empty = || Ok(gpu.client().status()?.tensors == 0);
    if wait::until(SETTLE_MAX, is_empty)? {
        // The driver frees the memory behind that, for milliseconds of 8 GiB, in which nothing else is measured.
        thread::sleep(FREE);
        return Ok(());
    }
    bail!("tensors that were given up are still there after {} s", SETTLE_MAX.as_secs());
}

fn layout(bytes: u64) -> Result<Layout> {
    Ok(tensors::bytes(bytes)?.layout)
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

impl Reader {
    /// Answers until its input ends.
    pub(crate) fn run(&self) -> Result<()> {
        let client = Client::connect(&self.sockets)?;
        let gpu = client.gpu(&Device::open(0)?);
        worker::serve(|question| match question {
            Question::Get { reference, held, count } => get_us(&gpu, &reference, held, count),
            Question::Import { process, descriptor, bytes } => {
                import_us(gpu.device(), process, descriptor, bytes)
            }
        })
    }
}

fn get_us(gpu: &Gpu, reference: &str, held: bool, count: usize) -> Result<f64> {
    let (target, options) = (Target::from(reference.parse::<Reference>()?), AcquireOptions::new());
    let held = held.then(|| gpu.acquire(&target, &options)).transpose()?;
    let took = median_us(count, || {
        drop(gpu.acquire(&target, &options)?);
        Ok(())
    })?;
    drop(held);
    Ok(took)
}

fn import_us(device: &Device, process: i32, descriptor: i32, bytes: u64) -> Result<f64> {
    let process = Pid::from_raw(process).context("a process without a number")?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let memory = pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty())?;
    let mut imported = None;
    let took = seconds(|| {
        imported = Some(ImportedSegment::import(device, memory, bytes)?);
        Ok(())
    })?;
    drop(imported);
    Ok(took * 1e6)
}
