//! Bytes over QUIC between two hosts, from a warm memfd into a warm memfd: bare quinn, on a runtime with a thread for each
//! core, with its defaults and with the settings of sidecars.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::ValueEnum;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig, TokioRuntime,
    TransportConfig,
};
use tensorlane_memory::Landing;
use tensorlane_sidecar::peer::quic_settings;
use tokio::runtime::Runtime;

use super::fetch::Fetch;
use super::{tls, warm};
use crate::hosts::TwoHosts;
use crate::{pairs, worker};

/// Streams that are tried.
const STREAMS: [usize; 2] = [1, 2];
/// Lifetime of a connection without a word: longer than the sidecars' turn takes.
const IDLE: Duration = Duration::from_secs(600);

/// Settings of quinn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Set {
    /// As it comes.
    Defaults,
    /// As sidecars set it.
    Sidecars,
}

/// A QUIC connection between two hosts that fetches the same number of bytes again and again.
#[derive(Debug)]
pub struct QuicFetch(Fetch<Set>);

impl QuicFetch {
    /// The best of both settings and of one and two streams, by trying. Host A sends, host B fetches.
    ///
    /// # Errors
    /// They do not start.
    pub fn best(hosts: &TwoHosts, bytes: u64) -> Result<Self> {
        let ways =
            [Set::Defaults, Set::Sidecars].into_iter().flat_map(|set| STREAMS.map(|count| (set, count)));
        Ok(Self(Fetch::best(hosts, bytes, ["quic-send", "quic-fetch"], ways)?))
    }

    /// The seconds of one fetch.
    ///
    /// # Errors
    /// An end is gone.
    pub fn seconds(&mut self) -> Result<f64> {
        self.0.seconds()
    }
}

/// `quinn with its defaults, 2 streams`
impl fmt::Display for QuicFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = match self.0.way {
            Set::Defaults => "its defaults",
            Set::Sidecars => "the settings of sidecars",
        };
        write!(f, "quinn with {set}, {} stream{}", self.0.count, if self.0.count == 1 { "" } else { "s" })
    }
}

/// A runtime with a thread for each core, and a socket on it.
fn endpoint(
    at: SocketAddr,
    set: Set,
    server: Option<ServerConfig>,
) -> Result<(Runtime, Endpoint, Arc<TransportConfig>)> {
    let socket = UdpSocket::bind(at).with_context(|| format!("at {at}"))?;
    let (config, transport) = match set {
        Set::Sidecars => quic_settings(&socket, IDLE)?,
        Set::Defaults => {
            let mut transport = TransportConfig::default();
            transport.max_idle_timeout(Some(IDLE.try_into()?));
            (EndpointConfig::default(), Arc::new(transport))
        }
    };
    let server = server.map(|mut server| {
        server.transport_config(Arc::clone(&transport));
        server
    });
    let runtime = Runtime::new()?;
    let inside = runtime.enter();
    let endpoint = Endpoint::new(config, server, socket, Arc::new(TokioRuntime))?;
    drop(inside);
    Ok((runtime, endpoint, transport))
}

/// Sends one share on each stream whenever a byte comes.
pub(super) fn send(address: SocketAddr, bytes: u64, set: Set, streams: usize) -> Result<()> {
    let (_arena, source) = warm::source(share(bytes, streams)?)?;
    let source = Bytes::from_owner(source);
    let crypto = QuicServerConfig::try_from(tls::server_config()?)?;
    let server = ServerConfig::with_crypto(Arc::new(crypto));
    let (runtime, endpoint, _) = endpoint(address, set, Some(server))?;
    runtime.spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let Ok(connection) = incoming.await else { return };
            while let Ok(streams) = connection.accept_bi().await {
                tokio::spawn(send_one(streams, source.clone()));
            }
        }
    });
    worker::ready_until_end_of_input()
}

async fn send_one((mut send, mut receive): (SendStream, RecvStream), source: Bytes) -> Result<()> {
    let mut go = [0];
    loop {
        receive.read_exact(&mut go).await?;
        send.write_chunk(source.clone()).await?;
    }
}

/// Fetches all shares at once; anything is asked, the seconds are answered.
pub(super) fn fetch(address: SocketAddr, bytes: u64, set: Set, streams: usize) -> Result<()> {
    let share = share(bytes, streams)?;
    let (_arena, targets) = warm::targets(std::iter::repeat_n(share, streams))?;
    let (runtime, endpoint, transport) = endpoint((Ipv4Addr::UNSPECIFIED, 0).into(), set, None)?;
    let crypto = QuicClientConfig::try_from(tls::client_config()?)?;
    let mut client = ClientConfig::new(Arc::new(crypto));
    client.transport_config(transport);
    let connection: Connection =
        runtime.block_on(async { anyhow::Ok(endpoint.connect_with(client, address, "limit")?.await?) })?;
    let mut lanes = runtime.block_on(async {
        let mut lanes = Vec::new();
        for target in targets {
            lanes.push((connection.open_bi().await?, target));
        }
        anyhow::Ok(lanes)
    })?;
    worker::say(&true)?;
    worker::serve(|(): ()| {
        let taken = std::mem::take(&mut lanes);
        let seconds = pairs::seconds(|| {
            lanes = runtime.block_on(async {
                let all: Vec<_> =
                    taken.into_iter().map(|lane| tokio::spawn(fetch_one(lane, share))).collect();
                let mut back = Vec::new();
                for one in all {
                    back.push(one.await??);
                }
                anyhow::Ok(back)
            })?;
            Ok(())
        })?;
        Ok(seconds)
    })
}

type Lane = ((SendStream, RecvStream), Landing);

async fn fetch_one(((mut send, mut receive), mut target): Lane, share: u64) -> Result<Lane> {
    send.write_all(&[1]).await?;
    receive.read_exact(target.chunk_mut(0..share)?).await?;
    Ok(((send, receive), target))
}

/// The bytes of each stream.
fn share(bytes: u64, streams: usize) -> Result<u64> {
    match streams as u64 {
        0 => bail!("no bytes come over no streams"),
        streams if !bytes.is_multiple_of(streams) => {
            bail!("{bytes} bytes cannot be shared by {streams} streams")
        }
        streams => Ok(bytes / streams),
    }
}
