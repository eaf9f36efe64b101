//! What QUIC alone does: another source port, datagrams that stop, strangers at the door, and the choice between it and TCP.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prost::Message;
use tensorlane_proto::frame::{self, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Selection, Transport};

use super::keys;
use super::transports::{NONE, Pair, Way};
use super::world::*;
use crate::peer::transport::lanes::key::{LaneKey, LaneName, Role};
use crate::peer::transport::lanes::quic::Door;
use crate::peer::{LanesConfig, Way as Taken};

const MIB: u64 = 1 << 20;
const QUIC: LanesConfig = LanesConfig { quic: 2, ..NONE };

fn migrations(one: &One) -> u64 {
    one.peers.counters().quic_migrations.load(Ordering::SeqCst)
}

fn fallbacks(one: &One) -> u64 {
    let counters = one.peers.counters();
    counters.fallbacks.count("no_lane") + counters.fallbacks.count("lanes_broke")
}

#[test]
fn a_connection_survives_that_its_source_port_changes_again_and_again() {
    const WAY: Way = Way { counted: "quic", name: "a NAT that forgets", lanes: QUIC, lands: true };
    let pair = Pair::new(&WAY);
    for (reader, owner, from) in pair.both_ways() {
        owner.twin.add(7, sealed(&owner.arena, 24 * MIB, 1), 1);
        for _ in 0..3 {
            let before = bytes_in(reader);
            let (told, _, block) = reader.pull(from, None, 7, Selection::All, 24 * MIB);
            until("it is in the middle", || bytes_in(reader) > before + 4 * MIB);
            pair.proxy.datagrams.rebind();
            let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
            assert_eq!(pulled.transport, Transport::Quic);
            drop(pulled.landing);
            block.mark_sealed().unwrap();
            assert!(block.chunk(0..24 * MIB).unwrap() == owner.own_bytes(7));
        }
    }
    until("the side that was dialed saw it move", || migrations(&pair.b) > 0);
    assert_eq!(migrations(&pair.a), 0, "nothing moved where it dialed to");
    for one in [&pair.a, &pair.b] {
        let counters = one.peers.counters();
        let opened: u64 = counters.quic_opened.all().iter().map(|(_, count)| count).sum();
        assert_eq!((opened, fallbacks(one)), (1, 0), "one connection for all of it");
    }
    pair.assert_over();
}

#[test]
fn where_no_datagram_comes_through_pulls_go_on_in_tls_and_never_in_the_clear() {
    const PATIENT: LanesConfig = LanesConfig { patience: Duration::from_secs(2), ..QUIC };
    const IN_TLS: Way = Way {
        counted: "lanes",
        name: "no datagrams, lanes in TLS",
        lanes: LanesConfig { count: 2, ..PATIENT },
        lands: true,
    };
    const PLAIN: Way = Way {
        counted: "stream",
        name: "no datagrams, plain lanes",
        lanes: LanesConfig { count: 2, plain: true, ..PATIENT },
        lands: true,
    };
    for way in [&IN_TLS, &PLAIN] {
        let pair = Pair::new(way);
        pair.proxy.datagrams.mute.store(true, Ordering::SeqCst);
        for (reader, owner, from) in pair.both_ways() {
            owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
            for _ in 0..2 {
                let (told, _, block) = reader.pull(from, None, 7, Selection::All, 9 * MIB);
                let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
                assert_eq!(pulled.transport, Transport::Tcp, "{}", way.name);
                drop(pulled.landing);
                block.mark_sealed().unwrap();
                assert!(block.chunk(0..9 * MIB).unwrap() == owner.own_bytes(7));
            }
            // The second one did not try.
            assert_eq!(fallbacks(reader), 1, "{}", way.name);
            assert_eq!(reader.peers.counters().pulls.count(way.counted), 2, "{}", way.name);
        }
        pair.assert_over();
    }
}

