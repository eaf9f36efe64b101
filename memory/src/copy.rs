//! Large copies with all cores. One core moves about half of what the memory can (13 of 24 GB/s on a machine with
//! two), so that a copy of many megabytes is worth waking the others for.
//!
//! The threads are started with the first large copy, one fewer than there are cores, and sleep when there is
//! nothing to do. Pieces are taken from a shared counter, smaller towards the end, so that nobody waits long for the
//! last. A forked child has none of these threads and copies alone.
//!
//! What is larger than the caches is written past them where the processor can: a tenth to a third faster than
//! `memcpy` in such pieces, since the destination is not read first and the source is not driven out.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::fork::ProcessToken;
use crate::fork::is_same_process;

/// From here on a copy is shared: below, waking a thread (50 µs) costs more than it saves.
pub const PARALLEL_FROM: usize = 4 << 20;

/// From here on a copy is written past the caches: about what the last level of a server's core complex holds.
const STREAM_FROM: usize = 24 << 20;

/// From here on a run is written past the caches.
#[cfg(target_arch = "x86_64")]
const RUN_STREAM_FROM: usize = 1 << 10;
/// Bytes of the next run that are fetched while one is copied: a part of the inner caches.
#[cfg(target_arch = "x86_64")]
const RUN_FETCH: usize = 32 << 10;

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

/// Copies a run of many that together are more than the caches hold: past them, while the `next` run is fetched. Where runs lie
/// is random, so that the processor does not foresee the next one: a third of the time of `memcpy` is waiting for it.
///
/// # Panics
/// Where the lengths differ, as `copy_from_slice` does.
pub fn copy_run(to: &mut [u8], from: &[u8], next: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy has one length");
    #[cfg(target_arch = "x86_64")]
    if from.len() >= RUN_STREAM_FROM && std::arch::is_x86_feature_detected!("avx") {
        stream::fetch(&next[..next.len().min(RUN_FETCH)]);
        // SAFETY: two slices of one length, one of them unique, so that they do not overlap, on a processor with AVX.
        return unsafe { stream::copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    }
    let _ = next;
    to.copy_from_slice(from);
}

/// Copies `len` bytes, with all cores where that pays.
///
/// # Safety
/// Both ranges are valid for `len` bytes until this returns, and do not overlap.
pub(crate) unsafe fn raw(to: *mut u8, from: *const u8, len: usize) {
    let pool = if len >= PARALLEL_FROM { Pool::here() } else { None };
    match pool {
        // SAFETY: the caller's promise; `copy` returns after the last helper let go.
        Some(pool) => unsafe { pool.copy(to, from, len) },
        // SAFETY: the caller's promise.
        None => unsafe { std::ptr::copy_nonoverlapping(from, to, len) },
    }
}

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

#[cfg(target_arch = "x86_64")]
mod stream {
    //! Stores that bypass the caches, two cache lines at a time.

    use std::arch::x86_64::{
        __m256i, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256,
    };
    use std::ptr::copy_nonoverlapping;

    const STRIDE: usize = 128;
    /// Distance ahead of the loads at which lines are asked for.
    const AHEAD: usize = 1024;

    /// Has the processor fetch these bytes into its caches.
    pub(super) fn fetch(bytes: &[u8]) {
        for line in bytes.chunks(64) {
            // SAFETY: a prefetch touches no memory, and this one is of bytes that there are.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
        }
    }

    /// # Safety
    /// As `copy_nonoverlapping`, on a processor with AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        let head = to.align_offset(STRIDE).min(len);
        let body = (len - head) / STRIDE * STRIDE;
        let tail = len - head - body;
        // SAFETY: head, body and tail are the whole of both ranges, which are the caller's. The body's stores are
        // aligned, since the head ends where the destination is. A prefetch beyond the end touches no memory.
        unsafe {
            copy_nonoverlapping(from, to, head);
            for at in (head..head + body).step_by(STRIDE) {
                let (source, target) = (from.add(at), to.add(at));
                _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(AHEAD).cast());
                _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(AHEAD + 64).cast());
                let (source, target) = (source.cast::<__m256i>(), target.cast::<__m256i>());
                let lines = [0, 1, 2, 3].map(|at| _mm256_loadu_si256(source.add(at)));
                for (at, line) in lines.into_iter().enumerate() {
                    _mm256_stream_si256(target.add(at), line);
                }
            }
            copy_nonoverlapping(from.add(head + body), to.add(head + body), tail);
            // Such stores are ordered with nothing; from here on they are seen by whoever is told of them.
            _mm_sfence();
        }
    }
}

struct Job {
    to: *mut u8,
    from: *const u8,
    len: usize,
    threads: usize,
    /// Copier of a piece.
    copier: Copier,
    next: AtomicUsize,
    /// Helpers at work; only raised while the job is in the queue.
    helpers: Mutex<usize>,
    alone: Condvar,
}

// SAFETY: the pointers are used only between a helper's beginning and end, for which the owner of the job waits, and
// every piece is copied by exactly one thread.
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

    /// # Safety
    /// As [`raw`].
    unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) {
        let job = Arc::new(Job {
            to,
            from,
            len,
            threads: self.helpers + 1,
            copier: copier(len),
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
            // SAFETY: the piece lies inside the ranges and no one else took it; whoever runs this is the job's owner
            // or a helper it waits for.
            unsafe { (self.copier)(self.from.add(at), self.to.add(at), len) };
        }
    }

    fn take(&self) -> Option<(usize, usize)> {
        let mut at = self.next.load(Ordering::Relaxed);
        loop {
            let left = self.len.checked_sub(at).filter(|left| *left > 0)?;
            let piece = piece(self.len, left, self.threads).min(left);
            match self.next.compare_exchange_weak(at, at + piece, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some((at, piece)),
                Err(now) => at = now,
            }
        }
    }
}

/// Size of the next piece to take: whole pages, and few enough for the inner caches if the outer one matters.
fn piece(len: usize, left: usize, threads: usize) -> usize {
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
    fn runs_arrive_whole_wherever_they_begin() {
        let from = pattern(1 << 17);
        for len in [0, 1, 1023, 1024, 1025, 16 << 10, (64 << 10) + 7] {
            for at in [0, 1, 77] {
                let mut to = vec![0; len + at + 1];
                copy_run(&mut to[at..at + len], &from[at..at + len], &from[len..]);
                assert!(to[at..at + len] == from[at..at + len] && to[at + len] == 0, "{len} at {at}");
                assert!(to[..at].iter().all(|byte| *byte == 0));
            }
        }
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
        assert_eq!(piece(1 << 30, 1 << 30, 2), PIECE_MOST);
        assert_eq!(piece(1 << 30, 4 << 20, 2), 1 << 20);
        assert_eq!(piece(1 << 30, 1, 2), PIECE_LEAST);
        assert_eq!(piece(PARALLEL_FROM, PARALLEL_FROM, 2), PIECE_LEAST);
    }
}
