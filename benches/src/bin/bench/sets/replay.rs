//! A replay buffer of another host: writers extend it at once, and a trainer samples from it.

use std::collections::BTreeMap;
use std::thread;

use anyhow::{Result, anyhow, ensure};
use tensorlane_benches::hosts::TwoHosts;
use tensorlane_benches::limits::gloo;
use tensorlane_benches::limits::replay::{ReplayByRpc, ReplayStep, ReplayWay};
use tensorlane_benches::pairs::{alone, interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::tensors;
use tensorlane_client::set::mutable::{MutableSet, Place};
use tensorlane_proto::Selection;

use super::pod::median;
use super::table::{KEY, Picks, Table};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::groups::two_hosts;
use crate::paths::far::PLAIN;
use crate::rows::{Measured, sets};
use crate::tcp::two_sidecars;

const ARENA: u64 = 512 << 20;
/// Frames of 84 x 84 in grey.
const TABLE: Table = Table { rows: 16_384, row_bytes: 84 * 84 };
const STEP: ReplayStep = ReplayStep { writers: 4, extend: 256, sample: 1_024 };
/// Steps of one value.
const TIMES: usize = 7;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress("a replay buffer of another host: all cores, plain, ours and others alike");
    let memory = Scratch::in_memory()?;
    let (mut peers, absent) = peers(&hosts, &memory);
    let scratch = Scratch::make()?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA, [None; 2], PLAIN)?;
    let (owner, reader) = (a.client()?, b.client()?);
    let set = TABLE.create(&owner, "replay", &["b"])?;
    TABLE.fill(&set)?;
    let far = reader.open_mutable_set(set.reference())?;
    tensors::settle(&owner)?;
    tensors::settle(&reader)?;
    let (mut picks, new) = (Picks::new(), TABLE.content(0..STEP.extend, 1));
    let rate = |seconds: f64| (STEP.writers as f64 * STEP.extend as f64 + STEP.sample as f64) / seconds;
    let ours = || median(TIMES, || step(&far, &new, &picks.rows(STEP.sample, TABLE.rows)).map(rate));
    let pairs = if peers.is_empty() {
        alone(PAIRS, WARM_UP, ours)?
    } else {
        let best = || {
            let rates = peers.iter_mut().map(|peer| median(TIMES, || peer.seconds(STEP).map(rate)));
            rates.collect::<Result<Vec<f64>>>().map(|rates| rates.into_iter().fold(0.0, f64::max))
        };
        interleaved(PAIRS, WARM_UP, best, ours)?
    };
    prove(&far)?;
    let here: Vec<&str> = peers.iter().map(ReplayByRpc::about).collect();
    let note = [("the best of: ", here.join(", ")), ("not here: ", absent.join(", "))];
    let note = note.into_iter().filter(|(_, names)| !names.is_empty());
    let note = note.map(|(before, names)| format!("{before}{names}")).collect::<Vec<_>>().join("; ");
    drop((peers, set, far, owner, reader));
    a.end()?;
    b.end()?;
    Ok(vec![Measured { note: Some(note), ..Measured::new(&sets::REPLAY, pairs) }])
}

/// Others that are here, and why the rest is not.
fn peers(hosts: &TwoHosts, memory: &Scratch) -> (Vec<ReplayByRpc>, Vec<String>) {
    let python = match gloo::python() {
        Ok(python) => python,
        Err(why) => return (Vec::new(), vec![format!("{why:#}")]),
    };
    let (mut here, mut absent) = (Vec::new(), Vec::new());
    for way in ReplayWay::ALL {
        match ReplayByRpc::start(hosts, memory, &python, way, (TABLE.rows, TABLE.row_bytes)) {
            Ok(peer) => here.push(peer),
            Err(why) => absent.push(format!("{why:#}")),
        }
    }
    (here, absent)
}

/// Seconds of one step.
fn step(set: &MutableSet, new: &[u8], rows: &[u64]) -> Result<f64> {
    let selection = Selection::rows(rows.to_vec());
    let mut bytes = 0_u64;
    let took = seconds(|| {
        thread::scope(|scope| {
            let writers: Vec<_> = (0..STEP.writers).map(|_| scope.spawn(|| extend(set, new))).collect();
            let ended = |writer: thread::ScopedJoinHandle<'_, Result<u64>>| {
                writer.join().map_err(|_| anyhow!("a writer panicked"))?.map(drop)
            };
            writers.into_iter().try_for_each(ended)
        })?;
        let read = set.read(&[], &selection)?;
        bytes = read.leaves.iter().map(|(_, tensor)| tensor.len() as u64).sum();
        Ok(())
    })?;
    ensure!(bytes == rows.len() as u64 * TABLE.row_bytes, "a sample has {bytes} bytes");
    Ok(took)
}

/// Extends the set; the first row that was written.
fn extend(set: &MutableSet, new: &[u8]) -> Result<u64> {
    Ok(set.write(&Place::Extend, STEP.extend, &BTreeMap::from([(KEY, new)]), None)?.first)
}

/// Fails unless rows that extend the set are read again.
fn prove(set: &MutableSet) -> Result<()> {
    let new = TABLE.content(0..STEP.extend, 2);
    let first = extend(set, &new)?;
    let rows: Vec<u64> = (first..first + STEP.extend).map(|row| row % TABLE.rows).collect();
    let read = set.read(&[], &Selection::rows(rows))?;
    let is_new = read.leaves.iter().all(|(_, tensor)| tensor.to_vec() == new);
    ensure!(is_new, "what was read is not what was extended");
    Ok(())
}
