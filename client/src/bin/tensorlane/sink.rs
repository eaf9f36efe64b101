//! The safetensors file that tensors are got into.
//!
//! A plain file appears under its name only when it is whole, by a rename: whoever has mapped the one before keeps it.
//! Until then it has no name at all if the file system can do that, so that nothing stays behind even after SIGKILL;
//! else it is called `.PID.part`. It is synced before it has its name, so that what the storage refuses late is an
//! error, too. Nobody can read the new file who could not read the one before. Links are followed. Devices and pipes
//! are written into, and so is whatever standard output is: whoever opened that waits for its bytes there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};
use tensorlane_client::set::directory::{parent, sync_parent};
use tensorlane_client::{Target, View, rights};
use tensorlane_memory::rename;
use tensorlane_proto::{Layout, Metadata};

use crate::file::{self, Header};
use crate::kept::{self, LeftOut};
use crate::signals::Cleaner;

/// Most links that are followed, as by the kernel.
const LINKS_MAX: usize = 40;

/// A tensor that is to be got.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Name in the file.
    pub(crate) name: String,
    pub(crate) target: Target,
    /// Ticket that is redeemed when all else is known to be right; the target is what it leases then.
    pub(crate) ticket: Option<String>,
    /// Of the selected part, packed.
    pub(crate) layout: Layout,
    pub(crate) metadata: Metadata,
}

/// Header that is to be written, and the metadata that it lacks.
#[derive(Debug)]
pub(crate) struct Plan {
    header: Vec<u8>,
    pub(crate) left_out: Vec<LeftOut>,
}

impl Plan {
    /// Puts the tensors in the order of the file.
    pub(crate) fn new(wanted: &mut [Wanted]) -> Result<Self> {
        wanted.sort_by(|one, other| {
            file::order(&one.name, &one.layout).cmp(&file::order(&other.name, &other.layout))
        });
        let metadata: Vec<&Metadata> = wanted.iter().map(|one| &one.metadata).collect();
        let (metadata, left_out) = kept::of_tensors(&metadata);
        let tensors: Vec<(&str, &Layout)> =
            wanted.iter().map(|one| (one.name.as_str(), &one.layout)).collect();
        Ok(Self { header: Header::write(&tensors, &metadata)?, left_out })
    }
}

/// A file in the making. Dropped before it is finished, it is removed. It must live until the command is done.
#[derive(Debug)]
pub(crate) struct Sink {
    file: File,
    /// As the user calls it.
    path: PathBuf,
    /// None if it is written into what was there.
    making: Option<Making>,
    is_stdout: bool,
}

/// A file that does not have its name yet.
#[derive(Debug)]
struct Making {
    /// Path that the file will have.
    path: PathBuf,
    part: PathBuf,
    has_name: bool,
    /// A file that somebody else made under its name meanwhile is kept, and is an error.
    keeps: bool,
    cleaner: Cleaner,
}

