//! New pipes: until the other end has read their first message.

use anyhow::{Context, Result};
use tensorlane_benches::limits::round_trip::{SMALL, TcpRoundTrip, UnixRoundTrip};
use tensorlane_benches::pairs::{interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::{cores, stats};
use tensorlane_client::Client;
use tensorlane_client::pipe::{ConnectOptions, Message};

use super::end::{self, FIRST, LONG, ONLY};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::groups::two_hosts;
use crate::rows::{Measured, pipes};
use crate::tcp::two_sidecars;

const ARENA: u64 = 64 << 20;
/// Pipes of one value.
const PIPES: usize = 100;
/// Round trips of one value of the limit.
const ROUND_TRIPS: usize = 200;

pub(super) fn in_the_pod(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("connect: the caller on one core, sidecar and other process on another, limit alike");
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let mut unix = UnixRoundTrip::start(&scratch, Some(far))?;
    let options = SidecarOptions { core: Some(far), ..SidecarOptions::new("connect", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let other = end::start(&sidecar, far)?;
    let pairs = cores::on(Some(near), || -> Result<_> {
        let client = sidecar.client()?;
        let limit = || Ok(3.0 * unix.median_us(ROUND_TRIPS)?);
        interleaved(PAIRS, WARM_UP, limit, || connect_us(&client, FIRST))
    })??;
    drop(other);
    sidecar.end()?;
    Ok(vec![Measured::new(&pipes::CONNECT, pairs)])
}

pub(super) fn between_hosts(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress(
        "connect: the caller and host A on one core, host B and the other process on another, limit alike",
    );
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let mut unix = UnixRoundTrip::start(&scratch, Some(far))?;
    let mut tcp = TcpRoundTrip::start(&hosts, [Some(near), Some(far)], SMALL)?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA, [Some(near), Some(far)], "prefer: tcp\n")?;
    let other = end::start(&b, far)?;
    let pairs = cores::on(Some(near), || -> Result<_> {
        let (client, to) = (a.client()?, format!("b/{FIRST}"));
        let limit = || Ok(3.0 * unix.median_us(ROUND_TRIPS)? + 2.0 * tcp.median_us(ROUND_TRIPS)?);
        interleaved(PAIRS, WARM_UP, limit, || connect_us(&client, &to))
    })??;
    drop(other);
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&pipes::CONNECT_NET, pairs)])
}

/// The median of the microseconds of a connect and a first message. The end of the pipe does not count.
fn connect_us(client: &Client, to: &str) -> Result<f64> {
    let mut took = Vec::with_capacity(PIPES);
    for _ in 0..PIPES {
        let mut made = None;
        let each = seconds(|| {
            let pipe = made.insert(client.connect_pipe(to, &ConnectOptions::new())?);
            pipe.write(Message::new().payload(ONLY), LONG)?;
            Ok(())
        })?;
        took.push(each * 1e6);
    }
    stats::median(&took).context("nothing was measured")
}
