//! A small message to readers that all sleep, and their answers.

use anyhow::{Result, ensure};
use tensorlane_benches::cores;
use tensorlane_benches::limits::futex::FutexPingPong;
use tensorlane_benches::pairs::{interleaved, median_us};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_client::channel::ChannelSpec;

use super::reader::{Far, LONG, SMALL, attach, next};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, channels};

const READERS: usize = 8;
const ARENA: u64 = 256 << 20;
/// Messages of one value.
const ROUND_TRIPS: usize = 200;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("fan-out: the writer on one core, sidecar and eight readers on another, limit alike");
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let mut raw = FutexPingPong::start_many(&scratch, [near, far], READERS)?;
    let options = SidecarOptions { core: Some(far), ..SidecarOptions::new("fanout", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let processes = (0..READERS).map(|_| Far::start(&sidecar, Some(far)));
    let mut processes = processes.collect::<Result<Vec<_>>>()?;
    let pairs = cores::on(Some(near), || -> Result<_> {
        let client = sidecar.client()?;
        let mut writer = client.channel_writer(&ChannelSpec::new("ask").slot_bytes(SMALL as u64))?;
        let mut readers = Vec::new();
        for (number, process) in processes.iter_mut().enumerate() {
            let answer = format!("answer-{number}");
            process.answer("ask", &answer)?;
            readers.push(attach(&client, &answer)?);
        }
        let mut number = 0u64;
        let ours = || {
            median_us(ROUND_TRIPS, || {
                number += 1;
                let (mut bytes, mut back) = ([7; SMALL], [0; SMALL]);
                bytes[..8].copy_from_slice(&number.to_le_bytes());
                writer.write_bytes(&bytes, LONG)?;
                for reader in &mut readers {
                    next(reader)?.bytes().copy_to(&mut back)?;
                    ensure!(bytes == back, "what came back is not what was written");
                }
                Ok(())
            })
        };
        interleaved(PAIRS, WARM_UP, || raw.median_us(ROUND_TRIPS), ours)
    })??;
    drop(processes);
    sidecar.end()?;
    Ok(vec![Measured::new(&channels::FANOUT_8, pairs)])
}
