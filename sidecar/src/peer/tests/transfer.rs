//! Tests of what works: bytes, both ways, many at once, parts of them, small ones, questions.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use tensorlane_proto::generated as v1;
use tensorlane_proto::{Incarnation, Range, Reason, Selection, Transport};

use super::world::*;
use crate::peer::PeerState;

#[test]
fn a_tensor_of_64_mib_arrives_with_its_checksum_and_its_lease_ends() {
    let (_table, a, b) = two();
    let bytes = 64 << 20;
    b.twin.add(7, sealed(&b.arena, bytes, 1), 64);
    let got = a.get("b", 7, bytes).unwrap();
    assert!(got == b.own_bytes(7));
    until("the lease at the owner has ended", || b.twin.leased() == 0);
    assert_eq!(b.twin.opens.load(Ordering::SeqCst), 1);
    assert_eq!(a.peers.counters().bytes_in.load(Ordering::SeqCst), bytes);
    until("the owner has counted them", || b.peers.counters().bytes_out.load(Ordering::SeqCst) == bytes);
    a.assert_free();
    b.assert_free();
}

#[test]
fn an_empty_tensor_arrives() {
    let (_table, a, b) = two();
    b.twin.add(1, sealed(&b.arena, 0, 0), 1);
    assert_eq!(a.get("b", 1, 0).unwrap(), Vec::<u8>::new());
    until("the lease at the owner has ended", || b.twin.leased() == 0);
}

#[test]
fn many_tensors_travel_both_ways_at_once() {
    let (_table, a, b) = two();
    let sizes: Vec<u64> = (0..40).map(|i| [1, 100, 16_384, 262_144, 262_145, 3 << 20][i % 6]).collect();
    for (id, bytes) in sizes.iter().enumerate() {
        a.twin.add(id as u64, sealed(&a.arena, *bytes, id as u64), 1);
        b.twin.add(id as u64, sealed(&b.arena, *bytes, 1000 + id as u64), 1);
    }
    std::thread::scope(|scope| {
        for (here, there, owner) in [(&a, "b", &b), (&b, "a", &a)] {
            let sizes = &sizes;
            scope.spawn(move || {
                let started: Vec<_> = (sizes.iter().enumerate())
                    .map(|(id, bytes)| (id as u64, here.pull(there, None, id as u64, Selection::All, *bytes)))
                    .collect();
                for (id, (told, _, block)) in started {
                    let pulled = told.recv_timeout(PATIENCE).unwrap().unwrap();
                    drop(pulled.landing);
                    block.mark_sealed().unwrap();
                    assert!(
                        block.chunk(0..block.len()).unwrap() == owner.own_bytes(id),
                        "tensor {id} from {there}"
                    );
                }
            });
        }
    });
    until("all leases have ended", || a.twin.leased() == 0 && b.twin.leased() == 0);
    a.assert_free();
    b.assert_free();
}

#[test]
fn keys_are_changed_on_the_way_without_anyone_noticing() {
    let (_table, a, b) = two();
    b.twin.add(7, sealed(&b.arena, 8 << 20, 1), 1);
    b.peers.rekey_every(&name("a"), 10);
    assert!(a.get("b", 7, 8 << 20).unwrap() == b.own_bytes(7));
    a.peers.rekey_every(&name("b"), 3);
    for _ in 0..20 {
        assert_eq!(a.small("b", &[1]).unwrap().len(), 1);
    }
}

#[test]
fn only_the_selected_bytes_travel() {
    let (_table, a, b) = two();
    b.twin.add(7, sealed(&b.arena, 1 << 20, 1), 1024);
    let whole = b.own_bytes(7);
    let rows = Selection::rows([3, 1000, 3]);
    let (told, _, block) = a.pull("b", None, 7, rows, 3 * 1024);
    drop(told.recv_timeout(PATIENCE).unwrap().unwrap().landing);
    block.mark_sealed().unwrap();
    let want =
        [&whole[3 * 1024..4 * 1024], &whole[1000 * 1024..1001 * 1024], &whole[3 * 1024..4 * 1024]].concat();
    assert!(block.chunk(0..3 * 1024).unwrap() == want);

    let steps = Selection::Ranges(vec![Range::new(0, 1024).step_by(2), Range::new(1, 1024).step_by(3)]);
    let bytes = 512 * 341;
    let (told, _, block) = a.pull("b", None, 7, steps, bytes);
    drop(told.recv_timeout(PATIENCE).unwrap().unwrap().landing);
    block.mark_sealed().unwrap();
    let want: Vec<u8> = (0..1024)
        .step_by(2)
        .flat_map(|r| (1..1024).step_by(3).map(move |c| r * 1024 + c))
        .map(|i| whole[i])
        .collect();
    assert!(block.chunk(0..bytes).unwrap() == want);
    assert_eq!(a.peers.counters().bytes_in.load(Ordering::SeqCst), 3 * 1024 + bytes);
}

#[test]
fn what_the_owner_refuses_comes_back_as_its_failure() {
    let (_table, a, b) = two();
    b.twin.add(7, sealed(&b.arena, 100, 1), 1);
    assert_eq!(a.get("b", 8, 100).unwrap_err().reason, Reason::NotFound);
    assert_eq!(a.get("b", 7, 99).unwrap_err().reason, Reason::LayoutMismatch);
    let (told, ..) = a.pull("b", None, 7, Selection::rows([1]), 100);
    let failed = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!((failed.failure.reason, failed.landing.len()), (Reason::SelectionOutOfRange, 100));
    assert_eq!(b.twin.leased(), 0);
    assert!(a.peers.is_connected(&name("b")));
    drop(failed);
    a.assert_free();
}

