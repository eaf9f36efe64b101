//! Alerts and dashboard ask for metrics, and labels of them, that there are.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

const PAGES: [&str; 2] = [include_str!("../../docs/metrics.md"), include_str!("../../docs/kubernetes.md")];
const DASHBOARD: &str = include_str!("../../charts/tensorlane/files/dashboard.json");
const ALERTS: &str = include_str!("../../charts/tensorlane/templates/prometheusrule.yaml");

/// Labels that Prometheus adds to each series.
const OF_PROMETHEUS: [&str; 3] = ["namespace", "pod", "le"];

/// Metrics with their labels, as the pages say. A histogram is three series.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for row in
        PAGES.iter().flat_map(|page| page.lines()).filter_map(|line| line.strip_prefix("| `tensorlane_"))
    {
        let mut cells = row.split(" | ");
        let name = format!("tensorlane_{}", cells.next().unwrap().trim_matches('`'));
        let Some(kind) = cells.next() else { continue };
        let labels: BTreeSet<String> = kind.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        if kind.starts_with("histogram") {
            for part in ["bucket", "sum", "count"] {
                all.insert(format!("{name}_{part}"), labels.clone());
            }
        } else {
            all.insert(name, labels);
        }
    }
    all
}

/// Queries to Prometheus.
fn queries() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let of_panels = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let of_panels = of_panels.map(|target| target["expr"].as_str().unwrap().to_owned());
    let of_alerts = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("expr: ").map(str::to_owned));
    of_panels.chain(of_alerts).collect()
}

/// The words of a query outside of quotes, and whether an opening brace follows.
fn words(query: &str) -> Vec<&str> {
    let outside = query.split('"').step_by(2);
    outside.flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')).collect()
}

/// The labels that a query names: within braces, and after `by`.
fn labels(query: &str) -> BTreeSet<&str> {
    let lists = |open: &'static str, close: char| {
        query.split(open).skip(1).filter_map(move |rest| rest.split(close).next())
    };
    let matched =
        lists("{", '}').flat_map(|list| list.split(',')).filter_map(|one| one.split(['=', '!']).next());
    let grouped = lists("by (", ')').flat_map(|list| list.split(','));
    matched.chain(grouped).map(str::trim).collect()
}

#[test]
fn every_metric_and_label_that_is_asked_for_is_documented() {
    let documented = documented();
    let queries = queries();
    assert!(queries.len() > 20, "{queries:?}");
    for query in &queries {
        let asked: Vec<_> = words(query).into_iter().filter(|word| word.starts_with("tensorlane_")).collect();
        assert!(!asked.is_empty(), "{query} asks for nothing of ours");
        let known = |name: &&str| {
            documented.get(*name).unwrap_or_else(|| panic!("{name} is not documented: {query}"))
        };
        let labels_there: BTreeSet<&str> = asked.iter().flat_map(known).map(String::as_str).collect();
        for label in labels(query) {
            let there = labels_there.contains(label) || OF_PROMETHEUS.contains(&label);
            assert!(there, "no metric of {query} has the label {label}");
        }
    }
}
