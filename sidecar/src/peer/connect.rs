//! Sockets of peers: those that come in and those that we dial. What is said on them first is for `hello`. TCP, TLS, whose
//! key it is, Hello: in this order, so that nobody unknown costs more than a handshake, of which only so many run at a time.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tensorlane_proto::frame::FrameError;
use tensorlane_proto::{Failure, Fingerprint, PeerName};
use thiserror::Error;
use tracing::{debug, warn};

use super::handshake::{self, HandshakeError};
use super::hello;
use super::record::RecordError;
use super::seats::{LackingSide, NoSeat};
use super::shared::{Registered, Shared};
use super::transport::lanes::bind;
use crate::clock;
use crate::seldom::Seldom;

/// Ports of the system that are tried where any will do: the same number must be free for TCP and for UDP.
const PORTS_TRIED: usize = 32;
/// Lines of connections that could not be accepted: out of descriptors, each try fails.
static ACCEPT_FAILED: Seldom = Seldom::new();
/// Lines of peers that are refused for what is set: each tries again and again.
static LASTING_REFUSED: Seldom = Seldom::new();
/// Time in which a peer hears the last word on a connection that has no place, and the most bytes that it may have sent before.
pub(super) const TELLING: Duration = Duration::from_secs(1);
const UNHEARD_MAX: usize = 64 << 10;

/// Reason for which a connection did not come up.
#[derive(Debug, Error)]
pub(super) enum Refused {
    /// TCP or TLS.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The directory does not know the key.
    #[error("the key {0} belongs to no peer of this exchange")]
    UnknownKey(Fingerprint),
    /// Key of this sidecar itself.
    #[error(
        "the key there is this peer's own, so the address leads back to this peer: set peers.advertise of the other peer to \
         an address of its own, or correct its entry in the peers file; no two peers may have one key"
    )]
    OwnKey,
    /// A certificate without a key that can be read.
    #[error("the certificate has no readable key")]
    NoKey,
    /// Another peer than the one that was dialed (its address may have been given to another pod).
    #[error("the key belongs to {found}, not to {wanted}")]
    WrongPeer {
        /// Peer that was dialed.
        wanted: PeerName,
        /// Peer that answered.
        found: PeerName,
    },
    /// Peer of another exchange, as it says. Both ends read this, so both are named.
    #[error(
        "peer {here} is of the exchange {exchange:?}, and peer {there} of {theirs:?}: set `exchange` alike on both"
    )]
    WrongExchange {
        /// Name of this peer.
        here: PeerName,
        /// Exchange of this peer.
        exchange: String,
        /// Name of the other one, as it says.
        there: String,
        /// Exchange of the other one, as it says.
        theirs: String,
    },
    /// Peer that calls itself by another name than its key's. Both ends read this, so both are named.
    #[error(
        "the peer that calls itself {said:?} has the key that {here} lists for {listed}: let `peer` there and the name in the \
         list be the same"
    )]
    WrongName {
        /// Name of this peer.
        here: PeerName,
        /// Name that the other one says.
        said: String,
        /// Names that the table has for its key.
        listed: String,
    },
    /// Peer that ended the connection in place of an answer to our Hello.
    #[error(
        "it ended the connection without an answer, as a peer does that does not list our key {key}{}",
        lack.as_ref().map(|lack| format!("; {lack}")).unwrap_or_default()
    )]
    Unanswered {
        /// Key that we have shown.
        key: Fingerprint,
        /// Reason that our own table has for that, with what to do.
        lack: Option<String>,
    },
    /// Peer that speaks no version that we do.
    #[error("it speaks version {0} of the protocol, which is not known here")]
    Version(u32),
    /// Peer whose first frame was no Hello.
    #[error("its first frame: {0}")]
    Frame(#[from] FrameError),
    /// Peer whose first records could not be opened. A TLS alert here is its refusal of our certificate.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// Refused by the peer.
    #[error("it refused us: {0}")]
    ByPeer(Failure),
    /// The socket.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// Address that is a name, for which no address was found.
    #[error("{0}")]
    Unresolved(#[source] io::Error),
    /// The time for all of it was over.
    #[error("{step}the peer did not answer within {}", clock::told(*after))]
    TimedOut {
        /// Step that it was at, if known.
        step: &'static str,
        /// Time that it had.
        after: Duration,
    },
    /// Connection beside another one, which stays.
    #[error("a connection that was made at the same time stays")]
    Double,
    /// Connection that leads to a life of the peer that is over.
    #[error("a later life of the peer was connected meanwhile")]
    Late,
    /// Connection beyond `peers.max` of this sidecar.
    #[error("there is no seat for it here: {0}")]
    NoSeat(NoSeat),
    /// QUIC.
    #[error("QUIC: {0}")]
    Quic(#[from] quinn::ConnectionError),
    /// Connection that wants to be a lane, and cannot be one.
    #[error("it is no lane of ours: {0}")]
    Lane(&'static str),
}

impl Refused {
    /// Reason with how long its time was, if that was over: the kernel's own words for it would be "Resource
    /// temporarily unavailable".
    pub(super) fn after(self, most: Duration) -> Self {
        match self {
            Self::Handshake(HandshakeError::TimedOut) => {
                Self::TimedOut { step: "the TLS handshake: ", after: most }
            }
            Self::Socket(error) if handshake::timed_out_here(&error) => {
                Self::TimedOut { step: "", after: most }
            }
            other => other,
        }
    }

    /// Lack of a seat that it tells of, and at which end.
    pub(super) fn no_seat(&self) -> Option<(LackingSide, NoSeat)> {
        match self {
            Self::NoSeat(told) => Some((LackingSide::Ours, *told)),
            Self::Handshake(HandshakeError::NoSeat(told)) => Some((LackingSide::Theirs, *told)),
            Self::ByPeer(failure) => NoSeat::of_refusal(failure).map(|told| (LackingSide::Theirs, told)),
            _ => None,
        }
    }

    /// Returns whether somebody has to change settings before the two can connect.
    fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::UnknownKey(_) | Self::WrongExchange { .. } | Self::WrongName { .. } | Self::Version(_)
        )
    }

    /// Returns whether the other end closed or reset the connection: it may have been reached at another address.
    pub(super) fn is_given_up(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        match self {
            Self::Handshake(HandshakeError::Closed) => true,
            Self::Handshake(HandshakeError::Socket(error)) | Self::Socket(error) => {
                matches!(error.kind(), BrokenPipe | ConnectionReset)
            }
            _ => false,
        }
    }

    /// The label in metrics: one of `AuthRefusal`. None where it was no refusal of ours.
    pub(super) fn label(&self) -> Option<&'static str> {
        Some(match self {
            Self::Handshake(HandshakeError::NoSeat(_)) => return None,
            Self::Handshake(error) => error.label(),
            Self::UnknownKey(_) => "unknown_key",
            Self::NoKey => "malformed_certificate",
            Self::WrongPeer { .. } | Self::WrongName { .. } | Self::OwnKey => "other_peer",
            Self::WrongExchange { .. } => "other_exchange",
            Self::Version(_) => "version",
            Self::Frame(_) => "frame",
            Self::TimedOut { .. } => "timeout",
            Self::Socket(error) if handshake::timed_out(error) => "timeout",
            Self::Quic(quinn::ConnectionError::TimedOut) => "timeout",
            Self::Record(_) | Self::Quic(_) | Self::Unanswered { .. } => "tls",
            Self::Lane(_) => "lane",
            Self::NoSeat(_) => "too_many",
            Self::ByPeer(_) | Self::Socket(_) | Self::Unresolved(_) | Self::Double | Self::Late => {
                return None;
            }
        })
    }
}

