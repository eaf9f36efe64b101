//! The keys of this sidecar: the one in use, and another one while it is changed.
//!
//! ```text
//!   identity.pem            the key in use
//!   identity-next.pem       made known to others, not used yet
//!   identity-previous       the fingerprint of the last one, while others may still know this sidecar by it
//! ```
//! A sidecar that starts again in the middle of a change goes on with it: the next key stays the next one, and of the
//! last one nothing is left to be known by.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tensorlane_proto::identity::Fingerprint;

use super::file::{self, NEXT_FILE};
use super::{Identity, KEY_FILE, KeyFileError};
use crate::plain;

const PREVIOUS_FILE: &str = "identity-previous";

/// The keys in a state directory.
#[derive(Debug)]
pub struct Keyring {
    directory: PathBuf,
    current: Identity,
    next: Option<Identity>,
    previous: Option<Fingerprint>,
}

impl Keyring {
    /// The keys in the directory, for a sidecar that starts: nobody is connected to it by an older one.
    ///
    /// # Errors
    /// A key cannot be read, kept or used; see [`KeyFileError`] for what to do.
    pub fn start(directory: &Path) -> Result<Keyring, KeyFileError> {
        let mut keyring = Keyring::look(directory)?;
        keyring.retire();
        Ok(keyring)
    }

    /// The keys in the directory, of a sidecar that may be running. Makes one if there is none.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn look(directory: &Path) -> Result<Keyring, KeyFileError> {
        let previous = plain::open(&directory.join(PREVIOUS_FILE)).and_then(io::read_to_string).ok();
        // The next one before the one in use: whoever changes them meanwhile leaves none of them out.
        let next = directory.join(NEXT_FILE).exists();
        let next = next.then(|| Identity::named(directory, NEXT_FILE)).transpose()?;
        let current = Identity::load_or_create(directory)?;
        let other = |fingerprint: &Fingerprint| *fingerprint != current.fingerprint;
        Ok(Keyring {
            directory: directory.to_owned(),
            next: next.filter(|next| other(&next.fingerprint)),
            previous: previous.and_then(|text| text.parse().ok()).filter(other),
            current,
        })
    }

    /// The key in use.
    pub fn current(&self) -> &Identity {
        &self.current
    }

    /// The fingerprint of the next one, while there is one.
    pub fn next(&self) -> Option<Fingerprint> {
        self.next.as_ref().map(|next| next.fingerprint)
    }

    /// The fingerprint of the last one, while others may know this sidecar by it.
    pub fn previous(&self) -> Option<Fingerprint> {
        self.previous
    }

    /// Fingerprints that others are to know this sidecar by: the key in use, and the next or else the last one.
    pub fn fingerprints(&self) -> Vec<Fingerprint> {
        let other = self.next().or(self.previous);
        [self.current.fingerprint].into_iter().chain(other).collect()
    }

    /// Time at which the key in use was made; now, if the file does not say.
    pub fn made(&self) -> SystemTime {
        let made = fs::metadata(self.directory.join(KEY_FILE)).and_then(|file| file.modified());
        made.unwrap_or_else(|_| SystemTime::now())
    }

    /// Makes the next key, unless there is one.
    ///
    /// # Errors
    /// It cannot be made or kept.
    pub fn prepare(&mut self) -> Result<(), KeyFileError> {
        if self.next.is_none() {
            self.next = Some(Identity::named(&self.directory, NEXT_FILE)?);
        }
        Ok(())
    }

    /// The next key becomes the one in use, and the one in use the last one. Nothing where there is no next one.
    ///
    /// # Errors
    /// It cannot be kept; the keys are then as they were.
    pub fn advance(&mut self) -> Result<(), KeyFileError> {
        let Some(next) = self.next.take() else { return Ok(()) };
        let last = self.current.fingerprint;
        let path = self.directory.join(PREVIOUS_FILE);
        let written = fs::write(&path, last.to_string());
        let written = written.map_err(|source| KeyFileError::Io { action: "write", path, source });
        if let Err(error) = written.and_then(|()| file::advance(&self.directory)) {
            self.next = Some(next);
            return Err(error);
        }
        (self.current, self.previous) = (next, Some(last));
        Ok(())
    }

    /// From now on nobody is to know this sidecar by its last key.
    pub fn retire(&mut self) {
        self.previous = None;
        match fs::remove_file(self.directory.join(PREVIOUS_FILE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(%error, "the fingerprint of the last key stays in the state directory");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prints(directory: &Path) -> Vec<Fingerprint> {
        Keyring::look(directory).unwrap().fingerprints()
    }

    #[test]
    fn a_change_of_keys_goes_through_two_fingerprints_and_back_to_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut keyring = Keyring::start(folder.path()).unwrap();
        let first = keyring.current().fingerprint;
        assert_eq!(keyring.fingerprints(), [first]);
        keyring.prepare().unwrap();
        keyring.prepare().unwrap();
        let second = keyring.next().unwrap();
        assert_eq!(keyring.fingerprints(), [first, second]);
        assert_eq!(prints(folder.path()), [first, second]);
        keyring.advance().unwrap();
        assert_eq!((keyring.current().fingerprint, keyring.previous()), (second, Some(first)));
        assert_eq!(prints(folder.path()), [second, first]);
        keyring.retire();
        assert_eq!((keyring.fingerprints(), prints(folder.path())), (vec![second], vec![second]));
        let files = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 1, "the key in use alone is left");
    }

    #[test]
    fn a_restart_in_the_middle_goes_on_with_the_next_key_and_forgets_the_last() {
        let folder = tempfile::tempdir().unwrap();
        let mut keyring = Keyring::start(folder.path()).unwrap();
        keyring.prepare().unwrap();
        let (first, second) = (keyring.current().fingerprint, keyring.next().unwrap());
        let mut again = Keyring::start(folder.path()).unwrap();
        assert_eq!(again.fingerprints(), [first, second]);
        again.advance().unwrap();
        let last = Keyring::start(folder.path()).unwrap();
        assert_eq!((last.fingerprints(), prints(folder.path())), (vec![second], vec![second]));
    }

    #[test]
    fn a_change_that_cannot_be_kept_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut keyring = Keyring::start(folder.path()).unwrap();
        keyring.prepare().unwrap();
        let before = keyring.fingerprints();
        fs::remove_file(folder.path().join(NEXT_FILE)).unwrap();
        let error = keyring.advance().unwrap_err().to_string();
        assert!(error.contains("put the next key in the place of"), "{error}");
        assert_eq!(keyring.fingerprints(), before);
    }
}
