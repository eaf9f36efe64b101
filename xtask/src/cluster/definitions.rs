//! Definitions of other projects' objects, from pinned Go modules: our chart makes such objects on request, and an API
//! server that has the definitions tells whether they are right. Nothing of those projects is built or run.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cluster::layout::Layout;
use crate::cluster::told;
use crate::failure::Failure;
use crate::hash::Hash;
use crate::place::Place;

/// A Go module and the definitions in it.
#[derive(Debug, Clone, Copy)]
struct Source {
    /// Path and version of the module.
    module: &'static str,
    /// Sum that go.sum would state.
    sum: &'static str,
    /// The folder of the definitions.
    folder: &'static str,
    /// Files of the definitions, in that folder.
    files: &'static [&'static str],
}

const SOURCES: [Source; 2] = [
    Source {
        module: "github.com/cert-manager/cert-manager@v1.21.2",
        sum: "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
        folder: "deploy/crds",
        files: &["cert-manager.io_certificates.yaml", "cert-manager.io_issuers.yaml"],
    },
    Source {
        module: "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        sum: "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        folder: "example/prometheus-operator-crd",
        files: &["monitoring.coreos.com_podmonitors.yaml", "monitoring.coreos.com_prometheusrules.yaml"],
    },
];

/// Puts those that are not there yet beside the programs, under `definitions`.
pub(crate) fn provide(place: &Place) -> Result<(), Failure> {
    let folder = Layout::of(place).bin().join("definitions");
    let (kept, key) = (folder.join(".key"), key());
    let is_there = SOURCES.iter().flat_map(|source| source.files).all(|file| folder.join(file).is_file());
    if is_there && fs::read_to_string(&kept).is_ok_and(|old| old == key) {
        return Ok(());
    }
    fs::create_dir_all(&folder).map_err(|error| Failure::file("make", &folder, &error))?;
    for source in &SOURCES {
        let from = downloaded(source)?;
        for file in source.files {
            copy(&from.join(file), &folder.join(file))?;
        }
    }
    fs::write(&kept, key).map_err(|error| Failure::file("write", &kept, &error))
}

/// Copies a file. Files in modules may be read by all and written by nobody; the copy is ours.
fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let text = fs::read(from).map_err(|error| Failure::file("read", from, &error))?;
    fs::write(to, text).map_err(|error| Failure::file("write", to, &error))
}

/// The folder of a module's definitions, in Go's own cache. The sum is compared here, so no database is asked for it.
fn downloaded(source: &Source) -> Result<PathBuf, Failure> {
    let words = ["GOFLAGS=", "GONOSUMDB=*", "go", "-C", "/", "mod", "download", "-json", source.module];
    let said = told("env", words).map_err(|failure| failure.remedy("a Go module proxy must be in reach"))?;
    let (Some(folder), Some(sum)) = (field(&said, "Dir"), field(&said, "Sum")) else {
        return Err(Failure::new(format!("go says neither where {} lies nor what it is", source.module)));
    };
    if sum != source.sum {
        let what = format!("{} has the sum {sum}, and {} is expected", source.module, source.sum);
        return Err(Failure::new(what).remedy("the module or the proxy is not what it was: do not use it"));
    }
    Ok(Path::new(folder).join(source.folder))
}

/// The value of a text in an object of which each stands on a line of its own.
fn field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("\"{name}\": \"");
    let line = json.lines().find_map(|line| line.trim().strip_prefix(&start))?;
    Some(line.trim_end_matches(',').trim_end_matches('"'))
}

fn key() -> String {
    let all = SOURCES.iter().flat_map(|source| source.files.iter().chain([&source.module, &source.sum]));
    all.fold(Hash::new(), Hash::with).shown()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_says_of_a_module_is_read() {
        let said = "{\n\t\"Path\": \"example.org/m\",\n\t\"Dir\": \"/go/m@v1\",\n\t\"Sum\": \"h1:abc=\"\n}\n";
        assert_eq!((field(said, "Dir"), field(said, "Sum")), (Some("/go/m@v1"), Some("h1:abc=")));
        assert_eq!(field(said, "Zip"), None);
    }

    #[test]
    fn every_source_is_pinned_by_version_and_sum() {
        for source in SOURCES {
            let (_, version) = source.module.split_once('@').unwrap();
            assert!(version.starts_with('v') && source.sum.starts_with("h1:"), "{}", source.module);
            assert!(source.sum.len() == 47 && !source.files.is_empty(), "{}", source.sum);
        }
    }
}
