//! Thread that waits for ends: of pipes, whose last writer is gone, and of processes.
//!
//! Only ends wake it. What a client writes into its witness does not: a hang-up is watched edge-triggered and
//! without interest in bytes, so that nobody can make the thread spin.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::owned_thread::{OwnedThread, StartThread, plainly};

/// The token of the event that ends the thread; watches count from 1.
const STOP: u64 = 0;
/// Number of ends that are taken from the kernel at once; costs 12 bytes each, once.
const BATCH: usize = 64;

type Callback = Box<dyn FnOnce() + Send>;

struct Entry {
    fd: OwnedFd,
    callback: Callback,
}

struct Inner {
    epoll: OwnedFd,
    stop: OwnedFd,
    next: AtomicU64,
    panics: AtomicU64,
    /// A leaf lock: nothing is called and nothing is dropped under it.
    entries: Mutex<HashMap<u64, Entry>>,
}

/// Calls back, on its own thread, when a pipe loses its last writer or a process ends. Joined when dropped.
pub struct Watcher {
    inner: Arc<Inner>,
    thread: Mutex<OwnedThread>,
}

/// A watch that is still on. Dropping it cancels it; [`Watch::detach`] leaves it to the watcher.
#[must_use = "dropping it cancels the watch"]
pub struct Watch {
    inner: Weak<Inner>,
    token: u64,
}

