//! Line 2. Every get shows the bytes that were put, all that were asked for and no others; or it fails, and what happened
//! explains it.

use super::timeline::{Call, Timeline};
use super::{Violation, excuse};
use crate::soak::orders::{Fault, Outcome, Verb};

pub(super) fn check(timeline: &Timeline<'_>) -> Vec<Violation> {
    timeline
        .calls
        .iter()
        .filter_map(|call| wrong(timeline, call).or_else(|| unexplained(timeline, call)))
        .collect()
}

fn wrong(timeline: &Timeline<'_>, call: &Call) -> Option<Violation> {
    let Some(Outcome::Got { bytes, crc, .. }) = &call.outcome else { return None };
    let (tensor, part) = match call.verb {
        Verb::Get { tensor, part, .. } => (tensor, part),
        Verb::Hold { tensor, .. } => (tensor, None),
        _ => return None,
    };
    let put = timeline.content(tensor, part);
    (put != Some((*bytes, *crc))).then(|| {
        let what = format!("of tensor {tensor} {bytes} bytes with the checksum {crc:08x} came, not {put:x?}");
        Violation::new(2, [call.began, call.ended], what)
    })
}

fn unexplained(timeline: &Timeline<'_>, call: &Call) -> Option<Violation> {
    let reason = match &call.outcome {
        Some(Outcome::Failed { reason, .. }) => reason.as_str(),
        _ => "",
    };
    // A stranger is refused; what is gone too early is told by line 3, what a lost directory breaks by line 7.
    let of_others = call.actor.host == timeline.stranger
        || matches!(reason, "NOT_FOUND" | "OWNER_LOST")
        || directory_is_lost(timeline, call);
    if of_others {
        return None;
    }
    let why = excuse::inexcusable(timeline, call)?;
    let what = format!("{:?} of {:?} {why}", call.verb, call.actor);
    Some(Violation::new(2, [call.began, call.ended.min(timeline.events.len() - 1)], what))
}

/// Returns whether somebody's directory was away during the call.
pub(super) fn directory_is_lost(timeline: &Timeline<'_>, call: &Call) -> bool {
    timeline.faults.iter().any(|&(fault, from, to)| {
        matches!(fault, Fault::Directory(_)) && from <= call.ended && to >= call.began
    })
}
