//! Calls between two hosts, one after the other, as the control connection makes them: 200 bytes there, so many back. In TLS over
//! TCP, as control goes, and on a stream of a bare QUIC connection.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, RecvStream, SendStream, ServerConfig};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::quic::{Set, endpoint};
use super::{ends, tls};
use crate::hosts::TwoHosts;
use crate::worker::{self, At, Worker};

/// Bytes of a question: what a pull of one tensor takes, and some more. The first eight say how many are wanted back.
const QUESTION: usize = 200;

/// Transport that carries the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// A connection in TLS.
    Tls,
    /// A stream of a QUIC connection.
    Quic,
}

impl Over {
    fn word(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Quic => "quic",
        }
    }
}

/// Caller and answerer.
#[derive(Debug)]
pub struct Calls {
    ask: Worker,
    _answer: Worker,
}

impl Calls {
    /// Starts both ends: who answers on host A, who asks on host B.
    ///
    /// # Errors
    /// They do not start.
    pub fn start(hosts: &TwoHosts, over: Over) -> Result<Self> {
        let address = hosts.a.free_address()?.to_string();
        let start = |host, end: &str| {
            let at = At { host: Some(host), core: None };
            ends::start(at, &[OsStr::new(end), address.as_ref(), over.word().as_ref()])
        };
        let answer = start(&hosts.a, "calls-answer")?;
        Ok(Self { ask: start(&hosts.b, "calls-ask")?, _answer: answer })
    }

    /// Time that each of `count` calls took whose answer has so many bytes, in microseconds.
    ///
    /// # Errors
    /// An end is gone.
    pub fn took_us(&mut self, count: usize, answer: u64) -> Result<Vec<f64>> {
        self.ask.ask(&(count, answer))
    }
}

fn question(answer: u64) -> [u8; QUESTION] {
    let mut question = [7; QUESTION];
    question[..8].copy_from_slice(&answer.to_le_bytes());
    question
}

/// Number of bytes that are wanted.
fn wanted(question: &[u8; QUESTION]) -> Result<usize> {
    let (count, _) = question.split_first_chunk().context("a question is longer than a number")?;
    Ok(usize::try_from(u64::from_le_bytes(*count))?)
}

/// Answers.
pub(super) fn answer(address: SocketAddr, over: Over) -> Result<()> {
    match over {
        Over::Tls => answer_tls(address),
        Over::Quic => answer_quic(address),
    }
}

/// Asks; a number of calls and the bytes of each answer are asked for, the microseconds of each call are answered.
pub(super) fn ask(address: SocketAddr, over: Over) -> Result<()> {
    match over {
        Over::Tls => ask_tls(address),
        Over::Quic => ask_quic(address),
    }
}

fn answer_tls(address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("at {address}"))?;
    let config = Arc::new(tls::server_config()?);
    thread::spawn(move || -> Result<()> {
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        let mut stream = StreamOwned::new(ServerConnection::new(config)?, socket);
        let (mut question, mut body) = ([0; QUESTION], Vec::new());
        loop {
            stream.read_exact(&mut question)?;
            body.resize(wanted(&question)?, 7);
            stream.write_all(&body)?;
            stream.flush()?;
        }
    });
    worker::ready_until_end_of_input()
}

fn ask_tls(address: SocketAddr) -> Result<()> {
    let socket = TcpStream::connect(address).with_context(|| format!("to {address}"))?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from("limit").context("a name")?;
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(tls::client_config()?), name)?, socket);
    call_and_time(|question, room| {
        stream.write_all(question)?;
        Ok(stream.read_exact(room)?)
    })
}

/// Makes as many calls as are asked for, one after the other, and tells what each took.
fn call_and_time(mut call: impl FnMut(&[u8], &mut [u8]) -> Result<()>) -> Result<()> {
    let mut room = Vec::new();
    worker::say(&true)?;
    worker::serve(|(count, answer): (usize, u64)| {
        room.resize(usize::try_from(answer)?, 0);
        let mut took = Vec::with_capacity(count);
        for _ in 0..count {
            let begun = Instant::now();
            call(&question(answer), &mut room)?;
            took.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        Ok(took)
    })
}

fn answer_quic(address: SocketAddr) -> Result<()> {
    let crypto = QuicServerConfig::try_from(tls::server_config()?)?;
    let server = ServerConfig::with_crypto(Arc::new(crypto));
    let (runtime, endpoint, _) = endpoint(address, Set::Sidecars, Some(server))?;
    runtime.spawn(async move {
        let connection = endpoint.accept().await.context("the endpoint is gone")?.await?;
        let (send, receive) = connection.accept_bi().await?;
        answer_all(send, receive).await
    });
    worker::ready_until_end_of_input()
}

async fn answer_all(mut send: SendStream, mut receive: RecvStream) -> Result<()> {
    let (mut question, mut body) = ([0; QUESTION], Vec::new());
    loop {
        receive.read_exact(&mut question).await?;
        body.resize(wanted(&question)?, 7);
        send.write_all(&body).await?;
    }
}

fn ask_quic(address: SocketAddr) -> Result<()> {
    let (runtime, endpoint, transport) = endpoint((Ipv4Addr::UNSPECIFIED, 0).into(), Set::Sidecars, None)?;
    let crypto = QuicClientConfig::try_from(tls::client_config()?)?;
    let mut client = ClientConfig::new(Arc::new(crypto));
    client.transport_config(transport);
    let connection =
        runtime.block_on(async { anyhow::Ok(endpoint.connect_with(client, address, "limit")?.await?) })?;
    let (mut send, mut receive) = runtime.block_on(connection.open_bi())?;
    call_and_time(|question, room| {
        runtime.block_on(async {
            send.write_all(question).await?;
            Ok(receive.read_exact(room).await?)
        })
    })
}
