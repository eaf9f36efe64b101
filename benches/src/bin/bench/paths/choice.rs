//! The row `choice`: over links of many kinds, whether two sidecars that are left to themselves end up with the faster of TCP
//! and QUIC.
//!
//! The three kinds of sidecars take turns on one link, get by get, so that whatever else the machine does meets them alike. What
//! a connection has learned of a link that loses packets stays with it, for better or worse: so there are several sets of such
//! sidecars, one after the other. Where a get is short it is taken often: seven of 16 ms differ by more than what the row asks for.
//!
//! What is compared is goodput, the bytes of all gets by the time of all. Where a packet of a hundred is lost, a get by TCP takes 50 ms
//! or, when the last packets of a burst are among them, 250: a median shows one or the other, and nobody's day.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Result;
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::links::Link;
use tensorlane_benches::pairs::Pair;
use tensorlane_benches::stats;
use tensorlane_proto::Transport;

use super::far::{Far, Get, QUIC, TLS};
use crate::context::Bench;
use crate::rows::{self, Measured};

const BYTES: u64 = 32 << 20;
/// Sets of three pairs of sidecars, one of each kind.
const SETS: usize = 3;
/// Gets of each pair that tell how fast it is: so many at least, and as many as there is time for, to the most.
const GETS: (usize, usize) = (7, 61);
const GETS_WITHIN: Duration = Duration::from_secs(8);
/// Gets before them where the transport is given: until its lanes have seen the link.
const WARM_UP: usize = 3;
/// Gets before them where sidecars choose by themselves: the first trial, what it tells, and a few more.
const CHOOSING: usize = 40;
/// Share of the faster one that the choice must reach.
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
        let brought = brought(bench, &hosts)?;
        let [tcp, quic, chosen] = brought.rates;
        let is_right = chosen >= WITHIN * tcp.max(quic);
        right += usize::from(is_right);
        if quic > tcp {
            won.push(link.to_string());
        }
        let verdict = if is_right { "right" } else { "wrong" };
        bench.progress(&format!("{link}: {brought}: {verdict}"));
    }
    let note = if won.is_empty() {
        "quic was the faster one nowhere".to_owned()
    } else {
        format!("quic was faster: {}", won.join("; "))
    };
    let pairs = vec![Pair { value: right as f64, limit: None }];
    Ok(Measured { note: Some(note), ..Measured::new(&rows::CHOICE, pairs) })
}

/// Results of the kinds over one link.
struct Brought {
    /// GB/s, in the order of `KINDS`: the bytes of all gets by the time of all.
    rates: [f64; 3],
    /// GB/s of the get in the middle, to be looked at.
    medians: [f64; 3],
    /// Gets of those that choose, and how many of them came by QUIC.
    chosen: usize,
    by_quic: usize,
}

/// `tcp 2.08, quic 1.02, chosen 1.98 GB/s (quic in 0 of 183 gets; medians 2.10, 1.03, 2.01)`
impl fmt::Display for Brought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [tcp, quic, chosen] = self.rates;
        write!(f, "tcp {tcp:.3}, quic {quic:.3}, chosen {chosen:.3} GB/s ")?;
        let [tcp, quic, choosing] = self.medians;
        write!(f, "(quic in {} of {} gets; ", self.by_quic, self.chosen)?;
        write!(f, "medians {tcp:.3}, {quic:.3}, {choosing:.3})")
    }
}

fn brought(bench: &Bench, hosts: &TwoHosts) -> Result<Brought> {
    let mut took = [const { Vec::new() }; 3];
    let (mut chosen, mut by_quic) = (0, 0);
    for _ in 0..SETS {
        let pairs = KINDS.map(|(settings, before)| warm(bench, hosts, settings, before));
        let pairs = pairs.into_iter().collect::<Result<Vec<_>>>()?;
        let gets = in_turn(&pairs)?;
        for (took, gets) in took.iter_mut().zip(&gets) {
            took.extend(gets.iter().map(|get| get.seconds));
        }
        let [.., of_choice] = &gets;
        chosen += of_choice.len();
        by_quic += of_choice.iter().filter(|get| get.transport == Some(Transport::Quic)).count();
        for pair in pairs {
            pair.end()?;
        }
    }
    let gigabytes = |seconds: f64| BYTES as f64 / seconds / 1e9;
    let rates = took.each_ref().map(|took| gigabytes(took.iter().sum::<f64>() / took.len() as f64));
    let medians = took.map(|took| stats::median(&took).map_or(0.0, gigabytes));
    Ok(Brought { rates, medians, chosen, by_quic })
}

/// The gets of each of the three.
fn in_turn(pairs: &[Far]) -> Result<[Vec<Get>; 3]> {
    let mut gets = [const { Vec::new() }; 3];
    let begun = Instant::now();
    for round in 0..GETS.1 {
        if round >= GETS.0 && begun.elapsed() >= GETS_WITHIN {
            break;
        }
        for (pair, gets) in pairs.iter().zip(&mut gets) {
            gets.push(pair.get()?);
        }
    }
    Ok(gets)
}

/// Two fresh sidecars, after some gets that do not count.
fn warm(bench: &Bench, hosts: &TwoHosts, settings: &'static str, before: usize) -> Result<Far> {
    let far = Far::start(bench, hosts, BYTES, settings)?;
    for _ in 0..before {
        far.seconds()?;
    }
    Ok(far)
}