#[test]
fn datagrams_that_stop_in_the_middle_cost_a_change_of_lanes_and_no_byte_that_came() {
    const LANES: LanesConfig = LanesConfig { count: 1, patience: Duration::from_secs(2), ..QUIC };
    const WAY: Way = Way { counted: "quic", name: "datagrams that stop", lanes: LANES, lands: true };
    let pair = Pair::new(&WAY);
    pair.b.twin.add(7, sealed(&pair.b.arena, 64 * MIB, 1), 1);
    let (told, _, block) = pair.a.pull("b", None, 7, Selection::All, 64 * MIB);
    until("it is in the middle", || bytes_in(&pair.a) > 8 * MIB);
    pair.proxy.datagrams.mute.store(true, Ordering::SeqCst);
    match told.recv_timeout(PATIENCE).unwrap() {
        Ok(pulled) => drop(pulled.landing),
        Err(failed) => panic!("{}", failed.failure),
    }
    block.mark_sealed().unwrap();
    assert!(block.chunk(0..64 * MIB).unwrap() == pair.b.own_bytes(7));
    // What came whole is not asked for again, and only what comes whole is counted.
    assert_eq!(bytes_in(&pair.a), 64 * MIB);
    drop(block);
    pair.assert_over();
}

/// Unlike a source port that changes, this is the end of the QUIC connection, and nobody says so.
#[test]
fn datagrams_that_end_at_the_nth_byte_cost_a_change_of_lanes_and_no_byte_in_both_directions() {
    // What comes is as long as the tensor; what asks for it is not.
    for (n, comes) in [(0, true), (700, true), (4 * MIB + 1, true), (8 * MIB, true), (0, false), (40, false)]
    {
        std::thread::scope(|scope| {
            for dials in [true, false] {
                scope.spawn(move || get_until_datagrams_end(dials, n, comes));
            }
        });
    }
}

/// `dials`: it is the reader that has dialed. `comes`: what fails is the wire that brings the bytes.
fn get_until_datagrams_end(dials: bool, n: u64, comes: bool) {
    const WAY: Way = Way { counted: "quic", name: "datagrams that end", lanes: QUIC, lands: true };
    let (what, bytes) = (format!("after {n} bytes, {dials} {comes}"), 10 * MIB);
    let pair = Pair::new(&WAY);
    let [there, back] = pair.both_ways();
    let (reader, owner, from) = if dials { there } else { back };
    let wire = if dials == comes { &pair.proxy.back } else { &pair.proxy.out };
    owner.twin.add(7, sealed(&owner.arena, bytes, 1), 1);
    let get = || {
        let (told, _, block) = reader.pull(from, None, 7, Selection::All, bytes);
        let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
        drop(pulled.landing);
        block.mark_sealed().unwrap();
        assert!(block.chunk(0..bytes).unwrap() == owner.own_bytes(7), "{what}");
        pulled.paths.as_slice().to_vec()
    };
    assert_eq!(get()[0].way, Taken::Quic, "{what}: the connection is there");
    let before = wire.datagrams.carried();
    wire.datagrams.fail_after(n);
    let paths = get();
    let carried = wire.datagrams.carried() - before;
    // On a machine that is too busy for it QUIC may be left before it has brought so much.
    assert!(wire.datagrams.failures() == 1 || (n > 700 && carried <= n), "{what}: {carried} bytes");
    let [quic, stream] = paths.as_slice() else { panic!("{what}: {paths:?}") };
    assert_eq!((quic.way, stream.way), (Taken::Quic, Taken::Stream), "{what}: {paths:?}");
    assert!(quic.left.is_some() && quic.bytes + stream.bytes >= bytes, "{what}: {paths:?}");
    pair.assert_over();
}

/// A QUIC client with a key of its own.
struct Stranger {
    door: Arc<Door>,
    until: Instant,
}

impl Stranger {
    fn new(identity: &crate::identity::Identity) -> Self {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let door = Door::open(socket, &keys::keys(identity), Duration::from_secs(60)).unwrap();
        Self { door, until: Instant::now() + PATIENCE }
    }

