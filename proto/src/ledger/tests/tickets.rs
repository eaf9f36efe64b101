//! Tickets: their time and their uses.

use super::*;

#[test]
fn a_ticket_keeps_a_tensor_until_it_expires() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 1));
    assert_eq!(s.ledger.next_deadline(), Some(Millis(61_000)));
    assert_eq!(s.after(59_999), []);
    assert_eq!(s.after(1), [(id, Cause::TicketExpired)]);
    let redeem = Event::Redeem { ticket: TicketId(1), by: A, retry: None };
    assert_eq!(s.refused(redeem), Refusal::TicketUnknown);
}

#[test]
fn a_ticket_past_its_deadline_is_not_good_even_if_nobody_ticked() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 1));
    s.now = 61_000;
    let (answer, freed) = s.try_to(Event::Redeem { ticket: TicketId(1), by: A, retry: None });
    assert_eq!((answer, freed), (Err(Refusal::TicketUnknown), vec![(id, Cause::TicketExpired)]));
}

#[test]
fn the_last_use_ends_a_ticket_and_leaves_a_lease() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 2));
    for (by, left) in [(A, Some(1)), (B, None)] {
        let redeemed = s.quietly(Event::Redeem { ticket: TicketId(1), by, retry: None });
        assert_eq!(redeemed, Answer::Redeemed { id, again: false });
        assert_eq!(s.ledger.ticket(TicketId(1)).map(|ticket| ticket.uses), left);
    }
    let again = Event::Redeem { ticket: TicketId(1), by: A, retry: None };
    assert_eq!(s.refused(again), Refusal::TicketUnknown);
    s.quietly(release(A, id, 1));
    assert_eq!(s.freeing(release(B, id, 1)), [(id, Cause::Released)]);
}

#[test]
fn a_ticket_that_cannot_be_had_is_refused() {
    let mut s = Scene::new();
    let id = s.put(None, ticketed(1, 1));
    let issue = |n, ttl| Event::IssueTicket { id, spec: TicketSpec::once(TicketId(n), Millis(ttl)) };
    assert_eq!(s.refused(issue(2, 0)), Refusal::TicketWithoutTime);
    assert_eq!(s.refused(issue(1, 5)), Refusal::TicketTaken);
    assert_eq!(s.quietly(issue(2, u64::MAX)), Answer::TicketIssued { deadline: Millis::MAX });
    let next = Some(Millis(61_000));
    assert_eq!(s.refused(issue(3, 5)), Refusal::TooManyTickets { limit: 2, next });
}

#[test]
fn a_ticket_does_not_show_itself_in_a_log() {
    assert_eq!(format!("{:?}", TicketId(0x1234_5678_9abc_def0)), "TicketId(…def0)");
}
