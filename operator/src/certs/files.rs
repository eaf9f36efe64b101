//! A certificate that somebody else makes and mounts, such as cert-manager.

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::authority::{CertError, Leaf};

/// Reads `tls.crt` and `tls.key` of a directory.
///
/// # Errors
/// A file is not there or has nothing of the kind in it.
pub fn read_files(directory: &Path, now: u64) -> Result<Leaf, CertError> {
    let read = |name: &str| {
        let path = directory.join(name);
        let file = path.display().to_string();
        match std::fs::read(&path) {
            Ok(bytes) => Ok((file, bytes)),
            Err(source) => Err(CertError::Unreadable { file, source }),
        }
    };
    let (file, bytes) = read("tls.crt")?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok).collect();
    if chain.is_empty() {
        return Err(CertError::NotPem { file, what: "certificate" });
    }
    let (file, bytes) = read("tls.key")?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| CertError::NotPem { file, what: "key" })?;
    Leaf::of(chain, &key, now, 0)
}
