//! Plain lanes that are not what they say. Nothing but their proof stands between them and the bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use prost::Message;
use tensorlane_proto::frame::{self, HEADER_BYTES, Header, PeerKind, REPLY};
use tensorlane_proto::generated as v1;

use super::lanes::Bound;
use super::slow::narrow;
use super::{Raw, is_at_its_end};
use crate::peer::LanesConfig;
use crate::peer::tests::keys;
use crate::peer::tests::transports::{NONE, UNHURRIED};
use crate::peer::tests::world::*;
use crate::peer::transport::lanes::bind::MAGIC;
use crate::peer::transport::lanes::key::{LaneKey, LaneName, Nonce, Role};

pub(super) const PLAIN: LanesConfig = LanesConfig { count: 2, plain: true, ..NONE };
const FIRST: LaneName = LaneName { number: 0, serves: false };
const OURS: Nonce = [7; 32];

/// A peer `a` that takes plain lanes, and the evil peer, which takes them too or does not.
fn world(plain: bool) -> Bound {
    Bound::with(PLAIN, plain)
}

impl Bound {
    fn refused(&self) -> u64 {
        self.a.peers.counters().auth_refused.count("lane")
    }

    /// A connection that says it is a lane of this key, and what comes back: the other end's nonce and its proof.
    fn call(
        &self,
        magic: &[u8],
        key: &LaneKey,
        number: u8,
        serves: u8,
    ) -> (TcpStream, Option<(Nonce, Nonce)>) {
        let socket = TcpStream::connect(self.a.peers.bound_address()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        self.call_over(socket, magic, key, [number, serves])
    }

    fn call_over(
        &self,
        mut socket: TcpStream,
        magic: &[u8],
        key: &LaneKey,
        of: [u8; 2],
    ) -> (TcpStream, Option<(Nonce, Nonce)>) {
        let hello = [magic, &key.id()[..], &of, &OURS].concat();
        socket.write_all(&hello).unwrap();
        let (mut nonce, mut proof) = ([0; 32], [0; 32]);
        let answered = socket.read_exact(&mut nonce).and_then(|()| socket.read_exact(&mut proof));
        (socket, answered.is_ok().then_some((nonce, proof)))
    }

    /// A lane that is bound, over a connection that is there.
    pub(super) fn plain_over(&self, socket: TcpStream) -> TcpStream {
        let (mut lane, answer) = self.call_over(socket, &MAGIC, &self.key, [0, 0]);
        let (theirs, _) = answer.unwrap();
        lane.write_all(&self.key.prove(Role::PlainDials, FIRST, &[OURS, theirs])).unwrap();
        lane
    }
}

#[test]
fn a_plain_lane_of_no_connection_is_told_nothing() {
    let world = world(true);
    let other = LaneKey::random();
    let cases: [(&str, &[u8], &LaneKey, u8, u8); 5] = [
        ("another connection", &MAGIC, &other, 0, 0),
        ("a number above all", &MAGIC, &world.key, 8, 0),
        ("no direction", &MAGIC, &world.key, 0, 2),
        ("another magic", b"tlplain1", &world.key, 0, 0),
        ("none", &[0; 8], &world.key, 0, 0),
    ];
    for (what, magic, key, number, serves) in cases {
        let (mut socket, answer) = world.call(magic, key, number, serves);
        assert!(answer.is_none() && is_at_its_end(&mut socket), "{what}");
    }
    assert_eq!(world.a.peers.counters().lanes_opened.all(), []);
    assert!(world.a.peers.is_connected(&name("evil")), "the control connection has done nothing wrong");
}

#[test]
fn a_plain_lane_proves_that_it_has_the_key_for_this_lane_and_this_call() {
    let world = world(true);
    let (mut first, answer) = world.call(&MAGIC, &world.key, 0, 0);
    let (theirs, proof) = answer.unwrap();
    assert!(world.key.is_proven(Role::PlainAccepts, FIRST, &[OURS, theirs], &proof), "so does the other end");
    let good = world.key.prove(Role::PlainDials, FIRST, &[OURS, theirs]);
    let proofs: [(&str, Nonce); 4] = [
        ("what the other end has proven", proof),
        ("another lane", world.key.prove(Role::PlainDials, LaneName { number: 1, ..FIRST }, &[OURS, theirs])),
        ("another key", LaneKey::random().prove(Role::PlainDials, FIRST, &[OURS, theirs])),
        ("the proof of another call", good),
    ];
    for (count, (what, proof)) in proofs.into_iter().enumerate() {
        let (mut lane, _) = world.call(&MAGIC, &world.key, 0, 0);
        lane.write_all(&proof).unwrap();
        assert!(is_at_its_end(&mut lane), "{what}");
        until(what, || world.refused() == count as u64 + 1);
    }
    assert_eq!(world.a.peers.counters().lanes_opened.all(), []);
    first.write_all(&good).unwrap();
    until("the good one is taken", || world.a.peers.counters().lanes_opened.count("serve") == 1);
}

#[test]
fn a_lane_is_in_tls_or_plain_as_both_ends_have_agreed() {
    let Bound { a, evil, control, key, .. } = world(true);
    let hello = v1::LaneHello {
        lane: 0,
        serves: false,
        nonce: OURS.to_vec().into(),
        proof: key.prove(Role::Tls, FIRST, &[OURS]).to_vec().into(),
    };
    let mut lane = Raw::connect(&a, keys::client(&evil));
    lane.send(PeerKind::LaneHello, 0, 0, &hello);
    assert!(lane.is_closed(), "in TLS, where plain was agreed");
    until("it is counted", || a.peers.counters().auth_refused.count("lane") == 1);
    drop((a, control));
    let world = world(false);
    let (mut socket, answer) = world.call(&MAGIC, &world.key, 0, 0);
    assert!(answer.is_none() && is_at_its_end(&mut socket), "plain, where TLS was agreed");
    until("it is counted", || world.refused() == 1);
}

#[test]
fn a_plain_lane_that_asks_for_what_it_may_not_ends_and_the_connection_goes_on() {
    let mut world = world(true);
    world.a.twin.add(7, sealed(&world.a.arena, 100, 1), 1);
    world.control.send(PeerKind::Pull, 0, 5, &v1::Pull { id: 7, bytes: 100, way: 1, ..v1::Pull::default() });
    assert_eq!(world.control.next_of(PeerKind::Pull).unwrap().0.flags, REPLY);
    let asks: [(&str, Vec<u8>); 4] = [
        ("beyond the end", v1::Ask { offset: 99, length: 2 }.encode_to_vec()),
        ("nothing", v1::Ask { offset: 1, length: 0 }.encode_to_vec()),
        ("no message", vec![0xff; 9]),
        ("one that is too long", vec![0; 65 << 10]),
    ];
    for (count, (what, body)) in asks.into_iter().enumerate() {
        let (mut lane, answer) = world.call(&MAGIC, &world.key, 0, 0);
        let (theirs, _) = answer.unwrap();
        lane.write_all(&world.key.prove(Role::PlainDials, FIRST, &[OURS, theirs])).unwrap();
        let header = Header { length: body.len() as u32, kind: PeerKind::Ask.into(), flags: 0, call: 5 };
        let header: [u8; HEADER_BYTES] = header.encode();
        // The other end may close before it has all of it.
        let _ = lane.write_all(&header).and_then(|()| lane.write_all(&body));
        assert!(is_at_its_end(&mut lane), "{what}");
        until(what, || world.a.peers.counters().lanes_closed.count("frame") == count as u64 + 1);
    }
    assert!(world.a.peers.is_connected(&name("evil")));
}

/// Bytes that are asked for and are all in the owner's socket, and not in the reader's.
const WAITING: u32 = 16 << 10;

/// A pull of which some bytes were sent on a lane that nobody reads, and that is over.
fn given_up() -> (Bound, TcpStream) {
    // For as long as the test takes nobody minds that it is not read.
    let mut world = Bound::with(LanesConfig { progress: UNHURRIED.progress, ..PLAIN }, true);
    world.pulled(1 << 20);
    let mut lane = world.plain_over(narrow(&world.a));
    let ask = v1::Ask { offset: 0, length: WAITING };
    lane.write_all(&frame::encode(PeerKind::Ask.into(), 0, 5, &ask)).unwrap();
    let sent = || world.a.peers.counters().bytes_out.load(Ordering::SeqCst);
    until("they are in the socket", || sent() == u64::from(WAITING));
    world.control.send(PeerKind::PullDone, 0, 5, &v1::PullDone { id: 7, holds: false });
    until("the pull is over", || world.a.twin.leased() == 0);
    world.a.twin.tensors.lock().clear();
    (world, lane)
}

fn is_free(world: &Bound) -> bool {
    let usage = world.a.arena.usage();
    assert!(usage.balances(), "{usage:?}");
    usage.free == usage.total
}

#[test]
fn a_block_is_not_used_again_while_its_pages_wait_to_be_sent() {
    let (world, mut lane) = given_up();
    assert!(!is_free(&world), "nobody holds the tensor, and its bytes are still to be sent");
    let mut answer = vec![0; HEADER_BYTES + 8 + WAITING as usize];
    lane.read_exact(&mut answer).unwrap();
    until("the block is free", || is_free(&world));
}

#[test]
fn what_waits_to_be_sent_when_a_lane_ends_is_not_sent_any_more() {
    let (world, mut lane) = given_up();
    world.control.tls.sock.shutdown(std::net::Shutdown::Both).unwrap();
    until("the block is free", || is_free(&world));
    let mut came = Vec::new();
    // The end of what came, or that it was cut.
    let _ = lane.read_to_end(&mut came);
    assert!(came.len() < WAITING as usize, "{} bytes came", came.len());
}