impl Sink {
    /// Opens the file. Nothing is written yet, and a path that cannot be that of a file is refused.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        let there = match fs::metadata(path) {
            Ok(there) if there.is_dir() => bail!("{} is a directory; name a file in it", path.display()),
            Ok(there) => Some(there),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(cannot),
        };
        let is_stdout = there.as_ref().is_some_and(is_stdout);
        let (file, making) = if is_stdout {
            (stdout().with_context(cannot)?, None)
        } else if there.as_ref().is_none_or(fs::Metadata::is_file) {
            let place = followed(path).with_context(cannot)?;
            check_place(&place).with_context(cannot)?;
            let (file, making) = Making::start(&place, there.is_some())?;
            (file, Some(making))
        } else {
            // A pipe is waited for until somebody reads.
            (OpenOptions::new().write(true).open(path).with_context(cannot)?, None)
        };
        Ok(Self { file, path: path.to_owned(), making, is_stdout })
    }

    /// From now on a file that somebody else makes under the name is not replaced: this one fails.
    pub(crate) fn keep_others(&mut self) {
        if let Some(making) = &mut self.making {
            making.keeps = true;
        }
    }

    /// Writes the header.
    pub(crate) fn begin(&mut self, plan: &Plan) -> Result<()> {
        self.write(&plan.header)
    }

    /// Writes what comes next: the tensors in their order.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.failed(&error))
    }

    /// Writes what comes next of a tensor, straight from where it lies.
    pub(crate) fn write_from(&mut self, view: &View, offset: u64, len: u64) -> Result<()> {
        view.write_to(offset, len, &self.file).map_err(|error| self.failed(&error))
    }

    /// The file, for whoever writes all of it.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    fn failed(&self, error: &io::Error) -> anyhow::Error {
        let path = self.path.display();
        // Words, no cause: a reader who left is a failure here, other than one of what is printed.
        match error.kind() {
            ErrorKind::BrokenPipe => anyhow!("cannot write {path}: whoever read from it has gone"),
            _ => anyhow!("cannot write {path}: {error}"),
        }
    }

    /// Has the storage take all of the file, and gives it its name.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let finished = match &mut self.making {
            Some(making) => making.finish(&self.file),
            None => synced(&self.file),
        };
        finished.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Returns whether results that are printed would get into the file, too.
    pub(crate) fn is_stdout(&self) -> bool {
        self.is_stdout
    }
}

impl Making {
    /// A new file beside the one that it will be. One that takes the place of another has its rights from the
    /// beginning.
    fn start(path: &Path, replaces: bool) -> Result<(File, Self)> {
        let part = rename::beside(path, "", &format!(".{}.part", std::process::id()));
        let cleaner = Cleaner::start().context("cannot wait for signals")?;
        let mode = if replaces { 0o600 } else { 0o666 };
        let (file, has_name) = match nameless(path, mode) {
            Some(file) => (file, false),
            None => {
                let create = || OpenOptions::new().write(true).create_new(true).mode(mode).open(&part);
                let created = cleaner.make(&part, create);
                (created.with_context(|| format!("cannot create {}", part.display()))?, true)
            }
        };
        if replaces {
            rights::take(&file, path)
                .with_context(|| format!("cannot keep the rights of {}", path.display()))?;
        }
        Ok((file, Self { path: path.to_owned(), part, has_name, keeps: false, cleaner }))
    }

    fn finish(&mut self, file: &File) -> io::Result<()> {
        // A full quota, a lost disk or server may be told no earlier than here.
        file.sync_all()?;
        self.name(file)?;
        sync_parent(&self.path)
    }

    fn name(&mut self, file: &File) -> io::Result<()> {
        if !self.has_name {
            let from = handle(file);
            let link = |to: &Path| {
                rustix::fs::linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from)
            };
            match link(&self.path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && !self.keeps => {}
                done => return done,
            }
            // No call both gives a name and replaces: a second one is there for a moment.
            self.cleaner.make(&self.part, || link(&self.part))?;
        }
        self.cleaner.settle(|| match self.keeps {
            true => rename::file(CWD, &self.part, &self.path),
            false => fs::rename(&self.part, &self.path),
        })
    }
}

/// A file without a name in the directory of this path, if the file system has such and it can get a name later.
fn nameless(path: &Path, mode: u32) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(parent(path), flags, Mode::from_raw_mode(mode)).ok()?);
    handle(&file).exists().then_some(file)
}

/// Syncs what was written into; pipes and most devices have nothing to sync.
fn synced(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

/// The path by which the kernel finds an open file.
fn handle(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Follows links to the path that they lead to, also if nothing is there yet.
fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&at) {
            Ok(target) => at = at.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(at),
        }
    }
    Err(io::Error::other("too many links lead to one another"))
}

