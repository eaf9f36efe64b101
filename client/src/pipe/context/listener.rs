//! Listener with callbacks: pipes are accepted in order, each by one callback.

use std::fmt;
use std::sync::Arc;

use super::super::{ListenOptions, Listener};
use super::core::{Closing, Core, Hold};
use super::dispatcher::Callback;
use super::lane::{self, Lane};
use super::opened::Opened;
use super::pipe::CallbackPipe;
use crate::channel::Timeout;
use crate::error::{Error, Result};

/// An entry point of a [`Context`](super::Context). Dropped with its last clone it is closed. A clone in a callback that waits counts.
#[derive(Clone)]
pub struct CallbackListener {
    hold: Arc<Hold<Entry>>,
}

/// Inside of a listener, which its worker shares.
struct Entry {
    opened: Opened<Listener>,
    name: String,
    accepts: Lane<Job>,
}

enum Job {
    Listen(ListenOptions),
    Accept(Callback<Result<CallbackPipe>>),
}

impl CallbackListener {
    pub(super) fn open(core: &Arc<Core>, name: &str, options: &ListenOptions) -> Self {
        let (opened, name) = (Opened::new(core), name.to_owned());
        let entry = Arc::new(Entry { opened, name, accepts: Lane::default() });
        match core.register(&entry) {
            Ok(()) => entry.work(entry.accepts.push(Job::Listen(options.clone()))),
            Err(error) => entry.close(error),
        }
        Self { hold: Arc::new(Hold(entry)) }
    }

    /// Name under which connects find it.
    pub fn name(&self) -> &str {
        &self.hold.0.name
    }

    /// Has the next pipe that is connected given to the callback, once. Further ones wait behind it, and pipes wait for them.
    ///
    /// The callback gets NAME_TAKEN and the like where there is no listener, and PIPE_CLOSED when it was closed. Where the context has
    /// [`ENDS_MAX`](super::ENDS_MAX), it gets LIMIT_EXCEEDED, and the pipe waits for another accept.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED beyond [`OPERATIONS_MAX`](super::OPERATIONS_MAX), [`Error::Forked`] in a child of the process. The callback is not
    /// called.
    pub fn accept(&self, accepted: impl FnOnce(Result<CallbackPipe>) + Send + 'static) -> Result<()> {
        let entry = &self.hold.0;
        let accepted = Callback::of(entry.opened.admit()?, accepted);
        entry.work(entry.accepts.push(Job::Accept(accepted)));
        Ok(())
    }

    /// Closes it. Accepts that wait end with PIPE_CLOSED, and pipes that nobody accepted are closed.
    pub fn close(&self) {
        self.hold.close();
    }
}

impl Entry {
    /// Starts the worker, where it is wanted.
    fn work(self: &Arc<Self>, wanted: bool) {
        if wanted && let Err(error) = self.accepts.start("tl-pipe-accepts", self, run) {
            self.close(error);
        }
    }

    fn listen(&self, options: &ListenOptions) {
        match self.opened.client().listen_with(&self.name, options) {
            Ok(listener) => self.opened.open(listener),
            Err(error) => self.close(error),
        }
    }

    fn accept(&self) -> Result<CallbackPipe> {
        let listener = self.opened.get()?;
        let pipe = CallbackPipe::accepting(&self.opened.core)?;
        pipe.accepted(listener.accept(Timeout::Never).map_err(|error| self.opened.explain(error))?);
        Ok(pipe)
    }
}

fn run(entry: &Arc<Entry>) {
    loop {
        while let Some(job) = entry.accepts.take() {
            match job {
                Job::Listen(options) => entry.listen(&options),
                Job::Accept(accepted) => accepted.post(entry.accept()),
            }
        }
        if entry.accepts.leave() {
            return;
        }
    }
}

impl lane::Job for Job {
    fn fail(self, error: Error) {
        if let Self::Accept(accepted) = self {
            accepted.post(Err(error));
        }
    }
}

impl Closing for Entry {
    fn core(&self) -> &Core {
        &self.opened.core
    }

    fn close(&self, why: Error) {
        self.opened.end(why);
        self.accepts.close();
    }
}

impl fmt::Debug for CallbackListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackListener").field("name", &self.name()).finish_non_exhaustive()
    }
}
