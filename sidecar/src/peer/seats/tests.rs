//! Seats: to whom they go, and how a lack of them is told.

use super::*;

const S: Duration = Duration::from_secs(1);

fn idle(unused: Duration) -> Sitter {
    Sitter { in_use: false, is_unspoken: false, unused }
}

fn busy() -> Sitter {
    Sitter { in_use: true, is_unspoken: false, unused: 9 * S }
}

fn of(most: usize, coming: usize, leaving: usize, sitters: &[Sitter]) -> Taken<'_> {
    Taken { most, coming, leaving, sitters }
}

#[test]
fn a_free_seat_is_for_anyone_and_nobody_gives_way_for_it() {
    let sitters = [idle(S), busy()];
    for needed in [true, false] {
        assert_eq!(seating(of(3, 0, 0, &sitters), needed), Seating::Free);
        assert_eq!(seating(of(4, 1, 0, &sitters), needed), Seating::Free);
    }
}

#[test]
fn a_needed_connection_gets_the_seat_of_the_one_that_was_unused_for_longest() {
    let sitters = [idle(S), idle(3 * S), busy(), idle(2 * S)];
    assert_eq!(seating(of(4, 0, 0, &sitters), true), Seating::GivesWay(1));
    assert!(matches!(seating(of(4, 0, 0, &sitters), false), Seating::Full(_)), "nobody needs it");
}

#[test]
fn a_connection_in_use_gives_way_to_nobody_and_the_bound_is_told() {
    let Seating::Full(told) = seating(of(2, 0, 0, &[busy(), busy()]), true) else {
        panic!("there is no seat")
    };
    assert_eq!((told.most, told.retry), (2, BUSY));
}

#[test]
fn a_connection_that_came_just_now_has_time_for_its_first_question() {
    let came = |unused| Sitter { in_use: false, is_unspoken: true, unused };
    let Seating::Full(told) = seating(of(1, 0, 0, &[came(SETTLING / 2)]), true) else { panic!("it is new") };
    assert_eq!(told.retry, SETTLING);
    assert_eq!(seating(of(1, 0, 0, &[came(SETTLING)]), true), Seating::GivesWay(0));
}

#[test]
fn connections_that_leave_have_no_seat_and_are_bounded_too() {
    assert_eq!(seating(of(2, 0, 1, &[busy()]), true), Seating::Free);
    assert_eq!(seating(of(2, 0, 1, &[busy(), idle(S)]), true), Seating::GivesWay(1));
    assert!(matches!(seating(of(2, 0, 2, &[busy(), idle(S)]), true), Seating::Full(_)));
    assert!(
        matches!(seating(of(2, 0, 3, &[busy()]), true), Seating::Full(_)),
        "four connections for two seats"
    );
}

#[test]
fn a_record_is_read_strictly_and_its_time_is_believed_within_bounds() {
    let told = NoSeat { most: 16, retry: S };
    assert_eq!(NoSeat::of_record(&told.record()), Some(told));
    let wild = NoSeat { most: 16, retry: Duration::from_secs(86_400) };
    assert_eq!(NoSeat::of_record(&wild.record()).unwrap().retry, RETRY.1);
    assert_eq!(NoSeat::of_record(&NoSeat { retry: Duration::ZERO, ..wild }.record()).unwrap().retry, RETRY.0);
    for most in [0, SEATS_MAX + 1, u32::MAX] {
        assert_eq!(NoSeat::of_record(&NoSeat { most, retry: S }.record()), None, "{most}");
    }
    let record = told.record();
    for length in 0..RECORD_BYTES {
        assert_eq!(NoSeat::of_record(&record[..length]), None);
    }
    assert_eq!(NoSeat::of_record(&[&record[..], &[0]].concat()), None);
    for at in 0..MAGIC.len() {
        let mut other = record;
        other[at] ^= 1;
        assert!(NoSeat::of_record(&other).is_none() && !NoSeat::begins(&other));
    }
    assert!(NoSeat::begins(&record) && NoSeat::begins(&record[..1]) && !NoSeat::begins(&[]));
    // Handshake and alert of TLS.
    assert!(!NoSeat::begins(&[22, 3, 3]) && !NoSeat::begins(&[21, 3, 3]));
}

#[test]
fn a_refusal_in_place_of_hello_says_the_same_and_one_of_an_earlier_release_less() {
    let told = NoSeat { most: 16, retry: S };
    assert_eq!(NoSeat::of_refusal(&told.refusal()), Some(told));
    let early = Failure::new(Reason::LimitExceeded, "as many peers are connected as may be");
    assert_eq!(NoSeat::of_refusal(&early), Some(NoSeat { most: 0, retry: BUSY }));
    assert_eq!(NoSeat::of_refusal(&Failure::new(Reason::WrongExchange, "x")), None);
}

#[test]
fn a_wait_grows_while_there_is_no_seat_and_no_further_than_its_bound() {
    let told = NoSeat { most: 1, retry: BUSY };
    let waits: Vec<_> = (1..=5).map(|times| wait(told, times, 1.0)).collect();
    assert_eq!(waits, [BUSY, 2 * BUSY, 4 * BUSY, RETRY_GROWN, RETRY_GROWN]);
    assert_eq!(wait(told, 1, 0.0), BUSY / 2);
    assert_eq!(wait(NoSeat { retry: 20 * S, ..told }, 9, 1.0), 20 * S, "as long as it was told");
}

#[test]
fn an_error_names_the_peer_the_bound_and_the_setting() {
    let told = NoSeat { most: 16, retry: S };
    let peer = "far".parse().unwrap();
    for (side, part) in [(LackingSide::Theirs, "no seat at far"), (LackingSide::Ours, "no seat here for far")]
    {
        let failure = failure(&peer, (side, told), S);
        let text = failure.to_string();
        assert!(text.contains(part) && text.contains("16") && text.contains("peers.max"), "{text}");
        assert_eq!((failure.reason, failure.detail("peers_max")), (Reason::LimitExceeded, Some("16")));
    }
}
