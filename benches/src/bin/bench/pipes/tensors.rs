//! A tensor in a message within the pod: mapped by its reader, or copied from heap to heap.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use tensorlane_benches::limits::memory::Memcpy;
use tensorlane_benches::pairs::{interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::{cores, tensors};
use tensorlane_client::PutOptions;
use tensorlane_client::pipe::{Allocation, ConnectOptions, Incoming, Message, Place};

use super::end::{self, ECHO, HASHED, LONG};
use super::ping_pong::{exchange, round_trip_us};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, pipes};

const BYTES: usize = 64 << 20;
const ARENA: u64 = 512 << 20;

pub(super) fn map(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("a tensor that is mapped: the caller on one core, sidecar and other process on another");
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let options = SidecarOptions { core: Some(far), ..SidecarOptions::new("map", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let other = end::start(&sidecar, far)?;
    let pairs = cores::on(Some(near), || -> Result<_> {
        let client = sidecar.client()?;
        let (descriptor, content) = (tensors::bytes(BYTES as u64)?, tensors::content(BYTES));
        let stored = client.put(&descriptor, &content, &PutOptions::new())?;
        let pipe = client.connect_pipe(ECHO, &ConnectOptions::new())?;
        let with = |message: Message| message.kept(descriptor.clone(), stored.reference().clone());
        let pairs = interleaved(
            PAIRS,
            WARM_UP,
            || round_trip_us(&pipe, |message| message),
            || round_trip_us(&pipe, with),
        )?;
        let hash = exchange(&pipe, with(Message::new().metadata(HASHED).payload(Vec::<u8>::new())))?;
        let expected = crc32c::crc32c(&content).to_le_bytes();
        ensure!(hash == expected, "what was mapped is not what was put");
        Ok(pairs)
    })??;
    drop(other);
    sidecar.end()?;
    Ok(vec![Measured::new(&pipes::TENSOR_64M_MAP, pairs)])
}

pub(super) fn heap(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("64 MiB from heap to heap: all cores, sidecar and limit alike");
    let scratch = Scratch::make()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("heap", ARENA), &bench.programs, &scratch)?;
    let (from, to) = (sidecar.client()?, sidecar.client()?);
    let listener = to.listen("heap")?;
    let near = from.connect_pipe("heap", &ConnectOptions::new())?;
    let far = listener.accept(LONG)?;
    // Written, so that its pages are there.
    let copy = Memcpy::best(&Arc::new(vec![0x5a; BYTES]), bench.cores.count)?;
    let (descriptor, mut content) = (tensors::bytes(BYTES as u64)?, tensors::content(BYTES));
    let mut place = content.clone();
    tensors::settle(&from)?;
    let rate = |seconds: f64| BYTES as f64 / seconds / 1e9;
    let mut number = 0u64;
    let ours = || {
        // Each message has other bytes than the one before.
        number += 1;
        content[..8].copy_from_slice(&number.to_le_bytes());
        let message = Message::new().tensor(descriptor.clone(), content.clone());
        let took = seconds(|| {
            let writing = near.begin(message, LONG)?;
            let Incoming::Message(incoming) = far.read_descriptor(LONG)? else { bail!("the pipe ended") };
            let allocation = Allocation::new(vec![Place::Bytes(&mut place)]);
            far.read(incoming, allocation).map_err(|failed| failed.error)?;
            writing.wait()?;
            Ok(())
        })?;
        ensure!(place == content, "what was read is not what was written");
        Ok(rate(took))
    };
    let pairs = interleaved(PAIRS, WARM_UP, || Ok(rate(2.0 * copy.seconds()?)), ours)?;
    let note = Some(format!("memcpy: {}", copy.way()));
    drop((near, far, listener, from, to));
    sidecar.end()?;
    Ok(vec![Measured { note, ..Measured::new(&pipes::TENSOR_64M_HEAP, pairs) }])
}
