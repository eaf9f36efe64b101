//! Handshakes in memory: two rustls connections and the bytes between them.

use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConnection, HandshakeKind, ProtocolVersion, ServerConnection};

use super::super::peer_fingerprint;
use super::*;

fn identity() -> Identity {
    Identity::ephemeral().unwrap()
}

/// Carries bytes until nobody has any left; the error of the side that refuses.
fn shake(
    client: ClientConfig,
    server: ServerConfig,
) -> Result<(ClientConnection, ServerConnection), (&'static str, Error)> {
    let mut client = ClientConnection::new(Arc::new(client), server_name()).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.wants_write() || server.wants_write() {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets().map_err(|error| ("server", error))?;
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().map_err(|error| ("client", error))?;
        }
    }
    Ok((client, server))
}

fn refused(client: ClientConfig, server: ServerConfig) -> (&'static str, Error) {
    shake(client, server).map(drop).expect_err("the handshake must fail")
}

/// A certificate and a key that need not be its own.
#[derive(Debug)]
struct Presents(Arc<CertifiedKey>);

impl Presents {
    fn cert_with_key(cert: &Identity, key: &Identity) -> Arc<Presents> {
        let key = provider().key_provider.load_private_key(key.key.clone_key()).unwrap();
        Arc::new(Presents(Arc::new(CertifiedKey::new(vec![cert.cert.clone()], key))))
    }
}

impl ResolvesClientCert for Presents {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Presents {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

fn client_that(presents: Arc<Presents>) -> ClientConfig {
    client_builder().unwrap().with_client_cert_resolver(presents)
}

fn server_that(presents: Arc<Presents>) -> ServerConfig {
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).unwrap();
    builder.with_client_cert_verifier(Arc::new(KeyVerifier)).with_cert_resolver(presents)
}

#[test]
fn both_sides_see_the_fingerprint_of_the_other() {
    let (a, b) = (identity(), identity());
    let (client, server) = shake(client_config(&a).unwrap(), server_config(&b).unwrap()).unwrap();
    assert!(!client.is_handshaking() && !server.is_handshaking());
    assert_eq!(peer_fingerprint(client.peer_certificates()), Ok(b.fingerprint));
    assert_eq!(peer_fingerprint(server.peer_certificates()), Ok(a.fingerprint));
    assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    let suite = client.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    assert_eq!(client.negotiated_key_exchange_group().unwrap().name(), rustls::NamedGroup::X25519);
}

#[test]
fn nothing_is_resumed() {
    let (client, server) = (client_config(&identity()).unwrap(), server_config(&identity()).unwrap());
    for _ in 0..2 {
        let (client, server) = shake(client.clone(), server.clone()).unwrap();
        assert_eq!(client.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(server.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(client.tls13_tickets_received(), 0);
    }
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let client = client_builder().unwrap().with_no_client_auth();
    let (side, error) = refused(client, server_config(&identity()).unwrap());
    assert_eq!((side, refusal(&error)), ("server", AuthRefusal::NoCertificate), "{error}");
}

#[test]
fn a_client_with_anothers_certificate_and_its_own_key_is_refused() {
    let (listed, thief) = (identity(), identity());
    let client = client_that(Presents::cert_with_key(&listed, &thief));
    let (side, error) = refused(client, server_config(&identity()).unwrap());
    assert_eq!((side, refusal(&error)), ("server", AuthRefusal::BadSignature), "{error}");
    // The same resolver with the right key is let in, so the refusal above is about the key.
    let client = client_that(Presents::cert_with_key(&listed, &listed));
    let (_, server) = shake(client, server_config(&identity()).unwrap()).unwrap();
    assert_eq!(peer_fingerprint(server.peer_certificates()), Ok(listed.fingerprint));
}

#[test]
fn a_server_with_anothers_certificate_and_its_own_key_is_refused() {
    let (listed, thief) = (identity(), identity());
    let server = server_that(Presents::cert_with_key(&listed, &thief));
    let (side, error) = refused(client_config(&identity()).unwrap(), server);
    assert_eq!((side, refusal(&error)), ("client", AuthRefusal::BadSignature), "{error}");
}

#[test]
fn other_kinds_of_keys_and_chains_are_refused() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let cert = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    let good = identity();
    for certs in
        [vec![cert.der().clone()], vec![good.cert.clone(), good.cert.clone()], vec![b"no".to_vec().into()]]
    {
        let key = provider().key_provider.load_private_key(good.key.clone_key()).unwrap();
        let client = client_that(Arc::new(Presents(Arc::new(CertifiedKey::new(certs, key)))));
        let (side, error) = refused(client, server_config(&identity()).unwrap());
        assert_eq!((side, refusal(&error)), ("server", AuthRefusal::MalformedCertificate), "{error}");
    }
}

/// A ClientHello as a TLS 1.2 client writes it: no `supported_versions`.
fn hello_of_tls12() -> Vec<u8> {
    let mut body = vec![0x03, 0x03];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    let groups = [0, 10, 0, 4, 0, 2, 0, 23];
    let schemes = [0, 13, 0, 4, 0, 2, 4, 3];
    body.extend([0, 16]);
    body.extend(groups);
    body.extend(schemes);
    let length = u8::try_from(body.len()).unwrap();
    let mut record = vec![22, 3, 1, 0, length + 4, 1, 0, 0, length];
    record.extend(body);
    record
}

#[test]
fn tls_1_2_is_refused() {
    let mut server = ServerConnection::new(Arc::new(server_config(&identity()).unwrap())).unwrap();
    server.read_tls(&mut hello_of_tls12().as_slice()).unwrap();
    let error = server.process_new_packets().unwrap_err();
    assert!(matches!(error, Error::PeerIncompatible(_)), "{error:?}");
    assert_eq!(refusal(&error), AuthRefusal::Tls);
}

#[test]
fn a_machine_without_aes_can_still_connect() {
    let mut chacha = (*provider()).clone();
    chacha.cipher_suites.remove(0);
    let (a, b) = (identity(), identity());
    let client =
        ClientConfig::builder_with_provider(Arc::new(chacha)).with_protocol_versions(&[&TLS13]).unwrap();
    let client = client.dangerous().with_custom_certificate_verifier(Arc::new(KeyVerifier));
    let client = client.with_client_auth_cert(vec![a.cert.clone()], a.key.clone_key()).unwrap();
    assert!(shake(client, server_config(&b).unwrap()).is_ok());
}
