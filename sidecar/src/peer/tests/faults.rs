//! Tests of what breaks: connections, peers, callers' patience.

use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tensorlane_proto::generated as v1;
use tensorlane_proto::{Fingerprint, Incarnation, Reason, Selection};

use super::keys;
use super::proxy::Proxy;
use super::world::*;
use crate::peer::scheduler::DIALS_MAX;
use crate::peer::shared::LEFT_MAX;
use crate::peer::{CallHandle, Known, PeerState, PullFailed};

/// A world in which `a` reaches `b` through a proxy only: `b` is made to know another address for `a` that nobody
/// listens on.
pub(super) fn through_a_proxy(progress: Duration) -> (Arc<Table>, One, One, Proxy) {
    noticed_by_each(progress, progress)
}

/// A world in which each has a patience of its own with a connection that stands still.
fn noticed_by_each(by_a: Duration, by_b: Duration) -> (Arc<Table>, One, One, Proxy) {
    let table = Arc::new(Table::default());
    let b = Start { progress: by_b, ..Start::new("b") }.start(&table);
    let proxy = Proxy::new(b.peers.bound_address());
    table.list("b", proxy.address, b.fingerprint);
    let a = Start { progress: by_a, listed: Some(nowhere()), ..Start::new("a") }.start(&table);
    until("a reached b through the proxy", || {
        let _ = a.peers.ensure(&name("b"), Instant::now() + PATIENCE);
        proxy.connections.load(Ordering::SeqCst) > 0 && a.peers.is_connected(&name("b"))
    });
    (table, a, b, proxy)
}

#[test]
fn a_pull_goes_on_from_the_bytes_that_landed_when_the_connection_is_cut() {
    let (_table, a, b, proxy) = through_a_proxy(PATIENCE / 3);
    let bytes = 48 << 20;
    b.twin.add(7, sealed(&b.arena, bytes, 1), 1);
    proxy.back.all.fail_after(20 << 20);
    // Nobody gets through again before the owner has seen the cut: else the next connection would take the place of this one.
    proxy.refuse.store(true, Ordering::SeqCst);
    let (told, _, block) = a.pull("b", None, 7, Selection::All, bytes);
    until("the owner has lost the reader", || *b.twin.events.lock() == ["lost a 1"]);
    proxy.refuse.store(false, Ordering::SeqCst);
    let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(pulled.crc32c, Some(crc32c::crc32c(&b.own_bytes(7))));
    drop(pulled);
    block.mark_sealed().unwrap();
    assert!(block.chunk(0..bytes).unwrap() == b.own_bytes(7));
    drop(block);
    assert_eq!(b.twin.opens.load(Ordering::SeqCst), 2, "asked again after the cut");
    until("both leases have ended", || b.twin.leased() == 0);
    // Some of the cut chunk may come twice, but never what had landed.
    let out = b.peers.counters().bytes_out.load(Ordering::SeqCst);
    assert!(out < bytes + (16 << 20), "{out} bytes were sent for {bytes}");
    let events = b.twin.events.lock().clone();
    assert_eq!(events, ["lost a 1", "back a 1"]);
    assert_eq!(*a.twin.events.lock(), ["lost b 1", "back b 1"]);
    a.assert_free();
    b.assert_free();
}

#[test]
fn an_owner_that_takes_nothing_new_goes_on_with_a_pull_that_was_cut_and_waits_for_it() {
    let (_table, a, b, proxy) = through_a_proxy(PATIENCE / 3);
    let bytes = 48 << 20;
    b.twin.add(7, sealed(&b.arena, bytes, 1), 1);
    proxy.back.all.fail_after(20 << 20);
    // Nobody gets through again until the test says so.
    proxy.refuse.store(true, Ordering::SeqCst);
    let (told, _, block) = a.pull("b", None, 7, Selection::All, bytes);
    until("the owner has lost the reader", || !b.peers.is_connected(&name("a")));
    b.twin.draining.store(true, Ordering::SeqCst);
    assert_eq!(b.peers.open_pulls(), 1, "it may be taken up again");
    proxy.refuse.store(false, Ordering::SeqCst);
    drop(told.recv_timeout(PATIENCE).unwrap().unwrap().landing);
    block.mark_sealed().unwrap();
    assert!(block.chunk(0..bytes).unwrap() == b.own_bytes(7));
    until("nothing is waited for any more", || b.peers.open_pulls() == 0);
    // It is that pull that goes on, and not whoever has begun one before.
    assert_eq!(a.get("b", 7, bytes).unwrap_err().reason, Reason::Draining);
}