/// Refuses what no new file can be called, and what none can take the place of.
fn check_place(path: &Path) -> Result<()> {
    let is_directory = [&b"/"[..], b"/."].iter().any(|end| path.as_os_str().as_bytes().ends_with(end));
    if is_directory || path.file_name().is_none() {
        bail!("{} is no name of a file; name a file in a directory that is there", path.display());
    }
    if is_mount_point(path) {
        bail!("{} is a mount point, which no file can take the place of; name another file", path.display());
    }
    Ok(())
}

/// Returns whether something is mounted at a path, such as a file of a volume. Kernels before 5.8 do not say.
fn is_mount_point(path: &Path) -> bool {
    let about = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    about.is_ok_and(|about| about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Standard output as a file. Its path would be of no use: a socket cannot be opened, and a file may have lost its name.
fn stdout() -> io::Result<File> {
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}

fn is_stdout(there: &fs::Metadata) -> bool {
    let stdout = rustix::fs::fstat(io::stdout());
    stdout.is_ok_and(|stdout| (stdout.st_dev, stdout.st_ino) == (there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tensorlane_proto::{DType, Shape};

    use super::*;
    use crate::source::Source;

    fn wanted(name: &str, dtype: DType, size: u64) -> Wanted {
        let layout = Layout::contiguous(dtype, Shape::new(&[size]).unwrap()).unwrap();
        Wanted {
            name: name.into(),
            target: Target::Id(1),
            ticket: None,
            layout,
            metadata: Metadata::default(),
        }
    }

    /// A directory, the path of a file in it, and what to write there.
    fn plan() -> (tempfile::TempDir, PathBuf, Plan) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.safetensors");
        (directory, path, Plan::new(&mut [wanted("x", DType::U8, 3)]).unwrap())
    }

    fn begun(path: &Path, plan: &Plan) -> Sink {
        let mut sink = Sink::create(path).unwrap();
        sink.begin(plan).unwrap();
        sink
    }

    fn names(directory: &tempfile::TempDir) -> Vec<String> {
        let entries = fs::read_dir(directory.path()).unwrap();
        let mut names: Vec<_> = entries.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_that_came_meanwhile_is_kept_where_that_is_asked() {
        let (directory, path, plan) = plan();
        for keeps in [true, false] {
            fs::write(&path, "theirs").unwrap();
            let mut sink = begun(&directory.path().join("b.safetensors"), &plan);
            sink.making.as_mut().unwrap().path = path.clone();
            if keeps {
                sink.keep_others();
            }
            sink.write(b"xxx").unwrap();
            assert_eq!(sink.finish().is_err(), keeps);
            assert_eq!(fs::read(&path).unwrap() == b"theirs", keeps);
        }
        drop(plan);
        assert_eq!(names(&directory), ["a.safetensors"]);
    }

    #[test]
    fn a_file_appears_when_it_is_whole_and_holds_every_tensor_in_order() {
        let (directory, path, _) = plan();
        let mut both = [wanted("x", DType::U8, 3), wanted("y", DType::U32, 1), wanted("b", DType::U8, 1)];
        let plan = Plan::new(&mut both).unwrap();
        assert_eq!(both.each_ref().map(|one| one.name.as_str()), ["y", "b", "x"]);
        let mut sink = begun(&path, &plan);
        sink.write(b"yyyyb").unwrap();
        assert!(!path.exists());
        sink.write(b"xxx").unwrap();
        sink.finish().unwrap();
        assert_eq!(names(&directory), ["a.safetensors"]);
        let header = Header::read(&Source::open(&path).unwrap()).unwrap();
        let offsets: Vec<u64> = header.entries.iter().map(|entry| entry.offset).collect();
        let start = offsets[0];
        assert_eq!((start % 8, &offsets[1..]), (0, &[start + 4, start + 5][..]));
        assert!(fs::read(&path).unwrap().ends_with(b"yyyybxxx"));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_by_a_link_too() {
        let (directory, path, plan) = plan();
        symlink("a.safetensors", directory.path().join("link")).unwrap();
        symlink("link", directory.path().join("other")).unwrap();
        // First the link leads nowhere.
        for _ in 0..2 {
            let before = fs::metadata(&path).ok().map(|before| before.ino());
            let mut sink = begun(&directory.path().join("other"), &plan);
            sink.write(b"xxx").unwrap();
            sink.finish().unwrap();
            drop(sink);
            assert_eq!(names(&directory), ["a.safetensors", "link", "other"]);
            let after = fs::symlink_metadata(&path).unwrap();
            assert!(after.is_file() && Some(after.ino()) != before);
        }
        symlink("loop", directory.path().join("loop")).unwrap();
        let told = Sink::create(&directory.path().join("loop")).unwrap_err().to_string();
        assert!(told.starts_with("cannot write"), "{told}");
    }

    #[test]
    fn a_path_that_cannot_be_a_file_is_refused_at_once() {
        let (directory, path, _plan) = plan();
        symlink("nowhere/", &path).unwrap();
        let below = |end: &str| directory.path().join("absent").join(end);
        for path in [path.clone(), directory.path().join("absent/"), below("."), below("..")] {
            let told = format!("{:#}", Sink::create(&path).unwrap_err());
            assert!(told.starts_with("cannot write"), "{told}");
        }
        assert_eq!(names(&directory), ["a.safetensors"]);
        assert!(is_mount_point(Path::new("/proc")) && !is_mount_point(&path));
    }

    #[test]
    fn a_file_whose_name_is_as_long_as_can_be_is_replaced() {
        let (directory, _, plan) = plan();
        let path = directory.path().join("x".repeat(255));
        for _ in 0..2 {
            let mut sink = begun(&path, &plan);
            sink.write(b"xxx").unwrap();
            sink.finish().unwrap();
        }
        assert_eq!(names(&directory), ["x".repeat(255)]);
    }

    #[test]
    fn a_file_that_was_not_finished_leaves_nothing() {
        let (directory, path, plan) = plan();
        drop(begun(&path, &plan));
        assert_eq!(names(&directory), [""; 0]);
    }

    #[test]
    fn a_file_that_had_to_have_a_name_at_once_is_renamed_or_removed() {
        let (directory, path, plan) = plan();
        for finished in [false, true] {
            let mut sink = begun(&path, &plan);
            let making = sink.making.as_mut().unwrap();
            sink.file = making.cleaner.make(&making.part, || File::create_new(&making.part)).unwrap();
            making.has_name = true;
            assert!(names(&directory)[0].ends_with(".part"));
            if finished {
                sink.finish().unwrap();
            }
            drop(sink);
            assert_eq!(names(&directory).len(), usize::from(finished));
        }
    }

    #[test]
    fn a_file_that_the_storage_refuses_at_last_gets_no_name() {
        let (directory, path, plan) = plan();
        let mut sink = begun(&path, &plan);
        sink.write(b"xxx").unwrap();
        let making = sink.making.as_mut().unwrap();
        making.cleaner.make(&making.part, || File::create_new(&making.part)).unwrap();
        making.has_name = true;
        // The kernel refuses to sync a pipe.
        let (_reader, writer) = io::pipe().unwrap();
        sink.file = File::from(std::os::fd::OwnedFd::from(writer));
        let told = format!("{:#}", sink.finish().unwrap_err());
        assert!(told.starts_with("cannot write") && told.contains("Invalid argument"), "{told}");
        drop(sink);
        assert_eq!(names(&directory), [""; 0]);
    }

    #[test]
    fn a_file_that_takes_the_place_of_another_has_its_rights() {
        let (_directory, path, plan) = plan();
        for mode in [0o600, 0o640, 0o444, 0o777] {
            fs::write(&path, b"before").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let mut sink = begun(&path, &plan);
            sink.write(b"xxx").unwrap();
            sink.finish().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
            fs::remove_file(&path).unwrap();
        }
    }
}
