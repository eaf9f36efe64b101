//! `bench calls`: calls one after the other, over TLS and on a QUIC stream, on links that lose packets and have no delay. First with
//! nothing of Tensorlane in them; then between two sidecars, from the call of a client to the last of a thousand small tensors. It has
//! no bound. It says nothing of calls that are made at the same time, of which a lost packet holds up the others on one stream,
//! and on streams of their own would not.

use std::process::ExitCode;

use anyhow::{Context, Result};
use tensorlane_benches::cores::Cores;
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::limits::calls::{Calls, Over};
use tensorlane_benches::links::Link;
use tensorlane_benches::style::Style;
use tensorlane_benches::{machine, sidecar, stats, text, undo};

use crate::context::Bench;
use crate::paths::far::{PAGES, Pages};

/// Packets of a thousand that are lost in either direction.
const LOST: [u32; 3] = [0, 1, 10];
/// Tensors that are called for: one of 4 KiB, and a thousand of them in one answer. Calls in a turn.
const WORK: [(&str, u64, usize); 2] =
    [("200 B -> 4 KiB", 4 << 10, 1000), ("200 B -> 1,000 x 4 KiB", 4000 << 10, 60)];

/// The same of two sidecars, to their clients.
const OURS: &str = "tensorlane 1,000 x 4 KiB";
/// Calls of them in a turn.
const CALLS: usize = 60;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Turns of each, one after the other.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
}

pub(crate) fn run(options: &Options, style: Style) -> Result<ExitCode> {
    undo::on_signals().context("cannot wait for signals")?;
    let bench = Bench { cores: Cores::here()?, programs: sidecar::programs()?, style, only: Vec::new() };
    println!("congestion control of TCP: {}; microseconds a call", machine::congestion_control());
    let head =
        ["TLS p50", "mean", "p99", "QUIC p50", "mean", "p99"].map(|word| format!("{word:>10}")).concat();
    println!("{}", style.strong(&format!("{:32}{:26}{head}{:>16}", "link", "call", "mean TLS/QUIC")));
    for lost in LOST {
        let link = Link { mtu: 1500, mbit: None, lost };
        let hosts = TwoHosts::make();
        link.make(&hosts)?;
        let mut ends = [Calls::start(&hosts, Over::Tls)?, Calls::start(&hosts, Over::Quic)?];
        for (what, answer, calls) in WORK {
            let mut took = [Vec::new(), Vec::new()];
            for turn in 0..=options.turns {
                // Each goes first as often as the other.
                for which in [turn as usize % 2, (turn as usize + 1) % 2] {
                    let all = ends[which].took_us(calls, answer)?;
                    // The first turn of each warms both up.
                    took[which].extend(if turn == 0 { Vec::new() } else { all });
                }
            }
            println!("{}", line(&link.to_string(), what, &took)?);
        }
        drop(ends);
        println!("{}", line(&link.to_string(), OURS, &ours(&bench, &hosts, options.turns)?)?);
    }
    Ok(ExitCode::SUCCESS)
}

/// Microseconds of calls between two sidecars that take TCP for their tensors, and of two that take QUIC.
fn ours(bench: &Bench, hosts: &TwoHosts, turns: u32) -> Result<[Vec<f64>; 2]> {
    let pairs = [Pages::start(bench, hosts)?, Pages::on_quic(bench, hosts)?];
    let mut took = [Vec::new(), Vec::new()];
    // Call by call, so that neither rests for as long as a connection without calls stays.
    for call in 0..CALLS * (1 + turns as usize) {
        for which in [call % 2, (call + 1) % 2] {
            let us = PAGES as f64 / pairs[which].tensors_a_second()? * 1e6;
            // The first turn of each warms both up.
            took[which].extend((call >= CALLS).then_some(us));
        }
    }
    for pair in pairs {
        pair.end()?;
    }
    Ok(took)
}

/// Line of the table.
fn line(link: &str, what: &str, took: &[Vec<f64>; 2]) -> Result<String> {
    let mut line = format!("{link:32}{what:26}");
    let mut means = Vec::with_capacity(took.len());
    for took in took {
        let at = |part| stats::quantile(took, part).context("no call was made");
        let mean = took.iter().sum::<f64>() / took.len() as f64;
        for us in [at(0.5)?, mean, at(0.99)?] {
            line += &format!("{:>10}", text::grouped(us.round() as u64));
        }
        means.push(mean);
    }
    Ok(line + &format!("{:>16.2}", means[0] / means[1]))
}
