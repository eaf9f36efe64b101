//! Beginning of a lane: a socket, in TLS or plain, whose other end proves that it belongs to a control connection that
//! is up. docs/protocol.md has the bytes. Until then it is a stranger, as every connection is.

use std::io::{self, Read};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tensorlane_proto::frame::{self, CHUNK_BYTES_MAX, LANES_MAX, PeerKind, REPLY};
use tensorlane_proto::generated as v1;

use super::bound::{Bound, CancelHandle};
use super::key::{BYTES, ID_BYTES, LaneName, Nonce, Role, nonce};
use super::plain::PlainWire;
use super::queued::InFlightBuffers;
use super::quic::{Cut, QuicConnection, QuicWire};
use super::tls::TlsWire;
use super::wire::{LaneEnd, TICK, Wire};
use super::{Carrier, Lanes};
use crate::peer::connect::{self, Refused};
use crate::peer::handshake::{self, HandshakeError};
use crate::peer::hello::{FirstFrame, PendingConnection};
use crate::peer::link::Link;
use crate::peer::parse::{FrameParser, OFFSET_BYTES};
use crate::peer::record_writer::RecordWriter;
use crate::peer::shared::{Registered, Shared};

/// Bytes that a plain lane begins with: no record of TLS begins with this byte.
pub(in crate::peer) const MAGIC: [u8; 8] = *b"tlplain2";
/// Magic, number of the connection, lane, direction, nonce.
const PLAIN_HELLO: usize = MAGIC.len() + ID_BYTES + 2 + BYTES;
/// Longest frame on a lane in TLS: a chunk. What is collected before it is looked at is as long at most.
const FRAME_MAX: u32 = (OFFSET_BYTES + CHUNK_BYTES_MAX) as u32;
/// Number of a stream of QUIC on which small tensors are asked for, and the versions of the protocol that open one. A peer whose
/// stream is closed asks on the control connection, and opens another one after a second.
const SMALL_STREAM: u32 = LANES_MAX as u32;
const SMALL_STREAM_VERSIONS: RangeInclusive<u32> = 7..=10;

/// Dials a lane of a connection that we dialed; runs it on this thread until it ends.
pub(super) fn dial(shared: &Arc<Shared>, link: &Arc<Link>, lanes: &Lanes, name: LaneName) {
    let until = Instant::now() + shared.config.handshake;
    let dialed = match &lanes.carrier {
        Carrier::Plain => dial_plain(shared, link, lanes, name, until),
        Carrier::Tls => dial_tls(shared, link, lanes, name, until),
        Carrier::Quic(quic) => dial_quic(shared, link, lanes, quic, name, until),
    };
    match dialed {
        Ok(Dialed { wire, guard, cord, connection }) => match lanes.admit(name, cord) {
            Some(bound) => {
                drop(guard);
                run(shared, link, lanes, bound, (wire, connection));
            }
            None => lanes.missed(name),
        },
        Err(refused) => {
            let refused = refused.after(shared.config.handshake);
            tracing::debug!(peer = %link.peer.name, %refused, "a lane was not opened");
            lanes.missed(name);
        }
    }
}

/// A lane that the other end has taken.
struct Dialed {
    wire: Box<dyn Wire>,
    guard: Option<Registered>,
    cord: CancelHandle,
    /// The QUIC connection that it is a stream of.
    connection: Option<usize>,
}

/// Connects to where the control connection leads.
fn connect(
    shared: &Arc<Shared>,
    link: &Link,
    lanes: &Lanes,
    until: Instant,
) -> Result<(TcpStream, Registered), Refused> {
    let segment = lanes.segment(link);
    Ok(connect::connect(shared, &link.other_end()?, segment, left(until)?)?)
}

fn dial_tls(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    lanes: &Lanes,
    name: LaneName,
    until: Instant,
) -> Result<Dialed, Refused> {
    let keys = shared.keys();
    let (socket, guard) = connect(shared, link, lanes, until)?;
    let secured = handshake::client(&keys.client, &socket, until)?;
    let mut talk = PendingConnection::begin(shared, socket, &keys, secured, guard, Some(&link.peer.name))?;
    let nonce = nonce();
    let hello = v1::LaneHello {
        lane: name.number.into(),
        serves: name.serves,
        nonce: nonce.to_vec().into(),
        proof: lanes.key.prove(Role::Tls, name, &[nonce]).to_vec().into(),
    };
    talk.say(PeerKind::LaneHello, 0, &hello, until)?;
    match talk.hear(until)? {
        FirstFrame::LaneReply => {}
        _ => return Err(frame::FrameError::OutOfPlace(PeerKind::LaneHello.into()).into()),
    }
    let cord = CancelHandle::Socket(talk.socket.try_clone()?);
    let (wire, guard) = tls(shared, talk, !name.serves)?;
    Ok(Dialed { wire, guard: Some(guard), cord, connection: None })
}

