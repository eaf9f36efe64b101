//! The row `choice`: over links of many kinds, whether two sidecars that are left to themselves end up with the faster of TCP
//! and QUIC.
//!
//! The three kinds of sidecars take turns on one link, get by get, so that whatever else the machine does meets them alike. What
//! a connection has learned of a link that loses packets stays with it, for better or worse: so there are several pairs of each
//! kind, one after the other, and their gets are taken together.

use anyhow::{Context, Result};
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::links::Link;
use tensorlane_benches::pairs::Pair;
use tensorlane_benches::stats;

use super::far::{Far, QUIC, TLS};
use crate::Bench;
use crate::rows::{self, Measured};

const BYTES: u64 = 32 << 20;
/// Pairs of sidecars of each kind.
const SETS: usize = 2;
/// Gets of each pair that tell how fast it is.
const GETS: usize = 7;
/// Gets before them where the transport is given: until its lanes have seen the link.
const WARM_UP: usize = 3;
/// Gets before them where sidecars choose by themselves: the first trial, what it tells, and a few more.
const CHOOSING: usize = 40;
/// How far the choice may stay behind the faster one.
const WITHIN: f64 = 0.9;

/// Left to themselves.
const MEASURED: &str = "gc:\n  copyIdle: 1ms\nprefer: measured\n";

/// TCP, QUIC, and sidecars that choose; and the gets that do not count.
const KINDS: [(&str, usize); 3] = [(TLS, WARM_UP), (QUIC, WARM_UP), (MEASURED, CHOOSING)];

pub(crate) fn run(bench: &Bench) -> Result<Measured> {
    let mut right = 0;
    let mut won = Vec::new();
    for link in Link::grid() {
        let hosts = TwoHosts::make();
        if let Some(why) = &hosts.why_loopback {
            return Ok(Measured::missing(&rows::CHOICE, why));
        }
        link.make(&hosts)?;
        let [tcp, quic, chosen] = rates(bench, &hosts)?;
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

/// What each kind brings over the link, GB/s.
fn rates(bench: &Bench, hosts: &TwoHosts) -> Result<[f64; 3]> {
    let mut took = [const { Vec::new() }; 3];
    for _ in 0..SETS {
        let pairs = KINDS.map(|(settings, before)| warm(bench, hosts, settings, before));
        let pairs = pairs.into_iter().collect::<Result<Vec<_>>>()?;
        for _ in 0..GETS {
            for (pair, took) in pairs.iter().zip(&mut took) {
                took.push(pair.seconds()?);
            }
        }
        for pair in pairs {
            pair.end()?;
        }
    }
    let [tcp, quic, chosen] = took.map(|took| stats::median(&took).map(|took| BYTES as f64 / took / 1e9));
    tcp.zip(quic).zip(chosen).map(|((tcp, quic), chosen)| [tcp, quic, chosen]).context("no get was measured")
}

/// Two fresh sidecars, after some gets that do not count.
fn warm(bench: &Bench, hosts: &TwoHosts, settings: &'static str, before: usize) -> Result<Far> {
    let far = Far::start(bench, hosts, BYTES, settings)?;
    for _ in 0..before {
        far.seconds()?;
    }
    Ok(far)
}
