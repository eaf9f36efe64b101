//! Versions of a set that is published again and again.

use anyhow::{Context, Result, ensure};
use tensorlane_benches::cores;
use tensorlane_benches::limits::round_trip::UnixRoundTrip;
use tensorlane_benches::pairs::{interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::tensors;
use tensorlane_client::set::PublishOptions;
use tensorlane_client::{AcquireOptions, Stored};
use tensorlane_proto::Reference;
use tensorlane_proto::set::{Node, Tree};

use super::pod::{ROUND_TRIPS, median};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, sets};

const ARENA: u64 = 64 << 20;
const LEAVES: usize = 500;
/// Versions of one value.
const TIMES: usize = 51;
const NAME: &str = "weights";

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("versions of 500 leaves: the caller on one core, sidecar and limit on another");
    let (scratch, far) = (Scratch::make()?, Some(bench.cores.far));
    let options = SidecarOptions { core: far, ..SidecarOptions::new("publish", ARENA) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let mut raw = UnixRoundTrip::start(&scratch, far)?;
    let client = sidecar.client()?;
    let stored = tensors::put_pages(&client, LEAVES)?;
    let leaf = |(number, stored): (usize, &Stored)| {
        (format!("layer.{number}.weight"), Node::Tensor(stored.reference().clone()))
    };
    let tree: Tree<Reference> =
        Tree { entries: stored.iter().enumerate().map(leaf).collect(), ..Tree::default() };
    let pairs = cores::on(Some(bench.cores.near), || {
        let mut version = 0;
        let ours = || {
            median(TIMES, || {
                let options = PublishOptions { expects: Some(version), ..PublishOptions::default() };
                let took = seconds(|| {
                    version = client.publish_set(NAME, &tree, &options)?.version;
                    Ok(())
                })?;
                Ok(took * 1e6)
            })
        };
        interleaved(PAIRS, WARM_UP, || Ok(2.0 * raw.median_us(ROUND_TRIPS)?), ours)
    })??;
    let opened = client.open_set(NAME, &AcquireOptions::new()).context("the last version")?;
    ensure!(opened.tree == tree, "what was published is another set");
    drop((opened, stored, client));
    sidecar.end()?;
    Ok(vec![Measured::new(&sets::PUBLISH_500, pairs)])
}
