//! The webhook's certificates: who signs them, when they change, and where they are kept.
//!
//! ```text
//!   Secret: authorities ──rotation::step(now)──> make one, drop one, sign with one      (pure)
//!      │ every replica                                    │ the leader
//!      └─> leaf in memory, 7 days                         └─> caBundle of the webhook configurations
//! ```
//!
//! A new authority is in the bundle long before it signs anything, and an old one stays until nothing that it signed can
//! still be in use, so no call of the API server meets a certificate that it does not know. The keys of the
//! leaves never leave their replica. With cert-manager the files that it mounts are served instead.
//!
//! Beside the authorities the Secret has the secret parts of the path that the API server calls ([`SecretPaths`]),
//! with cert-manager, too.

mod authority;
mod files;
mod kept;
mod path;
mod resolver;
pub mod rotation;

pub use authority::{Authority, CertError, LEAF_LIFE_SECONDS, Leaf};
pub use files::read_files;
pub use kept::{Kept, KeptError, SECRET_KEY};
pub use path::{ANNOUNCE_AFTER_SECONDS, BadPaths, CHANGE_AFTER_SECONDS, PATHS_KEY, SecretPath, SecretPaths};
pub use resolver::Current;

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, by this machine's clock.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
