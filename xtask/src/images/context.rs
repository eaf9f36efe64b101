//! Context from which an image is built: the Containerfile, the root file system, our programs, and the list of what is
//! in them. The same inputs give the same bytes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::cluster::{Layout, told};
use crate::failure::Failure;
use crate::hash::Hash;
use crate::images::list::Image;
use crate::images::sbom::{self, Package};
use crate::images::stamp::Stamp;
use crate::parts::RELEASE;
use crate::place::Place;
use crate::python;

/// The release of Debian that the libraries come from. Programs that were built on a newer system may need newer ones.
const SUITE: &str = "bookworm";

/// Fills an empty directory with the image's Containerfile and what that adds and copies.
pub(crate) fn make(image: &Image, context: &Path, place: &Place, stamp: &Stamp) -> Result<(), Failure> {
    let bin = context.join("bin");
    fs::create_dir_all(&bin).map_err(|error| Failure::file("make", &bin, &error))?;
    let mut packages = BTreeSet::new();
    if !image.packages.is_empty() {
        packages.extend(root_file_system(image.packages, context, place)?);
    }
    for program in image.programs {
        told(
            "strip",
            [
                "--strip-all".as_ref(),
                "-o".as_ref(),
                bin.join(program.name).as_os_str(),
                place.programs(RELEASE).join(program.name).as_os_str(),
            ],
        )?;
        packages.extend(sbom::crates(&tree(program.package, place)?));
    }
    for component in image.components {
        let (from, to) = (Layout::of(place).bin().join(component), bin.join(component));
        fs::copy(&from, &to).map_err(|error| Failure::file("copy", &from, &error))?;
        packages.extend(sbom::modules(&told("go", ["version".as_ref(), "-m".as_ref(), from.as_os_str()])?));
    }
    for applet in image.applets {
        let link = bin.join(applet);
        symlink("/bin/busybox", &link).map_err(|error| Failure::file("make", &link, &error))?;
    }
    if image.python {
        packages.extend(python_packages(&context.join("packages"), place)?);
    }
    let path = context.join("sbom.spdx.json");
    let text = sbom::spdx(image.name, &stamp.version, &stamp.created, &packages);
    fs::write(&path, text).map_err(|error| Failure::file("write", &path, &error))?;
    containerfile(image, context, place, stamp)
}

/// Puts the Containerfile beside what it needs, for builders that are told of nothing but this directory.
fn containerfile(image: &Image, context: &Path, place: &Place, stamp: &Stamp) -> Result<(), Failure> {
    let from = place.root().join(image.directory).join("Containerfile");
    let text = fs::read_to_string(&from).map_err(|error| Failure::file("read", &from, &error))?;
    let to = context.join("Containerfile");
    fs::write(&to, stamped(&text, stamp)).map_err(|error| Failure::file("write", &to, &error))
}

/// With version and revision as defaults of its arguments, so that nobody has to say them.
fn stamped(containerfile: &str, stamp: &Stamp) -> String {
    let arguments = [("VERSION", &stamp.version), ("REVISION", &stamp.revision)];
    arguments.iter().fold(containerfile.to_owned(), |text, (name, value)| {
        text.replace(&format!("\nARG {name}\n"), &format!("\nARG {name}={value}\n"))
    })
}

/// Copies the Python packages; gives what is in them.
fn python_packages(to: &Path, place: &Place) -> Result<BTreeSet<Package>, Failure> {
    let from = place.image_packages();
    told("cp", ["-r".as_ref(), from.as_os_str(), to.as_os_str()])?;
    let entries = fs::read_dir(&from).map_err(|error| Failure::file("read", &from, &error))?;
    let names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let mut packages = sbom::wheels(names.iter().map(String::as_str));
    for package in python::PACKAGES {
        packages.extend(sbom::crates(&tree(package, place)?));
    }
    Ok(packages)
}

/// The crates that are linked into the programs of a package.
fn tree(package: &str, place: &Place) -> Result<String, Failure> {
    let manifest = place.root().join("Cargo.toml").display().to_string();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = ["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", sbom::CARGO_FORMAT];
    told(cargo, words.iter().chain(&["--package", package, "--manifest-path", &manifest]))
}

/// Puts `rootfs.tar` into the context; gives what is in it. It is made once for each list of packages: a newer version
/// of one is taken when `target/images` is removed.
fn root_file_system(packages: &[&str], context: &Path, place: &Place) -> Result<BTreeSet<Package>, Failure> {
    let script = place.root().join("images/rootfs.sh");
    let key = packages.iter().fold(Hash::new().with(SUITE).with_file(&script)?, Hash::with).shown();
    let kept = |end: &str| -> PathBuf { place.images().join(format!("rootfs-{key}.{end}")) };
    if !kept("tar").is_file() {
        let [tar, list] = ["tar", "packages"].map(|end| kept(end).display().to_string());
        told("sh", [&script.display().to_string(), SUITE, &packages.join(","), &tar, &list])
            .map_err(|failure| failure.remedy("a mirror of Debian must be in reach of apt"))?;
    }
    let to = context.join("rootfs.tar");
    fs::copy(kept("tar"), &to).map_err(|error| Failure::file("write", &to, &error))?;
    let list = fs::read_to_string(kept("packages"))
        .map_err(|error| Failure::file("read", &kept("packages"), &error))?;
    Ok(sbom::debian(&list))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containerfile_of_a_context_knows_version_and_revision() {
        let stamp = Stamp {
            version: "1.2.3".to_owned(),
            revision: "abc-dirty".to_owned(),
            epoch: "0".to_owned(),
            created: "1970-01-01T00:00:00Z".to_owned(),
        };
        let text = stamped("FROM scratch\nARG VERSION\nARG REVISION\nLABEL version=\"$VERSION\"\n", &stamp);
        assert_eq!(
            text,
            "FROM scratch\nARG VERSION=1.2.3\nARG REVISION=abc-dirty\nLABEL version=\"$VERSION\"\n"
        );
        assert_eq!(stamped("FROM scratch\nUSER 1:1\n", &stamp), "FROM scratch\nUSER 1:1\n");
    }
}