/// Listens; for QUIC also at the UDP port of the same number.
pub(super) fn bind(listen: SocketAddr, quic: bool) -> io::Result<(TcpListener, Option<UdpSocket>)> {
    let mut tried = 0;
    loop {
        let listener = TcpListener::bind(listen)?;
        if !quic {
            return Ok((listener, None));
        }
        tried += 1;
        match UdpSocket::bind(listener.local_addr()?) {
            Ok(datagrams) => return Ok((listener, Some(datagrams))),
            Err(error)
                if listen.port() == 0 && tried < PORTS_TRIED && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
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
                if let Some(times) = ACCEPT_FAILED.times(Instant::now()) {
                    warn!(%error, times, "a connection could not be accepted");
                }
                shared.pause(Duration::from_millis(100));
            }
        }
    }
}

fn accept(shared: &Arc<Shared>, socket: TcpStream, from: SocketAddr) {
    let Some(guard) = shared.admit_unknown(&socket, from.ip()) else { return };
    let (on_thread, was_cut) = (Arc::clone(shared), guard.was_cut());
    shared.spawn("tl-peer-in", move || {
        let most = on_thread.config.handshake;
        if let Err(refused) = arrived(&on_thread, socket, guard, Instant::now() + most) {
            if was_cut.load(Ordering::Acquire) {
                // Counted when it was ended.
                return;
            }
            let refused = refused.after(most);
            // An own key has come from the own look at where an address leads, which is no refusal, or whoever dialed counts it.
            if !refused.is_given_up() && !matches!(refused, Refused::OwnKey) {
                on_thread.count_refusal(&refused);
            }
            tell_refusal(&on_thread, from, &refused);
        }
    });
}

/// Says why a connection that came in was refused: aloud where somebody has to change settings.
fn tell_refusal(shared: &Shared, from: SocketAddr, refused: &Refused) {
    let now = Instant::now();
    if let Refused::UnknownKey(key) = refused {
        shared.refused_keys.note(from.ip(), *key, now);
    }
    match refused.is_lasting().then(|| LASTING_REFUSED.times(now)).flatten() {
        Some(times) => warn!(%from, %refused, times, "a peer was refused, and is until settings are changed"),
        None => debug!(%from, %refused, "connection refused"),
    }
}

