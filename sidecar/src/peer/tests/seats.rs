//! More peers than seats: who is needed is connected, whoever nobody uses gives way, and a lack of seats is told.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tensorlane_proto::{Failure, Reason, Selection};

use super::keys;
use super::world::{One, PATIENCE, Start, Table, Told, connect, name, nowhere, sealed, until};
use crate::peer::PeerState;

/// Sidecars that list each other and have so many seats each, with a tensor 7 each.
fn many(count: usize, seats: usize) -> (Arc<Table>, Vec<One>) {
    let table = Arc::new(Table::default());
    let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
    let identities: Vec<_> = names.iter().map(|_| keys::identity()).collect();
    for (peer, identity) in names.iter().zip(&identities) {
        // More are listed than there are seats from the first moment on.
        table.list(peer, nowhere(), identity.fingerprint);
    }
    let start = |(peer, identity): (&String, _)| {
        // A machine that does much else ends no connection of these.
        let patient = Start { progress: PATIENCE * 3, handshake: PATIENCE * 3, ..Start::new(peer) };
        let one = Start { identity, peers_max: seats, arena: 16 << 20, ..patient }.start(&table);
        one.twin.add(7, sealed(&one.arena, 1000, 7), 1);
        one
    };
    let all = names.iter().zip(identities).map(start).collect();
    (table, all)
}

fn state_of(one: &One, other: &One) -> PeerState {
    let views = one.peers.status();
    views.iter().find(|view| view.name == other.key().name).expect("it is listed").state
}

/// Number of connections that are up at a peer.
fn connected(one: &One) -> usize {
    one.peers.connected().len()
}

/// Waits until every clock has looked at all peers twice more: by then each has dialed whom it dials ahead.
fn rounds_pass(all: &[One]) {
    let before: Vec<u64> = all.iter().map(|one| one.peers.rounds()).collect();
    until("every clock goes round", || {
        all.iter().zip(&before).all(|(one, before)| one.peers.rounds() >= before + 2)
    });
    // What they began by then is over.
    until("nobody is being dialed", || all.iter().all(|one| !one.peers.is_dialing()));
}

/// Returns whether leases of a peer were ended for good.
fn is_over(one: &One) -> bool {
    one.twin.events.lock().iter().any(|event| event.contains("over"))
}

/// Every pair asks for a tensor of the other.
fn all_pairs(all: &[One]) -> Vec<(usize, usize, Told)> {
    let mut asked = Vec::new();
    for (reader, one) in all.iter().enumerate() {
        for (owner, other) in all.iter().enumerate().filter(|(owner, _)| *owner != reader) {
            let (told, ..) = one.pull(other.key().name.as_str(), None, 7, Selection::All, 1000);
            asked.push((reader, owner, told));
        }
    }
    asked
}

#[test]
fn peers_that_nobody_needs_are_not_dialed_where_more_are_listed_than_have_seats() {
    let (_table, all) = many(6, 4);
    assert!(all[0].get("p1", 7, 1000).is_ok());
    rounds_pass(&all);
    for (number, one) in all.iter().enumerate() {
        let (dialed, up) = (one.peers.counters().opened.count("us"), connected(one));
        assert_eq!(
            (dialed, up),
            if number == 0 {
                (1, 1)
            } else if number == 1 {
                (0, 1)
            } else {
                (0, 0)
            }
        );
    }
    assert_eq!(state_of(&all[0], &all[2]), PeerState::Idle);
}

#[test]
fn twelve_pairs_of_four_peers_with_one_seat_each_are_all_served() {
    let (_table, all) = many(4, 1);
    let asked = all_pairs(&all);
    assert_eq!(asked.len(), 12);
    for (reader, owner, told) in asked {
        let outcome = told.recv_timeout(PATIENCE).expect("every pull has an outcome");
        assert!(outcome.is_ok(), "{reader} of {owner}: {:?}", outcome.err().map(|failed| failed.failure));
    }
    for one in &all {
        until("those that give way have gone", || connected(one) <= 1);
        let views = one.peers.status();
        assert!(views.iter().all(|view| view.state != PeerState::Unreachable), "{views:?}");
        assert!(!is_over(one), "no life of a peer is over");
    }
}

