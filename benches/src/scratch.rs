//! A directory of our own that is gone at the end.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::undo::Undo;

/// A directory that only this user may enter. Removed with all that is in it when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _undo: Undo,
}

impl Scratch {
    /// Makes one in the system's place for such.
    ///
    /// # Errors
    /// It could not be made.
    pub fn make() -> Result<Self> {
        Self::below(&std::env::temp_dir())
    }

    /// Makes one on the tmpfs that Linux has for shared memory.
    ///
    /// # Errors
    /// There is none, or it could not be made.
    pub fn in_memory() -> Result<Self> {
        Self::below(Path::new("/dev/shm"))
    }

    fn below(directory: &Path) -> Result<Self> {
        // A short name: the path of a Unix socket has 107 bytes.
        let made = tempfile::Builder::new().prefix("tl-").tempdir_in(directory);
        let made = made.with_context(|| format!("cannot make a directory in {}", directory.display()))?;
        let path = made.keep();
        let gone = path.clone();
        let undo = Undo::with(move || drop(fs::remove_dir_all(gone)));
        Ok(Self { path, _undo: undo })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it, made now.
    ///
    /// # Errors
    /// It could not be made.
    pub fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_gone_with_everything_in_it() {
        let scratch = Scratch::make().unwrap();
        let inner = scratch.directory("inner").unwrap();
        fs::write(inner.join("file"), "x").unwrap();
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }
}
