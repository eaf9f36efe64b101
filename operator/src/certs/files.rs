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
    let (crt, bytes) = read("tls.crt")?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok).collect();
    if chain.is_empty() {
        return Err(CertError::NotPem { file: crt, what: "certificate" });
    }
    let (file, bytes) = read("tls.key")?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| CertError::NotPem { file, what: "key" })?;
    let until = until(&chain[0]).ok_or(CertError::NotPem { file: crt, what: "X.509 certificate" })?;
    Ok(Leaf { made: now, ..Leaf::of(chain, &key, until)? })
}

/// Time at which a certificate ends to be valid, in seconds since 1970.
fn until(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    u64::try_from(parsed.validity().not_after.timestamp()).ok()
}
