//! A peer that does not keep the rules: a TLS client of the test that writes what it likes. Every time the connection
//! must end with a counted reason, and nothing be published.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use tensorlane_proto::frame::{self, FAILED, Header, LAST, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Incarnation, Selection};

use crate::cancel::Cancel;
use crate::identity::Identity;

use super::keys;
use super::proxy::Proxy;
use super::world::*;

mod bounds;
mod lanes;
mod places;
mod plain_lanes;
mod replaced;
mod slow;
mod small;

/// A raw peer: rustls as anyone would use it.
pub(super) struct Raw {
    pub(super) tls: StreamOwned<ClientConnection, TcpStream>,
}

impl Raw {
    pub(super) fn connect(to: &One, config: ClientConfig) -> Self {
        let socket = TcpStream::connect(to.peers.bound_address()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self::over(socket, config)
    }

    /// A raw peer over a connection that is there.
    fn over(socket: TcpStream, config: ClientConfig) -> Self {
        let name = ServerName::try_from("peer.tensorlane").unwrap();
        Self { tls: StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket) }
    }

    /// Connects with a key, and says this name.
    pub(super) fn dial(to: &One, identity: &Identity, peer: &str) -> Self {
        let mut raw = Self::connect(to, keys::client(identity));
        raw.send(PeerKind::Hello, 0, 0, &Self::hello("default", peer, 1));
        raw
    }

    pub(super) fn hello(exchange: &str, peer: &str, version: u32) -> v1::PeerHello {
        v1::PeerHello {
            version,
            exchange: exchange.into(),
            peer: peer.into(),
            incarnation: format!("{:032x}", 9),
            offer: None,
            ..v1::PeerHello::default()
        }
    }

    pub(super) fn send(&mut self, kind: PeerKind, flags: u16, call: u64, message: &impl Message) {
        self.raw(&frame::encode(kind.into(), flags, call, message));
    }

    fn raw(&mut self, bytes: &[u8]) {
        // The other side may have closed already: that is what is looked at then.
        let _ = self.tls.write_all(bytes).and_then(|()| self.tls.flush());
    }

    fn chunk(&mut self, call: u64, offset: u64, bytes: &[u8], last: bool) {
        let header = Header {
            length: 8 + bytes.len() as u32,
            kind: PeerKind::Chunk.into(),
            flags: if last { LAST } else { 0 },
            call,
        };
        self.raw(&[&header.encode()[..], &offset.to_le_bytes(), bytes].concat());
    }

    /// The next frame; none when the connection has ended. That nothing comes is no end, and fails the test.
    fn next(&mut self) -> Option<(Header, Vec<u8>)> {
        let mut head = [0; frame::HEADER_BYTES];
        self.read(&mut head)?;
        let header = Header::decode(&head, frame::PEER_BODY_MAX).unwrap();
        let mut body = vec![0; header.length as usize];
        self.read(&mut body)?;
        Some((header, body))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.tls.read_exact(bytes) {
            Ok(()) => Some(()),
            Err(e) if is_end(&e) => None,
            Err(e) => panic!("neither a frame nor the end of the connection came: {e}"),
        }
    }

    /// The next frame of a kind, others skipped.
    pub(super) fn next_of(&mut self, kind: PeerKind) -> Option<(Header, Vec<u8>)> {
        loop {
            let (header, body) = self.next()?;
            if header.kind == u16::from(kind) {
                return Some((header, body));
            }
        }
    }

    /// Returns whether the other side ends the connection, its socket too. What it says before is passed over.
    pub(super) fn is_closed(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while self.next().is_some() {
            assert!(Instant::now() < deadline, "it goes on and on");
        }
        is_at_its_end(&mut self.tls.sock)
    }
}

/// Returns whether the other side has hung up; waits for it as long as the socket's timeout says.
fn is_at_its_end(socket: &mut TcpStream) -> bool {
    socket.read_to_end(&mut Vec::new()).map_or_else(|e| is_end(&e), |_| true)
}

/// Returns whether it is the end of a connection, in order or not, or an alert of TLS before it. A silence is none.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(tls, Some(rustls::Error::AlertReceived(_)))
        || matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

