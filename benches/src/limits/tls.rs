//! Bytes over TLS between two hosts, from a warm memfd into a warm memfd, with the library, the suite and the key
//! exchange that sidecars use: blocking sockets, `write_all`, `read_exact`, and nothing else.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::{iter, thread};

use anyhow::{Context, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ServerConfig, ServerConnection,
    SignatureScheme, StreamOwned,
};

use super::{ends, warm};
use crate::hosts::TwoHosts;
use crate::pairs;
use crate::worker::{self, At, Worker};

/// A connection between two hosts that fetches the same number of bytes again and again.
#[derive(Debug)]
pub struct TlsFetch {
    fetch: Worker,
    _send: Worker,
}

impl TlsFetch {
    /// Starts both ends: who sends on host A, who fetches on host B.
    ///
    /// # Errors
    /// They do not start.
    pub fn start(hosts: &TwoHosts, bytes: u64) -> Result<Self> {
        let (address, bytes) = (hosts.a.free_address()?.to_string(), bytes.to_string());
        let start = |host, word: &str| {
            let at = At { host: Some(host), core: None };
            ends::start(at, &[word.as_ref(), address.as_ref(), bytes.as_ref()])
        };
        let send = start(&hosts.a, "tls-send")?;
        let fetch = start(&hosts.b, "tls-fetch")?;
        Ok(Self { fetch, _send: send })
    }

    /// The seconds of one fetch.
    ///
    /// # Errors
    /// An end is gone.
    pub fn seconds(&mut self) -> Result<f64> {
        self.fetch.ask(&())
    }
}

pub(super) fn send(address: SocketAddr, bytes: u64) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("at {address}"))?;
    let (_arena, source) = warm::source(bytes)?;
    let config = Arc::new(server_config()?);
    thread::spawn(move || -> Result<()> {
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        let mut stream = StreamOwned::new(ServerConnection::new(config)?, socket);
        let mut go = [0];
        loop {
            stream.read_exact(&mut go)?;
            stream.write_all(source.as_ref())?;
            stream.flush()?;
        }
    });
    worker::ready_until_end_of_input()
}

pub(super) fn fetch(address: SocketAddr, bytes: u64) -> Result<()> {
    let socket = TcpStream::connect(address).with_context(|| format!("to {address}"))?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from("limit").context("a name")?;
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(client_config()?), name)?, socket);
    let (_arena, mut targets) = warm::targets(iter::once(bytes))?;
    let target = targets.first_mut().context("no target")?;
    worker::say(&true)?;
    worker::serve(|(): ()| {
        let target = target.chunk_mut(0..bytes)?;
        pairs::seconds(|| {
            stream.write_all(&[1])?;
            Ok(stream.read_exact(target)?)
        })
    })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![ring::kx_group::X25519],
        ..ring::default_provider()
    })
}

pub(super) fn server_config() -> Result<ServerConfig> {
    let identity = rcgen::generate_simple_self_signed(vec!["limit".into()])?;
    let key = PrivateKeyDer::Pkcs8(identity.signing_key.serialize_der().into());
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    Ok(builder.with_no_client_auth().with_single_cert(vec![identity.cert.der().clone()], key)?)
}

pub(super) fn client_config() -> Result<ClientConfig> {
    let provider = provider();
    let anyone = Anyone(provider.signature_verification_algorithms);
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(anyone));
    Ok(builder.with_no_client_auth())
}

/// Verifier that accepts any end: who it is does not matter to a limit; its signature is checked as ever.
#[derive(Debug)]
struct Anyone(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 was not offered".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
