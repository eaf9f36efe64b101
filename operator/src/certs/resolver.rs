//! The certificate that the server shows at this moment. Connections that are open keep theirs.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::authority::Leaf;

/// Certificate that is shown now. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Current(Arc<RwLock<Option<Leaf>>>);

impl Current {
    /// From now on this one.
    pub fn set(&self, leaf: Leaf) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(leaf);
    }

    /// Certificate that is shown now; none before the first one.
    pub fn leaf(&self) -> Option<Leaf> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.leaf().map(|leaf| leaf.key)
    }
}
