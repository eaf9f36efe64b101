//! Tests of who holds what, and of what goes with a holder.

use super::*;

#[test]
fn a_leased_tensor_survives_its_writers_death() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    s.quietly(Event::Lease { by: B, id });
    s.quietly(gone(A));
    assert_eq!(s.freeing(release(B, id, 1)), [(id, Cause::Released)]);
}

#[test]
fn leases_are_counted_for_each_holder() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    assert_eq!(s.quietly(Event::Lease { by: A, id }), Answer::Leased { held: 2 });
    assert_eq!(s.quietly(Event::Lease { by: PEER, id }), Answer::Leased { held: 1 });
    assert_eq!(s.refused(release(PEER, id, 2)), Refusal::NotHeld { id, by: PEER, held: 1, asked: 2 });
    assert_eq!(s.refused(release(B, id, u64::MAX)), Refusal::NotHeld { id, by: B, held: 0, asked: u64::MAX });
    assert_eq!(s.quietly(release(A, id, 2)), Answer::Released { held: 0 });
    assert_eq!(s.freeing(release(PEER, id, 1)), [(id, Cause::Released)]);
    assert_eq!(s.refused(release(PEER, id, 1)), Refusal::NotFound { id });
}

#[test]
fn releasing_nothing_changes_nothing() {
    let mut s = Scene::new();
    let id = s.put(A, named("n"));
    assert_eq!(s.quietly(release(B, id, 0)), Answer::Released { held: 0 });
    assert_eq!(s.ledger.state(id), Some(State::Sealed));
}

#[test]
fn when_a_holder_is_gone_all_it_held_goes_at_once_and_nothing_else() {
    let mut s = Scene::new();
    let (a, b, both) = (s.put(A, leased()), s.put(B, leased()), s.put(A, leased()));
    s.quietly(Event::Lease { by: B, id: both });
    let writing = s.reserve(A);
    assert_eq!(s.freeing(gone(A)), [(a, Cause::HolderGone), (writing, Cause::HolderGone)]);
    assert_eq!(s.ledger.leases_of(A).count(), 0);
    let mut left: Vec<_> = s.ledger.leases_of(B).collect();
    left.sort();
    assert_eq!(left, [(b, 1), (both, 1)]);
    s.quietly(gone(A));
}

// Peers that are away

#[test]
fn a_peer_that_comes_back_in_time_keeps_its_leases() {
    let mut s = Scene::new();
    let id = s.put(PEER, leased());
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(6000) });
    assert_eq!(s.ledger.next_deadline(), Some(Millis(6000)));
    assert_eq!(s.after(4999), []);
    s.quietly(Event::HolderBack { holder: PEER });
    assert_eq!(s.ledger.next_deadline(), None);
    assert_eq!(s.after(1_000_000), []);
    assert_eq!(s.freeing(release(PEER, id, 1)), [(id, Cause::Released)]);
}

#[test]
fn a_peer_that_comes_back_too_late_has_lost_them_whoever_is_told_first() {
    let mut s = Scene::new();
    let id = s.put(PEER, leased());
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(6000) });
    s.now = 6000;
    assert_eq!(s.freeing(Event::HolderBack { holder: PEER }), [(id, Cause::PeerLost)]);
}

#[test]
fn a_lease_that_a_peer_gets_while_it_is_away_ends_with_the_others() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(6000) });
    s.quietly(Event::Lease { by: PEER, id });
    s.quietly(gone(A));
    assert_eq!(s.after(5000), [(id, Cause::PeerLost)]);
}

#[test]
fn going_away_again_moves_the_end() {
    let mut s = Scene::new();
    let id = s.put(PEER, leased());
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(6000) });
    s.quietly(Event::HolderAway { holder: PEER, until: Millis(8000) });
    assert_eq!(s.after(6999), []);
    assert_eq!(s.after(1), [(id, Cause::PeerLost)]);
}
