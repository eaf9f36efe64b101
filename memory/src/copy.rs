//! Large copies with all cores. One core moves about half of what the memory can (13 of 24 GB/s on a machine with
//! two), so that a copy of many megabytes is worth waking the others for.
//!
//! The threads are started with the first large copy, one fewer than there are cores, and sleep when there is
//! nothing to do. Pieces are taken from a shared counter, smaller towards the end, so that nobody waits long for the
//! last. A forked child has none of these threads and copies alone.
//!
//! What is larger than the caches is written past them where the processor can: a tenth to a third faster than
//! `memcpy` in such pieces, since the destination is not read first and the source is not driven out. Many copies that lie
//! scattered are in `lots`.

mod lots;
#[cfg(target_arch = "x86_64")]
mod stream;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::fork::ProcessToken;
use crate::fork::is_same_process;

pub(crate) use lots::{Lots, OneCopy};
pub use lots::{RunSource, copy_runs};

/// From here on a copy is shared: below, waking a thread (50 µs) costs more than it saves.
pub const PARALLEL_FROM: usize = 4 << 20;

/// From here on a copy is written past the caches: about what the last level of a server's core complex holds.
const STREAM_FROM: usize = 24 << 20;

/// The largest piece: long runs are copied fastest.
const PIECE_MOST: usize = 4 << 20;
/// The smallest: what one core may be behind the others at the end, 20 µs.
const PIECE_LEAST: usize = 256 << 10;
/// The most helpers; more cores than this do not make memory faster.
const HELPERS_MAX: usize = 15;

/// Copies `from` into `to`, with all cores where that pays.
///
/// # Panics
/// Where the lengths differ, as `copy_from_slice` does.
pub fn copy_parallel(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy has one length");
    // SAFETY: two slices of one length, one of them unique, so that they do not overlap.
    unsafe { raw(to.as_mut_ptr(), from.as_ptr(), from.len()) };
}

/// Copies `len` bytes, with all cores where that pays.
///
/// # Safety
/// Both ranges are valid for `len` bytes until this returns, and do not overlap.
pub(crate) unsafe fn raw(to: *mut u8, from: *const u8, len: usize) {
    let pool = if len >= PARALLEL_FROM { Pool::here() } else { None };
    match pool {
        Some(pool) => {
            let whole = Whole { to, from, copier: copier(len) };
            // SAFETY: the caller's promise; `share` returns after the last helper let go, and no piece is copied twice.
            unsafe { pool.share(std::ptr::from_ref(&whole).cast(), copy_piece, len) }
        }
        // SAFETY: the caller's promise.
        None => unsafe { std::ptr::copy_nonoverlapping(from, to, len) },
    }
}

/// Copy of one range to another.
struct Whole {
    to: *mut u8,
    from: *const u8,
    /// Copier of a piece.
    copier: Copier,
}

/// Copies a piece of a [`Whole`].
///
/// # Safety
/// `of` is one whose ranges are valid and do not overlap, the piece lies inside, and nobody else copies any of it.
unsafe fn copy_piece(of: *const (), at: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let Whole { to, from, copier } = *of.cast::<Whole>();
        copier(from.add(at), to.add(at), len);
    }
}

/// Does a piece of a job: what the job is of, the offset of the piece and its length. Unsafe for the reasons of who owns the job.
type PieceWork = unsafe fn(*const (), usize, usize);

/// Copies from, to, so many bytes; unsafe for the reasons of `copy_nonoverlapping`.
type Copier = unsafe fn(*const u8, *mut u8, usize);

fn copier(len: usize) -> Copier {
    #[cfg(target_arch = "x86_64")]
    if len >= STREAM_FROM && std::arch::is_x86_feature_detected!("avx") {
        return stream::copy;
    }
    let _ = len;
    std::ptr::copy_nonoverlapping::<u8>
}

struct Job {
    /// Matter of the job, which its pieces are of.
    of: *const (),
    piece: PieceWork,
    len: usize,
    threads: usize,
    next: AtomicUsize,
    /// Helpers at work; only raised while the job is in the queue.
    helpers: Mutex<usize>,
    alone: Condvar,
}

// SAFETY: the pointer is used only between a helper's beginning and end, for which the owner of the job waits, and
// every piece is done by exactly one thread.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

struct Pool {
    queue: Mutex<VecDeque<Arc<Job>>>,
    work: Condvar,
    helpers: usize,
    made_in: ProcessToken,
}