/// A peer `a`, and a key that its directory knows as `evil`.
pub(super) fn victim() -> (Arc<Table>, One, Identity) {
    victim_that_bears(PATIENCE)
}

/// A peer `a` that bears a silence for so long, and a key that its directory knows as `evil`.
fn victim_that_bears(progress: Duration) -> (Arc<Table>, One, Identity) {
    let table = Arc::new(Table::default());
    let a = Start { progress, ..Start::new("a") }.start(&table);
    let evil = keys::identity();
    // An address nobody listens on: the test dials.
    table.list("evil", nowhere(), evil.fingerprint);
    (table, a, evil)
}

/// Connected and greeted.
pub(super) fn greeted(a: &One, evil: &Identity) -> Raw {
    let mut raw = Raw::dial(a, evil, "evil");
    assert!(raw.next_of(PeerKind::Hello).is_some());
    until("it is connected", || a.peers.is_connected(&name("evil")));
    raw
}

#[test]
fn a_key_that_the_directory_does_not_list_is_refused_after_one_look() {
    let (table, a, _) = victim();
    let mut raw = Raw::connect(&a, keys::client(&keys::identity()));
    raw.send(PeerKind::Hello, 0, 0, &Raw::hello("default", "evil", 1));
    assert!(raw.next().is_none(), "not even a Hello");
    assert!(raw.is_closed());
    until("it was counted", || a.peers.counters().auth_refused.count("unknown_key") == 1);
    assert_eq!(table.refreshes.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn no_certificate_is_refused() {
    let (_table, a, _) = victim();
    let mut raw = Raw::connect(&a, keys::client_without_certificate());
    raw.send(PeerKind::Hello, 0, 0, &Raw::hello("default", "evil", 1));
    assert!(raw.next().is_none());
    assert!(raw.is_closed());
    until("it was counted", || a.peers.counters().auth_refused.count("no_certificate") == 1);
}

#[test]
fn a_listed_certificate_without_its_key_is_refused() {
    let (_table, a, evil) = victim();
    let mut raw = Raw::connect(&a, keys::client_without_the_key(&evil));
    raw.send(PeerKind::Hello, 0, 0, &Raw::hello("default", "evil", 1));
    assert!(raw.next().is_none());
    assert!(raw.is_closed());
    until("it was counted", || a.peers.counters().auth_refused.count("bad_signature") == 1);
}

#[test]
fn a_hello_that_does_not_fit_is_refused_with_its_reason() {
    let (_table, a, evil) = victim();
    for (hello, label, reason) in [
        (Raw::hello("other", "evil", 1), "other_exchange", "WRONG_EXCHANGE"),
        (Raw::hello("default", "a", 1), "other_peer", "INVALID_ARGUMENT"),
        (Raw::hello("default", "evil", 0), "version", "UNSUPPORTED"),
    ] {
        let mut raw = Raw::connect(&a, keys::client(&evil));
        raw.send(PeerKind::Hello, 0, 0, &hello);
        let (header, body) = raw.next().unwrap();
        assert_eq!(header.flags, REPLY | FAILED);
        assert_eq!(v1::Failure::decode(&body[..]).unwrap().reason, reason);
        assert!(raw.is_closed());
        until("it was counted", || a.peers.counters().auth_refused.count(label) == 1);
    }
    assert!(!a.peers.is_connected(&name("evil")));
}

#[test]
fn nothing_but_a_short_hello_is_read_before_hello() {
    let (_table, a, evil) = victim();
    let huge = Header { length: 65 << 10, kind: PeerKind::Hello.into(), flags: 0, call: 0 };
    let early = frame::encode(PeerKind::Inquire.into(), 0, 1, &v1::Inquire::default());
    for (bytes, label) in [(huge.encode().to_vec(), "too_long"), (early, "out_of_place")] {
        let mut raw = Raw::connect(&a, keys::client(&evil));
        raw.raw(&bytes);
        assert!(raw.is_closed());
        until("it was counted", || a.peers.counters().frames_refused.count(label) == 1);
    }
    assert_eq!(a.peers.counters().auth_refused.count("frame"), 2);
}

#[test]
fn garbage_instead_of_tls_is_refused() {
    let (_table, a, _) = victim();
    let mut socket = TcpStream::connect(a.peers.bound_address()).unwrap();
    socket.write_all(&[0x42; 100_000]).unwrap_or_default();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(is_at_its_end(&mut socket));
    until("it was counted", || a.peers.counters().auth_refused.count("tls") == 1);
}

/// A connection from an address of this machine, on which nothing is said.
fn stranger(to: &One, from: [u8; 4]) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&to.peers.bound_address().into()).unwrap();
    socket.into()
}

