//! Lanes that are not what they say, and lanes that do what they may not. The lane ends; what it was bound to goes on.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tensorlane_proto::frame::{self, FAILED, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Descriptor, Layout, Selection, Shape};

use super::{Raw, is_at_its_end};
use crate::identity::Identity;
use crate::peer::LanesConfig;
use crate::peer::exporter;
use crate::peer::tests::keys;
use crate::peer::tests::world::*;
use crate::peer::transport::lanes::key::{LaneKey, LaneName, Nonce, Role, Use};

const MIB: u64 = 1 << 20;
/// Pulls do not give up on lanes while a test makes the next one.
pub(super) const LANES: LanesConfig = LanesConfig {
    count: 2,
    from: 1,
    plain_from: 1,
    plain: false,
    most: 256,
    quic: 0,
    idle: Duration::from_secs(60),
    patience: Duration::from_secs(600),
    progress: Duration::from_secs(2),
};

/// A peer `a` with lanes, a control connection that the evil peer dialed, and the key of its lanes.
pub(super) struct Bound {
    pub(super) table: Arc<Table>,
    pub(super) a: One,
    pub(super) evil: Identity,
    pub(super) control: Raw,
    pub(super) key: LaneKey,
    /// Nonce that `a` has told for it.
    told: Nonce,
}

impl Bound {
    pub(super) fn new() -> Self {
        Self::with(LANES, false)
    }

    /// `lanes`: those that `a` takes; `plain_lanes`: whether the evil peer says that it takes plain ones.
    pub(super) fn with(lanes: LanesConfig, plain_lanes: bool) -> Self {
        Self::at(2, lanes, plain_lanes)
    }

    /// `version`: what the evil peer speaks.
    fn at(version: u32, lanes: LanesConfig, plain_lanes: bool) -> Self {
        let table: Arc<Table> = Arc::default();
        // The evil peer answers nothing on its control connection, for as long as a test takes.
        let a = Start { lanes, progress: PATIENCE * 6, ..Start::new("a") }.start(&table);
        let evil = keys::identity();
        table.list("evil", nowhere(), evil.fingerprint);
        let mut control = Raw::connect(&a, keys::client(&evil));
        let hello = v1::PeerHello { lanes: 2, plain_lanes, ..Raw::hello("default", "evil", version) };
        control.send(PeerKind::Hello, 0, 0, &hello);
        let (_, body) = control.next_of(PeerKind::Hello).unwrap();
        let theirs = v1::PeerHello::decode(&body[..]).unwrap();
        until("it is connected", || a.peers.is_connected(&name("evil")));
        let told = theirs.lane_key[..].try_into().unwrap();
        let key = if version < 5 {
            LaneKey::told(&told)
        } else {
            // By rustls itself, which has it on connections like this one.
            let exported = control.tls.conn.export_keying_material([0; 32], exporter::LABEL, None).unwrap();
            LaneKey::mixed(&exported, &told, Use::Lanes)
        };
        Self { table, a, evil, control, key, told }
    }

    fn hello(&self, name: LaneName) -> v1::LaneHello {
        let nonce = [7; 32];
        let proof = self.key.prove(Role::Tls, name, &[nonce]).to_vec().into();
        v1::LaneHello { lane: name.number.into(), serves: name.serves, nonce: nonce.to_vec().into(), proof }
    }

    fn say(&self, hello: &v1::LaneHello) -> Raw {
        let mut lane = Raw::connect(&self.a, keys::client(&self.evil));
        lane.send(PeerKind::LaneHello, 0, 0, hello);
        lane
    }

    /// A lane that is bound, over a connection that is there.
    pub(super) fn lane_over(&self, socket: TcpStream, name: LaneName) -> Raw {
        let mut lane = Raw::over(socket, keys::client(&self.evil));
        lane.send(PeerKind::LaneHello, 0, 0, &self.hello(name));
        assert_eq!(lane.next().expect("the lane is taken").0.flags, REPLY);
        lane
    }

    /// A lane that is bound. `serves`: the evil peer sends on it.
    fn lane(&self, number: u8, serves: bool) -> Raw {
        let mut lane = self.say(&self.hello(LaneName { number, serves }));
        let (header, body) = lane.next().expect("the lane is taken");
        assert_eq!((header.kind, header.flags, body.len()), (PeerKind::LaneHello.into(), REPLY, 0));
        lane
    }

    pub(super) fn ended(&self, reason: &str) -> u64 {
        self.a.peers.counters().lanes_closed.count(reason)
    }

