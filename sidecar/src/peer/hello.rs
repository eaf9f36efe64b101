//! Greeting: what is said first on a connection in TLS: whose key it is, then Hello both ways, and the connection has
//! its place; or LaneHello, and it becomes a lane of a connection that has.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::MutexGuard;
use prost::Message;
use rustls::pki_types::CertificateDer;
use socket2::SockRef;
use tensorlane_proto::frame::{self, FAILED, FrameError, Header, LANES_MAX, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Fingerprint, Incarnation, PeerName, Reason, wire};

use super::api::Keys;
use super::claim::Claim;
use super::connect::{self, Refused, shown};
use super::dial::Candidate;
use super::exporter::Exported;
use super::handshake::{self, HandshakeError, Secured};
use super::link::{AdoptedLink, Ended, Link, LinkParts};
use super::outbox::Outbox;
use super::parse::{Body, Flow, FrameParser, Sink, decode};
use super::record::{RecordError, Sealer};
use super::record_reader::{Drained, RecordReader};
use super::remote::Peer;
use super::shared::{Registered, Seat, Shared, count_out};
use super::transport::lanes::key::{LaneKey, Nonce, Use, nonce};
use super::transport::lanes::quic::QuicConnection;
use super::transport::lanes::{Agreed, Carrier, Lanes, bind};
use super::transport::shm::{self, Apart, Node, NodeParams, Shm, SocketName};
use super::transport::{Stream, Ways};

/// Longest Hello: names, an offer with addresses. Before it nothing else is read.
const HELLO_MAX: u32 = 64 << 10;
/// Reason with which a connection is refused where another one of the same peer stays: it has done nothing wrong.
pub(super) const DOUBLE: Reason = Reason::NameTaken;
/// The first version with lanes.
const LANES_SINCE: u32 = 2;
/// The first version in which keys are mixed with what both ends have exported of the connection.
const EXPORTED_SINCE: u32 = 5;

/// A connection that is up but not running yet.
pub(super) struct EstablishedConnection {
    link: AdoptedLink,
    incoming: RecordReader,
    parser: FrameParser,
}

impl EstablishedConnection {
    /// Runs it on this thread until it ends.
    pub(super) fn run(self) {
        self.link.run(self.incoming, self.parser);
    }
}

/// A connection that came in says what it is: a control connection or a lane. Runs it until it ends.
pub(super) fn arrived(
    shared: &Arc<Shared>,
    socket: TcpStream,
    keys: &Keys,
    secured: Secured,
    guard: Registered,
    until: Instant,
) -> Result<(), Refused> {
    let mut talk = PendingConnection::begin(shared, socket, keys, secured, guard, None)?;
    let hello = match talk.hear(until)? {
        FirstFrame::Hello(hello) => *hello,
        FirstFrame::Lane(hello) => return bind::arrived(shared, talk, &hello, until),
        FirstFrame::LaneReply => return Err(FrameError::OutOfPlace(PeerKind::LaneHello.into()).into()),
    };
    let (name, incarnation) = talk.checked(shared, None, &hello, until)?;
    // Who dialed spoke first, and gets an answer only if it is let in: else it would take the connection for one that is
    // up, ask something on it, and wait for the peer to come back.
    let (lanes, quic) = (lanes_of(shared, &hello), quic_of(shared, &hello));
    let (for_lanes, for_node) = (nonce(), nonce());
    let key = (lanes + quic > 0).then(|| talk.key(shared, &hello, &for_lanes, Use::Lanes));
    let mut ours = hello_of(shared);
    ours.lane_key = key.as_ref().map(|_| for_lanes.to_vec().into()).unwrap_or_default();
    let (neighbour, apart) = neighbour_of(shared, &name, &ours, &hello);
    let meets = neighbour.map(|(node, theirs)| {
        let key = talk.key(shared, &hello, &for_node, Use::Node);
        NodeParams { node, theirs, key, dials: false }
    });
    if let (Some(_), Some(socket)) = (&meets, &mut ours.node) {
        socket.key = for_node.to_vec().into();
    }
    let peer = shared.peer(&name);
    // Whoever hears our Hello may end the connection before this one. That one's end is to find this one in its place: what was
    // under way on it goes on here, and the peer was never away.
    let place = Place::of(&peer);
    // Whoever has no place hears that instead.
    let seat = match place.seat(shared, &talk, incarnation, hello.needed) {
        Ok(seat) => seat,
        Err(refused) => {
            drop(place);
            talk.refuse(&refused, until);
            return Err(refused);
        }
    };
    let agreed = Agreement { told: told(&ours), key, meets, apart, no_datagrams: None };
    let up = talk.up(shared, place, hello, incarnation, agreed, ConnectionSide::Accepted(&ours))?;
    drop(seat);
    up.run();
    Ok(())
}