#[test]
fn a_landing_of_another_length_is_refused_before_anything_is_asked() {
    let (_table, a, _b) = two();
    let (_block, landing) = a.landing(10);
    let (tell, told) = mpsc::channel();
    let order = crate::peer::PullOrder {
        id: 1,
        selection: Selection::All,
        bytes: 11,
        stored: None,
        landing,
        deadline: Instant::now() + PATIENCE,
        transport: Transport::Tcp,
        growth: None,
    };
    a.peers.pull(&name("b"), None, order, move |outcome| tell.send(outcome).unwrap());
    assert_eq!(told.recv().unwrap().unwrap_err().failure.reason, Reason::InvalidArgument);
}

#[test]
fn small_tensors_come_in_one_frame_each_with_its_own_outcome() {
    let (_table, a, b) = two();
    for id in 0..1000 {
        b.twin.add(id, sealed(&b.arena, 4096, id), 1);
    }
    let ids: Vec<u64> = (0..1000).chain([4242]).collect();
    let got = a.small("b", &ids).unwrap();
    assert_eq!(got.len(), 1001);
    let mut full = 0;
    for (id, tensor) in ids.iter().zip(&got) {
        match &tensor.failure {
            None => assert!(tensor.data[..] == b.own_bytes(*id)),
            Some(failure) if *id == 4242 => assert_eq!(failure.reason, "NOT_FOUND"),
            Some(failure) => {
                assert_eq!(failure.reason, "LIMIT_EXCEEDED");
                full += 1;
            }
        }
    }
    // 1,000 of 4 KiB and their descriptors fit into 4 MiB.
    assert_eq!(full, 0);
}

#[test]
fn answers_that_do_not_fit_a_frame_say_so_and_can_be_asked_for_again() {
    let (_table, a, b) = two();
    for id in 0..100 {
        b.twin.add(id, sealed(&b.arena, 64 << 10, id), 1);
    }
    let mut missing: Vec<u64> = (0..100).collect();
    let mut rounds = 0;
    while !missing.is_empty() {
        let got = a.small("b", &missing).unwrap();
        missing =
            missing.iter().zip(&got).filter(|(_, one)| one.failure.is_some()).map(|(id, _)| *id).collect();
        rounds += 1;
        assert!(rounds < 5, "each round brings about 64 of 64 KiB");
    }
    assert!(rounds > 1);
}

#[test]
fn thousands_of_calls_at_once_are_all_answered() {
    let (_table, a, b) = two();
    b.twin.add(1, sealed(&b.arena, 4096, 1), 1);
    let (tell, told) = mpsc::channel();
    for _ in 0..5000 {
        let tell = tell.clone();
        a.peers.pull_small(&name("b"), None, many(&[1; 8]), Instant::now() + PATIENCE, move |outcome| {
            let _ = tell.send(outcome.unwrap().len());
        });
    }
    for _ in 0..5000 {
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), 8);
    }
}

#[test]
fn an_inquiry_is_answered_when_the_owner_answers_it() {
    let (_table, a, b) = two();
    b.twin.hold_inquiries.store(true, Ordering::SeqCst);
    let (told, _) = a.inquire("b", 3, Instant::now() + PATIENCE);
    until("the owner was asked", || !b.twin.held.lock().is_empty());
    assert!(told.try_recv().is_err());
    let reply = b.twin.held.lock().pop().unwrap();
    reply(v1::Inquired { results: vec![v1::DescribeResult::default(); 3] });
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap().results.len(), 3);
}

#[test]
fn both_sides_keep_the_same_one_connection_however_it_came_to_be() {
    for _ in 0..10 {
        let table = Arc::new(Table::default());
        let (a, b) = (Start::new("a").start(&table), Start::new("b").start(&table));
        b.twin.add(1, sealed(&b.arena, 4096, 1), 1);
        a.twin.add(1, sealed(&a.arena, 4096, 2), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| a.get("b", 1, 4096).unwrap());
            scope.spawn(|| b.get("a", 1, 4096).unwrap());
        });
        until("one connection is left", || a.links() == 1 && b.links() == 1);
        assert!(a.get("b", 1, 4096).is_ok() && b.get("a", 1, 4096).is_ok());
    }
}

#[test]
fn status_says_how_things_stand() {
    let (table, a, b) = two();
    table.list("c", "127.0.0.1:1".parse().unwrap(), tensorlane_proto::Fingerprint([0; 32]));
    let failure = a.peers.ensure(&name("c"), Instant::now() + PATIENCE).unwrap_err();
    assert_eq!(failure.reason, Reason::PeerUnreachable);
    assert_eq!(
        a.peers.ensure(&name("d"), Instant::now() + PATIENCE).unwrap_err().reason,
        Reason::PeerUnknown
    );
    let views = a.peers.status();
    let names: Vec<_> = views.iter().map(|view| view.name.as_str()).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!((views[0].state, views[0].incarnation), (PeerState::Connected, Some(Incarnation(1))));
    assert!(matches!(views[1].state, PeerState::Unreachable | PeerState::Connecting));
    assert!(views[1].last_error.contains("127.0.0.1:1"), "{}", views[1].last_error);
    assert_eq!(a.peers.connected(), [name("b")]);
    assert_eq!(
        a.peers.status().iter().find(|view| view.name == name("b")).unwrap().incarnation,
        Some(Incarnation(1))
    );
    drop(b);
}
