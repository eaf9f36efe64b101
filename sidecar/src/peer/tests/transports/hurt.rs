//! Harm that the network does to bytes on their way: it loses them, flips them, repeats and reorders them. None of it
//! is ever part of a tensor. A wire at the node's socket is a queue of the kernel: it can end at any byte, and nothing
//! else; so what changes bytes is tried where tensors travel.

use std::sync::atomic::AtomicBool;

use super::super::meter::Wire;
use super::super::proxy::Hurt;
use super::*;

/// Fewer bytes than any message is.
const LESS_THAN_A_MESSAGE: u64 = 20;

/// Does something while the only one of a pair that can dial connects again whenever it is cut, whoever needs it.
fn dialing<T>(pair: &Pair, work: impl FnOnce() -> T) -> T {
    let (over, until) = (AtomicBool::new(false), Instant::now() + 2 * PATIENCE);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) && Instant::now() < until {
                // What it cannot do now it does the next time.
                let _ = pair.a.peers.ensure(&name("b"), Instant::now() + PATIENCE);
                std::thread::park_timeout(Duration::from_millis(1));
            }
        });
        let done = work();
        over.store(true, Ordering::SeqCst);
        done
    })
}

/// Gets a tensor over a wire that fails after `n` more bytes, which come through. `must`: it carries more than that.
fn get_cut(pair: &Pair, (reader, owner, from): (&One, &One, &str), wire: &Wire, n: u64, must: bool) {
    pair.meet();
    let (carried, failures) = (wire.all.carried(), wire.all.failures());
    wire.all.fail_after(n);
    let got = dialing(pair, || pair.get(reader, from, 7, owner.twin.bytes_of(7)));
    let carried = wire.all.carried() - carried;
    let fails = wire.all.failures() > failures;
    wire.all.mend();
    if fails && !pair.way.lands() {
        // They meet again at once only on a new connection.
        pair.proxy.cut();
    }
    let what = format!("{}: {carried} bytes, of a wire that fails after {n}, from {from}", pair.way.name);
    assert!(got.unwrap() == owner.own_bytes(7), "{what}");
    assert!(fails || (carried <= n && !must), "{what}");
}

#[test]
fn a_wire_that_fails_at_the_nth_byte_costs_time_and_no_byte_in_both_directions() {
    // Each waits for connections most of its time.
    std::thread::scope(|scope| {
        for way in &WAYS {
            scope.spawn(|| get_over_wires_that_fail(&Pair::new(way)));
        }
    });
}

fn get_over_wires_that_fail(pair: &Pair) {
    let bytes = 12 * MIB;
    // Of a map less is said.
    let small = [0, 1, 5, 17, 60, 100, 120, 1000, 1500, 2500, 4000, 10_000];
    let large = (1..11).map(|step| step * MIB + step * 1000);
    let wires = [[&pair.proxy.back, &pair.proxy.out], [&pair.proxy.out, &pair.proxy.back]];
    for (way, [comes, asks]) in pair.both_ways().into_iter().zip(wires) {
        let (_, owner, _) = way;
        owner.twin.add(7, sealed(&owner.arena, bytes, 1), 1);
        for n in small {
            let is_short = n < LESS_THAN_A_MESSAGE;
            get_cut(pair, way, asks, n, is_short);
            get_cut(pair, way, comes, n, is_short || pair.way.lands());
        }
        // Nothing so large is said of a map.
        for n in large.clone().filter(|_| pair.way.lands()) {
            get_cut(pair, way, comes, n, true);
        }
    }
    pair.assert_over();
}

/// Connections and lanes that were closed because of what came.
fn closed(one: &One) -> u64 {
    let counters = one.peers.counters();
    let lanes =
        counters.lanes_closed.all().into_iter().filter(|(reason, _)| !["idle", "ended"].contains(reason));
    lanes.chain(counters.closed.all()).map(|(_, count)| count).sum()
}

/// Gets a tensor while something is done to its bytes: it is right, or it is none.
fn get_hurt(pair: &Pair, bytes: u64, what: &str) {
    match pair.a.get("b", 7, bytes) {
        Ok(got) => assert!(got == pair.b.own_bytes(7), "{}: {what}", pair.way.name),
        Err(failure) => assert_eq!(failure.reason, Reason::ChecksumMismatch, "{}: {what}", pair.way.name),
    }
}

#[test]
fn a_bit_that_is_flipped_on_the_way_closes_a_connection_and_is_never_part_of_a_tensor() {
    for_all_that_land(|pair| {
        let bytes = 6 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        for step in 0..12 {
            let now = pair.proxy.back.all.carried();
            pair.proxy.flip_at.store(now + step * 500_009, Ordering::SeqCst);
            get_hurt(&pair, bytes, "flipped");
        }
        // A datagram that was altered is none: it is sent again.
        let is_quic = pair.way.counted == "quic";
        assert!(is_quic || closed(&pair.a) + closed(&pair.b) > 0, "{}", pair.way.name);
        pair.proxy.flip_at.store(u64::MAX, Ordering::SeqCst);
        assert!(pair.a.get("b", 7, bytes).unwrap() == pair.b.own_bytes(7), "{}", pair.way.name);
        pair.assert_over();
    });
}

#[test]
fn what_is_repeated_reordered_or_overlapping_closes_a_connection_and_is_never_part_of_a_tensor() {
    for_all_that_land(|pair| {
        let bytes = 6 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        for hurt in [Hurt::Repeated, Hurt::Reordered, Hurt::Overlapping] {
            let before = closed(&pair.a) + closed(&pair.b);
            for step in 0..4 {
                let now = pair.proxy.back.all.carried();
                *pair.proxy.hurt_at.lock() = Some((now + step * 1_300_007, hurt));
                get_hurt(&pair, bytes, &format!("{hurt:?}"));
            }
            *pair.proxy.hurt_at.lock() = None;
            assert!(pair.a.get("b", 7, bytes).unwrap() == pair.b.own_bytes(7), "{}", pair.way.name);
            let is_quic = pair.way.counted == "quic";
            assert!(is_quic || closed(&pair.a) + closed(&pair.b) > before, "{}: {hurt:?}", pair.way.name);
        }
        pair.assert_over();
    });
}
