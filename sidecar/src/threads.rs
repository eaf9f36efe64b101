//! Threads: the one way to start one, and what is known when one panics. Knows nothing of what they do.
//!
//! A panic ends as much as hangs on its thread, and is counted by that ([`PanicScope`]): one call, one connection, or the
//! process. A process does not end of a panic, it only works no more; so from then on it is not alive, and whoever runs it
//! begins another.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;

use crate::admin::{Health, Probe};
use crate::metrics::label::{Label, PanicScope};

/// The threads of a sidecar. Clones are the same ones.
#[derive(Clone, Default)]
pub struct Threads(Arc<Inner>);

#[derive(Default)]
struct Inner {
    health: Health,
    panics: [AtomicU64; PanicScope::ALL.len()],
    running: Mutex<BTreeMap<String, usize>>,
    /// Points at which the next one to come by panics.
    #[cfg(test)]
    fail_points: Mutex<Vec<&'static str>>,
    /// True while the system has no thread.
    #[cfg(test)]
    has_none: std::sync::atomic::AtomicBool,
}

/// A thread that runs or a task that goes on. Dropped by a panic it says so.
struct Watched<'a> {
    threads: &'a Threads,
    name: &'a str,
    scope: PanicScope,
}

// === impl Threads ===

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("running", &self.running()).finish_non_exhaustive()
    }
}

impl Threads {
    /// Threads whose panics are told to `health`.
    pub fn new(health: Health) -> Self {
        Self(Arc::new(Inner { health, ..Inner::default() }))
    }

