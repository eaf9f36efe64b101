//! Names, references, tickets and leases that are not exactly right.

use std::str::FromStr;
use std::time::Duration;

use tensorlane_client::{PutOptions, Target};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::{ExchangeName, Failure, PeerName, Reason, Reference, generated as v1, wire};
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::{is_intact, put_pattern, u8s};
use tensorlane_tests::{Sidecar, failure, reason};

use super::all;

#[test]
fn names_over_their_limits_are_refused() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    let longest = "x".repeat(512);
    client.name(stored.reference(), &longest, None).unwrap();
    let too_long = "x".repeat(513);
    for name in [too_long.as_str(), "", "/a", "a/", "a\nb", "a\0b"] {
        let named = client.name(stored.reference(), name, None);
        assert_eq!(reason(named), Reason::InvalidArgument, "{name:?}");
        let mut gone = client.unname(&[name]).unwrap();
        assert_eq!(reason(gone.pop().unwrap()), Reason::InvalidArgument, "{name:?}");
        assert_eq!(reason(client.acquire(name, &all())), Reason::InvalidArgument, "{name:?}");
        let mut found = client.lookup(&[name], None, Duration::ZERO).unwrap();
        assert_eq!(reason(found.pop().unwrap()), Reason::InvalidArgument, "{name:?}");
        if !name.is_empty() {
            let put = put_pattern(&client, 2, 64, &PutOptions::named(name));
            assert_eq!(reason(put), Reason::InvalidArgument, "{name:?}");
        }
    }
    assert_eq!(client.status().unwrap().tensors, 1);
    let mut missing = client.unname(&["nothing"]).unwrap();
    assert_eq!(reason(missing.pop().unwrap()), Reason::NotFound);
    drop(stored);
    client.unname(&[longest]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_reference_that_is_not_exactly_right_is_refused() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    let (ours, text) = (stored.reference(), stored.reference().encode());
    let mut session = RawSession::begin(&sidecar);
    let mut described = |reference: String| -> Failure {
        let kind = Some(v1::target::Kind::Reference(reference));
        let targets = vec![v1::Target { kind, peer: String::new() }];
        let request = v1::DescribeRequest { targets, deadline_ms: 0 };
        let mut reply: v1::DescribeResponse = session.call(SessionKind::Describe, &request).unwrap();
        match reply.results.pop().unwrap().outcome.unwrap() {
            v1::describe_result::Outcome::Failure(failure) => wire::failure(failure),
            v1::describe_result::Outcome::Description(known) => panic!("it is known: {known:?}"),
        }
    };
    // Every bit of it, flipped. What is no text any more cannot be said in a message at all.
    for bit in 0..text.len() * 8 {
        let mut bytes = text.clone().into_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok(flipped) = String::from_utf8(bytes) else { continue };
        assert_eq!(described(flipped.clone()).reason, Reason::ReferenceMalformed, "{flipped}");
    }
    for garbled in ["", "tl1:", "tl2:a/b", &text[..text.len() - 1], &format!("{text}0"), &"x".repeat(1 << 20)]
    {
        assert_eq!(described(garbled.to_owned()).reason, Reason::ReferenceMalformed);
    }

    let layout = u8s(64).layout;
    let (peer, incarnation) = (ours.peer().clone(), ours.incarnation());
    let elsewhere = ExchangeName::from_str("elsewhere").unwrap();
    let foreign = Reference::new(elsewhere, peer.clone(), incarnation, ours.id(), &layout);
    assert_eq!(reason(client.acquire(&foreign, &all())), Reason::WrongExchange);
    let dead = tensorlane_proto::Incarnation(incarnation.0 ^ 1);
    let dead = Reference::new(ours.exchange().clone(), peer.clone(), dead, ours.id(), &layout);
    assert_eq!(reason(client.acquire(&dead, &all())), Reason::OwnerLost);
    assert_eq!(reason(client.describe(&dead)), Reason::OwnerLost);
    let absent = Reference::new(ours.exchange().clone(), peer, incarnation, ours.id() + 1, &layout);
    assert_eq!(reason(client.acquire(&absent, &all())), Reason::NotFound);
    let stranger = PeerName::from_str("stranger").unwrap();
    let there = Reference::new(ours.exchange().clone(), stranger, incarnation, ours.id(), &layout);
    let unreachable = failure(client.acquire(&there, &all()));
    assert!(matches!(unreachable.reason, Reason::PeerUnknown | Reason::PeerUnreachable), "{unreachable}");
    assert_eq!(client.status().unwrap().leases, 1);
    drop((session, stored));
    sidecar.assert_all_free();
}

#[test]
fn a_ticket_that_is_not_exactly_right_is_refused() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    let ticket = client.ticket(stored.reference(), None, 1).unwrap();
    let (reference, secret) = ticket.split_once('#').unwrap();
    let guessed = format!("{reference}#{}", secret.chars().rev().collect::<String>());
    assert_eq!(reason(client.redeem(&guessed, None)), Reason::TicketSpent);
    for garbled in [reference, "", "#", &ticket[..ticket.len() - 1], &format!("{ticket}0")] {
        assert_eq!(reason(client.redeem(garbled, None)), Reason::ReferenceMalformed, "{garbled}");
    }
    drop(client.redeem(&ticket, None).unwrap());
    drop(stored);
    sidecar.assert_all_free();
}

#[test]
fn a_target_that_says_nothing_is_refused() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let request = v1::AcquireRequest { items: vec![v1::GetItem::default()], ..v1::AcquireRequest::default() };
    let reply: v1::AcquireResponse = session.call(SessionKind::Acquire, &request).unwrap();
    assert!(matches!(reply.results[0].outcome, Some(v1::acquire_result::Outcome::Failure(_))));
    for id in [0, 1, u64::MAX] {
        let client = sidecar.client();
        assert_eq!(reason(client.acquire(Target::Id(id), &all())), Reason::NotFound);
    }
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn leases_that_are_not_held_cannot_be_released() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    let mut stranger = RawSession::begin(&sidecar);
    let id = stored.reference().id();
    for _ in 0..3 {
        stranger.send(SessionKind::Release, &v1::ReleaseRequest { ids: vec![id], still_mapped: vec![id] });
    }
    let status: v1::StatusResponse = stranger.call(SessionKind::Status, &v1::StatusRequest {}).unwrap();
    assert_eq!((status.tensors, status.leases), (1, 1));
    assert!(is_intact(&client.acquire(stored.reference(), &all()).unwrap()));
    drop((stranger, stored));
    sidecar.assert_all_free();
}
