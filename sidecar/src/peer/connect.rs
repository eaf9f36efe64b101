//! From a socket to a connection that is up: TCP, TLS, whose key it is, Hello. In this order, so that nobody unknown costs
//! more than a handshake, of which only so many run at a time.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use prost::Message;
use rustls::pki_types::CertificateDer;
use socket2::SockRef;
use tensorlane_proto::frame::{self, FAILED, FrameError, Header, PEER_VERSION, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Fingerprint, Incarnation, PeerName, Reason, wire};
use thiserror::Error;
use tracing::{debug, warn};

use super::handshake::{self, HandshakeError, Secured};
use super::incoming::{Drained, Incoming};
use super::link::{self, Ended, Link, LinkParts};
use super::outbox::Outbox;
use super::parse::{Flow, FrameParser, Sink};
use super::record::{RecordError, Sealer};
use super::remote::Peer;
use super::shared::{Registered, Shared, count_out};

/// Longest Hello: names, an offer with addresses. Before it nothing else is read.
const HELLO_MAX: u32 = 64 << 10;

/// Why a connection did not come up.
#[derive(Debug, Error)]
pub(super) enum Refused {
    /// TCP or TLS.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The directory does not know the key.
    #[error("the key {0} belongs to no peer of this exchange")]
    UnknownKey(Fingerprint),
    /// A certificate without a key that can be read.
    #[error("the certificate has no readable key")]
    NoKey,
    /// Another peer than the one that was dialed (its address may have been given to another pod).
    #[error("the key belongs to {found}, not to {wanted}")]
    WrongPeer {
        /// Who was dialed.
        wanted: PeerName,
        /// Who answered.
        found: PeerName,
    },
    /// It says that it is of another exchange.
    #[error("it belongs to the exchange {0:?}")]
    WrongExchange(String),
    /// Its name is not the one of its key.
    #[error("it calls itself {0:?}, which is not the name of its key")]
    WrongName(String),
    /// It speaks no version that we do.
    #[error("it speaks version {0} of the protocol, which is not known here")]
    Version(u32),
    /// Its first frame was no Hello.
    #[error("its first frame: {0}")]
    Frame(#[from] FrameError),
    /// Its first records could not be opened. A TLS alert here is its refusal of our certificate.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// It told us that it refuses us.
    #[error("it refused us: {0}")]
    ByPeer(Failure),
    /// The socket.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// There is a connection already, and it stays.
    #[error("a connection that was made at the same time stays")]
    Double,
}

impl Refused {
    /// The label in metrics: one of `AuthRefusal`. None where it was no refusal of ours.
    pub(super) fn label(&self) -> Option<&'static str> {
        Some(match self {
            Self::Handshake(error) => error.label(),
            Self::UnknownKey(_) => "unknown_key",
            Self::NoKey => "malformed_certificate",
            Self::WrongPeer { .. } | Self::WrongName(_) => "other_peer",
            Self::WrongExchange(_) => "other_exchange",
            Self::Version(_) => "version",
            Self::Frame(_) => "frame",
            Self::Socket(error) if handshake::timed_out(error) => "timeout",
            Self::Record(_) => "tls",
            Self::ByPeer(_) | Self::Socket(_) | Self::Double => return None,
        })
    }
}

/// Accepts until the listener is shut down.
pub(super) fn listen(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        match listener.accept() {
            Ok((socket, from)) => accept(shared, socket, from),
            Err(_) if shared.is_stopping() => return,
            Err(error) => {
                // Out of descriptors, most likely: no use in trying again at once.
                warn!(%error, "a connection could not be accepted");
                shared.pause(Duration::from_millis(100));
            }
        }
    }
}

fn accept(shared: &Arc<Shared>, socket: TcpStream, from: SocketAddr) {
    let Some(guard) = shared.admit_unknown(&socket) else {
        shared.counters.auth_refused.add("too_many");
        return;
    };
    let on_thread = Arc::clone(shared);
    shared.spawn("tl-peer-in", move || {
        let until = Instant::now() + on_thread.config.handshake;
        let up = handshake::server(Arc::clone(&on_thread.keys.server), &socket, until)
            .map_err(Refused::from)
            .and_then(|secured| greet(&on_thread, socket, secured, guard, None, until));
        match up {
            Ok(up) => up.run(&on_thread),
            Err(refused) => {
                on_thread.count_refusal(&refused);
                debug!(%from, %refused, "connection refused");
            }
        }
    });
}

