//! Identity of this sidecar: one ECDSA P-256 key, kept on a volume that only the sidecar sees, and a certificate around
//! it.
//!
//! The certificate says nothing that anyone believes; TLS wants one as the envelope of the public key. A peer is known
//! by its *fingerprint*, the SHA-256 of that key (SubjectPublicKeyInfo). [`tls`] proves during the handshake that the
//! other side has the key of its certificate; whose key it is, the peer table says afterwards.

use std::fmt;
use std::path::Path;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tensorlane_proto::identity::Fingerprint;
use webpki::EndEntityCert;

mod file;
mod keyring;
pub mod rotation;
pub mod tls;

pub use file::{KEY_FILE, KeyFileError};
pub use keyring::Keyring;

/// Key, certificate and fingerprint of this sidecar.
pub struct Identity {
    /// Self-signed, made anew at each start around the same key.
    pub cert: CertificateDer<'static>,
    /// The private key (PKCS#8).
    pub key: PrivateKeyDer<'static>,
    /// Fingerprint that other peers know this one by.
    pub fingerprint: Fingerprint,
}

/// Reason for which there is no fingerprint of a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// TLS saw none.
    #[error("the peer presented no certificate")]
    NoCertificate,
    /// Not an X.509 version 3 certificate of an end entity.
    #[error("the peer's certificate cannot be read: {0}")]
    Malformed(webpki::Error),
    /// Another kind of key.
    #[error("the peer's key is not ECDSA P-256")]
    KeyKind,
}

impl Identity {
    /// The identity whose key is in `directory`; the first start makes directory and key.
    ///
    /// # Errors
    /// The key cannot be read, kept or used; see [`KeyFileError`] for what to do.
    pub fn load_or_create(directory: &Path) -> Result<Identity, KeyFileError> {
        Identity::named(directory, KEY_FILE)
    }

    fn named(directory: &Path, name: &str) -> Result<Identity, KeyFileError> {
        let (key, path) = file::load_or_create(directory, name)?;
        Identity::of(&key).map_err(|source| KeyFileError::Unusable { path, source })
    }

    /// A new identity that is kept nowhere, for tests and tools.
    ///
    /// # Errors
    /// The random numbers of the machine are not available.
    pub fn ephemeral() -> Result<Identity, rcgen::Error> {
        Identity::of(&KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
    }

    /// An identity whose certificate is valid from the first day of one year to that of another, if anybody looks.
    ///
    /// # Panics
    /// Where there is no such identity.
    #[cfg(test)]
    pub(crate) fn valid_in((first, last): (i32, i32)) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_before = rcgen::date_time_ymd(first, 1, 1);
        params.not_after = rcgen::date_time_ymd(last, 1, 1);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        Identity::certified(&key, params).unwrap()
    }

    fn of(key: &KeyPair) -> Result<Identity, rcgen::Error> {
        Identity::certified(key, CertificateParams::new(Vec::new())?)
    }

    fn certified(key: &KeyPair, mut params: CertificateParams) -> Result<Identity, rcgen::Error> {
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "tensorlane peer");
        let cert = params.self_signed(key)?.der().clone();
        let fingerprint = fingerprint(&cert).map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Ok(Identity { cert, key, fingerprint })
    }
}

/// Without the key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// A SubjectPublicKeyInfo of an ECDSA P-256 key in DER, up to the two coordinates of 32 bytes.
const P256_PREFIX: [u8; 27] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04,
];

/// The SHA-256 of the certificate's public key.
///
/// # Errors
/// No certificate of an end entity, or not one with an ECDSA P-256 key.
pub fn fingerprint(cert: &CertificateDer<'_>) -> Result<Fingerprint, IdentityError> {
    let cert = EndEntityCert::try_from(cert).map_err(IdentityError::Malformed)?;
    let spki = cert.subject_public_key_info();
    let spki: &[u8] = spki.as_ref();
    if spki.len() != P256_PREFIX.len() + 64 || !spki.starts_with(&P256_PREFIX) {
        return Err(IdentityError::KeyKind);
    }
    Ok(Fingerprint(Sha256::digest(spki).into()))
}

/// The fingerprint of the other side of a finished handshake, from `peer_certificates()` of the connection.
///
/// # Errors
/// It presented nothing, or nothing readable.
pub fn peer_fingerprint(certs: Option<&[CertificateDer<'_>]>) -> Result<Fingerprint, IdentityError> {
    let first = certs.and_then(|certs| certs.first());
    fingerprint(first.ok_or(IdentityError::NoCertificate)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_is_that_of_the_public_key_and_not_of_the_certificate() {
        let key = KeyPair::generate().unwrap();
        let (first, second) = (Identity::of(&key).unwrap(), Identity::of(&key).unwrap());
        assert_ne!(first.cert, second.cert);
        assert_eq!(first.fingerprint, second.fingerprint);
        let spki = rcgen::PublicKeyData::subject_public_key_info(&key);
        assert_eq!(first.fingerprint, Fingerprint(Sha256::digest(spki).into()));
        assert_ne!(first.fingerprint, Identity::ephemeral().unwrap().fingerprint);
    }

    #[test]
    fn other_kinds_of_keys_and_other_bytes_have_no_fingerprint() {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let cert = CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
        assert_eq!(fingerprint(cert.der()), Err(IdentityError::KeyKind));
        let nonsense = CertificateDer::from(vec![0x30, 0x03, 1, 2, 3]);
        assert!(matches!(fingerprint(&nonsense), Err(IdentityError::Malformed(_))));
        assert_eq!(peer_fingerprint(None), Err(IdentityError::NoCertificate));
        assert_eq!(peer_fingerprint(Some(&[])), Err(IdentityError::NoCertificate));
    }

    #[test]
    fn the_key_is_not_in_what_is_logged() {
        let identity = Identity::ephemeral().unwrap();
        assert!(format!("{identity:?}").len() < 120);
    }
}
