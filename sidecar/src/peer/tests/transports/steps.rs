//! At every step of a pull: it is cancelled, its time is over, either peer dies or stands still.

use super::*;

#[test]
fn a_pull_that_is_cancelled_at_any_step_ends_at_once_and_disturbs_nobody() {
    for_all(|pair| {
        let bytes = 24 * MIB;
        for (reader, owner, from) in pair.both_ways() {
            owner.twin.add(7, sealed(&owner.arena, bytes, 1), 1);
            owner.twin.add(8, sealed(&owner.arena, 2 * MIB + 1, 2), 1);
            for step in 0..10 {
                let until_bytes = bytes_in(reader) + bytes * step / 10;
                let (told, handle, block) = reader.pull(from, None, 7, Selection::All, bytes);
                until("it has come so far", || bytes_in(reader) >= until_bytes);
                handle.cancel();
                match told.recv_timeout(PATIENCE).unwrap() {
                    Ok(pulled) => drop(pulled.landing),
                    Err(failed) => {
                        assert_eq!((failed.failure.reason, failed.landing.len()), (Reason::Cancelled, bytes));
                    }
                }
                drop(block);
                let other = reader.get(from, 8, 2 * MIB + 1).unwrap();
                assert!(other == owner.own_bytes(8), "{}", pair.way.name);
            }
            assert_eq!(reader.peers.counters().closed.all(), [], "{}", pair.way.name);
        }
        pair.assert_over();
    });
}

#[test]
fn a_pull_that_is_cancelled_before_its_head_or_while_its_bytes_are_stuck_ends_at_once() {
    for_all(|pair| {
        let bytes = 24 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        for begun in [false, true] {
            pair.proxy.stall.store(!begun, Ordering::SeqCst);
            let before = bytes_in(&pair.a);
            let (told, handle, block) = pair.a.pull("b", None, 7, Selection::All, bytes);
            until("it has begun, or the owner was asked", || {
                if begun { bytes_in(&pair.a) > before } else { pair.b.twin.leased() > 0 }
            });
            pair.proxy.stall.store(true, Ordering::SeqCst);
            handle.cancel();
            match told.recv_timeout(PATIENCE).unwrap() {
                // All of it was here before.
                Ok(pulled) => assert!(begun && pulled.landing.len() == bytes, "{}", pair.way.name),
                Err(failed) => assert_eq!(failed.failure.reason, Reason::Cancelled, "{}", pair.way.name),
            }
            drop(block);
            pair.proxy.stall.store(false, Ordering::SeqCst);
            until("the lease has ended", || pair.b.twin.leased() == 0);
        }
        assert!(pair.a.get("b", 7, bytes).unwrap() == pair.b.own_bytes(7), "{}", pair.way.name);
        pair.assert_over();
    });
}

#[test]
fn a_pull_ends_at_its_deadline_although_its_bytes_are_stuck() {
    for_all(|pair| {
        let bytes = 24 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        let deadline = Instant::now() + Duration::from_millis(300);
        pair.proxy.stall.store(true, Ordering::SeqCst);
        let (told, _, block) = pair.a.pull_until("b", None, 7, Selection::All, bytes, deadline);
        let failed = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
        assert_eq!(failed.failure.reason, Reason::DeadlineExceeded, "{}", pair.way.name);
        drop((failed, block));
        pair.proxy.stall.store(false, Ordering::SeqCst);
        pair.assert_over();
    });
}

#[test]
fn a_receiver_that_is_stopped_gets_the_whole_tensor_once_it_goes_on_and_not_before() {
    for_all(|pair| {
        let bytes = 24 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        let (told, _, block) = pair.a.pull("b", None, 7, Selection::All, bytes);
        until("it has begun", || bytes_in(&pair.a) > 0);
        pair.proxy.stall.store(true, Ordering::SeqCst);
        // Longer than whatever was on its way takes.
        if let Ok(outcome) = told.recv_timeout(Duration::from_millis(300)) {
            // All of it was on its way: then it is right, at least.
            drop(outcome.unwrap().landing);
            pair.proxy.stall.store(false, Ordering::SeqCst);
        } else {
            assert!(block.mark_sealed().is_err(), "{}: it is still being written", pair.way.name);
            pair.proxy.stall.store(false, Ordering::SeqCst);
            drop(told.recv_timeout(PATIENCE).unwrap().unwrap().landing);
        }
        block.mark_sealed().unwrap();
        assert!(block.chunk(0..bytes).unwrap() == pair.b.own_bytes(7), "{}", pair.way.name);
        drop(block);
        pair.assert_over();
    });
}

#[test]
fn no_pull_outlives_an_owner_that_dies_at_any_step() {
    for step in 0..5 {
        for_all(|pair| {
            let bytes = 16 * MIB;
            pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
            let deadline = Instant::now() + Duration::from_millis(700);
            let (told, _, block) = pair.a.pull_until("b", Some(1), 7, Selection::All, bytes, deadline);
            let mut outcome = None;
            until("it has come so far, or its time was over", || {
                outcome = outcome.take().or_else(|| told.try_recv().ok());
                outcome.is_some() || bytes_in(&pair.a) >= bytes * step / 5
            });
            let Pair { a, b, proxy, way, table: _table, node: _node } = pair;
            drop(proxy);
            b.peers.stop();
            match outcome.unwrap_or_else(|| told.recv_timeout(PATIENCE).unwrap()) {
                Ok(pulled) => drop(pulled.landing),
                Err(failed) => assert!(
                    matches!(failed.failure.reason, Reason::PeerUnreachable | Reason::DeadlineExceeded),
                    "{}: {}",
                    way.name,
                    failed.failure
                ),
            }
            drop(block);
            assert_eq!(b.peers.threads(), 0, "{}", way.name);
            a.assert_free();
            b.assert_free();
            a.peers.stop();
            assert_eq!(a.peers.threads(), 0, "{}", way.name);
        });
    }
}

#[test]
fn a_reader_that_dies_at_any_step_leaves_its_owner_free_for_others() {
    for step in 0..5 {
        for_all(|pair| {
            let bytes = 16 * MIB;
            let c = Start { lanes: pair.way.lanes, ..Start::new("c") }.start(&pair.table);
            pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
            let (told, _, block) = pair.a.pull("b", Some(1), 7, Selection::All, bytes);
            until("it has come so far", || bytes_in(&pair.a) >= bytes * step / 5);
            pair.a.peers.stop();
            // Before its end or at its end, but told.
            drop((told.recv_timeout(PATIENCE).unwrap(), block));
            assert_eq!(pair.a.peers.threads(), 0, "{}", pair.way.name);
            pair.a.assert_free();
            assert!(c.get("b", 7, bytes).unwrap() == pair.b.own_bytes(7), "{}", pair.way.name);
            c.peers.stop();
            pair.b.peers.stop();
            assert_eq!((pair.b.peers.threads(), c.peers.threads()), (0, 0), "{}", pair.way.name);
            pair.b.assert_free();
        });
    }
}