impl Watcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where descriptors or threads are not to be had.
    pub fn start() -> io::Result<Self> {
        Self::start_by(&plainly())
    }

    /// Starts the thread in that way.
    ///
    /// # Errors
    /// Where descriptors or threads are not to be had.
    pub fn start_by(start: &StartThread) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let inner = Arc::new(Inner {
            epoll,
            stop,
            next: AtomicU64::new(STOP + 1),
            panics: AtomicU64::new(0),
            entries: Mutex::new(HashMap::new()),
        });
        let running = Arc::clone(&inner);
        let thread = OwnedThread::spawn(start, "tl-watcher", move || running.run())?;
        Ok(Self { inner, thread: Mutex::new(thread) })
    }

    /// Calls back once when nobody holds the other (writing) end of the pipe `fd` any more; at once, on the
    /// watcher's thread, where that is already so. The descriptor is closed before the call.
    ///
    /// # Errors
    /// Where the kernel does not watch that descriptor.
    pub fn on_hangup(&self, fd: OwnedFd, callback: impl FnOnce() + Send + 'static) -> io::Result<Watch> {
        self.inner.watch(fd, EventFlags::HUP | EventFlags::ET, Box::new(callback))
    }

    /// Calls back once when the process of `pidfd` has ended.
    ///
    /// # Errors
    /// Where the kernel does not watch that descriptor.
    pub fn on_exit(&self, pidfd: OwnedFd, callback: impl FnOnce() + Send + 'static) -> io::Result<Watch> {
        self.inner.watch(pidfd, EventFlags::IN | EventFlags::ET, Box::new(callback))
    }

    /// Number of ends that are waited for.
    #[must_use]
    pub fn watching(&self) -> usize {
        self.inner.entries.lock().len()
    }

    /// Number of callbacks that panicked; the watcher lives on.
    #[must_use]
    pub fn callback_panics(&self) -> u64 {
        self.inner.panics.load(Ordering::Relaxed)
    }

    /// Ends the thread and waits for it. Watches that are still on are dropped uncalled.
    pub fn stop(&self) {
        // It can only fail by overflowing the counter, and then the thread is awake already.
        let _ = rustix::io::write(&self.inner.stop, &1u64.to_ne_bytes());
        self.thread.lock().join();
        let left = std::mem::take(&mut *self.inner.entries.lock());
        drop(left);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    fn watch(self: &Arc<Self>, fd: OwnedFd, flags: EventFlags, callback: Callback) -> io::Result<Watch> {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.entries.lock();
        // Under the lock, so that an end that is already there finds its entry.
        epoll::add(&self.epoll, &fd, EventData::new_u64(token), flags)?;
        entries.insert(token, Entry { fd, callback });
        Ok(Watch { inner: Arc::downgrade(self), token })
    }

    fn take(&self, token: u64) -> Option<Callback> {
        let entry = self.entries.lock().remove(&token)?;
        // It is registered until here; closing alone would not do where a copy of the descriptor lives on.
        let _ = epoll::delete(&self.epoll, entry.fd.as_fd());
        Some(entry.callback)
    }

    fn run(&self) {
        let mut events: Vec<Event> = Vec::with_capacity(BATCH);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // Only a closed or foreign epoll descriptor can fail, and ours lives as long as we do.
                Err(_) => return,
            }
            for event in &events {
                let token = { event.data }.u64();
                if token == STOP {
                    return;
                }
                if let Some(callback) = self.take(token)
                    && catch_unwind(AssertUnwindSafe(callback)).is_err()
                {
                    self.panics.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

impl Watch {
    /// Ends the watch. True if the callback was not and will not be called.
    pub fn cancel(self) -> bool {
        self.end()
    }

    /// Leaves it on for good.
    pub fn detach(mut self) {
        self.inner = Weak::new();
    }

    fn end(&self) -> bool {
        self.inner.upgrade().is_some_and(|inner| inner.take(self.token).is_some())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::passing::pipe;
    use crate::testing::{spawned, until};

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn the_last_writers_end_is_told_and_bytes_written_before_are_not() {
        let watcher = Watcher::start().unwrap();
        let (read, write) = pipe().unwrap();
        let (told, hears) = mpsc::channel();
        watcher.on_hangup(read, move || told.send(()).unwrap()).unwrap().detach();
        let copy = write.try_clone().unwrap();
        let mut file = std::fs::File::from(write);
        file.write_all(b"noise").unwrap();
        drop(file);
        assert!(hears.recv_timeout(Duration::from_millis(50)).is_err(), "a writer is still there");
        drop(copy);
        hears.recv_timeout(SOON).unwrap();
        assert_eq!(watcher.watching(), 0);
    }

    #[test]
    fn an_end_that_was_there_before_the_watch_is_told_too() {
        let watcher = Watcher::start().unwrap();
        let (read, write) = pipe().unwrap();
        drop(write);
        let (told, hears) = mpsc::channel();
        watcher.on_hangup(read, move || told.send(()).unwrap()).unwrap().detach();
        hears.recv_timeout(SOON).unwrap();
    }

    #[test]
    fn a_cancelled_watch_is_not_told() {
        let watcher = Watcher::start().unwrap();
        let (read, write) = pipe().unwrap();
        let (told, hears) = mpsc::channel::<()>();
        let watch = watcher.on_hangup(read, move || told.send(()).unwrap()).unwrap();
        assert!(watch.cancel());
        drop(write);
        assert_eq!(hears.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn the_end_of_a_process_is_told() {
        let watcher = Watcher::start().unwrap();
        let mut child = spawned(Command::new("cat").stdin(std::process::Stdio::piped()));
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let (told, hears) = mpsc::channel();
        watcher.on_exit(pidfd, move || told.send(()).unwrap()).unwrap().detach();
        child.kill().unwrap();
        hears.recv_timeout(SOON).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_callback_that_panics_does_not_end_the_watcher() {
        let watcher = Watcher::start().unwrap();
        let (read, write) = pipe().unwrap();
        watcher.on_hangup(read, || panic!("on purpose")).unwrap().detach();
        drop(write);
        until("the panic is counted", || watcher.callback_panics() == 1);
        let (read, write) = pipe().unwrap();
        let (told, hears) = mpsc::channel();
        watcher.on_hangup(read, move || told.send(()).unwrap()).unwrap().detach();
        drop(write);
        hears.recv_timeout(SOON).unwrap();
    }
}
