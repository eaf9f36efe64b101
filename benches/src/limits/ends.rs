//! The other ends: processes of our own program that answer or call.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use super::bulk::How;
use super::quic::Set;
use super::{bulk, quic, round_trip, tls};
use crate::worker::{At, Worker};

/// The word that makes our program such an end.
pub const WORD: &str = "end";

/// End of a limit, in a process of its own.
#[derive(Debug, Clone, Subcommand)]
pub enum End {
    /// Answers 64 bytes with 64 bytes on a Unix socket.
    UnixEcho {
        /// Path of the socket to listen on.
        socket: PathBuf,
    },
    /// Answers 64 bytes over TCP.
    TcpAnswer {
        /// Address to listen on.
        address: SocketAddr,
        /// Bytes of an answer.
        bytes: usize,
    },
    /// Makes such round trips; a number of them is asked for, their median in microseconds is answered.
    TcpAsk {
        /// Address to ask.
        address: SocketAddr,
        /// Bytes of an answer.
        bytes: usize,
    },
    /// Sends bytes over TLS, whenever a byte comes.
    TlsSend {
        /// Address to listen on.
        address: SocketAddr,
        /// Number of bytes to send.
        bytes: u64,
    },
    /// Sends bytes over some connections, whenever a byte comes on one.
    BulkSend {
        /// Address to listen on.
        address: SocketAddr,
        /// Number of bytes, over all connections together.
        bytes: u64,
        /// Way in which the bytes are sent.
        how: How,
        /// Number of connections.
        connections: usize,
    },
    /// Fetches such bytes; anything is asked, the seconds are answered.
    BulkFetch {
        /// Address to fetch from.
        address: SocketAddr,
        /// Number of bytes, over all connections together.
        bytes: u64,
        /// Way in which the bytes are sent.
        how: How,
        /// Number of connections.
        connections: usize,
    },
    /// Sends bytes over streams of one QUIC connection, whenever a byte comes on one.
    QuicSend {
        /// Address to listen on.
        address: SocketAddr,
        /// Number of bytes, over all streams together.
        bytes: u64,
        /// Settings of quinn.
        set: Set,
        /// Number of streams.
        streams: usize,
    },
    /// Fetches such bytes; anything is asked, the seconds are answered.
    QuicFetch {
        /// Address to fetch from.
        address: SocketAddr,
        /// Number of bytes, over all streams together.
        bytes: u64,
        /// Settings of quinn.
        set: Set,
        /// Number of streams.
        streams: usize,
    },
    /// Fetches bytes over TLS; anything is asked, the seconds are answered.
    TlsFetch {
        /// Address to fetch from.
        address: SocketAddr,
        /// Number of bytes to fetch.
        bytes: u64,
    },
}

impl End {
    /// Is that end until the input ends.
    ///
    /// # Errors
    /// What went wrong.
    pub fn run(self) -> Result<()> {
        match self {
            Self::UnixEcho { socket } => round_trip::unix_echo(&socket),
            Self::TcpAnswer { address, bytes } => round_trip::tcp_answer(address, bytes),
            Self::TcpAsk { address, bytes } => round_trip::tcp_ask(address, bytes),
            Self::TlsSend { address, bytes } => tls::send(address, bytes),
            Self::BulkSend { address, bytes, how, connections } => {
                bulk::send(address, bytes, how, connections)
            }
            Self::BulkFetch { address, bytes, how, connections } => {
                bulk::fetch(address, bytes, how, connections)
            }
            Self::QuicSend { address, bytes, set, streams } => quic::send(address, bytes, set, streams),
            Self::QuicFetch { address, bytes, set, streams } => quic::fetch(address, bytes, set, streams),
            Self::TlsFetch { address, bytes } => tls::fetch(address, bytes),
        }
    }
}

/// Starts an end, and waits until it is ready.
///
/// # Errors
/// It is not.
pub(super) fn start(at: At<'_>, words: &[&OsStr]) -> Result<Worker> {
    let mut worker = Worker::start(at, &[&[OsStr::new(WORD)], words].concat())?;
    worker.answer::<bool>()?;
    Ok(worker)
}
