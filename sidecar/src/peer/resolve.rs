//! Names of hosts: looked up by the system on threads of their own, which nobody joins.
//!
//! The system's resolver has no deadline that it could be given, and cannot be interrupted. So whoever wants an address
//! waits for the answer and not for the thread: until a deadline, or until the end. A name that is being looked up is not
//! looked up a second time meanwhile, and so one that is never answered takes one thread.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::metrics::label::PanicScope;
use crate::threads::Threads;

/// Names that are looked up at a time. Each costs a thread; one more waits for a place, until its own deadline.
const LOOKUPS_MAX: usize = 32;

/// Where addresses come from. Clones are the same one.
#[derive(Clone)]
pub struct Resolver(Arc<Inner>);

struct Inner {
    /// Gives the addresses of a `host:port`, however long that takes.
    lookup: Box<dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync>,
    threads: Threads,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: HashMap<String, Arc<Answer>>,
    stopped: bool,
}

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

    /// One that looks up in that way.
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
        let mut answer = None;
        let mut state = self.0.state.lock();
        loop {
            if state.stopped {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if answer.is_none() {
                answer = self.ask(&mut state, address)?;
            }
            if let Some(told) = answer.as_deref().and_then(OnceLock::get) {
                return told.clone().map_err(|(kind, why)| io::Error::new(kind, why));
            }
            if self.0.changed.wait_until(&mut state, until).timed_out() {
                let why = format!("the name of {address} was not resolved in time");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }

    /// Whoever waits is told at once that nothing comes any more.
    pub fn stop(&self) {
        self.0.state.lock().stopped = true;
        self.0.changed.notify_all();
    }

    /// Where the answer will be; none while there is no place for one more lookup.
    fn ask(&self, state: &mut MutexGuard<'_, State>, address: &str) -> io::Result<Option<Arc<Answer>>> {
        if let Some(running) = state.running.get(address) {
            return Ok(Some(Arc::clone(running)));
        }
        if state.running.len() >= LOOKUPS_MAX {
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
        self.answer.get_or_init(|| Err((io::ErrorKind::Other, "the lookup broke off".to_owned())));
        self.resolver.0.state.lock().running.remove(&self.address);
        self.resolver.0.changed.notify_all();
    }
}
