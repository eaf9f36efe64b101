//! The segments that this process maps for one session.
//!
//! A segment is announced once, mapped once and kept until the sidecar retires it and no tensor lies in it any more. It may be
//! announced again while it is mapped: its bytes are in other pages then, which take the place of those from before under every
//! tensor and view, at the same addresses. Its witness, a pipe end, stays open exactly as long as the map: the sidecar reuses the memory when the last
//! copy of the pipe end is closed, so it must never be closed first.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;
use tensorlane_memory::{MapError, Mapping, PrivateMap, View};
use tensorlane_proto::generated::SegmentFrame;

use crate::error::{Error, Result};

/// Segments that were retired before they were announced, at most; more would be a sidecar gone wrong.
const EARLY_MAX: usize = 1_024;

/// A mapped segment and its witness.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Goes before the map.
    #[cfg(feature = "gpu")]
    pinned: std::sync::OnceLock<tensorlane_cuda::PinnedMapping>,
    mapping: Arc<Mapping>,
    pages: Mutex<Pages>,
    /// Set once it was announced again: its pages were exchanged, are being so, or could not be.
    announced_again: AtomicBool,
}

/// The memory that is mapped, for private maps of it, and the witness of all these maps.
#[derive(Debug)]
struct Pages {
    memory: OwnedFd,
    witness: Arc<OwnedFd>,
}

impl Pages {
    fn new(memory: OwnedFd, witness: OwnedFd) -> Self {
        Self { memory, witness: Arc::new(witness) }
    }
}

/// Bytes that this process alone may write: pages are shared with everybody until they are written here.
///
/// The lease on the tensor must be held meanwhile; what is not written yet is read where the tensor lies.
#[derive(Debug)]
pub struct OwnView {
    // In the order of dropping: no witness is closed before its map.
    map: PrivateMap,
    _witness: Arc<OwnedFd>,
}

impl OwnView {
    /// The map.
    pub fn map(&self) -> &PrivateMap {
        &self.map
    }
}

impl Segment {
    fn new(mapping: Mapping, memory: OwnedFd, witness: OwnedFd) -> Arc<Self> {
        let pages = Mutex::new(Pages::new(memory, witness));
        Arc::new(Self {
            #[cfg(feature = "gpu")]
            pinned: std::sync::OnceLock::new(),
            mapping: Arc::new(mapping),
            pages,
            announced_again: AtomicBool::new(false),
        })
    }

    /// Maps the bytes of a view privately.
    pub(crate) fn own(&self, view: &View) -> Result<OwnView> {
        let pages = self.pages.lock();
        let Pages { memory, witness } = &*pages;
        let map = PrivateMap::new(memory.as_fd(), view.offset(), view.len() as u64).map_err(cannot_map)?;
        Ok(OwnView { map, _witness: Arc::clone(witness) })
    }

    /// Puts other pages in the place of those that are mapped, and their witness in that of the one before. Where the kernel refuses
    /// that, all stays as it was; where it left a hole that cannot be filled, the process ends ([`Mapping::exchange`]).
    fn exchange(&self, memory: OwnedFd, witness: OwnedFd) -> Result<()> {
        let mut pages = self.pages.lock();
        self.mapping().exchange(memory.as_fd()).map_err(cannot_map)?;
        // Only now does nobody here map the pages from before, but private maps, which keep their witness.
        let before = std::mem::replace(&mut *pages, Pages::new(memory, witness));
        drop((pages, before));
        Ok(())
    }

    /// The map.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The map, for a driver to know of it for as long as it lives.
    #[cfg(feature = "gpu")]
    pub(crate) fn pinned(&self, device: &tensorlane_cuda::Device) -> &tensorlane_cuda::PinnedMapping {
        let new = || tensorlane_cuda::PinnedMapping::new(device, Arc::clone(self.mapping()));
        self.pinned.get_or_init(new)
    }

    /// Fills the page tables in a thread of its own, which ends by itself.
    fn populate(self: &Arc<Self>) {
        let segment = Arc::clone(self);
        let work = move || segment.mapping().populate();
        // Without the thread the map is as good, only slower at first touch.
        let _ = thread::Builder::new().name("tensorlane-populate".into()).spawn(work);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Whoever has a view keeps the map, and that the witness.
        self.mapping.keep(Arc::clone(&self.pages.get_mut().witness));
    }
}

/// The segments of one session, by number.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<u32, Entry>,
    /// Retired on the event pipe before the socket announced them: the two are not ordered.
    early: HashSet<u32>,
    /// Announced again, as the event pipe says, where the socket has not been read so far.
    awaited: HashSet<u32>,
    /// Set once the session is over, and no segment is kept for tensors to come.
    over: bool,
}

#[derive(Debug)]
enum Entry {
    /// In use.
    Mapped(Arc<Segment>),
    /// Retired; it lives as long as tensors lie in it.
    Retired(Weak<Segment>),
    /// Failed to map.
    Failed(Error),
}

