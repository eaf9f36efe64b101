//! Small messages to another pod of the same node.

use anyhow::Result;
use tensorlane_benches::cores;
use tensorlane_benches::limits::futex::FutexPingPong;
use tensorlane_benches::pairs::interleaved;
use tensorlane_benches::scratch::Scratch;
use tensorlane_client::channel::ChannelSpec;

use super::reader::{Far, SMALL, attach, round_trip_us};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::groups::two_hosts;
use crate::rows::{Measured, channels};
use crate::tcp::two_sidecars;

const ARENA: u64 = 64 << 20;
/// Round trips of one value.
const ROUND_TRIPS: usize = 500;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress(
        "ping-pong between pods of a node: the caller and its sidecar on one core, the others on another",
    );
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let node = scratch.directory("node")?;
    let settings = format!("node:\n  directory: {}\n", node.display());
    let mut raw = FutexPingPong::start(&scratch, [near, far])?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA, [Some(near), Some(far)], &settings)?;
    let mut process = Far::start(&b, Some(far))?;
    let (pairs, route) = cores::on(Some(near), || -> Result<_> {
        let client = a.client()?;
        let mut writer = client.channel_writer(&ChannelSpec::new("ask").slot_bytes(SMALL as u64))?;
        process.answer("a/ask", "answer")?;
        let mut reader = attach(&client, "b/answer")?;
        let route = reader.attached().route.clone();
        let mut number = 0u64;
        let ours = || round_trip_us(&mut writer, &mut reader, &mut number, ROUND_TRIPS);
        let pairs = interleaved(PAIRS, WARM_UP, || raw.median_us(ROUND_TRIPS), ours)?;
        Ok((pairs, route))
    })??;
    drop(process);
    a.end()?;
    b.end()?;
    let note = Some(format!("messages came by {route}"));
    Ok(vec![Measured { note, ..Measured::new(&channels::PINGPONG_NODE, pairs) }])
}
