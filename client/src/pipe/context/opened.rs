//! The pipe or the listener beneath an end of a context: a worker opens it, a close ends it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::{Condvar, Mutex};
use tensorlane_proto::{Failure, Reason};

use super::core::Core;
use super::dispatcher::Operation;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::wait::Cancel;

/// Most operations of one end whose callback was not called yet. The call of one more fails with LIMIT_EXCEEDED, and keeps nothing.
pub const OPERATIONS_MAX: usize = 16_384;

/// Pipe or listener that is being opened, is open, or has ended.
pub(super) struct Opened<T> {
    pub(super) core: Arc<Core>,
    cancel: Cancel,
    stage: Mutex<Stage<T>>,
    changed: Condvar,
    operations: Arc<AtomicUsize>,
}

enum Stage<T> {
    Opening,
    Open(Arc<T>),
    Ended(Error),
}

impl<T> Opened<T> {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::clone(core),
            cancel: core.client.cancel_part(),
            stage: Mutex::new(Stage::Opening),
            changed: Condvar::new(),
            operations: Arc::default(),
        }
    }

    /// Cancel of its calls, used by its close.
    pub(super) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Client of its calls, which workers make.
    pub(super) fn client(&self) -> Client {
        self.core.client.with_cancel(self.cancel()).uninterrupted()
    }

    /// Takes what was opened. It is dropped again where a close came before.
    pub(super) fn open(&self, opened: T) {
        let opened = Stage::Open(Arc::new(opened));
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Opening) {
            *stage = opened;
            self.changed.notify_all();
        } else {
            // Its end says so on the socket, which needs no lock.
            drop(stage);
            drop(opened);
        }
    }

    /// The pipe or the listener, once it is open.
    ///
    /// # Errors
    /// The error that has ended it.
    pub(super) fn get(&self) -> Result<Arc<T>> {
        let mut stage = self.stage.lock();
        loop {
            match &*stage {
                Stage::Opening => self.changed.wait(&mut stage),
                Stage::Open(opened) => return Ok(Arc::clone(opened)),
                Stage::Ended(error) => return Err(error.clone()),
            }
        }
    }

    /// The pipe or the listener, while it is open.
    pub(super) fn now(&self) -> Option<Arc<T>> {
        match &*self.stage.lock() {
            Stage::Open(opened) => Some(Arc::clone(opened)),
            _ => None,
        }
    }

    /// Ends it, unless it has ended: calls that wait are withdrawn.
    pub(super) fn end(&self, why: Error) {
        let mut stage = self.stage.lock();
        if matches!(*stage, Stage::Ended(_)) {
            return;
        }
        let before = std::mem::replace(&mut *stage, Stage::Ended(why));
        drop(stage);
        self.cancel.cancel();
        self.changed.notify_all();
        drop(before);
    }

    /// The error of a call as its user sees it: one that was withdrawn by the end has the cause of that.
    pub(super) fn explain(&self, error: Error) -> Error {
        match (&error, &*self.stage.lock()) {
            (Error::Withdrawn, Stage::Ended(why)) => why.clone(),
            _ => error,
        }
    }

    /// An operation that has no callback.
    pub(super) fn begin(&self) -> Operation {
        Operation::begin(&self.core.dispatcher, &self.operations).0
    }

    /// An operation with a callback, if there is room for one more.
    ///
    /// # Errors
    /// [`Error::Forked`], LIMIT_EXCEEDED.
    pub(super) fn admit(&self) -> Result<Operation> {
        self.core.check()?;
        let (operation, before) = Operation::begin(&self.core.dispatcher, &self.operations);
        if before < OPERATIONS_MAX {
            return Ok(operation);
        }
        let message = format!(
            "{before} operations of this end are under way, and {OPERATIONS_MAX} may be; wait for callbacks of some of them"
        );
        Err(Failure::new(Reason::LimitExceeded, message).with("most", OPERATIONS_MAX).into())
    }
}