/// A connection that we dialed, and that has proven whose it is: Hello both ways.
pub(super) fn dialed(
    shared: &Arc<Shared>,
    mut talk: PendingConnection,
    wanted: &PeerName,
    until: Instant,
) -> Result<EstablishedConnection, Refused> {
    let peer = shared.peer(wanted);
    let needed = {
        let state = peer.state.lock();
        state.needs_link() || state.must_return(peer.is_held(), shared.config.grace, Instant::now())
    };
    // Until the connection is up; before the other end hears a Hello for which there is no place.
    let _seat = shared.seat(&peer, needed)?;
    let no_datagrams = no_datagrams(shared, talk.socket.peer_addr()?, wanted);
    let mut ours = v1::PeerHello { needed, ..hello_of(shared) };
    if no_datagrams.is_some() {
        ours.quic_lanes = 0;
    }
    let heard = talk.say(PeerKind::Hello, 0, &ours, until).and_then(|()| talk.hear(until));
    // Whether its end or the reset of what we said comes first is chance.
    let heard = heard.map_err(|refused| match refused.is_given_up() {
        true => Refused::Unanswered { key: talk.ours, lack: shared.known.own_lack() },
        false => refused,
    });
    let FirstFrame::Hello(mut hello) = heard? else {
        return Err(FrameError::OutOfPlace(PeerKind::LaneHello.into()).into());
    };
    let no_datagrams = no_datagrams.filter(|_| hello.quic_lanes > 0);
    if no_datagrams.is_some() {
        hello.quic_lanes = 0;
    }
    let (_, incarnation) = talk.checked(shared, Some(wanted), &hello, until)?;
    let key = |told: &[u8], of| Some(talk.key(shared, &hello, told.try_into().ok()?, of));
    let socket_key = hello.node.as_ref().and_then(|node| key(&node.key, Use::Node));
    let key = key(&hello.lane_key, Use::Lanes);
    let (neighbour, apart) = neighbour_of(shared, wanted, &ours, &hello);
    let meets = socket_key.zip(neighbour);
    let meets = meets.map(|(key, (node, theirs))| NodeParams { node, theirs, key, dials: true });
    let agreed = Agreement { told: told(&ours), key, meets, apart, no_datagrams };
    let place = Place::of(&peer);
    if let Err(refused) = place.admits(shared, &talk, Candidate { dialed: true, incarnation }) {
        drop(place);
        talk.leave();
        return Err(refused);
    }
    talk.up(shared, place, *hello, incarnation, agreed, ConnectionSide::Dialed)
}

/// The sidecar at its node and the other's socket there, if both have told of one and may be on one node; and what speaks against
/// that.
fn neighbour_of(
    shared: &Shared,
    peer: &PeerName,
    ours: &v1::PeerHello,
    theirs: &v1::PeerHello,
) -> (Option<(Arc<Node>, SocketName)>, Option<Apart>) {
    let both = told(ours).zip(shared.node.clone()).zip(theirs.node.as_ref());
    let Some(((ours, node), theirs)) = both else { return (None, None) };
    let theirs = SocketName::checked(theirs);
    let apart = shm::apart(shared, peer, &ours, theirs.as_ref());
    if let Some(apart) = apart {
        shared.counters.node_refused.add(apart.label());
        tracing::debug!(%peer, why = apart.label(), "no memory is shared with the peer");
        return (None, Some(apart));
    }
    (theirs.map(|theirs| (node, theirs)), None)
}