/// A peer as [`victim`], of which strangers are not given up while a test makes the others.
fn hall() -> (Arc<Table>, One, Identity) {
    let table = Arc::new(Table::default());
    let a = Start { handshake: PATIENCE * 2, ..Start::new("a") }.start(&table);
    let evil = keys::identity();
    table.list("evil", nowhere(), evil.fingerprint);
    (table, a, evil)
}

/// A connection on which a handshake is begun and goes no further. It has been heard, or refused, when this returns.
fn hello_alone(to: &One, from: [u8; 4], identity: &Identity) -> TcpStream {
    let name = ServerName::try_from("peer.tensorlane").unwrap();
    let mut tls = ClientConnection::new(Arc::new(keys::client(identity)), name).unwrap();
    let mut socket = stranger(to, from);
    while tls.wants_write() {
        // Whoever is not let in may be closed already.
        if tls.write_tls(&mut socket).is_err() {
            break;
        }
    }
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let _answered_or_closed = socket.read(&mut [0]);
    socket
}

#[test]
fn only_so_many_strangers_that_have_begun_a_handshake_are_let_into_the_hall() {
    let (_table, a, evil) = hall();
    let from = |number: u8| [127, 0, 0, 2 + number % 8];
    let strangers: Vec<_> = (0..80).map(|number| hello_alone(&a, from(number), &evil)).collect();
    let of = |why| a.peers.counters().auth_refused.count(why);
    assert_eq!(
        (of("too_many"), a.peers.strangers()),
        (80 - 64, 64),
        "those above the limit were turned away"
    );
    drop(strangers);
    until("the others were given up", || a.peers.strangers() == 0);
    greeted(&a, &evil);
}

#[test]
fn silent_connections_from_any_number_of_addresses_keep_nobody_out() {
    let (_table, a, evil) = hall();
    let strangers: Vec<_> = (0..200_u8).map(|number| stranger(&a, [127, 0, 0, 2 + number % 8])).collect();
    until("the oldest made room", || {
        (a.peers.counters().auth_refused.count("gave_way"), a.peers.strangers()) == (200 - 64, 64)
    });
    let mut oldest = &strangers[0];
    oldest.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(oldest.read(&mut [0]), Ok(0)), "the oldest is closed");
    // It comes from 127.0.0.1.
    let mut known = greeted(&a, &evil);
    known.send(PeerKind::Ping, 0, 1, &v1::Ping {});
    assert!(known.next_of(PeerKind::Ping).is_some());
    let of = |why| a.peers.counters().auth_refused.count(why);
    assert_eq!((of("too_many"), of("too_many_from_address"), of("tls")), (0, 0, 0));
    drop(strangers);
    until("their places are free", || a.peers.strangers() == 0);
}

#[test]
fn one_address_has_its_part_of_the_hall_and_who_comes_from_another_one_gets_in() {
    let (_table, a, evil) = hall();
    let strangers: Vec<_> = (0..80).map(|_| hello_alone(&a, [127, 0, 0, 2], &evil)).collect();
    let refused = a.peers.counters().auth_refused.count("too_many_from_address");
    assert_eq!((refused, a.peers.strangers()), (80 - 16, 16), "those above its part were turned away");
    // It comes from 127.0.0.1.
    let mut known = greeted(&a, &evil);
    assert_eq!(a.peers.strangers(), 16, "they are still there");
    assert_eq!(a.peers.counters().auth_refused.count("too_many"), 0);
    known.send(PeerKind::Ping, 0, 1, &v1::Ping {});
    assert!(known.next_of(PeerKind::Ping).is_some());
    drop(strangers);
    until("their places are free", || a.peers.strangers() == 0);
}

