//! Gate of the webhook: which calls come from the API server.
//!
//! Nobody else is told the secret part of the path. Who calls any other path is a stranger: see [`super::stranger`].

use std::sync::{Arc, PoisonError, RwLock};

use crate::certs::SecretPath;

/// Paths whose callers are taken for the API server. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<RwLock<Vec<SecretPath>>>);

impl Gate {
    /// From now on these.
    pub fn set(&self, accepted: Vec<SecretPath>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = accepted;
    }

    /// Returns whether a path is one of them. All are compared, whichever it is.
    pub(crate) fn knows(&self, called: &str) -> bool {
        let accepted = self.0.read().unwrap_or_else(PoisonError::into_inner);
        accepted.iter().fold(false, |known, path| known | path.is(called))
    }
}
