//! Small messages one behind the other, some of them under way at a time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Result;
use tensorlane_benches::cores;
use tensorlane_benches::pairs::{Pair, alone};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_client::Client;
use tensorlane_client::pipe::{ConnectOptions, Message, Writing};

use super::end::{self, COUNTED, LONG};
use crate::context::Bench;
use crate::groups::two_hosts;
use crate::rows::{Measured, pipes};
use crate::tcp::two_sidecars;

const ARENA: u64 = 64 << 20;
const BYTES: usize = 256;
/// Messages that are under way at a time.
const WINDOW: usize = 32;
/// Messages of one value.
const MESSAGES: usize = 10_000;
/// Number of values.
const TIMES: usize = 5;

pub(super) fn in_the_pod(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("rate: the caller on one core, sidecar and other process on another");
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let options = SidecarOptions { core: Some(far), ..SidecarOptions::new("rate", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let other = end::start(&sidecar, far)?;
    let rates = cores::on(Some(near), || rates(&sidecar.client()?, COUNTED))??;
    drop(other);
    sidecar.end()?;
    Ok(vec![Measured::new(&pipes::RATE_256B_POD, rates)])
}

pub(super) fn between_hosts(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress("rate: the caller and host A on one core, host B and the other process on another");
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA, [Some(near), Some(far)], "prefer: tcp\n")?;
    let other = end::start(&b, far)?;
    let rates = cores::on(Some(near), || rates(&a.client()?, &format!("b/{COUNTED}")))??;
    drop(other);
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&pipes::RATE_256B_NET, rates)])
}

/// Messages a second, each of which was read.
fn rates(client: &Client, to: &str) -> Result<Vec<Pair>> {
    let pipe = client.connect_pipe(to, &ConnectOptions::new().wait(Duration::from_secs(20)))?;
    let mut number = 0u64;
    let mut next = || {
        number += 1;
        let mut bytes = [7; BYTES];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Message::new().payload(bytes)
    };
    alone(TIMES, 1, || {
        let begun = Instant::now();
        let mut under_way: VecDeque<Writing> = VecDeque::with_capacity(WINDOW);
        for _ in 0..MESSAGES {
            if under_way.len() == WINDOW
                && let Some(first) = under_way.pop_front()
            {
                first.wait()?;
            }
            under_way.push_back(pipe.begin(next(), LONG)?);
        }
        for writing in under_way {
            writing.wait()?;
        }
        let took = begun.elapsed().as_secs_f64();
        // Whoever reads another message than the next one reads no more.
        pipe.write(next(), LONG)?;
        Ok(MESSAGES as f64 / took)
    })
}
