//! Requests that come again.

use super::*;

#[test]
fn a_repeated_put_gets_the_first_answers() {
    let mut s = Scene::new();
    let reserve = Event::Reserve { by: Some(A), bytes: 10, retry: retry(1) };
    let Answer::Reserved { id, again: false } = s.quietly(reserve.clone()) else { panic!("not new") };
    assert_eq!(s.quietly(reserve.clone()), Answer::Reserved { id, again: true });
    let seal = |n| Event::Seal { by: Some(A), id, keep: ticketed(n, 1), retry: retry(2) };
    let ticket = Some(TicketId(7));
    assert_eq!(s.quietly(seal(7)), Answer::Sealed { id, ticket, again: false });
    assert_eq!(
        s.quietly(seal(8)),
        Answer::Sealed { id, ticket, again: true },
        "the first ticket, not another"
    );
    assert_eq!(s.ledger.ticket(TicketId(8)), None);
    assert_eq!(s.quietly(reserve), Answer::Reserved { id, again: true });
    assert_eq!(s.ledger.totals().tensors, 1);
}

#[test]
fn a_retry_id_stands_for_one_request_of_one_holder() {
    let mut s = Scene::new();
    let reserve = |by, bytes| Event::Reserve { by: Some(by), bytes, retry: retry(1) };
    let Answer::Reserved { id, .. } = s.quietly(reserve(A, 10)) else { panic!("not reserved") };
    let mismatch = Refusal::RetryMismatch { first: "reserve" };
    assert_eq!(s.refused(reserve(A, 11)), mismatch);
    assert_eq!(s.refused(reserve(B, 10)), mismatch);
    let seal = Event::Seal { by: Some(A), id, keep: leased(), retry: retry(1) };
    assert_eq!(s.refused(seal), mismatch);
    assert_eq!(s.refused(Event::Redeem { ticket: TicketId(1), by: A, retry: retry(1) }), mismatch);
}

#[test]
fn a_repeated_redeem_does_not_use_the_ticket_twice() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 2));
    let redeem = Event::Redeem { ticket: TicketId(1), by: A, retry: retry(1) };
    assert_eq!(s.quietly(redeem.clone()), Answer::Redeemed { id, again: false });
    assert_eq!(s.quietly(redeem.clone()), Answer::Redeemed { id, again: true });
    assert_eq!(s.ledger.ticket(TicketId(1)).map(|ticket| ticket.uses), Some(1));
    s.quietly(release(A, id, 1));
    assert_eq!(s.refused(redeem), Refusal::RetryLapsed { id }, "nobody is told of a lease it does not have");
}

#[test]
fn a_retry_id_is_forgotten_with_its_tensor() {
    let mut s = Scene::new();
    let reserve = Event::Reserve { by: Some(A), bytes: 10, retry: retry(1) };
    let Answer::Reserved { id, .. } = s.quietly(reserve.clone()) else { panic!("not reserved") };
    assert!(s.ledger.recall(&RetryId([1; 16])).is_some());
    s.freeing(Event::Abort { by: Some(A), id });
    assert_eq!(s.ledger.recall(&RetryId([1; 16])), None);
    let Answer::Reserved { id: next, again: false } = s.quietly(reserve) else { panic!("not new") };
    assert_ne!(next, id);
}

#[test]
fn the_oldest_retry_id_is_forgotten_when_there_are_too_many() {
    let mut s = Scene::new();
    for n in 1..=4 {
        s.quietly(Event::Reserve { by: None, bytes: 10, retry: retry(n) });
    }
    let known = [1, 2, 3, 4].map(|n| s.ledger.recall(&RetryId([n; 16])).is_some());
    assert_eq!(known, [false, true, true, true]);
}

#[test]
fn a_retry_id_stands_for_what_was_asked_the_first_time() {
    let mut s = Scene::new();
    let reserve = |asked| Event::Reserve { by: Some(A), bytes: 10, retry: asking(1, asked) };
    let Answer::Reserved { id, .. } = s.quietly(reserve(5)) else { panic!("not reserved") };
    assert_eq!(s.refused(reserve(6)), Refusal::RetryMismatch { first: "reserve" });
    assert_eq!(s.quietly(reserve(5)), Answer::Reserved { id, again: true });
    let seal = |asked| Event::Seal { by: Some(A), id, keep: ticketed(1, 2), retry: asking(2, asked) };
    s.quietly(seal(5));
    assert_eq!(s.refused(seal(6)), Refusal::RetryMismatch { first: "seal" });
    let redeem = |asked| Event::Redeem { ticket: TicketId(1), by: B, retry: asking(3, asked) };
    s.quietly(redeem(5));
    assert_eq!(s.refused(redeem(6)), Refusal::RetryMismatch { first: "redeem" });
    assert_eq!(s.quietly(redeem(5)), Answer::Redeemed { id, again: true });
}
