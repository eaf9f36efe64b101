//! The row `choice`: over links of many kinds, whether two sidecars that are left to themselves end up with the faster of TCP
//! and QUIC.

use anyhow::{Context, Result};
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::links::Link;
use tensorlane_benches::pairs::Pair;
use tensorlane_benches::stats;

use super::far::{Far, QUIC, TLS};
use crate::Bench;
use crate::rows::{self, Measured};

const BYTES: u64 = 32 << 20;
/// Gets that tell how fast a transport is.
const GETS: usize = 7;
/// Gets before them where sidecars choose by themselves: the first trial, what it tells, and a few more.
const CHOOSING: usize = 40;
/// How far the choice may stay behind the faster one.
const WITHIN: f64 = 0.9;

/// Left to themselves.
const MEASURED: &str = "gc:\n  copyIdle: 1ms\nprefer: measured\n";

pub(crate) fn run(bench: &Bench) -> Result<Measured> {
    let mut right = 0;
    let mut won = Vec::new();
    for link in Link::grid() {
        let hosts = TwoHosts::make();
        if let Some(why) = &hosts.why_loopback {
            return Ok(Measured::missing(&rows::CHOICE, why));
        }
        link.make(&hosts)?;
        let tcp = rate(bench, &hosts, TLS, 1)?;
        let quic = rate(bench, &hosts, QUIC, 1)?;
        let chosen = rate(bench, &hosts, MEASURED, CHOOSING)?;
        let is_right = chosen >= WITHIN * tcp.max(quic);
        right += usize::from(is_right);
        if quic > tcp {
            won.push(link.to_string());
        }
        let verdict = if is_right { "right" } else { "wrong" };
        bench.progress(&format!("{link}: tcp {tcp:.2}, quic {quic:.2}, chosen {chosen:.2} GB/s: {verdict}"));
    }
    let note = if won.is_empty() {
        "quic was the faster one nowhere".to_owned()
    } else {
        format!("quic was faster: {}", won.join("; "))
    };
    let pairs = vec![Pair { value: right as f64, limit: None }];
    Ok(Measured { note: Some(note), ..Measured::new(&rows::CHOICE, pairs) })
}

/// What two fresh sidecars bring over the link, GB/s, after some gets that do not count.
fn rate(bench: &Bench, hosts: &TwoHosts, settings: &'static str, before: usize) -> Result<f64> {
    let far = Far::start(bench, hosts, BYTES, settings)?;
    for _ in 0..before {
        far.seconds()?;
    }
    let took = (0..GETS).map(|_| far.seconds()).collect::<Result<Vec<_>>>()?;
    far.end()?;
    let seconds = stats::median(&took).context("no get was measured")?;
    Ok(BYTES as f64 / seconds / 1e9)
}
