//! The fastest copy between warm buffers: persistent threads, one a core, and the best of several ways to do it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use tensorlane_memory::{Arena, Landing};

use super::warm;
use crate::{pairs, stats};

/// The pieces of a copy whose threads take many at first and few at the end, in bytes.
const FINE: usize = 256 << 10;
/// The most of them that are taken at once.
const FINE_MOST: usize = 16;
/// The pieces of a copy whose threads take one after the other, in bytes.
const COARSE: usize = 4 << 20;
/// Copies that decide which way is the best.
const TRIES: usize = 3;

/// A way to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    /// The destination is a memfd like ours; else the process's own memory.
    memfd: bool,
    /// Bytes of a piece.
    piece: usize,
    /// Threads take many pieces at first and few at the end; else one at a time.
    guided: bool,
    threads: usize,
}

/// Copies a source into warm memory of its own, with all cores.
pub struct Memcpy {
    job: Arc<Job>,
    helpers: Vec<Helper>,
    /// Arena in which the pieces of a memfd lie.
    _arena: Option<Arc<Arena>>,
}

#[derive(Debug)]
struct Job {
    from: Arc<Vec<u8>>,
    /// The pieces of the destination. Each is locked by the one thread that copies it.
    to: Vec<Mutex<Piece>>,
    way: Way,
    next: AtomicUsize,
}

#[derive(Debug)]
enum Piece {
    Private(Vec<u8>),
    Memfd(Landing),
}

#[derive(Debug)]
struct Helper {
    go: Sender<Arc<Job>>,
    done: Receiver<()>,
}

impl Memcpy {
    /// Finds the best way to copy `from` with `threads` threads, by trying.
    ///
    /// # Errors
    /// There is nothing to copy, or no thread or memory to be had.
    pub fn best(from: &Arc<Vec<u8>>, threads: usize) -> Result<Self> {
        let mut best: Option<(f64, Self)> = None;
        for way in ways(from.len(), threads.max(1)) {
            let copy = Self::new(from, way)?;
            copy.seconds()?;
            let took = (0..TRIES).map(|_| copy.seconds()).collect::<Result<Vec<_>>>()?;
            let took = stats::median(&took).context("no copy was tried")?;
            if best.as_ref().is_none_or(|(least, _)| took < *least) {
                best = Some((took, copy));
            }
        }
        Ok(best.context("no way to copy")?.1)
    }

    fn new(from: &Arc<Vec<u8>>, way: Way) -> Result<Self> {
        let parts = from.chunks(way.piece);
        let (arena, to) = if way.memfd {
            let (arena, landings) = warm::targets(parts.map(|part| part.len() as u64))?;
            (Some(arena), landings.into_iter().map(|landing| Mutex::new(Piece::Memfd(landing))).collect())
        } else {
            // Copies, so that every page is written once.
            (None, parts.map(|part| Mutex::new(Piece::Private(part.to_vec()))).collect())
        };
        let job = Job { from: Arc::clone(from), to, way, next: AtomicUsize::new(0) };
        let helpers = (1..way.threads).map(|_| Helper::start()).collect::<Result<_>>()?;
        Ok(Self { job: Arc::new(job), helpers, _arena: arena })
    }

    /// Way in which it copies, for people.
    pub fn way(&self) -> String {
        self.job.way.to_string()
    }

    /// The seconds of one copy.
    ///
    /// # Errors
    /// A thread died.
    pub fn seconds(&self) -> Result<f64> {
        self.job.next.store(0, Ordering::Relaxed);
        pairs::seconds(|| {
            for helper in &self.helpers {
                helper.go.send(Arc::clone(&self.job)).context("a copying thread died")?;
            }
            self.job.work()?;
            for helper in &self.helpers {
                helper.done.recv().context("a copying thread died")?;
            }
            Ok(())
        })
    }
}

fn ways(bytes: usize, threads: usize) -> impl Iterator<Item = Way> {
    let share = bytes.div_ceil(threads).next_multiple_of(4096);
    let splits = [(share, false), (COARSE.min(share), false), (FINE.min(share), true)];
    let both = splits.into_iter().flat_map(|split| [(split, true), (split, false)]);
    both.map(move |((piece, guided), memfd)| Way { memfd, piece, guided, threads })
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = if self.memfd { "a memfd" } else { "private memory" };
        let split = if self.guided { "many pieces at first and few at the end, each" } else { "pieces" };
        write!(f, "{} threads into {memory}, {split} of {} KiB", self.threads, self.piece >> 10)
    }
}

impl Job {
    fn work(&self) -> Result<()> {
        while let Some((first, count)) = self.take() {
            for number in first..first + count {
                let from = &self.from[number * self.way.piece..];
                match &mut *self.to[number].lock().unwrap_or_else(PoisonError::into_inner) {
                    Piece::Private(to) => {
                        let bytes = to.len();
                        to.copy_from_slice(&from[..bytes]);
                    }
                    Piece::Memfd(to) => {
                        let bytes = to.len();
                        to.chunk_mut(0..bytes)?.copy_from_slice(&from[..bytes as usize]);
                    }
                }
            }
        }
        Ok(())
    }

    /// The next pieces that nobody has: the first and how many.
    fn take(&self) -> Option<(usize, usize)> {
        let mut first = self.next.load(Ordering::Relaxed);
        loop {
            let left = self.to.len().checked_sub(first).filter(|left| *left > 0)?;
            let share = (left / (self.way.threads * 2)).clamp(1, FINE_MOST);
            let count = if self.way.guided { share } else { 1 };
            match self.next.compare_exchange_weak(first, first + count, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some((first, count)),
                Err(now) => first = now,
            }
        }
    }
}

impl Helper {
    fn start() -> Result<Self> {
        let (go, jobs) = channel::<Arc<Job>>();
        let (finished, done) = channel();
        let work = move || {
            for job in jobs {
                // Without an answer the copy fails, which says enough.
                if job.work().is_err() || finished.send(()).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("memcpy".into()).spawn(work)?;
        Ok(Self { go, done })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_copies_every_byte() {
        let byte = |at: u32| (at >> 8) as u8 ^ at as u8;
        let from: Arc<Vec<u8>> = Arc::new((0..(9 << 20) + 77).map(byte).collect());
        for way in ways(from.len(), 2).chain(ways(from.len(), 1)) {
            let copy = Memcpy::new(&from, way).unwrap();
            for piece in &copy.job.to {
                with_bytes(piece, |bytes| bytes.fill(0));
            }
            copy.seconds().unwrap();
            let mut copied = Vec::new();
            for piece in &copy.job.to {
                with_bytes(piece, |bytes| copied.extend_from_slice(bytes));
            }
            assert!(copied == *from, "{way}");
        }
    }

    fn with_bytes(piece: &Mutex<Piece>, work: impl FnOnce(&mut [u8])) {
        match &mut *piece.lock().unwrap() {
            Piece::Private(bytes) => work(bytes),
            Piece::Memfd(landing) => {
                let bytes = landing.len();
                work(landing.chunk_mut(0..bytes).unwrap());
            }
        }
    }
}
