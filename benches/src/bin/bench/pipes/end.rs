//! A process at the other end of pipes.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tensorlane_benches::limits::round_trip::SMALL;
use tensorlane_benches::sidecar::Sidecar;
use tensorlane_benches::worker::{self, At, Worker};
use tensorlane_client::Client;
use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{Allocation, Incoming, Message, Pipe, Received, Tensor};

/// Patience of a call, should it hang.
pub(super) const LONG: Timeout = Timeout::After(Duration::from_secs(60));
/// Listener whose pipes have an answer to each message: its payload, after which comes the hash of its tensor where [`HASHED`] is said.
pub(super) const ECHO: &str = "echo";
/// Listener whose pipes are read, message by message, each with the next number.
pub(super) const COUNTED: &str = "counted";
/// Listener whose pipes have one message, after which they end.
pub(super) const FIRST: &str = "first";
/// Metadata of a message whose tensor is to be hashed.
pub(super) const HASHED: &[u8] = b"hash";
/// The message of a pipe that has one.
pub(super) const ONLY: [u8; SMALL] = [7; SMALL];

/// A process that reads messages, or answers them.
#[derive(Debug, clap::Args)]
pub(crate) struct PipeEnd {
    /// The sockets of its sidecar.
    sockets: PathBuf,
}

impl PipeEnd {
    /// Serves its listeners until its input ends.
    pub(crate) fn run(&self) -> Result<()> {
        serve(&self.sockets, ECHO, echo)?;
        serve(&self.sockets, COUNTED, count)?;
        serve(&self.sockets, FIRST, first)?;
        worker::ready_until_end_of_input()
    }
}

/// Starts such a process on a core.
pub(super) fn start(sidecar: &Sidecar, core: usize) -> Result<Worker> {
    let at = At { core: Some(core), ..At::default() };
    let mut worker = Worker::start(at, &["pipe-end".as_ref(), sidecar.sockets().as_os_str()])?;
    let _: bool = worker.answer()?;
    Ok(worker)
}

/// Serves one pipe after the other, on a thread that ends with the process. Where a message is not as it should be the listener
/// ends, too.
fn serve(sockets: &Path, name: &str, pipe: impl Fn(&Pipe) -> Result<()> + Send + 'static) -> Result<()> {
    let client = Client::connect(sockets)?;
    let listener = client.listen(name)?;
    thread::spawn(move || -> Result<()> {
        loop {
            pipe(&listener.accept(Timeout::Never)?)?;
        }
    });
    Ok(())
}

fn echo(pipe: &Pipe) -> Result<()> {
    while let Some(received) = read(pipe)? {
        let mut bytes = payload(&received)?;
        if &received.metadata[..] == HASHED
            && let [Tensor::Mapped(tensor)] = &received.tensors[..]
        {
            bytes.extend_from_slice(&crc32c::crc32c(&tensor.to_vec()).to_le_bytes());
        }
        drop(received);
        pipe.write(Message::new().payload(bytes), LONG)?;
    }
    Ok(())
}

fn count(pipe: &Pipe) -> Result<()> {
    let mut expected = 0u64;
    while let Some(received) = read(pipe)? {
        expected += 1;
        let bytes = payload(&received)?;
        ensure!(bytes.starts_with(&expected.to_le_bytes()), "message {expected} is another one");
    }
    Ok(())
}

fn first(pipe: &Pipe) -> Result<()> {
    let received = read(pipe)?.context("a pipe without a message")?;
    ensure!(payload(&received)? == ONLY, "what was read is not what was written");
    Ok(())
}

/// Reads a message, with its tensors mapped; none where the other end has gone.
fn read(pipe: &Pipe) -> Result<Option<Received>> {
    let Ok(Incoming::Message(descriptor)) = pipe.read_descriptor(Timeout::Never) else { return Ok(None) };
    Ok(Some(pipe.read(descriptor, Allocation::map()).map_err(|failed| failed.error)?))
}

/// The payload of a message of one payload.
pub(super) fn payload(received: &Received) -> Result<Vec<u8>> {
    Ok(received.payloads.first().context("a message without its payload")?.to_vec())
}
