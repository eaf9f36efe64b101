//! A thread with an owner, who joins it.

use std::io;
use std::thread::{self, JoinHandle};

/// Joined when dropped; whoever owns it has told the thread to end before.
#[derive(Debug)]
pub(crate) struct OwnedThread(Option<JoinHandle<()>>);

impl OwnedThread {
    pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Ok(Self(Some(thread::Builder::new().name(name.to_owned()).spawn(run)?)))
    }

    /// Waits for its end. A thread that happens to run the last owner's drop does not wait for itself.
    pub(crate) fn join(&mut self) {
        if let Some(handle) = self.0.take()
            && handle.thread().id() != thread::current().id()
        {
            // A panic of the thread has been printed by its hook; here it only must not be waited for twice.
            let _ = handle.join();
        }
    }
}

impl Drop for OwnedThread {
    fn drop(&mut self) {
        self.join();
    }
}