impl Pool {
    /// The pool, where this process has its threads.
    fn here() -> Option<&'static Self> {
        static POOL: OnceLock<&'static Pool> = OnceLock::new();
        let pool = *POOL.get_or_init(Self::start);
        (pool.helpers > 0 && is_same_process(pool.made_in)).then_some(pool)
    }

    fn start() -> &'static Self {
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let wanted = (cores - 1).min(HELPERS_MAX);
        let queue = Mutex::new(VecDeque::new());
        let made_in = ProcessToken::current();
        // Lives as long as the process, as its threads do: they hold nothing that would have to be given back.
        let pool: &'static mut Self =
            Box::leak(Box::new(Self { queue, work: Condvar::new(), helpers: wanted, made_in }));
        let pool: &'static Self = pool;
        for _ in 0..wanted {
            // Without helpers, the caller does all the pieces.
            let _ = thread::Builder::new().name("tl-copy".to_owned()).spawn(move || pool.help());
        }
        pool
    }

    /// Has all pieces of a job of so many bytes done, by the caller and whoever helps.
    ///
    /// # Safety
    /// `piece` may be called with `of` and each piece of the job once, on any threads at once, until this returns. It does not panic.
    unsafe fn share(&self, of: *const (), piece: PieceWork, len: usize) {
        let job = Arc::new(Job {
            of,
            piece,
            len,
            threads: self.helpers + 1,
            next: AtomicUsize::new(0),
            helpers: Mutex::new(0),
            alone: Condvar::new(),
        });
        self.queue.lock().push_back(Arc::clone(&job));
        self.work.notify_all();
        job.work();
        // No helper begins after this; those that began are waited for.
        self.queue.lock().retain(|queued| !Arc::ptr_eq(queued, &job));
        let mut helpers = job.helpers.lock();
        while *helpers > 0 {
            job.alone.wait(&mut helpers);
        }
    }

    fn help(&self) -> ! {
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    while queue.front().is_some_and(|job| job.is_taken()) {
                        queue.pop_front();
                    }
                    if let Some(job) = queue.front() {
                        *job.helpers.lock() += 1;
                        break Arc::clone(job);
                    }
                    self.work.wait(&mut queue);
                }
            };
            job.work();
            let mut helpers = job.helpers.lock();
            *helpers -= 1;
            if *helpers == 0 {
                job.alone.notify_one();
            }
        }
    }
}

impl Job {
    fn is_taken(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.len
    }

    fn work(&self) {
        while let Some((at, len)) = self.take() {
            // SAFETY: the piece lies inside the job and no one else took it; whoever runs this is the job's owner
            // or a helper it waits for.
            unsafe { (self.piece)(self.of, at, len) };
        }
    }

    fn take(&self) -> Option<(usize, usize)> {
        let mut at = self.next.load(Ordering::Relaxed);
        loop {
            let left = self.len.checked_sub(at).filter(|left| *left > 0)?;
            let piece = piece_bytes(self.len, left, self.threads).min(left);
            match self.next.compare_exchange_weak(at, at + piece, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some((at, piece)),
                Err(now) => at = now,
            }
        }
    }
}

/// Size of the next piece to take: whole pages, and few enough for the inner caches if the outer one matters.
fn piece_bytes(len: usize, left: usize, threads: usize) -> usize {
    let most = if len >= STREAM_FROM { PIECE_MOST } else { PIECE_LEAST };
    (left / (threads * 2)).clamp(PIECE_LEAST, most) / 4096 * 4096
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]).collect()
    }

    #[test]
    fn every_length_arrives_whole() {
        for len in [
            0,
            1,
            4095,
            PARALLEL_FROM - 1,
            PARALLEL_FROM,
            PARALLEL_FROM + 1,
            (17 << 20) + 13,
            STREAM_FROM + 77,
        ] {
            let from = pattern(len);
            let mut to = vec![0; len];
            copy_parallel(&mut to, &from);
            assert!(to == from, "{len} bytes");
        }
    }

    #[test]
    fn a_stream_arrives_whole_at_every_alignment() {
        let from = pattern(STREAM_FROM + 4096);
        let mut to = vec![0; from.len()];
        for (skip_from, skip_to) in [(0, 0), (1, 0), (0, 1), (63, 127), (130, 31)] {
            to.fill(0);
            let len = STREAM_FROM + 3000;
            copy_parallel(&mut to[skip_to..skip_to + len], &from[skip_from..skip_from + len]);
            assert!(to[skip_to..skip_to + len] == from[skip_from..skip_from + len]);
            assert!(to[..skip_to].iter().chain(&to[skip_to + len..]).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn many_threads_copy_at_once_and_each_gets_its_own_bytes() {
        thread::scope(|scope| {
            for seed in 0..4u8 {
                scope.spawn(move || {
                    let from: Vec<u8> = pattern(PARALLEL_FROM + 77).iter().map(|byte| byte ^ seed).collect();
                    for _ in 0..8 {
                        let mut to = vec![0; from.len()];
                        copy_parallel(&mut to, &from);
                        assert!(to == from);
                    }
                });
            }
        });
    }

    #[test]
    fn a_forked_child_copies_alone() {
        let from = pattern(PARALLEL_FROM);
        let mut to = vec![0; from.len()];
        copy_parallel(&mut to, &from);
        to.fill(0);
        assert!(in_child(|| {
            copy_parallel(&mut to, &from);
            to == from
        }));
    }

    #[test]
    fn pieces_shrink_towards_the_end_and_never_vanish() {
        assert_eq!(piece_bytes(1 << 30, 1 << 30, 2), PIECE_MOST);
        assert_eq!(piece_bytes(1 << 30, 4 << 20, 2), 1 << 20);
        assert_eq!(piece_bytes(1 << 30, 1, 2), PIECE_LEAST);
        assert_eq!(piece_bytes(PARALLEL_FROM, PARALLEL_FROM, 2), PIECE_LEAST);
    }
}
