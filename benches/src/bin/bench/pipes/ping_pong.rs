//! Small messages there and back.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tensorlane_benches::cores;
use tensorlane_benches::limits::futex::FutexPingPong;
use tensorlane_benches::limits::round_trip::{SMALL, TcpRoundTrip};
use tensorlane_benches::pairs::{Pair, interleaved, median_us};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_client::Client;
use tensorlane_client::pipe::{Allocation, ConnectOptions, Incoming, Message, Pipe};

use super::end::{self, ECHO, LONG};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::groups::two_hosts;
use crate::rows::{Measured, pipes};
use crate::tcp::two_sidecars;

const ARENA: u64 = 64 << 20;
/// Round trips of one value.
const ROUND_TRIPS: usize = 500;

/// Microseconds of a message and its answer. `with` gives the message what it has beside its payload.
pub(super) fn round_trip_us(pipe: &Pipe, with: impl Fn(Message) -> Message) -> Result<f64> {
    let mut number = 0u64;
    median_us(ROUND_TRIPS, || {
        number += 1;
        let mut bytes = [7; SMALL];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let back = exchange(pipe, with(Message::new().payload(bytes)))?;
        ensure!(back == bytes, "what came back is not what was written");
        Ok(())
    })
}

/// Writes a message, and reads the payload of its answer.
pub(super) fn exchange(pipe: &Pipe, message: Message) -> Result<Vec<u8>> {
    let writing = pipe.begin(message, LONG)?;
    let Incoming::Message(descriptor) = pipe.read_descriptor(LONG)? else { bail!("the pipe ended") };
    let received = pipe.read(descriptor, Allocation::map()).map_err(|failed| failed.error)?;
    let back = end::payload(&received)?;
    writing.wait()?;
    Ok(back)
}

pub(super) fn in_the_pod(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress(
        "ping-pong in the pod: the caller on one core, sidecar and other process on another, limit alike",
    );
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let mut futex = FutexPingPong::start(&scratch, [near, far])?;
    let options = SidecarOptions { core: Some(far), ..SidecarOptions::new("pod", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let other = end::start(&sidecar, far)?;
    let pairs = cores::on(Some(near), || {
        let client = sidecar.client()?;
        pairs(&client, ECHO, || futex.median_us(ROUND_TRIPS))
    })??;
    drop(other);
    sidecar.end()?;
    Ok(vec![Measured::new(&pipes::RTT_64B_POD, pairs)])
}

pub(super) fn between_hosts(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress(
        "ping-pong: the caller and host A on one core, host B and the other process on another, limit alike",
    );
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let mut tcp = TcpRoundTrip::start(&hosts, [Some(near), Some(far)], SMALL)?;
    let mut futex = FutexPingPong::start(&scratch, [near, far])?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA, [Some(near), Some(far)], "prefer: tcp\n")?;
    let other = end::start(&b, far)?;
    let pairs = cores::on(Some(near), || {
        let client = a.client()?;
        let limit = || Ok(tcp.median_us(ROUND_TRIPS)? + 2.0 * futex.median_us(ROUND_TRIPS)?);
        pairs(&client, &format!("b/{ECHO}"), limit)
    })??;
    drop(other);
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&pipes::RTT_64B_NET, pairs)])
}

fn pairs(client: &Client, to: &str, limit: impl FnMut() -> Result<f64>) -> Result<Vec<Pair>> {
    let pipe = client.connect_pipe(to, &ConnectOptions::new().wait(Duration::from_secs(20)))?;
    interleaved(PAIRS, WARM_UP, limit, || round_trip_us(&pipe, |message| message))
}
