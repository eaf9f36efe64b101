//! A large tensor in a message to another host: its bytes land in the arena of the reader's sidecar, and are mapped.

use anyhow::{Result, bail, ensure};
use tensorlane_benches::limits::bulk::{BulkFetch, How};
use tensorlane_benches::pairs::{interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::tensors;
use tensorlane_client::pipe::{Allocation, ConnectOptions, Incoming, Message, Pipe, Received, Tensor};
use tensorlane_client::{PutOptions, Stored};
use tensorlane_proto::Descriptor;

use super::end::LONG;
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::groups::two_hosts;
use crate::paths::far::{TLS, without_copies};
use crate::rows::{Measured, pipes};
use crate::tcp::two_sidecars;

const BYTES: u64 = 1 << 30;
/// Room for the tensor, and for another while its copy goes.
const ARENA: u64 = BYTES * 5 / 2;

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    let mut limit = BulkFetch::best(&hosts, BYTES, &[How::Tls])?;
    bench.progress(&format!("1 GiB in a message: all cores, sidecars and limit alike; limit: {limit}"));
    let scratch = Scratch::make()?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA, [None; 2], TLS)?;
    let (from, to) = (a.client()?, b.client()?);
    let listener = to.listen("large")?;
    let near = from.connect_pipe("b/large", &ConnectOptions::new())?;
    let far = listener.accept(LONG)?;
    let (descriptor, content) = (tensors::bytes(BYTES)?, tensors::content(BYTES as usize));
    let expected = crc32c::crc32c(&content);
    let stored = from.put(&descriptor, &content, &PutOptions::new())?;
    drop(content);
    tensors::settle(&to)?;

    let rate = |seconds: f64| BYTES as f64 / seconds / 1e9;
    let ours = || {
        without_copies(&to)?;
        let mut received = None;
        let took = seconds(|| {
            received = Some(message([&near, &far], &descriptor, &stored)?);
            Ok(())
        })?;
        match received.as_ref().map(|received| &received.tensors[..]) {
            Some([Tensor::Mapped(tensor)]) if tensor.moved().bytes == BYTES => Ok(rate(took)),
            other => bail!("{BYTES} bytes should have come from the other peer: {other:?}"),
        }
    };
    let pairs = interleaved(PAIRS, WARM_UP, || Ok(rate(limit.seconds()?)), ours)?;
    without_copies(&to)?;
    let received = message([&near, &far], &descriptor, &stored)?;
    let [Tensor::Mapped(tensor)] = &received.tensors[..] else { bail!("it is not mapped: {received:?}") };
    ensure!(crc32c::crc32c(&tensor.to_vec()) == expected, "what was read is not what was written");
    let note = Some(format!("{}; limit: {limit}", tensor.moved()));
    drop((received, stored, near, far, listener, from, to));
    a.end()?;
    b.end()?;
    Ok(vec![Measured { note, ..Measured::new(&pipes::TENSOR_1G_NET, pairs) }])
}

/// Writes the tensor and reads it, until the writer knows that it was read.
fn message([near, far]: [&Pipe; 2], descriptor: &Descriptor, stored: &Stored) -> Result<Received> {
    let message = Message::new().kept(descriptor.clone(), stored.reference().clone());
    let writing = near.begin(message, LONG)?;
    let Incoming::Message(incoming) = far.read_descriptor(LONG)? else { bail!("the pipe ended") };
    let received = far.read(incoming, Allocation::map()).map_err(|failed| failed.error)?;
    writing.wait()?;
    Ok(received)
}
