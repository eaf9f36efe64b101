//! Workers: threads for what has to wait. Knows nothing of what they do.
//!
//! The quick verbs are answered on the thread that read them. What must wait (for room, for a peer to be
//! dialed) runs here, so that waiting is written as plain blocking code and never holds up anybody's socket. Threads are
//! made when they are needed, end after a while without work, and are bounded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use thiserror::Error;

use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Most worker threads. Each costs a stack of 256 KiB of address space and one waiting call.
pub const THREADS_MAX: usize = 256;
/// Most jobs that wait for a thread. Beyond it a call is refused instead of queued.
pub const QUEUE_MAX: usize = 4_096;
/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 256 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Busy {
    /// As many calls wait already as the limit allows.
    #[error("{QUEUE_MAX} calls wait already; retry later")]
    Full,
    /// The workers are ending.
    #[error("the sidecar is ending")]
    Stopping,
}

/// A bounded pool of threads for jobs that wait.
#[derive(Clone)]
pub struct Workers(Arc<Shared>);

struct Shared {
    threads: Threads,
    state: Mutex<State>,
    work: Condvar,
    threads_max: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    alive: usize,
    idle: usize,
    stopping: bool,
}

// === impl Workers ===

impl Default for Workers {
    /// As many threads as [`THREADS_MAX`], watched by nobody else.
    fn default() -> Self {
        Self::new(Threads::default(), THREADS_MAX)
    }
}

impl Workers {
    /// A pool of at most so many threads.
    pub fn new(threads: Threads, threads_max: usize) -> Self {
        Self(Arc::new(Shared { threads, state: Mutex::default(), work: Condvar::new(), threads_max }))
    }

    /// Returns the threads of the sidecar, among which those of the pool are started.
    pub fn threads(&self) -> &Threads {
        &self.0.threads
    }

    /// Runs `job` on some thread, soon.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Busy> {
        let mut state = self.0.state.lock();
        if state.stopping {
            return Err(Busy::Stopping);
        }
        if state.jobs.len() >= QUEUE_MAX {
            return Err(Busy::Full);
        }
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() {
            self.0.work.notify_one();
        } else if state.alive < self.0.threads_max
            && let Err(busy) = self.start_thread(&mut state)
        {
            // Dropped without the lock: a job that is thrown away may have something to say, and another job to begin.
            let refused = state.jobs.pop_back();
            drop(state);
            drop(refused);
            return Err(busy);
        }
        Ok(())
    }

    /// Ends all threads after the jobs that they have; jobs that still wait for a thread are dropped.
    pub fn stop(&self) {
        let (threads, refused) = {
            let mut state = self.0.state.lock();
            state.stopping = true;
            (std::mem::take(&mut state.threads), std::mem::take(&mut state.jobs))
        };
        // Without the lock, as above.
        drop(refused);
        self.0.work.notify_all();
        for thread in threads {
            // A panic has been counted; there is nothing else to learn from it here.
            let _ = thread.join();
        }
    }

    /// Starts a thread; where none can be started and there is none, the last job has nobody.
    fn start_thread(&self, state: &mut State) -> Result<(), Busy> {
        let shared = Arc::clone(&self.0);
        let threads = &self.0.threads;
        let thread = threads.start_small(STACK_BYTES, "worker", PanicScope::Process, move || shared.work());
        match thread {
            Ok(thread) => {
                state.alive += 1;
                state.threads.retain(|t| !t.is_finished());
                state.threads.push(thread);
                Ok(())
            }
            // Without a new thread the job waits for one that there is; with none at all it never runs.
            Err(_) if state.alive > 0 => Ok(()),
            Err(_) => Err(Busy::Full),
        }
    }
}

// === impl Shared ===

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next_job() {
            // A job that panics must not take a place of the pool with it.
            let _ = self.threads.caught("worker", PanicScope::Call, job);
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            let timed_out = !state.stopping && self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if state.jobs.is_empty() && (timed_out || state.stopping) {
                state.alive -= 1;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_that_wait_do_not_hold_up_others() {
        let workers = Workers::default();
        let (release, blocked) = mpsc::channel::<()>();
        let (done, all_done) = mpsc::channel();
        let first_done = done.clone();
        workers
            .run(move || {
                blocked.recv().unwrap();
                first_done.send(1).unwrap();
            })
            .unwrap();
        workers.run(move || done.send(2).unwrap()).unwrap();
        assert_eq!(all_done.recv_timeout(Duration::from_secs(5)), Ok(2));
        release.send(()).unwrap();
        assert_eq!(all_done.recv_timeout(Duration::from_secs(5)), Ok(1));
        workers.stop();
        assert_eq!(workers.run(|| ()), Err(Busy::Stopping));
    }

    #[test]
    fn a_job_that_panics_does_not_take_its_thread_with_it() {
        let workers = Workers::default();
        workers.run(|| panic!("part of the test")).unwrap();
        let (done, is_done) = mpsc::channel();
        workers.run(move || done.send(()).unwrap()).unwrap();
        assert_eq!(is_done.recv_timeout(Duration::from_secs(5)), Ok(()));
        workers.stop();
        assert_eq!(workers.threads().panics(PanicScope::Call), 1);
    }
}
