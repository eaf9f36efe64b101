//! Readers that take some bytes always, and never many. Which deadline finds them first is the kernel's: with a large send buffer,
//! or where what is to be sent next does not fit the window, it says that nothing moves though a little does. `slowest` finds the
//! rest, and those on QUIC.

use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Socket, Type};

use super::lanes::{Bound, LANES};
use super::plain_lanes::PLAIN;
use super::*;
use crate::peer::counters::Labelled;
use crate::peer::transport::lanes::key::LaneName;

const MIB: u64 = 1 << 20;
/// Of what is asked for at a time the owner must be rid in six seconds.
const ASKED: u32 = 128 << 10;
/// Bytes a second of who takes too few: the floor is 32 KiB.
const TRICKLE: u64 = 12 << 10;
const FIRST: LaneName = LaneName { number: 0, serves: false };

/// A connection in which little is under way at a time, so that the other end sees every byte that is taken.
pub(super) fn narrow(to: &One) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.set_tcp_mss(536).unwrap();
    socket.connect(&to.peers.bound_address().into()).unwrap();
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Takes bytes slowly until it is told to stop, or the other end has had enough; `also` is done now and then. How many those were.
fn take(socket: &TcpStream, stop: &AtomicBool, mut also: impl FnMut()) -> u64 {
    let (mut socket, mut room) = (socket, [0; 4096]);
    let (begun, mut taken) = (Instant::now(), 0);
    while !stop.load(Ordering::SeqCst) {
        let due = (begun.elapsed().as_secs_f64() * TRICKLE as f64) as u64;
        let now = due.saturating_sub(taken).min(room.len() as u64) as usize;
        if now == 0 {
            also();
            std::thread::park_timeout(Duration::from_millis(20));
            continue;
        }
        match socket.read(&mut room[..now]) {
            Ok(0) => break,
            Ok(bytes) => taken += bytes as u64,
            Err(error) if is_end(&error) => break,
            Err(error) => panic!("nothing came: {error}"),
        }
    }
    taken
}

/// Number of lanes or connections that were found too slow, one way or the other.
fn found(of: &Labelled) -> u64 {
    of.count("slow") + of.count("progress")
}

/// While somebody trickles others get what they ask for from the same owner. Until it is found, and nobody else with it. Returns
/// whether the others lost nothing: where the machine stood still for as long as a lane may, all of it is to be done again.
fn is_cut_alone(
    (a, table): (&One, &Arc<Table>),
    socket: &TcpStream,
    found: impl Fn() -> u64,
    also: impl FnMut() + Send,
) -> bool {
    let other = Start { lanes: LANES, ..Start::new("c") }.start(table);
    a.twin.add(8, sealed(&a.arena, 4 * MIB, 2), 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| take(socket, &stop, also));
        let begun = Instant::now();
        while found() == 0 && begun.elapsed() < 3 * PATIENCE {
            assert!(other.get("a", 8, 4 * MIB).unwrap() == a.own_bytes(8));
        }
        stop.store(true, Ordering::SeqCst);
        assert!(taking.join().unwrap() > 0);
    });
    let found = found();
    assert!(other.get("a", 8, 4 * MIB).unwrap() == a.own_bytes(8));
    let counters = other.peers.counters();
    let lost = |of: &Labelled| of.count("lost") + of.count("progress");
    let stays = lost(&counters.lanes_closed) + lost(&counters.closed) == 0;
    assert!(found == 1 || !stays, "it and nobody else: {:?}", a.peers.counters());
    stays
}

/// Asks for a megabyte in eight parts.
fn asks() -> Vec<u8> {
    let ask = v1::Ask { offset: 0, length: ASKED };
    frame::encode(PeerKind::Ask.into(), 0, 5, &ask).repeat(8)
}