/// Dials a peer at each of its addresses; on success this thread runs the connection. `attempt` is what
/// `Dial::begin` gave.
pub(super) fn dial(shared: &Arc<Shared>, peer: &Arc<Peer>, attempt: u64) {
    let addresses = shared.known.peer(&peer.name).map(|known| known.addresses).unwrap_or_default();
    let mut error = format!("{} has no address in the directory", peer.name);
    for address in addresses {
        match dial_one(shared, peer, &address) {
            Ok(up) => {
                shared.dial_ended(peer);
                return up.run(shared);
            }
            Err(Refused::Double) => return shared.dial_ended(peer),
            Err(refused) => {
                shared.count_refusal(&refused);
                error = format!("{} at {address}: {refused}", peer.name);
            }
        }
    }
    debug!(peer = %peer.name, error, "peer not reached");
    shared.dial_failed(peer, attempt, &error);
}

fn dial_one(shared: &Arc<Shared>, peer: &Arc<Peer>, address: &str) -> Result<Up, Refused> {
    let until = Instant::now() + shared.config.handshake;
    let mut last = Refused::Socket(io::ErrorKind::AddrNotAvailable.into());
    for address in address.to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match connect(shared, &address, left) {
            Ok((socket, guard)) => {
                let secured = handshake::client(Arc::clone(&shared.keys.client), &socket, until)?;
                return greet(shared, socket, secured, guard, Some(&peer.name), until);
            }
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// Connects in a way that [`super::Peers::stop`] can cut short.
fn connect(
    shared: &Arc<Shared>,
    address: &SocketAddr,
    timeout: Duration,
) -> io::Result<(TcpStream, Registered)> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(*address), socket2::Type::STREAM, None)?;
    let socket = TcpStream::from(socket);
    let guard = shared.register(&socket)?;
    SockRef::from(&socket).connect_timeout(&(*address).into(), timeout)?;
    Ok((socket, guard))
}

/// A connection that is up but not running yet.
struct Up {
    link: Arc<Link>,
    incoming: Incoming,
    parser: FrameParser,
}

impl Up {
    fn run(self, shared: &Arc<Shared>) {
        link::run(shared, &self.link, self.incoming, self.parser);
    }
}

/// After TLS: who is it, Hello both ways, and the place of the peer's connection.
fn greet(
    shared: &Arc<Shared>,
    socket: TcpStream,
    secured: Secured,
    guard: Registered,
    wanted: Option<&PeerName>,
    until: Instant,
) -> Result<Up, Refused> {
    let Secured { mut sealer, opener, certificate, plain, sealed } = secured;
    let (name, fingerprint) = who(shared, &certificate, wanted)?;
    socket.set_nodelay(true)?;
    SockRef::from(&socket).set_tcp_user_timeout(Some(shared.config.progress))?;
    // Who dialed speaks first, and gets an answer only if it is let in: else it would take the connection for one that
    // is up, ask something on it, and wait for the peer to come back.
    let dialed = wanted.is_some();
    if dialed {
        say(&mut sealer, &socket, 0, &hello_of(shared), until)?;
    }
    let mut incoming = Incoming::new(opener, plain, &sealed);
    let mut parser = FrameParser::new(HELLO_MAX);
    let hello = hear(&mut incoming, &mut parser, &socket, until)?;
    let incarnation = match check(shared, &name, &hello) {
        Ok(incarnation) => incarnation,
        Err(refused) => {
            let reason = match &refused {
                Refused::WrongExchange(_) => Reason::WrongExchange,
                Refused::Version(_) => Reason::Unsupported,
                _ => Reason::InvalidArgument,
            };
            let failure = Failure::new(reason, refused.to_string());
            // So that its log says why; the refusal stands without.
            let _ = say(&mut sealer, &socket, REPLY | FAILED, &v1::Failure::from(&failure), until);
            return Err(refused);
        }
    };
    if !dialed {
        say(&mut sealer, &socket, 0, &hello_of(shared), until)?;
    }
    parser.trust();
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(Some(shared.config.progress))?;
    let peer = shared.peer(&name);
    let count = {
        let (counters, peer) = (Arc::clone(&shared.counters), Arc::clone(&peer));
        Box::new(move |bytes| count_out(&counters, &peer, bytes))
    };
    let writing = socket.try_clone()?;
    let link = Arc::new_cyclic(|link: &Weak<Link>| {
        let link = Weak::clone(link);
        let account = shared.config.unread.open(move || {
            if let Some(link) = link.upgrade() {
                link.end(Ended::Unread);
            }
        });
        Link::new(LinkParts {
            id: shared.next_link(),
            peer,
            incarnation,
            offer: hello.offer.unwrap_or_default(),
            dialed,
            fingerprint,
            outbox: Outbox::new(writing, sealer, account, count),
            socket,
        })
    });
    // From here on it is ended as a connection that is up.
    drop(guard);
    if shared.adopt(&link) { Ok(Up { link, incoming, parser }) } else { Err(Refused::Double) }
}

