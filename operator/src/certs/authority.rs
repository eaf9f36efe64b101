//! Makes authorities and leaves. Time is an argument.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::rotation::AUTHORITY_LIFE_SECONDS;

/// The life of a leaf: 7 days. It is made again at half of it.
pub const LEAF_LIFE_SECONDS: u64 = 7 * 24 * 3600;

/// Clocks of a cluster differ; a certificate is valid from an hour before it is made.
const SKEW_SECONDS: u64 = 3600;

/// A certificate could not be made or read.
#[derive(Debug, Error)]
pub enum CertError {
    /// By the library that makes them.
    #[error("the certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// By the library that serves them.
    #[error("the key cannot be used: {0}")]
    Key(#[from] rustls::Error),
    /// Content of a file is no certificate or key.
    #[error("{file} has no {what} in PEM")]
    NotPem {
        /// Path of the file.
        file: String,
        /// Thing that was looked for.
        what: &'static str,
    },
    /// A file cannot be read.
    #[error("{file} cannot be read: {source}")]
    Unreadable {
        /// Path of the file.
        file: String,
        /// Cause.
        source: std::io::Error,
    },
}

/// Authority that signs leaves, as it is kept in the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority {
    /// Time at which it was made, in seconds since 1970.
    pub made: u64,
    /// Certificate of the authority, in PEM.
    pub certificate: String,
    key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// The library cannot make it.
    pub fn make(now: u64) -> Result<Authority, CertError> {
        let key = KeyPair::generate()?;
        let certificate = params(now)?.self_signed(&key)?;
        Ok(Authority { made: now, certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// A leaf for a server of these names.
    ///
    /// # Errors
    /// The authority's key cannot be read, or the library cannot make the leaf.
    pub fn sign(&self, names: &[String], now: u64) -> Result<Leaf, CertError> {
        let issuer = Issuer::new(params(self.made)?, KeyPair::from_pem(&self.key)?);
        let key = KeyPair::generate()?;
        let mut leaf = CertificateParams::new(names.to_vec())?;
        leaf.not_before = date(now.saturating_sub(SKEW_SECONDS));
        leaf.not_after = date(now + LEAF_LIFE_SECONDS);
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let certificate = leaf.signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let until = now + LEAF_LIFE_SECONDS;
        Ok(Leaf {
            made: now,
            authority: self.made,
            ..Leaf::of(vec![certificate.der().clone()], &key, until)?
        })
    }
}

/// Parameters of an authority: the same bytes of a name whenever it is read back, or its leaves would not fit.
fn params(made: u64) -> Result<CertificateParams, CertError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("tensorlane-webhook-{made}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = date(made.saturating_sub(SKEW_SECONDS));
    params.not_after = date(made + AUTHORITY_LIFE_SECONDS);
    Ok(params)
}

/// A point in time, as rcgen wants it.
fn date(seconds: u64) -> time::OffsetDateTime {
    rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
}

/// Certificate that a server shows, and its key.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// For rustls.
    pub key: std::sync::Arc<CertifiedKey>,
    /// Time at which it was made, in seconds since 1970.
    pub made: u64,
    /// Time at which its authority was made.
    pub authority: u64,
    /// Time at which it ends to be valid.
    pub until: u64,
}

impl Leaf {
    /// A chain and its key. When it was made and by whom is not known.
    ///
    /// # Errors
    /// The key is of no kind that can be served.
    pub(super) fn of(
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'_>,
        until: u64,
    ) -> Result<Leaf, CertError> {
        let key = std::sync::Arc::new(CertifiedKey::new(chain, any_supported_type(key)?));
        Ok(Leaf { key, made: 0, authority: 0, until })
    }
}
