//! What the network does to bytes on their way: it loses them, flips them, repeats and reorders them. None of it is ever part
//! of a tensor.

use super::super::proxy::Hurt;
use super::*;

#[test]
fn a_wire_that_fails_at_the_nth_byte_costs_time_and_no_byte() {
    for_every(|pair| {
        let bytes = 12 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        let mut nth = vec![0, 1, 5, 100, 1000, 1500, 2500, 4000, 10_000];
        nth.extend((1..11).map(|step| step * MIB + step * 1000));
        for n in nth {
            let now = pair.proxy.carried.load(Ordering::SeqCst);
            pair.proxy.cut_after.store(now + n, Ordering::SeqCst);
            let got = pair.get(&pair.a, "b", 7, bytes);
            assert!(got.unwrap() == pair.b.own_bytes(7), "{}: cut after {n} bytes", pair.way.name);
        }
        pair.proxy.cut_after.store(u64::MAX, Ordering::SeqCst);
        pair.assert_over();
    });
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
    for_all(|pair| {
        let bytes = 6 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        for step in 0..12 {
            let now = pair.proxy.carried.load(Ordering::SeqCst);
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
    for_all(|pair| {
        let bytes = 6 * MIB;
        pair.b.twin.add(7, sealed(&pair.b.arena, bytes, 1), 1);
        for hurt in [Hurt::Repeated, Hurt::Reordered, Hurt::Overlapping] {
            let before = closed(&pair.a) + closed(&pair.b);
            for step in 0..4 {
                let now = pair.proxy.carried.load(Ordering::SeqCst);
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
