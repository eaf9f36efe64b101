//! The page about Kubernetes is complete, and says what the code says.

use tensorlane_operator::annotations::KEYS;
use tensorlane_operator::{Deny, Skip};

const PAGE: &str = include_str!("../../docs/kubernetes.md");

/// The rows of the table under this heading: what stands in the cells.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).expect("the page has it");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split(" | ").map(|cell| cell.trim_matches(['`', ' ', '|'])).collect()).collect()
}

#[test]
fn every_annotation_stands_there_as_in_the_code() {
    let expected: Vec<_> = KEYS
        .iter()
        .map(|key| vec![format!("tensorlane.dev/{}", key.name), key.accepts.to_owned(), key.doc.to_owned()])
        .collect();
    let documented: Vec<Vec<_>> =
        rows("Annotations").into_iter().map(|row| row.into_iter().map(str::to_owned).collect()).collect();
    assert_eq!(documented, expected);
}

#[test]
fn every_reason_stands_there_once() {
    let documented: Vec<_> = rows("Why a pod gets no sidecar").into_iter().map(|row| row[0]).collect();
    let expected: Vec<_> = Skip::ALL.iter().map(|skip| skip.label()).chain(Deny::LABELS).collect();
    assert_eq!(documented, expected);
}

/// The page about troubleshooting speaks of every code once: with cause, sight and remedy where Kubernetes has a part in it,
/// else in a row that leads to the page of errors.
#[test]
fn troubleshooting_by_code_is_about_every_code_that_there_is() {
    use tensorlane_proto::failure::Reason;

    let page = include_str!("../../docs/troubleshooting.md");
    let (_, by_code) = page.split_once("\n## By error code\n").expect("the page has it");
    let (by_code, others) = by_code.split_once("\n## The other codes\n").expect("the page has it");
    let mut told = Vec::new();
    for part in by_code.split("\n### ").skip(1) {
        let (code, text) = part.split_once('\n').expect("a heading has a line of its own");
        for word in ["*Cause.*", "*How to see it.*", "*What to do.*"] {
            assert!(text.contains(word), "{code} has no {word}");
        }
        told.push(code);
    }
    for row in others.lines().filter_map(|line| line.strip_prefix("| [")) {
        let (code, rest) = row.split_once("](errors.md#").expect("a row leads to the page of errors");
        assert!(rest.starts_with(&format!("{}) | ", code.to_lowercase())), "{row}");
        told.push(code);
    }
    let mut reasons: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    reasons.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, reasons);
}

#[cfg(feature = "run")]
#[test]
fn every_metric_stands_there() {
    use std::collections::BTreeSet;

    let metrics = tensorlane_operator::metrics::Metrics::new().expect("names are unique");
    metrics.injection("injected", std::time::Duration::ZERO);
    metrics.reconciled("peer", true);
    metrics.peers(1, 1);
    let text = metrics.render().expect("it is text");
    let served: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let documented: BTreeSet<_> = rows("Metrics of the operator").into_iter().map(|row| row[0]).collect();
    assert_eq!(documented, served);
}

/// The autoscaler of the page of scalers is one of Kubernetes: nothing in it is lost when it is read as such and written again.
#[test]
fn a_horizontal_autoscaler_stands_there_as_kubernetes_has_it() {
    use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;

    let page = include_str!("../../docs/scalers.md");
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut scalers = blocks.filter(|block| block.contains("kind: HorizontalPodAutoscaler\n"));
    let said: serde_json::Value =
        serde_yaml::from_str(scalers.next().expect("the page has it")).expect("it is YAML");
    let read: HorizontalPodAutoscaler = serde_json::from_value(said.clone()).expect("it is one");
    assert_eq!(serde_json::to_value(read).expect("it is JSON"), said);
}