/// A lane in TLS came in: runs it on this thread until it ends.
pub(in crate::peer) fn arrived(
    shared: &Arc<Shared>,
    mut talk: PendingConnection,
    hello: &v1::LaneHello,
    until: Instant,
) -> Result<(), Refused> {
    let name = lane_name(hello.lane, hello.serves)?;
    let nonce: Nonce = hello.nonce[..].try_into().map_err(|_| Refused::Lane("its nonce is not 32 bytes"))?;
    // Where several peers claim its key, the proof says whose it is.
    let mut refused = Refused::Lane("its connection is not up");
    let mut found = None;
    for peer in talk.claim.names().iter().filter_map(|peer| shared.known_peer(peer)) {
        let Some(link) = peer.state.lock().link.clone().filter(|link| !link.dialed) else { continue };
        refused = match link.ways.lanes().filter(|lanes| !lanes.is_plain()) {
            None => Refused::Lane("its connection has no lanes in TLS"),
            Some(lanes) if lanes.key.is_proven(Role::Tls, name, &[nonce], &hello.proof) => {
                found = Some(link);
                break;
            }
            Some(_) => Refused::Lane("it does not prove that it belongs to the connection"),
        };
    }
    let Some(link) = found else { return Err(refused) };
    let lanes = link.ways.lanes().ok_or(Refused::Lane("its connection has no lanes in TLS"))?;
    let bound = lanes
        .admit(name, CancelHandle::Socket(talk.socket.try_clone()?))
        .ok_or(Refused::Lane("there is no place for it"))?;
    talk.say(PeerKind::LaneHello, REPLY, &v1::LaneHello::default(), until)?;
    let (wire, guard) = tls(shared, talk, name.serves)?;
    drop(guard);
    run(shared, &link, lanes, bound, (wire, None));
    Ok(())
}

fn dial_plain(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    lanes: &Lanes,
    name: LaneName,
    until: Instant,
) -> Result<Dialed, Refused> {
    let (socket, guard) = connect(shared, link, lanes, until)?;
    let ours = nonce();
    let mut hello = MAGIC.to_vec();
    hello.extend(lanes.key.id());
    hello.extend([name.number, u8::from(name.serves)]);
    hello.extend(ours);
    handshake::send(&socket, &hello, until)?;
    let mut answer = [0; 2 * BYTES];
    read_exact(&socket, &mut answer, until)?;
    let (theirs, proof) = answer.split_at(BYTES);
    let theirs: Nonce = theirs.try_into().map_err(|_| Refused::Lane("its nonce is not 32 bytes"))?;
    if !lanes.key.is_proven(Role::PlainAccepts, name, &[ours, theirs], proof) {
        return Err(Refused::Lane("the other end does not prove that it has the key"));
    }
    handshake::send(&socket, &lanes.key.prove(Role::PlainDials, name, &[ours, theirs]), until)?;
    let cord = CancelHandle::Socket(socket.try_clone()?);
    let wire = plain(shared, socket, !name.serves)?;
    Ok(Dialed { wire, guard: Some(guard), cord, connection: None })
}

fn dial_quic(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    lanes: &Lanes,
    quic: &QuicConnection,
    name: LaneName,
    until: Instant,
) -> Result<Dialed, Refused> {
    let connection = quic.connection(shared, link, lanes, until)?;
    let (mut wire, cut) = quic.open(shared, &connection, until)?;
    // The first stream of the connection has proven for all.
    let hello = v1::LaneHello { lane: name.number.into(), serves: name.serves, ..v1::LaneHello::default() };
    wire.introduce(&hello, until)?;
    let connection = Some(connection.stable_id());
    Ok(Dialed { wire: Box::new(wire), guard: None, cord: CancelHandle::Stream(cut), connection })
}

/// A stream came in on a QUIC connection that is bound: runs it on this thread until it ends. `connection`: which one.
pub(super) fn arrived_stream(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    connection: usize,
    (mut wire, cut): (QuicWire, Cut),
    until: Instant,
) -> Result<(), Refused> {
    let FirstFrame::Lane(hello) = wire.hear(until)? else {
        return Err(frame::FrameError::OutOfPlace(PeerKind::LaneHello.into()).into());
    };
    if hello.lane == SMALL_STREAM && SMALL_STREAM_VERSIONS.contains(&link.version) {
        // Closed, and not counted as refused: the peer did nothing wrong.
        return Ok(());
    }
    let name = lane_name(hello.lane, hello.serves)?;
    let lanes = link.ways.quic().ok_or(Refused::Lane("its connection has no QUIC"))?;
    let bound =
        lanes.admit(name, CancelHandle::Stream(cut)).ok_or(Refused::Lane("there is no place for it"))?;
    // A stream that cannot take the reply is found out by whoever uses it.
    let _ = wire.say(PeerKind::LaneHello, REPLY, &v1::LaneHello::default());
    run(shared, link, lanes, bound, (Box::new(wire), Some(connection)));
    Ok(())
}

