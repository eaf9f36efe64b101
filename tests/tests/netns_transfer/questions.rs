//! Tickets and names of another host: redeemed once, watched to the end.

use std::time::Duration;

use tensorlane_client::channel::Timeout;
use tensorlane_client::{Client, PutOptions, Watch, WatchKind, WatchOptions};
use tensorlane_proto::Reason;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::tensors::{is_intact, put_pattern};
use tensorlane_tests::{failure_in_time, until};

const BYTES: u64 = 3 << 20;
const LONG: Timeout = Timeout::After(Duration::from_secs(60));

fn ticket(client: &Client, seed: u64, uses: u32) -> String {
    let options = PutOptions {
        no_lease: true,
        ticket: Some(Duration::from_secs(60)),
        ticket_uses: uses,
        ..PutOptions::new()
    };
    put_pattern(client, seed, BYTES, &options).unwrap().ticket().unwrap().to_owned()
}

fn tensors(peers: &Peers, host: usize) -> u64 {
    peers.client(host).status().unwrap().tensors
}

#[test]
fn a_ticket_is_redeemed_at_another_host_as_often_as_it_says_and_then_keeps_nothing() {
    let peers = Peers::steady();
    let (owner, reader) = (peers.client(0), peers.client(1));
    for uses in [1, 2] {
        let ticket = ticket(&owner, u64::from(uses), uses);
        for _ in 0..uses {
            let tensor = reader.redeem(&ticket, None).unwrap();
            assert!(is_intact(&tensor));
        }
        let spent = reader.redeem(&ticket, None).unwrap_err();
        assert_eq!(spent.reason(), Some(Reason::TicketSpent), "{spent}");
        until("the owner keeps nothing", || tensors(&peers, 0) == 0);
    }
    // Where it was made it is the same ticket.
    let both = ticket(&owner, 9, 2);
    drop(reader.redeem(&both, None).unwrap());
    drop(owner.redeem(&both, None).unwrap());
    assert_eq!(reader.redeem(&both, None).unwrap_err().reason(), Some(Reason::TicketSpent));
    drop((owner, reader));
    peers.assert_all_free();
}

#[test]
fn a_ticket_whose_tensor_cannot_be_taken_is_used_and_keeps_nothing() {
    let peers = Peers::start(2, |host, options| match host {
        1 => options.steady().set("arena.size", "64Mi"),
        _ => options.steady(),
    });
    let (owner, reader) = (peers.client(0), peers.client(1));
    let options = PutOptions { no_lease: true, ticket: Some(Duration::from_secs(60)), ..PutOptions::new() };
    let large = put_pattern(&owner, 1, 100 << 20, &options).unwrap().ticket().unwrap().to_owned();
    let refused = reader.redeem(&large, None).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::NeverFits), "{refused}");
    until("the owner keeps nothing", || tensors(&peers, 0) == 0);
    drop((owner, reader));
    peers.assert_all_free();
}

#[test]
fn a_ticket_of_a_host_that_is_out_of_reach_says_so_and_is_there_still() {
    let peers = Peers::pair();
    let (owner, reader) = (peers.client(0), peers.client(1));
    let ticket = ticket(&owner, 1, 1);
    peers.network.cut(0);
    let brief = reader.with_deadline(Duration::from_secs(2));
    let failed = failure_in_time(|| brief.redeem(&ticket, None));
    assert!(matches!(failed.reason, Reason::DeadlineExceeded | Reason::PeerUnreachable), "{failed}");
    peers.network.mend(0);
    peers.await_connected();
    // The first attempt came too late to be asked, or its question was lost with the cable.
    let tensor = owner.redeem(&ticket, None).unwrap();
    assert!(is_intact(&tensor));
    drop((tensor, owner, reader));
    peers.assert_all_free();
}

fn says(watch: &mut Watch, kind: WatchKind, name: &str) {
    let event = watch.next(LONG).unwrap();
    assert_eq!((event.kind, event.name.as_str()), (kind, name));
}

#[test]
fn names_of_another_host_are_watched_each_change_once_and_over_a_lost_connection() {
    let peers = Peers::pair();
    let (owner, watcher) = (peers.client(0), peers.client(1));
    let named = |name: &str| PutOptions { no_lease: true, ..PutOptions::named(name) };
    let put = |name: &str| drop(put_pattern(&owner, 1, 1_000, &named(name)).unwrap());
    put("policy/1");
    put("other");
    let there = || WatchOptions::new().peer(owner.peer().unwrap());
    let mut watch = watcher.watch("policy/", there());
    says(&mut watch, WatchKind::Present, "policy/1");
    says(&mut watch, WatchKind::Synced, "");
    let nothing = failure_in_time(|| watch.next(Timeout::After(Duration::from_millis(400))));
    assert_eq!(nothing.reason, Reason::DeadlineExceeded);
    put("policy/2");
    says(&mut watch, WatchKind::Appeared, "policy/2");
    let revision = watch.revision().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| watch.next(LONG));
        until("it waits at the owner", || {
            peers.metric(0, "tensorlane_sidecar_waiting_requests", &["for=\"name\""]) == 1.0
        });
        peers.network.cut(0);
        owner.unname(&["policy/1", "other"]).unwrap();
        peers.network.mend(0);
        let event = waits.join().unwrap().unwrap();
        assert_eq!((event.kind, event.name.as_str()), (WatchKind::Gone, "policy/1"));
    });
    // Another watch goes on from there, and reads the reference that it was told.
    let mut again = watcher.watch("policy/", there().from(revision));
    says(&mut again, WatchKind::Gone, "policy/1");
    owner.unname(&["policy/2"]).unwrap();
    says(&mut again, WatchKind::Gone, "policy/2");
    drop((watch, again, owner, watcher));
    peers.assert_all_free();
}
