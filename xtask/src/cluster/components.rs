//! The programs that the cluster consists of, built from pinned Go modules under `tests/cluster`, once for each state of
//! their inputs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cluster::definitions;
use crate::cluster::layout::Layout;
use crate::failure::Failure;
use crate::hash::Hash;
use crate::place::Place;
use crate::run::Job;
use crate::style::Style;

/// A Go module and what comes out of it.
#[derive(Debug, Clone, Copy)]
struct Module {
    /// Directory of the module, below `tests/cluster`.
    directory: &'static str,
    /// Package that is built: an import path, or `tool` for everything that its go.mod lists under this word.
    package: &'static str,
    /// Further flags of the linker.
    link: &'static str,
    /// Place of the programs, below `bin`. With a slash at the end a directory, else the one program.
    output: &'static str,
    /// The programs that must be there afterwards, below `bin`.
    programs: &'static [&'static str],
}

/// Without it a build from modules calls itself v0.0.0-master, and charts that ask for a version refuse the cluster.
const KUBERNETES_VERSION: &str = "-X k8s.io/component-base/version.gitVersion=v1.36.3 \
    -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36";

const MODULES: [Module; 8] = [
    Module { directory: "pause", package: ".", link: "", output: "pause", programs: &["pause"] },
    Module {
        directory: "containerd",
        package: "tool",
        link: "",
        output: "",
        programs: &["containerd", "containerd-shim-runc-v2", "ctr"],
    },
    Module {
        directory: "cni",
        package: "tool",
        link: "",
        output: "cni/",
        programs: &["cni/ptp", "cni/host-local", "cni/loopback"],
    },
    Module {
        directory: "etcd",
        package: "go.etcd.io/etcd/server/v3",
        link: "",
        output: "etcd",
        programs: &["etcd"],
    },
    Module {
        directory: "kubernetes",
        package: "tool",
        link: KUBERNETES_VERSION,
        output: "",
        programs: &[
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-proxy",
            "kubelet",
            "kubectl",
        ],
    },
    Module { directory: "coredns", package: ".", link: "", output: "coredns", programs: &["coredns"] },
    Module { directory: "helm", package: "tool", link: "", output: "", programs: &["helm"] },
    // No part of a cluster: it judges what helm renders.
    Module { directory: "kube-score", package: "tool", link: "", output: "", programs: &["kube-score"] },
];

/// Nothing that is linked needs a C compiler, and nothing in a program tells where it was built. A compiler of one
/// package collects garbage above 2 GiB only; with the default it spends a sixth of its time on that.
const ENVIRONMENT: [(&str, &str); 4] =
    [("CGO_ENABLED", "0"), ("GOFLAGS", ""), ("GOGC", "off"), ("GOMEMLIMIT", "2GiB")];

/// Builds what is not built yet. The first time this downloads about 500 MB of modules and takes minutes; how many is in
/// docs/cluster.md.
pub(crate) fn provide(place: &Place, style: Style) -> Result<(), Failure> {
    let layout = Layout::of(place);
    let stale: Vec<_> = MODULES
        .iter()
        .map(|module| Ok((module, key(module, place)?)))
        .filter(|found| found.as_ref().map_or(true, |(module, key)| !is_built(module, key, &layout)))
        .collect::<Result<_, Failure>>()?;
    for (number, (module, key)) in stale.iter().enumerate() {
        println!("building {} ({} of {})", module.directory, number + 1, stale.len());
        let started = Instant::now();
        build(module, place, &layout, style)?;
        let kept = key_file(module, &layout);
        fs::write(&kept, key).map_err(|error| Failure::file("write", &kept, &error))?;
        println!("    built in {:.0} s", started.elapsed().as_secs_f64());
    }
    definitions::provide(place)
}

