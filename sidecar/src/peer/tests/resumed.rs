//! QUIC connections begin anew every time: who accepts gives nothing to resume by, however much the other end would like it, and who
//! dials does not resume, whatever it was given. So no byte of a connection can come before its keys are proven.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, Endpoint};
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};
use rustls::{ClientConfig, NamedGroup, ServerConfig};
use tokio::runtime::Runtime;

use super::keys;
use super::transports::NONE;
use super::world::*;
use crate::identity::Identity;
use crate::peer::LanesConfig;
use crate::peer::transport::lanes::quic::QuicEndpoint;

const ALPN: &[u8] = b"tensorlane/2";

/// Sessions that a client was given, which it keeps.
#[derive(Debug)]
struct Given {
    cache: ClientSessionMemoryCache,
    tickets: AtomicUsize,
}

impl ClientSessionStore for Given {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.cache.set_kx_hint(name, group);
    }
    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.cache.kx_hint(name)
    }
    fn set_tls12_session(&self, name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.cache.set_tls12_session(name, value);
    }
    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.cache.tls12_session(name)
    }
    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.cache.remove_tls12_session(name);
    }
    fn insert_tls13_ticket(&self, name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.tickets.fetch_add(1, Ordering::SeqCst);
        self.cache.insert_tls13_ticket(name, value);
    }
    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.cache.take_tls13_ticket(name)
    }
}

/// Sessions that a server gave, and how often somebody came with it.
#[derive(Debug)]
struct Sessions {
    cache: Arc<ServerSessionMemoryCache>,
    given: AtomicUsize,
    shown: AtomicUsize,
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.given.fetch_add(1, Ordering::SeqCst);
        self.cache.put(key, value)
    }
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.shown.fetch_add(1, Ordering::SeqCst);
        self.cache.get(key)
    }
    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.shown.fetch_add(1, Ordering::SeqCst);
        self.cache.take(key)
    }
    fn can_cache(&self) -> bool {
        true
    }
}

/// A server of anybody, which lets everything be resumed and echoes one byte.
struct Lenient {
    runtime: Runtime,
    endpoint: Endpoint,
    sessions: Arc<Sessions>,
}

impl Lenient {
    fn new(identity: &Identity) -> Self {
        let runtime = runtime();
        let (given, shown) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let sessions = Arc::new(Sessions { cache: ServerSessionMemoryCache::new(8), given, shown });
        let mut config: ServerConfig = (*keys::keys(identity).server).clone();
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::clone(&sessions) as _;
        config.send_tls13_tickets = 2;
        config.max_early_data_size = u32::MAX;
        let config = QuicServerConfig::try_from(config).unwrap();
        let config = quinn::ServerConfig::with_crypto(Arc::new(config));
        let _inside = runtime.enter();
        let endpoint = Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
        let accepting = endpoint.clone();
        runtime.spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                let Ok(connection) = incoming.await else { continue };
                let Ok((mut send, mut receive)) = connection.accept_bi().await else { continue };
                let mut byte = [0];
                let _ = receive.read_exact(&mut byte).await;
                let _ = send.write_all(&byte).await;
                // The client ends it.
                connection.closed().await;
            }
        });
        drop(_inside);
        Self { runtime, endpoint, sessions }
    }
}

impl Drop for Lenient {
    fn drop(&mut self) {
        self.endpoint.close(0_u32.into(), b"");
        self.runtime.block_on(self.endpoint.wait_idle());
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Says a byte and waits for what comes upon it: everything that was sent before that is here then.
async fn ask(connection: &Connection) -> bool {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    let said = send.write_all(&[0xff; 64]).await;
    let mut byte = [0];
    let answered = said.is_ok() && receive.read_exact(&mut byte).await.is_ok();
    connection.close(0_u32.into(), b"");
    answered
}

/// A client that keeps all that it is given and begins with early data wherever it may: whether it could, the second time.
fn begins_early(at: std::net::SocketAddr, identity: &Identity) -> (bool, usize) {
    let given = Arc::new(Given { cache: ClientSessionMemoryCache::new(8), tickets: AtomicUsize::new(0) });
    let mut config: ClientConfig = keys::client(identity);
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::store(Arc::clone(&given) as _);
    config.enable_early_data = true;
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()));
    let runtime = runtime();
    let early = runtime.block_on(async {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let connect = || endpoint.connect_with(config.clone(), at, "peer.tensorlane").unwrap();
        ask(&connect().await.unwrap()).await;
        let early = match connect().into_0rtt() {
            Ok((connection, accepted)) => {
                let accepted = accepted.await;
                ask(&connection).await;
                accepted
            }
            Err(connecting) => {
                ask(&connecting.await.unwrap()).await;
                false
            }
        };
        endpoint.close(0_u32.into(), b"");
        endpoint.wait_idle().await;
        early
    });
    (early, given.tickets.load(Ordering::SeqCst))
}

#[test]
fn who_accepts_gives_nothing_to_resume_by_and_takes_no_early_data() {
    let table = Arc::default();
    let a = Start { lanes: LanesConfig { quic: 2, ..NONE }, ..Start::new("a") }.start(&table);
    let evil = keys::identity();
    table.list("evil", nowhere(), evil.fingerprint);
    // With anybody else that client does.
    let lenient = Lenient::new(&keys::identity());
    let (early, tickets) = begins_early(lenient.endpoint.local_addr().unwrap(), &evil);
    assert!(early && tickets > 0, "{early}, {tickets} tickets");
    assert_eq!(begins_early(a.peers.bound_address(), &evil), (false, 0));
    until("nobody is a stranger", || a.peers.strangers() == 0);
}

#[test]
fn who_dials_does_not_resume_what_it_could() {
    let (evil, us) = (keys::identity(), keys::identity());
    let lenient = Lenient::new(&evil);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let endpoint =
        QuicEndpoint::open(socket, &keys::keys(&us), Duration::from_secs(60), &Default::default()).unwrap();
    for round in 1..=3 {
        let connecting = endpoint.connect(lenient.endpoint.local_addr().unwrap()).unwrap();
        let asked = endpoint.within(Instant::now() + PATIENCE, async {
            match connecting.into_0rtt() {
                Ok(_) => panic!("it would send early data"),
                Err(connecting) => ask(&connecting.await.unwrap()).await,
            }
        });
        assert!(asked.unwrap(), "the connection is of use");
        assert!(lenient.sessions.given.load(Ordering::SeqCst) >= round, "it was given something");
    }
    assert_eq!(lenient.sessions.shown.load(Ordering::SeqCst), 0, "it came with nothing");
    endpoint.end();
}