#[test]
fn a_peer_that_the_table_lists_gets_in_when_the_hall_is_full_of_begun_handshakes() {
    let (_table, a, evil) = hall();
    let strangers: Vec<_> =
        (0..80_u8).map(|number| hello_alone(&a, [127, 0, 0, 2 + number % 5], &evil)).collect();
    assert_eq!(a.peers.strangers(), 64, "all places are taken");
    drop(hello_alone(&a, [127, 0, 0, 9], &evil));
    assert_eq!(
        a.peers.counters().auth_refused.count("too_many"),
        80 - 64 + 1,
        "an address that is not listed"
    );
    // It comes from 127.0.0.1, where the table has it.
    greeted(&a, &evil);
    drop(strangers);
    until("their places are free", || a.peers.strangers() == 0);
}

#[test]
fn every_frame_that_may_not_be_ends_the_connection_with_its_reason() {
    let header = |length, kind, flags, call| Header { length, kind, flags, call }.encode().to_vec();
    let kind = |kind: PeerKind| u16::from(kind);
    let message = |kind: PeerKind, flags, call, body: &[u8]| {
        let header = Header { length: body.len() as u32, kind: kind.into(), flags, call };
        [&header.encode()[..], body].concat()
    };
    let chunk = |length: u32| header(length, kind(PeerKind::Chunk), 0, 1);
    let cases: Vec<(&str, &str, Vec<u8>)> = vec![
        ("longer than any frame", "too_long", header(u32::MAX, kind(PeerKind::Pull), 0, 1)),
        ("a chunk longer than a chunk", "too_long", chunk((1 << 20) + 9)),
        ("a chunk shorter than its offset", "malformed", chunk(7)),
        ("no kind of frame", "unknown_kind", header(0, 99, 0, 1)),
        ("flags of a later version", "unknown_flags", header(0, kind(PeerKind::Ping), 0x100, 1)),
        ("a second Hello", "out_of_place", message(PeerKind::Hello, 0, 0, &[])),
        ("a question of call 0", "out_of_place", message(PeerKind::Pull, 0, 0, &[])),
        ("a body that is no message", "malformed", message(PeerKind::Pull, 0, 1, &[0xff; 9])),
        ("an answer that nobody asked for", "out_of_place", message(PeerKind::Pull, REPLY, 7, &[])),
        ("a failure that nobody asked for", "out_of_place", message(PeerKind::Pull, REPLY | FAILED, 7, &[])),
        ("a failure that is no answer", "malformed", message(PeerKind::Pull, FAILED, 7, &[])),
        ("the last of what has no chunks", "malformed", message(PeerKind::Ping, LAST, 7, &[])),
        ("a chunk that nobody asked for", "out_of_place", [chunk(8), vec![0; 8]].concat()),
        ("a PullDone that is an answer", "out_of_place", message(PeerKind::PullDone, REPLY, 7, &[])),
        ("more small tensors than are allowed", "malformed", {
            frame::encode(kind(PeerKind::PullMany), 0, 1, &many(&[1; 4097]))
        }),
    ];
    for (what, label, bytes) in cases {
        let (_table, a, evil) = victim();
        let mut raw = greeted(&a, &evil);
        raw.raw(&bytes);
        assert!(raw.is_closed(), "{what}");
        until(what, || a.peers.counters().frames_refused.count(label) == 1);
        until(what, || a.peers.counters().closed.count(label) == 1);
    }
}

#[test]
fn the_same_call_twice_on_one_connection_is_refused_and_its_lease_kept_for_the_grace() {
    let (_table, a, evil) = victim();
    a.twin.add(7, sealed(&a.arena, 1000, 1), 1);
    let mut raw = greeted(&a, &evil);
    let pull = v1::Pull { id: 7, bytes: 1000, ..Default::default() };
    raw.send(PeerKind::Pull, 0, 5, &pull);
    assert!(raw.next_of(PeerKind::Chunk).is_some());
    raw.send(PeerKind::Pull, 0, 5, &pull);
    assert!(raw.is_closed());
    until("it was counted", || a.peers.counters().frames_refused.count("out_of_place") == 1);
    until("the exchange was told", || *a.twin.events.lock() == ["lost evil 9"]);
    assert_eq!(a.twin.leased(), 1);
}

