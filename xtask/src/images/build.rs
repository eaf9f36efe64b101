//! From a context to an OCI archive, by buildah, without a registry and without leaving anything in its usual places.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cluster::told;
use crate::failure::Failure;
use crate::hash::Hash;
use crate::images::list::Image;
use crate::images::stamp::Stamp;
use crate::images::{archive, context, name_of};
use crate::place::Place;

/// An image that lies ready.
#[derive(Debug)]
pub(crate) struct Built {
    /// The digest of its manifest, by which registries and nodes know it.
    pub(crate) digest: String,
    /// Bytes of the archive.
    pub(crate) bytes: u64,
    /// Set if it did not need to be made.
    pub(crate) kept: bool,
}

/// Makes the image, unless it was made from the same inputs already.
pub(crate) fn build(image: &Image, fresh: bool, place: &Place, stamp: &Stamp) -> Result<Built, Failure> {
    let directory = place.images().join(image.name);
    let context = lay_out(image, place, stamp)?;
    let containerfile = place.root().join(image.directory).join("Containerfile");
    let key = key(&context, &containerfile, stamp)?;
    let (kept, archive) = (directory.join("key"), archive(&place.images(), image.name));
    let digest_file = directory.join("digest");
    let is_kept = !fresh && archive.is_file() && fs::read_to_string(&kept).is_ok_and(|old| old == key);
    if !is_kept {
        // Gone first: a key without its archive would be believed.
        let _ = fs::remove_file(&kept);
        let digest = make(image, &directory, &containerfile, stamp)?;
        fs::write(&digest_file, digest).map_err(|error| Failure::file("write", &digest_file, &error))?;
        fs::write(&kept, key).map_err(|error| Failure::file("write", &kept, &error))?;
    }
    let digest =
        fs::read_to_string(&digest_file).map_err(|error| Failure::file("read", &digest_file, &error))?;
    let bytes = fs::metadata(&archive).map_err(|error| Failure::file("read", &archive, &error))?.len();
    Ok(Built { digest, bytes, kept: is_kept })
}

/// Makes the context of the image anew; gives its directory.
pub(crate) fn lay_out(image: &Image, place: &Place, stamp: &Stamp) -> Result<PathBuf, Failure> {
    let context = place.images().join(image.name).join("context");
    remove(&context)?;
    context::make(image, &context, place, stamp)?;
    Ok(context)
}

/// Gives the digest.
fn make(image: &Image, directory: &Path, containerfile: &Path, stamp: &Stamp) -> Result<String, Failure> {
    let (storage, layout) = (directory.join("storage"), directory.join("oci"));
    let result = build_with(&storage, &layout, image, directory, containerfile, stamp);
    for leftover in [&storage, &layout] {
        remove(leftover)?;
    }
    result
}

fn build_with(
    storage: &Path,
    layout: &Path,
    image: &Image,
    directory: &Path,
    containerfile: &Path,
    stamp: &Stamp,
) -> Result<String, Failure> {
    let shown = |path: &Path| path.display().to_string();
    let (root, run) = (shown(&storage.join("root")), shown(&storage.join("run")));
    let buildah = |words: &[&str]| {
        told("buildah", ["--root", &root, "--runroot", &run, "--storage-driver", "vfs"].iter().chain(words))
    };
    let (version, revision) = (format!("VERSION={}", stamp.version), format!("REVISION={}", stamp.revision));
    let (file, context, name) =
        (shown(containerfile), shown(&directory.join("context")), name_of(image.name));
    let arguments = ["--build-arg", &version, "--build-arg", &revision, "--timestamp", &stamp.epoch];
    let words =
        [&["bud", "--quiet", "--isolation", "chroot"], &arguments[..], &["-f", &file, "-t", &name, &context]];
    buildah(&words.concat())?;
    let pushed = buildah(&["push", "--quiet", &name, &format!("oci:{}:{name}", shown(layout))]);
    pushed?;
    let index = layout.join("index.json");
    let text = fs::read_to_string(&index).map_err(|error| Failure::file("read", &index, &error))?;
    let digest = digest_in(&text).ok_or_else(|| Failure::new(format!("no digest in {}", index.display())))?;
    pack(layout, &directory.with_extension("tar"), &stamp.epoch)?;
    Ok(digest)
}

/// Members sorted, nobody's, of one date.
fn pack(layout: &Path, archive: &Path, epoch: &str) -> Result<(), Failure> {
    let (from, to, date) =
        (layout.display().to_string(), archive.display().to_string(), format!("--mtime=@{epoch}"));
    let plain =
        ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=a+rX,u+w,go-w", "--format=gnu"];
    told("tar", plain.iter().chain(&[date.as_str(), "-C", &from, "-cf", &to, "."])).map(drop)
}

/// The digest of the one manifest that an index lists.
fn digest_in(index: &str) -> Option<String> {
    let (_, rest) = index.split_once("\"digest\":\"")?;
    rest.split_once('"').map(|(digest, _)| digest.to_owned()).filter(|digest| digest.starts_with("sha256:"))
}

/// Names everything that decides what the image is.
fn key(context: &Path, containerfile: &Path, stamp: &Stamp) -> Result<String, Failure> {
    let mut hash = Hash::new().with_file(containerfile)?;
    for word in [&stamp.version, &stamp.revision, &stamp.epoch] {
        hash = hash.with(word);
    }
    for path in files_below(context)? {
        let name = path.strip_prefix(context).unwrap_or(&path);
        hash = hash.with(name.as_os_str().as_encoded_bytes());
        if !path.is_symlink() {
            hash = hash.with_file(&path)?;
        }
    }
    Ok(hash.shown())
}

fn files_below(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(next) = open.pop() {
        let entries = fs::read_dir(&next).map_err(|error| Failure::file("read", &next, &error))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn remove(directory: &Path) -> Result<(), Failure> {
    Failure::unless_gone(fs::remove_dir_all(directory), directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_an_index_is_found() {
        let index = r#"{"schemaVersion":2,"manifests":[{"mediaType":"m","digest":"sha256:ab12","size":3}]}"#;
        assert_eq!(digest_in(index).as_deref(), Some("sha256:ab12"));
        assert_eq!(digest_in("{}"), None);
    }

    #[test]
    fn the_same_files_make_the_same_archive_whenever_they_were_written() {
        let root = std::env::temp_dir().join(format!("xtask-pack-{}", std::process::id()));
        let archives = ["a", "b"].map(|name| {
            let (layout, archive) = (root.join(name), root.join(name).with_extension("tar"));
            fs::create_dir_all(layout.join("blobs")).unwrap();
            for file in if name == "a" { ["x", "y"] } else { ["y", "x"] } {
                fs::write(layout.join("blobs").join(file), file).unwrap();
            }
            let earlier =
                std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(name.len() as u64);
            fs::File::open(layout.join("blobs/x")).unwrap().set_modified(earlier).unwrap();
            pack(&layout, &archive, "86400").unwrap();
            fs::read(&archive).unwrap()
        });
        fs::remove_dir_all(&root).unwrap();
        assert!(archives[0] == archives[1]);
    }
}
