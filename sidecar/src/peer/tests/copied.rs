//! A peer that lists the key of another one, and its address: the directory cannot tell them apart, the handshake can.

use std::time::Instant;

use super::hostile::{Raw, greeted, victim};
use super::world::*;

#[test]
fn whoever_copies_a_key_and_an_address_gets_nothing_and_its_owner_loses_nothing() {
    let (table, a, b) = two();
    b.twin.add(1, sealed(&b.arena, 1 << 16, 5), 1);
    // Before its victim in every order, and after it.
    for copier in ["aa", "cc"] {
        table.list(copier, b.peers.bound_address(), b.fingerprint);
    }
    let before = b.ever_up();
    for copier in ["aa", "cc"] {
        let why = a.peers.ensure(&name(copier), Instant::now() + PATIENCE).unwrap_err().to_string();
        assert!(why.contains("belongs to b, not to"), "{why}");
        assert!(!a.peers.is_connected(&name(copier)), "{copier} does not have the key");
    }
    // Nobody greeted it under another name, which would have ended the connection of the two.
    assert_eq!(b.ever_up(), before);
    assert_eq!(a.get("b", 1, 1 << 16).unwrap(), b.own_bytes(1));

    // Nor to somebody who has just started, and has seen neither of them first.
    let late = Start { listed: Some(nowhere()), ..Start::new("late") }.start(&table);
    late.connect("b");
    assert_eq!(late.get("b", 1, 1 << 16).unwrap(), b.own_bytes(1));
    for copier in ["aa", "cc"] {
        late.peers.ensure(&name(copier), Instant::now() + PATIENCE).unwrap_err();
        assert!(!late.peers.is_connected(&name(copier)), "{copier} does not have the key");
    }
    assert_eq!(late.get("b", 1, 1 << 16).unwrap(), b.own_bytes(1));
}

#[test]
fn who_dials_with_a_key_that_others_claim_is_who_it_says_and_nobody_else_is() {
    let (table, a, evil) = victim();
    // Listed before it, so that whoever took the first would take this one.
    table.unlist("evil");
    table.list("copier", nowhere(), evil.fingerprint);
    table.list("evil", nowhere(), evil.fingerprint);
    let _raw = greeted(&a, &evil);
    assert!(!a.peers.is_connected(&name("copier")));
    // The copier has a key of its own, which nobody lists any more.
    let mut copier = Raw::dial(&a, &super::keys::identity(), "copier");
    assert!(copier.is_closed());
    until("it was counted", || a.peers.counters().auth_refused.count("unknown_key") == 1);
    assert!(a.peers.is_connected(&name("evil")));
}
