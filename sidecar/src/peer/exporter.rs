//! Keying material of a TLS connection that both of its ends have and that does not follow from its traffic keys (RFC 8446,
//! section 7.5), for connections that rustls drives without buffers.
//!
//! rustls exports on its buffered connections alone. The secret that it exports from it hands to whoever is the [`KeyLog`] of
//! the connection's configuration: here one that is made for the one handshake, takes that one secret of all, keeps it in
//! memory until the handshake is over, and writes it nowhere. The rest is the derivation of the RFC, by the HKDF and the hash of the
//! negotiated cipher suite. Knows neither sockets nor what the material is for.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::crypto::tls13::OkmBlock;
use rustls::{KeyLog, SupportedCipherSuite, Tls13CipherSuite};

/// Name in rustls of the secret from which the rest follows.
const SECRET: &str = "EXPORTER_SECRET";
/// Label for which it is exported. The first word marks labels that nobody has registered (RFC 5705, section 4).
pub(super) const LABEL: &[u8] = b"EXPERIMENTAL tensorlane lanes";
/// Bytes of exported material.
pub(super) const BYTES: usize = 32;

/// Secret that both ends of one connection have. Never shown, and wiped where it is dropped.
pub(super) struct Exported(OkmBlock);

impl AsRef<[u8]> for Exported {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

/// Takes the secret of one handshake.
#[derive(Default)]
pub(super) struct Keeper(Mutex<Option<OkmBlock>>);

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl KeyLog for Keeper {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if label == SECRET && secret.len() <= OkmBlock::MAX_LEN {
            *self.0.lock() = Some(OkmBlock::new(secret));
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == SECRET
    }
}

impl Keeper {
    /// A configuration of one handshake alone, and who keeps its secret. `key_log`: where it goes in the configuration.
    pub(super) fn of<C: Clone>(
        config: &C,
        key_log: impl FnOnce(&mut C) -> &mut Arc<dyn KeyLog>,
    ) -> (Arc<C>, Arc<Self>) {
        let keeper = Arc::new(Self::default());
        let mut config = config.clone();
        *key_log(&mut config) = Arc::clone(&keeper) as Arc<dyn KeyLog>;
        (Arc::new(config), keeper)
    }

    /// The material of the handshake, which is over. The secret is gone after it.
    pub(super) fn export(&self, suite: SupportedCipherSuite) -> Result<Exported, rustls::Error> {
        let secret = self.0.lock().take().ok_or(rustls::Error::HandshakeNotComplete)?;
        let suite = suite.tls13().ok_or(rustls::Error::HandshakeNotComplete)?;
        export(suite, &secret, LABEL).ok_or_else(|| rustls::Error::General("no material to export".into()))
    }
}

/// TLS-Exporter with this label and an empty context.
fn export(suite: &Tls13CipherSuite, secret: &OkmBlock, label: &[u8]) -> Option<Exported> {
    let nothing = suite.common.hash_provider.hash(&[]);
    let of_label = {
        let expander = suite.hkdf_provider.expander_for_okm(secret);
        let length = expander.hash_len();
        expander.expand_block(&[&hkdf_label(label, nothing.as_ref(), length)?])
    };
    let mut out = [0; BYTES];
    let expander = suite.hkdf_provider.expander_for_okm(&of_label);
    expander.expand_slice(&[&hkdf_label(b"exporter", nothing.as_ref(), BYTES)?], &mut out).ok()?;
    let exported = Exported(OkmBlock::new(&out));
    out.fill(0);
    Some(exported)
}

/// `HkdfLabel` (RFC 8446, section 7.1); none where a part is too long for its length.
fn hkdf_label(label: &[u8], context: &[u8], length: usize) -> Option<Vec<u8>> {
    const PREFIX: &[u8] = b"tls13 ";
    let mut info = u16::try_from(length).ok()?.to_be_bytes().to_vec();
    info.push(u8::try_from(PREFIX.len() + label.len()).ok()?);
    info.extend([PREFIX, label].concat());
    info.push(u8::try_from(context.len()).ok()?);
    info.extend(context);
    Some(info)
}

#[cfg(test)]
mod tests {
    use rustls::crypto::{CryptoProvider, ring};
    use rustls::version::TLS13;
    use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

    use super::*;
    use crate::identity::{Identity, tls};

    fn with(suite: SupportedCipherSuite) -> Arc<CryptoProvider> {
        Arc::new(CryptoProvider { cipher_suites: vec![suite], ..ring::default_provider() })
    }

    fn client(suite: SupportedCipherSuite) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(with(suite));
        let builder = builder.with_protocol_versions(&[&TLS13]).unwrap();
        builder.dangerous().with_custom_certificate_verifier(tls::any_key()).with_no_client_auth()
    }

    fn server(suite: SupportedCipherSuite) -> ServerConfig {
        let ours = tls::server_config(&Identity::ephemeral().unwrap()).unwrap();
        let builder = ServerConfig::builder_with_provider(with(suite));
        let builder = builder.with_protocol_versions(&[&TLS13]).unwrap();
        builder.with_no_client_auth().with_cert_resolver(ours.cert_resolver)
    }

    fn shake(client: &mut ClientConnection, server: &mut ServerConnection) {
        for _ in 0..10 {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            client.read_tls(&mut wire.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
    }

    #[test]
    fn both_ends_export_what_rustls_exports_with_every_suite() {
        let mut seen = Vec::new();
        for suite in ring::ALL_CIPHER_SUITES.iter().filter(|suite| suite.tls13().is_some()) {
            let (client, of_client) = Keeper::of(&client(*suite), |config| &mut config.key_log);
            let (server, of_server) = Keeper::of(&server(*suite), |config| &mut config.key_log);
            assert!(of_client.export(*suite).is_err(), "nothing was said yet");
            let mut client = ClientConnection::new(client, tls::server_name()).unwrap();
            let mut server = ServerConnection::new(server).unwrap();
            shake(&mut client, &mut server);
            let theirs = client.export_keying_material([0; BYTES], LABEL, None).unwrap();
            for keeper in [of_client, of_server] {
                assert_eq!(keeper.export(*suite).unwrap().as_ref(), theirs);
                assert!(keeper.export(*suite).is_err(), "the secret is kept no longer than it is needed");
            }
            seen.push(theirs);
        }
        // AES-128 and ChaCha20 with SHA-256, AES-256 with SHA-384; each connection has its own.
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn nothing_but_the_one_secret_is_taken_and_it_is_not_shown() {
        let keeper = Keeper::default();
        for label in ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0", "CLIENT_RANDOM"] {
            assert!(!keeper.will_log(label));
            keeper.log(label, &[], &[1; 32]);
        }
        assert!(keeper.0.lock().is_none());
        assert!(keeper.will_log(SECRET));
        keeper.log(SECRET, &[], &[0xab; 32]);
        assert_eq!(format!("{keeper:?}"), "Keeper { .. }");
    }
}
