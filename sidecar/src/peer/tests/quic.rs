//! Tests of what QUIC alone does: another source port, datagrams that stop, strangers at the endpoint, and the choice
//! between it and TCP.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prost::Message;
use tensorlane_proto::encoded::PulledMany;
use tensorlane_proto::frame::{self, LANES_MAX, PEER_VERSION, PeerKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Selection, Transport};

use super::hostile::Raw;
use super::keys;
use super::transports::{NONE, Pair, UNHURRIED, Way};
use super::world::*;
use crate::peer::exporter;
use crate::peer::transport::lanes::key::{LaneKey, LaneName, Role, Use};
use crate::peer::transport::lanes::quic::QuicEndpoint;
use crate::peer::{LanesConfig, Way as Taken};

const MIB: u64 = 1 << 20;
const QUIC: LanesConfig = LanesConfig { quic: 2, ..NONE };
/// The last version of the protocol in which small tensors were asked for on QUIC.
const SMALL_ON_QUIC: u32 = 10;

fn migrations(one: &One) -> u64 {
    one.peers.counters().quic_migrations.load(Ordering::SeqCst)
}

fn fallbacks(one: &One) -> u64 {
    let counters = one.peers.counters();
    counters.fallbacks.count("no_lane") + counters.fallbacks.count("lanes_broke")
}

#[test]
fn a_connection_survives_that_its_source_port_changes_again_and_again() {
    const LANES: LanesConfig = LanesConfig { quic: 2, patience: PATIENCE, ..UNHURRIED };
    const WAY: Way = Way { counted: "quic", name: "a NAT that forgets", lanes: LANES, maps: None };
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
        maps: None,
    };
    const PLAIN: Way = Way {
        counted: "stream",
        name: "no datagrams, plain lanes",
        lanes: LanesConfig { count: 2, plain: true, ..PATIENT },
        maps: None,
    };
    for way in [&IN_TLS, &PLAIN] {
        let pair = Pair::new(way);
        pair.proxy.datagrams.mute.store(true, Ordering::SeqCst);
        for (reader, owner, from) in pair.both_ways() {
            owner.twin.add(7, sealed(&owner.arena, 9 * MIB, 1), 1);
            let mut pulls = 0;
            // For a while the next one does not try: for longer each time, where a busy machine lets the first while pass.
            until("a pull does not try", || {
                let (told, _, block) = reader.pull(from, None, 7, Selection::All, 9 * MIB);
                let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
                assert_eq!(pulled.transport, Transport::Tcp, "{}", way.name);
                drop(pulled.landing);
                block.mark_sealed().unwrap();
                assert!(block.chunk(0..9 * MIB).unwrap() == owner.own_bytes(7));
                pulls += 1;
                fallbacks(reader) < pulls
            });
            assert_eq!(fallbacks(reader), pulls - 1, "{}: those before it tried", way.name);
            assert!(pulls > 1, "{}: the first one tries", way.name);
            assert_eq!(reader.peers.counters().pulls.count(way.counted), pulls, "{}", way.name);
        }
        pair.assert_over();
    }
}