/// Runs a connection that came in, until it ends.
fn arrived(
    shared: &Arc<Shared>,
    socket: TcpStream,
    guard: Registered,
    until: Instant,
) -> Result<(), Refused> {
    if let Some(told) = shared.lacks_seat_for(socket.peer_addr()?.ip()) {
        tell(&socket, told);
        return Err(Refused::NoSeat(told));
    }
    if shared.config.lanes.plain && begins_plain(&socket, until)? {
        guard.heard();
        return bind::arrived_plain(shared, socket, guard, until);
    }
    let keys = shared.keys();
    let secured = handshake::server(&keys.server, &socket, until, &|| guard.heard())?;
    hello::arrived(shared, socket, &keys, secured, guard, until)
}

/// Says that there is no seat, before anything is heard.
fn tell(socket: &TcpStream, told: NoSeat) {
    let until = Instant::now() + TELLING;
    // Whoever does not hear it comes back all the same.
    if handshake::send(socket, &told.record(), until).is_ok() {
        linger(socket, until);
    }
}

/// Says no more on a socket, and waits for its other end to close, so that the last word is read before the socket is closed.
pub(super) fn linger(socket: &TcpStream, until: Instant) {
    if socket.shutdown(Shutdown::Write).is_err() {
        return;
    }
    // What is unread when a socket is closed has the kernel throw away what the other end has not read either.
    let mut unread = [0; 4096];
    let mut left = UNHEARD_MAX;
    while let Ok(bytes) = handshake::receive(socket, &mut unread, until)
        && left > bytes
    {
        left -= bytes;
    }
}

/// Returns whether the first byte is that of a plain lane. No record of TLS begins with it.
fn begins_plain(socket: &TcpStream, until: Instant) -> Result<bool, Refused> {
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    socket.set_read_timeout(Some(left))?;
    let mut first = [0];
    Ok(socket.peek(&mut first)? == 1 && first[0] == bind::MAGIC[0])
}

/// Connects in a way that [`super::Peers::stop`] can cut short. `segment`: as in [`open`].
pub(super) fn connect(
    shared: &Arc<Shared>,
    address: &SocketAddr,
    segment: Option<u32>,
    timeout: Duration,
) -> io::Result<(TcpStream, Registered)> {
    let (socket, mut guard) = open(shared, address, segment)?;
    finish(&socket, &mut guard, address, timeout)?;
    Ok((socket, guard))
}

/// Makes a socket for an address, on which nothing is said yet. [`super::Peers::stop`] can cut it from here on. `segment`: bytes
/// of the segments that both ends send on it, where they are to be small.
pub(super) fn open(
    shared: &Arc<Shared>,
    address: &SocketAddr,
    segment: Option<u32>,
) -> io::Result<(TcpStream, Registered)> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(*address), socket2::Type::STREAM, None)?;
    if let Some(segment) = segment {
        // Where it is refused the peer is reached as always.
        if let Err(error) = socket.set_tcp_mss(segment) {
            tracing::debug!(%address, %error, "segments are not made small");
        }
    }
    let socket = TcpStream::from(socket);
    let guard = shared.register(&socket)?;
    Ok((socket, guard))
}

/// Connects a socket of [`open`].
pub(super) fn finish(
    socket: &TcpStream,
    guard: &mut Registered,
    address: &SocketAddr,
    timeout: Duration,
) -> io::Result<()> {
    guard.check()?;
    SockRef::from(socket).connect_timeout(&(*address).into(), timeout)?;
    guard.begun = Instant::now();
    // A socket that was cut a moment before it began to connect took no notice.
    guard.check()?;
    Ok(())
}

/// Part that an error shows of a text that may be long.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_handshake_whose_time_was_over_says_so_and_after_how_long() {
        let most = Duration::from_secs(5);
        let told = |refused: Refused| refused.after(most).to_string();
        let late = |error: Errno| io::Error::from(error);
        // A read of a socket whose time is over is EAGAIN to the kernel: "Resource temporarily unavailable".
        assert_eq!(told(late(Errno::AGAIN).into()), "the peer did not answer within 5s");
        assert_eq!(
            told(io::Error::from(io::ErrorKind::TimedOut).into()),
            "the peer did not answer within 5s"
        );
        let tls = HandshakeError::from(late(Errno::AGAIN));
        assert_eq!(told(tls.into()), "the TLS handshake: the peer did not answer within 5s");
        // What the kernel gave up by itself was not given that time.
        assert!(!told(late(Errno::TIMEDOUT).into()).contains("5s"));
        assert!(told(late(Errno::CONNREFUSED).into()).contains("refused"));
        assert_eq!(Refused::from(late(Errno::AGAIN)).after(most).label(), Some("timeout"));
    }
}
