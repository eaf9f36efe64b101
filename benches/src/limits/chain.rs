//! The limit of a fan-out: plain sockets in a row, each host passing on what it has got in chunks of 1 MiB, and nothing else.
//! No chain over the same cables is faster by more than the chunks that are on their way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use crate::hosts::star::Star;

/// Amount that is passed on at a time.
const CHUNK: usize = 1 << 20;
/// Chunks that a host has while the cable onwards is busy.
const DEPTH: usize = 4;

/// Seconds until `bytes` bytes of the first host are at all others, the connections being up.
///
/// # Errors
/// Where a socket fails.
pub fn seconds(star: &Star, bytes: u64) -> Result<f64> {
    let listening = |host: &crate::hosts::Host| -> Result<(TcpListener, SocketAddr)> {
        let address = host.free_address()?;
        let listener = host.inside(|| Ok(TcpListener::bind(address)?))?;
        Ok((listener, address))
    };
    let listeners = star.hosts[1..].iter().map(listening).collect::<Result<Vec<_>>>()?;
    let mut onwards = Vec::new();
    let mut inwards = Vec::new();
    for (host, (listener, address)) in star.hosts.iter().zip(&listeners) {
        let socket = host.inside(|| Ok(TcpStream::connect(address)?))?;
        socket.set_nodelay(true)?;
        onwards.push(Some(socket));
        inwards.push(listener.accept()?.0);
    }
    onwards.push(None);
    let mut onwards = onwards.into_iter();
    let first = onwards.next().flatten().context("a chain has two hosts at least")?;
    let begun = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let mut hosts: Vec<_> = inwards
            .into_iter()
            .zip(onwards)
            .map(|(inward, onward)| scope.spawn(move || pass_on(inward, onward, bytes)))
            .collect();
        hosts.push(scope.spawn(move || send(first, bytes)));
        for host in hosts {
            host.join().map_err(|_| anyhow!("a host of the chain panicked"))??;
        }
        Ok(())
    })?;
    Ok(begun.elapsed().as_secs_f64())
}

fn send(mut to: TcpStream, bytes: u64) -> Result<()> {
    let chunk = vec![7; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(CHUNK as u64);
        to.write_all(&chunk[..now as usize])?;
        left -= now;
    }
    Ok(())
}

/// Reads on one thread, and writes on another what has come.
fn pass_on(mut from: TcpStream, onward: Option<TcpStream>, bytes: u64) -> Result<()> {
    thread::scope(|scope| {
        let (full, filled) = sync_channel::<Vec<u8>>(DEPTH);
        let writing = scope.spawn(move || -> Result<()> {
            let Some(mut to) = onward else {
                filled.iter().for_each(drop);
                return Ok(());
            };
            filled.iter().try_for_each(|chunk| Ok(to.write_all(&chunk)?))
        });
        let mut left = bytes;
        while left > 0 {
            let mut chunk = vec![0; left.min(CHUNK as u64) as usize];
            from.read_exact(&mut chunk)?;
            left -= chunk.len() as u64;
            if full.send(chunk).is_err() {
                break;
            }
        }
        drop(full);
        writing.join().map_err(|_| anyhow!("a host of the chain panicked"))?
    })
}
