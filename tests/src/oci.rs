//! An image as it lies in its OCI archive, as a registry or a node would read it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// A single image, unpacked as far as its blobs.
#[derive(Debug)]
pub struct Archive {
    layout: TempDir,
    layers: Vec<PathBuf>,
    /// Configuration of the image.
    pub config: Value,
    /// Members that its layers bring, in order.
    pub members: Vec<Member>,
}

/// A file, folder or link of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// As `ls` writes it: `-rwxr-xr-x`.
    pub mode: String,
    /// The number of its owner.
    pub owner: u32,
    /// Without a leading slash; a folder ends with one.
    pub path: String,
}

// === impl Archive ===

impl Archive {
    /// Opens the archive of one image.
    ///
    /// # Panics
    /// Where it is none.
    pub fn open(archive: &Path) -> Self {
        let layout = tempfile::tempdir().expect("a folder");
        tar(&["-xf", text(archive), "-C", text(layout.path())]);
        let json = |path: PathBuf| -> Value {
            let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            serde_json::from_slice(&bytes).expect("JSON")
        };
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
            layout.path().join("blobs/sha256").join(digest.expect("a digest"))
        };
        let index = json(layout.path().join("index.json"));
        let [one] = &index["manifests"].as_array().expect("a list")[..] else { panic!("not one: {index}") };
        let manifest = json(blob(one));
        let layers: Vec<PathBuf> = manifest["layers"].as_array().expect("a list").iter().map(blob).collect();
        let config = json(blob(&manifest["config"]));
        let listed = layers.iter().map(|layer| tar(&["--numeric-owner", "-tvf", text(layer)]));
        let members = listed
            .flat_map(|said| String::from_utf8_lossy(&said).lines().map(Member::of).collect::<Vec<_>>());
        let members = members.collect();
        Self { layout, layers, config, members }
    }

    /// The bytes of a file, from the last layer that has it.
    ///
    /// # Panics
    /// Where it is not there.
    pub fn file(&self, path: &str) -> Vec<u8> {
        let to = self.layout.path().join("files");
        std::fs::create_dir_all(&to).expect("a folder");
        let has = |layer: &&PathBuf| {
            let listed = tar(&["-tf", text(layer)]);
            String::from_utf8_lossy(&listed).lines().any(|line| line == path)
        };
        let layer = self.layers.iter().rev().find(has).unwrap_or_else(|| panic!("there is no {path}"));
        tar(&["-xf", text(layer), "-C", text(&to), path]);
        std::fs::read(to.join(path)).expect("it was unpacked")
    }
}

// === impl Member ===

impl Member {
    /// A line such as `-rw-r--r-- 0/0    100 2026-01-31 12:00 etc/hosts`.
    fn of(line: &str) -> Self {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [mode, owner, _, _, _, path, ..] = words[..] else { panic!("no member: {line}") };
        let owner = owner.split('/').next().and_then(|id| id.parse().ok()).expect("the number of an owner");
        Self { mode: mode.to_owned(), owner, path: path.to_owned() }
    }

    /// Returns whether its own mode says nothing.
    pub fn is_link(&self) -> bool {
        self.mode.starts_with('l')
    }

    /// Returns whether whoever runs it becomes its owner or one of its group.
    pub fn raises_rights(&self) -> bool {
        self.mode.contains(['s', 'S'])
    }

    /// Returns whether everybody may write it.
    pub fn is_writable_by_all(&self) -> bool {
        self.mode.as_bytes().get(8) == Some(&b'w')
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

fn tar(words: &[&str]) -> Vec<u8> {
    let output = Command::new("tar").args(words).output().expect("tar is there");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tar {}: {told}", words.join(" "));
    output.stdout
}