impl Segments {
    /// Maps an announced segment, or exchanges the pages of one that is announced again. For a writable one the result must be
    /// said to the sidecar.
    pub(crate) fn announce(&self, frame: &SegmentFrame, memory: OwnedFd, witness: OwnedFd) -> Result<()> {
        if frame.again {
            return self.announce_again(frame.segment, memory, witness);
        }
        let mut table = self.table.lock();
        if table.early.remove(&frame.segment) {
            return Err(Error::lost("the segment was retired before it was mapped"));
        }
        drop(table);
        let map = if frame.writable { Mapping::writer } else { Mapping::reader };
        let mapped = map(memory.as_fd(), frame.bytes).map_err(cannot_map);
        let (entry, outcome) = match mapped {
            Ok(mapping) => (Entry::Mapped(Segment::new(mapping, memory, witness)), Ok(())),
            Err(error) => (Entry::Failed(error.clone()), Err(error)),
        };
        table = self.table.lock();
        if !table.over {
            table.entries.insert(frame.segment, entry);
        }
        outcome
    }

    /// Exchanges the pages of a segment that is announced again. Where it is not mapped any more, nothing is mapped and both
    /// descriptors are closed: the sidecar has retired it, and would not retire what was mapped now.
    fn announce_again(&self, number: u32, memory: OwnedFd, witness: OwnedFd) -> Result<()> {
        let mut table = self.table.lock();
        table.awaited.remove(&number);
        let Some(mapped) = table.mapped(number) else { return Ok(()) };
        // Under the lock, and whatever comes of it: the event pipe may say so only after this, and nothing is awaited then.
        mapped.announced_again.store(true, Ordering::Release);
        drop(table);
        mapped.exchange(memory, witness)
    }

    /// A segment is announced again, on the socket, which somebody has to read for that. Nothing where that has been done.
    pub(crate) fn awaits(&self, number: u32) {
        let mut table = self.table.lock();
        if table.mapped(number).is_some_and(|segment| !segment.announced_again.load(Ordering::Acquire)) {
            table.awaited.insert(number);
        }
    }

    /// Returns whether there is such a segment.
    pub(crate) fn needs_a_reader(&self) -> bool {
        !self.table.lock().awaited.is_empty()
    }

    /// Fills the page tables of a segment in the background.
    pub(crate) fn populate(&self, number: u32) {
        if let Ok(segment) = self.find(number) {
            segment.populate();
        }
    }

    /// The segment of that number.
    pub(crate) fn find(&self, number: u32) -> Result<Arc<Segment>> {
        let table = self.table.lock();
        match table.entries.get(&number) {
            Some(Entry::Mapped(segment)) => Ok(Arc::clone(segment)),
            Some(Entry::Retired(segment)) => segment.upgrade().ok_or_else(|| table.missing(number)),
            Some(Entry::Failed(error)) => Err(error.clone()),
            None => Err(table.missing(number)),
        }
    }

    /// The sidecar retired a segment: only tensors keep it now.
    ///
    /// It retires none that a reply under way can refer to, since what is leased by that reply is not free before this
    /// side has given it back. So it is let go at once, also during a call: that call may be waiting for this very room.
    pub(crate) fn retire(&self, number: u32) {
        let mut table = self.table.lock();
        table.awaited.remove(&number);
        let let_go = match table.entries.remove(&number) {
            Some(Entry::Mapped(segment)) => {
                table.entries.insert(number, Entry::Retired(Arc::downgrade(&segment)));
                Some(segment)
            }
            Some(Entry::Failed(_)) => None,
            Some(other) => {
                table.entries.insert(number, other);
                None
            }
            None => {
                if table.early.len() < EARLY_MAX {
                    table.early.insert(number);
                }
                None
            }
        };
        drop(table);
        // Unmapping takes its time, so it happens outside the lock.
        drop(let_go);
    }

    /// Forgets retired segments that no tensor keeps any more.
    pub(crate) fn sweep(&self) {
        let dead = |entry: &Entry| matches!(entry, Entry::Retired(segment) if segment.strong_count() == 0);
        self.table.lock().entries.retain(|_, entry| !dead(entry));
    }

    /// The session is over: only tensors keep their segments now, so that a sidecar that comes back regains the rest.
    pub(crate) fn let_go_of_all(&self) {
        let mut table = self.table.lock();
        table.over = true;
        table.awaited.clear();
        let entries = std::mem::take(&mut table.entries);
        for (number, entry) in &entries {
            if let Entry::Mapped(segment) = entry {
                table.entries.insert(*number, Entry::Retired(Arc::downgrade(segment)));
            }
        }
        drop(table);
        // Unmapping takes its time, so it happens outside the lock.
        drop(entries);
    }
}

impl Table {
    /// A segment that is mapped, retired or not.
    fn mapped(&self, number: u32) -> Option<Arc<Segment>> {
        match self.entries.get(&number)? {
            Entry::Mapped(segment) => Some(Arc::clone(segment)),
            Entry::Retired(segment) => segment.upgrade(),
            Entry::Failed(_) => None,
        }
    }

    fn missing(&self, number: u32) -> Error {
        if self.over {
            return Error::lost("the connection ended before the reply could be used");
        }
        Error::protocol(format!("a reply refers to segment {number}, which was not announced or is retired"))
    }
}

fn cannot_map(error: MapError) -> Error {
    Error::resources("a segment of the sidecar cannot be mapped", std::io::Error::other(error))
}
