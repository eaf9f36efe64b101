//! Waiters: threads for jobs that wait for somebody else (room, a turn, a peer). Knows nothing of what they do.
//!
//! ```text
//!   job of a caller --> its share has a place --> a thread `waiter` --> over: the next one in line
//!         |                                                               ^
//!         '--> in line ---------------------------------------------------'
//!                '--> its deadline, a cancel or the end of the sidecar: runs on the workers, and waits for nothing any more
//! ```
//! A job may wait until the deadline of its call, which is up to an hour. So each caller has a share of the threads, and who
//! waits has no thread of the workers: those are for what takes a while and ends by itself.

mod turns;

use std::hash::Hash;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use self::turns::{Entry, RUNNING_MAX, Turns};
use crate::cancel::Cancel;
use crate::metrics::label::PanicScope;
use crate::workers::{Busy, Workers};

const STACK_BYTES: usize = 256 << 10;

/// Job that gives up by itself once its deadline is over, or its caller's cancel is raised.
type Job = Box<dyn FnOnce() + Send>;

/// Threads for jobs that wait, of callers `K`.
pub struct Waiters<K>(Arc<Inner<K>>);

struct Inner<K> {
    /// Threads of jobs that have a place.
    own: Workers,
    /// Threads of jobs that wait no more.
    workers: Workers,
    state: Mutex<State<K>>,
    changed: Condvar,
}

struct State<K> {
    turns: Turns<K, Job>,
    clock: Option<JoinHandle<()>>,
    closed: bool,
    stopping: bool,
}

/// Place of a job that runs. Dropped, the next one in line has it.
struct RunningJob<K: Clone + Eq + Hash + Send + Sync + 'static> {
    inner: Arc<Inner<K>>,
    whose: K,
}

// === impl Waiters ===

