//! Two to four peers in one thread, on a network and in a time that exist only here: thousands of runs, each of which follows
//! from its seed.
//!
//! ```text
//!   world (queue of happenings, virtual time) ── wires (bytes in order, cut anywhere) ── node (one life of a peer)
//!                                                                                         ├─ reader: State, Call, FrameParser
//!                                                                                         ├─ owner: State::open, chunks
//!                                                                                         ├─ streams: channels
//!                                                                                         ├─ pipes: their table
//!                                                                                         └─ book: Ledger, and what it must say
//! ```
//! What is real: the ledger, the calls of a peer and what becomes of them when connections come and go (`remote`), the frames
//! and their parser, the negotiation and what it measures, the pieces and paces of lanes, the tables of channels and pipes, credit
//! and attachments over one connection after the other. What is told again in short, because the real one has threads and sockets:
//! how frames are answered (`receive`, `serving`, `channels`, `pipe_calls`), who writes when (`outbox`), that connections are made,
//! and rings. Not here: maps of shared memory, TLS, sessions of workloads, small tensors; and holders, whose choice has a model of
//! its own (`exchange/fanout/tests.rs`), as have copies of a node (`exchange/neighbours/model.rs`).
//!
//! After every happening all that must hold is checked; at the end of a run everyone lets go, and nothing may be left.

mod acts;
mod book;
mod crowd;
mod network;
mod node;
mod owner;
mod pipes;
mod reader;
mod streams;
mod striped;
mod wire;
mod world;

use std::time::Instant;

use tensorlane_fuzz::Dice;
use world::World;

/// Runs where none is asked for.
const RUNS: u64 = 8000;
/// Runs with channels and pipes, in each of which much more happens.
const STREAM_RUNS: u64 = 2000;
/// Repeats one run: its seed.
const SEED: &str = "TENSORLANE_SIM_SEED";
/// Makes so many runs, from a seed drawn by the clock.
const ASKED: &str = "TENSORLANE_SIM_RUNS";

/// Counts of what was seen in many runs, so that a run in which nothing happens is noticed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Seen {
    happenings: u64,
    pulled: u64,
    copied: u64,
    owner_lost: u64,
    not_found: u64,
    unreachable: u64,
    withdrawn: u64,
    resumed: u64,
    doubted: u64,
    restarts: u64,
    cuts: u64,
    no_route: u64,
    freed: u64,
    late: u64,
    messages_read: u64,
    held_up: u64,
    channels_finished: u64,
    channels_lost: u64,
    channels_resumed: u64,
    pipes_written: u64,
    pipes_finished: u64,
    pipes_lost: u64,
    /// Of everything that happened, in order.
    digest: u64,
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        self.happenings += other.happenings;
        self.pulled += other.pulled;
        self.copied += other.copied;
        self.owner_lost += other.owner_lost;
        self.not_found += other.not_found;
        self.unreachable += other.unreachable;
        self.withdrawn += other.withdrawn;
        self.resumed += other.resumed;
        self.doubted += other.doubted;
        self.restarts += other.restarts;
        self.cuts += other.cuts;
        self.no_route += other.no_route;
        self.freed += other.freed;
        self.late += other.late;
        self.messages_read += other.messages_read;
        self.held_up += other.held_up;
        self.channels_finished += other.channels_finished;
        self.channels_lost += other.channels_lost;
        self.channels_resumed += other.channels_resumed;
        self.pipes_written += other.pipes_written;
        self.pipes_finished += other.pipes_finished;
        self.pipes_lost += other.pipes_lost;
        self.digest ^= other.digest;
    }

    fn note(&mut self, what: u64) {
        self.digest = (self.digest.rotate_left(5) ^ what).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

/// Says which seed it was, where a run of a test panics.
struct Told(&'static str, u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(test, seed) = self;
            eprintln!(
                "seed {seed}; again: {SEED}={seed} cargo test --release -p tensorlane-sidecar --lib peer::sim::{test}"
            );
        }
    }
}

fn run(seed: u64) -> Seen {
    let _told = Told("what_must_hold_holds_in_every_simulated_run", seed);
    let seen = World::new(seed).run();
    striped::run(seed);
    seen
}

fn run_with_streams(seed: u64) -> Seen {
    let _told = Told("channels_and_pipes_hold_in_every_simulated_run", seed);
    World::with_streams(seed).run()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Makes so many runs, or as many as are asked for; and says whether any were. Nothing where one seed is repeated.
fn make(runs: u64, run: impl Fn(u64) -> Seen) -> Option<(Seen, bool)> {
    if let Some(seed) = number(SEED) {
        println!("{:#?}", run(seed));
        return None;
    }
    let began = Instant::now();
    let asked = number(ASKED);
    let first = if asked.is_some() { rand::random::<u32>().into() } else { 0 };
    let mut seen = Seen::default();
    for seed in first..first + asked.unwrap_or(runs) {
        seen.add(&run(seed));
    }
    let took = began.elapsed();
    println!("seeds from {first} in {took:?}: {seen:#?}");
    Some((seen, asked.is_some()))
}

#[test]
fn what_must_hold_holds_in_every_simulated_run() {
    let Some((seen, is_asked)) = make(RUNS, run) else { return };
    let counts = [
        seen.pulled,
        seen.copied,
        seen.owner_lost,
        seen.not_found,
        seen.unreachable,
        seen.withdrawn,
        seen.resumed,
        seen.doubted,
        seen.restarts,
        seen.cuts,
        seen.no_route,
        seen.freed,
    ];
    assert!(counts.iter().all(|count| *count > 0), "something never came about: {seen:#?}");
    // Once in some thousand runs.
    assert!(seen.late > 0 || is_asked, "no connection of a dead life came late: {seen:#?}");
}

#[test]
fn channels_and_pipes_hold_in_every_simulated_run() {
    let Some((seen, _)) = make(STREAM_RUNS, run_with_streams) else { return };
    let counts = [
        seen.messages_read,
        seen.held_up,
        seen.channels_finished,
        seen.channels_lost,
        seen.channels_resumed,
        seen.pipes_written,
        seen.pipes_finished,
        seen.pipes_lost,
    ];
    assert!(counts.iter().all(|count| *count > 0), "something never came about: {seen:#?}");
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
        assert_eq!(run_with_streams(seed), run_with_streams(seed), "seed {seed}");
    }
    assert_ne!(run(1).digest, run(2).digest);
}
