//! Images are the same whenever they are made from the same programs, small, and say what they are; what other builders make
//! them from is whole. Needs root and the programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use tensorlane_tests::cluster::{image, xtask};
use tensorlane_tests::oci::Archive;
use tensorlane_tests::turns::Turns;

/// Each test makes contexts in the same places.
static TURNS: Turns = Turns::new();

/// The lines of `cargo xtask images OPTION NAME…` that begin with the name of an image.
fn images(option: &str, names: &[&str]) -> Vec<String> {
    let output = xtask().args(["images", option]).args(names).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().filter(|line| line.starts_with("tensorlane.dev/")).map(str::to_owned).collect()
}

/// Images of ours, and the most that the archive of each may have, in megabytes. The arena is no part of them, and nodes
/// pull them when pods wait: what makes one much larger has to be wanted.
const MOST: [(&str, f64); 4] = [("sidecar", 20.0), ("workload", 10.0), ("python", 80.0), ("operator", 30.0)];

#[test]
fn the_same_checkout_gives_the_same_small_images() {
    let _turn = TURNS.alone();
    let names: Vec<&str> = MOST.iter().map(|(name, _)| *name).chain(["pause"]).collect();
    let [first, second] = [(); 2].map(|()| images("--fresh", &names));
    assert_eq!(first, second);
    assert_eq!(first.len(), names.len(), "a line for each: {first:?}");
    for (name, line) in names.iter().zip(&first) {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[0], image(name));
        assert!(words[1].starts_with("sha256:") && words[1].len() == 71, "{line}");
        let (megabytes, unit) = (words[2].parse::<f64>().unwrap(), words[3]);
        assert_eq!(unit, "MB", "{line}");
        let most = MOST.iter().find(|(known, _)| known == name).map_or(2.0, |(_, most)| *most);
        assert!(megabytes > 0.1 && megabytes <= most, "at most {most} MB: {line}");
    }
}

#[test]
fn another_builder_finds_in_the_context_all_that_the_containerfile_asks_for() {
    let _turn = TURNS.alone();
    let names = MOST.map(|(name, _)| name);
    let made = images("--context-only", &names);
    assert_eq!(made.len(), names.len(), "a line for each: {made:?}");
    for (name, line) in names.iter().zip(&made) {
        let (full, place) = line.split_once(' ').unwrap();
        assert_eq!(full, image(name));
        // Said from the root of the checkout, where it lies there.
        let context = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(place);
        let text = fs::read_to_string(context.join("Containerfile")).unwrap();
        assert!(text.contains(concat!("\nARG VERSION=", env!("CARGO_PKG_VERSION"), "\n")), "{text}");
        let revision = text.lines().find_map(|line| line.strip_prefix("ARG REVISION=")).unwrap();
        assert!(!revision.is_empty(), "{text}");
        let asked: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("ADD ") || line.starts_with("COPY "))
            .filter_map(|line| line.split(' ').nth(1))
            .collect();
        let packages: &[&str] = if *name == "python" { &["packages/"] } else { &[] };
        assert_eq!(asked, [&["rootfs.tar", "bin/"], packages, &["sbom.spdx.json"]].concat(), "{text}");
        for file in asked {
            assert!(context.join(file).exists(), "{file} in {}", context.display());
        }
    }
}

/// Something that must be in the list of what is in each image: our program, a crate or two of it, and a library.
const CONTAINS: [(&str, &[&str]); 4] = [
    ("sidecar", &["tensorlane-sidecar", "tensorlane-client", "rustls", "tokio", "libc6", "libgcc-s1"]),
    ("workload", &["tensorlane-client", "clap", "busybox", "libc6"]),
    (
        "python",
        &[
            "tensorlane-python",
            "tensorlane-sidecar",
            "pyo3",
            "numpy",
            "cbor2",
            "python3.11-minimal",
            "busybox",
        ],
    ),
    ("operator", &["tensorlane-operator", "kube", "rustls", "libc6"]),
];

/// The archives of images, made where they are not there yet.
fn archives<'a>(names: &[&'a str]) -> Vec<(&'a str, Archive)> {
    let _turn = TURNS.alone();
    let output = xtask().arg("images").args(names).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let of = |name: &&'a str| {
        let start = format!("{} ", image(name));
        let line = said.lines().find(|line| line.starts_with(&start)).unwrap();
        (*name, Archive::open(&root.join(line.split(' ').nth(4).unwrap())))
    };
    names.iter().map(of).collect()
}

#[test]
fn every_image_says_what_it_is_runs_as_nobody_and_needs_nothing_written() {
    for (name, archive) in archives(&CONTAINS.map(|(name, _)| name)) {
        let config = &archive.config["config"];
        let label = |key: &str| {
            let text = config["Labels"][format!("org.opencontainers.image.{key}")].as_str();
            text.filter(|text| !text.is_empty()).unwrap_or_else(|| panic!("{name} has no {key}: {config}"))
        };
        assert_eq!((label("version"), label("licenses")), (env!("CARGO_PKG_VERSION"), "Apache-2.0"));
        assert!(label("title").to_lowercase().contains("tensorlane"), "{name}");
        for key in ["description", "vendor", "revision"] {
            label(key);
        }

        // Kubernetes takes `runAsNonRoot` by a number alone.
        let user = config["User"].as_str().unwrap();
        let ids: Vec<u32> = user.split(':').map(|id| id.parse().unwrap()).collect();
        assert!(ids.len() == 2 && !ids.contains(&0), "{name} runs as {user}");
        assert!(config["Volumes"].is_null() && config["Entrypoint"].is_array(), "{name}: {config}");

        // Nothing belongs to that user, and nothing that all may write keeps anything.
        assert!(!archive.members.is_empty());
        for member in archive.members.iter().filter(|member| !member.is_link()) {
            assert!(!ids.contains(&member.owner), "{name}: {member:?}");
            assert!(!member.raises_rights(), "{name}: {member:?}");
            assert!(!member.is_writable_by_all() || member.path == "tmp/", "{name}: {member:?}");
        }
    }
}

#[test]
fn every_image_lists_what_is_in_it() {
    for (name, archive) in archives(&CONTAINS.map(|(name, _)| name)) {
        let list: serde_json::Value =
            serde_json::from_slice(&archive.file("usr/share/tensorlane/sbom.spdx.json")).unwrap();
        assert_eq!((list["spdxVersion"].as_str(), list["name"].as_str()), (Some("SPDX-2.3"), Some(name)));
        let packages = list["packages"].as_array().unwrap();
        for package in packages {
            let version = package["versionInfo"].as_str().unwrap();
            assert!(!version.is_empty(), "{name}: {package}");
        }
        let names: BTreeSet<&str> =
            packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
        let (_, expected) = CONTAINS.iter().find(|(known, _)| *known == name).unwrap();
        for package in *expected {
            assert!(names.contains(package), "{name} does not list {package}");
        }
        // All but the image itself can be looked up.
        let located = packages.iter().filter(|package| {
            let locator = package["externalRefs"][0]["referenceLocator"].as_str();
            locator.is_some_and(|locator| locator.starts_with("pkg:"))
        });
        assert_eq!(located.count(), packages.len() - 1, "{name}");
    }
}
