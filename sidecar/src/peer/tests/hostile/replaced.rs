//! Connections that break or are replaced in the middle of something, and readers that are slow.

use std::net::TcpListener;

use rustls::ServerConnection;

use crate::identity::tls;
use crate::peer::PeerState;

use super::*;

#[test]
fn a_bit_flipped_on_the_way_ends_the_connection_and_the_bytes_come_whole_on_the_next() {
    let table = Arc::new(Table::default());
    let b = Start::new("b").start(&table);
    let proxy = Proxy::new(b.peers.bound_address());
    table.list("b", proxy.address, b.fingerprint);
    let a = Start { listed: Some(nowhere()), ..Start::new("a") }.start(&table);
    until("a reached b through the proxy", || {
        let _ = a.peers.ensure(&name("b"), Instant::now() + PATIENCE);
        proxy.connections.load(std::sync::atomic::Ordering::SeqCst) > 0 && a.peers.is_connected(&name("b"))
    });
    b.twin.add(7, sealed(&b.arena, 1 << 20, 1), 1);
    for (round, at) in [0u64, 3, 7, 5000, 16_399, 300_007].into_iter().enumerate() {
        let so_far = proxy.back.all.carried();
        proxy.flip_at.store(so_far + at, std::sync::atomic::Ordering::SeqCst);
        assert!(a.get("b", 7, 1 << 20).unwrap() == b.own_bytes(7), "flipped at {at}");
        until("it was counted", || a.peers.counters().closed.count("record") == round as u64 + 1);
    }
}

#[test]
fn a_second_connection_of_the_same_side_takes_over_and_what_ends_on_the_first_ends_its_lease_on_the_second() {
    let (_table, a, evil) = victim();
    let mut first = greeted(&a, &evil);
    let (told, ..) = a.pull("evil", None, 7, Selection::All, 1000);
    let (asked, _) = first.next_of(PeerKind::Pull).unwrap();
    first.send(PeerKind::Pull, REPLY, asked.call, &head(1000));
    let mut second = Raw::connect(&a, keys::client(&evil));
    second.send(PeerKind::Hello, 0, 0, &Raw::hello("default", "evil", 1));
    assert!(second.next_of(PeerKind::Hello).is_some());
    assert!(first.next_of(PeerKind::Goodbye).is_some(), "closed in order");
    first.chunk(asked.call, 0, &[1; 1000], true);
    assert!(told.recv_timeout(PATIENCE).unwrap().is_ok());
    let (done, body) = second.next_of(PeerKind::PullDone).unwrap();
    assert_eq!(done.call, asked.call);
    assert_eq!(v1::PullDone::decode(&body[..]).unwrap().id, 7);
    assert!(first.is_closed());
    until("it was counted", || a.peers.counters().closed.count("replaced") == 1);
    assert_eq!(*a.twin.events.lock(), [""; 0], "the peer was never lost");
}