impl<K: Clone + Eq + Hash + Send + Sync + 'static> Waiters<K> {
    /// Waiters beside these workers.
    pub fn new(workers: Workers) -> Self {
        let own = Workers::named("waiter", workers.threads().clone(), RUNNING_MAX);
        let state = State { turns: Turns::default(), clock: None, closed: false, stopping: false };
        Self(Arc::new(Inner { own, workers, state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Runs a job once its caller's share has a place for it; at its deadline at the latest, or when its caller cancels.
    ///
    /// # Errors
    /// As many wait as may, or the sidecar ends. The job is dropped.
    pub fn run(
        &self,
        whose: K,
        deadline: Instant,
        cancel: Option<&Cancel>,
        job: impl FnOnce() + Send + 'static,
    ) -> Result<(), Busy> {
        let mut state = self.0.state.lock();
        if state.closed {
            drop(state);
            // Nobody waits any more.
            return self.0.workers.run(job);
        }
        match state.turns.enter(whose.clone(), deadline, Box::new(job)) {
            Entry::Runs(job) => {
                drop(state);
                self.0.begin(whose, job);
            }
            Entry::Full(job) => {
                drop(state);
                drop(job);
                return Err(Busy::Full);
            }
            Entry::Waits(number) => {
                if let Err(busy) = self.start_clock(&mut state) {
                    let job = state.turns.take(&whose, number);
                    drop(state);
                    drop(job);
                    return Err(busy);
                }
                let is_first = state.turns.next_deadline() == Some(deadline);
                drop(state);
                if is_first {
                    self.0.changed.notify_one();
                }
                if let Some(cancel) = cancel {
                    let inner = Arc::downgrade(&self.0);
                    cancel.on_cancel(Arc::new(move || {
                        if let Some(inner) = inner.upgrade() {
                            let job = inner.state.lock().turns.take(&whose, number);
                            inner.wait_no_more(job);
                        }
                    }));
                }
            }
        }
        Ok(())
    }

    /// Number of jobs in line.
    pub fn waiting(&self) -> usize {
        self.0.state.lock().turns.waiting()
    }

    /// Nobody waits any more: those in line run now, and hear it.
    pub fn close(&self) {
        let all = {
            let mut state = self.0.state.lock();
            state.closed = true;
            state.turns.drain()
        };
        self.0.wait_no_more(all);
    }

    /// Ends all threads after the jobs that they have. Before the workers end.
    pub fn stop(&self) {
        self.close();
        let clock = {
            let mut state = self.0.state.lock();
            state.stopping = true;
            state.clock.take()
        };
        self.0.changed.notify_one();
        if let Some(clock) = clock {
            // A panic has been counted; there is nothing else to learn from it here.
            let _ = clock.join();
        }
        self.0.own.stop();
    }

    /// Starts the thread that looks at the deadlines of those in line.
    fn start_clock(&self, state: &mut State<K>) -> Result<(), Busy> {
        if state.clock.is_some() {
            return Ok(());
        }
        let inner = Arc::downgrade(&self.0);
        let work = move || {
            while let Some(due) = inner.upgrade().and_then(|inner| inner.next_due()) {
                if let Some(inner) = inner.upgrade() {
                    inner.wait_no_more(due);
                }
            }
        };
        let threads = self.0.own.threads();
        let clock = threads.start_small(STACK_BYTES, "waiter-clock", PanicScope::Process, work);
        state.clock = Some(clock.map_err(|_| Busy::Full)?);
        Ok(())
    }
}

impl<K> Drop for Waiters<K> {
    fn drop(&mut self) {
        // Not joined: it may be a thread of theirs which lets the last handle go.
        self.0.state.lock().stopping = true;
        self.0.changed.notify_one();
    }
}

// === impl Inner ===

impl<K: Clone + Eq + Hash + Send + Sync + 'static> Inner<K> {
    /// Runs a job that has a place. Where there is no thread it is dropped, and the next one has the place.
    fn begin(self: &Arc<Self>, whose: K, job: Job) {
        let mut next = Some((whose, job));
        while let Some((whose, job)) = next.take() {
            let (inner, by) = (Arc::clone(self), whose.clone());
            let begun = self.own.run(move || {
                // Made where it runs alone: a job that is dropped uncalled begins no other inside itself.
                let _running = RunningJob { inner, whose: by };
                job();
            });
            if begun.is_err() {
                let mut state = self.state.lock();
                state.turns.leave(&whose);
                next = state.turns.next();
            }
        }
    }

    /// Runs jobs that wait for nothing any more.
    fn wait_no_more(&self, jobs: impl IntoIterator<Item = Job>) {
        for job in jobs {
            // One that is dropped answers all the same.
            let _ = self.workers.run(job);
        }
    }

    /// Jobs whose deadlines are over, once there are some; none at the end.
    fn next_due(&self) -> Option<Vec<Job>> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            let due = state.turns.due(Instant::now());
            if !due.is_empty() {
                return Some(due);
            }
            match state.turns.next_deadline() {
                Some(deadline) => drop(self.changed.wait_until(&mut state, deadline)),
                None => self.changed.wait(&mut state),
            }
        }
    }
}

// === impl RunningJob ===

