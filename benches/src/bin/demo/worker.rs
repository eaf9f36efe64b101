//! The other processes of the demo: each has a session of its own with one sidecar and does what it is told.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tensorlane_benches::worker::{self, At, Worker};
use tensorlane_benches::{tensors, wait};
use tensorlane_client::{AcquireOptions, Client, PutOptions, Stored, Target, Tensor, View};
use tensorlane_proto::{PeerName, Selection};

/// The word that makes this program such a process.
pub(crate) const WORD: &str = "worker";
/// Bytes that are summed at once: they stay in the cache.
const PART: usize = 256 << 10;
/// Longest time that copies may stay that nobody holds.
const COPY_MAX: Duration = Duration::from_secs(10);

/// Task of a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Acquire all of these at once, and sum each in place if asked to.
    Acquire {
        /// Peer whose names they are; its own sidecar's if none.
        peer: Option<String>,
        names: Vec<String>,
        sum: bool,
    },
    /// Acquire rows of one tensor and sum them.
    Rows { peer: String, name: String, rows: Vec<u64> },
    /// Wait for a name, acquire what it stands for and sum it.
    Await { name: String, at_most: Duration },
    /// Put so many bytes and hold them.
    Hold { bytes: u64 },
}

/// Words of a process afterwards.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    /// CRC-32C of each tensor, in the order of the names.
    pub(crate) sums: Vec<u32>,
    /// Bytes that came from another peer.
    pub(crate) moved: u64,
    /// Route by which they came, with the reasons why not better.
    pub(crate) route: String,
    /// Time that the acquire took, in seconds.
    pub(crate) seconds: f64,
    /// Time at which it was done, in seconds since 1970.
    pub(crate) at: f64,
}

/// Starts such a process beside a sidecar.
pub(crate) fn start(sockets: &Path) -> Result<Worker> {
    Worker::start(At::default(), &[WORD.as_ref(), sockets.as_os_str()])
}

/// Seconds since 1970: a clock that all processes share.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Process of the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct Process {
    /// The directory of its sidecar's sockets.
    sockets: PathBuf,
}

impl Process {
    /// Does what it is told until nothing more comes.
    pub(crate) fn run(&self) -> Result<()> {
        let client = Client::connect(&self.sockets)?;
        let mut held = Vec::new();
        worker::serve(|task| perform(&client, task, &mut held))
    }
}

fn perform(client: &Client, task: Task, held: &mut Vec<Stored>) -> Result<Done> {
    match task {
        Task::Acquire { peer, names, sum } => {
            let peer = peer.map(|peer| peer.parse::<PeerName>()).transpose()?;
            let target = |name: &String| Target::Name { peer: peer.clone(), name: name.clone() };
            acquire(client, &names.iter().map(target).collect::<Vec<_>>(), sum)
        }
        Task::Rows { peer, name, rows } => {
            let target = Target::name_at(peer.parse()?, name);
            // Of a copy that is here already, no row would travel.
            without_copies(client)?;
            one(client, &target, &AcquireOptions::new().selection(Selection::rows(rows)))
        }
        Task::Await { name, at_most } => {
            let options = AcquireOptions::new().wait(at_most).deadline(at_most);
            one(client, &Target::name(name), &options)
        }
        Task::Hold { bytes } => {
            let mut reservation = client.reserve(&tensors::bytes(bytes)?)?;
            for at in (0..bytes).step_by(PART) {
                let part = vec![0x5a; PART.min((bytes - at) as usize)];
                reservation.copy_from(at, &part)?;
            }
            held.push(reservation.seal(&PutOptions::new())?);
            Ok(Done::default())
        }
    }
}

fn acquire(client: &Client, targets: &[Target], summed: bool) -> Result<Done> {
    without_copies(client)?;
    let begun = Instant::now();
    let acquired = client.acquire_many(targets, &AcquireOptions::new());
    let (seconds, at) = (begun.elapsed().as_secs_f64(), now());
    let acquired = acquired.into_iter().collect::<Result<Vec<_>, _>>()?;
    let moved = acquired.iter().map(|tensor| tensor.moved().bytes).sum();
    let sums = acquired.iter().filter(|_| summed).map(sum).collect::<Result<_>>()?;
    Ok(Done { sums, moved, route: route(&acquired), seconds, at })
}

/// Waits until the sidecar has no copies, so that the next get moves all bytes again.
fn without_copies(client: &Client) -> Result<()> {
    client.flush()?;
    if !wait::until(COPY_MAX, || Ok(client.status()?.copies == 0))? {
        bail!("copies stay although nobody holds them");
    }
    Ok(())
}

fn one(client: &Client, target: &Target, options: &AcquireOptions) -> Result<Done> {
    let begun = Instant::now();
    let tensor = client.acquire(target, options)?;
    let (seconds, at) = (begun.elapsed().as_secs_f64(), now());
    let moved = tensor.moved().bytes;
    Ok(Done { sums: vec![sum(&tensor)?], moved, route: tensor.moved().to_string(), seconds, at })
}

/// The route of all of them, or of each kind.
fn route(acquired: &[Tensor]) -> String {
    let mut routes: Vec<String> = acquired.iter().map(|tensor| tensor.moved().to_string()).collect();
    routes.sort();
    routes.dedup();
    routes.join("; ")
}

/// CRC-32C of what is mapped, part by part where it lies.
fn sum(tensor: &Tensor) -> Result<u32> {
    tensor.view().map_or(Ok(0), sum_of_view)
}

fn sum_of_view(view: &View) -> Result<u32> {
    let mut part = vec![0; PART.min(view.len())];
    let mut sum = 0;
    for at in (0..view.len()).step_by(PART) {
        let length = PART.min(view.len() - at);
        let part = &mut part[..length];
        view.copy_range_to(at as u64, part).context("a view shorter than it says")?;
        sum = crc32c::crc32c_append(sum, part);
    }
    Ok(sum)
}
