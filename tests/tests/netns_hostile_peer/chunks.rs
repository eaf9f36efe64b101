//! A peer of the exchange, with a key that everybody lists, that sends well-formed frames of a tensor in which nothing is as it
//! should be: against a real sidecar, over the network. Needs root.

use tensorlane_proto::Reason;
use tensorlane_tests::hostile::{Chunk, Hostile};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::transfer::{is, put, seconds};
use tensorlane_tests::{reason, until};

use super::TURNS;

/// Too large for a message with others, too small for lanes.
const BYTES: u64 = 1 << 20;
const PART: usize = 128 << 10;

/// Chunks of a tensor by their numbers, where `(place, what)` says which part is said to lie where.
fn chunks(parts: &[(u64, usize)], whole: &[u8]) -> Parts {
    let part = |number: usize| whole[number * PART..(number + 1) * PART].to_vec();
    parts.iter().map(|(place, what)| (place * PART as u64, part(*what))).collect()
}

/// Offsets, and the bytes that are said to lie there.
type Parts = Vec<(u64, Vec<u8>)>;

/// Wrong parts that are sent.
fn wrongs(whole: &[u8]) -> Vec<(&'static str, Parts)> {
    let last = whole.len() as u64 - 1;
    let half = PART as u64 / 2;
    let all_but_the_last: Vec<_> = (0..7).map(|part| (part, part as usize)).collect();
    vec![
        ("one that came already", chunks(&[(0, 0), (1, 1), (1, 1)], whole)),
        ("the first one again", chunks(&[(0, 0), (1, 1), (0, 0)], whole)),
        (
            "one that begins within another",
            [chunks(&[(0, 0)], whole), vec![(half, whole[..PART].to_vec())]].concat(),
        ),
        ("the right ones in another order", chunks(&[(0, 0), (2, 2), (1, 1)], whole)),
        ("not the first one first", chunks(&[(1, 1), (0, 0)], whole)),
        ("one beyond the end", [chunks(&[(0, 0)], whole), vec![(BYTES, vec![7; 16])]].concat()),
        (
            "one that begins inside and ends outside",
            [chunks(&all_but_the_last, whole), vec![(7 * PART as u64, vec![7; PART + 16])]].concat(),
        ),
        ("one at the end of all numbers", vec![(u64::MAX - 8, vec![7; 16])]),
        ("the last byte alone", vec![(last, vec![7])]),
    ]
}

#[test]
fn chunks_that_are_replayed_overlapping_reordered_or_out_of_range_are_the_end_of_a_connection_and_of_nothing_else()
 {
    let _turn = TURNS.beside_others();
    // The hostile one answers no question whether it lives: it has time for what it does on a busy machine.
    let mut peers = Peers::start(3, |_, options| {
        options.set("gc.leaseGrace", "1s").set("transports", "tcp").set("deadlines.progress", "10s")
    });
    peers.sidecars[1].kill();
    {
        let (victim, honest) = (peers.client(0), peers.client(2));
        let whole = pattern(5, BYTES as usize);
        let malformed =
            || peers.metric(0, "tensorlane_peer_rejected_frames_total", &["reason=\"malformed\""]);
        for (round, (what, parts)) in (1..).zip(wrongs(&whole)) {
            let mut hostile = Hostile::of(&peers, 1, "b");
            let (reference, descriptor) = Hostile::tensor("b", round, BYTES);
            let (before, options) = (malformed(), seconds(15));
            let outcome = std::thread::scope(|scope| {
                let getting = scope.spawn(|| victim.acquire(&reference, &options));
                let call = hostile.open(&descriptor);
                let parts: Vec<_> = parts
                    .iter()
                    .map(|(offset, bytes)| Chunk { offset: *offset, bytes, last: false })
                    .collect();
                hostile.bring(call, &parts);
                assert!(hostile.is_closed(), "{what}");
                getting.join().unwrap()
            });
            assert_eq!(reason(outcome), Reason::PeerUnreachable, "{what}");
            until(&format!("it is counted: {what}"), || malformed() == before + 1.0);
            until("nothing of it is there", || {
                let status = victim.status().unwrap();
                let arena = status.arena.unwrap();
                (status.tensors, status.leases, arena.sealed, arena.reserved) == (0, 0, 0, 0)
            });
            // Everybody else is served as before.
            let stored = put(&honest, round, BYTES);
            assert!(is(&victim.acquire(stored.reference(), &seconds(60)).unwrap(), round, BYTES), "{what}");
            drop(stored);
            until("the copy has gone", || victim.status().unwrap().tensors == 0);
        }
        // That peer, too, once it keeps the rules.
        let mut reformed = Hostile::of(&peers, 1, "b");
        let (reference, descriptor) = Hostile::tensor("b", 99, BYTES);
        let options = seconds(60);
        let tensor = std::thread::scope(|scope| {
            let getting = scope.spawn(|| victim.acquire(&reference, &options));
            let call = reformed.open(&descriptor);
            reformed.bring(call, &[Chunk { offset: 0, bytes: &whole, last: true }]);
            getting.join().unwrap().unwrap()
        });
        assert!(is(&tensor, 5, BYTES));
    }
    [0, 2].into_iter().for_each(|host| peers.assert_free(host));
}
