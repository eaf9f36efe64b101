//! Bytes between two hosts, from a warm memfd into a warm memfd, over one or several connections, plain or in TLS: the best
//! that blocking sockets do without Tensorlane.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::fetch::Fetch;
use super::{tls, warm};
use crate::hosts::TwoHosts;
use crate::{pairs, worker};

/// Connections that are tried.
const CONNECTIONS: [usize; 3] = [1, 2, 4];
/// Bytes that one call hands to the kernel.
const CALL: usize = 1 << 20;

/// Way in which bytes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum How {
    /// `write` from a map of the memfd.
    Write,
    /// `sendfile` from the memfd.
    Sendfile,
    /// Through rustls, with the suite and the key exchange of sidecars.
    Tls,
}

/// Several connections between two hosts that together fetch the same number of bytes again and again.
#[derive(Debug)]
pub struct BulkFetch(Fetch<How>);

impl BulkFetch {
    /// The best of these ways and of one, two and four connections, by trying. Host A sends, host B fetches.
    ///
    /// # Errors
    /// They do not start.
    pub fn best(hosts: &TwoHosts, bytes: u64, ways: &[How]) -> Result<Self> {
        let ways = ways.iter().flat_map(|how| CONNECTIONS.map(|count| (*how, count)));
        Ok(Self(Fetch::best(hosts, bytes, ["bulk-send", "bulk-fetch"], ways)?))
    }

    /// The seconds of one fetch.
    ///
    /// # Errors
    /// An end is gone.
    pub fn seconds(&mut self) -> Result<f64> {
        self.0.seconds()
    }
}

/// `write, 2 connections`
impl fmt::Display for BulkFetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.0.way {
            How::Write => "write",
            How::Sendfile => "sendfile",
            How::Tls => "rustls",
        };
        write!(f, "{how}, {} connection{}", self.0.count, if self.0.count == 1 { "" } else { "s" })
    }
}

/// The bytes of each connection: together all of them.
fn shares(bytes: u64, connections: usize) -> Result<Vec<u64>> {
    let count = connections as u64;
    if count == 0 || bytes < count {
        bail!("{bytes} bytes cannot be shared by {connections} connections");
    }
    let mut shares = vec![bytes / count; connections];
    if let Some(last) = shares.last_mut() {
        *last += bytes % count;
    }
    Ok(shares)
}

/// Sends one share whenever a byte comes.
pub(super) fn send(address: SocketAddr, bytes: u64, how: How, connections: usize) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("at {address}"))?;
    let config = Arc::new(tls::server_config()?);
    let shares = shares(bytes, connections)?;
    thread::spawn(move || -> Result<()> {
        for share in shares {
            let (mut socket, _) = listener.accept()?;
            socket.set_nodelay(true)?;
            let config = Arc::clone(&config);
            thread::spawn(move || -> Result<()> {
                match how {
                    How::Sendfile => send_file(&mut socket, share),
                    How::Write => send_from(socket, share),
                    How::Tls => send_from(StreamOwned::new(ServerConnection::new(config)?, socket), share),
                }
            });
        }
        Ok(())
    });
    worker::ready_until_end_of_input()
}

fn send_from(mut stream: impl Read + Write, share: u64) -> Result<()> {
    let (_arena, source) = warm::source(share)?;
    let mut go = [0];
    loop {
        stream.read_exact(&mut go)?;
        stream.write_all(source.as_ref())?;
        stream.flush()?;
    }
}

fn send_file(socket: &mut TcpStream, share: u64) -> Result<()> {
    let mut file = File::from(memfd_create("limit", MemfdFlags::CLOEXEC)?);
    let page = vec![0x5a; CALL];
    let mut left = share as usize;
    while left > 0 {
        left -= file.write(&page[..left.min(CALL)])?;
    }
    let mut go = [0];
    loop {
        socket.read_exact(&mut go)?;
        let mut at = 0;
        while at < share {
            let left = (share - at).min(1 << 30) as usize;
            let sent = sendfile(socket.as_fd(), file.as_fd(), Some(&mut at), left)?;
            if sent == 0 {
                bail!("the memfd ended early");
            }
        }
    }
}

/// Fetches all shares at once; anything is asked, the seconds are answered.
pub(super) fn fetch(address: SocketAddr, bytes: u64, how: How, connections: usize) -> Result<()> {
    let shares = shares(bytes, connections)?;
    let (_arena, targets) = warm::targets(shares.iter().copied())?;
    let config = Arc::new(tls::client_config()?);
    let mut lanes = Vec::new();
    for (target, share) in targets.into_iter().zip(shares) {
        let socket = TcpStream::connect(address).with_context(|| format!("to {address}"))?;
        socket.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match how {
            How::Write | How::Sendfile => Box::new(socket),
            How::Tls => {
                let name = ServerName::try_from("limit").context("a name")?;
                Box::new(StreamOwned::new(ClientConnection::new(Arc::clone(&config), name)?, socket))
            }
        };
        lanes.push((stream, target, share));
    }
    worker::say(&true)?;
    worker::serve(|(): ()| {
        pairs::seconds(|| {
            thread::scope(|scope| {
                let fetch = |lane| scope.spawn(move || fetch_one(lane));
                let all: Vec<_> = lanes.iter_mut().map(fetch).collect();
                all.into_iter().try_for_each(|one| match one.join() {
                    Ok(fetched) => fetched,
                    Err(_) => bail!("a connection's thread died"),
                })
            })
        })
    })
}

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

type Lane = (Box<dyn Stream>, tensorlane_memory::Landing, u64);

fn fetch_one((stream, target, share): &mut Lane) -> Result<()> {
    stream.write_all(&[1])?;
    stream.flush()?;
    Ok(stream.read_exact(target.chunk_mut(0..*share)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_of_the_bytes() {
        assert_eq!(shares(10, 4).unwrap(), [2, 2, 2, 4]);
        assert_eq!(shares(10, 1).unwrap(), [10]);
        assert!(shares(3, 4).is_err() && shares(3, 0).is_err());
    }
}