#[test]
fn a_pull_survives_many_cuts() {
    let (_table, a, b, proxy) = through_a_proxy(PATIENCE / 3);
    let bytes = 32 << 20;
    b.twin.add(7, sealed(&b.arena, bytes, 1), 1);
    let (told, _, block) = a.pull("b", None, 7, Selection::All, bytes);
    let mut over = None;
    for cut in 1..=8 {
        let before = a.peers.counters().bytes_in.load(Ordering::SeqCst);
        until("some bytes came, or it is over", || {
            let now = a.peers.counters().bytes_in.load(Ordering::SeqCst);
            // The counter does not say so: a chunk that was cut is never counted.
            over = over.take().or_else(|| told.try_recv().ok());
            now > before + (1 << 20) || over.is_some() || cut == 1
        });
        if over.is_some() {
            break;
        }
        proxy.cut();
    }
    let outcome = over.unwrap_or_else(|| told.recv_timeout(PATIENCE).unwrap());
    drop(outcome.unwrap().landing);
    block.mark_sealed().unwrap();
    assert!(block.chunk(0..bytes).unwrap() == b.own_bytes(7));
    until("all leases have ended", || {
        // The word that it is over may be lost with the last cut, and nothing else wants a connection.
        let _ = a.peers.ensure(&name("b"), Instant::now() + PATIENCE);
        b.twin.leased() == 0
    });
    drop(block);
    a.assert_free();
    b.assert_free();
}

#[test]
fn small_calls_and_inquiries_are_repeated_after_a_cut() {
    let (_table, a, b, proxy) = through_a_proxy(PATIENCE / 3);
    b.twin.add(1, sealed(&b.arena, 4096, 1), 1);
    b.twin.hold_inquiries.store(true, Ordering::SeqCst);
    let (told, _) = a.inquire("b", 1, Instant::now() + PATIENCE);
    until("the owner was asked", || b.twin.held.lock().len() == 1);
    proxy.cut();
    until("the owner was asked again", || b.twin.held.lock().len() == 2);
    for reply in b.twin.held.lock().drain(..) {
        reply(v1::Inquired { results: vec![v1::DescribeResult::default()] });
    }
    assert!(told.recv_timeout(PATIENCE).unwrap().is_ok());
    assert_eq!(a.small("b", &[1]).unwrap()[0].data.len(), 4096);
}

#[test]
fn another_incarnation_means_owner_lost_for_what_was_under_way_and_for_what_is_asked_later() {
    let (table, a, b, proxy) = through_a_proxy(PATIENCE / 3);
    let bytes = 48 << 20;
    b.twin.add(7, sealed(&b.arena, bytes, 1), 1);
    proxy.back.all.fail_after(8 << 20);
    // Or the rest comes before this life is over.
    proxy.refuse.store(true, Ordering::SeqCst);
    let (told, ..) = a.pull("b", Some(1), 7, Selection::All, bytes);
    until("the connection was cut", || !a.peers.is_connected(&name("b")) || a.twin.events.lock().len() > 1);
    // The same key, another life.
    let (identity, twin) = (b.identity, b.twin);
    b.peers.stop();
    let again = Start { incarnation: 2, identity, ..Start::new("b") }.start(&table);
    again.twin.add(7, twin.tensors.lock()[&7].0.clone(), 1);
    match told.recv_timeout(PATIENCE).unwrap() {
        Err(failed) => assert_eq!(failed.failure.reason, Reason::OwnerLost),
        Ok(_) => panic!("48 MiB did not fit before the cut at 8"),
    }
    let (told, ..) = a.pull("b", Some(1), 7, Selection::All, bytes);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().failure.reason, Reason::OwnerLost);
    assert!(a.get("b", 7, bytes).is_ok(), "of the new incarnation it can be had");
    assert!(a.twin.events.lock().contains(&"over b 1".to_owned()), "{:?}", a.twin.events.lock());
    a.assert_free();
}