/// Whose key it is, by the directory; asked again once where it does not know.
fn who(
    shared: &Arc<Shared>,
    certificate: &CertificateDer<'_>,
    wanted: Option<&PeerName>,
) -> Result<(PeerName, Fingerprint), Refused> {
    let fingerprint = (shared.keys.fingerprint_of)(certificate).ok_or(Refused::NoKey)?;
    let found = shared.known.by_fingerprint(&fingerprint).or_else(|| {
        shared.known.refresh();
        shared.known.by_fingerprint(&fingerprint)
    });
    let found = found.filter(|name| *name != shared.me.peer).ok_or(Refused::UnknownKey(fingerprint))?;
    match wanted {
        Some(wanted) if *wanted != found => Err(Refused::WrongPeer { wanted: wanted.clone(), found }),
        _ => Ok((found, fingerprint)),
    }
}

fn hello_of(shared: &Shared) -> v1::PeerHello {
    v1::PeerHello {
        version: PEER_VERSION,
        exchange: shared.me.exchange.to_string(),
        peer: shared.me.peer.to_string(),
        incarnation: shared.me.incarnation.to_string(),
        offer: Some(shared.me.offer.clone()),
    }
}

fn check(shared: &Shared, name: &PeerName, hello: &v1::PeerHello) -> Result<Incarnation, Refused> {
    // The lower of both versions is spoken; version 1 is the first.
    if hello.version < 1 {
        return Err(Refused::Version(hello.version));
    }
    if hello.exchange != shared.me.exchange.as_str() {
        return Err(Refused::WrongExchange(shown(&hello.exchange)));
    }
    if hello.peer != name.as_str() {
        return Err(Refused::WrongName(shown(&hello.peer)));
    }
    hello.incarnation.parse().map_err(|_| FrameError::Malformed(PeerKind::Hello.into()).into())
}

/// What an error shows of a text that may be long.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

fn say(
    sealer: &mut Sealer,
    socket: &TcpStream,
    flags: u16,
    message: &impl Message,
    until: Instant,
) -> Result<(), Refused> {
    let mut records = std::collections::VecDeque::new();
    let frame = frame::encode(PeerKind::Hello.into(), flags, 0, message);
    sealer.seal_all(&frame, &mut records).map_err(RecordError::from)?;
    Ok(handshake::send(socket, &Vec::from(records).concat(), until)?)
}

/// Reads until the peer's Hello is there, and nothing beyond it.
fn hear(
    incoming: &mut Incoming,
    parser: &mut FrameParser,
    socket: &TcpStream,
    until: Instant,
) -> Result<v1::PeerHello, Refused> {
    let mut hello = HelloSink(None);
    loop {
        let drained = incoming.drain::<Refused>(|plain| match hello.0 {
            Some(_) => Ok(0),
            None => parser.feed(plain, &mut hello),
        })?;
        if let Some(hello) = hello.0 {
            return Ok(hello);
        }
        if drained == Drained::Closed {
            return Err(HandshakeError::Closed.into());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        socket.set_read_timeout(Some(left))?;
        if incoming.receive(socket)? == 0 {
            // The usual way in which a peer that does not know our key says so.
            return Err(HandshakeError::Closed.into());
        }
    }
}

/// Takes a Hello, or the refusal of ours, and nothing else.
struct HelloSink(Option<v1::PeerHello>);

impl Sink for HelloSink {
    type Error = Refused;

    fn message(&mut self, kind: PeerKind, header: Header, body: &[u8]) -> Result<Flow, Refused> {
        if kind != PeerKind::Hello || header.is_last() || header.call != 0 {
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        let malformed = |_| Refused::from(FrameError::Malformed(header.kind));
        if header.is_failed() {
            let failure = v1::Failure::decode(body).map_err(malformed)?;
            return Err(Refused::ByPeer(wire::failure(failure)));
        }
        self.0 = Some(v1::PeerHello::decode(body).map_err(malformed)?);
        Ok(Flow::Stop)
    }

    fn chunk(&mut self, header: Header, _: u64, _: usize) -> Result<(), Refused> {
        Err(FrameError::OutOfPlace(header.kind).into())
    }

    fn bytes(&mut self, _: &[u8]) -> Result<(), Refused> {
        Ok(())
    }

    fn chunk_end(&mut self) -> Result<Flow, Refused> {
        Ok(Flow::Stop)
    }
}
