//! Pipe with callbacks: what its user may call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::{ConnectOptions, Descriptor, Incoming, Message, Pipe, ReadFailed, Remote, WriteFailed};
use super::core::{Closing, Core, Hold};
use super::dispatcher::Callback;
use super::lane::Lane;
use super::opened::Opened;
use super::reads::{self, OwnedAllocation, ReadDone};
use super::writes::{self, WriteDone};
use crate::error::{Error, Result};

/// End of a pipe of a [`Context`](super::Context). Dropped with its last clone it is closed. A clone in a callback that waits counts:
/// [`close`](Self::close) ends it.
///
/// No call waits for anything but a lock. A close and the last drop send a frame. Where the sidecar takes nothing they wait, 15 s at most.
#[derive(Clone)]
pub struct CallbackPipe {
    hold: Arc<Hold<Shared>>,
}

/// Inside of a pipe, which its workers share.
pub(super) struct Shared {
    pub(super) opened: Opened<Pipe>,
    pub(super) writes: Lane<writes::Job>,
    pub(super) reads: Lane<reads::Job>,
    finished: AtomicBool,
    /// Shared with every write that has not ended.
    unended: Arc<()>,
}

impl CallbackPipe {
    pub(super) fn connect(core: &Arc<Core>, to: &str, options: &ConnectOptions) -> Self {
        let (pipe, registered) = Self::new(core);
        match registered {
            Ok(()) => pipe.hold.0.write(writes::Job::Connect(to.to_owned(), options.clone())),
            Err(error) => pipe.hold.0.close(error),
        }
        pipe
    }

    /// Pipe that is to be accepted.
    ///
    /// # Errors
    /// PIPE_CLOSED with the context, LIMIT_EXCEEDED.
    pub(super) fn accepting(core: &Arc<Core>) -> Result<Self> {
        let (pipe, registered) = Self::new(core);
        registered.map(|()| pipe)
    }

    fn new(core: &Arc<Core>) -> (Self, Result<()>) {
        let shared = Arc::new(Shared {
            opened: Opened::new(core),
            writes: Lane::default(),
            reads: Lane::default(),
            finished: AtomicBool::new(false),
            unended: Arc::default(),
        });
        let registered = core.register(&shared);
        (Self { hold: Arc::new(Hold(shared)) }, registered)
    }

    /// Pipe that was accepted.
    pub(super) fn accepted(&self, pipe: Pipe) {
        let opened = &self.hold.0.opened;
        opened.open(pipe.with_cancel(opened.cancel()));
    }

    /// The other end, once the pipe is connected and while it is not closed here.
    pub fn remote(&self) -> Option<Remote> {
        let opened = &self.hold.0.opened;
        let pipe = if opened.core.is_child() { None } else { opened.now() };
        pipe.map(|pipe| pipe.remote().clone())
    }

    /// Writes a message behind those before it. The callback gets it back when the other end has read it, or with the error. At most
    /// [`UNREAD_MAX`](super::super::UNREAD_MAX) are under way; others wait here. One that nobody reads ends with DEADLINE_EXCEEDED after
    /// the sidecar's longest deadline, an hour.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED beyond [`OPERATIONS_MAX`](super::OPERATIONS_MAX), [`Error::Forked`] in a child of the process. The callback is not
    /// called, and the message comes back here.
    pub fn write(
        &self,
        message: Message,
        done: impl FnOnce(WriteDone) + Send + 'static,
    ) -> std::result::Result<(), Box<WriteFailed>> {
        let shared = &self.hold.0;
        let operation = match shared.opened.admit() {
            Ok(operation) => operation,
            Err(error) => return Err(writes::unwritten(message, error)),
        };
        let (callback, unended) = (Callback::of(operation, done), Arc::clone(&shared.unended));
        shared.write(writes::Job::Write(message, writes::Done { callback, unended }));
        Ok(())
    }

    /// Has the descriptor of the next message, or the end, given to the callback, once. Further ones wait behind it, each until the
    /// descriptor before was read or dropped. A descriptor that is dropped unread is given again. With an error there is none.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED beyond [`OPERATIONS_MAX`](super::OPERATIONS_MAX), [`Error::Forked`] in a child of the process. The callback is not
    /// called.
    pub fn read_descriptor(&self, done: impl FnOnce(Result<Incoming>) + Send + 'static) -> Result<()> {
        let shared = &self.hold.0;
        let done = Callback::of(shared.opened.admit()?, done);
        shared.read(reads::Job::Next(done));
        Ok(())
    }

    /// Brings the bytes of a message to where the allocation says, which the callback gets back in any case. With an error it also gets the
    /// descriptor, which may be read again. The bytes have the client's deadline to come.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED beyond [`OPERATIONS_MAX`](super::OPERATIONS_MAX), [`Error::Forked`] in a child of the process. The callback is not
    /// called, and descriptor and allocation come back here.
    pub fn read(
        &self,
        descriptor: Descriptor,
        allocation: OwnedAllocation,
        done: impl FnOnce(ReadDone) + Send + 'static,
    ) -> std::result::Result<(), Box<ReadDone>> {
        let shared = &self.hold.0;
        let operation = match shared.opened.admit() {
            Ok(operation) => operation,
            Err(error) => {
                let outcome = Err(Box::new(ReadFailed { descriptor, error }));
                return Err(Box::new(ReadDone { outcome, allocation }));
            }
        };
        shared.read(reads::Job::Read(descriptor, allocation, Callback::of(operation, done)));
        Ok(())
    }

    /// Says, behind the writes before, that this end writes nothing more: the other one gets [`Incoming::End`] behind the last message.
    /// Later writes end with PIPE_CLOSED. [`Context::join`](super::Context::join) waits until it is said. A close behind it says it at once
    /// if every write has ended.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of the process.
    pub fn finish(&self) -> Result<()> {
        let shared = &self.hold.0;
        shared.opened.core.check()?;
        if !shared.finished.swap(true, Ordering::Relaxed) {
            shared.write(writes::Job::Finish(shared.opened.begin()));
        }
        Ok(())
    }

    /// Closes this end. What is under way ends with PIPE_CLOSED, and so does what is scheduled later.
    pub fn close(&self) {
        self.hold.close();
    }
}

impl Shared {
    fn write(self: &Arc<Self>, job: writes::Job) {
        if self.writes.push(job)
            && let Err(error) = self.writes.start("tl-pipe-writes", self, writes::run)
        {
            self.close(error);
        }
    }

    fn read(self: &Arc<Self>, job: reads::Job) {
        if self.reads.push(job)
            && let Err(error) = self.reads.start("tl-pipe-reads", self, reads::run)
        {
            self.close(error);
        }
    }
}

impl Closing for Shared {
    fn core(&self) -> &Core {
        &self.opened.core
    }

    fn close(&self, why: Error) {
        // The worker would come too late. Behind a write that has not ended the other end is to see a close.
        let finished = self.finished.load(Ordering::Relaxed) && Arc::strong_count(&self.unended) == 1;
        if finished && let Some(pipe) = self.opened.now() {
            // A session that is lost has ended the pipe.
            let _ = pipe.finish();
        }
        self.opened.end(why);
        self.writes.close();
        self.reads.close();
    }
}

impl fmt::Debug for CallbackPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackPipe").finish_non_exhaustive()
    }
}
