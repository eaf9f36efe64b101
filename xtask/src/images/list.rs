//! List of the images and of what is in each. A new image is a row here and a Containerfile.

use std::path::Path;

/// Parts that an image is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    /// The last part of its name.
    pub(crate) name: &'static str,
    /// The directory of its Containerfile.
    pub(crate) directory: &'static str,
    /// Packages of Debian, with what these need.
    pub(crate) packages: &'static [&'static str],
    /// Programs of ours in the image.
    pub(crate) programs: &'static [Program],
    /// Programs of the test cluster.
    pub(crate) components: &'static [&'static str],
    /// Names under which busybox is called.
    pub(crate) applets: &'static [&'static str],
    /// Set if the Python package is in it, with what it needs.
    pub(crate) python: bool,
}

/// Program of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Program {
    /// The program, named in its package's manifest.
    pub(crate) name: &'static str,
    /// Package of Cargo that builds the program.
    pub(crate) package: &'static str,
    /// Directory of the package. The image is not made while it is not there.
    pub(crate) directory: &'static str,
}

const SIDECAR: Program =
    Program { name: "tensorlane-sidecar", package: "tensorlane-sidecar", directory: "sidecar" };
const COMMAND: Program = Program { name: "tensorlane", package: "tensorlane-client", directory: "client" };
const OPERATOR: Program =
    Program { name: "tensorlane-operator", package: "tensorlane-operator", directory: "operator" };
const PLUGIN: Program =
    Program { name: "kubectl-tensorlane", package: "tensorlane-operator", directory: "operator" };

const NODE: Program =
    Program { name: "tensorlane-node", package: "tensorlane-operator", directory: "operator" };

/// Libraries that Rust programs are linked to. No list of public certificate authorities: nothing of ours trusts any.
const LIBRARIES: &[&str] = &["libc6", "libgcc-s1"];

/// Enough of a shell to put, get, compare and wait.
const APPLETS: &[&str] = &[
    "sh",
    "awk",
    "base64",
    "basename",
    "cat",
    "chmod",
    "cmp",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "dirname",
    "echo",
    "env",
    "expr",
    "false",
    "find",
    "grep",
    "head",
    "hostname",
    "httpd",
    "id",
    "kill",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mktemp",
    "mount",
    "mv",
    "nc",
    "nslookup",
    "od",
    "ping",
    "printf",
    "ps",
    "readlink",
    "rm",
    "sed",
    "seq",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "sync",
    "tail",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "uname",
    "wc",
    "wget",
    "xargs",
];

/// Every image.
pub(crate) const IMAGES: &[Image] = &[
    Image {
        name: "sidecar",
        directory: "images/sidecar",
        packages: LIBRARIES,
        programs: &[SIDECAR, COMMAND],
        components: &[],
        applets: &[],
        python: false,
    },
    Image {
        name: "workload",
        directory: "images/workload",
        packages: &["libc6", "libgcc-s1", "busybox"],
        programs: &[COMMAND],
        components: &[],
        applets: APPLETS,
        python: false,
    },
    Image {
        name: "python",
        directory: "images/python",
        packages: &["libc6", "libgcc-s1", "libstdc++6", "busybox", "python3-minimal", "libpython3.11-stdlib"],
        programs: &[COMMAND],
        components: &[],
        applets: APPLETS,
        python: true,
    },
    Image {
        name: "operator",
        directory: "images/operator",
        packages: LIBRARIES,
        programs: &[OPERATOR, PLUGIN, NODE],
        components: &[],
        applets: &[],
        python: false,
    },
    Image {
        name: "coredns",
        directory: "tests/cluster/coredns",
        packages: &[],
        programs: &[],
        components: &["coredns"],
        applets: &[],
        python: false,
    },
    Image {
        name: "pause",
        directory: "tests/cluster/pause",
        packages: &[],
        programs: &[],
        components: &["pause"],
        applets: &[],
        python: false,
    },
];

impl Image {
    /// Returns whether the sources of everything in it are in this checkout.
    pub(crate) fn is_possible(&self, root: &Path) -> bool {
        self.programs.iter().all(|program| root.join(program.directory).join("Cargo.toml").is_file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn every_image_has_a_containerfile_that_starts_from_nothing_and_is_not_root() {
        let place = Place::of_this_repository().unwrap();
        for image in IMAGES {
            let path = place.root().join(image.directory).join("Containerfile");
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(
                text.contains("\nFROM scratch\n") && text.contains("\nUSER 64646:64646\n"),
                "{}",
                image.name
            );
            assert!(image.is_possible(place.root()), "{}", image.name);
        }
    }
}
