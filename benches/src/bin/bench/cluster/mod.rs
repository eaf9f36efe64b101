//! The rows `cluster.*`: Tensorlane on the test cluster, which is made anew for each run and taken away after it.

mod at_rest;
mod kubernetes;
mod looking;
mod many;
mod pods;
mod webhook;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tensorlane_benches::pairs::Pair;
use tensorlane_benches::undo::Undo;

use crate::context::Bench;
use crate::rows::{self, Measured, Row};
use kubernetes::Cluster;

/// The images, in the order of their rows.
const IMAGES: [(&str, &Row); 3] = [
    ("operator", &rows::IMAGE_OPERATOR),
    ("sidecar", &rows::IMAGE_SIDECAR),
    ("workload", &rows::IMAGE_WORKLOAD),
];

/// Measures all of them.
pub(crate) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let cluster = Cluster::of(&bench.programs);
    ensure!(
        !cluster.is_up(),
        "a cluster is up, and this takes it away: end it first with `cargo xtask cluster down`"
    );
    bench.progress("images");
    let mut all = image_sizes(&cluster)?;
    bench.progress("the cluster comes up");
    let down = {
        let cluster = cluster.clone();
        Undo::with(move || cluster.down())
    };
    all.extend(came_up(&cluster)?);
    for (image, _) in IMAGES {
        cluster.xtask(&["cluster", "load", image])?;
    }
    all.push(alone(&rows::OPERATOR_READY, install(&cluster)?));
    bench.progress("calls of the webhook");
    all.extend(webhook::run(&cluster)?);
    bench.progress("pods");
    all.extend(pods::run(&cluster)?);
    bench.progress("what is taken at rest");
    all.extend(at_rest::run(&cluster)?);
    bench.progress("a thousand peers");
    all.extend(many::run(&cluster)?);
    drop(down);
    Ok(all)
}

/// A row of one value.
fn alone(row: &'static Row, value: f64) -> Measured {
    Measured::new(row, vec![Pair { value, limit: None }])
}

/// Sizes that `xtask images` reports: name, digest, size, unit, archive.
fn image_sizes(cluster: &Cluster) -> Result<Vec<Measured>> {
    let names = IMAGES.map(|(name, _)| name);
    let said = cluster.xtask(&[&["images"], &names[..]].concat())?;
    let size = |name: &str| {
        let line = said.lines().find(|line| line.starts_with(&format!("tensorlane.dev/{name}:")));
        line.and_then(|line| line.split(' ').nth(2)?.parse().ok())
            .with_context(|| format!("no size of {name}: {said}"))
    };
    IMAGES.iter().map(|(name, row)| Ok(alone(row, size(name)?))).collect()
}

/// Brings it up from nothing, and once more. Where its programs are not built, that is done before, and told by itself.
fn came_up(cluster: &Cluster) -> Result<Vec<Measured>> {
    let up = |row| -> Result<Measured> {
        let began = Instant::now();
        cluster.xtask(&["cluster", "up"])?;
        Ok(alone(row, began.elapsed().as_secs_f64()))
    };
    let mut rows = Vec::new();
    if !cluster.is_built() {
        rows.push(up(&rows::CLUSTER_UP_UNBUILT)?);
    }
    // Also half a cluster that was left: it costs `up` the time to take it away.
    cluster.down();
    rows.push(up(&rows::CLUSTER_UP_COLD)?);
    rows.push(up(&rows::CLUSTER_UP_WARM)?);
    Ok(rows)
}

/// Installs Tensorlane; seconds until a pod that asks gets its sidecar.
fn install(cluster: &Cluster) -> Result<f64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/install.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let began = Instant::now();
    // No registry is in reach of the nodes.
    let manifests = text.replace("ghcr.io/tensorlane/", "tensorlane.dev/");
    cluster.kubectl(&["apply", "--server-side", "--filename=-"], &manifests)?;
    cluster.wait("the operator is ready", || {
        let pod = kubernetes::pod("tried", true, "", "true").to_string();
        cluster.kubectl(&["create", "--dry-run=server", "--filename=-"], &pod).is_ok()
    })?;
    Ok(began.elapsed().as_secs_f64())
}
