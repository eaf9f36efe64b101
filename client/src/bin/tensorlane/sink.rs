//! The safetensors file that tensors are got into. It appears under its name only when it is whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tensorlane_client::Target;
use tensorlane_proto::{Layout, Metadata};

use crate::file::Header;

/// A tensor that is to be got.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Its name in the file.
    pub(crate) name: String,
    pub(crate) target: Target,
    /// Of the selected part, packed.
    pub(crate) layout: Layout,
    pub(crate) metadata: Metadata,
}

/// A file in the making. Dropped before it is finished, it is removed.
#[derive(Debug)]
pub(crate) struct Sink {
    file: File,
    /// Where it is written.
    part: PathBuf,
    /// Where it will be.
    path: PathBuf,
    offsets: Vec<u64>,
    finished: bool,
}

impl Sink {
    /// Makes the file and writes its header.
    pub(crate) fn create(path: &Path, wanted: &[Wanted]) -> Result<Self> {
        let tensors: Vec<(String, Layout)> =
            wanted.iter().map(|one| (one.name.clone(), one.layout.clone())).collect();
        let (header, offsets) = Header::write(&tensors, &common_metadata(wanted))?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let file = File::create_new(&part).with_context(|| format!("cannot create {}", part.display()))?;
        let sink = Self { file, part, path: path.to_owned(), offsets, finished: false };
        sink.file.write_all_at(&header, 0)?;
        let end = header.len() as u64 + wanted.iter().map(|one| one.layout.bytes()).sum::<u64>();
        sink.file.set_len(end)?;
        Ok(sink)
    }

    /// Writes bytes of one tensor, at an offset from its beginning.
    pub(crate) fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.offsets[tensor] + offset;
        self.file.write_all_at(bytes, at).with_context(|| format!("cannot write {}", self.part.display()))
    }

    /// Gives the file its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        fs::rename(&self.part, &self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if !self.finished {
            // It may stay behind if even that fails; its name says what it is.
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// What all tensors say alike is the file's metadata, as it was when they came from one file.
fn common_metadata(wanted: &[Wanted]) -> BTreeMap<String, String> {
    let Some((first, others)) = wanted.split_first() else { return BTreeMap::new() };
    first
        .metadata
        .iter()
        .filter(|(key, value)| others.iter().all(|other| other.metadata.value(key) == Some(value)))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::{DType, Shape};

    use super::*;

    fn wanted(name: &str, bytes: u64, metadata: &[(&str, &str)]) -> Wanted {
        let layout = Layout::contiguous(DType::U8, Shape::new(&[bytes]).unwrap()).unwrap();
        let metadata = Metadata::new(metadata.iter().copied()).unwrap();
        Wanted { name: name.into(), target: Target::Id(1), layout, metadata }
    }

    #[test]
    fn a_file_appears_when_it_is_whole_and_holds_every_tensor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.safetensors");
        let both = [
            wanted("x", 3, &[("format", "pt"), ("n", "1")]),
            wanted("y", 2, &[("format", "pt"), ("n", "2")]),
        ];
        let sink = Sink::create(&path, &both).unwrap();
        sink.write(1, 0, b"yy").unwrap();
        sink.write(0, 1, b"xx").unwrap();
        assert!(!path.exists());
        sink.finish().unwrap();
        let file = File::open(&path).unwrap();
        let header = Header::read(&file, &path).unwrap();
        assert_eq!(header.metadata, BTreeMap::from([("format".to_owned(), "pt".to_owned())]));
        let mut bytes = [9; 5];
        file.read_exact_at(&mut bytes, header.entries[0].offset).unwrap();
        assert_eq!(&bytes, b"\0xxyy");
    }

    #[test]
    fn a_file_that_was_not_finished_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        drop(Sink::create(&directory.path().join("a.safetensors"), &[wanted("x", 3, &[])]).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
