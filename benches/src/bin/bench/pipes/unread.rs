//! Messages that nobody reads: their bytes stay where their writer has them.

use anyhow::{Context, Result, bail, ensure};
use tensorlane_benches::pairs::{Pair, alone};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::Sidecar;
use tensorlane_benches::{machine, tensors};
use tensorlane_client::pipe::{ConnectOptions, Incoming, Message, UNREAD_MAX};
use tensorlane_client::{Client, PutOptions, Stored};
use tensorlane_proto::Descriptor;

use super::end::LONG;
use crate::context::Bench;
use crate::groups::two_hosts;
use crate::rows::{Measured, pipes};
use crate::tcp::two_sidecars;

const BYTES: u64 = 256 << 20;
const ARENA: u64 = 2 * BYTES;
/// Pipes, one after the other. What the first one takes counts.
const TIMES: usize = 3;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress("unread: 64 messages of 256 MiB of which the descriptors alone are read");
    let scratch = Scratch::make()?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA, [None; 2], "prefer: tcp\n")?;
    let (from, to) = (a.client()?, b.client()?);
    let descriptor = tensors::bytes(BYTES)?;
    let stored = from.put(&descriptor, &tensors::content(BYTES as usize), &PutOptions::new())?;
    tensors::settle(&from)?;
    tensors::settle(&to)?;
    let ends = [(&a, &from), (&b, &to)];
    let values = alone(TIMES, 0, || grown(ends, &descriptor, &stored))?;
    let most = values.iter().map(|pair| pair.value).fold(0.0, f64::max);
    drop((stored, from, to));
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&pipes::UNREAD, vec![Pair { value: most, limit: None }])])
}

/// Mebibytes by which both sidecars and the reader's arena grow.
fn grown(
    [(a, from), (b, to)]: [(&Sidecar, &Client); 2],
    descriptor: &Descriptor,
    stored: &Stored,
) -> Result<f64> {
    let memory = || -> Result<u64> { Ok(heap(a)? + heap(b)? + taken(to)?) };
    let listener = to.listen("unread")?;
    let near = from.connect_pipe("b/unread", &ConnectOptions::new())?;
    let far = listener.accept(LONG)?;
    let before = memory()?;
    let message = |number: usize| {
        let message = Message::new().metadata(number.to_string());
        near.begin(message.kept(descriptor.clone(), stored.reference().clone()), LONG)
    };
    let writing = (0..UNREAD_MAX).map(message).collect::<Result<Vec<_>, _>>()?;
    let mut descriptors = Vec::new();
    for number in 0..UNREAD_MAX {
        let Incoming::Message(incoming) = far.read_descriptor(LONG)? else { bail!("the pipe ended") };
        ensure!(incoming.metadata() == number.to_string().as_bytes(), "message {number} is another one");
        descriptors.push(incoming);
    }
    let after = memory()?;
    drop((descriptors, writing));
    Ok(after.saturating_sub(before) as f64 / f64::from(1 << 20))
}

/// Bytes of the heap and the shared memory that a sidecar has in its memory.
fn heap(sidecar: &Sidecar) -> Result<u64> {
    let file = format!("/proc/{}/status", sidecar.process().id());
    Ok(machine::bytes_of(&file, "RssAnon:")? + machine::bytes_of(&file, "RssShmem:")?)
}

/// Bytes of a sidecar's arena that are not free.
fn taken(client: &Client) -> Result<u64> {
    let arena = client.status()?.arena.context("a status without an arena")?;
    Ok(arena.total - arena.free)
}
