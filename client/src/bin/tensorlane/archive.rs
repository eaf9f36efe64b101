//! Sets in archives of tensordict: `set put saved.tdz` and `set get NAME --to saved.tdz`.

use std::fs::DirBuilder;
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{env, process};

use anyhow::{Context, Result, anyhow};
use tensorlane_client::set::directory::{Export, archive};
use tensorlane_client::{Client, Tensor};
use tensorlane_proto::set::Tree;

use crate::progress::{self, Progress};
use crate::signals::Cleaner;
use crate::sink::Sink;

/// Ending of the names of archives.
const ENDING: &str = "tdz";

/// Returns whether a path means an archive, by the end of its name. A directory may be called so.
pub(crate) fn is_meant(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == ENDING) && !path.is_dir()
}

/// A temporary directory with what is in an archive. It is gone with the cleaner, which must live until the command is done.
pub(crate) fn unpacked(client: &Client, path: &Path) -> Result<(PathBuf, Cleaner)> {
    let room = client.status()?.arena.unwrap_or_default().total;
    let cleaner = Cleaner::start().context("cannot wait for signals")?;
    let folder = cleaner
        .make_directory(temporary, PathBuf::as_path)
        .with_context(|| format!("cannot make a directory in {}", env::temp_dir().display()))?;
    progress::during("unpacking the archive", || archive::unpack(path, room, &folder))?;
    Ok((folder, cleaner))
}

/// Makes a directory that nobody else enters.
fn temporary() -> io::Result<PathBuf> {
    let mut number = 0_u32;
    loop {
        let folder = env::temp_dir().join(format!("tensorlane-{}-{number}", process::id()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            outcome => return outcome.map(|()| folder),
        }
    }
}

/// Writes a set into its archive, which appears under its name when it is whole.
pub(crate) fn write(
    tree: &Tree<Tensor>,
    sink: &mut Sink,
    to: &Path,
    progress: &mut Progress,
) -> Result<Export> {
    let packed = archive::pack(tree, BufWriter::new(sink.file()), |bytes, key| progress.advance(bytes, key));
    // Words, no cause: a reader who left is a failure here, other than one of what is printed.
    let export = packed.map_err(|error| anyhow!("cannot write {}: {error}", to.display()))?;
    sink.finish()?;
    Ok(export)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_means_an_archive_by_its_end_unless_it_is_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_meant(&folder.path().join("saved.tdz")));
        assert!(!is_meant(&folder.path().join("saved")) && !is_meant(Path::new("tdz")));
        std::fs::create_dir(folder.path().join("d.tdz")).unwrap();
        assert!(!is_meant(&folder.path().join("d.tdz")));
    }
}
