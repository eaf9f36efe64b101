//! Content of the Secret, as bytes. Every replica reads it; whoever writes it names the version that it has read.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::authority::{Authority, CertError};
use super::rotation::{Step, step};

/// The key of the Secret under which the authorities are.
pub const SECRET_KEY: &str = "authorities.json";

/// The authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    authorities: Vec<Authority>,
}

/// The Secret does not keep what it should.
#[derive(Debug, Error)]
#[error("the Secret's {SECRET_KEY} cannot be read ({0}): delete the Secret, and it is made again")]
pub struct KeptError(#[from] serde_json::Error);

impl Kept {
    /// Reads the bytes of the Secret.
    ///
    /// # Errors
    /// They are something else.
    pub fn read(bytes: &[u8]) -> Result<Kept, KeptError> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// The bytes for the Secret.
    ///
    /// # Errors
    /// Never, for this type.
    pub fn to_bytes(&self) -> Result<Vec<u8>, KeptError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Step that is to be done now.
    pub fn step(&self, now: u64) -> Step {
        step(now, &self.authorities.iter().map(|authority| authority.made).collect::<Vec<_>>())
    }

    /// Kept state after that step; none if nothing changes.
    ///
    /// # Errors
    /// A new authority cannot be made.
    pub fn after(&self, step: &Step, now: u64) -> Result<Option<Kept>, CertError> {
        if !step.make && step.drop.is_empty() {
            return Ok(None);
        }
        let mut authorities = self.authorities.clone();
        authorities.retain(|authority| !step.drop.contains(&authority.made));
        if step.make {
            authorities.push(Authority::make(now)?);
        }
        Ok(Some(Kept { authorities }))
    }

    /// The one that was made then.
    pub fn authority(&self, made: u64) -> Option<&Authority> {
        self.authorities.iter().find(|authority| authority.made == made)
    }

    /// Bundle that a caller has to trust: every authority there is, the newest last.
    pub fn bundle(&self) -> String {
        self.authorities.iter().map(|authority| authority.certificate.as_str()).collect()
    }
}
