//! The file that is put. Nothing keeps others from writing to it meanwhile, so it is looked at again after each read.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use tensorlane_client::Reservation;
use tensorlane_client::stamp::Stamp;

/// An open file, as it was when it was opened.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    file: File,
    path: &'a Path,
    stamp: Stamp,
}

impl<'a> Source<'a> {
    /// Opens a file that is to be put. Nothing but a plain file can be one: of a pipe the end would be waited for.
    pub(crate) fn open(path: &'a Path) -> Result<Self> {
        let cannot = || format!("cannot open {}", path.display());
        let kind = fs::metadata(path).with_context(cannot)?;
        ensure!(
            !kind.is_dir(),
            "{} is a directory; put takes one safetensors file: name one that is in it",
            path.display()
        );
        ensure!(
            kind.is_file(),
            "{} is no plain file; write what it brings into one, and put that",
            path.display()
        );
        let file = File::open(path).with_context(cannot)?;
        let stamp = Stamp::first(&file).with_context(cannot)?;
        Ok(Self { file, path, stamp })
    }

    /// Path at which the file was found.
    pub(crate) fn path(&self) -> &Path {
        self.path
    }

    /// Length of the file when it was opened, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.stamp.bytes()
    }

    /// Reads bytes from an offset.
    pub(crate) fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(into, offset).map_err(|error| self.failed(error))
    }

    /// Reads `len` bytes from an offset straight to their place in a tensor.
    pub(crate) fn read_to(&self, into: &mut Reservation, at: u64, len: u64, offset: u64) -> Result<()> {
        into.read_from(at, len, &self.file, offset).map_err(|error| self.failed(error))
    }

    /// Fails if what was read so far may be of two states of the file.
    pub(crate) fn check(&self) -> Result<()> {
        // By its path: the file that is open may have another in its place by now.
        let now = fs::metadata(self.path).ok();
        match self.stamp.until(now.as_ref().map(Stamp::from)) {
            Some(what) => bail!(self.changed(what)),
            None => Ok(()),
        }
    }

    fn failed(&self, error: io::Error) -> anyhow::Error {
        match error.kind() {
            ErrorKind::UnexpectedEof => self.changed("became shorter"),
            _ => anyhow!(error).context(format!("cannot read {}", self.path.display())),
        }
    }

    fn changed(&self, what: &str) -> anyhow::Error {
        anyhow!(
            "{} {what} while it was put; put it again when whoever writes it is done",
            self.path.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_removed_or_cut_is_told_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, b"12345678").unwrap();
        let source = Source::open(&path).unwrap();
        source.check().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(4).unwrap();
        let told = source.read(&mut [0; 8], 0).unwrap_err().to_string();
        assert!(told.contains("became shorter while it was put; put it again"), "{told}");
        fs::remove_file(&path).unwrap();
        let told = source.check().unwrap_err().to_string();
        assert!(told.contains("was removed while it was put; put it again"), "{told}");
    }
}