    /// The evil peer has pulled tensor 7 of `a`, whose bytes are to be asked for.
    pub(super) fn pulled(&mut self, bytes: u64) {
        self.a.twin.add(7, sealed(&self.a.arena, bytes, 1), 1);
        self.control.send(PeerKind::Pull, 0, 5, &v1::Pull { id: 7, bytes, way: 1, ..Default::default() });
        let (header, _) = self.control.next_of(PeerKind::Pull).unwrap();
        assert_eq!(header.flags, REPLY);
    }
}

fn ask(lane: &mut Raw, call: u64, offset: u64, length: u32) {
    lane.send(PeerKind::Ask, 0, call, &v1::Ask { offset, length });
}

#[test]
fn a_lane_that_does_not_prove_what_it_belongs_to_is_refused() {
    let bound = Bound::new();
    let first = bound.hello(LaneName { number: 0, serves: false });
    let other = LaneKey::random().prove(Role::Tls, LaneName { number: 0, serves: false }, &[[7; 32]]);
    let cases = [
        ("another number than was proven", v1::LaneHello { lane: 1, ..first.clone() }),
        ("another direction", v1::LaneHello { serves: true, ..first.clone() }),
        ("another nonce", v1::LaneHello { nonce: vec![8; 32].into(), ..first.clone() }),
        ("a short nonce", v1::LaneHello { nonce: vec![7; 31].into(), ..first.clone() }),
        ("another key", v1::LaneHello { proof: other.to_vec().into(), ..first.clone() }),
        ("no proof", v1::LaneHello { proof: Vec::new().into(), ..first }),
        ("a number above those agreed on", bound.hello(LaneName { number: 2, serves: false })),
        (
            "a number above all",
            v1::LaneHello { lane: 300, ..bound.hello(LaneName { number: 0, serves: false }) },
        ),
    ];
    for (count, (what, hello)) in cases.into_iter().enumerate() {
        let mut lane = bound.say(&hello);
        assert!(lane.is_closed(), "{what}");
        until(what, || bound.a.peers.counters().auth_refused.count("lane") == count as u64 + 1);
    }
    assert_eq!(bound.a.peers.counters().lanes_opened.all(), []);
    assert!(bound.a.peers.is_connected(&name("evil")), "the control connection has done nothing wrong");
}

#[test]
fn what_the_hello_tells_binds_lanes_of_older_peers_and_nothing_since_version_5() {
    for version in [2, 4, 5, 6] {
        let bound = Bound::at(version, LANES, false);
        let name = LaneName { number: 0, serves: false };
        let proof = LaneKey::told(&bound.told).prove(Role::Tls, name, &[[7; 32]]).to_vec().into();
        let mut lane = bound.say(&v1::LaneHello { proof, ..bound.hello(name) });
        if version < 5 {
            assert_eq!(lane.next().expect("the lane is taken").0.flags, REPLY);
        } else {
            assert!(lane.is_closed(), "version {version}");
            until("it was counted", || bound.a.peers.counters().auth_refused.count("lane") == 1);
        }
        drop(bound.lane(0, false));
    }
}

#[test]
fn what_one_connection_exports_binds_no_lane_of_the_next() {
    let first = Bound::at(5, LANES, false);
    let mut control = Raw::connect(&first.a, keys::client(&first.evil));
    let hello = v1::PeerHello { lanes: 2, ..Raw::hello("default", "evil", 5) };
    control.send(PeerKind::Hello, 0, 0, &hello);
    let (_, body) = control.next_of(PeerKind::Hello).unwrap();
    let theirs = v1::PeerHello::decode(&body[..]).unwrap();
    until("it has the place of the first", || {
        is_at_its_end(&mut first.control.tls.sock.try_clone().unwrap())
    });
    let told: Nonce = theirs.lane_key[..].try_into().unwrap();
    let mut of_first = first.control.tls.conn.export_keying_material([0; 32], exporter::LABEL, None).unwrap();
    let name = LaneName { number: 0, serves: false };
    for is_taken in [false, true] {
        let proof = LaneKey::mixed(&of_first, &told, Use::Lanes).prove(Role::Tls, name, &[[7; 32]]);
        let mut lane = first.say(&v1::LaneHello { proof: proof.to_vec().into(), ..first.hello(name) });
        assert_eq!(lane.next().is_some(), is_taken);
        of_first = control.tls.conn.export_keying_material([0; 32], exporter::LABEL, None).unwrap();
    }
}

