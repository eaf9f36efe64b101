//! Turns of peers without a connection, of which a few are asked at a time.

use tensorlane_proto::identity::PeerName;

/// Peers whose turn it is after those that were asked last, of all that rest, in their order. Each has its turn within one
/// go around, whoever comes and goes meanwhile.
pub(super) fn next_turns(resting: &[PeerName], last: Option<&PeerName>, most: usize) -> Vec<PeerName> {
    debug_assert!(resting.is_sorted(), "a turn is after another one by the order");
    let first = last.map_or(0, |last| resting.partition_point(|peer| peer <= last));
    resting.iter().cycle().skip(first).take(most.min(resting.len())).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn named(numbers: impl IntoIterator<Item = u32>) -> Vec<PeerName> {
        numbers.into_iter().map(|number| format!("p{number:03}").parse().unwrap()).collect()
    }

    #[test]
    fn every_peer_has_its_turn_within_one_go_around_although_others_come_and_go() {
        for most in [1, 3, 16] {
            let (mut turns, mut asked) = (Vec::new(), BTreeSet::new());
            for round in 0..100_u32.div_ceil(most) {
                // Those that stay, and some that are there now and then.
                let resting = named((0..100).filter(|number| number % 2 == 0 || (number + round) % 3 == 0));
                turns = next_turns(&resting, turns.last(), most as usize);
                assert!(
                    turns.iter().collect::<BTreeSet<_>>().len() == turns.len(),
                    "nobody has two turns at once"
                );
                asked.extend(turns.iter().cloned());
            }
            let stayed = named((0..100).filter(|number| number % 2 == 0));
            assert!(stayed.iter().all(|peer| asked.contains(peer)), "{most} at a time");
        }
    }

    #[test]
    fn turns_begin_anew_behind_the_last_one_and_nobody_rests_is_no_turn() {
        let resting = named(0..4);
        assert_eq!(next_turns(&resting, None, 3), named(0..3));
        assert_eq!(next_turns(&resting, resting.get(2), 3), named([3, 0, 1]));
        assert_eq!(next_turns(&resting, resting.last(), 9), named(0..4));
        assert_eq!(next_turns(&[], resting.last(), 9), []);
    }
}
