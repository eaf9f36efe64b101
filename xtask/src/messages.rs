//! Messages of the sidecar's gRPC for Python, as Python's own generator writes them: made and committed, or compared.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::parts::{Counted, Step, step};
use crate::place::Place;
use crate::python;
use crate::run::Job;
use crate::style::Style;

/// Files of the protocol that calls of gRPC are made of.
const FILES: [&str; 5] = [
    "tensorlane/v1/tensor.proto",
    "tensorlane/v1/set.proto",
    "tensorlane/v1/channel.proto",
    "tensorlane/v1/pipe.proto",
    "tensorlane/v1/workload.proto",
];

/// The file that has the service.
const SERVICE: &str = "tensorlane/v1/workload.proto";

/// Writes the messages into the package.
pub(crate) fn written(place: &Place, style: Style) -> Result<Vec<Job>, Failure> {
    let (mut jobs, made) = generated(place, style)?;
    jobs.push(Job::new("cp", ["--recursive", "--no-target-directory"]).with([made, committed(place)]));
    Ok(jobs)
}

/// Compares the messages of the package with those that are written now.
pub(crate) fn compared(place: &Place, style: Style) -> Result<Vec<Step>, Failure> {
    let (jobs, made) = generated(place, style)?;
    let ours = ["-r", "--exclude=__init__.py", "--exclude=__pycache__"];
    let compare = Job::new("diff", ours).with([committed(place), made]);
    let mut steps: Vec<Step> = jobs.into_iter().map(|job| step(Counted::Preparation, job)).collect();
    steps.push(step(Counted::Check, compare));
    Ok(steps)
}

/// Jobs that make them, and the directory in which they are then.
fn generated(place: &Place, style: Style) -> Result<(Vec<Job>, PathBuf), Failure> {
    let python = python::builder(place, style)?;
    let to = place.python().join("messages");
    Failure::unless_gone(fs::remove_dir_all(&to), &to)?;
    fs::create_dir_all(&to).map_err(|error| Failure::file("make", &to, &error))?;
    Ok((jobs(&python, &to, place), to.join("tensorlane/v1")))
}

fn jobs(python: &Path, to: &Path, place: &Place) -> Vec<Job> {
    let protoc = |outputs: &[&str], files: &[&str]| {
        Job::new(python, ["-m", "grpc_tools.protoc"])
            .with([format!("--proto_path={}", place.root().join("proto/proto").display())])
            .with(outputs.iter().map(|output| format!("--{output}={}", to.display())))
            .with(files)
    };
    vec![protoc(&["python_out", "pyi_out"], &FILES), protoc(&["grpc_python_out"], &[SERVICE])]
}

fn committed(place: &Place) -> PathBuf {
    place.root().join("python/tensorlane/v1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_of_the_files_that_calls_of_grpc_are_made_of() {
        let place = Place::of_this_repository().unwrap();
        let shown: Vec<String> =
            jobs(Path::new("python"), Path::new("out"), &place).iter().map(Job::shown).collect();
        assert!(
            shown[0].ends_with(
                "set.proto tensorlane/v1/channel.proto tensorlane/v1/pipe.proto tensorlane/v1/workload.proto"
            ),
            "{shown:?}"
        );
        assert!(shown[1].contains("--grpc_python_out=out") && shown[1].ends_with(SERVICE), "{shown:?}");
        // A file that these import is one of them.
        for file in FILES {
            let text = fs::read_to_string(place.root().join("proto/proto").join(file)).unwrap();
            for import in text.lines().filter_map(|line| line.strip_prefix("import \"")) {
                assert!(FILES.contains(&import.trim_end_matches("\";")), "{file} imports {import}");
            }
        }
    }
}
