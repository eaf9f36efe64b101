//! A peer that has a proper key and does not keep the rules: the test speaks for it, frame by frame, over the network that the
//! sidecars use.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use prost::Message;
use rustls::{ClientConnection, StreamOwned};
use tensorlane_proto::frame::{self, HEADER_BYTES, Header, LAST, PEER_BODY_MAX, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Descriptor, Failure, Incarnation, Layout, Reference, Shape, wire};
use tensorlane_sidecar::identity::{Identity, tls};

use crate::netns::Peers;
use crate::wait::PATIENCE;

/// The life that it says it is in.
const LIFE: Incarnation = Incarnation(9);

/// Connection of a hostile peer to a sidecar.
pub struct Hostile {
    tls: StreamOwned<ClientConnection, TcpStream>,
}

/// A chunk of a tensor, as it is sent.
pub struct Chunk<'a> {
    /// Offset at which it says that it belongs.
    pub offset: u64,
    /// Bytes that it brings.
    pub bytes: &'a [u8],
    /// Set if it says that nothing comes after it.
    pub last: bool,
}

impl Hostile {
    /// Speaks for the peer of a host, whose own sidecar must not run any more, to that of host 0.
    ///
    /// # Panics
    /// Where it is not let in.
    pub fn of(peers: &Peers, host: usize, name: &str) -> Self {
        Self::speaking(1, peers, host, name)
    }

    /// Speaks for the peer of a host in a version of the protocol.
    ///
    /// # Panics
    /// Where it is not let in.
    pub fn speaking(version: u32, peers: &Peers, host: usize, name: &str) -> Self {
        let (identity, to) = (peers.identity(host), peers.network.peer_address(0));
        let mut hostile = peers.network.inside(host, || Self::dial(identity, to));
        let hello = v1::PeerHello {
            version,
            exchange: "default".to_owned(),
            peer: name.to_owned(),
            incarnation: LIFE.to_string(),
            offer: Some(offer(version, peers.network.peer_address(host))),
            ..v1::PeerHello::default()
        };
        hostile.send(PeerKind::Hello, 0, 0, &hello);
        hostile.next_of(PeerKind::Hello).expect("a Hello");
        hostile
    }

    fn dial(identity: &Identity, to: SocketAddr) -> Self {
        let socket = TcpStream::connect(to).expect("the sidecar listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        let config = Arc::new(tls::client_config(identity).expect("a key"));
        let connection = ClientConnection::new(config, tls::server_name()).expect("a connection");
        Self { tls: StreamOwned::new(connection, socket) }
    }

    /// A tensor that it says it has: a row of so many bytes.
    ///
    /// # Panics
    /// Never: a row of bytes is a tensor.
    pub fn tensor(name: &str, id: u64, bytes: u64) -> (Reference, Descriptor) {
        let shape = Shape::new(&[bytes]).expect("one dimension");
        let layout = Layout::contiguous(DType::U8, shape).expect("a row of bytes");
        let (exchange, peer) = ("default".parse().expect("a name"), name.parse().expect("a name"));
        (Reference::new(exchange, peer, LIFE, id, &layout), Descriptor::host(layout))
    }

    /// Waits for a pull, and answers it with a head; the number of its call.
    ///
    /// # Panics
    /// Where none comes.
    pub fn open(&mut self, descriptor: &Descriptor) -> u64 {
        let (header, _) = self.next_of(PeerKind::Pull).expect("a pull");
        let head = v1::PullHead { descriptor: Some(descriptor.into()), ..v1::PullHead::default() };
        self.send(PeerKind::Pull, REPLY, header.call, &head);
        header.call
    }

    /// Sends chunks, whatever they say.
    pub fn bring(&mut self, call: u64, chunks: &[Chunk<'_>]) {
        for Chunk { offset, bytes, last } in chunks {
            let length = u32::try_from(size_of_val(offset) + bytes.len()).expect("a chunk that fits a frame");
            let flags = if *last { LAST } else { 0 };
            let header = Header { length, kind: PeerKind::Chunk.into(), flags, call };
            self.send_bytes(&[&header.encode()[..], &offset.to_le_bytes(), bytes].concat());
        }
    }

    /// Sends a frame, whatever it says.
    pub fn send(&mut self, kind: PeerKind, flags: u16, call: u64, message: &impl Message) {
        self.send_bytes(&frame::encode(kind.into(), flags, call, message));
    }

    /// Waits for a question; its call and what it says.
    ///
    /// # Panics
    /// Where none comes.
    pub fn asked<M: Message + Default>(&mut self, kind: PeerKind) -> (u64, M) {
        let (header, body) = self.next_of(kind).expect("a question");
        (header.call, M::decode(&body[..]).expect("a question of that kind"))
    }

    /// Waits for the answer to a call.
    ///
    /// # Errors
    /// What the sidecar says.
    ///
    /// # Panics
    /// Where none comes.
    pub fn answer<M: Message + Default>(&mut self, kind: PeerKind, call: u64) -> Result<M, Failure> {
        loop {
            let (header, body) = self.next_of(kind).expect("an answer");
            if !header.is_reply() || header.call != call {
                continue;
            }
            return match header.is_failed() {
                true => Err(wire::failure(v1::Failure::decode(&body[..]).expect("a failure"))),
                false => Ok(M::decode(&body[..]).expect("an answer of that kind")),
            };
        }
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        // The sidecar may have hung up: that is what is looked at then.
        let _ = self.tls.write_all(bytes).and_then(|()| self.tls.flush());
    }

    /// The next frame of a kind; none where the connection ends before it.
    fn next_of(&mut self, kind: PeerKind) -> Option<(Header, Vec<u8>)> {
        loop {
            let mut head = [0; HEADER_BYTES];
            self.read(&mut head)?;
            let header = Header::decode(&head, PEER_BODY_MAX).expect("a header");
            let mut body = vec![0; header.length as usize];
            self.read(&mut body)?;
            if header.kind == u16::from(kind) {
                return Some((header, body));
            }
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.tls.read_exact(bytes) {
            Ok(()) => Some(()),
            Err(error) if is_end(&error) => None,
            Err(error) => panic!("neither a frame nor the end of the connection came: {error}"),
        }
    }

    /// Returns whether the sidecar ends the connection. What it says before is passed over.
    pub fn is_closed(&mut self) -> bool {
        self.next_of(PeerKind::Hello).is_none()
    }
}

/// Offer that an honest peer there would make: else nothing would be asked of it.
fn offer(version: u32, address: SocketAddr) -> v1::Offer {
    let (transport, addresses) = (v1::Transport::Tcp.into(), vec![address.to_string()]);
    let tcp = v1::TransportOffer { transport, addresses, ..v1::TransportOffer::default() };
    v1::Offer { versions: (1..=version).rev().collect(), transports: vec![tcp], require: None }
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let alert = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(alert, Some(rustls::Error::AlertReceived(_)))
        || matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}