    /// Says a first frame on a first stream; whether the connection is closed upon it.
    fn is_refused(&self, at: &One, hello: &v1::LaneHello) -> bool {
        let connecting = self.door.connect(at.peers.bound_address()).unwrap();
        let frame = frame::encode(PeerKind::LaneHello.into(), 0, 0, hello);
        let closed = self.door.within(self.until, async {
            let Ok(connection) = connecting.await else { return true };
            let Ok((mut send, mut receive)) = connection.open_bi().await else { return true };
            if send.write_all(&frame).await.is_err() {
                return true;
            }
            let mut room = [0; 64];
            !matches!(receive.read(&mut room).await, Ok(Some(_)))
        });
        closed.unwrap()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.door.end();
    }
}

#[test]
fn a_quic_connection_binds_with_a_key_of_the_table_and_a_proof_of_its_control_connection_alone() {
    let table = Arc::default();
    let a = Start { lanes: QUIC, ..Start::new("a") }.start(&table);
    let (evil, nobody) = (keys::identity(), keys::identity());
    table.list("evil", nowhere(), evil.fingerprint);
    let refused = |reason: &str| a.peers.counters().auth_refused.count(reason);
    let name = LaneName { number: 0, serves: false };
    let hello = |key: &LaneKey, role| v1::LaneHello {
        nonce: vec![7; 32].into(),
        proof: key.prove(role, name, &[[7; 32]]).to_vec().into(),
        ..v1::LaneHello::default()
    };
    let guessed = hello(&LaneKey::random(), Role::Quic);

    assert!(Stranger::new(&nobody).is_refused(&a, &guessed));
    until("its key was looked up", || refused("unknown_key") == 1);
    let evil_door = Stranger::new(&evil);
    assert!(evil_door.is_refused(&a, &guessed), "it has no control connection");
    until("it was counted", || refused("lane") == 1);

    let mut control = super::hostile::Raw::connect(&a, keys::client(&evil));
    let said = v1::PeerHello { quic_lanes: 2, ..super::hostile::Raw::hello("default", "evil", 2) };
    control.send(PeerKind::Hello, 0, 0, &said);
    let (_, body) = control.next_of(PeerKind::Hello).unwrap();
    let theirs = v1::PeerHello::decode(&body[..]).unwrap();
    assert_eq!(theirs.quic_lanes, 2);
    until("it is connected", || a.peers.is_connected(&super::world::name("evil")));
    let key = LaneKey::told(theirs.lane_key[..].try_into().unwrap());
    assert!(evil_door.is_refused(&a, &guessed), "it guessed the key");
    assert!(evil_door.is_refused(&a, &hello(&key, Role::Tls)), "a proof of another lane");
    until("they were counted", || refused("lane") == 3);
    assert!(!evil_door.is_refused(&a, &hello(&key, Role::Quic)));
    until("it is counted", || a.peers.counters().quic_opened.count("them") == 1);
    until("nobody is a stranger", || a.peers.strangers() == 0);
}

#[test]
fn quic_is_tried_after_some_pulls_once_its_connection_is_there() {
    const WAY: Way =
        Way { counted: "quic", name: "measured", lanes: LanesConfig { count: 2, ..QUIC }, lands: true };
    let pair = Pair::new(&WAY);
    for (reader, owner, from) in pair.both_ways() {
        owner.twin.add(7, sealed(&owner.arena, MIB, 1), 1);
        let from_name = name(from);
        let get = |transport| {
            let (told, _, block) = reader.pull_by(from, 7, MIB, transport);
            let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
            drop((pulled.landing, block));
            pulled.transport
        };
        for _ in 0..20 {
            assert_eq!(get(Transport::Tcp), Transport::Tcp);
        }
        assert_eq!(reader.peers.measured(&from_name, MIB, false).quic_goodput, None);
        // The first one of a trial does not count.
        for _ in 0..2 {
            until("a trial is due and does not wait", || {
                reader.peers.measured(&from_name, MIB, true).current == Some(Transport::Quic)
            });
            assert_eq!(get(Transport::Quic), Transport::Quic);
        }
        let measured = reader.peers.measured(&from_name, MIB, false);
        assert!(measured.tcp_goodput.is_some() && measured.quic_goodput.is_some(), "{measured:?}");
    }
    pair.assert_over();
}
