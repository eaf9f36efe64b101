//! The rows of `bench paths`: tensors between two sidecars, beside the best that sockets do with the same bytes.

mod choice;
mod fanout;
pub(crate) mod far;
mod waits;

use anyhow::Result;
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::limits::bulk::{BulkFetch, How};
use tensorlane_benches::limits::gloo::{self, Gloo};
use tensorlane_benches::limits::iperf;
use tensorlane_benches::limits::quic::QuicFetch;
use tensorlane_benches::machine;
use tensorlane_benches::pairs::{alone, interleaved};
use tensorlane_benches::scratch::Scratch;

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{self, Measured, Row};
use crate::shm;
use far::{Far, PLAIN, Pages, QUIC, TLS};

const GI: u64 = 1 << 30;
const MI: u64 = 1 << 20;
/// A common link.
const MBIT: u32 = 1000;
/// Calls of 1,000 small tensors. One takes some milliseconds, and by which threads share a core it takes half or twice of that:
/// the median of as few as of other rows would say what was drawn.
const CALLS: usize = 101;

/// Rows for which one host alone, or a pair of them, is enough.
const UNSHAPED: [(&[&Row], Rows); 7] = [
    (&[&rows::GET_1G_PLAIN], |bench, hosts| {
        Ok(vec![beside_sockets(
            bench,
            hosts,
            &rows::GET_1G_PLAIN,
            (GI, PLAIN),
            &[How::Write, How::Sendfile],
        )?])
    }),
    (&[&rows::GET_1G_TLS], |bench, hosts| {
        Ok(vec![beside_sockets(bench, hosts, &rows::GET_1G_TLS, (GI, TLS), &[How::Tls])?])
    }),
    (&[&rows::QUIC_GET_1G], |bench, hosts| Ok(vec![beside_quinn(bench, hosts)?])),
    (&[&rows::SMALL_REMOTE], |bench, hosts| Ok(vec![small(bench, hosts)?])),
    (&[&rows::SHM_GET_1G, &rows::SHM_READERS], shm::run),
    (&[&rows::WAIT_10K, &rows::WAIT_10K_ANSWERED, &rows::WAIT_10K_MEMORY], waits::run),
    (&[&rows::VS_GLOO_1G, &rows::VS_GLOO_64M, &rows::VS_GLOO_1M], beside_gloo),
];
/// Rows that need two hosts with a link between them. The link is shaped from `tcp.get_shaped` on.
const BETWEEN_HOSTS: [(&[&Row], Rows); 4] = [
    (&[&rows::OVERHEAD], |bench, hosts| Ok(vec![overhead(bench, hosts)?])),
    (&[&rows::GET_SHAPED, &rows::GET_SHAPED_LARGE], |bench, hosts| {
        hosts.shape(MBIT)?;
        beside_iperf(bench, hosts)
    }),
    (&[&rows::FANOUT, &rows::FANOUT_TLS, &rows::FANOUT_SOURCE], |bench, _| fanout::run(bench)),
    (&[&rows::CHOICE], |bench, _| Ok(vec![choice::run(bench)?])),
];

/// Measures some rows that belong together.
type Rows = fn(&Bench, &TwoHosts) -> Result<Vec<Measured>>;

/// All rows, in their order.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    UNSHAPED.iter().chain(&BETWEEN_HOSTS).flat_map(|(rows, _)| rows.iter().copied())
}

pub(crate) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = TwoHosts::make();
    bench.progress(&format!("{hosts}; congestion control {}", machine::congestion_control()));
    let mut measured = Vec::new();
    for (_, measure) in UNSHAPED.iter().filter(|(rows, _)| bench.wants(rows)) {
        measured.extend(measure(bench, &hosts)?);
    }
    for (rows, measure) in BETWEEN_HOSTS.iter().filter(|(rows, _)| bench.wants(rows)) {
        match &hosts.why_loopback {
            Some(why) => measured.extend(rows.iter().map(|row| Measured::missing(row, why))),
            None => measured.extend(measure(bench, &hosts)?),
        }
    }
    Ok(measured)
}

/// Gigabytes a second.
fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

fn beside_quinn(bench: &Bench, hosts: &TwoHosts) -> Result<Measured> {
    let mut limit = QuicFetch::best(hosts, GI)?;
    bench.progress(&format!("{}: all cores, both alike; limit: {limit}", rows::QUIC_GET_1G.name));
    let far = Far::start(bench, hosts, GI, QUIC)?;
    let pairs =
        interleaved(PAIRS, WARM_UP, || Ok(rate(GI, limit.seconds()?)), || Ok(rate(GI, far.seconds()?)))?;
    let way = far.end()?;
    let note = Some(format!("{way}; limit: {limit}"));
    Ok(Measured { note, ..Measured::new(&rows::QUIC_GET_1G, pairs) })
}