/// Number of lanes that both ends take part in, of which nothing is said in version 1.
fn lanes_of(shared: &Shared, theirs: &v1::PeerHello) -> usize {
    let theirs = if theirs.version >= LANES_SINCE { theirs.lanes as usize } else { 0 };
    shared.config.lanes.count.min(theirs).min(LANES_MAX)
}

/// Number of those lanes on QUIC.
fn quic_of(shared: &Shared, theirs: &v1::PeerHello) -> usize {
    let theirs = if theirs.version >= LANES_SINCE { theirs.quic_lanes as usize } else { 0 };
    own_quic(shared).min(theirs)
}

fn own_quic(shared: &Shared) -> usize {
    if shared.endpoint().is_some() { shared.config.lanes.quic.min(LANES_MAX) } else { 0 }
}

/// Reason for which no address of a peer takes datagrams from here, if QUIC is spoken here. `control`: the one that was dialed.
fn no_datagrams(shared: &Shared, control: SocketAddr, peer: &PeerName) -> Option<String> {
    let endpoint = shared.endpoint().filter(|_| own_quic(shared) > 0)?;
    let listed = shared.known.peer(peer).map(|known| known.addresses).unwrap_or_default();
    endpoint.reached(control, &listed).err().map(|why| why.to_string())
}

/// Agreement of both ends: lanes that are connections, and lanes on QUIC.
fn agreed(shared: &Shared, theirs: &v1::PeerHello, key: Option<LaneKey>) -> (Option<Agreed>, Option<Agreed>) {
    let Some(key) = key else { return (None, None) };
    let plain = shared.config.lanes.plain && theirs.plain_lanes;
    let carrier = if plain { Carrier::Plain } else { Carrier::Tls };
    let lanes = Agreed { key: key.clone(), count: lanes_of(shared, theirs), carrier };
    let count = quic_of(shared, theirs);
    let quic = shared.endpoint().map(|endpoint| Agreed {
        key,
        count,
        carrier: Carrier::Quic(Box::new(QuicConnection::new(endpoint, count))),
    });
    (Some(lanes).filter(|lanes| lanes.count > 0), quic.filter(|quic| quic.count > 0))
}

/// Result of both Hellos besides an offer.
struct Agreement {
    /// Name of our socket in the node's directory.
    told: Option<SocketName>,
    /// Proves whose lanes are.
    key: Option<LaneKey>,
    /// The two may be on one node.
    meets: Option<NodeParams>,
    /// Reason for which they are not, where both have told of a socket.
    apart: Option<Apart>,
    /// Reason for which no address of the other end takes datagrams from here, where both have QUIC.
    no_datagrams: Option<String>,
}

/// Side of a connection that comes up.
#[derive(Clone, Copy)]
enum ConnectionSide<'a> {
    /// Connection that was dialed; both Hellos have been said.
    Dialed,
    /// Connection that came in; our Hello is the first frame on it.
    Accepted(&'a v1::PeerHello),
}

/// The socket that a Hello of ours tells of.
fn told(ours: &v1::PeerHello) -> Option<SocketName> {
    ours.node.as_ref().and_then(SocketName::checked)
}

/// Place of the connection of a peer, held so that none comes or goes meanwhile.
struct Place<'a> {
    peer: &'a Arc<Peer>,
    handover: MutexGuard<'a, ()>,
}

impl<'a> Place<'a> {
    fn of(peer: &'a Arc<Peer>) -> Self {
        Self { peer, handover: peer.handover.lock() }
    }

