//! Round trips: the least that asking somebody else costs.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};

use super::ends;
use crate::hosts::TwoHosts;
use crate::pairs;
use crate::scratch::Scratch;
use crate::worker::{self, At, Worker};

/// Bytes of a question, and of an answer over a Unix socket: about what a request for one tensor has.
pub const SMALL: usize = 64;
/// Bytes of an answer that has a small tensor in it.
pub const PAGE: usize = 4096;

/// Round trips of 64 bytes over a Unix stream socket to another process.
#[derive(Debug)]
pub struct UnixRoundTrip {
    stream: UnixStream,
    _echo: Worker,
}

impl UnixRoundTrip {
    /// Starts the other end, on one core if one is named.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(scratch: &Scratch, core: Option<usize>) -> Result<Self> {
        let socket = scratch.path().join("echo.sock");
        let at = At { core, ..At::default() };
        let echo = ends::start(at, &[OsStr::new("unix-echo"), socket.as_ref()])?;
        Ok(Self { stream: UnixStream::connect(&socket)?, _echo: echo })
    }

    /// The median of `count` round trips, in microseconds.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn median_us(&mut self, count: usize) -> Result<f64> {
        let mut bytes = [7; SMALL];
        pairs::median_us(count, || {
            self.stream.write_all(&bytes)?;
            Ok(self.stream.read_exact(&mut bytes)?)
        })
    }
}

/// Round trips over TCP between two hosts: 64 bytes there, an answer back.
#[derive(Debug)]
pub struct TcpRoundTrip {
    ask: Worker,
    _answer: Worker,
}

impl TcpRoundTrip {
    /// Starts both ends: who answers with so many bytes on host A, who asks on host B, each on a core if one is named.
    ///
    /// # Errors
    /// They do not start.
    pub fn start(hosts: &TwoHosts, cores: [Option<usize>; 2], answer: usize) -> Result<Self> {
        Self::start_by(hosts, cores, answer, Ok)
    }

    /// Starts both ends as [`Self::start`] does. `by` gives the address at which who answers is reached, by its own one.
    ///
    /// # Errors
    /// They do not start; what `by` fails with.
    pub fn start_by(
        hosts: &TwoHosts,
        cores: [Option<usize>; 2],
        answer: usize,
        by: impl FnOnce(SocketAddr) -> Result<SocketAddr>,
    ) -> Result<Self> {
        let (address, bytes) = (hosts.a.free_address()?, answer.to_string());
        let start = |host, core, word: &str, address: SocketAddr| {
            let address = address.to_string();
            ends::start(At { host: Some(host), core }, &[word.as_ref(), address.as_ref(), bytes.as_ref()])
        };
        let answer = start(&hosts.a, cores[0], "tcp-answer", address)?;
        let ask = start(&hosts.b, cores[1], "tcp-ask", by(address)?)?;
        Ok(Self { ask, _answer: answer })
    }

    /// The median of `count` round trips, in microseconds.
    ///
    /// # Errors
    /// An end is gone.
    pub fn median_us(&mut self, count: usize) -> Result<f64> {
        self.ask.ask(&count)
    }
}

pub(super) fn unix_echo(socket: &Path) -> Result<()> {
    let listener = UnixListener::bind(socket).with_context(|| format!("at {}", socket.display()))?;
    thread::spawn(move || {
        let (stream, _) = listener.accept()?;
        answer(stream, &[7; SMALL])
    });
    worker::ready_until_end_of_input()
}

pub(super) fn tcp_answer(address: SocketAddr, bytes: usize) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("at {address}"))?;
    thread::spawn(move || {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        answer(stream, &vec![7; bytes])
    });
    worker::ready_until_end_of_input()
}

pub(super) fn tcp_ask(address: SocketAddr, bytes: usize) -> Result<()> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("to {address}"))?;
    stream.set_nodelay(true)?;
    let mut answer = vec![0; bytes];
    worker::say(&true)?;
    worker::serve(|count: usize| {
        pairs::median_us(count, || {
            stream.write_all(&[7; SMALL])?;
            Ok(stream.read_exact(&mut answer)?)
        })
    })
}

/// Answers until the other end is gone.
fn answer(mut stream: impl Read + Write, with: &[u8]) -> std::io::Result<()> {
    let mut question = [0; SMALL];
    loop {
        stream.read_exact(&mut question)?;
        stream.write_all(with)?;
    }
}
