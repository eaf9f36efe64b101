//! Line 1. A get that saw a tensor before its seal began is wrong, and so is a leased tensor that looks different later.

use super::Violation;
use super::timeline::{By, Call, Claim, Timeline};
use crate::soak::orders::{Outcome, Verb};

pub(super) fn check(timeline: &Timeline<'_>) -> Vec<Violation> {
    timeline
        .calls
        .iter()
        .filter_map(|call| too_early(timeline, call).or_else(|| changed(timeline, call)))
        .collect()
}

fn too_early(timeline: &Timeline<'_>, call: &Call) -> Option<Violation> {
    let (Verb::Get { tensor, .. } | Verb::Hold { tensor, .. }, Some(Outcome::Got { .. })) =
        (call.verb, &call.outcome)
    else {
        return None;
    };
    let of = |verb: &Verb| match *verb {
        Verb::Reserve { tensor, .. } | Verb::Seal { tensor } => Some(tensor),
        _ => None,
    };
    let mut about = timeline.calls.iter().filter(|other| of(&other.verb) == Some(tensor));
    let reserved = about.next().filter(|first| matches!(first.verb, Verb::Reserve { .. }))?;
    let sealed = about.next().map_or(usize::MAX, |seal| seal.began);
    (call.ended < sealed).then(|| {
        let what = format!("tensor {tensor} was seen by {:?} before it was sealed", call.actor);
        Violation::new(1, [reserved.began, call.began, call.ended], what)
    })
}

/// Difference of a look from the last hold of its slot, if there is one: that hold, and whether it lives.
pub(super) fn differs<'t>(timeline: &'t Timeline<'_>, call: &Call) -> Option<(&'t Call, bool)> {
    let (Verb::Look { slot }, Some(Outcome::Seen { bytes, crc, live })) = (call.verb, &call.outcome) else {
        return None;
    };
    let held = timeline.calls.iter().rev().find(|other| {
        let there = matches!(other.verb, Verb::Hold { slot: at, .. } if at == slot);
        let got = matches!(other.outcome, Some(Outcome::Got { .. }));
        other.actor == call.actor && other.ended < call.began && there && got
    })?;
    let Verb::Hold { tensor, .. } = held.verb else { return None };
    (timeline.content(tensor, None) != Some((*bytes, *crc))).then_some((held, *live))
}

fn changed(timeline: &Timeline<'_>, call: &Call) -> Option<Violation> {
    let (held, live) = differs(timeline, call)?;
    // Without its lease it is the business of line 3.
    live.then(|| {
        let what = format!("what {:?} holds does not show what was put any more", call.actor);
        Violation::new(1, [held.began, held.ended, call.began, call.ended], what)
    })
}

/// A claim in words.
pub(super) fn shown(claim: &Claim) -> String {
    let actor = claim.actor;
    match claim.by {
        By::Writer(tensor) => format!("{actor:?} holds what it put as tensor {tensor}"),
        By::Slot(slot) => format!("{actor:?} holds it in slot {slot}"),
        By::Name => format!("it has a name at host {}", actor.host),
    }
}
