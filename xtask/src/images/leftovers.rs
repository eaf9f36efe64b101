//! Leftovers of a run that was killed: half a root file system, and storage that the next run would take for its own.
//! Only names that we give, in our own folder. (Two runs at a time in one folder write under the same names, so they
//! disturb each other with or without this.)

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::failure::Failure;
use crate::images::list::IMAGES;

/// Folders of an image that are there only while it is made.
const WHILE_MADE: [&str; 2] = ["storage", "oci"];

/// Ends of files that are there only while a root file system is made.
const PARTS: [&str; 3] = [".tar.all", ".tar.part", ".part.tar"];

/// Removes it. Nothing where there is no folder yet.
pub(crate) fn clear(images: &Path) -> Result<(), Failure> {
    for name in half_made(&names(images)?) {
        Failure::unless_gone(fs::remove_file(images.join(&name)), &images.join(name))?;
    }
    for path in IMAGES.iter().flat_map(|image| WHILE_MADE.map(|part| images.join(image.name).join(part))) {
        Failure::unless_gone(fs::remove_dir_all(&path), &path)?;
    }
    Ok(())
}

fn names(folder: &Path) -> Result<BTreeSet<String>, Failure> {
    match fs::read_dir(folder) {
        Ok(entries) => {
            Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(Failure::file("read", folder, &error)),
    }
}

/// The files of root file systems that are not whole: their parts, and lists without their archive.
fn half_made(names: &BTreeSet<String>) -> Vec<String> {
    let is_half = |name: &&String| {
        let list_alone = |key: &str| !names.contains(&format!("{key}.tar"));
        name.starts_with("rootfs-")
            && (PARTS.iter().any(|end| name.ends_with(end))
                || name.strip_suffix(".packages").is_some_and(list_alone))
    };
    names.iter().filter(is_half).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_half_made_goes_and_what_is_whole_or_not_ours_stays() {
        let images = std::env::temp_dir().join(format!("xtask-leftovers-{}", std::process::id()));
        clear(&images).unwrap();
        let whole = ["rootfs-aa.tar", "rootfs-aa.packages", "sidecar.tar", "notes.part.tar"];
        let half = ["rootfs-bb.packages", "rootfs-bb.tar.part", "rootfs-cc.tar.all", "rootfs-dd.part.tar"];
        for folder in ["sidecar/storage/root", "sidecar/oci", "sidecar/context", "mine/storage"] {
            fs::create_dir_all(images.join(folder)).unwrap();
        }
        for file in whole.iter().chain(&half) {
            fs::write(images.join(file), file).unwrap();
        }
        clear(&images).unwrap();
        let left = names(&images).unwrap();
        let expected = whole.iter().chain(&["mine", "sidecar"]).map(ToString::to_string).collect();
        assert_eq!(left, expected);
        assert_eq!(names(&images.join("sidecar")).unwrap(), BTreeSet::from(["context".to_owned()]));
        assert!(images.join("mine/storage").is_dir());
        fs::remove_dir_all(&images).unwrap();
    }
}
