//! A thread with an owner, who joins it.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Starter of named threads. Its giver learns of a thread's panic.
pub type StartThread =
    Arc<dyn Fn(&'static str, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> + Send + Sync>;

/// Threads of which nobody learns more than that they have ended.
pub(crate) fn plainly() -> StartThread {
    Arc::new(|name, run| thread::Builder::new().name(name.to_owned()).spawn(run))
}

/// Joined when dropped; whoever owns it has told the thread to end before.
#[derive(Debug)]
pub(crate) struct OwnedThread(Option<JoinHandle<()>>);

impl OwnedThread {
    pub(crate) fn spawn(
        start: &StartThread,
        name: &'static str,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        Ok(Self(Some(start(name, Box::new(run))?)))
    }

    /// Waits for its end. A thread that happens to run the last owner's drop does not wait for itself.
    pub(crate) fn join(&mut self) {
        if let Some(handle) = self.0.take()
            && handle.thread().id() != thread::current().id()
        {
            // Of a panic of the thread whoever started it knows; here it only must not be waited for twice.
            let _ = handle.join();
        }
    }
}

impl Drop for OwnedThread {
    fn drop(&mut self) {
        self.join();
    }
}
