//! Advice of kube-score on the rendered chart: all of it is declined by the chart's page, and nothing else is.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{helm, helm_program, root};

/// A check of less than this is advice: 1 is critical, 5 a warning, 10 is well.
const WELL: u64 = 10;

fn score_program() -> PathBuf {
    let program = helm_program().with_file_name("kube-score");
    assert!(program.is_file(), "there is no {}: `cargo xtask cluster up` gets it", program.display());
    program
}

/// Checks that are not well, each with the kind of the object that it is about.
fn advised(settings: &[&str]) -> BTreeSet<String> {
    let words = ["template", "tensorlane", "--namespace", "tensorlane-system", "--kube-version", "1.36.0"];
    let rendered = helm(&helm_program(), &words, settings);
    assert!(rendered.status.success(), "{}", String::from_utf8_lossy(&rendered.stderr));
    let mut command = Command::new(score_program());
    command.args(["score", "--kubernetes-version", "v1.36", "--output-format", "json", "-"]);
    let mut scoring = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    scoring.stdin.take().unwrap().write_all(&rendered.stdout).unwrap();
    let output = scoring.wait_with_output().unwrap();
    let objects: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(objects.len() > 3, "{objects:?}");
    let mut all = BTreeSet::new();
    for object in &objects {
        let kind = object["type_meta"]["kind"].as_str().unwrap();
        let checks = object["checks"].as_array().unwrap().iter();
        let bad = checks.filter(|check| check["skipped"] != true && check["grade"].as_u64().unwrap() < WELL);
        all.extend(bad.map(|check| format!("{} of {kind}", check["check"]["id"].as_str().unwrap())));
    }
    all
}

/// Checks and kinds that the page's table names: `` `check` of Kind, Kind ``.
fn declined() -> BTreeSet<String> {
    let page = std::fs::read_to_string(root().join("charts/tensorlane/README.md")).unwrap();
    let (_, section) = page.split_once("\n## Advice of kube-score\n").expect("the page has it");
    let mut all = BTreeSet::new();
    for row in section.lines().filter_map(|line| line.strip_prefix("| `")) {
        let (check, rest) = row.split_once("` | ").expect("a check is code");
        let (kinds, _) = rest.split_once(" | ").expect("the second cell has the kinds");
        all.extend(kinds.split(", ").map(|kind| format!("{check} of {kind}")));
    }
    all
}

#[test]
#[ignore = "needs programs of Kubernetes: cargo xtask cluster up"]
fn kube_score_advises_what_the_chart_s_page_declines_and_nothing_else() {
    let usual = advised(&[]);
    let exchanges = "sameNode.exchanges[0].namespace=ml,sameNode.exchanges[0].name=a,\
                     networkPolicy.exchanges[0].namespace=ml,networkPolicy.exchanges[0].name=a";
    let with_exchanges = advised(&["--set", exchanges]);
    let all: BTreeSet<_> = usual.union(&with_exchanges).cloned().collect();
    assert_eq!(all, declined());
    // With the defaults nothing runs with a low number or with privileges.
    assert!(!usual.iter().any(|one| one.contains("security-context")), "{usual:?}");
}
