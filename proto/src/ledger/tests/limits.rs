//! Limits, sums and labels.

use super::*;

#[test]
fn over_a_limit_is_a_refusal() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    for _ in 0..3 {
        s.quietly(Event::Lease { by: A, id });
    }
    let full = Refusal::TooManyLeases { by: A, limit: 4 };
    assert_eq!(s.refused(Event::Lease { by: A, id }), full);
    assert_eq!(s.refused(Event::Reserve { by: Some(A), bytes: 0, retry: None }), full);
    s.quietly(Event::Lease { by: B, id });
    s.quietly(Event::Lease { by: PEER, id });
    let stranger = Holder::Peer(PeerSlot(2));
    assert_eq!(s.refused(Event::Lease { by: stranger, id }), Refusal::TooManyHolders { limit: 3 });
    s.quietly(Event::Name { id, name: spec("a", None) });
    s.quietly(Event::Name { id, name: spec("b", None) });
    assert_eq!(s.refused(Event::Name { id, name: spec("c", None) }), Refusal::TooManyNames { limit: 2 });
    for _ in 0..4 {
        s.reserve(None);
    }
    let reserve = Event::Reserve { by: None, bytes: 0, retry: None };
    assert_eq!(s.refused(reserve), Refusal::TooManyTensors { limit: 5 });
}

#[test]
fn a_reservation_that_was_granted_can_be_sealed_with_a_lease() {
    let mut s = Scene::new();
    let ids = [(); 4].map(|()| s.reserve(A));
    for id in ids {
        s.quietly(seal(A, id, leased()));
    }
    assert_eq!(s.ledger.totals().leases, 4);
}

#[test]
fn bytes_beyond_counting_are_refused() {
    let mut s = Scene::new();
    s.quietly(Event::Reserve { by: Some(A), bytes: u64::MAX, retry: None });
    let more = Event::Reserve { by: Some(B), bytes: 1, retry: None };
    assert_eq!(s.refused(more), Refusal::TooManyBytes { bytes: 1 });
    s.quietly(Event::Reserve { by: Some(B), bytes: 0, retry: None });
}

// Questions

#[test]
fn the_largest_holders_come_first_each_tensor_counted_once() {
    let mut s = Scene::new();
    let shared = s.put(A, leased());
    s.quietly(Event::Lease { by: A, id: shared });
    s.quietly(Event::Lease { by: PEER, id: shared });
    s.reserve(B);
    s.reserve(B);
    assert_eq!(s.ledger.largest_holders(2), [(B, 20, 0), (A, 10, 2)]);
    assert_eq!([A, B, PEER].map(|holder| s.ledger.reservations_of(holder)), [0, 2, 0]);
    let mut holders: Vec<_> = s.ledger.holders_of(shared).collect();
    holders.sort();
    assert_eq!(holders, [(A, 2), (PEER, 1)]);
}

#[test]
fn every_cause_has_a_label_of_its_own() {
    let labels: std::collections::BTreeSet<_> = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
    assert_eq!(labels.len(), Cause::ALL.len());
}

#[test]
fn the_cost_of_a_tensor_is_what_the_limit_says() {
    let slot = size_of::<slots::Tensor>() + 8;
    assert!(slot <= 150, "{slot} bytes");
}

#[test]
fn tables_over_their_bytes_are_a_refusal_and_go_on_when_entries_go() {
    let name = |text: &str| weigh::name_bytes(&TensorName::new(text).unwrap());
    let entries = 2 * 150 + 2 * LEASE_BYTES + name("a") + TICKET_BYTES;
    // An eighth is for leases: here for one.
    let limit = (entries..).find(|limit| limit - limit / 8 == entries).unwrap();
    assert!((LEASE_BYTES..2 * LEASE_BYTES).contains(&(limit - entries)));
    let mut s = Scene::new();
    s.ledger = Ledger::new(Limits { table_bytes: limit, ..LIMITS });
    let one = s.put(A, leased());
    let two = s.put(A, leased());
    assert_eq!(s.ledger.totals().table_bytes, 2 * (150 + LEASE_BYTES));
    s.quietly(Event::Name { id: one, name: spec("a", None) });
    s.quietly(Event::IssueTicket { id: one, spec: ticket(1, 1) });
    s.quietly(Event::Lease { by: B, id: one });
    let taken = entries + LEASE_BYTES;
    assert_eq!(s.ledger.totals().table_bytes, taken);
    // A second lease of the same holder and a name that moves add nothing.
    s.quietly(Event::Lease { by: B, id: one });
    s.quietly(Event::Name { id: two, name: spec("a", Some(one)) });
    let full = |more: u64| Refusal::TablesTooLarge { bytes: taken + more, limit: entries };
    let no_lease = Refusal::TablesTooLarge { bytes: taken + LEASE_BYTES, limit };
    assert_eq!(s.refused(Event::Lease { by: B, id: two }), no_lease);
    assert_eq!(s.refused(Event::Name { id: one, name: spec("b", None) }), full(name("b")));
    let together =
        Event::NameTogether { items: vec![(Some(one), spec("b", None)), (Some(two), spec("c", None))] };
    assert_eq!(s.refused(together), Refusal::TooManyNames { limit: 2 });
    assert_eq!(s.refused(Event::IssueTicket { id: one, spec: ticket(2, 1) }), full(TICKET_BYTES));
    let reserve = Event::Reserve { by: None, bytes: 0, retry: None };
    assert_eq!(s.refused(reserve.clone()), full(150));
    let copy = Event::CopyIn { origin: origin(1), bytes: 0, by: A, mapped: false };
    assert_eq!(s.refused(copy), full(150 + LEASE_BYTES));
    // What goes makes room: all of it once everyone is gone.
    assert_eq!(s.freeing(Event::Unname { name: text("a") }), []);
    s.quietly(Event::Lease { by: B, id: two });
    s.freeing(gone(A));
    s.freeing(gone(B));
    s.after(60_000);
    assert_eq!(s.ledger.totals(), Totals::default());
    s.quietly(reserve);
}

#[test]
fn idle_copies_go_the_oldest_first_when_the_tables_are_full() {
    let mut s = Scene::new();
    // Of this 517 bytes are for tensors: two with a lease each, and some.
    s.ledger = Ledger::new(Limits { table_bytes: 590, ..LIMITS });
    let (old, new) = (s.copy(1, A), s.copy(2, A));
    s.quietly(release(A, old, 1));
    s.now += 1;
    s.quietly(release(A, new, 1));
    assert_eq!(s.freeing(Event::Reserve { by: Some(A), bytes: 0, retry: None }), [(old, Cause::Evicted)]);
    let copy = Event::CopyIn { origin: origin(3), bytes: 10, by: A, mapped: false };
    assert_eq!(s.freeing(copy), [(new, Cause::Evicted)]);
    let copy = Event::CopyIn { origin: origin(4), bytes: 10, by: A, mapped: false };
    assert!(matches!(s.refused(copy), Refusal::TablesTooLarge { .. }));
}
