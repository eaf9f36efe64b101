//! The file of the identity key: made once, whole or not at all, readable by the sidecar alone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

use crate::plain;

/// The file in the state directory.
pub const KEY_FILE: &str = "identity.pem";

/// The file beside it, of a key that is made known and not used yet.
pub(super) const NEXT_FILE: &str = "identity-next.pem";

/// The most bytes of the file; a P-256 key has about 250.
const FILE_BYTES_MAX: u64 = 16 << 10;

/// Reason for which there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// A call to the system failed.
    #[error(
        "cannot {action} {}: {source}; state.directory must be a directory that the sidecar can write, and nobody else",
        path.display()
    )]
    Io {
        /// Action that was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Reason for which it failed.
        source: io::Error,
    },
    /// The file is no key of ours.
    #[error(
        "{} does not hold an ECDSA P-256 key in PEM ({wrong}); restore it, or delete it to start as a new identity \
         (peers that pin the old fingerprint must then learn the new one)",
        path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Text of what is wrong.
        wrong: String,
    },
    /// Anybody may have copied it.
    #[error(
        "{} can be read by everyone (mode {mode:04o}): the key may be known to others; delete it to start as a new \
         identity, or set mode 0600 if you know that nobody has read it",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
    },
    /// The key is there and no certificate can be made of it.
    #[error("{} holds a key that cannot be used: {source}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Reason of the failure.
        source: rcgen::Error,
    },
}

/// The key of that name in the directory, and its file.
pub(super) fn load_or_create(directory: &Path, name: &str) -> Result<(KeyPair, PathBuf), KeyFileError> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| KeyFileError::Io { action, path, source }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io("make", directory))?;
    let path = directory.join(name);
    let file = match plain::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            create(directory, &path).map_err(io("create", &path))?;
            plain::open(&path)
        }
        opened => opened,
    };
    let key = read(file.map_err(io("open", &path))?, &path)?;
    Ok((key, path))
}

/// Gives the next key the name of the one in use. It takes effect at once: whoever starts again uses it.
pub(super) fn advance(directory: &Path) -> Result<(), KeyFileError> {
    let (next, path) = (directory.join(NEXT_FILE), directory.join(KEY_FILE));
    let moved = fs::rename(&next, &path).and_then(|()| File::open(directory)?.sync_all());
    moved.map_err(|source| KeyFileError::Io { action: "put the next key in the place of", path, source })
}

/// Writes a new key beside the file and links it to its name: whoever reads sees all of it, and of two who make one
/// at the same time the first wins and both go on to read its key.
fn create(directory: &Path, path: &Path) -> io::Result<()> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(io::Error::other)?;
    let draft = directory.join(format!("draft-{:016x}.pem", rand::random::<u64>()));
    let linked = write(&draft, key.serialize_pem().as_bytes()).and_then(|()| fs::hard_link(&draft, path));
    let removed = fs::remove_file(&draft);
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => removed.and_then(|()| File::open(directory)?.sync_all()),
    }
}

fn write(draft: &Path, pem: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    file.write_all(pem)?;
    file.sync_all()
}

fn read(file: File, path: &Path) -> Result<KeyPair, KeyFileError> {
    let io = |source| KeyFileError::Io { action: "read", path: path.to_owned(), source };
    let corrupt = |wrong: String| KeyFileError::Corrupt { path: path.to_owned(), wrong };
    let mode = file.metadata().map_err(io)?.permissions().mode() & 0o7777;
    // Only what everyone may read is refused: the kubelet widens files for an fsGroup to the group, of which only the
    // sidecar has the volume.
    if mode & 0o007 != 0 {
        return Err(KeyFileError::Exposed { path: path.to_owned(), mode });
    }
    let mut pem = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut pem).map_err(io)?;
    if pem.len() as u64 > FILE_BYTES_MAX {
        return Err(corrupt(format!("more than {FILE_BYTES_MAX} bytes")));
    }
    let pem = String::from_utf8(pem).map_err(|_| corrupt("not text".to_owned()))?;
    let key = KeyPair::from_pem(&pem).map_err(|error| corrupt(error.to_string()))?;
    if *key.algorithm() != PKCS_ECDSA_P256_SHA256 {
        return Err(corrupt("another kind of key".to_owned()));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::super::Identity;
    use super::*;

    #[test]
    fn a_second_start_is_the_same_identity() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("deep/state");
        let first = Identity::load_or_create(&state).unwrap();
        let second = Identity::load_or_create(&state).unwrap();
        assert_eq!((first.fingerprint, &first.key), (second.fingerprint, &second.key));
        let names: Vec<_> = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [KEY_FILE], "a draft was left behind");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&state), mode(&state.join(KEY_FILE))), (0o700, 0o600));
    }

    #[test]
    fn many_that_start_at_once_agree_on_one_key() {
        let directory = tempfile::tempdir().unwrap();
        let start = || Identity::load_or_create(directory.path()).unwrap().fingerprint;
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|fingerprint| *fingerprint == all[0]));
    }

    #[test]
    fn a_file_that_is_no_key_is_an_error_that_says_what_to_do_and_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(KEY_FILE);
        let ed25519 = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap().serialize_pem();
        let whole = KeyPair::generate().unwrap().serialize_pem();
        for text in ["", "no key", &ed25519, &whole[..100], &"x".repeat(20_000)] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let error = Identity::load_or_create(directory.path()).unwrap_err();
            assert!(matches!(error, KeyFileError::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains("delete it to start as a new identity"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_key_that_everyone_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        Identity::load_or_create(directory.path()).unwrap();
        let path = directory.path().join(KEY_FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Identity::load_or_create(directory.path()).unwrap_err();
        assert!(error.to_string().contains("mode 0644"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        assert!(Identity::load_or_create(directory.path()).is_ok());
    }

    #[test]
    fn a_state_directory_that_is_a_file_is_an_error_with_its_path() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Identity::load_or_create(file.path()).unwrap_err().to_string();
        assert!(
            error.contains(&file.path().display().to_string()) && error.contains("state.directory"),
            "{error}"
        );
    }
}
