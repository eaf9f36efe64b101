//! Turns of tests that run as threads of one program and share the machine, or what is installed on it.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Turns, for a `static` of a suite. A test that fails in its turn ends it as well.
#[derive(Debug, Default)]
pub struct Turns(RwLock<()>);

impl Turns {
    /// Turns that nobody has taken.
    pub const fn new() -> Self {
        Self(RwLock::new(()))
    }

    /// A turn of a test that bears nobody beside it. Nobody else has one while this is held.
    pub fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn of a test that bears others of its kind beside it.
    pub fn beside_others(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}
