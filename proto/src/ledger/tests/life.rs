//! From the reservation to the seal.

use super::*;

#[test]
fn a_reservation_cannot_be_leased_named_or_ticketed() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    assert_eq!(s.ledger.state(id), Some(State::Reserved));
    assert_eq!(s.refused(Event::Lease { by: A, id }), Refusal::NotSealed { id });
    assert_eq!(s.refused(Event::Name { id, name: spec("n", None) }), Refusal::NotSealed { id });
    assert_eq!(s.refused(Event::IssueTicket { id, spec: ticket(1, 1) }), Refusal::NotSealed { id });
}

#[test]
fn a_reservation_ends_with_its_writer() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    assert_eq!(s.freeing(gone(A)), [(id, Cause::HolderGone)]);
    assert_eq!(s.ledger.state(id), None);
}

#[test]
fn an_aborted_reservation_is_gone_for_every_caller() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    assert_eq!(s.freeing(Event::Abort { by: Some(A), id }), [(id, Cause::Aborted)]);
    assert_eq!(s.refused(seal(A, id, leased())), Refusal::NotFound { id });
    assert_eq!(s.refused(Event::Abort { by: Some(A), id }), Refusal::NotFound { id });
}

#[test]
fn only_who_reserved_may_seal_or_abort() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    for by in [Some(B), None] {
        assert_eq!(s.refused(seal(by, id, named("n"))), Refusal::NotYours { id });
        assert_eq!(s.refused(Event::Abort { by, id }), Refusal::NotYours { id });
    }
    let nobodys = s.reserve(None);
    assert_eq!(s.refused(seal(A, nobodys, leased())), Refusal::NotYours { id: nobodys });
}

#[test]
fn a_tensor_is_sealed_once() {
    let mut s = Scene::new();
    let id = s.put(A, leased());
    assert_eq!(s.refused(seal(A, id, leased())), Refusal::AlreadySealed { id });
    assert_eq!(s.refused(Event::Abort { by: Some(A), id }), Refusal::AlreadySealed { id });
}

#[test]
fn what_nothing_would_keep_is_not_sealed() {
    let mut s = Scene::new();
    let id = s.reserve(A);
    assert_eq!(s.refused(seal(A, id, Keep::default())), Refusal::WouldVanish { id });
    let nobodys = s.reserve(None);
    assert_eq!(s.refused(seal(None, nobodys, leased())), Refusal::NoHolder { id: nobodys });
}

#[test]
fn a_refused_seal_leaves_the_reservation_as_it_was() {
    let mut s = Scene::new();
    let first = s.put(A, named("n"));
    let id = s.reserve(A);
    let keep = Keep { ticket: Some(ticket(1, 1)), ..named("n") };
    assert_eq!(s.refused(seal(A, id, keep)), Refusal::NameTaken { name: text("n"), by: first });
    assert_eq!(s.ledger.state(id), Some(State::Reserved));
    assert_eq!(s.ledger.ticket(TicketId(1)), None);
    s.quietly(seal(A, id, leased()));
}
