//! The rows of `bench paths`: tensors between two sidecars, beside the best that sockets do with the same bytes.

mod choice;
pub(crate) mod fanout;
mod far;

use anyhow::Result;
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::limits::bulk::{BulkFetch, How};
use tensorlane_benches::limits::gloo::{self, Gloo};
use tensorlane_benches::limits::quic::QuicFetch;
use tensorlane_benches::machine;
use tensorlane_benches::pairs::{alone, interleaved};
use tensorlane_benches::scratch::Scratch;

use crate::rows::{self, Measured, Row};
use crate::{Bench, PAIRS, WARM_UP, shm};
use far::{Far, PLAIN, Pages, QUIC, TLS};

const GI: u64 = 1 << 30;
const MI: u64 = 1 << 20;
/// A common link.
const MBIT: u32 = 1000;

pub(crate) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = TwoHosts::make();
    bench.progress(&format!("{hosts}; congestion control {}", machine::congestion_control()));
    let mut measured = vec![
        beside_sockets(bench, &hosts, &rows::GET_1G_PLAIN, (GI, PLAIN), &[How::Write, How::Sendfile])?,
        beside_sockets(bench, &hosts, &rows::GET_1G_TLS, (GI, TLS), &[How::Tls])?,
        beside_quinn(bench, &hosts)?,
        small(bench, &hosts)?,
    ];
    measured.extend(shm::run(bench, &hosts)?);
    measured.extend(beside_gloo(bench, &hosts)?);
    if let Some(why) = &hosts.why_loopback {
        bench.progress(&format!(
            "no {}, {} and {}: loopback, because {why}",
            rows::GET_SHAPED.name,
            rows::OVERHEAD.name,
            rows::CHOICE.name
        ));
        return Ok(measured);
    }
    measured.push(overhead(bench, &hosts)?);
    hosts.shape(MBIT)?;
    measured.push(beside_sockets(bench, &hosts, &rows::GET_SHAPED, (16 * MI, TLS), &[How::Write])?);
    measured.extend(fanout::run(bench)?);
    measured.push(choice::run(bench)?);
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

/// The same transfer by what users would take instead. No rows where there is no torch.
fn beside_gloo(bench: &Bench, hosts: &TwoHosts) -> Result<Vec<Measured>> {
    let python = match gloo::python() {
        Ok(python) => python,
        Err(why) => {
            bench.progress(&format!("no {} and its like: {why:#}", rows::VS_GLOO_1G.name));
            return Ok(Vec::new());
        }
    };
    let scratch = Scratch::make()?;
    let mut gloo = Gloo::start(hosts, &scratch, &python, GI)?;
    let mut measured = Vec::new();
    for (row, bytes) in [(&rows::VS_GLOO_1G, GI), (&rows::VS_GLOO_64M, 64 * MI), (&rows::VS_GLOO_1M, MI)] {
        bench.progress(&format!("{}: all cores, both alike", row.name));
        let far = Far::start(bench, hosts, bytes, PLAIN)?;
        let theirs = || Ok(rate(bytes, gloo.seconds(bytes)?));
        let pairs = interleaved(PAIRS, WARM_UP, theirs, || Ok(rate(bytes, far.seconds()?)))?;
        measured.push(Measured { note: Some(far.end()?), ..Measured::new(row, pairs) });
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
    let pairs = alone(PAIRS, WARM_UP, || pages.tensors_a_second())?;
    pages.end()?;
    Ok(Measured::new(&rows::SMALL_REMOTE, pairs))
}
