//! Workers: threads for what takes a while. Knows nothing of what they do.
//!
//! The quick verbs are answered on the thread that read them. What takes longer (checksums, copies, disks) runs here, so that it
//! is written as plain blocking code and never holds up anybody's socket. What waits for somebody else stands with the `waiters`.
//! Threads are made when they are needed, end after a while without work, and are bounded. The line before them has no bound of its
//! own: each job is of a call, a transfer or a session, and those have. So nobody is refused for what others have begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use thiserror::Error;

use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Most worker threads. Each costs a stack of 256 KiB of address space.
pub const THREADS_MAX: usize = 256;
/// An idle thread ends after this long.
const IDLE: Duration = Duration::from_secs(10);
const STACK_BYTES: usize = 256 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Busy {
    /// As many calls wait already as may, or the system has no thread.
    #[error("too many calls wait already; retry later")]
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
    /// Name of each of its threads.
    name: &'static str,
    state: Mutex<State>,
    work: Condvar,
    threads_max: usize,
    /// Set if its jobs end soon, so that one without a thread may wait for another's.
    has_line: bool,
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
        Self::made("worker", threads, threads_max, true)
    }

    /// A pool of threads with a name of their own, for jobs that wait for somebody else. One for which the system has no thread
    /// is refused: no other of them may end before its deadline.
    pub fn named(name: &'static str, threads: Threads, threads_max: usize) -> Self {
        Self::made(name, threads, threads_max, false)
    }

    /// A pool of threads with a name of their own, for jobs that end by themselves: one for which the system has no thread waits for another's.
    pub fn in_line(name: &'static str, threads: Threads, threads_max: usize) -> Self {
        Self::made(name, threads, threads_max, true)
    }

    fn made(name: &'static str, threads: Threads, threads_max: usize, has_line: bool) -> Self {
        let (state, work) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { threads, name, state, work, threads_max, has_line }))
    }

    /// Returns the threads of the sidecar, among which those of the pool are started.
    pub fn threads(&self) -> &Threads {
        &self.0.threads
    }

    /// Runs `job` on some thread, soon.
    ///
    /// # Errors
    /// The pool ends, or the system has no thread: at all, or for a job that waits. The job is dropped.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Busy> {
        let mut state = self.0.state.lock();
        if state.stopping {
            return Err(Busy::Stopping);
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

    /// Starts a thread; where none can be started and there is none to wait for, the last job has nobody.
    fn start_thread(&self, state: &mut State) -> Result<(), Busy> {
        let (shared, name, threads) = (Arc::clone(&self.0), self.0.name, &self.0.threads);
        let thread = threads.start_small(STACK_BYTES, name, PanicScope::Process, move || shared.work());
        match thread {
            Ok(thread) => {
                state.alive += 1;
                state.threads.retain(|t| !t.is_finished());
                state.threads.push(thread);
                Ok(())
            }
            // Without a new thread the job waits for one that there is; with none at all it never runs.
            Err(_) if state.alive > 0 && self.0.has_line => Ok(()),
            Err(_) => Err(Busy::Full),
        }
    }
}

// === impl Shared ===

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next_job() {
            // A job that panics must not take a place of the pool with it.
            let _ = self.threads.caught(self.name, PanicScope::Call, || {
                self.threads.point("job");
                job();
            });
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
    use crate::admin::{Health, Probe};

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
        assert_eq!(all_done.recv_timeout(Duration::from_secs(60)), Ok(2));
        release.send(()).unwrap();
        assert_eq!(all_done.recv_timeout(Duration::from_secs(60)), Ok(1));
        workers.stop();
        assert_eq!(workers.run(|| ()), Err(Busy::Stopping));
    }

    #[test]
    fn a_job_finds_no_line_too_long() {
        let workers = Workers::new(Threads::default(), 1);
        let (release, blocked) = mpsc::channel::<()>();
        let (done, all_done) = mpsc::channel();
        let (begun, has_begun) = mpsc::channel();
        workers
            .run(move || {
                begun.send(()).unwrap();
                blocked.recv().unwrap();
            })
            .unwrap();
        has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
        (0..10_000).for_each(|_| workers.run(|| ()).unwrap());
        workers.run(move || done.send(()).unwrap()).unwrap();
        release.send(()).unwrap();
        assert_eq!(all_done.recv_timeout(Duration::from_secs(60)), Ok(()));
        workers.stop();
    }

    #[test]
    fn a_job_that_waits_is_refused_where_the_system_has_no_thread_and_one_that_works_stands_in_line() {
        for (workers, answer) in [
            (Workers::named("waiter", Threads::default(), 8), Err(Busy::Full)),
            (Workers::new(Threads::default(), 8), Ok(())),
        ] {
            let (release, blocked) = mpsc::channel::<()>();
            let (begun, has_begun) = mpsc::channel();
            let first = move || {
                begun.send(()).unwrap();
                blocked.recv().unwrap();
            };
            workers.run(first).unwrap();
            has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
            workers.threads().run_out();
            assert_eq!(workers.run(|| ()), answer);
            release.send(()).unwrap();
            workers.stop();
        }
    }

    #[test]
    fn a_thread_of_a_pool_that_panics_outside_of_a_job_is_the_end_of_being_alive() {
        for name in ["worker", "waiter", "drain"] {
            let health = Health::new();
            let threads = Threads::new(health.clone());
            threads.fail_at(name);
            let workers = Workers::named(name, threads, 1);
            workers.run(|| ()).unwrap();
            workers.stop();
            assert_eq!(health.ask(Probe::Alive), Err(format!("{name}: its thread has panicked\n")));
        }
    }

    #[test]
    fn a_job_that_panics_does_not_take_its_thread_with_it() {
        let workers = Workers::default();
        workers.run(|| panic!("part of the test")).unwrap();
        let (done, is_done) = mpsc::channel();
        workers.run(move || done.send(()).unwrap()).unwrap();
        assert_eq!(is_done.recv_timeout(Duration::from_secs(60)), Ok(()));
        workers.stop();
        assert_eq!(workers.threads().panics(PanicScope::Call), 1);
    }
}