#[test]
fn the_connection_that_was_unused_for_longest_gives_way_and_neither_end_has_lost_the_other() {
    let (_table, all) = many(4, 2);
    for owner in ["p1", "p2", "p1"] {
        assert!(all[0].get(owner, 7, 1000).is_ok());
    }
    // The word that the last pull is over is on its way.
    until("nothing is open", || all.iter().all(|one| one.peers.open_pulls() == 0));
    assert!(all[0].get("p3", 7, 1000).is_ok());
    let is_idle = |one: &One, other: &One| state_of(one, other) == PeerState::Idle;
    until("it has gone at both ends", || is_idle(&all[0], &all[2]) && is_idle(&all[2], &all[0]));
    assert!(all[0].peers.is_connected(&name("p1")) && all[0].peers.is_connected(&name("p3")));
    let views = all[2].peers.status();
    assert!(views.iter().all(|view| view.last_error.is_empty()), "{views:?}");
    assert!(all.iter().all(|one| one.twin.events.lock().is_empty()), "nobody was lost");
    assert!(all[2].get("p0", 7, 1000).is_ok(), "and whoever needs it again gets it");
}

/// Failure of a pull of some seconds for want of a seat. Where the machine stood still for as long, it did not hear of that in its time,
/// and it is done again.
fn lacks_seat(reader: &One, owner: &str) -> Failure {
    let mut failed = None;
    until("the lack of a seat is told", || {
        let deadline = Instant::now() + Duration::from_secs(5);
        let (told, ..) = reader.pull_until(owner, None, 7, Selection::All, 1000, deadline);
        let failure = told.recv_timeout(PATIENCE).expect("an outcome").unwrap_err().failure;
        failed.insert(failure).reason == Reason::LimitExceeded
    });
    failed.unwrap()
}

#[test]
fn where_all_seats_are_in_use_a_call_waits_and_its_error_says_the_bound_and_the_setting() {
    let (_table, all) = many(4, 1);
    all[1].twin.hold_inquiries.store(true, Ordering::SeqCst);
    let later = Instant::now() + PATIENCE;
    let (answer, held) = all[0].inquire("p1", 1, later);
    until("it is asked", || all[1].twin.asking.lock().len() == 1);
    for (reader, owner, part) in [(2, "p1", "no seat at p1"), (0, "p2", "no seat here for p2")] {
        let failure = lacks_seat(&all[reader], owner);
        let text = failure.to_string();
        assert!(text.contains(part) && text.contains("peers.max") && text.contains('1'), "{text}");
        assert_eq!((failure.reason, failure.detail("peers_max")), (Reason::LimitExceeded, Some("1")));
    }
    assert!(matches!(answer.try_recv(), Err(mpsc::TryRecvError::Empty)), "what is under way goes on");
    let told = |one: &One, side| one.peers.counters().no_seats.count(side);
    until("it is counted at both ends", || told(&all[1], "here") > 0 && told(&all[2], "there") > 0);
    // Whoever waits long enough is served once the seat is free.
    let (told, ..) = all[2].pull("p1", None, 7, Selection::All, 1000);
    held.cancel();
    assert!(told.recv_timeout(PATIENCE).expect("an outcome").is_ok());
}

#[test]
fn sixty_four_sidecars_with_few_seats_serve_every_pair_that_asks_and_connect_no_others() {
    // They come for a seat in turns, and each turn is a handshake: some thousand of them.
    const ALL_TURNS: Duration = Duration::from_secs(180);
    let (_table, all) = many(64, 4);
    let deadline = Instant::now() + ALL_TURNS;
    let asked: Vec<_> = (0..64)
        .flat_map(|reader| [1, 7, 20, 33, 50, 63].map(|step| (reader, (reader + step) % 64)))
        .map(|(reader, owner): (usize, usize)| {
            let owned = format!("p{owner}");
            let (told, ..) = all[reader].pull_until(&owned, None, 7, Selection::All, 1000, deadline);
            (reader, owner, told)
        })
        .collect();
    for (reader, owner, told) in asked {
        let outcome = told.recv_timeout(ALL_TURNS + PATIENCE).expect("every pull has an outcome");
        assert!(outcome.is_ok(), "{reader} of {owner}: {:?}", outcome.err().map(|failed| failed.failure));
    }
    for one in &all {
        assert!(connected(one) <= 8);
        for view in one.peers.status() {
            assert_ne!(view.state, PeerState::Unreachable, "{view:?}");
        }
        assert!(!is_over(one), "no life of a peer is over");
    }
}

