//! At every step of a get: it is cancelled, its time is over, either peer dies or stands still.

use super::*;

#[test]
fn a_get_that_is_cancelled_at_any_step_ends_at_once_and_disturbs_nobody() {
    at_every_step(|pair, step, turned| {
        let (reader, owner, from) = pair.one_way(turned);
        let what = format!("{}: {step:?} from {from}", pair.way.name);
        let bytes = 24 * MIB;
        owner.twin.add(7, sealed(&owner.arena, bytes, 1), 1);
        owner.twin.add(8, sealed(&owner.arena, 2 * MIB + 1, 2), 1);
        let get = step.of(&pair, turned, || pair.begin(reader, from, 7, bytes));
        get.cancel();
        // While what was stuck still is.
        match get.outcome() {
            Ok(got) => assert!(got.bytes() == owner.own_bytes(7), "{what}"),
            Err(failed) => assert_eq!(failed.failure.reason, Reason::Cancelled, "{what}"),
        }
        pair.go_on();
        let other = pair.begin(reader, from, 8, 2 * MIB + 1).outcome().unwrap();
        assert!(other.bytes() == owner.own_bytes(8), "{what}");
        assert_eq!(reader.peers.counters().closed.all(), [], "{what}");
        assert_eq!(reader.peers.counters().node_closed.all(), [], "{what}");
        drop(other);
        pair.assert_over();
    });
}

#[test]
fn a_get_that_is_cancelled_before_its_head_or_while_its_bytes_are_stuck_ends_at_once() {
    for_every(|pair| {
        let bytes = 24 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        // No bytes of a map are on their way.
        let begins: &[bool] = if pair.way.lands() { &[false, true] } else { &[false] };
        for begun in begins.iter().copied() {
            pair.proxy.stall.store(!begun, Ordering::SeqCst);
            let before = bytes_in(&pair.a);
            let get = pair.begin(&pair.a, "b", 7, bytes);
            until("it has begun, or the owner was asked", || {
                if begun { bytes_in(&pair.a) > before } else { pair.b.twin.leased() > 0 }
            });
            pair.proxy.stall.store(true, Ordering::SeqCst);
            get.cancel();
            match get.outcome() {
                // All of it was here before.
                Ok(got) => assert!(begun && got.bytes() == pair.b.own_bytes(7), "{}", pair.way.name),
                Err(failed) => assert_eq!(failed.failure.reason, Reason::Cancelled, "{}", pair.way.name),
            }
            pair.proxy.stall.store(false, Ordering::SeqCst);
            until("the lease has ended", || pair.b.twin.leased() == 0);
        }
        assert!(pair.get(&pair.a, "b", 7, bytes).unwrap() == pair.b.own_bytes(7), "{}", pair.way.name);
        pair.assert_over();
    });
}

#[test]
fn a_get_ends_at_its_deadline_although_its_owner_stands_still() {
    for_every(|pair| {
        let bytes = 24 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        let deadline = Instant::now() + Duration::from_millis(300);
        pair.proxy.stall.store(true, Ordering::SeqCst);
        let failed = pair.begin_until(&pair.a, "b", 7, bytes, deadline).outcome().err().expect("it is stuck");
        assert_eq!(failed.failure.reason, Reason::DeadlineExceeded, "{}", pair.way.name);
        pair.proxy.stall.store(false, Ordering::SeqCst);
        pair.assert_over();
    });
}

#[test]
fn a_receiver_that_is_stopped_gets_the_whole_tensor_once_it_goes_on_and_not_before() {
    for_every(|pair| {
        let bytes = 24 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        let stop = || pair.proxy.stall.store(true, Ordering::SeqCst);
        if !pair.way.lands() {
            // In a map there is no middle to be stopped in that lasts.
            stop();
        }
        let mut get = pair.begin(&pair.a, "b", 7, bytes);
        until("it has begun", || {
            if pair.way.lands() { bytes_in(&pair.a) > 0 } else { pair.b.twin.leased() > 0 }
        });
        stop();
        // Longer than whatever was on its way takes. If that was all of it, it is right, at least.
        let until_then = Instant::now() + Duration::from_millis(300);
        while !get.is_over() && Instant::now() < until_then {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert!(get.is_over() || get.is_hidden(), "{}: it is still being written", pair.way.name);
        pair.proxy.stall.store(false, Ordering::SeqCst);
        assert!(get.outcome().unwrap().bytes() == pair.b.own_bytes(7), "{}", pair.way.name);
        pair.assert_over();
    });
}

#[test]
fn no_get_outlives_an_owner_that_dies_at_any_step() {
    at_every_step(|pair, step, turned| {
        let (reader, owner, from) = pair.one_way(turned);
        let what = format!("{}: {step:?} from {from}", pair.way.name);
        let bytes = 16 * MIB;
        owner.twin.add(7, sealed(&owner.arena, bytes, 1), 1);
        let expected = owner.own_bytes(7);
        let deadline = Instant::now() + Duration::from_millis(700);
        let get = step.of(&pair, turned, || pair.begin_until(reader, from, 7, bytes, deadline));
        owner.peers.stop();
        match get.outcome() {
            Ok(got) => assert!(got.bytes() == expected, "{what}: what is mapped stays"),
            Err(failed) => assert!(
                matches!(failed.failure.reason, Reason::PeerUnreachable | Reason::DeadlineExceeded),
                "{what}: {}",
                failed.failure
            ),
        }
        assert_ended(pair, &what);
    });
}

#[test]
fn a_reader_that_dies_at_any_step_leaves_its_owner_free_for_others() {
    at_every_step(|pair, step, turned| {
        let (reader, owner, from) = pair.one_way(turned);
        let what = format!("{}: {step:?} from {from}", pair.way.name);
        let bytes = 16 * MIB;
        owner.twin.add(7, sealed(&owner.arena, bytes, 1), 1);
        let get = step.of(&pair, turned, || pair.begin(reader, from, 7, bytes));
        reader.peers.stop();
        // Before its end or at its end, but told.
        drop(get.outcome());
        pair.go_on();
        let another = pair.another("c");
        // Whoever was dialed from may be dialed now.
        pair.table.list(from, owner.peers.bound_address(), owner.fingerprint);
        connect(&another, owner);
        until("they have met, if they are to", || {
            pair.way.lands() || (another.shares(from) && owner.shares("c"))
        });
        let got = pair.begin(&another, from, 7, bytes).outcome().unwrap();
        assert!(got.bytes() == owner.own_bytes(7), "{what}");
        drop(got);
        another.peers.stop();
        assert_eq!(another.peers.threads(), 0, "{what}");
        assert_ended(pair, &what);
    });
}

/// Both have ended, and nothing is left at either.
fn assert_ended(pair: Pair, what: &str) {
    let Pair { a, b, proxy, table: _table, node: _node, .. } = pair;
    drop(proxy);
    for one in [&a, &b] {
        one.peers.stop();
        assert_eq!(one.peers.threads(), 0, "{what}");
    }
    for one in [&a, &b] {
        one.assert_free();
    }
}