fn beside_sockets(
    bench: &Bench,
    hosts: &TwoHosts,
    row: &'static Row,
    (bytes, settings): (u64, &'static str),
    ways: &[How],
) -> Result<Measured> {
    let mut limit = BulkFetch::best(hosts, bytes, ways)?;
    bench.progress(&format!("{}: all cores, sidecars and limit alike; limit: {limit}", row.name));
    let far = Far::start(bench, hosts, bytes, settings)?;
    let pairs = interleaved(
        PAIRS,
        WARM_UP,
        || Ok(rate(bytes, limit.seconds()?)),
        || Ok(rate(bytes, far.seconds()?)),
    )?;
    let way = far.end()?;
    Ok(Measured { note: Some(format!("{way}; limit: {limit}")), ..Measured::new(row, pairs) })
}

/// Bytes moved by iperf, with which people measure links.
fn beside_iperf(bench: &Bench, hosts: &TwoHosts) -> Result<Vec<Measured>> {
    let all = [(&rows::GET_SHAPED, 16 * MI), (&rows::GET_SHAPED_LARGE, 128 * MI)];
    let wanted = all.into_iter().filter(|(row, _)| bench.wants(&[row]));
    if let Err(why) = iperf::is_here() {
        return Ok(wanted.map(|(row, _)| Measured::missing(row, &format!("{why:#}"))).collect());
    }
    let beside = |(row, bytes): (&'static Row, u64)| {
        bench.progress(&format!("{}: all cores, both alike", row.name));
        let far = Far::start(bench, hosts, bytes, TLS)?;
        let theirs = || Ok(iperf::rate(hosts, bytes)? / 1e9);
        let pairs = interleaved(PAIRS, WARM_UP, theirs, || Ok(rate(bytes, far.seconds()?)))?;
        Ok(Measured { note: Some(far.end()?), ..Measured::new(row, pairs) })
    };
    wanted.map(beside).collect()
}

/// Transfer by gloo, which users would take instead.
fn beside_gloo(bench: &Bench, hosts: &TwoHosts) -> Result<Vec<Measured>> {
    let all = [(&rows::VS_GLOO_1G, GI), (&rows::VS_GLOO_64M, 64 * MI), (&rows::VS_GLOO_1M, MI)];
    let wanted = all.into_iter().filter(|(row, _)| bench.wants(&[row]));
    let python = match gloo::python() {
        Ok(python) => python,
        Err(why) => return Ok(wanted.map(|(row, _)| Measured::missing(row, &format!("{why:#}"))).collect()),
    };
    let scratch = Scratch::make()?;
    let mut gloo = Gloo::start(hosts, &scratch, &python, GI)?;
    let mut measured = Vec::new();
    for (row, bytes) in wanted {
        bench.progress(&format!("{}: all cores, both alike", row.name));
        let far = Far::start(bench, hosts, bytes, PLAIN)?;
        let theirs = || Ok(rate(bytes, gloo.seconds(bytes)?));
        let pairs = interleaved(PAIRS, WARM_UP, theirs, || Ok(rate(bytes, far.seconds()?)))?;
        let note = Some(format!("{}; torch {}", far.end()?, gloo.torch()));
        measured.push(Measured { note, ..Measured::new(row, pairs) });
    }
    Ok(measured)
}

fn overhead(bench: &Bench, hosts: &TwoHosts) -> Result<Measured> {
    bench.progress("overhead: bytes of the sockets of host A, before and after");
    let bytes = 64 * MI;
    let far = Far::start(bench, hosts, bytes, PLAIN)?;
    // The first get opens the lanes, which stay for a minute.
    let pairs = alone(PAIRS, WARM_UP, || {
        let before = hosts.a.socket_bytes()?;
        far.seconds()?;
        Ok((hosts.a.socket_bytes()?.saturating_sub(before)) as f64 / bytes as f64)
    })?;
    let way = far.end()?;
    Ok(Measured { note: Some(way), ..Measured::new(&rows::OVERHEAD, pairs) })
}

fn small(bench: &Bench, hosts: &TwoHosts) -> Result<Measured> {
    bench.progress("1,000 x 4 KiB in one call: all cores");
    let pages = Pages::start(bench, hosts)?;
    let pairs = alone(CALLS, WARM_UP, || pages.tensors_a_second())?;
    pages.end()?;
    Ok(Measured::new(&rows::SMALL_REMOTE, pairs))
}
