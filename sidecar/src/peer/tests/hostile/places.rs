//! Connections for which there is no place: they are told so, and hear no Hello that they would take for a welcome.

use super::*;

/// Checks that a connection is refused with a reason, and closed.
fn is_refused(raw: &mut Raw, reason: &str) {
    let (header, body) = raw.next().expect("it is told");
    assert_eq!((header.kind, header.flags), (PeerKind::Hello.into(), REPLY | FAILED));
    assert_eq!(v1::Failure::decode(&body[..]).unwrap().reason, reason);
    assert!(raw.is_closed());
}

#[test]
fn a_peer_above_the_limit_is_told_so_and_let_in_once_another_one_has_left() {
    let table = Arc::new(Table::default());
    let a = Start { peers_max: 2, ..Start::new("a") }.start(&table);
    let identities: Vec<_> = ["b", "c", "d"]
        .map(|peer| {
            let identity = keys::identity();
            table.list(peer, nowhere(), identity.fingerprint);
            (peer, identity)
        })
        .into_iter()
        .collect();
    let dial = |number: usize| Raw::dial(&a, &identities[number].1, identities[number].0);
    let (mut first, mut second) = (dial(0), dial(1));
    assert!(first.next_of(PeerKind::Hello).is_some() && second.next_of(PeerKind::Hello).is_some());
    for round in 1..=3 {
        is_refused(&mut dial(2), "LIMIT_EXCEEDED");
        until("it is counted", || a.peers.counters().auth_refused.count("too_many") == round);
    }
    until("both are counted", || (a.links(), a.peers.counters().opened.count("them")) == (2, 2));
    // Who is one of the two may come anew.
    let mut again = dial(0);
    assert_eq!(again.next_of(PeerKind::Hello).unwrap().0.flags, 0);
    drop(second);
    until("one has left", || !a.peers.is_connected(&name("c")));
    let mut third = dial(2);
    assert_eq!(third.next_of(PeerKind::Hello).unwrap().0.flags, 0);
    until("it is connected", || a.peers.is_connected(&name("d")));
}

/// Both ends have dialed, and the connection that `a` dialed stays. The other one is refused before it hears a word of it.
#[test]
fn the_second_of_two_connections_that_were_made_at_once_is_told_that_the_first_one_stays() {
    let table = Arc::new(Table::default());
    let (one, other) = (keys::identity(), keys::identity());
    let (small, large) = if one.fingerprint < other.fingerprint { (one, other) } else { (other, one) };
    let handshake = PATIENCE * 3;
    let a = Start { identity: small, handshake, ..Start::new("a") }.start(&table);
    let b = Start { identity: keys::same(&large), handshake, ..Start::new("b") }.start(&table);
    connect(&a, &b);
    a.twin.add(7, sealed(&a.arena, 1000, 1), 1);
    let hello = v1::PeerHello { incarnation: format!("{:032x}", 1), ..Raw::hello("default", "b", 1) };
    for _ in 0..3 {
        let mut double = Raw::connect(&a, keys::client(&large));
        double.send(PeerKind::Hello, 0, 0, &hello);
        is_refused(&mut double, "NAME_TAKEN");
    }
    assert!(b.get("a", 7, 1000).unwrap() == a.own_bytes(7));
    let counters = a.peers.counters();
    assert_eq!((counters.opened.count("them"), a.links()), (0, 1), "nothing came of them");
    assert_eq!((a.twin.events.lock().len(), b.twin.events.lock().len()), (0, 0), "nobody was lost");
    assert_eq!(counters.auth_refused.all(), [], "it has done nothing wrong");
}
