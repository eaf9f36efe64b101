//! Names of hosts: looked up by the system on threads of their own, which nobody joins.
//!
//! The system's resolver has no deadline that it could be given, and cannot be interrupted. So whoever wants an address
//! waits for the answer and not for the thread: until a deadline, or until the end. A name that is being looked up is not
//! looked up a second time meanwhile, and so one that is never answered takes one thread. Names that were not answered in time have
//! places of their own, so that they keep no others out.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Names that are looked up at a time, of those that were not answered in time before, and of all others. Each costs a thread; one more
/// waits for a place, until its own deadline.
const LOOKUPS_MAX: usize = 32;
/// Names that are looked up in all: others become such that are not answered in time while their threads go on.
const THREADS_MAX: usize = 4 * LOOKUPS_MAX;
/// Names that were not answered in time that are remembered. Each costs its text, some hundred bytes; one more is as any other.
const SILENT_MAX: usize = 4096;

/// Source of the addresses of hosts. Clones are the same one.
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    /// Gives the addresses of a `host:port`, however long that takes.
    lookup: Box<Lookup>,
    threads: Threads,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: HashMap<String, Arc<Answer>>,
    /// Names that were not answered in time, and have not been since.
    silent: HashSet<String>,
    stopped: bool,
}

type Lookup = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

type Answer = OnceLock<Result<Vec<SocketAddr>, (io::ErrorKind, String)>>;

/// A lookup on its thread. Dropped it is over, by a panic too.
struct Running {
    resolver: Resolver,
    address: String,
    answer: Arc<Answer>,
}