#[test]
fn a_lane_of_a_connection_that_is_not_up_is_refused() {
    let Bound { a, evil, control, key, .. } = Bound::new();
    drop(control);
    until("it is gone", || !a.peers.is_connected(&name("evil")));
    let hello = {
        let proof = key.prove(Role::Tls, LaneName { number: 0, serves: false }, &[[7; 32]]);
        v1::LaneHello { nonce: vec![7; 32].into(), proof: proof.to_vec().into(), ..v1::LaneHello::default() }
    };
    let mut lane = Raw::connect(&a, keys::client(&evil));
    lane.send(PeerKind::LaneHello, 0, 0, &hello);
    assert!(lane.is_closed());
    until("it was counted", || a.peers.counters().auth_refused.count("lane") == 1);
}

#[test]
fn lanes_end_with_their_connection_and_one_takes_the_place_of_another() {
    let bound = Bound::new();
    let (mut first, mut second) = (bound.lane(0, false), bound.lane(0, false));
    assert!(is_at_its_end(&mut first.tls.sock), "its other end has lost it");
    until("it is counted", || bound.ended("lost") == 1);
    let Bound { a, control, .. } = bound;
    drop(control);
    assert!(is_at_its_end(&mut second.tls.sock));
    until("it is counted", || a.peers.counters().lanes_closed.count("ended") == 1);
}

#[test]
fn lanes_that_are_gone_before_they_are_answered_leave_no_place_taken() {
    let mut bound = Bound::new();
    let bytes = 2 * MIB;
    let (told, _, block) = bound.a.pull("evil", None, 7, Selection::All, bytes);
    let (pull, _) = bound.control.next_of(PeerKind::Pull).unwrap();
    let layout = Layout::contiguous(DType::U8, Shape::new(&[bytes]).unwrap()).unwrap();
    let head = v1::PullHead { descriptor: Some((&Descriptor::host(layout)).into()), ..Default::default() };
    bound.control.send(PeerKind::Pull, REPLY, pull.call, &head);
    for _ in 0..20 {
        let lane = bound.say(&bound.hello(LaneName { number: 0, serves: true }));
        // A reset, so that the answer has nowhere to go.
        socket2::SockRef::from(&lane.tls.sock).set_linger(Some(Duration::ZERO)).unwrap();
    }
    // Before that they may still be let in, and take the place of one that comes later.
    until("each was let in or refused", || bound.a.peers.strangers() == 0);
    let counters = bound.a.peers.counters();
    let closed = || counters.lanes_closed.all().iter().map(|(_, count)| count).sum::<u64>();
    let admitted = || counters.lanes_opened.count("read");
    until("each that had a place has given it back", || closed() >= admitted());
    let mut lane = bound.lane(0, true);
    assert!(lane.next_of(PeerKind::Ask).is_some(), "a new one is used");
    drop((lane, told, block));
}

#[test]
fn bytes_are_answered_as_they_are_asked_for_and_nothing_beyond_the_pull() {
    let mut bound = Bound::new();
    let bytes = 3 * MIB;
    bound.pulled(bytes);
    let whole = bound.a.own_bytes(7);
    let mut lane = bound.lane(0, false);
    // Backwards, overlapping, repeated: what is asked for is what comes.
    for (offset, length) in [(2 * MIB, MIB), (0, 100), (50, 100), (50, 100), (bytes - 1, 1)] {
        ask(&mut lane, 5, offset, length as u32);
        let mut came: Vec<u8> = Vec::new();
        while (came.len() as u64) < length {
            let (header, body) = lane.next().unwrap();
            let at = u64::from_le_bytes(body[..8].try_into().unwrap());
            assert_eq!((header.call, at), (5, offset + came.len() as u64));
            came.extend(&body[8..]);
            assert_eq!(header.is_last(), came.len() as u64 == length);
        }
        assert!(came == whole[offset as usize..(offset + length) as usize]);
    }
    ask(&mut lane, 6, 0, 100);
    let (header, body) = lane.next().unwrap();
    assert_eq!((header.kind, header.flags), (PeerKind::Ask.into(), REPLY | FAILED));
    assert_eq!(v1::Failure::decode(&body[..]).unwrap().reason, "CANCELLED");
    let wrong: [(&str, u64, u32); 5] = [
        ("beyond the end", bytes - 1, 2),
        ("from beyond", bytes, 1),
        ("around the corner", u64::MAX, 2),
        ("nothing", 0, 0),
        ("too much", 0, (4 << 20) + 1),
    ];
    for (count, (what, offset, length)) in wrong.into_iter().enumerate() {
        let mut lane = bound.lane(1, false);
        ask(&mut lane, 5, offset, length);
        assert!(lane.is_closed(), "{what}");
        until(what, || bound.ended("frame") == count as u64 + 1);
    }
    // What is asked for after the end of the pull is refused, and its memory free.
    bound.control.send(PeerKind::PullDone, 0, 5, &v1::PullDone { id: 7, holds: false });
    until("the lease has ended", || bound.a.twin.leased() == 0);
    ask(&mut lane, 5, 0, 100);
    assert_eq!(lane.next().unwrap().0.flags, REPLY | FAILED);
    bound.a.assert_free();
}

