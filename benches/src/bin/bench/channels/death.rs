//! A reader that is killed while the writer waits for it.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use tensorlane_benches::pairs::alone;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_client::channel::{ChannelSpec, Timeout};
use tensorlane_proto::Reason;

use super::reader::{Far, LONG, SMALL};
use crate::context::{Bench, PAIRS};
use crate::rows::{Measured, channels};

const ARENA: u64 = 16 << 20;
const SLOTS: u32 = 4;
/// Time until a write that was begun sleeps.
const ASLEEP: Duration = Duration::from_millis(50);

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("death: readers are killed while a write waits for them");
    let scratch = Scratch::make()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("death", ARENA), &bench.programs, &scratch)?;
    let mut number = 0;
    let pairs = alone(PAIRS, 1, || {
        number += 1;
        kill(&sidecar, &format!("death-{number}"))
    })?;
    sidecar.end()?;
    Ok(vec![Measured::new(&channels::DEATH, pairs)])
}

/// Milliseconds from the signal until the write is done.
fn kill(sidecar: &Sidecar, channel: &str) -> Result<f64> {
    let client = sidecar.client()?;
    let spec = ChannelSpec::new(channel).slots(SLOTS).slot_bytes(SMALL as u64);
    let mut writer = client.channel_writer(&spec)?;
    let mut far = Far::start(sidecar, None)?;
    far.attach(channel)?;
    for _ in 0..SLOTS {
        writer.write_bytes(&[7; SMALL], LONG)?;
    }
    far.hold()?;
    match writer.write_bytes(&[7; SMALL], Timeout::Now) {
        Err(error) if error.reason() == Some(Reason::BlockedBy) => {}
        other => bail!("the reader should block the writer: {other:?}"),
    }
    let (begun, done) = thread::scope(|scope| {
        let write = scope.spawn(|| {
            writer.write_bytes(&[7; SMALL], LONG)?;
            Ok(Instant::now())
        });
        thread::sleep(ASLEEP);
        let begun = far.process().kill();
        let done: Result<Instant> = write.join().unwrap_or_else(|_| Err(anyhow!("the writer panicked")));
        (begun, done)
    });
    Ok(done?.saturating_duration_since(begun?).as_secs_f64() * 1e3)
}
