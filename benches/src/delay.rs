//! A long way to a server: what goes to it, and what comes back, arrives later. The kernel of a small machine need not be
//! able to delay packets, so a relay in front of the server does.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::hosts::Host;

/// Time between two looks for another connection.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes that are carried at a time.
const ROOM: usize = 64 << 10;

/// A relay in front of a server, which delays and changes nothing else. Dropped, it takes no more connections; those that there
/// are end with their ends.
#[derive(Debug)]
pub struct Delay {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Delay {
    /// Stands on the host of a server in front of it. Either way takes so much longer.
    ///
    /// # Errors
    /// No port is free there.
    pub fn start(host: &Host, server: SocketAddr, each_way: Duration) -> Result<Self> {
        let address = host.free_address()?;
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        // Threads that are started in the network of a host stay there.
        let accepting = host.inside(move || {
            let listener = TcpListener::bind(address).with_context(|| format!("at {address}"))?;
            listener.set_nonblocking(true)?;
            Ok(thread::spawn(move || accept(&listener, server, each_way, &seen)))
        })?;
        Ok(Self { address, over, accepting: Some(accepting) })
    }

    /// The address at which the server is reached over the long way.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(accepting) = self.accepting.take() {
            // A panic there has been printed.
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, server: SocketAddr, each_way: Duration, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let Ok((near, _)) = listener.accept() else {
            thread::sleep(LOOK);
            continue;
        };
        let Ok(far) = TcpStream::connect(server) else { continue };
        for (from, to) in [(&near, &far), (&far, &near)] {
            if let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) {
                carry(from, to, each_way);
            }
        }
    }
}

/// Carries one direction of a connection, on threads that end with it.
fn carry(mut from: TcpStream, mut to: TcpStream, each_way: Duration) {
    // Where it fails the connection has ended.
    let _ = from.set_nonblocking(false);
    let _ = to.set_nodelay(true);
    let (line, due) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut room = vec![0; ROOM];
        while let Ok(bytes @ 1..) = from.read(&mut room) {
            if line.send((Instant::now() + each_way, room[..bytes].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (at, bytes) in due {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // Closed already, maybe.
        let _ = to.shutdown(Shutdown::Write);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::TwoHosts;

    #[test]
    fn bytes_arrive_as_they_were_and_no_sooner_than_the_way_takes() {
        let hosts = TwoHosts::make();
        let at = hosts.a.free_address().unwrap();
        let server = hosts.a.inside(|| Ok(TcpListener::bind(at)?)).unwrap();
        let each_way = Duration::from_millis(20);
        let relay = Delay::start(&hosts.a, at, each_way).unwrap();
        let echo = thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut bytes = [0; 3];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let address = relay.address();
        let mut stream = hosts.b.inside(|| Ok(TcpStream::connect(address)?)).unwrap();
        let (begun, mut back) = (Instant::now(), [0; 3]);
        stream.write_all(b"far").unwrap();
        stream.read_exact(&mut back).unwrap();
        assert!(begun.elapsed() >= 2 * each_way && &back == b"far");
        echo.join().unwrap();
    }
}