#[test]
fn a_reader_that_trickles_on_a_lane_in_tls_is_cut_and_another_one_is_served() {
    let trickles = || {
        let mut world = Bound::new();
        world.pulled(MIB);
        let mut lane = world.lane_over(narrow(&world.a), FIRST);
        lane.raw(&asks());
        let cut = || found(&world.a.peers.counters().lanes_closed);
        let alone = is_cut_alone((&world.a, &world.table), &lane.tls.sock, cut, || {});
        assert!(world.a.peers.is_connected(&name("evil")), "its connection stays");
        alone
    };
    assert!((0..3).any(|_| trickles()));
}

#[test]
fn a_reader_that_trickles_on_a_plain_lane_is_cut_and_another_one_is_served() {
    let trickles = || {
        let mut world = Bound::with(PLAIN, true);
        world.pulled(MIB);
        let mut lane = world.plain_over(narrow(&world.a));
        lane.write_all(&asks()).unwrap();
        let cut = || found(&world.a.peers.counters().lanes_closed);
        let alone = is_cut_alone((&world.a, &world.table), &lane, cut, || {});
        assert!(world.a.peers.is_connected(&name("evil")), "its connection stays");
        alone
    };
    assert!((0..3).any(|_| trickles()));
}

/// Reader whose connection goes, too: the chunks are on it. It is not cut for its silence, as it says something all the time.
#[test]
fn a_reader_that_trickles_on_the_control_connection_is_cut_and_another_one_is_served() {
    let trickles = || {
        let (table, a, evil) = victim_that_bears(Duration::from_secs(5));
        a.twin.add(7, sealed(&a.arena, 2 * MIB, 1), 1);
        let mut control = Raw::over(narrow(&a), keys::client(&evil));
        control.send(PeerKind::Hello, 0, 0, &Raw::hello("default", "evil", 1));
        assert!(control.next_of(PeerKind::Hello).is_some());
        control.send(PeerKind::Pull, 0, 5, &v1::Pull { id: 7, bytes: 2 * MIB, ..v1::Pull::default() });
        let socket = control.tls.sock.try_clone().unwrap();
        let cut = || found(&a.peers.counters().closed);
        let ping = || control.send(PeerKind::Ping, REPLY, 1, &v1::Ping {});
        let alone = is_cut_alone((&a, &table), &socket, cut, ping);
        until("it is gone", || !alone || !a.peers.is_connected(&name("evil")));
        alone
    };
    assert!((0..3).any(|_| trickles()));
}

/// The place of a peer is locked while its connection comes up. Nobody waits for a socket under that lock.
#[test]
fn a_peer_that_does_not_read_our_hello_has_its_place_and_holds_up_no_other_connection_of_its_own() {
    let table = Arc::new(Table::default());
    // More than such a socket takes, and less than a Hello may have.
    let at_many =
        v1::TransportOffer { addresses: vec!["a".repeat(1000); 60], ..v1::TransportOffer::default() };
    let offer = v1::Offer { transports: vec![at_many], ..v1::Offer::default() };
    let a = Start { offer: offer.clone(), ..Start::new("a") }.start(&table);
    let evil = keys::identity();
    table.list("evil", nowhere(), evil.fingerprint);
    let mut first = Raw::over(narrow(&a), keys::client(&evil));
    first.send(PeerKind::Hello, 0, 0, &Raw::hello("default", "evil", 1));
    until("it has its place", || a.peers.is_connected(&name("evil")));
    let mut second = Raw::connect(&a, keys::client(&evil));
    second.send(PeerKind::Hello, 0, 0, &Raw::hello("default", "evil", 1));
    let said = |raw: &mut Raw| {
        let (_, body) = raw.next_of(PeerKind::Hello).expect("a Hello");
        v1::PeerHello::decode(&body[..]).unwrap().offer
    };
    assert_eq!(said(&mut second), Some(offer.clone()));
    assert_eq!(said(&mut first), Some(offer), "what the socket did not take at once comes later");
    assert!(first.next_of(PeerKind::Goodbye).is_some(), "the second one took its place");
    until("it was counted", || a.peers.counters().closed.count("replaced") == 1);
}