#[test]
fn a_reference_of_a_newer_incarnation_is_good_though_the_end_of_the_older_one_was_not_noticed() {
    let (table, a, b, proxy) = through_a_proxy(Duration::from_secs(1));
    // Its machine is gone: nothing comes, and nothing says so. It is started again elsewhere, with the same key.
    proxy.hold.store(true, Ordering::SeqCst);
    let identity = keys::same(&b.identity);
    let again = Start { incarnation: 2, identity, ..Start::new("b") }.start(&table);
    again.twin.add(7, sealed(&again.arena, 4096, 1), 1);
    let (told, ..) = a.pull("b", Some(2), 7, Selection::All, 4096);
    match told.recv_timeout(PATIENCE).unwrap() {
        Ok(pulled) => assert_eq!(pulled.landing.len(), 4096),
        Err(failed) => panic!("{}", failed.failure),
    }
    assert!(a.peers.is_over(&name("b"), Incarnation(1)));
    let (told, ..) = a.pull("b", Some(1), 7, Selection::All, 4096);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().failure.reason, Reason::OwnerLost);
}

#[test]
fn a_reference_of_an_incarnation_that_nobody_met_is_lost_as_soon_as_the_connected_one_says_that_it_lives() {
    let (_table, a, b) = two();
    b.twin.add(7, sealed(&b.arena, 4096, 1), 1);
    assert!(!a.peers.is_over(&name("b"), Incarnation(99)));
    for _ in 0..3 {
        let (told, ..) = a.pull("b", Some(99), 7, Selection::All, 4096);
        assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().failure.reason, Reason::OwnerLost);
        assert!(a.peers.is_over(&name("b"), Incarnation(99)));
    }
    assert!(a.get("b", 7, 4096).is_ok(), "the connection is as good as before");
    assert_eq!(a.links(), 1);
}

/// Cancels a pull of `b`'s tensor 7 in its middle: what became of it, and how many pulls were quicker than this test, and came
/// whole.
fn cancelled(a: &One, proxy: &Proxy, bytes: u64) -> (PullFailed, CallHandle, u64) {
    let mut whole = 0;
    loop {
        let before = bytes_in(a);
        let (told, handle, _) = a.pull("b", None, 7, Selection::All, bytes);
        until("bytes arrive", || bytes_in(a) > before);
        proxy.stall.store(true, Ordering::SeqCst);
        handle.cancel();
        let outcome = told.recv_timeout(PATIENCE).unwrap();
        proxy.stall.store(false, Ordering::SeqCst);
        match outcome {
            Err(failed) => return (failed, handle, whole),
            Ok(_) => whole += 1,
        }
        assert!(whole < 20, "none was cancelled in time");
    }
}

#[test]
fn a_cancelled_pull_ends_at_once_and_its_lease_too() {
    let (_table, a, b, proxy) = through_a_proxy(PATIENCE / 3);
    let bytes = 200 << 20;
    b.twin.add(7, sealed(&b.arena, bytes, 1), 1);
    b.twin.add(8, sealed(&b.arena, 1 << 20, 2), 1);
    let (failed, handle, whole) = cancelled(&a, &proxy, bytes);
    assert_eq!((failed.failure.reason, failed.landing.len()), (Reason::Cancelled, bytes));
    until("the lease has ended", || b.twin.leased() == 0);
    let sent = b.peers.counters().bytes_out.load(Ordering::SeqCst);
    assert!(sent < (whole + 1) * bytes, "the rest was not sent");
    handle.cancel();
    assert!(a.get("b", 8, 1 << 20).unwrap() == b.own_bytes(8), "the connection is as good as before");
    assert!(a.arena.usage().reserved >= bytes, "what comes back with the failure is still there");
    drop(failed);
    a.assert_free();
    b.assert_free();
}

