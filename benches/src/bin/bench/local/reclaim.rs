//! Reclaim of what a killed process held, and how soon it is free again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tensorlane_benches::pairs::alone;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::worker::{self, At, Worker};
use tensorlane_benches::{tensors, wait};
use tensorlane_client::{AcquireOptions, Client, PutOptions, Target};

use crate::context::{Bench, PAIRS};
use crate::rows::{self, Measured};

const ARENA: u64 = 2 << 30;
const LEASES: usize = 1_000;
const GIB: u64 = 1 << 30;
/// After that long something is wrong.
const FREE_MAX: Duration = Duration::from_secs(20);

/// A process that holds 1,000 tensors, and maps one more if it is to.
#[derive(Debug, clap::Args)]
pub(crate) struct Hold {
    /// The directory of the sidecar's sockets.
    sockets: PathBuf,
    /// Bytes of a tensor that it writes in place; 0 for none.
    mapped: u64,
}

impl Hold {
    /// Holds until the end of its input, which is never: it is killed.
    pub(crate) fn run(&self) -> Result<()> {
        let client = Client::connect(&self.sockets)?;
        let stored = tensors::put_pages(&client, LEASES)?;
        let targets: Vec<Target> = stored.iter().map(|stored| Target::from(stored.reference())).collect();
        let acquired = client.acquire_many(&targets, &AcquireOptions::new());
        let acquired = acquired.into_iter().collect::<Result<Vec<_>, _>>()?;
        let large = (self.mapped > 0).then(|| self.write(&client)).transpose()?;
        worker::ready_until_end_of_input()?;
        drop((large, acquired));
        Ok(())
    }

    fn write(&self, client: &Client) -> Result<tensorlane_client::Stored> {
        let mut reservation = client.reserve(&tensors::bytes(self.mapped)?)?;
        let view = reservation.write().context("a reservation without bytes")?;
        for at in (0..self.mapped).step_by(4096) {
            view.copy_from(at, &[7])?;
        }
        Ok(reservation.seal(&PutOptions::new())?)
    }
}

pub(super) fn run(bench: &Bench) -> Result<[Measured; 2]> {
    bench.progress("reclaim: processes are killed while they hold 1,000 tensors");
    let scratch = Scratch::make()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("local", ARENA), &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let of_end = alone(PAIRS, 1, || Ok(kill(&sidecar, &client, 0)?.since_end))?;
    let of_kill = alone(PAIRS, 1, || Ok(kill(&sidecar, &client, GIB)?.since_kill))?;
    sidecar.end()?;
    Ok([
        Measured::new(&rows::RECLAIM_AFTER_KILL, of_end),
        Measured::new(&rows::RECLAIM_AFTER_SIGKILL_1G, of_kill),
    ])
}

/// Milliseconds until all was free.
struct Reclaimed {
    since_kill: f64,
    since_end: f64,
}

fn kill(sidecar: &Sidecar, client: &Client, mapped: u64) -> Result<Reclaimed> {
    let all_is_free = || Ok(tensors::all_is_free(&client.status()?));
    if !wait::until(FREE_MAX, all_is_free)? {
        bail!("the arena is not free before anything was put: {:?}", client.status()?);
    }
    let mapped = mapped.to_string();
    let arguments = ["hold".as_ref(), sidecar.sockets().as_os_str(), mapped.as_ref()];
    let mut holder = Worker::start(At::default(), &arguments)?;
    holder.answer::<bool>()?;
    let held = client.status()?.tensors;
    if held < LEASES as u64 {
        bail!("the holder holds {held} tensors of {LEASES}");
    }

    let killed = holder.process().kill()?;
    // The kernel closes its descriptors in one go: the end of this pipe is the end of its session.
    holder.end_of_output()?;
    let ended = Instant::now();
    // Asked without a pause, for what is measured is short.
    while !all_is_free()? {
        if ended.elapsed() > FREE_MAX {
            bail!("not all is free {FREE_MAX:?} after the holder's end: {:?}", client.status()?);
        }
    }
    let [since_kill, since_end] = [killed, ended].map(|instant| instant.elapsed().as_secs_f64() * 1e3);
    Ok(Reclaimed { since_kill, since_end })
}
