//! Definitions of other projects' objects, from pinned Go modules: our chart makes such objects on request, people inject
//! into such objects, and pages show them. An API server that has the definitions tells whether they are right. Nothing of
//! those projects is built or run.

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
    /// Folder of the copies.
    name: &'static str,
    /// Path and version of the module.
    module: &'static str,
    /// Sum that go.sum would state.
    sum: &'static str,
    /// The folder of the definitions.
    folder: &'static str,
    /// Files of the definitions, in that folder.
    files: &'static [&'static str],
}

const SOURCES: [Source; 11] = [
    Source {
        name: "cert-manager",
        module: "github.com/cert-manager/cert-manager@v1.21.2",
        sum: "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
        folder: "deploy/crds",
        files: &["cert-manager.io_certificates.yaml", "cert-manager.io_issuers.yaml"],
    },
    Source {
        name: "prometheus-operator",
        module: "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        sum: "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        folder: "example/prometheus-operator-crd",
        files: &["monitoring.coreos.com_podmonitors.yaml", "monitoring.coreos.com_prometheusrules.yaml"],
    },
    Source {
        name: "kuberay",
        module: "github.com/ray-project/kuberay/ray-operator@v1.5.0",
        sum: "h1:KCjCQ7PSsvs9Ke+90CZbbs498nuaIJ/JkXk4vd54EVg=",
        folder: "config/crd/bases",
        files: &["ray.io_rayclusters.yaml", "ray.io_rayjobs.yaml", "ray.io_rayservices.yaml"],
    },
    Source {
        name: "training-operator",
        module: "github.com/kubeflow/training-operator@v1.9.3",
        sum: "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
        folder: "manifests/base/crds",
        files: &[
            "kubeflow.org_jaxjobs.yaml",
            "kubeflow.org_mpijobs.yaml",
            "kubeflow.org_paddlejobs.yaml",
            "kubeflow.org_pytorchjobs.yaml",
            "kubeflow.org_tfjobs.yaml",
            "kubeflow.org_xgboostjobs.yaml",
        ],
    },
    Source {
        name: "trainer",
        module: "github.com/kubeflow/trainer/v2@v2.1.0",
        sum: "h1:jRABD9ZYToamNH2atHze3L/VC/v6KCAqUEqsOQOjVTg=",
        folder: "manifests/base/crds",
        files: &[
            "trainer.kubeflow.org_clustertrainingruntimes.yaml",
            "trainer.kubeflow.org_trainingruntimes.yaml",
        ],
    },
    Source {
        name: "jobset",
        module: "sigs.k8s.io/jobset@v0.10.1",
        sum: "h1:u8QKifNsrWVrlRFe6w2ofYTqFT9ma2DRHxfeB2m9xyU=",
        folder: "config/components/crd/bases",
        files: &["jobset.x-k8s.io_jobsets.yaml"],
    },
    Source {
        name: "lws",
        module: "sigs.k8s.io/lws@v0.7.0",
        sum: "h1:qWfzX8+UBak+Hq0+m/PuE3uO0mp/3dmm5q/h/7z31A8=",
        folder: "config/crd/bases",
        files: &["leaderworkerset.x-k8s.io_leaderworkersets.yaml"],
    },
    Source {
        name: "kueue",
        module: "sigs.k8s.io/kueue@v0.17.0",
        sum: "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I=",
        folder: "config/components/crd/bases",
        files: &["kueue.x-k8s.io_clusterqueues.yaml", "kueue.x-k8s.io_workloads.yaml"],
    },
    Source {
        name: "vertical-pod-autoscaler",
        module: "k8s.io/autoscaler/vertical-pod-autoscaler@v1.8.1",
        sum: "h1:Pe8bV1wozN4gOKO1rleiIY5alIyAXN+DnXDbXQcL4fI=",
        folder: "deploy",
        files: &["vpa-v1-crd-gen.yaml"],
    },
    // No objects: the names of annotations and labels.
    Source {
        name: "istio-api",
        module: "istio.io/api@v1.32.0",
        sum: "h1:37mJvg9I0biYZAEQF+MATs4FNeCpXEIVO3LFpVb6iNM=",
        folder: "",
        files: &["annotation/annotations.gen.go", "label/labels.gen.go"],
    },
    // Where the webhook is told of them, and when it is called.
    Source {
        name: "istio",
        module: "istio.io/istio@v0.0.0-20260827124520-eed52ebb66ad",
        sum: "h1:ui9TJjRMAV/hb5ehQaZDq7IUGxuQP6dra9lapT/VjHI=",
        folder: "manifests/charts/istio-control/istio-discovery",
        files: &["files/injection-template.yaml", "templates/mutatingwebhook.yaml", "values.yaml"],
    },
];

/// Puts those that are not there yet beside the programs, under `definitions`.
pub(crate) fn provide(place: &Place) -> Result<(), Failure> {
    let folder = Layout::of(place).bin().join("definitions");
    let (kept, key) = (folder.join(".key"), key());
    let is_there =
        SOURCES.iter().all(|source| source.files.iter().all(|file| copy_of(file, source, &folder).is_file()));
    if is_there && fs::read_to_string(&kept).is_ok_and(|old| old == key) {
        return Ok(());
    }
    // What another state of this file has left goes.
    let _ = fs::remove_dir_all(&folder);
    for source in &SOURCES {
        let from = downloaded(source)?;
        let to = folder.join(source.name);
        fs::create_dir_all(&to).map_err(|error| Failure::file("make", &to, &error))?;
        for file in source.files {
            copy(&from.join(file), &copy_of(file, source, &folder))?;
        }
    }
    fs::write(&kept, key).map_err(|error| Failure::file("write", &kept, &error))
}

/// The place of a file's copy.
fn copy_of(file: &str, source: &Source, folder: &Path) -> PathBuf {
    let name = file.rsplit('/').next().unwrap_or(file);
    folder.join(source.name).join(name)
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
    let all = SOURCES
        .iter()
        .flat_map(|source| source.files.iter().chain([&source.name, &source.module, &source.sum]));
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