#[test]
fn an_inquiry_that_is_cancelled_is_forgotten_at_both_ends() {
    let (_table, a, b) = two();
    b.twin.hold_inquiries.store(true, Ordering::SeqCst);
    let (told, handle) = a.inquire("b", 1, Instant::now() + PATIENCE);
    until("the owner was asked", || !b.twin.held.lock().is_empty());
    handle.cancel();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().reason, Reason::Cancelled);
    until("the owner waits for it no longer", || b.twin.asking.lock()[0].is_cancelled());
    let reply = b.twin.held.lock().pop().unwrap();
    reply(v1::Inquired { results: vec![v1::DescribeResult::default()] });
    assert!(a.small("b", &[1]).is_ok());
    assert!(a.peers.is_connected(&name("b")));
}

#[test]
fn an_inquiry_whose_connection_is_lost_is_waited_for_no_longer() {
    let (_table, a, b, proxy) = through_a_proxy(PATIENCE / 3);
    b.twin.hold_inquiries.store(true, Ordering::SeqCst);
    let (_told, _) = a.inquire("b", 1, Instant::now() + PATIENCE);
    until("the owner was asked", || !b.twin.held.lock().is_empty());
    assert!(!b.twin.asking.lock()[0].is_cancelled());
    proxy.cut();
    until("the owner does not wait for the first asking", || b.twin.asking.lock()[0].is_cancelled());
    until("it was asked again", || b.twin.held.lock().len() == 2);
    assert!(!b.twin.asking.lock()[1].is_cancelled());
}

#[test]
fn a_call_ends_at_its_deadline() {
    let (_table, a, b, proxy) = through_a_proxy(PATIENCE / 3);
    b.twin.hold_inquiries.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let (told, _) = a.inquire("b", 1, begun + Duration::from_millis(50));
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().reason, Reason::DeadlineExceeded);
    assert!(begun.elapsed() >= Duration::from_millis(50));

    let bytes = 200 << 20;
    b.twin.add(7, sealed(&b.arena, bytes, 1), 1);
    // Or all of it is here before anybody has looked at the clock.
    proxy.stall.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + Duration::from_millis(5);
    let (told, ..) = a.pull_until("b", None, 7, Selection::All, bytes, deadline);
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().failure.reason, Reason::DeadlineExceeded);
    proxy.stall.store(false, Ordering::SeqCst);
    until("the lease has ended", || b.twin.leased() == 0);
    a.assert_free();
    b.assert_free();
}

#[test]
fn what_was_under_way_is_over_with_the_grace_whatever_an_attempt_to_connect_still_waits_for() {
    let table = Arc::new(Table::default());
    let b = Start::new("b").start(&table);
    let proxy = Proxy::new(b.peers.bound_address());
    table.list("b", proxy.address, b.fingerprint);
    let patient = Start { handshake: 10 * PATIENCE, ..Start::new("a") };
    let a = Start { grace: Duration::from_millis(300), listed: Some(nowhere()), ..patient }.start(&table);
    a.connect("b");
    let bytes = 48 << 20;
    b.twin.add(7, sealed(&b.arena, bytes, 1), 1);
    // Takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    table.list("b", silent.local_addr().unwrap(), b.fingerprint);
    proxy.back.all.fail_after(20 << 20);
    let (told, ..) = a.pull("b", None, 7, Selection::All, bytes);
    let failed = told.recv_timeout(PATIENCE).unwrap().unwrap_err().failure;
    assert_eq!(failed.reason, Reason::PeerUnreachable, "{failed}");
    assert!(failed.message.contains("the connection was lost"), "{failed}");
    a.assert_free();
}

#[test]
fn a_peer_that_is_not_there_is_unreachable_and_one_that_is_not_listed_unknown() {
    let table = Arc::new(Table::default());
    let a = Start::new("a").start(&table);
    table.list("b", nowhere(), Fingerprint([0; 32]));
    assert_eq!(a.get("b", 7, 10).unwrap_err().reason, Reason::PeerUnreachable);
    assert_eq!(a.get("c", 7, 10).unwrap_err().reason, Reason::PeerUnknown);
    assert_eq!(a.get("a", 7, 10).unwrap_err().reason, Reason::PeerUnknown, "one does not pull from oneself");
}

