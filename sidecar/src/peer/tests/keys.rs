//! Keys for tests: those of real identities, and clients that do not prove what they should.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use tensorlane_proto::Fingerprint;

use crate::identity::{Identity, fingerprint, tls};
use crate::peer::Keys;

pub(crate) fn identity() -> Identity {
    Identity::ephemeral().unwrap()
}

/// Key of an identity once more: a peer in another life.
pub(crate) fn same(identity: &Identity) -> Identity {
    Identity { cert: identity.cert.clone(), key: identity.key.clone_key(), fingerprint: identity.fingerprint }
}

fn fingerprint_of(certificate: &CertificateDer<'_>) -> Option<Fingerprint> {
    fingerprint(certificate).ok()
}

pub(crate) fn keys(identity: &Identity) -> Keys {
    Keys {
        server: Arc::new(tls::server_config(identity).unwrap()),
        client: Arc::new(tls::client_config(identity).unwrap()),
        fingerprint: identity.fingerprint,
        fingerprint_of,
    }
}

/// A client that proves its identity.
pub(crate) fn client(identity: &Identity) -> ClientConfig {
    tls::client_config(identity).unwrap()
}

/// Shows what it is told to show.
#[derive(Debug)]
struct Shows(Option<Arc<CertifiedKey>>);

impl rustls::client::ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }
    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

/// A client that shows no certificate.
pub(crate) fn client_without_certificate() -> ClientConfig {
    let mut config = client(&identity());
    config.client_auth_cert_resolver = Arc::new(Shows(None));
    config
}

/// A client that shows the certificate of `shown` and signs with the key of another.
pub(crate) fn client_without_the_key(shown: &Identity) -> ClientConfig {
    let mut config = client(shown);
    let key = any_supported_type(&identity().key).unwrap();
    let certified = CertifiedKey::new(vec![shown.cert.clone()], key);
    config.client_auth_cert_resolver = Arc::new(Shows(Some(Arc::new(certified))));
    config
}
