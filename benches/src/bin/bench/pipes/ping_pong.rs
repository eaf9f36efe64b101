//! Small messages there and back.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tensorlane_benches::cores;
use tensorlane_benches::limits::futex::FutexPingPong;
use tensorlane_benches::limits::round_trip::{SMALL, TcpRoundTrip};
use tensorlane_benches::pairs::{Pair, interleaved, median_us};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::worker::{self, At, Worker};
use tensorlane_client::Client;
use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{Allocation, ConnectOptions, Incoming, Message, Pipe};

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::groups::two_hosts;
use crate::rows::{Measured, pipes};
use crate::tcp::two_sidecars;

const ARENA: u64 = 64 << 20;
/// Round trips of one value.
const ROUND_TRIPS: usize = 500;
/// Patience of a call, should it hang.
const LONG: Timeout = Timeout::After(Duration::from_secs(60));
const NAME: &str = "echo";

/// A process that answers every message of a pipe with the same bytes.
#[derive(Debug, clap::Args)]
pub(crate) struct PipeEnd {
    /// The sockets of its sidecar.
    sockets: PathBuf,
}

impl PipeEnd {
    /// Answers until its input ends.
    pub(crate) fn run(&self) -> Result<()> {
        let client = Client::connect(&self.sockets)?;
        let listener = client.listen(NAME)?;
        // Ends with the process.
        thread::spawn(move || -> Result<()> {
            let pipe = listener.accept(Timeout::Never)?;
            loop {
                let bytes = read(&pipe)?;
                pipe.write(Message::new().payload(bytes), LONG)?;
            }
        });
        worker::ready_until_end_of_input()
    }
}

/// Reads a message of one payload.
fn read(pipe: &Pipe) -> Result<Vec<u8>> {
    let Incoming::Message(descriptor) = pipe.read_descriptor(LONG)? else { bail!("the pipe ended") };
    let received = pipe.read(descriptor, Allocation::map()).map_err(|failed| failed.error)?;
    Ok(received.payloads.first().context("a message without its payload")?.to_vec())
}

fn echo(sidecar: &Sidecar, core: usize) -> Result<Worker> {
    let at = At { core: Some(core), ..At::default() };
    let mut worker = Worker::start(at, &["pipe-end".as_ref(), sidecar.sockets().as_os_str()])?;
    let _: bool = worker.answer()?;
    Ok(worker)
}

/// Microseconds of a message and its answer.
fn round_trip_us(pipe: &Pipe) -> Result<f64> {
    let mut number = 0u64;
    median_us(ROUND_TRIPS, || {
        number += 1;
        let mut bytes = [7; SMALL];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        let writing = pipe.begin(Message::new().payload(bytes), LONG)?;
        ensure!(read(pipe)? == bytes, "what came back is not what was written");
        writing.wait()?;
        Ok(())
    })
}

pub(super) fn in_the_pod(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress(
        "ping-pong in the pod: the caller on one core, sidecar and other process on another, limit alike",
    );
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let mut futex = FutexPingPong::start(&scratch, [near, far])?;
    let options = SidecarOptions { core: Some(far), ..SidecarOptions::new("pod", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let other = echo(&sidecar, far)?;
    let pairs = cores::on(Some(near), || {
        let client = sidecar.client()?;
        pairs(&client, NAME, || futex.median_us(ROUND_TRIPS))
    })??;
    drop(other);
    sidecar.end()?;
    Ok(vec![Measured::new(&pipes::RTT_64B_POD, pairs)])
}

pub(super) fn between_hosts(bench: &Bench) -> Result<Vec<Measured>> {
    let hosts = two_hosts(bench);
    bench.progress(
        "ping-pong: the caller and host A on one core, host B and the other process on another, limit alike",
    );
    let [near, far] = [bench.cores.near, bench.cores.far];
    let scratch = Scratch::make()?;
    let mut tcp = TcpRoundTrip::start(&hosts, [Some(near), Some(far)], SMALL)?;
    let mut futex = FutexPingPong::start(&scratch, [near, far])?;
    let [a, b] = two_sidecars(bench, &hosts, &scratch, ARENA, [Some(near), Some(far)], "prefer: tcp\n")?;
    let other = echo(&b, far)?;
    let pairs = cores::on(Some(near), || {
        let client = a.client()?;
        let limit = || Ok(tcp.median_us(ROUND_TRIPS)? + 2.0 * futex.median_us(ROUND_TRIPS)?);
        pairs(&client, &format!("b/{NAME}"), limit)
    })??;
    drop(other);
    a.end()?;
    b.end()?;
    Ok(vec![Measured::new(&pipes::RTT_64B_NET, pairs)])
}

fn pairs(client: &Client, to: &str, limit: impl FnMut() -> Result<f64>) -> Result<Vec<Pair>> {
    let pipe = client.connect_pipe(to, &ConnectOptions::new().wait(Duration::from_secs(20)))?;
    interleaved(PAIRS, WARM_UP, limit, || round_trip_us(&pipe))
}
