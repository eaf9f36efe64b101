//! Time of a pod on its way through the API server, with the webhook and without: dry runs, which ask everybody and
//! keep nothing.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tensorlane_benches::pairs::Pair;
use tensorlane_benches::stats::quantile;

use super::kubernetes::{Cluster, pod};
use crate::rows::{self, Measured};

/// Calls in one batch; a batch gives one value of each row.
const CALLS: usize = 100;
/// Batches of each kind.
const BATCHES: usize = 5;

/// Measures both rows.
pub(super) fn run(cluster: &Cluster) -> Result<[Measured; 2]> {
    batch(cluster, true)?;
    let (mut halves, mut hundredths) = (Vec::new(), Vec::new());
    for _ in 0..BATCHES {
        let (limit, value) = (batch(cluster, false)?, batch(cluster, true)?);
        let pair =
            |p| -> Option<Pair> { Some(Pair { value: quantile(&value, p)?, limit: quantile(&limit, p) }) };
        halves.extend(pair(0.5));
        hundredths.extend(pair(0.99));
    }
    Ok([Measured::new(&rows::WEBHOOK_P50, halves), Measured::new(&rows::WEBHOOK_P99, hundredths)])
}

/// The milliseconds of each call.
fn batch(cluster: &Cluster, asks: bool) -> Result<Vec<f64>> {
    let items: Vec<_> = (0..CALLS).map(|number| pod(&format!("tried-{number}"), asks, "", "true")).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let words = ["create", "--dry-run=server", "--output=name", "--v=6", "--filename=-"];
    let took = times(&cluster.kubectl_logged(&words, &list)?)?;
    ensure!(took.len() == CALLS, "{} of {CALLS} calls were logged", took.len());
    Ok(took)
}

/// Times from the log of kubectl for each pod that it makes.
fn times(log: &str) -> Result<Vec<f64>> {
    let calls = log.lines().filter(|line| line.contains("verb=\"POST\"") && line.contains("/pods?"));
    calls
        .map(|line| {
            let (_, rest) = line.rsplit_once("milliseconds=").context("kubectl does not say how long")?;
            Ok(rest.trim().parse()?)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_pods_are_read_and_nothing_else() {
        let log = r#"I1121 16:11:17.331942    6301 round_trippers.go:632] "Response" verb="GET" url="https://a/api/v1" status="200 OK" milliseconds=3
I1121 16:11:17.331942    6301 round_trippers.go:632] "Response" verb="POST" url="https://a/api/v1/namespaces/m/pods?dryRun=All" status="201 Created" milliseconds=69"#;
        assert_eq!(times(log).unwrap(), [69.0]);
    }
}
