//! Excuses of errors: causes that the history shows.

use super::timeline::{Call, Timeline, owner};
use crate::soak::orders::{Outcome, Verb};
use crate::soak::plan::PATIENT_MS;

/// Reason why a failed call has no excuse; none where it has one, or did not fail.
pub(crate) fn inexcusable(timeline: &Timeline<'_>, call: &Call) -> Option<String> {
    let reason = match &call.outcome {
        Some(Outcome::Failed { reason, .. }) => reason.as_str(),
        Some(_) => return None,
        None => return Some("was never answered".to_owned()),
    };
    let excused = match reason {
        // The connection to its own sidecar. A loss is told by the first call after it.
        "lost" | "unreachable" => {
            timeline.sidecar_was_down(call.actor.host, before(timeline, call), call.ended)
        }
        "ARENA_FULL" => true,
        "DEADLINE_EXCEEDED" | "deadline" => impatient(call) || troubled(timeline, call),
        "PEER_UNREACHABLE" => troubled(timeline, call),
        "PEER_UNKNOWN" => hosts(timeline, call).iter().any(|pair| pair[1] == timeline.stranger),
        "OWNER_LOST" => owner_died(timeline, call),
        "NOT_FOUND" => nobody_kept(timeline, call) || (by_name(call) && troubled(timeline, call)),
        "NOT_SEALED" => not_sealed_before(timeline, call),
        // The same name by a put that is repeated while the first is under way, or two owners of one after a restart.
        "NAME_TAKEN" | "AMBIGUOUS_NAME" => {
            matches!(call.verb, Verb::Put { named: true, .. }) || by_name(call)
        }
        _ => false,
    };
    (!excused).then(|| format!("ended with {reason}, for which nothing in the history is a cause"))
}

/// Beginning of the same workload's call before this one: what was lost since is told now.
fn before(timeline: &Timeline<'_>, call: &Call) -> usize {
    if let Verb::Seal { tensor } = call.verb {
        // A reservation is of the session that made it.
        let reserved = |other: &&Call| matches!(other.verb, Verb::Reserve { tensor: of, .. } if of == tensor);
        return timeline.calls.iter().find(reserved).map_or(0, |reserve| reserve.began);
    }
    let earlier = |other: &&Call| other.actor == call.actor && other.began < call.began;
    // Four back: a loss that was noticed between two calls may be told by the second one after it.
    timeline.calls.iter().filter(earlier).map(|other| other.began).rev().nth(3).unwrap_or(0)
}

fn by_name(call: &Call) -> bool {
    matches!(call.verb, Verb::Get { by_name: true, .. })
}

fn impatient(call: &Call) -> bool {
    match call.verb {
        Verb::Get { deadline_ms, .. } | Verb::Hold { deadline_ms, .. } => deadline_ms < PATIENT_MS,
        _ => false,
    }
}

fn hosts(timeline: &Timeline<'_>, call: &Call) -> Vec<[usize; 2]> {
    let here = call.actor.host;
    match call.reference.as_deref().and_then(owner) {
        Some((owner, _)) if !by_name(call) => vec![[here, owner]],
        // Everyone is asked for a name.
        _ if by_name(call) => (0..timeline.stranger).map(|other| [here, other]).collect(),
        _ => vec![[here, here]],
    }
}

fn troubled(timeline: &Timeline<'_>, call: &Call) -> bool {
    hosts(timeline, call).into_iter().any(|pair| timeline.troubled(pair, call.began, call.ended))
}

fn owner_died(timeline: &Timeline<'_>, call: &Call) -> bool {
    let owner = call.reference.as_deref().and_then(owner);
    owner.is_some_and(|(owner, _)| timeline.sidecar_died(owner, 0, call.ended))
}

/// Returns whether its tensor may have been without a holder at some time of the call.
fn nobody_kept(timeline: &Timeline<'_>, call: &Call) -> bool {
    let foreign = |reference: &str| owner(reference).is_some_and(|(host, _)| host == timeline.stranger);
    let held = |reference: &str| timeline.was_held(reference, call.actor.host, call.began, call.ended);
    call.reference.as_deref().is_none_or(|reference| foreign(reference) || held(reference).is_none())
}

fn not_sealed_before(timeline: &Timeline<'_>, call: &Call) -> bool {
    let (Verb::Get { tensor, .. } | Verb::Hold { tensor, .. }) = call.verb else { return false };
    let sealed = |other: &&Call| {
        matches!(other.verb, Verb::Seal { tensor: of } if of == tensor)
            && matches!(other.outcome, Some(Outcome::Stored { .. }))
            && other.ended < call.began
    };
    !timeline.calls.iter().any(|other| sealed(&other))
}
