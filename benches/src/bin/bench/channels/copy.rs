//! Large messages in a pod: one copy into the ring, as fast as this machine copies at all.

use std::sync::Arc;

use anyhow::Result;
use tensorlane_benches::limits::memory::Memcpy;
use tensorlane_benches::pairs::interleaved;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::tensors;
use tensorlane_client::channel::{ChannelSpec, Part};

use super::reader::{Far, LONG, now};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, channels};

const BYTES: usize = 64 << 20;
const SLOTS: u32 = 3;
const ARENA: u64 = 512 << 20;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("copies of 64 MiB: all cores, both processes and limit alike");
    let scratch = Scratch::make()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("copy", ARENA), &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let spec = ChannelSpec::new("copy").slots(SLOTS).slot_bytes(BYTES as u64);
    let mut writer = client.channel_writer(&spec)?;
    let mut far = Far::start(&sidecar, None)?;
    far.attach("copy")?;
    // Written, so that its pages are there.
    let copy = Memcpy::best(&Arc::new(vec![0x5a; BYTES]), bench.cores.count)?;
    let (descriptor, mut bytes) = (tensors::bytes(BYTES as u64)?, tensors::content(BYTES));
    let rate = |seconds: f64| BYTES as f64 / seconds / 1e9;
    let mut number = 0u64;
    let ours = || {
        // Each message has other bytes than the one before.
        number += 1;
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let crc32c = crc32c::crc32c(&bytes);
        far.begin(1, true)?;
        let begun = now()?;
        writer.write(&[Part::tensor(&descriptor, &bytes)], LONG)?;
        Ok(rate(far.proven(crc32c)?.at - begun))
    };
    // Every slot once more than the row warms up.
    let pairs = interleaved(PAIRS, WARM_UP + SLOTS as usize, || Ok(rate(copy.seconds()?)), ours)?;
    let note = Some(format!("memcpy: {}", copy.way()));
    drop((writer, far, client));
    sidecar.end()?;
    Ok(vec![Measured { note, ..Measured::new(&channels::COPY_64M, pairs) }])
}
