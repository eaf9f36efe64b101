//! The pages about configuration and metrics are complete, and say what the code says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_yaml::Value;

const CONFIGURATION: &str = include_str!("../../docs/configuration.md");
const METRICS: &str = include_str!("../../docs/metrics.md");

/// Settings whose default follows from the machine or from other settings: the page says so in words.
const COMPUTED: [&str; 6] =
    ["peer", "arena.segment", "arena.ready", "peers.directory", "peers.lanes", "identity.rotateEvery"];

/// The rows of all tables of a page: what stands in the cells.
fn rows(page: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split(" | ").map(|cell| cell.trim_matches(['`', ' ', '|'])).collect())
}

/// Every setting with its default, as the sidecar prints them where nothing is configured.
fn settings() -> BTreeMap<String, Option<String>> {
    let sidecar = Command::new(env!("CARGO_BIN_EXE_tensorlane-sidecar"))
        .env_clear()
        .env("TENSORLANE_PEER", "here")
        .arg("--print-config")
        .output()
        .expect("the sidecar runs");
    let text = String::from_utf8(sidecar.stdout).expect("it prints text");
    let Value::Mapping(top) = serde_yaml::from_str(&text).expect("it prints YAML") else {
        panic!("no mapping: {text}")
    };
    let mut settings = BTreeMap::new();
    for (name, value) in top {
        let name = name.as_str().expect("names are texts").to_owned();
        match value {
            Value::Mapping(section) => settings.extend(section.into_iter().map(|(inner, value)| {
                (format!("{name}.{}", inner.as_str().expect("names are texts")), shown(&value))
            })),
            value => _ = settings.insert(name, shown(&value)),
        }
    }
    settings
}

fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        other => panic!("no value of a setting: {other:?}"),
    }
}

/// `limits.leasesPerSession` is `TENSORLANE_LIMITS_LEASES_PER_SESSION`.
fn variable(path: &str) -> String {
    let letter = |letter: char| match letter {
        '.' => "_".to_owned(),
        upper if upper.is_ascii_uppercase() => format!("_{upper}"),
        lower => lower.to_ascii_uppercase().to_string(),
    };
    std::iter::once("TENSORLANE_".to_owned()).chain(path.chars().map(letter)).collect()
}

#[test]
fn every_setting_has_a_row_with_its_variable_and_its_default() {
    let settings = settings();
    assert!(settings.len() > 20, "{settings:?}");
    let documented: BTreeMap<_, _> = rows(CONFIGURATION).map(|row| (row[0].to_owned(), row)).collect();
    assert_eq!(documented.keys().collect::<Vec<_>>(), settings.keys().collect::<Vec<_>>());
    for (path, default) in &settings {
        let row = &documented[path];
        assert_eq!(row[1], variable(path), "{path}");
        match default {
            _ if COMPUTED.contains(&path.as_str()) => {}
            Some(default) => assert_eq!(row[2], default, "{path}"),
            None => assert!(row[2] == "none" || row[2].starts_with("as "), "{path}: {}", row[2]),
        }
    }
}

/// The names that are given to a `Maker` in the module of the metrics.
fn metrics() -> BTreeSet<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics");
    let files = fs::read_dir(directory).expect("the module of the metrics is a directory");
    let mut names = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(file.expect("it can be listed").path()).expect("it can be read");
        let calls = text.split("make").skip(1).filter(|rest| rest.trim_start().starts_with('.'));
        names
            .extend(calls.filter_map(|call| call.split('"').nth(1)).map(|name| format!("tensorlane_{name}")));
    }
    names
}

#[test]
fn every_metric_has_a_row_and_every_row_a_metric() {
    let metrics = metrics();
    assert!(metrics.len() > 20, "{metrics:?}");
    let documented: BTreeSet<String> =
        rows(METRICS).map(|row| row[0].to_owned()).filter(|name| name.starts_with("tensorlane_")).collect();
    assert_eq!(documented, metrics);
}
