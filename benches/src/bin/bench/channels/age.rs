//! The newest message of a channel over a long way: how old it is when a slow reader gets it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tensorlane_benches::delay::Delay;
use tensorlane_benches::limits::round_trip::{SMALL as TCP_SMALL, TcpRoundTrip};
use tensorlane_benches::pairs::interleaved;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions, introduce_at};
use tensorlane_benches::stats;
use tensorlane_client::channel::{ChannelReader, ChannelSpec, ChannelWriter, Policy, Read};

use super::reader::{LONG, SMALL, attach, nanoseconds};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::groups::two_hosts;
use crate::rows::{Measured, channels};

const ARENA: u64 = 64 << 20;
/// Time that bytes are on their way, in either direction.
const EACH_WAY: Duration = Duration::from_millis(50);
/// Time between two messages.
const WRITES: Duration = Duration::from_micros(100);
/// Time between two reads: no whole part of a round trip, so that reads meet every age.
const READS: Duration = Duration::from_millis(97);
/// Reads of one value.
const COUNT: usize = 5;
/// Round trips of one value.
const ROUND_TRIPS: usize = 3;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress(
        "age: 10,000 messages a second over a way of 50 ms, and a reader that looks ten times a second",
    );
    let delay = |host, server| Delay::start(host, server, EACH_WAY);
    let mut relays = Vec::new();
    let mut tcp = TcpRoundTrip::start_by(&hosts, [None; 2], TCP_SMALL, |server| {
        let relay = delay(&hosts.a, server)?;
        let address = relay.address();
        relays.push(relay);
        Ok(address)
    })?;
    let scratch = Scratch::make()?;
    let start = |name, host| {
        let options = SidecarOptions {
            host: Some(host),
            settings: "prefer: tcp\n",
            ..SidecarOptions::new(name, ARENA)
        };
        Sidecar::start(&options, &bench.programs, &scratch)
    };
    let (a, b) = (start("a", &hosts.a)?, start("b", &hosts.b)?);
    let (to_a, to_b) = (delay(&hosts.a, a.address()?)?, delay(&hosts.b, b.address()?)?);
    introduce_at([(&a, to_a.address()), (&b, to_b.address())])?;
    let (from, to) = (a.client()?, b.client()?);
    let spec = ChannelSpec::new("age").slot_bytes(SMALL as u64).policy(Policy::Latest);
    let mut writer = from.channel_writer(&spec)?;
    let mut reader = attach(&to, "a/age")?;
    let over = AtomicBool::new(false);
    let pairs = thread::scope(|scope| {
        let writing = scope.spawn(|| write(&mut writer, &over));
        // Half a round trip is the way, and the transfer of one message.
        let limit = || Ok(tcp.median_us(ROUND_TRIPS)? / 2.0 / 1e3);
        let pairs = interleaved(PAIRS, WARM_UP, limit, || ages_ms(&mut reader));
        over.store(true, Ordering::Relaxed);
        writing.join().map_err(|_| anyhow!("the writer panicked"))??;
        pairs
    })?;
    drop((writer, reader, from, to));
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&channels::AGE_LATEST, pairs)])
}

/// Writes messages that say when they were written, until it is over.
fn write(writer: &mut ChannelWriter, over: &AtomicBool) -> Result<()> {
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let mut bytes = [7; SMALL];
        bytes[..8].copy_from_slice(&nanoseconds()?.to_le_bytes());
        writer.write_bytes(&bytes, LONG)?;
        due += WRITES;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// The median age of some messages, in milliseconds.
fn ages_ms(reader: &mut ChannelReader) -> Result<f64> {
    let mut ages = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        thread::sleep(READS);
        ages.push(age(reader)? as f64 / 1e6);
    }
    stats::median(&ages).context("nothing was read")
}

/// Nanoseconds from the write of the next message until it is read.
fn age(reader: &mut ChannelReader) -> Result<u64> {
    loop {
        let message = match reader.read(LONG)? {
            Read::Message(message) => message,
            Read::Gap { .. } => continue,
            other => bail!("a message should have come: {other:?}"),
        };
        let now = nanoseconds()?;
        let mut bytes = [0; SMALL];
        message.bytes().copy_to(&mut bytes)?;
        let (written, rest) = bytes.split_first_chunk().context("a message without a time")?;
        ensure!(rest.iter().all(|byte| *byte == 7), "what was read is not what was written");
        return now.checked_sub(u64::from_le_bytes(*written)).context("the clock went back");
    }
}