#[test]
fn only_asks_come_to_a_lane_that_is_served() {
    let mut bound = Bound::new();
    bound.pulled(MIB);
    let frames = [
        frame::encode(PeerKind::Ping.into(), 0, 0, &v1::Ping {}),
        frame::encode(PeerKind::Pull.into(), 0, 9, &v1::Pull::default()),
        frame::encode(PeerKind::Ask.into(), REPLY, 5, &v1::Ask { offset: 0, length: 1 }),
        frame::encode(PeerKind::Ask.into(), 0, 0, &v1::Ask { offset: 0, length: 1 }),
        vec![0xff; 16],
    ];
    for (count, bytes) in frames.into_iter().enumerate() {
        let mut lane = bound.lane(0, false);
        lane.raw(&bytes);
        assert!(lane.is_closed());
        until("it is counted", || bound.ended("frame") == count as u64 + 1);
    }
    assert!(bound.a.peers.is_connected(&name("evil")));
}

#[test]
fn answers_that_were_not_asked_for_end_their_lane_and_the_pull_goes_on_with_the_next() {
    let mut bound = Bound::new();
    let bytes = 2 * MIB;
    let mut content = vec![0; bytes as usize];
    fill(&mut content, 3);
    let (told, _, block) = bound.a.pull("evil", None, 7, Selection::All, bytes);
    let (pull, _) = bound.control.next_of(PeerKind::Pull).unwrap();
    let call = pull.call;
    let layout = Layout::contiguous(DType::U8, Shape::new(&[bytes]).unwrap()).unwrap();
    let head = v1::PullHead { descriptor: Some((&Descriptor::host(layout)).into()), ..Default::default() };
    bound.control.send(PeerKind::Pull, REPLY, call, &head);
    let piece = |lane: &mut Raw| {
        let (header, body) = lane.next_of(PeerKind::Ask).unwrap();
        let ask = v1::Ask::decode(&body[..]).unwrap();
        assert_eq!(header.call, call);
        (ask.offset, u64::from(ask.length))
    };
    type Wrong = fn(&mut Raw, u64, u64, u64);
    let wrong: [(&str, Wrong); 6] = [
        ("from elsewhere", |lane, call, at, length| {
            lane.chunk(call, at + 1, &vec![0; length as usize - 1], true);
        }),
        ("of another call", |lane, call, at, length| {
            lane.chunk(call + 1, at, &vec![0; length as usize], true);
        }),
        ("too short", |lane, call, at, _| lane.chunk(call, at, &[0; 10], true)),
        ("without an end", |lane, call, at, length| lane.chunk(call, at, &vec![0; length as usize], false)),
        ("without bytes", |lane, call, at, _| lane.chunk(call, at, &[], false)),
        ("again", |lane, call, at, _| {
            lane.chunk(call, at, &[0; 10], false);
            lane.chunk(call, at, &[0; 10], false);
        }),
    ];
    for (count, (what, answer)) in wrong.into_iter().enumerate() {
        let mut lane = bound.lane(0, true);
        let (at, length) = piece(&mut lane);
        answer(&mut lane, call, at, length);
        assert!(lane.is_closed(), "{what}");
        until(what, || bound.ended("frame") == count as u64 + 1);
        assert!(told.try_recv().is_err(), "{what}");
    }
    let mut lane = bound.lane(1, true);
    let mut left = bytes;
    while left > 0 {
        let (at, length) = piece(&mut lane);
        lane.chunk(call, at, &content[at as usize..(at + length) as usize], true);
        left -= length;
    }
    drop(told.recv_timeout(PATIENCE).unwrap().unwrap().landing);
    block.mark_sealed().unwrap();
    assert!(block.chunk(0..bytes).unwrap() == content);
    assert!(bound.control.next_of(PeerKind::PullDone).is_some());
}