#[test]
fn a_peer_that_leaves_the_directory_is_cut_off_but_an_empty_directory_cuts_nobody() {
    let (table, a, b) = two();
    let all = table.all();
    table.clear();
    b.twin.add(1, sealed(&b.arena, 4096, 1), 1);
    assert!(a.get("b", 1, 4096).is_ok());
    for entry in all.iter().filter(|entry| entry.name == name("a")) {
        table.list("a", entry.addresses[0].parse().unwrap(), entry.fingerprints[0]);
    }
    until("b is cut off", || !a.peers.is_connected(&name("b")));
    until("for the right reason", || a.peers.counters().closed.count("revoked") == 1);
    let state = || a.peers.status()[0].state;
    until("it is said to have left, and not to be unreachable", || state() == PeerState::Left);
    table.clear();
    assert_ne!(state(), PeerState::Left, "a directory that lists nobody says nothing of who left");
}

#[test]
fn whoever_left_the_directory_is_remembered_among_so_many_and_no_more() {
    let (table, a, b) = two();
    b.twin.add(1, sealed(&b.arena, 4096, 1), 1);
    assert!(a.get("b", 1, 4096).is_ok());
    // Pods that come and go.
    for round in 0..4 {
        let names: Vec<_> = (0..LEFT_MAX).map(|at| format!("pod-{round}-{at}")).collect();
        names.iter().for_each(|name| table.list(name, nowhere(), Fingerprint([0; 32])));
        assert_eq!(
            a.peers.status().iter().filter(|view| view.state != PeerState::Left).count(),
            1 + LEFT_MAX
        );
        names.iter().for_each(|name| table.unlist(name));
        until("those that left first are forgotten", || a.peers.status().len() <= 1 + LEFT_MAX);
    }
    assert!(a.peers.is_connected(&name("b")) && a.get("b", 1, 4096).is_ok());
}

#[test]
fn of_a_life_that_is_forgotten_nothing_stays_and_the_same_life_may_come_again() {
    let table = Arc::new(Table::default());
    let a = Start { grace: Duration::from_millis(100), ..Start::new("a") }.start(&table);
    let b = Start::new("b").start(&table);
    b.twin.add(1, sealed(&b.arena, 4096, 1), 1);
    assert!(a.get("b", 1, 4096).is_ok());
    let forget = || a.peers.shared.forget_left(0, |peer| table.peer(peer).is_some());
    let is_known = || a.peers.shared.known_peer(&name("b")).is_some();
    forget();
    assert!(is_known(), "it is listed");
    let listed = table.peer(&name("b")).unwrap();
    table.unlist("b");
    until("it is cut off, its grace is over, and it is forgotten", || {
        forget();
        !is_known()
    });
    assert_eq!(*a.twin.events.lock(), ["lost b 1", "over b 1"]);
    table.list("b", listed.addresses[0].parse().unwrap(), listed.fingerprints[0]);
    until("it is back", || a.get("b", 1, 4096).is_ok());
}

#[test]
fn a_connection_on_which_nothing_comes_any_more_is_given_up() {
    let (_table, a, b, proxy) = through_a_proxy(Duration::from_millis(300));
    b.twin.add(1, sealed(&b.arena, 4096, 1), 1);
    // The proxy still acknowledges, but carries nothing on.
    proxy.hold.store(true, Ordering::SeqCst);
    // Whoever notices first closes; the other finds the connection lost.
    until("the silence was noticed", || {
        a.peers.counters().closed.count("progress") + b.peers.counters().closed.count("progress") >= 1
    });
    proxy.hold.store(false, Ordering::SeqCst);
    proxy.cut();
    assert!(a.get("b", 1, 4096).is_ok());
}