fn build(module: &Module, place: &Place, layout: &Layout, style: Style) -> Result<(), Failure> {
    let bin = layout.bin();
    fs::create_dir_all(bin.join("cni")).map_err(|error| Failure::file("make", &bin, &error))?;
    // Programs that run are replaced, not written into.
    for program in module.programs {
        let _ = fs::remove_file(bin.join(program));
    }
    let output = format!("{}/{}", bin.display(), module.output);
    let mut job =
        Job::new("nice", ["-n", "10", "go"]).with(arguments(module, &output)).inside(source(module, place));
    for (name, value) in ENVIRONMENT {
        job = job.env(name, value);
    }
    let log = place.log(&format!("cluster-build-{}", module.directory));
    let finished = job.logged(&log, place, style)?;
    match finished.succeeded() {
        true => Ok(()),
        false => Err(Failure::new(format!("{} could not be built: {}", module.directory, finished.shown()))
            .remedy(format!("read {}; a Go module proxy must be in reach", place.short(&log)))),
    }
}

/// Tells `go build` what to make. The linker drops what debuggers read, so that the compiler need not write it either:
/// that is a fifth of its work.
fn arguments(module: &Module, output: &str) -> Vec<String> {
    let link = format!("-s -w {}", module.link);
    [
        "build",
        "-mod=readonly",
        "-trimpath",
        "-buildvcs=false",
        "-gcflags=all=-dwarf=false",
        "-ldflags",
        link.trim_end(),
        "-o",
        output,
        module.package,
    ]
    .map(str::to_owned)
    .to_vec()
}

fn source(module: &Module, place: &Place) -> PathBuf {
    place.root().join("tests/cluster").join(module.directory)
}

/// Names the inputs: the flags and every file of the module.
fn key(module: &Module, place: &Place) -> Result<String, Failure> {
    let directory = source(module, place);
    let mut files: Vec<PathBuf> = fs::read_dir(&directory)
        .map_err(|error| Failure::file("read", &directory, &error))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_input(path))
        .collect();
    files.sort();
    let mut hash = Hash::new();
    for word in arguments(module, module.output) {
        hash = hash.with(word);
    }
    for file in files {
        hash = hash.with(file.file_name().unwrap_or_default().as_encoded_bytes()).with_file(&file)?;
    }
    Ok(hash.shown())
}

fn is_input(path: &Path) -> bool {
    path.extension().is_some_and(|end| ["mod", "sum", "go"].iter().any(|wanted| end == *wanted))
}

fn key_file(module: &Module, layout: &Layout) -> PathBuf {
    layout.bin().join(format!(".{}.key", module.directory))
}

fn is_built(module: &Module, key: &str, layout: &Layout) -> bool {
    let bin = layout.bin();
    fs::read_to_string(key_file(module, layout)).is_ok_and(|kept| kept == key)
        && module.programs.iter().all(|program| bin.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_is_pinned_and_has_a_key() {
        let place = Place::of_this_repository().unwrap();
        for module in &MODULES {
            let text = fs::read_to_string(source(module, &place).join("go.mod")).unwrap();
            assert!(text.contains(&format!("module tensorlane.dev/tests/cluster/{}", module.directory)));
            assert_eq!(key(module, &place).unwrap(), key(module, &place).unwrap());
        }
    }

    #[test]
    fn a_module_whose_inputs_changed_is_built_again() {
        let root = std::env::temp_dir().join(format!("xtask-components-{}", std::process::id()));
        let place = Place::at(&root);
        let (module, layout) = (&MODULES[0], Layout::of(&place));
        let main = source(module, &place).join("main.go");
        fs::create_dir_all(source(module, &place)).unwrap();
        fs::create_dir_all(layout.bin()).unwrap();
        fs::write(&main, "package main").unwrap();
        let before = key(module, &place).unwrap();
        fs::write(key_file(module, &layout), &before).unwrap();
        assert!(!is_built(module, &before, &layout), "the program is missing");
        fs::write(layout.bin().join("pause"), "").unwrap();
        assert!(is_built(module, &before, &layout));
        fs::write(&main, "package main // changed").unwrap();
        assert!(!is_built(module, &key(module, &place).unwrap(), &layout));
        fs::remove_dir_all(&root).unwrap();
    }
}
