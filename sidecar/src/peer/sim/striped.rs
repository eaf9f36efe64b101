//! A large pull on several lanes, each with a pace of its own, that break and are replaced: no granule that has landed is
//! ever asked for again, every byte comes, and somebody always takes the next piece.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use super::Dice;
use crate::peer::transport::lanes::pieces::{GRANULE, Pieces};
use crate::peer::transport::lanes::schedule::{LaneRate, should_take};

/// Milliseconds after which a pull that does not end has been forgotten.
const LONGEST: u64 = 1_000_000;

#[derive(Default)]
struct Lane {
    pace: LaneRate,
    /// Bytes a millisecond that it really brings.
    speed: u64,
    /// Pieces that were asked for, with when the first of them began to come.
    asked: Vec<(Range<u64>, u64)>,
}

fn granules(piece: &Range<u64>) -> Range<u64> {
    piece.start / GRANULE..piece.end.div_ceil(GRANULE)
}

/// Runs one pull.
pub(super) fn run(seed: u64) {
    let mut dice = Dice(seed ^ 0x57_81_9e_d0);
    let bytes = dice.roll(40 * GRANULE);
    let before = dice.roll(bytes / 2 + 1);
    let mut pieces = Pieces::new(bytes, before);
    let mut landed: BTreeSet<u64> = (0..pieces.prefix() / GRANULE).collect();
    let mut out: BTreeSet<u64> = BTreeSet::new();
    let mut lanes: Vec<Lane> = (0..1 + dice.roll(4)).map(|_| lane(&mut dice)).collect();
    let mut now = 0;
    while !pieces.is_whole() {
        now += 1;
        assert!(now < LONGEST, "{bytes} bytes do not come: {pieces:?}");
        for at in 0..lanes.len() {
            ask(&mut pieces, &mut lanes, at, now, &landed, &mut out);
        }
        // Somebody has it, or will ask for it next.
        assert!(
            lanes.iter().any(|lane| !lane.asked.is_empty()),
            "nobody brings what is missing of {pieces:?}"
        );
        for lane in &mut lanes {
            land(&mut pieces, lane, now, &mut landed, &mut out);
        }
        if dice.one_in(200) {
            let broken = dice.roll(lanes.len() as u64) as usize;
            let gone = std::mem::replace(&mut lanes[broken], lane(&mut dice));
            for (piece, _) in gone.asked {
                pieces.give_back(&piece);
                granules(&piece).for_each(|granule| assert!(out.remove(&granule)));
            }
        }
        let free = (0..bytes.div_ceil(GRANULE))
            .filter(|granule| !landed.contains(granule) && !out.contains(granule));
        let sum: u64 = free.map(|granule| (bytes - granule * GRANULE).min(GRANULE)).sum();
        assert_eq!(pieces.untaken(), sum, "bytes that nobody has asked for");
    }
    assert_eq!((pieces.prefix(), pieces.untaken(), out.len()), (bytes, 0, 0));
}

fn lane(dice: &mut Dice) -> Lane {
    Lane { speed: 1 + dice.roll(GRANULE), ..Lane::default() }
}

fn ask(
    pieces: &mut Pieces,
    lanes: &mut [Lane],
    at: usize,
    now: u64,
    landed: &BTreeSet<u64>,
    out: &mut BTreeSet<u64>,
) {
    if lanes[at].asked.len() >= 2 {
        return;
    }
    let others = lanes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, lane)| &lane.pace);
    let wanted = lanes[at].pace.granules();
    if !should_take(&lanes[at].pace, others, wanted * GRANULE, pieces.untaken()) {
        return;
    }
    let Some(piece) = pieces.take(wanted) else { return };
    for granule in granules(&piece) {
        assert!(!landed.contains(&granule), "granule {granule} has landed and was asked for again");
        assert!(out.insert(granule), "granule {granule} is on its way and was asked for again");
    }
    lanes[at].pace.asked(piece.end - piece.start);
    lanes[at].asked.push((piece, now));
}

fn land(pieces: &mut Pieces, lane: &mut Lane, now: u64, landed: &mut BTreeSet<u64>, out: &mut BTreeSet<u64>) {
    let Some((piece, since)) = lane.asked.first().cloned() else { return };
    let length = piece.end - piece.start;
    if (now - since).saturating_mul(lane.speed) < length {
        return;
    }
    lane.asked.remove(0);
    if let Some(next) = lane.asked.first_mut() {
        next.1 = now;
    }
    lane.pace.came(length, Duration::from_millis((now - since).max(1)));
    pieces.land(&piece);
    for granule in granules(&piece) {
        assert!(out.remove(&granule) && landed.insert(granule), "granule {granule} landed twice");
    }
}