    /// Decides whether a connection may have it, while it is held.
    fn admits(&self, shared: &Shared, talk: &PendingConnection, new: Candidate) -> Result<(), Refused> {
        shared.may_replace(self.peer, (new, talk.guard.begun), &talk.ours, &talk.claim.fingerprint)
    }

    /// Decides whether a connection that came in may have it. `needed`: somebody waits for it at the other end.
    fn seat<'s>(
        &self,
        shared: &'s Shared,
        talk: &PendingConnection,
        incarnation: Incarnation,
        needed: bool,
    ) -> Result<Seat<'s>, Refused> {
        self.admits(shared, talk, Candidate { dialed: false, incarnation })?;
        let needed = needed || self.peer.state.lock().needs_link();
        shared.seat(self.peer, needed)
    }
}

/// A connection on which nothing but the first frames were said.
pub(super) struct PendingConnection {
    pub(super) socket: TcpStream,
    pub(super) sealer: Sealer,
    pub(super) incoming: RecordReader,
    parser: FrameParser,
    /// Peers that may be at the other end, by its key.
    pub(super) claim: Claim,
    ours: Fingerprint,
    exported: Exported,
    pub(super) guard: Registered,
}

/// The first frame of the other end.
pub(super) enum FirstFrame {
    Hello(Box<v1::PeerHello>),
    Lane(v1::LaneHello),
    /// The answer to our LaneHello.
    LaneReply,
}

impl PendingConnection {
    /// Finds out who it is. `wanted`: who was dialed.
    pub(super) fn begin(
        shared: &Arc<Shared>,
        socket: TcpStream,
        keys: &Keys,
        secured: Secured,
        guard: Registered,
        wanted: Option<&PeerName>,
    ) -> Result<Self, Refused> {
        let Secured { sealer, opener, certificate, exported, plain, sealed } = secured;
        let claim = who(shared, keys, &certificate, wanted)?;
        socket.set_nodelay(true)?;
        SockRef::from(&socket).set_tcp_user_timeout(Some(shared.config.progress))?;
        let incoming = RecordReader::new(opener, plain, &sealed);
        let parser = FrameParser::new(HELLO_MAX);
        Ok(Self { socket, sealer, incoming, parser, claim, ours: keys.fingerprint, exported, guard })
    }

    pub(super) fn say(
        &mut self,
        kind: PeerKind,
        flags: u16,
        message: &impl Message,
        until: Instant,
    ) -> Result<(), Refused> {
        let mut records = VecDeque::new();
        let frame = frame::encode(kind.into(), flags, 0, message);
        self.sealer.seal_all(&frame, &mut records).map_err(RecordError::from)?;
        Ok(handshake::send(&self.socket, &Vec::from(records).concat(), until)?)
    }

