//! Prints how fast large copies are, beside the same bytes copied by as many threads with one `memcpy` each.
//!
//! `cargo run --release -p tensorlane-memory --example copy_rate [ROUNDS]`

use std::sync::Barrier;
use std::time::Instant;

use tensorlane_memory::copy::copy_parallel;

fn main() {
    let rounds: usize = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(21);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("{threads} cores, median of {rounds} interleaved rounds");
    for mib in [4, 16, 64, 256, 1024] {
        let len = mib << 20;
        let from: Vec<u8> = (0..len).map(|at| (at >> 3) as u8).collect();
        let mut to = vec![1u8; len];
        let (mut plain, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            plain.push(rate(len, plain_copy(&mut to, &from, threads)));
            let begin = Instant::now();
            copy_parallel(&mut to, &from);
            ours.push(rate(len, begin.elapsed().as_secs_f64()));
        }
        assert!(to == from, "the copy differs");
        let mut ratios: Vec<f64> = ours.iter().zip(&plain).map(|(ours, plain)| ours / plain).collect();
        println!(
            "{mib:5} MiB: plain {:6.2} GB/s, ours {:6.2} GB/s, ratio {:.3}",
            median(&mut plain),
            median(&mut ours),
            median(&mut ratios)
        );
    }
}

/// Seconds from the moment all threads are ready until the last is done.
fn plain_copy(to: &mut [u8], from: &[u8], threads: usize) -> f64 {
    let share = from.len().div_ceil(threads);
    let ready = Barrier::new(threads);
    let mut pieces: Vec<_> = to.chunks_mut(share).zip(from.chunks(share)).collect();
    let Some((to, from)) = pieces.pop() else { return 0.0 };
    std::thread::scope(|scope| {
        for (to, from) in pieces {
            let ready = &ready;
            scope.spawn(move || {
                ready.wait();
                to.copy_from_slice(from);
            });
        }
        ready.wait();
        let begin = Instant::now();
        to.copy_from_slice(from);
        begin
    })
    .elapsed()
    .as_secs_f64()
}

fn rate(len: usize, seconds: f64) -> f64 {
    len as f64 / seconds / 1e9
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