/// `a` pulls 1,000 bytes from the evil peer, which answers with a head and then with what `answer` writes.
fn answered(answer: impl FnOnce(&mut Raw, u64)) -> (One, crate::peer::PullFailed) {
    let (_table, a, evil) = victim();
    let mut raw = greeted(&a, &evil);
    let (told, pulling, _) = a.pull("evil", None, 7, Selection::All, 1000);
    let (header, _) = raw.next_of(PeerKind::Pull).unwrap();
    answer(&mut raw, header.call);
    assert!(raw.is_closed());
    // It waits for the next connection.
    pulling.cancel();
    let outcome = told.recv_timeout(PATIENCE).unwrap();
    (a, outcome.expect_err("nothing of this may be taken for the tensor"))
}

fn head(bytes: u64) -> v1::PullHead {
    let descriptor =
        v1::Descriptor { dtype: u8_code(), shape: vec![bytes], byte_length: bytes, ..Default::default() };
    v1::PullHead { descriptor: Some(descriptor), ..Default::default() }
}

fn u8_code() -> u32 {
    u32::from(tensorlane_proto::DType::U8.code())
}

type Answer = Box<dyn FnOnce(&mut Raw, u64)>;

/// A right head for a thousand bytes, then these chunks: offset, length, whether it says that it is the last.
fn chunks(parts: &'static [(u64, usize, bool)]) -> Answer {
    Box::new(move |raw, call| {
        raw.send(PeerKind::Pull, REPLY, call, &head(1000));
        for (offset, len, last) in parts {
            raw.chunk(call, *offset, &vec![1; *len], *last);
        }
    })
}

/// An answer of one frame.
fn frame_of(kind: PeerKind, message: impl Message + 'static) -> Answer {
    Box::new(move |raw, call| raw.send(kind, REPLY, call, &message))
}

fn is_refused(what: &str, label: &str, answer: Answer) {
    let (a, _) = answered(answer);
    until(what, || a.peers.counters().frames_refused.count(label) == 1);
    // Not closed for anything that comes later, such as a silence.
    until(what, || a.peers.counters().closed.count(label) == 1);
    a.assert_free();
}

#[test]
fn a_pull_that_is_not_answered_by_its_head_is_refused() {
    let early = Box::new(|raw: &mut Raw, call| raw.chunk(call, 0, &[1; 10], false));
    is_refused("before the head", "out_of_place", early);
    is_refused("a head of another length", "malformed", frame_of(PeerKind::Pull, head(999)));
    is_refused("a head that is none", "malformed", frame_of(PeerKind::Pull, v1::PullHead::default()));
    let other = frame_of(PeerKind::PullMany, v1::PulledMany::default());
    is_refused("an answer of another kind", "out_of_place", other);
}

#[test]
fn chunks_that_are_not_the_next_bytes_of_the_pull_are_refused() {
    is_refused("beyond the end", "malformed", chunks(&[(0, 1001, true)]));
    is_refused("a gap", "malformed", chunks(&[(0, 500, false), (501, 499, true)]));
    is_refused("an overlap", "malformed", chunks(&[(0, 500, false), (499, 501, true)]));
    is_refused("an offset that overflows", "malformed", chunks(&[(u64::MAX, 500, false)]));
    is_refused("the end too early", "malformed", chunks(&[(0, 500, true)]));
    is_refused("an end that is not marked", "malformed", chunks(&[(0, 1000, false)]));
    is_refused("nothing, over and over", "malformed", chunks(&[(0, 0, false)]));
    let another = Box::new(|raw: &mut Raw, call| {
        raw.send(PeerKind::Pull, REPLY, call, &head(1000));
        raw.chunk(call + 1, 0, &[1; 1000], true);
    });
    is_refused("another call", "out_of_place", another);
}