/// A plain lane came in: runs it on this thread until it ends.
pub(in crate::peer) fn arrived_plain(
    shared: &Arc<Shared>,
    socket: TcpStream,
    guard: Registered,
    until: Instant,
) -> Result<(), Refused> {
    let mut hello = [0; PLAIN_HELLO];
    read_exact(&socket, &mut hello, until)?;
    let (magic, rest) = hello.split_at(MAGIC.len());
    let (id, rest) = rest.split_at(ID_BYTES);
    let [number, serves, theirs @ ..] = rest else { return Err(Refused::Lane("it is cut short")) };
    let theirs: Nonce = theirs.try_into().map_err(|_| Refused::Lane("its nonce is not 32 bytes"))?;
    if magic != MAGIC || *serves > 1 {
        return Err(Refused::Lane("it is neither in TLS nor one of ours"));
    }
    let name = lane_name(u32::from(*number), *serves == 1)?;
    let is_its = |link: &Arc<Link>| {
        let lanes = link.ways.lanes().filter(|lanes| lanes.is_plain() && !link.dialed);
        lanes.is_some_and(|lanes| lanes.key.id() == *id)
    };
    let links = shared.peers().into_iter().filter_map(|peer| peer.state.lock().link.clone());
    let link = links.into_iter().find(is_its).ok_or(Refused::Lane("its connection is not up"))?;
    let lanes = link.ways.lanes().ok_or(Refused::Lane("its connection has no lanes"))?;
    let ours = nonce();
    let mut answer = ours.to_vec();
    answer.extend(lanes.key.prove(Role::PlainAccepts, name, &[theirs, ours]));
    handshake::send(&socket, &answer, until)?;
    let mut proof = [0; BYTES];
    read_exact(&socket, &mut proof, until)?;
    if !lanes.key.is_proven(Role::PlainDials, name, &[theirs, ours], &proof) {
        return Err(Refused::Lane("it does not prove that it belongs to the connection"));
    }
    let bound = lanes
        .admit(name, CancelHandle::Socket(socket.try_clone()?))
        .ok_or(Refused::Lane("there is no place for it"))?;
    let wire = plain(shared, socket, name.serves)?;
    drop(guard);
    run(shared, &link, lanes, bound, (wire, None));
    Ok(())
}

fn lane_name(number: u32, serves: bool) -> Result<LaneName, Refused> {
    match u8::try_from(number) {
        Ok(number) if usize::from(number) < LANES_MAX => Ok(LaneName { number, serves }),
        _ => Err(Refused::Lane("there is no lane of its number")),
    }
}

/// A lane that is bound: reads or serves until it ends, and says how that was. With the QUIC connection that it is a stream of.
fn run(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    lanes: &Lanes,
    bound: Bound<'_>,
    (mut wire, connection): (Box<dyn Wire>, Option<usize>),
) {
    let mut end = lanes.run(shared, link, &bound, &mut *wire);
    // The socket goes before its place does: whoever takes that place must not find this one there.
    drop(wire);
    if let (Some(quic), Some(connection)) = (lanes.quic_connection(), connection) {
        if let LaneEnd::Progress = end {
            quic.distrust(connection);
        }
        if quic.was_silent(connection) {
            end = end.of_silence();
        }
    }
    tracing::debug!(peer = %link.peer.name, lane = bound.number(), reads = bound.reads(), %end, "lane ended");
    bound.ended(end);
}

/// The wire over a connection in TLS that was greeted. `reads`: we are the reader on it.
fn tls(
    shared: &Shared,
    talk: PendingConnection,
    reads: bool,
) -> Result<(Box<dyn Wire>, Registered), Refused> {
    let PendingConnection { socket, sealer, incoming, guard, .. } = talk;
    prepare(shared, &socket, reads)?;
    let parser = FrameParser::new(FRAME_MAX);
    let wire =
        TlsWire { socket, incoming, parser, pipe: RecordWriter::new(sealer), progress: progress(shared) };
    Ok((Box::new(wire), guard))
}

fn plain(shared: &Shared, socket: TcpStream, reads: bool) -> Result<Box<dyn Wire>, Refused> {
    prepare(shared, &socket, reads)?;
    let (nowhere, queued) = (Vec::new(), InFlightBuffers::default());
    Ok(Box::new(PlainWire { socket, progress: progress(shared), nowhere, queued }))
}

fn prepare(shared: &Shared, socket: &TcpStream, reads: bool) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_user_timeout(Some(progress(shared)))?;
    // A reader looks up now and then; a server waits for as long as its connection lives.
    socket.set_read_timeout(reads.then_some(TICK))
}

pub(super) fn progress(shared: &Shared) -> Duration {
    shared.config.lanes.progress.min(shared.config.progress)
}

fn left(until: Instant) -> Result<Duration, Refused> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut).into()) } else { Ok(left) }
}

fn read_exact(mut socket: &TcpStream, room: &mut [u8], until: Instant) -> Result<(), Refused> {
    let mut have = 0;
    while have < room.len() {
        socket.set_read_timeout(Some(left(until)?))?;
        match socket.read(&mut room[have..]) {
            Ok(0) => return Err(HandshakeError::Closed.into()),
            Ok(bytes) => have += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