#[test]
fn a_dialed_connection_beside_one_that_stays_is_closed_in_order_and_its_other_end_has_lost_nobody() {
    // Of two connections that were begun together, the one stays that the smaller key dialed.
    let [evil, own] = by_key();
    let table = Arc::new(Table::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    table.list("evil", listener.local_addr().unwrap(), evil.fingerprint);
    let a = Start { identity: own, handshake: PATIENCE * 3, ..Start::new("a") }.start(&table);
    let (_told, ..) = a.pull("evil", None, 7, Selection::All, 1000);
    let (socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let server = ServerConnection::new(Arc::new(tls::server_config(&evil).unwrap())).unwrap();
    let mut dialed = StreamOwned::new(server, socket);
    assert_eq!(frame_on(&mut dialed).0.kind, u16::from(PeerKind::Hello));
    // Its Hello is unanswered when the other connection comes up, and answered after that.
    let mut stays = greeted(&a, &evil);
    let hello = frame::encode(PeerKind::Hello.into(), 0, 0, &Raw::hello("default", "evil", 1));
    dialed.write_all(&hello).and_then(|()| dialed.flush()).unwrap();
    let (header, body) = frame_on(&mut dialed);
    assert_eq!(header.kind, u16::from(PeerKind::Goodbye));
    assert!(v1::Goodbye::decode(&body[..]).unwrap().idle, "whoever hears it has lost nobody");
    assert!(stays.next_of(PeerKind::Pull).is_some(), "what it was dialed for goes on where the peer is");
    assert!(a.peers.is_connected(&name("evil")));
}

/// Two keys, the smaller one first: its peer is the one that dials ahead.
fn by_key() -> [Identity; 2] {
    let mut identities = [keys::identity(), keys::identity()];
    identities.sort_by_key(|identity| identity.fingerprint);
    identities
}

/// The next frame of a connection that was dialed to the test.
fn frame_on(stream: &mut StreamOwned<ServerConnection, TcpStream>) -> (Header, Vec<u8>) {
    let mut head = [0; frame::HEADER_BYTES];
    stream.read_exact(&mut head).unwrap();
    let header = Header::decode(&head, frame::PEER_BODY_MAX).unwrap();
    let mut body = vec![0; header.length as usize];
    stream.read_exact(&mut body).unwrap();
    (header, body)
}

#[test]
fn a_peer_that_closes_a_connection_in_order_which_nobody_uses_is_not_lost() {
    let [evil, own] = by_key();
    let table = Arc::new(Table::default());
    table.list("evil", nowhere(), evil.fingerprint);
    let a = Start { identity: own, ..Start::new("a") }.start(&table);
    let mut raw = greeted(&a, &evil);
    raw.send(PeerKind::Goodbye, 0, 0, &v1::Goodbye { idle: true });
    assert!(raw.is_closed());
    // Counted when all that its end brings is done.
    until("it is over", || a.peers.counters().closed.count("yielded") == 1);
    assert!(!a.peers.is_connected(&name("evil")));
    let view = a.peers.status().into_iter().find(|view| view.name == name("evil")).unwrap();
    assert_eq!((view.state, view.last_error.as_str()), (PeerState::Idle, ""));
    assert_eq!(*a.twin.events.lock(), [""; 0]);
}

#[test]
fn a_connection_that_a_life_begun_before_it_ended_takes_no_place_from_the_life_that_followed() {
    let (_table, a, evil) = hall();
    a.twin.add(7, sealed(&a.arena, 1000, 7), 1);
    let hello = |life: u32| {
        let incarnation = format!("{life:032x}");
        v1::PeerHello { incarnation, ..Raw::hello("default", "evil", 1) }
    };
    let mut of_the_dead = Raw::connect(&a, keys::client(&evil));
    let mut living = Raw::connect(&a, keys::client(&evil));
    living.send(PeerKind::Hello, 0, 0, &hello(2));
    assert!(living.next_of(PeerKind::Hello).is_some());
    living.send(PeerKind::Pull, 0, 5, &v1::Pull { id: 7, bytes: 1000, ..Default::default() });
    assert!(living.next_of(PeerKind::Chunk).is_some());
    // Only now it comes to say who it is.
    of_the_dead.send(PeerKind::Hello, 0, 0, &hello(1));
    let (refused, body) = of_the_dead.next_of(PeerKind::Hello).unwrap();
    assert!(refused.is_failed());
    assert!(v1::Failure::decode(&body[..]).unwrap().message.contains("later life"));
    assert!(of_the_dead.is_closed());
    assert_eq!((a.twin.leased(), a.twin.events.lock().len()), (1, 0), "the living one lost nothing");
    assert!(!a.peers.is_over(&name("evil"), Incarnation(2)));
    // It is replaced by a life that begins after it.
    let mut next = Raw::connect(&a, keys::client(&evil));
    next.send(PeerKind::Hello, 0, 0, &hello(3));
    assert!(next.next_of(PeerKind::Hello).is_some());
    until("that life is over", || *a.twin.events.lock() == ["over evil 2"]);
    assert!(a.peers.is_over(&name("evil"), Incarnation(2)));
}

#[test]
fn a_pull_whose_end_was_lost_with_its_connection_is_ended_a_grace_after_the_next_one_came() {
    let table = Arc::new(Table::default());
    let a = Start { grace: Duration::from_millis(300), ..Start::new("a") }.start(&table);
    let evil = keys::identity();
    table.list("evil", nowhere(), evil.fingerprint);
    for id in [7, 8] {
        a.twin.add(id, sealed(&a.arena, 1000, id), 1);
    }
    let pull = |id| v1::Pull { id, bytes: 1000, ..Default::default() };
    let mut raw = greeted(&a, &evil);
    for (call, id) in [(5, 7), (6, 8)] {
        raw.send(PeerKind::Pull, 0, call, &pull(id));
        assert!(raw.next_of(PeerKind::Chunk).is_some());
    }
    drop(raw);
    let mut raw = greeted(&a, &evil);
    raw.send(PeerKind::Pull, 0, 6, &pull(8));
    assert!(raw.next_of(PeerKind::Chunk).is_some());
    until("only the one that was asked for again is leased", || a.twin.leased() == 1);
    assert_eq!(a.twin.leases.lock()[&8], 1);
    raw.send(PeerKind::PullDone, 0, 6, &v1::PullDone { id: 8, holds: false });
    until("and not for ever", || a.twin.leased() == 0);
}

#[test]
fn what_was_asked_on_a_connection_that_was_replaced_is_asked_again_on_the_next() {
    let (_table, a, evil) = victim();
    let mut first = greeted(&a, &evil);
    let (told, ..) = a.pull("evil", None, 7, Selection::All, 1000);
    let (asked, _) = first.next_of(PeerKind::Pull).unwrap();
    first.send(PeerKind::Pull, REPLY, asked.call, &head(1000));
    first.chunk(asked.call, 0, &[1; 600], false);
    let mut second = Raw::connect(&a, keys::client(&evil));
    second.send(PeerKind::Hello, 0, 0, &Raw::hello("default", "evil", 1));
    assert!(first.next_of(PeerKind::Goodbye).is_some());
    drop(first);
    let (again, body) = second.next_of(PeerKind::Pull).unwrap();
    assert_eq!(again.call, asked.call);
    assert_eq!(v1::Pull::decode(&body[..]).unwrap().from, 600);
    second.send(PeerKind::Pull, REPLY, again.call, &head(1000));
    second.chunk(again.call, 600, &[2; 400], true);
    let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
    drop(pulled.landing);
    assert!(second.next_of(PeerKind::PullDone).is_some());
}

#[test]
fn a_peer_that_asks_for_much_and_reads_late_gets_all_its_answers() {
    let (_table, a, evil) = victim();
    a.twin.add(1, sealed(&a.arena, 64 << 10, 1), 1);
    let mut raw = greeted(&a, &evil);
    for call in 1..=30 {
        raw.send(PeerKind::PullMany, 0, call, &many(&[1; 60]));
    }
    let mut answered: Vec<u64> = Vec::new();
    while answered.len() < 30 {
        let (header, body) = raw.next_of(PeerKind::PullMany).expect("the connection stays");
        assert_eq!(v1::PulledMany::decode(&body[..]).unwrap().tensors.len(), 60);
        answered.push(header.call);
    }
    answered.sort_unstable();
    assert!(answered.into_iter().eq(1..=30));
}
