//! Processes that wait for a message, and none comes.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use tensorlane_benches::machine;
use tensorlane_benches::pairs::alone;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_client::channel::ChannelSpec;

use super::reader::{Far, LONG, SMALL};
use crate::context::Bench;
use crate::rows::{Measured, channels};

const READERS: usize = 64;
const ARENA: u64 = 512 << 20;
/// Time of one value.
const WINDOW: Duration = Duration::from_secs(2);
/// Number of values.
const TIMES: usize = 5;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("idle: 64 processes that wait for a message");
    let scratch = Scratch::make()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("idle", ARENA), &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let mut writer = client.channel_writer(&ChannelSpec::new("idle").slot_bytes(SMALL as u64))?;
    let mut readers = (0..READERS).map(|_| Far::start(&sidecar, None)).collect::<Result<Vec<_>>>()?;
    for reader in &mut readers {
        reader.attach("idle")?;
    }
    for reader in &mut readers {
        reader.begin(1, true)?;
    }
    // The first value is thrown away: until then all have gone to sleep.
    let pairs = alone(TIMES, 1, || share(&readers))?;
    let bytes = [7; SMALL];
    writer.write_bytes(&bytes, LONG)?;
    for reader in &mut readers {
        reader.proven(crc32c::crc32c(&bytes))?;
    }
    drop((writer, readers, client));
    sidecar.end()?;
    Ok(vec![Measured::new(&channels::IDLE_64, pairs)])
}

/// Time of a core that all of them took for a while, in percent.
fn share(readers: &[Far]) -> Result<f64> {
    let used =
        || readers.iter().map(|reader| machine::processor_ns(reader.process().id())).sum::<Result<u64>>();
    let (before, begun) = (used()?, Instant::now());
    thread::sleep(WINDOW);
    let (after, took) = (used()?, begun.elapsed());
    Ok(after.saturating_sub(before) as f64 / took.as_nanos() as f64 * 100.0)
}
