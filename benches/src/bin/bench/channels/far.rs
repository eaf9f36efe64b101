//! Channels that a process of another host reads.

use anyhow::{Result, ensure};
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::limits::futex::FutexPingPong;
use tensorlane_benches::limits::round_trip::{SMALL as TCP_SMALL, TcpRoundTrip};
use tensorlane_benches::limits::tls::TlsFetch;
use tensorlane_benches::pairs::{alone, interleaved};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::{cores, tensors};
use tensorlane_client::channel::{ChannelReader, ChannelSpec, Part};

use super::reader::{Far, LONG, SMALL, attach, crc32c, next, now, round_trip_us};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::groups::two_hosts;
use crate::rows::{Measured, Row, channels};
use crate::tcp::two_sidecars;

/// No message tries QUIC, as none of the limit does.
const SETTINGS: &str = "prefer: tcp\n";
const SMALL_ARENA: u64 = 64 << 20;
const ARENA: u64 = 512 << 20;
/// Arena of a peer at which many read: each session that has a cursor has a segment of 64 MiB for it.
const CABLE_ARENA: u64 = 1 << 30;
/// Round trips of one value.
const ROUND_TRIPS: usize = 500;
const MIB: usize = 1 << 20;
/// Bytes of one value of a stream.
const STREAM: usize = 256 * MIB;
const READERS: usize = 8;

pub(super) fn ping_pong(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress(
        "ping-pong: the caller and host A on one core, host B and the other process on another, limit alike",
    );
    let [near, far] = [Some(bench.cores.near), Some(bench.cores.far)];
    let scratch = Scratch::make()?;
    let mut tcp = TcpRoundTrip::start(&hosts, [near, far], TCP_SMALL)?;
    let mut futex = FutexPingPong::start(&scratch, [bench.cores.near, bench.cores.far])?;
    let ends = two_sidecars(bench, &hosts, &scratch, SMALL_ARENA, [near, far], SETTINGS)?;
    let mut process = Far::start(&ends[1], far)?;
    let pairs = cores::on(near, || -> Result<_> {
        let client = ends[0].client()?;
        let mut writer = client.channel_writer(&ChannelSpec::new("ask").slot_bytes(SMALL as u64))?;
        process.answer("a/ask", "answer")?;
        let mut reader = attach(&client, "b/answer")?;
        let mut number = 0u64;
        let ours = || round_trip_us(&mut writer, &mut reader, &mut number, ROUND_TRIPS);
        let limit = || Ok(tcp.median_us(ROUND_TRIPS)? + 2.0 * futex.median_us(ROUND_TRIPS)?);
        interleaved(PAIRS, WARM_UP, limit, ours)
    })??;
    drop(process);
    let [a, b] = ends;
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&channels::PINGPONG_NET, pairs)])
}

pub(super) fn streams(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    let both = [(&channels::STREAM_64M_NET, 64 * MIB), (&channels::STREAM_1M_NET, MIB)];
    let wanted = both.into_iter().filter(|(row, _)| bench.wants(&[row]));
    wanted.map(|(row, bytes)| stream(bench, &hosts, row, bytes)).collect()
}

fn stream(bench: &Bench, hosts: &TwoHosts, row: &'static Row, bytes: usize) -> Result<Measured> {
    bench.progress(&format!("{}: all cores, sidecars and limit alike", row.name));
    let mut limit = TlsFetch::start(hosts, STREAM as u64)?;
    let scratch = Scratch::make()?;
    let [a, b] = two_sidecars(bench, hosts, &scratch, ARENA, [None; 2], SETTINGS)?;
    let client = a.client()?;
    let slots = (192 * MIB / bytes).min(16) as u32;
    let mut writer =
        client.channel_writer(&ChannelSpec::new("stream").slots(slots).slot_bytes(bytes as u64))?;
    let mut far = Far::start(&b, None)?;
    far.attach("a/stream")?;
    let (descriptor, mut content) = (tensors::bytes(bytes as u64)?, tensors::content(bytes));
    let mut number = 0u64;
    let mut write = |count: usize, far: &mut Far, hash: bool| -> Result<f64> {
        far.begin(count as u64, hash)?;
        let begun = now()?;
        for _ in 0..count {
            number += 1;
            content[..8].copy_from_slice(&number.to_le_bytes());
            writer.write(&[Part::tensor(&descriptor, &content)], LONG)?;
        }
        if hash {
            return Ok(far.proven(crc32c::crc32c(&content))?.at - begun);
        }
        Ok(far.reading()?.at - begun)
    };
    let rate = |seconds: f64| STREAM as f64 / seconds / 1e9;
    let ours = || Ok(rate(write(STREAM / bytes, &mut far, false)?));
    let pairs = interleaved(PAIRS, WARM_UP, || Ok(rate(limit.seconds()?)), ours)?;
    // Each slot of the ring there, hashed outside of the time.
    for _ in 0..slots {
        write(1, &mut far, true)?;
    }
    drop((writer, far, client));
    a.end()?;
    b.end()?;
    Ok(Measured::new(row, pairs))
}

pub(super) fn cable(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    if let Some(why) = &hosts.why_loopback {
        return Ok(vec![Measured::missing(&channels::CABLE_8, why)]);
    }
    bench.progress("cable: bytes that leave host A, before and after");
    let bytes = 64 * MIB;
    let scratch = Scratch::make()?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, CABLE_ARENA, [None; 2], SETTINGS)?;
    let client = a.client()?;
    let mut writer = client.channel_writer(&ChannelSpec::new("cable").slots(2).slot_bytes(bytes as u64))?;
    let clients = (0..READERS).map(|_| b.client()).collect::<Result<Vec<_>>>()?;
    let readers = clients.iter().map(|client| attach(client, "a/cable"));
    let mut readers = readers.collect::<Result<Vec<ChannelReader>>>()?;
    let (descriptor, mut content) = (tensors::bytes(bytes as u64)?, tensors::content(bytes));
    let mut number = 0u64;
    let pairs = alone(PAIRS, 1, || {
        number += 1;
        content[..8].copy_from_slice(&number.to_le_bytes());
        let expected = crc32c::crc32c(&content);
        let before = hosts.a.cable_bytes()?;
        writer.write(&[Part::tensor(&descriptor, &content)], LONG)?;
        for reader in &mut readers {
            let message = next(reader)?;
            ensure!(crc32c(message.bytes()) == expected, "what was read is not what was written");
        }
        Ok((hosts.a.cable_bytes()? - before) as f64 / bytes as f64)
    })?;
    drop((writer, readers, clients, client));
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&channels::CABLE_8, pairs)])
}
