//! Line 5. A put that was made again while the first tensor was held gives the same tensor. That it is whole is line 2's,
//! that nothing is left of a second one line 4's.

use super::Violation;
use super::timeline::{Call, Timeline, owner};
use crate::soak::orders::{Outcome, Verb};

pub(super) fn check(timeline: &Timeline<'_>) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let puts: Vec<(u64, &Call, &str)> = timeline.calls.iter().filter_map(stored).collect();
    for (index, (tensor, first, reference)) in puts.iter().enumerate() {
        let again = puts[index + 1..].iter().filter(|(other, ..)| other == tensor);
        wrong.extend(again.filter_map(|(_, second, other)| {
            let same_life = owner(reference) == owner(other);
            let held = timeline.was_held(reference, first.actor.host, second.began, second.ended).is_some();
            (same_life && held && reference != other).then(|| {
                let what = format!(
                    "tensor {tensor} was put twice: the repeat gave {other}, the first put {reference}"
                );
                Violation::new(5, [first.began, first.ended, second.began, second.ended], what)
            })
        }));
    }
    wrong
}

fn stored(call: &Call) -> Option<(u64, &Call, &str)> {
    match (call.verb, &call.outcome) {
        (Verb::Put { tensor, .. }, Some(Outcome::Stored { reference })) => Some((tensor, call, reference)),
        _ => None,
    }
}