#[test]
fn a_peer_of_other_settings_that_dials_ahead_takes_no_seat_from_another_one() {
    let table = Arc::new(Table::default());
    let few = Start { peers_max: 1, ..Start::new("few") }.start(&table);
    let one = Start::new("one").start(&table);
    connect(&one, &few);
    few.twin.add(7, sealed(&few.arena, 1000, 7), 1);
    let others = ["b", "c", "d"].map(|peer| Start::new(peer).start(&table));
    // Some of them dial it, whichever have the smaller keys; one of them needs it.
    assert!(others[0].get("few", 7, 1000).is_ok());
    let has_left = || !one.peers.is_connected(&name("few")) && few.peers.connected() == [name("b")];
    until("the seat is another one's", has_left);
    let ever = few.ever_up();
    rounds_pass(&others);
    assert_eq!((few.ever_up(), few.peers.connected()), (ever, vec![name("b")]), "nobody takes turns");
    for one in [&one, &others[1], &others[2]] {
        let views = one.peers.status();
        let view = views.iter().find(|view| view.name == name("few")).unwrap();
        assert_ne!(view.state, PeerState::Unreachable, "{view:?}");
    }
}

#[test]
fn peers_that_rest_are_dialed_ahead_once_there_are_seats_for_all() {
    let (table, all) = many(4, 2);
    // Both seats of each are used, and one that is connected gives way.
    for owner in ["p1", "p2", "p3"] {
        assert!(all[0].get(owner, 7, 1000).is_ok());
    }
    until("one of them rests", || connected(&all[0]) == 2);
    table.unlist("p3");
    let left = &all[..3];
    let is_whole = |one: &One| {
        let others = ["p0", "p1", "p2"].map(name).into_iter().filter(|other| *other != one.key().name);
        one.peers.connected() == others.collect::<Vec<_>>()
    };
    until("all that are left are connected", || left.iter().all(is_whole));
}

#[test]
fn a_connection_that_is_held_gives_way_to_nobody() {
    let (_table, all) = many(3, 1);
    assert!(all[0].get("p1", 7, 1000).is_ok());
    until("nothing is open", || all.iter().all(|one| one.peers.open_pulls() == 0));
    let hold = all[0].peers.hold(&name("p1")).expect("it is listed");
    lacks_seat(&all[0], "p2");
    assert!(all[0].peers.is_connected(&name("p1")));
    drop(hold);
    assert!(all[0].get("p2", 7, 1000).is_ok());
    assert!(all[0].peers.hold(&name("nobody")).is_none());
}

#[test]
fn a_lack_of_seats_is_not_told_before_tls_where_a_seated_peer_may_be_at_the_address() {
    let table = Arc::new(Table::default());
    let few = Start { peers_max: 1, ..Start::new("few") }.start(&table);
    let one = Start::new("one").start(&table);
    connect(&one, &few);
    one.twin.hold_inquiries.store(true, Ordering::SeqCst);
    let (_answer, held) = few.inquire("one", 1, Instant::now() + PATIENCE);
    until("it is asked", || one.twin.asking.lock().len() == 1);
    // Another peer that has no seat lists the address, too.
    let other = keys::identity();
    let here: std::net::SocketAddr = "192.0.2.7:9421".parse().unwrap();
    table.list("other", here, other.fingerprint);
    assert!(few.peers.shared.lacks_seat_for(here.ip()).is_some(), "nobody who has a seat is there");
    table.list_at("one", "one.example:9421", one.fingerprint);
    assert!(few.peers.shared.lacks_seat_for(here.ip()).is_none(), "one.example may be there");
    held.cancel();
}
