//! Workers that write: one begins writes in order, the other waits for them in order, so that many are under way at once.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use super::super::{ConnectOptions, Delivered, Message, UNREAD_MAX, WriteFailed, Writing};
use super::core::{Closing, guarded};
use super::dispatcher::{Callback, Operation};
use super::lane;
use super::pipe::Shared;
use crate::channel::Timeout;
use crate::error::{Error, Result};

/// Outcome of a write: the message comes back in any case.
pub type WriteDone = std::result::Result<Message, Box<WriteFailed>>;

pub(super) enum Job {
    Connect(String, ConnectOptions),
    Write(Message, Done),
    Finish(Operation),
}

/// Callback of a write, which has ended when the callback is due.
pub(super) struct Done {
    pub(super) callback: Callback<WriteDone>,
    pub(super) unended: Arc<()>,
}

/// A write whose end is to be waited for; one that could not begin ends in its turn.
type Begun = (std::result::Result<Writing, Box<WriteFailed>>, Done);

/// Worker that waits for writes.
struct Waiter {
    begun: SyncSender<Begun>,
    thread: JoinHandle<()>,
}

/// Works until the end is closed and every write has ended.
pub(super) fn run(shared: &Arc<Shared>) {
    loop {
        let mut waiter = None;
        while let Some(job) = shared.writes.take() {
            match job {
                Job::Connect(to, options) => connect(shared, &to, &options),
                Job::Write(message, done) => write(shared, message, done, &mut waiter),
                // Where it is lost, there is nobody to tell; the next operation says so.
                Job::Finish(_under_way) => drop(shared.opened.get().and_then(|pipe| pipe.finish())),
            }
        }
        // Callbacks of what the next worker does come behind those of this one.
        if let Some(Waiter { begun, thread }) = waiter {
            drop(begun);
            // A panic has closed the end.
            let _ = thread.join();
        }
        if shared.writes.leave() {
            return;
        }
    }
}

fn connect(shared: &Shared, to: &str, options: &ConnectOptions) {
    match shared.opened.client().connect_pipe(to, options) {
        Ok(pipe) => shared.opened.open(pipe),
        Err(error) => shared.close(error),
    }
}

fn write(shared: &Arc<Shared>, message: Message, done: Done, waiter: &mut Option<Waiter>) {
    let started = match waiter.take() {
        Some(waiter) => Ok(waiter),
        None => Waiter::start(shared),
    };
    let Waiter { begun, .. } = match started {
        Ok(started) => waiter.insert(started),
        // Without it no write is under way.
        Err(error) => return done.post(Err(unwritten(message, error))),
    };
    let writing = match shared.opened.get() {
        Ok(pipe) => pipe.begin(message, Timeout::Never),
        Err(error) => Err(unwritten(message, error)),
    };
    // It waits while as many are under way as may be.
    if let Err(unheard) = begun.send((writing, done)) {
        finish(shared, unheard.0);
    }
}

impl Done {
    fn post(self, outcome: WriteDone) {
        drop(self.unended);
        self.callback.post(outcome);
    }
}

impl Waiter {
    fn start(shared: &Arc<Shared>) -> Result<Self> {
        // Beside these one is waited for, and one may have begun to wait for a place.
        let (begun, heard) = sync_channel(UNREAD_MAX - 2);
        let shared = Arc::clone(shared);
        let wait = move || wait_for_all(&shared, &heard);
        let started = thread::Builder::new().name("tl-pipe-written".into()).spawn(wait);
        let thread = started.map_err(|error| Error::resources("no thread waits for writes", error))?;
        Ok(Self { begun, thread })
    }
}

fn wait_for_all(shared: &Shared, begun: &Receiver<Begun>) {
    for begun in begun {
        guarded(shared, || finish(shared, begun));
    }
}

fn finish(shared: &Shared, (writing, done): Begun) {
    done.post(writing.and_then(Writing::wait).map_err(|mut failed| {
        failed.error = shared.opened.explain(failed.error);
        failed
    }));
}

pub(super) fn unwritten(message: Message, error: Error) -> Box<WriteFailed> {
    Box::new(WriteFailed { message, error, delivered: Delivered::No })
}

impl lane::Job for Job {
    fn fail(self, error: Error) {
        if let Self::Write(message, done) = self {
            done.post(Err(unwritten(message, error)));
        }
    }
}
