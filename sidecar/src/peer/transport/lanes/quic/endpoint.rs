//! The UDP socket of this sidecar: everything of QUIC comes and goes through it, whoever dialed. It owns a runtime of its own,
//! so that datagrams wait for nothing else that the sidecar does, and ends with `Peers`.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint, Incoming, ServerConfig, TokioRuntime, TransportConfig};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use super::window_budget::WindowBudget;
use super::{ALPN, NARROW_WINDOW, SPARE, address, connection, dialed, quic_settings, transport};
use crate::metrics::label::PanicScope;
use crate::peer::api::Keys;
use crate::peer::shared::Shared;
use crate::threads::Threads;

/// Most threads that move datagrams. One does for one connection, half of the cores for several.
const THREADS_MAX: usize = 4;
/// Connections that have begun and that nobody has looked at yet, and what each may send ahead. All together take no more
/// than four times that.
const INCOMING_MAX: usize = 256;
const INCOMING_BYTES: u64 = 64 << 10;
/// Time that the other ends may take to hear that this one is gone.
const FAREWELL: Duration = Duration::from_millis(500);

/// Settings with which connections begin, by who dialed.
struct Transports {
    accepted: Arc<TransportConfig>,
    dialed: Arc<TransportConfig>,
}

/// The socket, and who moves its datagrams.
pub(in crate::peer) struct QuicEndpoint {
    endpoint: Endpoint,
    handle: Handle,
    transports: Transports,
    client: RwLock<ClientConfig>,
    /// Memory for the windows of its connections.
    spare: Arc<WindowBudget>,
    /// Raised: nothing is begun any more.
    stopping: watch::Sender<bool>,
    /// Raised: everything ends.
    ended: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl QuicEndpoint {
    /// Opens it. `idle`: how long a lane may have nothing to do.
    pub(in crate::peer) fn open(
        socket: UdpSocket,
        keys: &Keys,
        idle: Duration,
        threads: &Threads,
    ) -> io::Result<Arc<Self>> {
        let (config, _) = quic_settings(&socket, idle)?;
        let accepted = Arc::new(transport(idle, NARROW_WINDOW));
        let transports = Transports { accepted, dialed: dialed(idle) };
        let (server, client) = configs(keys, &transports)?;
        let runtime = runtime()?;
        let handle = runtime.handle().clone();
        let endpoint = {
            let _inside = handle.enter();
            Endpoint::new(config, Some(server), socket, Arc::new(TokioRuntime))
        };
        let endpoint = match endpoint {
            Ok(endpoint) => endpoint,
            Err(error) => {
                // Not dropped: that waits, which may be forbidden here.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let (stopping, ended) = (watch::Sender::new(false), watch::Sender::new(false));
        let thread = {
            let (endpoint, mut ended) = (endpoint.clone(), ended.subscribe());
            threads.start("tl-quic", PanicScope::Process, move || {
                runtime.block_on(async {
                    // An error means that the endpoint itself is gone.
                    let _ = ended.wait_for(|ended| *ended).await;
                    endpoint.close(0_u32.into(), b"");
                    let _ = tokio::time::timeout(FAREWELL, endpoint.wait_idle()).await;
                });
                runtime.shutdown_timeout(FAREWELL);
            })?
        };
        let (client, thread) = (RwLock::new(client), Mutex::new(Some(thread)));
        let spare = WindowBudget::new(SPARE);
        Ok(Arc::new(Self { endpoint, handle, transports, client, spare, stopping, ended, thread }))
    }

    pub(super) fn spare(&self) -> &Arc<WindowBudget> {
        &self.spare
    }

    /// Lets connections in, until it stops.
    pub(in crate::peer) fn listen(self: &Arc<Self>, shared: &Arc<Shared>) {
        let (own, shared) = (Arc::downgrade(self), Arc::downgrade(shared));
        let endpoint = self.endpoint.clone();
        let mut stopping = self.stopping.subscribe();
        let threads = shared.upgrade().map(|shared| shared.config.threads.clone()).unwrap_or_default();
        let watching = threads.clone();
        let accepting = async move {
            loop {
                let incoming = tokio::select! {
                    biased;
                    _ = stopping.wait_for(|stopping| *stopping) => return,
                    incoming = endpoint.accept() => incoming,
                };
                match incoming {
                    Some(incoming) => admit(&own, &shared, incoming),
                    None if own.upgrade().is_some_and(|endpoint| !endpoint.is_ending()) => {
                        let why = "the endpoint is gone";
                        return watching.panicked("tl-quic-io", PanicScope::Process, why);
                    }
                    None => return,
                }
            }
        };
        self.handle.spawn(threads.task("tl-quic-listen", PanicScope::Process, accepting));
    }

    fn is_ending(&self) -> bool {
        *self.stopping.borrow() || *self.ended.borrow()
    }

    /// From now on connections are made with other keys.
    pub(in crate::peer) fn use_keys(&self, keys: &Keys) {
        match configs(keys, &self.transports) {
            Ok((server, client)) => {
                self.endpoint.set_server_config(Some(server));
                *self.client.write() = client;
            }
            // The same kind of key as before, so the same answer as before.
            Err(error) => tracing::error!(%error, "the new key is of no use to QUIC"),
        }
    }

    /// Address of a peer that datagrams from here reach: that of the control connection, or another one that the peer lists.
    ///
    /// # Errors
    /// None is of a family that the socket takes.
    pub(in crate::peer) fn reached(&self, control: SocketAddr, listed: &[String]) -> io::Result<SocketAddr> {
        address::of_datagrams(self.endpoint.local_addr()?, control, listed).map_err(io::Error::other)
    }

    /// Begins a handshake.
    pub(in crate::peer) fn connect(&self, to: SocketAddr) -> io::Result<quinn::Connecting> {
        let config = self.client.read().clone();
        let _inside = self.handle.enter();
        // The name is neither sent nor checked.
        self.endpoint.connect_with(config, to, "peer.tensorlane").map_err(io::Error::other)
    }

    /// Goes on with the handshake of whoever is let in.
    pub(super) fn accept(&self, incoming: Incoming) -> Result<quinn::Connecting, quinn::ConnectionError> {
        let _inside = self.handle.enter();
        incoming.accept()
    }

    /// Waits on this thread, until then or until we stop.
    pub(in crate::peer) fn within<T>(&self, until: Instant, work: impl Future<Output = T>) -> io::Result<T> {
        let mut stopping = self.stopping.subscribe();
        self.wait(async {
            tokio::select! {
                biased;
                done = work => Ok(done),
                _ = stopping.wait_for(|stopping| *stopping) => Err(io::ErrorKind::ConnectionAborted.into()),
                () = tokio::time::sleep_until(until.into()) => Err(io::ErrorKind::TimedOut.into()),
            }
        })
    }

    /// Waits on this thread, for as long as it takes.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.handle.block_on(work)
    }

    /// Begins nothing any more; what is up stays.
    pub(in crate::peer) fn stop(&self) {
        self.stopping.send_replace(true);
        self.endpoint.set_server_config(None);
    }

    /// Ends what is left, and the threads.
    pub(in crate::peer) fn end(&self) {
        self.stop();
        self.ended.send_replace(true);
        if let Some(thread) = self.thread.lock().take() {
            // A panic there has been counted.
            let _ = thread.join();
        }
    }
}

impl Drop for QuicEndpoint {
    fn drop(&mut self) {
        self.ended.send_replace(true);
    }
}

/// A stranger at the endpoint: first it has to show that its address is its own, then there must be room for it.
fn admit(endpoint: &Weak<QuicEndpoint>, shared: &Weak<Shared>, incoming: Incoming) {
    let (Some(endpoint), Some(shared)) = (endpoint.upgrade(), shared.upgrade()) else {
        return incoming.refuse();
    };
    if !incoming.remote_address_validated() {
        // It has come with a token already where this is an error, and is refused.
        let _ = incoming.retry();
        return;
    }
    let from = incoming.remote_address();
    let Some(guard) = shared.admit_stranger(from.ip()) else { return incoming.refuse() };
    // Its first datagram had all of a ClientHello.
    guard.heard();
    let on_thread = Arc::clone(&shared);
    shared.spawn("tl-quic-in", move || {
        let most = on_thread.config.handshake;
        if let Err(refused) =
            connection::arrived(&on_thread, &endpoint, incoming, guard, Instant::now() + most)
        {
            let refused = refused.after(most);
            on_thread.count_refusal(&refused);
            tracing::debug!(%from, %refused, "a QUIC connection was refused");
        }
    });
}

fn runtime() -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match (cores / 2).min(THREADS_MAX) {
        0 | 1 => Builder::new_current_thread().enable_all().build(),
        threads => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(threads).thread_name("tl-quic-io").enable_all().build()
        }
    }
}

/// Keys, suites and verifier, as on every other connection.
fn configs(keys: &Keys, transports: &Transports) -> io::Result<(ServerConfig, ClientConfig)> {
    let mut server = (*keys.server).clone();
    server.alpn_protocols = vec![ALPN.to_vec()];
    server.max_early_data_size = 0;
    let server = QuicServerConfig::try_from(server).map_err(io::Error::other)?;
    let mut server = ServerConfig::with_crypto(Arc::new(server));
    server.transport_config(Arc::clone(&transports.accepted));
    server.max_incoming(INCOMING_MAX).incoming_buffer_size(INCOMING_BYTES);
    server.incoming_buffer_size_total(INCOMING_BYTES * 4);
    let mut client = (*keys.client).clone();
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.enable_early_data = false;
    let client = QuicClientConfig::try_from(client).map_err(io::Error::other)?;
    let mut client = ClientConfig::new(Arc::new(client));
    client.transport_config(Arc::clone(&transports.dialed));
    Ok((server, client))
}