    /// Reads until the first frame is there, and nothing beyond it.
    pub(super) fn hear(&mut self, until: Instant) -> Result<FirstFrame, Refused> {
        let mut first = FirstSink(None);
        loop {
            let parser = &mut self.parser;
            let drained = self.incoming.drain::<Refused>(|plain| match first.0 {
                Some(_) => Ok(0),
                None => parser.feed(plain, &mut first),
            })?;
            if let Some(first) = first.0 {
                return Ok(first);
            }
            if drained == Drained::Closed {
                return Err(HandshakeError::Closed.into());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.socket.set_read_timeout(Some(left))?;
            if self.incoming.receive(&self.socket)? == 0 {
                // The usual way in which a peer that does not know our key says so.
                return Err(HandshakeError::Closed.into());
            }
        }
    }

    /// A key that both ends have, of what the side that was dialed tells in its Hello.
    fn key(&self, shared: &Shared, theirs: &v1::PeerHello, told: &Nonce, of: Use) -> LaneKey {
        if theirs.version.min(shared.config.version) < EXPORTED_SINCE {
            LaneKey::told(told)
        } else {
            LaneKey::mixed(self.exported.as_ref(), told, of)
        }
    }

    /// Returns who the other end is if its Hello fits, and tells it if not.
    fn checked(
        &mut self,
        shared: &Shared,
        wanted: Option<&PeerName>,
        hello: &v1::PeerHello,
        until: Instant,
    ) -> Result<(PeerName, Incarnation), Refused> {
        check(shared, &self.claim, wanted, hello).inspect_err(|refused| {
            // It is who it says, and has done nothing wrong: somebody else lists its address and its key.
            if !matches!(refused, Refused::WrongPeer { .. }) {
                self.refuse(refused, until);
            }
        })
    }

    /// Tells it why it is not let in.
    fn refuse(&mut self, refused: &Refused, until: Instant) {
        let reason = match refused {
            Refused::WrongExchange { .. } => Reason::WrongExchange,
            Refused::Version(_) => Reason::Unsupported,
            Refused::Double | Refused::Late => DOUBLE,
            _ => Reason::InvalidArgument,
        };
        let failure = match refused {
            Refused::NoSeat(told) => told.refusal(),
            _ => Failure::new(reason, refused.to_string()),
        };
        // So that its log says why; the refusal stands without.
        let _ = self.say(PeerKind::Hello, REPLY | FAILED, &v1::Failure::from(&failure), until);
    }

    /// Ends a connection that the other end takes for one that is up: it closes in order, and nobody was lost. What the other end
    /// asks on it is asked again on the connection that stays.
    fn leave(&mut self) {
        let until = Instant::now() + connect::TELLING;
        if self.say(PeerKind::Goodbye, 0, &v1::Goodbye { idle: true }, until).is_ok() {
            connect::linger(&self.socket, until);
        }
    }

    /// Gives the connection the place of the peer's, and says our Hello where that has not been said. Waits for nobody.
    fn up(
        self,
        shared: &Arc<Shared>,
        Place { peer, handover }: Place<'_>,
        hello: v1::PeerHello,
        incarnation: Incarnation,
        Agreement { told, key, meets, apart, no_datagrams }: Agreement,
        side: ConnectionSide<'_>,
    ) -> Result<EstablishedConnection, Refused> {
        let Self { socket, sealer, incoming, mut parser, claim, ours, exported: _, guard } = self;
        parser.trust();
        socket.set_read_timeout(None)?;
        let count = {
            let (counters, peer) = (Arc::clone(&shared.counters), Arc::clone(peer));
            Box::new(move |bytes| count_out(&counters, &peer, bytes))
        };
        let writing = socket.try_clone()?;
        let (lanes, quic) = agreed(shared, &hello, key);
        let version = hello.version.min(shared.config.version);
        let offer = Arc::new(wire::offer(peer.name.clone(), incarnation, &hello.offer.unwrap_or_default()));
        let link = Arc::new_cyclic(|link: &Weak<Link>| {
            let unread = Weak::clone(link);
            let account = shared.config.unread.open(move || {
                if let Some(link) = unread.upgrade() {
                    link.end(Ended::Unread);
                }
            });
            let outbox = Arc::new(Outbox::new(writing, sealer, shared.config.progress, account, count));
            let wanted = shared.config.lanes;
            let missed_from = (lanes.is_none() && wanted.count > 0).then_some(wanted.from);
            let lanes = lanes.map(|agreed| Lanes::new(agreed, shared, link, &outbox));
            let quic = quic.map(|agreed| Lanes::new(agreed, shared, link, &outbox));
            let shm = meets.map(|meets| Shm::new(meets, shared, &peer.name, link, &outbox));
            Link::new(LinkParts {
                id: shared.next_link(),
                peer: Arc::clone(peer),
                incarnation,
                version,
                offer,
                dialed: matches!(side, ConnectionSide::Dialed),
                fingerprint: claim.fingerprint,
                ours,
                told,
                apart,
                no_datagrams,
                begun: guard.begun,
                ways: Ways::new(Stream::new(&outbox), (lanes, missed_from), quic, shm),
                outbox,
                socket,
            })
        });
        if let ConnectionSide::Accepted(ours) = side {
            // Never waits, for the place is locked: what a slow reader does not take is left to the writer of the connection.
            let hello = frame::encode(PeerKind::Hello.into(), 0, 0, ours);
            link.outbox.submit(hello).map_err(io::Error::other)?;
        }
        // From here on it is ended as a connection that is up.
        drop(guard);
        let adopted = AdoptedLink::new(shared, &link);
        shared.adopt(&link, handover);
        Ok(EstablishedConnection { link: adopted, incoming, parser })
    }
}

/// Returns whose key it may be.
pub(super) fn who(
    shared: &Shared,
    keys: &Keys,
    certificate: &CertificateDer<'_>,
    wanted: Option<&PeerName>,
) -> Result<Claim, Refused> {
    let fingerprint = (keys.fingerprint_of)(certificate).ok_or(Refused::NoKey)?;
    if fingerprint == keys.fingerprint {
        // Ourselves, at an address that somebody else says is theirs.
        return Err(Refused::OwnKey);
    }
    Claim::of(fingerprint, shared, wanted)
}

fn hello_of(shared: &Shared) -> v1::PeerHello {
    let socket = shared.node.as_ref().and_then(|node| node.socket());
    v1::PeerHello {
        version: shared.config.version,
        exchange: shared.me.exchange.to_string(),
        peer: shared.me.peer.to_string(),
        incarnation: shared.me.incarnation.to_string(),
        offer: Some(shared.me.offer.clone()),
        // Of the side that is dialed alone, and of each connection its own.
        lane_key: Bytes::new(),
        lanes: shared.config.lanes.count.min(LANES_MAX) as u32,
        plain_lanes: shared.config.lanes.plain,
        quic_lanes: own_quic(shared) as u32,
        node: socket.map(SocketName::told),
        // Of the side that dials alone.
        needed: false,
    }
}

/// Returns who the other end is, and in which life.
fn check(
    shared: &Shared,
    claim: &Claim,
    wanted: Option<&PeerName>,
    hello: &v1::PeerHello,
) -> Result<(PeerName, Incarnation), Refused> {
    // The lower of both versions is spoken; version 1 is the first.
    if hello.version < 1 {
        return Err(Refused::Version(hello.version));
    }
    if hello.exchange != shared.me.exchange.as_str() {
        return Err(Refused::WrongExchange {
            here: shared.me.peer.clone(),
            exchange: shared.me.exchange.to_string(),
            there: shown(&hello.peer),
            theirs: shown(&hello.exchange),
        });
    }
    let name = claim.settle(&hello.peer, shared, wanted)?;
    let incarnation = hello.incarnation.parse().map_err(|_| FrameError::Malformed(PeerKind::Hello.into()))?;
    Ok((name, incarnation))
}

/// Takes one first frame, or the refusal of ours, and nothing else.
pub(super) struct FirstSink(pub(super) Option<FirstFrame>);

impl Sink for FirstSink {
    type Error = Refused;

    fn message(&mut self, kind: PeerKind, header: Header, body: Body<'_>) -> Result<Flow, Refused> {
        if header.is_last() || header.call != 0 {
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        self.0 = Some(match kind {
            PeerKind::Hello if header.is_failed() => {
                let failure: v1::Failure = decode(header, &body[..])?;
                return Err(Refused::ByPeer(wire::failure(failure)));
            }
            PeerKind::Hello => FirstFrame::Hello(Box::new(decode(header, &body[..])?)),
            PeerKind::LaneHello if header.flags == REPLY => FirstFrame::LaneReply,
            PeerKind::LaneHello if header.flags == 0 => FirstFrame::Lane(decode(header, &body[..])?),
            _ => return Err(FrameError::OutOfPlace(header.kind).into()),
        });
        Ok(Flow::Stop)
    }
}
