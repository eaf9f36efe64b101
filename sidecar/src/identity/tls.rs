//! TLS between peers, one way of doing it: version 1.3, X25519, keys proven by both sides, nothing resumed.
//!
//! - Suites: AES-128-GCM, the fastest where the processor has AES; ChaCha20-Poly1305 where it has not.
//! - Neither resumption nor tickets nor early data: each connection proves its keys anew, and no byte can be replayed.
//! - The verifier checks that the certificate is one, with a key of the kind we use, and that the handshake is signed with
//!   that key. Names, dates and issuers are not looked at: the peer table, asked after the handshake and before the
//!   first frame, knows keys.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    ServerConfig, SignatureScheme,
};

use super::{Identity, IdentityError, fingerprint};
use crate::metrics::label::AuthRefusal;

/// Signatures with ECDSA P-256 and SHA-256, the kind of every identity.
static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[webpki::ring::ECDSA_P256_SHA256],
    mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[webpki::ring::ECDSA_P256_SHA256])],
};

/// Configuration of what the accepting side speaks.
///
/// # Errors
/// The identity's key and certificate do not go together.
pub fn server_config(identity: &Identity) -> Result<ServerConfig, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(KeyVerifier))
        .with_single_cert(vec![identity.cert.clone()], identity.key.clone_key())?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config)
}

/// Configuration of what the connecting side speaks.
///
/// # Errors
/// The identity's key and certificate do not go together.
pub fn client_config(identity: &Identity) -> Result<ClientConfig, Error> {
    let mut config =
        client_builder()?.with_client_auth_cert(vec![identity.cert.clone()], identity.key.clone_key())?;
    harden(&mut config);
    Ok(config)
}

/// The name that rustls wants for a server. It is neither sent nor checked.
pub fn server_name() -> ServerName<'static> {
    ServerName::try_from("peer.tensorlane").expect("a fixed name of letters and a dot")
}

/// The reason to count for a handshake that failed.
pub fn refusal(error: &Error) -> AuthRefusal {
    match error {
        Error::NoCertificatesPresented => AuthRefusal::NoCertificate,
        Error::InvalidCertificate(CertificateError::BadSignature) => AuthRefusal::BadSignature,
        Error::InvalidCertificate(_) => AuthRefusal::MalformedCertificate,
        Error::PeerIncompatible(PeerIncompatible::NoSignatureSchemesInCommon) => {
            AuthRefusal::MalformedCertificate
        }
        _ => AuthRefusal::Tls,
    }
}

type WantsClientCert = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn client_builder() -> Result<WantsClientCert, Error> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(KeyVerifier)))
}

fn harden(config: &mut ClientConfig) {
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
            ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![ring::kx_group::X25519],
        signature_verification_algorithms: SIGNATURES,
        ..ring::default_provider()
    })
}

/// Proves that the other side has the key of the certificate that it presents, and nothing else.
#[derive(Debug)]
struct KeyVerifier;

/// Verifier that clients of ours verify by, for tests that make configurations of their own.
#[cfg(test)]
pub(crate) fn any_key() -> Arc<dyn ServerCertVerifier> {
    Arc::new(KeyVerifier)
}

impl KeyVerifier {
    fn check_form(cert: &CertificateDer<'_>, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        // Nothing of a chain would be looked at, so whoever sends one means something that we do not.
        if !chain.is_empty() {
            return Err(Error::InvalidCertificate(CertificateError::BadEncoding));
        }
        fingerprint(cert).map(drop).map_err(|error| match error {
            IdentityError::KeyKind => {
                Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
            }
            _ => Error::InvalidCertificate(CertificateError::BadEncoding),
        })
    }

    /// TLS 1.2 is not built into the configuration; should it ever be, it stops here.
    fn tls12() -> Error {
        Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered)
    }
}

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        KeyVerifier::check_form(cert, chain)?;
        // This asserts the form alone; that the peer has the key is proven by the signature below.
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(KeyVerifier::tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signature, &SIGNATURES)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURES.supported_schemes()
    }
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        cert: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        KeyVerifier::check_form(cert, chain)?;
        // This asserts the form alone; that the peer has the key is proven by the signature below.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(KeyVerifier::tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signature, &SIGNATURES)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURES.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