    /// Starts a thread.
    ///
    /// # Errors
    /// The system has no more.
    pub fn start<T: Send + 'static>(
        &self,
        name: &str,
        scope: PanicScope,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        self.start_by(Builder::new(), name, scope, work)
    }

    /// Starts a thread with a stack of so many bytes.
    ///
    /// # Errors
    /// The system has no more.
    pub fn start_small<T: Send + 'static>(
        &self,
        stack: usize,
        name: &str,
        scope: PanicScope,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        self.start_by(Builder::new().stack_size(stack), name, scope, work)
    }

    fn start_by<T: Send + 'static>(
        &self,
        builder: Builder,
        name: &str,
        scope: PanicScope,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        #[cfg(test)]
        if self.0.has_none.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (threads, own_name) = (self.clone(), name.to_owned());
        builder.name(name.to_owned()).spawn(move || {
            let _watched = threads.watch(&own_name, scope);
            threads.point(&own_name);
            work()
        })
    }

    /// Work that never panics further: where it did, the panic is counted and there is no result.
    pub fn caught<T>(&self, name: &str, scope: PanicScope, work: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(done) => Some(done),
            Err(panic) => {
                self.panicked(name, scope, message(&*panic));
                None
            }
        }
    }

    /// Future that never panics further, as work that is [caught](Self::caught).
    pub async fn caught_future<T>(
        &self,
        name: &str,
        scope: PanicScope,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        let polled = poll_fn(|context| {
            let polled = self.caught(name, scope, || {
                self.point(name);
                work.as_mut().poll(context)
            });
            polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
        });
        polled.await
    }

    /// A task, to be spawned, whose panic goes no further than itself; then there is no result.
    pub async fn caught_task<T>(
        self,
        name: &'static str,
        scope: PanicScope,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let _watched = self.watch(name, scope);
        self.caught_future(name, scope, pin!(work)).await
    }

    /// A task, to be spawned; its panic is seen as that of a thread.
    pub async fn task<T>(self, name: &'static str, scope: PanicScope, work: impl Future<Output = T>) -> T {
        let _watched = self.watch(name, scope);
        self.point(name);
        work.await
    }

    /// Work of a call that waits, beside the tasks.
    pub fn blocking<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        tokio::task::spawn_blocking(move || {
            let _watched = self.watch("blocking", PanicScope::Call);
            self.point("blocking");
            work()
        })
    }

    /// A panic was seen elsewhere.
    pub fn panicked(&self, name: &str, scope: PanicScope, why: &str) {
        self.0.panics[scope.index()].fetch_add(1, Ordering::Relaxed);
        if scope == PanicScope::Process {
            self.0.health.block(Probe::Alive, name, "its thread has panicked");
        }
        let on = std::thread::current();
        let on = on.name().unwrap_or_default();
        tracing::error!(thread = name, on, ends = scope.as_str(), why, "a thread has panicked");
    }

    /// A thread without which the process does not work could not be started.
    pub fn missing(&self, name: &str) {
        self.0.health.block(Probe::Alive, name, "its thread could not be started");
    }

    /// Panics so far that ended so much.
    pub fn panics(&self, scope: PanicScope) -> u64 {
        self.0.panics[scope.index()].load(Ordering::Relaxed)
    }

    /// The names of those that run, with how many there are of each.
    pub fn running(&self) -> Vec<(String, usize)> {
        self.0.running.lock().iter().map(|(name, count)| (name.clone(), *count)).collect()
    }

    fn watch<'a>(&'a self, name: &'a str, scope: PanicScope) -> Watched<'a> {
        #[cfg(test)]
        assert!(tests::is_known(name), "{name} is no thread that a test has panic: add it to `NAMES`");
        *self.0.running.lock().entry(name.to_owned()).or_default() += 1;
        Watched { threads: self, name, scope }
    }

    /// A place where a test may have a thread panic.
    #[cfg(not(test))]
    pub(crate) fn point(&self, _name: &str) {}

    #[cfg(test)]
    pub(crate) fn point(&self, name: &str) {
        let mut points = self.0.fail_points.lock();
        if let Some(at) = points.iter().position(|point| *point == name) {
            points.swap_remove(at);
            drop(points);
            panic!("part of the test: {name}");
        }
    }

    /// Has the next thread that comes by there panic.
    #[cfg(test)]
    pub(crate) fn fail_at(&self, point: &'static str) {
        self.0.fail_points.lock().push(point);
    }

    /// From now on the system has no thread for anybody.
    #[cfg(test)]
    pub(crate) fn run_out(&self) {
        self.0.has_none.store(true, Ordering::Relaxed);
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.threads.panicked(self.name, self.scope, "its message is on standard error");
        }
        let mut running = self.threads.0.running.lock();
        if let Some(count) = running.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                running.remove(self.name);
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Threads of tests.
    const OF_TESTS: [&str; 5] = ["one", "two", "stuck", "clock", "verb"];

    /// Names of all other threads and tasks, in the order of the alphabet. Nothing is started by a name that is not here, and
    /// `app::panics` checks that each is tried.
    pub(crate) const NAMES: [&str; 43] = [
        "admin",
        "blocking",
        "directory",
        "directory-keep",
        "directory-publish",
        "directory-watch",
        "drain",
        "grpc-channel",
        "grpc-get",
        "grpc-pipe",
        "grpc-session",
        "grpc-watch",
        "keeper",
        "rotation",
        "session",
        "sessions",
        "tl-channel-in",
        "tl-channel-out",
        "tl-grpc-sleep",
        "tl-lane-in",
        "tl-lane-out",
        "tl-node",
        "tl-node-leases",
        "tl-node-listen",
        "tl-orphans",
        "tl-peer-clock",
        "tl-peer-dial",
        "tl-peer-in",
        "tl-peer-listen",
        "tl-peer-out",
        "tl-populator",
        "tl-quic",
        "tl-quic-dial",
        "tl-quic-in",
        "tl-quic-lane",
        "tl-quic-listen",
        "tl-reaper",
        "tl-resolve",
        "tl-watcher",
        "waiter",
        "waiter-clock",
        "waits",
        "worker",
    ];

    pub(super) fn is_known(name: &str) -> bool {
        // Each session has a number.
        let kind = if name.starts_with("session-") { "session" } else { name };
        NAMES.contains(&kind) || OF_TESTS.contains(&kind)
    }

    fn counts(threads: &Threads) -> Vec<u64> {
        PanicScope::ALL.iter().map(|scope| threads.panics(*scope)).collect()
    }

    #[test]
    fn a_panic_is_counted_by_what_it_ends_and_only_that_of_all_is_the_end_of_being_alive() {
        let health = Health::new();
        let threads = Threads::new(health.clone());
        for (scope, counted, alive) in [
            (PanicScope::Call, [0, 0, 1], true),
            (PanicScope::Connection, [0, 1, 1], true),
            (PanicScope::Process, [1, 1, 1], false),
        ] {
            let thread = threads.start("one", scope, || panic!("part of the test")).unwrap();
            assert!(thread.join().is_err());
            assert_eq!(counts(&threads), counted);
            assert_eq!(health.ask(Probe::Alive).is_ok(), alive, "{scope:?}");
        }
        assert_eq!(health.ask(Probe::Alive), Err("one: its thread has panicked\n".to_owned()));
        assert_eq!(threads.running(), []);
    }

    #[test]
    fn a_thread_that_ends_well_is_no_panic_and_gives_what_it_made() {
        let threads = Threads::default();
        assert_eq!(threads.start("one", PanicScope::Process, || 7).unwrap().join().unwrap(), 7);
        assert_eq!(counts(&threads), [0, 0, 0]);
    }

    #[test]
    fn work_that_is_caught_goes_no_further() {
        let threads = Threads::default();
        assert_eq!(threads.caught("one", PanicScope::Call, || 7), Some(7));
        assert_eq!(threads.caught("one", PanicScope::Call, || -> u8 { panic!("part of the test") }), None);
        assert_eq!(counts(&threads), [0, 0, 1]);
    }

    #[tokio::test]
    async fn a_task_whose_panic_is_caught_is_counted_once_and_goes_no_further() {
        let threads = Threads::default();
        assert_eq!(threads.clone().caught_task("one", PanicScope::Call, async { 7 }).await, Some(7));
        let panics = async {
            tokio::task::yield_now().await;
            assert!(std::hint::black_box(false), "part of the test");
        };
        assert_eq!(threads.clone().caught_task("one", PanicScope::Call, panics).await, None);
        threads.fail_at("two");
        assert_eq!(threads.clone().caught_task("two", PanicScope::Connection, async { 7 }).await, None);
        assert_eq!((counts(&threads), threads.running()), (vec![0, 1, 1], Vec::new()));
    }

    #[tokio::test]
    async fn a_task_that_panics_is_seen_and_one_that_is_dropped_is_none() {
        let health = Health::new();
        let threads = Threads::new(health.clone());
        let task =
            tokio::spawn(threads.clone().task("one", PanicScope::Process, std::future::pending::<()>()));
        while threads.running().is_empty() {
            tokio::task::yield_now().await;
        }
        task.abort();
        assert!(task.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!(health.ask(Probe::Alive), Ok(()));
        threads.fail_at("two");
        let task = tokio::spawn(threads.task("two", PanicScope::Process, async {}));
        assert!(task.await.is_err_and(|error| error.is_panic()));
        assert_eq!(health.ask(Probe::Alive), Err("two: its thread has panicked\n".to_owned()));
    }
}
