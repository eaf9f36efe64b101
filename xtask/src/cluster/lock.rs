//! Lock by which only one command at a time changes a cluster.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use crate::cluster::layout::Layout;
use crate::cluster::process::Process;
use crate::failure::Failure;

/// Held while a command changes the cluster. One that was killed leaves it, and it is recognised as left.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
}

impl Lock {
    /// Takes it, or says who has it.
    pub(crate) fn take(layout: &Layout) -> Result<Self, Failure> {
        let state = layout.state();
        fs::create_dir_all(state).map_err(|error| Failure::file("make", state, &error))?;
        let path = state.join("lock");
        loop {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    let lock = Self { path };
                    let own =
                        Process::own().map(|own| format!("{} {}", own.id, own.start)).unwrap_or_default();
                    file.write_all(own.as_bytes())
                        .map_err(|error| Failure::file("write", &lock.path, &error))?;
                    return Ok(lock);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => free_if_left(&path)?,
                Err(error) => return Err(Failure::file("make", &path, &error)),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // If it stays, the next command sees that its holder is gone.
        let _ = fs::remove_file(&self.path);
    }
}

fn free_if_left(path: &std::path::Path) -> Result<(), Failure> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut words = text.split(' ').map(|word| word.parse::<u64>().ok());
    if let (Some(Some(id)), Some(Some(start))) = (words.next(), words.next()) {
        let holder = Process { name: String::new(), id: u32::try_from(id).unwrap_or_default(), start };
        if holder.is_alive() {
            return Err(Failure::new(format!("another cluster command is at work: process {id}"))
                .remedy("wait for it, or end it and start again"));
        }
    }
    Failure::unless_gone(fs::remove_file(path), path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;

    #[test]
    fn a_lock_is_held_by_one_and_left_by_the_dead() {
        let root = std::env::temp_dir().join(format!("xtask-lock-{}", std::process::id()));
        let layout = Layout::of(&Place::at(&root));
        let lock = Lock::take(&layout).unwrap();
        let refused = Lock::take(&layout).unwrap_err();
        assert!(refused.what().contains(&std::process::id().to_string()), "{refused:?}");
        drop(lock);
        fs::write(layout.state().join("lock"), format!("{} 1", std::process::id())).unwrap();
        drop(Lock::take(&layout).unwrap());
        assert!(!layout.state().join("lock").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