#[test]
fn a_small_tensor_whose_connection_stood_still_is_not_asked_for_again_as_it_was() {
    // Its owner must not be the one that notices: then the call would only be repeated.
    let (_table, a, b, proxy) = noticed_by_each(Duration::from_secs(3), PATIENCE * 60);
    b.twin.add(1, sealed(&b.arena, 4096, 1), 1);
    let given_up = || a.peers.counters().closed.count("progress");
    let ask_while_it_stands_still = || {
        a.connect("b");
        let before = given_up();
        proxy.hold.store(true, Ordering::SeqCst);
        let (tell, told) = mpsc::channel();
        let asked = v1::PullMany { ids: vec![1], stored: vec![4096] };
        a.peers.pull_small(&name("b"), None, asked, Instant::now() + PATIENCE, move |outcome| {
            tell.send(outcome.map(drop)).unwrap();
        });
        until("the connection was given up", || given_up() > before);
        assert!(told.try_recv().is_err(), "its caller waits for the next connection");
        proxy.hold.store(false, Ordering::SeqCst);
        proxy.cut();
        told.recv_timeout(PATIENCE).unwrap().err()
    };
    // Where the test stood still before it asked, the connection was given up without it: that is done again.
    let failed = (0..3).find_map(|_| ask_while_it_stands_still()).expect("it was asked in time");
    assert_eq!(failed.reason, Reason::DeadlineExceeded);
    assert!(a.peers.is_wary(&name("b")), "the next one comes on lanes");
    assert!(a.get("b", 1, 4096).is_ok());
}

#[test]
fn an_idle_connection_stays() {
    // Where the machine stood still for as long as one of them bears, that is done again.
    let stays = || {
        let (_table, a, b, proxy) = through_a_proxy(Duration::from_secs(5));
        b.twin.add(1, sealed(&b.arena, 4096, 1), 1);
        let (before, connections) = (proxy.back.all.carried(), proxy.connections.load(Ordering::SeqCst));
        let is_closed = || !a.peers.counters().closed.all().is_empty();
        until("pings were answered for a while", || proxy.back.all.carried() > before + 120 || is_closed());
        assert!(a.get("b", 1, 4096).is_ok());
        !is_closed() && proxy.connections.load(Ordering::SeqCst) == connections
    };
    assert!((0..3).any(|_| stays()));
}

#[test]
fn stopping_tells_every_caller_and_ends_every_thread() {
    // Whatever it might wait for takes longer than the test does.
    let (table, long) = (Arc::new(Table::default()), PATIENCE * 60);
    let start = |name| Start { progress: long, grace: long, handshake: long, ..Start::new(name) };
    let b = start("b").start(&table);
    let a = Start { listed: Some(nowhere()), ..start("a") }.start(&table);
    a.connect("b");
    until("b knows of it", || b.peers.is_connected(&name("a")));
    b.twin.hold_inquiries.store(true, Ordering::SeqCst);
    let (told, _) = a.inquire("b", 1, Instant::now() + long);
    let begun = Instant::now();
    a.peers.stop();
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap_err().reason, Reason::Draining);
    assert_eq!(a.peers.threads(), 0);
    until("b has noticed", || !b.peers.is_connected(&name("a")));
    until("in order", || b.peers.counters().closed.count("goodbye") == 1);
    assert_eq!(a.get("b", 1, 1).unwrap_err().reason, Reason::Draining);
    a.peers.stop();
}

#[test]
fn peers_that_never_answer_leave_room_for_one_that_somebody_waits_for() {
    // Who connects here hears nothing, and waits for longer than the test.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let handshake = 10 * PATIENCE;
    let table = Arc::new(Table::default());
    for number in 0..100 {
        let mut fingerprint = Fingerprint([0xFF; 32]);
        fingerprint.0[31] = number;
        table.list(&format!("mute-{number}"), mute.local_addr().unwrap(), fingerprint);
    }
    // Of two the one with the smaller fingerprint dials: nobody else makes this connection.
    let mut identities = [keys::identity(), keys::identity()];
    identities.sort_by_key(|identity| keys::keys(identity).fingerprint);
    let [dials, is_dialed] = identities;
    let a = Start { identity: dials, handshake, ..Start::new("a") }.start(&table);
    let _held: Vec<_> = (0..DIALS_MAX).map(|_| mute.accept().unwrap()).collect();
    let b = Start { identity: is_dialed, handshake, ..Start::new("b") }.start(&table);
    b.twin.add(7, sealed(&b.arena, 1 << 20, 1), 1);
    assert!(a.get("b", 7, 1 << 20).unwrap() == b.own_bytes(7));
}
