//! Names of peers that nobody needed yet, where more are listed than have seats.

use tensorlane_proto::identity::PeerName;

use super::*;
use crate::exchange::alone::alone_as;
use crate::identity::Identity;
use crate::peer::tests::keys;
use crate::peer::tests::world::{Table, nowhere, until};
use crate::peer::{Counters, LanesConfig, Me, Peers, PeersConfig};
use crate::workers::Workers;

/// Peer among many, with what it needs to live.
struct Member {
    exchange: Arc<Exchange>,
    peers: Arc<Peers>,
    _workers: Workers,
}

/// Starts a peer of this name with so many seats, and lists it in the table of all.
fn start(name: &str, identity: &Identity, seats: usize, table: &Arc<Table>) -> Member {
    let (exchange, workers, _) = alone_as(name);
    let config = PeersConfig {
        peers_max: seats,
        lanes: LanesConfig { count: 0, ..LanesConfig::default() },
        ..PeersConfig::new("127.0.0.1:0".parse().unwrap())
    };
    let me = Me {
        exchange: "lab".parse().unwrap(),
        peer: name.parse().unwrap(),
        incarnation: Incarnation(1),
        offer: v1::Offer::default(),
    };
    let serve = Arc::clone(&exchange) as Arc<dyn Serve>;
    let (keys, known) = (keys::keys(identity), Arc::clone(table) as _);
    let peers = Peers::start(config, keys, known, me, serve, Arc::new(Counters::default())).unwrap();
    table.list(name, peers.bound_address(), identity.fingerprint);
    exchange.connect(Arc::clone(&peers));
    Member { exchange, peers, _workers: workers }
}

/// So many that list each other, with so many seats each.
fn many(count: usize, seats: usize) -> Vec<Member> {
    let table = Arc::new(Table::default());
    let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
    let identities: Vec<_> = names.iter().map(|_| keys::identity()).collect();
    for (peer, identity) in names.iter().zip(&identities) {
        table.list(peer, nowhere(), identity.fingerprint);
    }
    let both = names.iter().zip(&identities);
    both.map(|(name, identity)| start(name, identity, seats, &table)).collect()
}

#[test]
fn a_name_of_a_peer_that_nobody_needed_is_found_in_rounds_and_seats_are_kept() {
    let all = many(12, 4);
    put(&all[9].exchange, "far");
    let mut description = None;
    // On a busy machine it may not have answered in its two seconds: it is asked again.
    until("it has answered", || {
        description = found(&lookup(&all[0].exchange, caller(1), "far", 0)).ok();
        description.is_some()
    });
    let reference: tensorlane_proto::reference::Reference = description.unwrap().reference.parse().unwrap();
    assert_eq!(*reference.peer(), "p9".parse::<PeerName>().unwrap());
    assert!(all.iter().all(|one| one.peers.connected().len() <= 8));
}

#[test]
fn a_name_of_nobody_is_not_found_and_the_error_says_how_many_were_asked_and_the_fast_way() {
    let all = many(12, 4);
    let look = || found(&lookup(&all[0].exchange, caller(1), "nowhere", 0)).unwrap_err();
    let mut failure = look();
    // On a busy machine one of them may not have answered in its two seconds: the error says so, and it is asked again.
    let all_answered = |failure: &Failure| failure.to_string().contains("11 peers that answered");
    until("all have answered", || {
        all_answered(&failure) || {
            failure = look();
            all_answered(&failure)
        }
    });
    let text = failure.to_string();
    assert!(text.contains("--peer PEER nowhere"), "{text}");
    assert_eq!((failure.reason, failure.detail("unknown")), (Reason::NotFound, None), "{text}");
    assert_eq!(failure.detail("asked"), Some("11"));
}

#[test]
fn a_name_that_a_peer_gets_while_it_is_waited_for_is_told_whoever_has_seats() {
    let all = many(8, 2);
    let waiting = lookup(&all[0].exchange, caller(1), "later", 40_000);
    // It waits once all were asked.
    until("it waits", || all[0].exchange.waiting_for_names().0 == 1);
    put(&all[7].exchange, "later");
    let description = found(&waiting).unwrap();
    let reference: tensorlane_proto::reference::Reference = description.reference.parse().unwrap();
    assert_eq!(*reference.peer(), "p7".parse::<PeerName>().unwrap());
}

/// Seats of an exchange that connects everybody, and of one in which they are scarce.
const SEATS: [usize; 2] = [16, 1];

#[test]
fn a_wait_for_a_name_of_a_peer_lasts_while_the_peer_is_not_listed_or_down() {
    for seats in SEATS {
        let table = Arc::new(Table::default());
        let identities: Vec<_> = (0..3).map(|_| keys::identity()).collect();
        let first = start("p0", &identities[0], seats, &table);
        // It is listed, and nobody listens there; p2 is not listed.
        table.list("p1", nowhere(), identities[1].fingerprint);
        let ask = |peer: &str, wait_ms| {
            let (names, peer) = (vec!["later".to_owned()], peer.to_owned());
            let request = v1::LookupRequest { names, peer, wait_ms, ..v1::LookupRequest::default() };
            let (tell, told) = channel();
            first.exchange.lookup(caller(1), request, move |outcome| drop(tell.send(outcome)));
            told
        };
        assert_eq!(found(&ask("p1", 0)).unwrap_err().reason, Reason::PeerUnreachable);
        assert_eq!(found(&ask("p1", 100)).unwrap_err().reason, Reason::PeerUnreachable);
        assert_eq!(found(&ask("p2", 100)).unwrap_err().reason, Reason::PeerUnknown);
        for (peer, identity) in [("p1", &identities[1]), ("p2", &identities[2])] {
            let waiting = ask(peer, 50_000);
            until("it waits", || first.exchange.waiting_for_names().0 == 1);
            let second = start(peer, identity, seats, &table);
            put(&second.exchange, "later");
            let description = found(&waiting).unwrap();
            let reference: tensorlane_proto::reference::Reference = description.reference.parse().unwrap();
            assert_eq!(*reference.peer(), peer.parse::<PeerName>().unwrap());
        }
    }
}