impl<K: Clone + Eq + Hash + Send + Sync + 'static> Drop for RunningJob<K> {
    fn drop(&mut self) {
        let next = {
            let mut state = self.inner.state.lock();
            state.turns.leave(&self.whose);
            state.turns.next()
        };
        if let Some((whose, job)) = next {
            self.inner.begin(whose, job);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::turns::AT_A_TIME;
    use super::*;
    use crate::admin::{Health, Probe};
    use crate::threads::Threads;
    use crate::workers::THREADS_MAX;

    const SOON: Duration = Duration::from_secs(60);

    fn waiters() -> (Waiters<u32>, Workers) {
        let workers = Workers::default();
        (Waiters::new(workers.clone()), workers)
    }

    /// Has a caller wait with as many jobs as its share has places, until what is returned is dropped.
    fn fill(waiters: &Waiters<u32>, whose: u32) -> Vec<mpsc::Sender<()>> {
        let wait = || {
            let (release, blocked) = mpsc::channel::<()>();
            let (begun, has_begun) = mpsc::channel();
            let job = move || {
                begun.send(()).unwrap();
                let _ = blocked.recv();
            };
            waiters.run(whose, Instant::now() + 60 * SOON, None, job).unwrap();
            has_begun.recv_timeout(SOON).expect("it runs");
            release
        };
        (0..AT_A_TIME).map(|_| wait()).collect()
    }

    #[test]
    fn jobs_beyond_a_share_run_when_it_has_a_place_and_others_at_once() {
        let (waiters, workers) = waiters();
        let mut held = fill(&waiters, 1);
        let (done, is_done) = mpsc::channel();
        let run = |whose: u32, says: &'static str| {
            let done = done.clone();
            waiters.run(whose, Instant::now() + 60 * SOON, None, move || done.send(says).unwrap()).unwrap();
        };
        run(1, "in line");
        run(2, "another caller's");
        assert_eq!(is_done.recv_timeout(SOON), Ok("another caller's"));
        assert!(is_done.try_recv().is_err() && waiters.waiting() == 1);
        held.pop();
        assert_eq!(is_done.recv_timeout(SOON), Ok("in line"));
        drop(held);
        waiters.stop();
        workers.stop();
    }

    #[test]
    fn jobs_in_line_run_at_their_deadline_at_a_cancel_and_at_the_end() {
        let (waiters, workers) = waiters();
        let held = fill(&waiters, 1);
        let (done, is_done) = mpsc::channel();
        let job = |says: &'static str| {
            let done = done.clone();
            move || done.send(says).unwrap()
        };
        let (now, cancel) = (Instant::now(), Cancel::default());
        waiters.run(1, now + 60 * SOON, None, job("end")).unwrap();
        waiters.run(1, now + 60 * SOON, Some(&cancel), job("cancel")).unwrap();
        waiters.run(1, now + Duration::from_millis(5), None, job("deadline")).unwrap();
        assert_eq!(is_done.recv_timeout(SOON), Ok("deadline"));
        cancel.cancel();
        assert_eq!(is_done.recv_timeout(SOON), Ok("cancel"));
        waiters.close();
        assert_eq!(is_done.recv_timeout(SOON), Ok("end"));
        waiters.run(1, now, None, job("after it")).unwrap();
        assert_eq!(is_done.recv_timeout(SOON), Ok("after it"));
        drop(held);
        waiters.stop();
        workers.stop();
        assert!(waiters.run(1, now, None, job("never")).is_err());
    }

    #[test]
    fn a_clock_that_panics_is_the_end_of_being_alive_and_those_in_line_have_their_turns() {
        let health = Health::new();
        let workers = Workers::new(Threads::new(health.clone()), THREADS_MAX);
        let waiters = Waiters::new(workers.clone());
        let held = fill(&waiters, 1);
        workers.threads().fail_at("waiter-clock");
        let (done, is_done) = mpsc::channel();
        waiters.run(1, Instant::now() + 60 * SOON, None, move || done.send(()).unwrap()).unwrap();
        let deadline = Instant::now() + SOON;
        while health.ask(Probe::Alive).is_ok() {
            assert!(Instant::now() < deadline, "waited in vain for the panic");
            std::thread::yield_now();
        }
        assert_eq!(health.ask(Probe::Alive), Err("waiter-clock: its thread has panicked\n".to_owned()));
        drop(held);
        assert_eq!(is_done.recv_timeout(SOON), Ok(()));
        waiters.stop();
        workers.stop();
    }

    #[test]
    fn a_job_that_panics_gives_its_place_back() {
        let (waiters, workers) = waiters();
        for _ in 0..2 * AT_A_TIME {
            waiters.run(1, Instant::now() + 60 * SOON, None, || panic!("part of the test")).unwrap();
        }
        let (done, is_done) = mpsc::channel();
        waiters.run(1, Instant::now() + 60 * SOON, None, move || done.send(()).unwrap()).unwrap();
        assert_eq!(is_done.recv_timeout(SOON), Ok(()));
        waiters.stop();
        workers.stop();
    }
}
