//! Witnesses: pipe ends that go to every process together with the segment it maps. When the last copy is closed,
//! by whatever end its holders came to, nobody maps the segment any more.
//!
//! With a directory they are named pipes, made before anything is handed out, whose names say what they stand for:
//! a later incarnation finds there what is still mapped (see [`crate::inherited`]).

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{Arena, SegmentHandle, Shared};
use crate::block::Block;
use crate::inherited::{Inherited, WitnessName, open_end};
use crate::passing::pipe;
use crate::watcher::Watcher;

/// Makes the pipes.
#[derive(Debug)]
pub(super) struct Maker {
    dir: Option<PathBuf>,
    run: u64,
    serial: AtomicU64,
}

impl Maker {
    pub(super) fn new(dir: Option<PathBuf>) -> Self {
        Self { dir, run: random(), serial: AtomicU64::new(0) }
    }

    /// The read end, the write end, and the name where it has one.
    fn make(
        &self,
        segment: u32,
        session: u64,
        bytes: u64,
    ) -> io::Result<(OwnedFd, OwnedFd, Option<PathBuf>)> {
        let Some(dir) = &self.dir else {
            let (read, write) = pipe()?;
            return Ok((read, write, None));
        };
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(WitnessName { run: self.run, segment, serial, bytes, session }.to_string());
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        let ends = open_end(&path, rustix::fs::OFlags::RDONLY)
            .and_then(|read| Ok((read, open_end(&path, rustix::fs::OFlags::WRONLY)?)));
        if ends.is_err() {
            let _ = std::fs::remove_file(&path);
        }
        let (read, write) = ends?;
        Ok((read, write, Some(path)))
    }
}

/// Runs names apart; where the kernel has no randomness yet, the process id must do.
fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is valid for its length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    if got == 8 { u64::from_ne_bytes(bytes) } else { u64::from(std::process::id()) }
}

impl Arena {
    /// A witness that `session` maps `segment`: the writing end of a pipe, to be sent with the descriptor and kept
    /// open by whoever has the map. Costs one descriptor here while it lives. Dropping it unsent ends it. For a foreign
    /// segment it carries the owner's witness with it (see [`super::foreign`]); whoever needs the memory of such a one too takes both
    /// from [`Arena::hand_out`], since they may be exchanged in between.
    ///
    /// # Errors
    /// `NotFound` where the segment is gone; else what the kernel says.
    pub fn witness(&self, segment: u32, session: u64) -> io::Result<OwnedFd> {
        let begun = self.shared.state.lock().witness_begins(segment, session);
        if let Some(bytes) = begun {
            let made = self.watched_pipe(segment, session, bytes);
            return made.inspect_err(|_| self.shared.witness_ended(segment, session));
        }
        let foreign = self.shared.state.lock().foreign_witness_begins(segment, session);
        let foreign = foreign.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("there is no segment {segment}"))
        })?;
        let made = self.carrier(&foreign, session);
        self.shared.let_go(foreign);
        made.inspect_err(|_| self.shared.carrier_ended(segment, session))
    }

    /// Descriptors that a session needs to map a segment: its memory, for reading, and a witness. The two belong
    /// together, also while the pages of a dead owner are being exchanged for our own.
    ///
    /// # Errors
    /// As [`Arena::witness`].
    pub fn hand_out(&self, segment: &SegmentHandle, session: u64) -> io::Result<(OwnedFd, OwnedFd)> {
        let _together = segment.handing();
        let witness = self.witness(segment.id(), session)?;
        Ok((segment.reader_fd().try_clone_to_owned()?, witness))
    }

    fn watched_pipe(&self, segment: u32, session: u64, bytes: u64) -> io::Result<OwnedFd> {
        let (read, write, path) = self.witnesses.make(segment, session, bytes)?;
        let shared = Arc::downgrade(&self.shared);
        let name = path.clone();
        let watch = self.watcher.on_hangup(read, move || {
            remove(name.as_ref());
            if let Some(shared) = shared.upgrade() {
                shared.witness_ended(segment, session);
            }
        });
        watch.inspect_err(|_| remove(path.as_ref()))?.detach();
        Ok(write)
    }

    /// Keeps blocks until no process of `session` maps `segment` any more; drops them at once where that is so.
    pub fn pin_until_witness_ends(&self, segment: u32, session: u64, blocks: Vec<Block>) {
        let mut state = self.shared.state.lock();
        let unpinned = match state.witnessed.get_mut(&(segment, session)) {
            Some(witnessed) => {
                witnessed.pinned.extend(blocks);
                Vec::new()
            }
            None => blocks,
        };
        drop(state);
        drop(unpinned);
    }

    /// Bytes that witnesses of these sessions keep from being used again: blocks that wait for their end, and segments on their way out
    /// that nothing is in. Looks at every witness there is.
    #[must_use]
    pub fn kept_by(&self, sessions: &[u64]) -> u64 {
        self.shared.state.lock().kept_by(sessions)
    }

    /// Returns whether a process of `session` may still map any segment. Looks at every witness there is.
    #[must_use]
    pub fn has_witness(&self, session: u64) -> bool {
        self.shared.state.lock().witnessed.keys().any(|(_, one)| *one == session)
    }

    /// Returns whether a process of `session` may still map `segment`.
    #[must_use]
    pub fn is_witnessed(&self, segment: u32, session: u64) -> bool {
        self.shared.state.lock().witnessed.contains_key(&(segment, session))
    }
}

fn remove(path: Option<&PathBuf>) {
    if let Some(path) = path {
        // A name that stays is found by the next incarnation, which sees that nobody holds it.
        let _ = std::fs::remove_file(path);
    }
}

impl Shared {
    pub(super) fn witness_ended(&self, segment: u32, session: u64) {
        let (pinned, settled) = self.state.lock().witness_ended(segment, session);
        drop(pinned);
        self.follow(settled);
    }
}

/// Gives the bytes of a dead incarnation's segment back when the last of its witnesses is at its end.
pub(super) fn watch_inherited(shared: &Arc<Shared>, watcher: &Watcher, left: Inherited) -> io::Result<()> {
    let bytes = left.bytes;
    let open = Arc::new(AtomicUsize::new(left.witnesses.len()));
    for witness in left.witnesses {
        let (shared, open, path) = (Arc::downgrade(shared), Arc::clone(&open), witness.path);
        let ended = move || {
            remove(Some(&path));
            if open.fetch_sub(1, Ordering::AcqRel) == 1
                && let Some(shared) = shared.upgrade()
            {
                shared.state.lock().inherited_gone(bytes);
                shared.budget_changed();
            }
        };
        watcher.on_hangup(witness.read_end, ended)?.detach();
    }
    Ok(())
}