#[test]
fn datagrams_that_stop_in_the_middle_cost_a_change_of_lanes_and_no_byte_that_came() {
    const LANES: LanesConfig = LanesConfig { count: 1, patience: Duration::from_secs(2), ..QUIC };
    const WAY: Way = Way { counted: "quic", name: "datagrams that stop", lanes: LANES, maps: None };
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
    const LANES: LanesConfig = LanesConfig { patience: Duration::from_secs(5), ..QUIC };
    const WAY: Way = Way { counted: "quic", name: "datagrams that end", lanes: LANES, maps: None };
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
    until(&format!("{what}: the connection is there"), || get()[0].way == Taken::Quic);
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
pub(super) struct Stranger {
    endpoint: Arc<QuicEndpoint>,
    until: Instant,
}

impl Stranger {
    /// Binds a connection, reads on a lane of it so many bytes a second of what it asks for, until it has so many or the lane is
    /// over. How many those were.
    fn take(&self, at: &One, hello: &v1::LaneHello, asks: &[u8], (rate, most): (u64, u64)) -> u64 {
        let connecting = self.endpoint.connect(at.peers.bound_address()).unwrap();
        let say = |hello| frame::encode(PeerKind::LaneHello.into(), 0, 0, hello);
        let (bind, lane) = (say(hello), say(&v1::LaneHello::default()));
        let taken = self.endpoint.within(self.until, async {
            let connection = connecting.await.unwrap();
            let mut room = [0; 1024];
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&bind).await.unwrap();
            assert!(receive.read(&mut room).await.unwrap().is_some(), "it is bound");
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&[&lane, asks].concat()).await.unwrap();
            let (begun, mut taken) = (Instant::now(), 0);
            while taken < most {
                let due = (begun.elapsed().as_secs_f64() * rate as f64) as u64;
                match due.min(most).saturating_sub(taken).min(room.len() as u64) as usize {
                    0 => tokio::time::sleep(Duration::from_millis(20)).await,
                    now => match receive.read(&mut room[..now]).await {
                        Ok(Some(bytes)) => taken += bytes as u64,
                        Ok(None) | Err(_) => break,
                    },
                }
            }
            taken
        });
        taken.unwrap()
    }

    /// Binds a connection and opens streams, on which it says nothing, for as long as there are more within half a second. How many.
    fn streams(&self, at: &One, hello: &v1::LaneHello) -> usize {
        let connecting = self.endpoint.connect(at.peers.bound_address()).unwrap();
        let bind = frame::encode(PeerKind::LaneHello.into(), 0, 0, hello);
        let opened = self.endpoint.within(self.until, async {
            let connection = connecting.await.unwrap();
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&bind).await.unwrap();
            assert!(receive.read(&mut [0; 64]).await.unwrap().is_some(), "it is bound");
            let mut opened = vec![(send, receive)];
            let patience = Duration::from_millis(500);
            while let Ok(stream) = tokio::time::timeout(patience, connection.open_bi()).await {
                let (mut send, receive) = stream.unwrap();
                // A stream is known to the other end with its first byte.
                send.write_all(&[0]).await.unwrap();
                opened.push((send, receive));
            }
            opened.len()
        });
        opened.unwrap()
    }

    /// Binds a connection and opens a stream of each number and direction; which of them were let in.
    fn lets_in(&self, at: &One, hello: &v1::LaneHello, lanes: &[(u32, bool)]) -> Vec<bool> {
        let connecting = self.endpoint.connect(at.peers.bound_address()).unwrap();
        let say = |hello: &v1::LaneHello| frame::encode(PeerKind::LaneHello.into(), 0, 0, hello);
        let bind = say(hello);
        let let_in = self.endpoint.within(self.until, async {
            let connection = connecting.await.unwrap();
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&bind).await.unwrap();
            assert!(receive.read(&mut [0; 64]).await.unwrap().is_some(), "it is bound");
            let (mut streams, mut let_in) = (Vec::new(), Vec::new());
            for &(lane, serves) in lanes {
                let (mut send, mut receive) = connection.open_bi().await.unwrap();
                let hello = v1::LaneHello { lane, serves, ..v1::LaneHello::default() };
                send.write_all(&say(&hello)).await.unwrap();
                let_in.push(matches!(receive.read(&mut [0; 64]).await, Ok(Some(_))));
                streams.push((send, receive));
            }
            let_in
        });
        let_in.unwrap()
    }

    pub(super) fn new(identity: &crate::identity::Identity) -> Self {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let endpoint =
            QuicEndpoint::open(socket, &keys::keys(identity), Duration::from_secs(60), &Default::default())
                .unwrap();
        Self { endpoint, until: Instant::now() + PATIENCE * 3 }
    }

    /// Says a first frame on a first stream; whether the connection is closed upon it.
    pub(super) fn is_refused(&self, at: &One, hello: &v1::LaneHello) -> bool {
        let connecting = self.endpoint.connect(at.peers.bound_address()).unwrap();
        let frame = frame::encode(PeerKind::LaneHello.into(), 0, 0, hello);
        let closed = self.endpoint.within(self.until, async {
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
        self.endpoint.end();
    }
}

/// Proof that a QUIC connection is of a control connection.
pub(super) fn hello(key: &LaneKey, role: Role) -> v1::LaneHello {
    let name = LaneName { number: 0, serves: false };
    v1::LaneHello {
        nonce: vec![7; 32].into(),
        proof: key.prove(role, name, &[[7; 32]]).to_vec().into(),
        ..v1::LaneHello::default()
    }
}

/// A control connection of the evil peer, which takes QUIC, and the key of its lanes.
fn greeted(at: &One, evil: &crate::identity::Identity) -> (Raw, LaneKey) {
    let (control, told) = greeted_in(at, evil, 2);
    (control, LaneKey::told(&told))
}

/// A control connection of the evil peer in a version of the protocol, and what it was told for the key of its lanes.
fn greeted_in(at: &One, evil: &crate::identity::Identity, version: u32) -> (Raw, [u8; 32]) {
    let mut control = Raw::connect(at, keys::client(evil));
    let said = v1::PeerHello { quic_lanes: 2, ..Raw::hello("default", "evil", version) };
    control.send(PeerKind::Hello, 0, 0, &said);
    let (_, body) = control.next_of(PeerKind::Hello).unwrap();
    let theirs = v1::PeerHello::decode(&body[..]).unwrap();
    assert_eq!(theirs.quic_lanes, 2);
    until("it is connected", || at.peers.is_connected(&name("evil")));
    (control, theirs.lane_key[..].try_into().unwrap())
}

#[test]
fn a_reader_that_trickles_on_a_stream_is_cut_and_another_one_is_served() {
    // Where the machine stood still for as long as a lane may, others were cut, too, and it is done again.
    assert!((0..3).any(|_| trickles_alone()));
}

/// A reader that trickles is cut, one that is only slow is not, and another one is served meanwhile. Returns whether the machine did not
/// stand still under those that are not to be cut.
fn trickles_alone() -> bool {
    let table = Arc::default();
    let a = Start { lanes: QUIC, ..Start::new("a") }.start(&table);
    let (evil, other) = (keys::identity(), Start { lanes: QUIC, ..Start::new("c") }.start(&table));
    table.list("evil", nowhere(), evil.fingerprint);
    let (mut control, key) = greeted(&a, &evil);
    a.twin.add(7, sealed(&a.arena, MIB, 1), 1);
    control.send(PeerKind::Pull, 0, 5, &v1::Pull { id: 7, bytes: MIB, way: 2, ..v1::Pull::default() });
    assert!(control.next_of(PeerKind::Pull).is_some());
    // Of each the owner must be rid in six seconds; at this rate it takes nearly eleven.
    let ask = frame::encode(PeerKind::Ask.into(), 0, 5, &v1::Ask { offset: 0, length: 128 << 10 });
    let stranger = Stranger::new(&evil);
    let closed = &a.peers.counters().lanes_closed;
    // Which deadline is first depends on when its thread runs.
    let cut = || closed.count("slow") + closed.count("progress");
    std::thread::scope(|scope| {
        let taking =
            scope.spawn(|| stranger.take(&a, &hello(&key, Role::Quic), &ask.repeat(8), (12 << 10, MIB)));
        while !taking.is_finished() {
            assert!(other.get("a", 7, MIB).unwrap() == a.own_bytes(7));
        }
        assert!((1..MIB).contains(&taking.join().unwrap()), "it took some");
    });
    until("it is counted", || cut() > 0);
    assert!(other.get("a", 7, MIB).unwrap() == a.own_bytes(7));
    assert!(a.peers.is_connected(&name("evil")), "its connection stays");
    let counters = other.peers.counters();
    let lost = counters.lanes_closed.count("lost") + counters.lanes_closed.count("progress");
    if lost + counters.pulls.count("stream") > 0 {
        return false;
    }
    assert_eq!(cut(), 1, "nobody else was");
    // Three times the least, which takes longer for all of it than for one part may be taken.
    let slow = Stranger::new(&evil);
    let taken = slow.take(&a, &hello(&key, Role::Quic), &ask.repeat(8), (96 << 10, MIB));
    taken == MIB && cut() == 1
}

#[test]
fn a_quic_connection_binds_with_a_key_of_the_table_and_a_proof_of_its_control_connection_alone() {
    let table = Arc::default();
    let a = Start { lanes: QUIC, ..Start::new("a") }.start(&table);
    let (evil, nobody) = (keys::identity(), keys::identity());
    table.list("evil", nowhere(), evil.fingerprint);
    let refused = |reason: &str| a.peers.counters().auth_refused.count(reason);
    let guessed = hello(&LaneKey::random(), Role::Quic);

    assert!(Stranger::new(&nobody).is_refused(&a, &guessed));
    until("its key was looked up", || refused("unknown_key") == 1);
    let evil_door = Stranger::new(&evil);
    assert!(evil_door.is_refused(&a, &guessed), "it has no control connection");
    until("it was counted", || refused("lane") == 1);

    let (_control, key) = greeted(&a, &evil);
    assert!(evil_door.is_refused(&a, &guessed), "it guessed the key");
    assert!(evil_door.is_refused(&a, &hello(&key, Role::Tls)), "a proof of another lane");
    until("they were counted", || refused("lane") == 3);
    assert!(!evil_door.is_refused(&a, &hello(&key, Role::Quic)));
    until("it is counted", || a.peers.counters().quic_opened.count("them") == 1);
    until("nobody is a stranger", || a.peers.strangers() == 0);
}

#[test]
fn a_peer_has_so_many_streams_and_no_more_and_others_are_served_meanwhile() {
    let table = Arc::default();
    let a = Start { lanes: QUIC, handshake: PATIENCE * 2, ..Start::new("a") }.start(&table);
    let (evil, other) = (keys::identity(), Start { lanes: QUIC, ..Start::new("c") }.start(&table));
    table.list("evil", nowhere(), evil.fingerprint);
    a.twin.add(7, sealed(&a.arena, MIB, 1), 1);
    let (_control, key) = greeted(&a, &evil);
    let stranger = Stranger::new(&evil);
    // One that binds, and each lane of both directions twice.
    assert_eq!(stranger.streams(&a, &hello(&key, Role::Quic)), 1 + 4 * LANES_MAX);
    assert!(other.get("a", 7, MIB).unwrap() == a.own_bytes(7));
    assert!(a.peers.is_connected(&name("evil")), "it did what it may");
}

/// An older peer asks on the control connection for as long as no such stream is let in, and nothing of this is an error to it.
#[test]
fn small_tensors_come_on_the_control_connection_where_an_older_peer_opens_streams_for_them() {
    for (version, refused) in [(SMALL_ON_QUIC, 0), (PEER_VERSION, 2)] {
        let table = Arc::default();
        let a = Start { lanes: QUIC, ..Start::new("a") }.start(&table);
        let evil = keys::identity();
        table.list("evil", nowhere(), evil.fingerprint);
        a.twin.add(1, sealed(&a.arena, 10, 1), 1);
        let (mut control, told) = greeted_in(&a, &evil, version);
        let exported = control.tls.conn.export_keying_material([0; 32], exporter::LABEL, None).unwrap();
        let key = LaneKey::mixed(&exported, &told, Use::Lanes);
        let small = LANES_MAX as u32;
        let lanes = [(small, false), (small, true), (0, false)];
        let let_in = Stranger::new(&evil).lets_in(&a, &hello(&key, Role::Quic), &lanes);
        assert_eq!(let_in, [false, false, true], "version {version}: lanes go on");

        control.send(PeerKind::PullMany, 0, 5, &many(&[1]));
        let (_, body) = control.next_of(PeerKind::PullMany).unwrap();
        assert_eq!(PulledMany::decode(&body[..]).unwrap().tensors[0].data, a.own_bytes(1));
        a.peers.pull_small(&name("evil"), None, many(&[7]), Instant::now() + PATIENCE, drop);
        let (_, body) = control.next_of(PeerKind::PullMany).unwrap();
        assert_eq!(v1::PullMany::decode(&body[..]).unwrap().ids, [7]);
        until("refusals are counted", || a.peers.counters().auth_refused.count("lane") == refused);
        assert!(a.peers.is_connected(&name("evil")));
    }
}

#[test]
fn quic_is_tried_after_some_pulls_once_its_connection_is_there() {
    const LANES: LanesConfig = LanesConfig { count: 2, quic: 2, patience: PATIENCE, ..UNHURRIED };
    const WAY: Way = Way { counted: "quic", name: "measured", lanes: LANES, maps: None };
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
        // The first window of a trial does not count, and where the two are near each other more than one does: six at most.
        let is_told = || reader.peers.measured(&from_name, MIB, false).quic_goodput.is_some();
        let mut windows = 0;
        while windows < 2 || (windows < 6 && !is_told()) {
            until("a trial is due and does not wait", || {
                reader.peers.measured(&from_name, MIB, true).current == Some(Transport::Quic)
            });
            assert_eq!(get(Transport::Quic), Transport::Quic);
            windows += 1;
        }
        let measured = reader.peers.measured(&from_name, MIB, false);
        assert!(measured.tcp_goodput.is_some() && measured.quic_goodput.is_some(), "{measured:?}");
    }
    pair.assert_over();
}
