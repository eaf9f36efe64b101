//! A set on files is made under another name, synced, and gets its own name in one step: it is whole, or not there.

use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use tensorlane_memory::rename;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::rows::{Plan, SetLayout};
use tensorlane_proto::set::{LEVEL_META, OwnMeta, OwnSet};

use super::failure::storage;
use super::keep::{Identity, write_meta};
use super::root::{DirectoryName, Root, below, file, walk};

impl Root {
    /// Makes a directory for a layout. Its files are sparse: no row is written.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a key that no file has, NAME_TAKEN, STORAGE_FULL, STORAGE_FAILED. Nothing is left then.
    pub(in crate::exchange::rows) fn create(
        &self,
        name: &DirectoryName,
        layout: &SetLayout,
        identity: &Identity,
    ) -> Result<(), Failure> {
        let plan = Plan::new(layout)?;
        let draft = name.draft();
        // Of a life that ended while it made it.
        self.remove_all(&draft)?;
        let own = identity.own(name, layout);
        let made = self.write_draft(name, &draft, &plan, own).and_then(|()| self.give_name(&draft, name));
        if made.is_err() {
            let _ = self.remove_all(&draft);
        }
        made
    }

    fn write_draft(
        &self,
        name: &DirectoryName,
        draft: &str,
        plan: &Plan,
        own: OwnSet,
    ) -> Result<(), Failure> {
        let failed = |path: &[String]| {
            let path = std::iter::once(name.as_str())
                .chain(path.iter().map(String::as_str))
                .collect::<Vec<_>>()
                .join("/");
            move |error: io::Error| storage(&path, "make", &error)
        };
        rustix::fs::mkdirat(&self.directory, draft, Mode::from_raw_mode(0o755))
            .map_err(|error| failed(&[])(error.into()))?;
        let set = below(&self.directory, draft).map_err(failed(&[]))?;
        for path in &plan.directories {
            let Some((last, parents)) = path.split_last() else { continue };
            let parent = walk(&set, parents).map_err(failed(parents))?;
            rustix::fs::mkdirat(parent.as_ref().unwrap_or(&set), last, Mode::from_raw_mode(0o755))
                .map_err(|error| failed(path)(error.into()))?;
        }
        for planned in plan.files.iter().filter(|planned| planned.bytes > 0) {
            let Some((last, parents)) = planned.path.split_last() else { continue };
            let make = || {
                let parent = walk(&set, parents)?;
                let made = file(
                    parent.as_ref().unwrap_or(&set),
                    last,
                    OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
                )?;
                made.set_len(planned.bytes)?;
                made.sync_all()
            };
            make().map_err(failed(&planned.path))?;
        }
        let meta = OwnMeta { mutable: Some(own), ..plan.own.clone() };
        write_meta(&set, name, &meta)?;
        for (path, level) in &plan.levels {
            let bytes =
                level.write().map_err(|error| Failure::new(Reason::InvalidArgument, error.to_string()))?;
            let make = || {
                let parent = walk(&set, path)?;
                let parent = parent.as_ref().unwrap_or(&set);
                let mut made = file(parent, LEVEL_META, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
                io::Write::write_all(&mut made, &bytes)?;
                made.sync_all()?;
                Ok(rustix::fs::fsync(parent)?)
            };
            make().map_err(failed(path))?;
        }
        Ok(())
    }

    fn give_name(&self, draft: &str, name: &DirectoryName) -> Result<(), Failure> {
        match rename::directory(&self.directory, Path::new(draft), Path::new(name.as_str())) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(taken(name)),
            Err(error) => return Err(storage(name.as_str(), "name", &error)),
        }
        rustix::fs::fsync(&self.directory).map_err(|error| storage(".", "sync", &error.into()))
    }
}

/// A directory that is there where none should be.
pub(in crate::exchange::rows) fn taken(name: &DirectoryName) -> Failure {
    let name = name.as_str();
    let what =
        format!("the directory {name} is below sets.root already; open it (open), or choose another one");
    Failure::new(Reason::NameTaken, what).with("directory", name)
}