// === impl Resolver ===

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl Resolver {
    /// The system's.
    pub fn new(threads: Threads) -> Self {
        Self::with(threads, |address| Ok(address.to_socket_addrs()?.collect()))
    }

    /// A resolver that looks up by this function.
    pub fn with(
        threads: Threads,
        lookup: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Inner { lookup: Box::new(lookup), threads, state, changed }))
    }

    /// The addresses of a `host:port`.
    ///
    /// # Errors
    /// The system's; `TimedOut` at the deadline; `ConnectionAborted` once it was stopped.
    pub fn resolve(&self, address: &str, until: Instant) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = address.parse() {
            return Ok(vec![address]);
        }
        let mut answer: Option<Arc<Answer>> = None;
        let mut state = self.0.state.lock();
        loop {
            if state.stopped {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if let Some(told) = answer.as_deref().and_then(OnceLock::get) {
                return told.clone().map_err(|(kind, why)| io::Error::new(kind, why));
            }
            if answer.is_none() {
                answer = self.ask(&mut state, address)?;
                if answer.is_some() {
                    // The lock was free meanwhile: it may have been stopped, or answered.
                    continue;
                }
            }
            if self.0.changed.wait_until(&mut state, until).timed_out() {
                if answer.is_some_and(|answer| answer.get().is_none()) && state.silent.len() < SILENT_MAX {
                    state.silent.insert(address.to_owned());
                    // Its place is another one now.
                    self.0.changed.notify_all();
                }
                let why = format!("the name of {address} was not resolved in time");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }

    /// Ends every wait at once, with an error.
    pub fn stop(&self) {
        self.0.state.lock().stopped = true;
        self.0.changed.notify_all();
    }

    /// Place of the answer; none while there is no place for a further lookup.
    fn ask(&self, state: &mut MutexGuard<'_, State>, address: &str) -> io::Result<Option<Arc<Answer>>> {
        if let Some(running) = state.running.get(address) {
            return Ok(Some(Arc::clone(running)));
        }
        if !state.has_place(address) {
            return Ok(None);
        }
        let answer = Arc::new(Answer::new());
        let running =
            Running { resolver: self.clone(), address: address.to_owned(), answer: Arc::clone(&answer) };
        state.running.insert(address.to_owned(), Arc::clone(&answer));
        // Without a thread it is dropped here, which takes the lock. The handle is dropped too: nobody waits for the thread.
        MutexGuard::unlocked(state, || {
            self.0.threads.start("tl-resolve", PanicScope::Call, move || running.look()).map(drop)
        })?;
        Ok(Some(answer))
    }
}

// === impl State ===

impl State {
    /// Returns whether a further name can be looked up now.
    fn has_place(&self, address: &str) -> bool {
        let is_silent = self.silent.contains(address);
        let same = self.running.keys().filter(|name| self.silent.contains(*name) == is_silent);
        self.running.len() < THREADS_MAX && same.count() < LOOKUPS_MAX
    }
}

// === impl Running ===

impl Running {
    fn look(self) {
        let found = (self.resolver.0.lookup)(&self.address);
        // Set once, here; or where this is dropped before.
        let _ = self.answer.set(found.map_err(|error| (error.kind(), error.to_string())));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let answer =
            self.answer.get_or_init(|| Err((io::ErrorKind::Other, "the lookup broke off".to_owned())));
        {
            let mut state = self.resolver.0.state.lock();
            state.running.remove(&self.address);
            if answer.is_ok() {
                state.silent.remove(&self.address);
            }
        }
        self.resolver.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    /// A resolver that answers each name when told to; the names that it was asked for.
    fn told() -> (Resolver, mpsc::Receiver<(String, mpsc::Sender<()>)>) {
        let (tell, asked) = mpsc::channel();
        let resolver = Resolver::with(Threads::default(), move |address| {
            let (answer, answered) = mpsc::channel();
            tell.send((address.to_owned(), answer)).unwrap();
            // The answer, or the end of the test.
            let _ = answered.recv();
            Ok(vec!["10.0.0.1:1".parse().unwrap()])
        });
        (resolver, asked)
    }

    #[test]
    fn an_address_is_looked_up_by_nobody() {
        let resolver = Resolver::with(Threads::default(), |_| panic!("part of the test"));
        let found = resolver.resolve("[::1]:9421", Instant::now()).unwrap();
        assert_eq!(found, ["[::1]:9421".parse().unwrap()]);
        assert!(
            Resolver::new(Threads::default()).resolve("localhost:9421", Instant::now() + PATIENCE).is_ok()
        );
    }

    #[test]
    fn a_lookup_that_panics_is_an_error_and_the_next_one_begins_anew() {
        let calls = AtomicUsize::new(0);
        let resolver =
            Resolver::with(Threads::default(), move |_| match calls.fetch_add(1, Ordering::SeqCst) {
                0 => panic!("part of the test"),
                _ => Ok(Vec::new()),
            });
        let error = resolver.resolve("a:1", Instant::now() + PATIENCE).unwrap_err();
        assert!(error.to_string().contains("broke off"), "{error}");
        assert!(resolver.resolve("a:1", Instant::now() + PATIENCE).is_ok());
    }

    #[test]
    fn a_name_that_is_looked_up_already_is_not_looked_up_a_second_time() {
        let (resolver, asked) = told();
        assert_eq!(resolver.resolve("a:1", soon()).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(resolver.resolve("a:1", soon()).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let (name, answer) = asked.recv_timeout(PATIENCE).unwrap();
        assert_eq!(name, "a:1");
        assert!(asked.try_recv().is_err(), "it is looked up once");
        drop((answer, asked));
    }

    #[test]
    fn names_that_are_not_answered_keep_no_other_name_out() {
        let (resolver, asked) = told();
        let names: Vec<_> = (0..LOOKUPS_MAX).map(|at| format!("silent-{at}:1")).collect();
        names.iter().for_each(|name| drop(resolver.resolve(name, soon()).unwrap_err()));
        let running: Vec<_> = (0..LOOKUPS_MAX).map(|_| asked.recv_timeout(PATIENCE).unwrap()).collect();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| resolver.resolve("other:1", Instant::now() + HOUR));
            let (name, answer) = asked.recv_timeout(PATIENCE).expect("it has a place");
            assert_eq!(name, "other:1");
            drop(answer);
            assert!(waits.join().unwrap().is_ok());
        });
        drop(running);
    }

    #[test]
    fn names_that_were_not_answered_in_time_have_their_places_and_others_have_theirs() {
        let mut state = State::default();
        state.silent.extend((0..=LOOKUPS_MAX).map(|at| format!("silent-{at}")));
        let run = |state: &mut State, name: String| drop(state.running.insert(name, Arc::default()));
        (1..=LOOKUPS_MAX).for_each(|at| run(&mut state, format!("silent-{at}")));
        assert!(!state.has_place("silent-0") && state.has_place("other-0"));
        (1..=LOOKUPS_MAX).for_each(|at| run(&mut state, format!("other-{at}")));
        assert!(!state.has_place("other-0"));
        state.running.remove("silent-7");
        assert!(state.has_place("silent-0") && !state.has_place("other-0"));
        state.silent.insert("other-7".to_owned());
        assert!(!state.has_place("silent-0") && state.has_place("other-0"), "one was not answered in time");
    }

    #[test]
    fn only_so_many_names_are_looked_up_at_a_time_and_the_next_one_gets_a_place_that_is_free() {
        let (resolver, asked) = told();
        let names: Vec<_> = (0..=THREADS_MAX).map(|at| format!("name-{at}:1")).collect();
        names.iter().for_each(|name| drop(resolver.resolve(name, soon()).unwrap_err()));
        let running: Vec<_> = (0..THREADS_MAX).map(|_| asked.recv_timeout(PATIENCE).unwrap()).collect();
        assert!(asked.try_recv().is_err(), "one has no place");
        drop(running);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| resolver.resolve(&names[THREADS_MAX], Instant::now() + HOUR));
            drop(asked.recv_timeout(PATIENCE).expect("it has a place"));
            assert!(waits.join().unwrap().is_ok());
        });
    }

    #[test]
    fn whoever_waits_is_told_when_it_is_stopped() {
        let (resolver, asked) = told();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| resolver.resolve("a:1", Instant::now() + HOUR));
            let _running = asked.recv_timeout(PATIENCE).unwrap();
            resolver.stop();
            assert_eq!(waits.join().unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        });
        assert_eq!(resolver.resolve("a:1", soon()).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }
}
