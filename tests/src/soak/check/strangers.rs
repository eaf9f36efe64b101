//! Line 6. A host that nobody lists gets nothing of the others and learns nothing from its errors; and nobody gets anything
//! of it.

use super::Violation;
use super::timeline::{Call, Timeline, owner};
use crate::soak::orders::{Outcome, Verb};

/// Words that a stranger may be told: who does not answer, and that its own sidecar does not. Anything else says
/// something of a tensor.
const TELLS_NOTHING: [&str; 6] =
    ["PEER_UNREACHABLE", "DEADLINE_EXCEEDED", "deadline", "PEER_UNKNOWN", "lost", "unreachable"];

pub(super) fn check(timeline: &Timeline<'_>) -> Vec<Violation> {
    timeline.calls.iter().filter_map(|call| crossed(timeline, call)).collect()
}

fn crossed(timeline: &Timeline<'_>, call: &Call) -> Option<Violation> {
    let by_name = matches!(call.verb, Verb::Get { by_name: true, .. });
    let of = writer(timeline, call)?;
    let inside = |host: usize| host != timeline.stranger;
    if inside(of) == inside(call.actor.host) {
        return None;
    }
    let what = match &call.outcome {
        Some(Outcome::Got { .. }) => "was given it",
        Some(Outcome::Failed { reason, .. }) if TELLS_NOTHING.contains(&reason.as_str()) => return None,
        Some(Outcome::Failed { reason, .. }) if by_name && reason == "NOT_FOUND" => return None,
        Some(Outcome::Failed { .. }) => "learned something of it",
        _ => return None,
    };
    let what = format!(
        "{:?} asked for a tensor of host {of} across the border of the exchange and {what}",
        call.actor
    );
    Some(Violation::new(6, [call.began, call.ended], what))
}

/// The host whose tensor a call is about.
fn writer(timeline: &Timeline<'_>, call: &Call) -> Option<usize> {
    let (Verb::Get { tensor, .. } | Verb::Hold { tensor, .. }) = call.verb else { return None };
    let made = |other: &&Call| match other.verb {
        Verb::Put { tensor: of, .. } | Verb::Reserve { tensor: of, .. } => of == tensor,
        _ => false,
    };
    let by_call = || timeline.calls.iter().find(made).map(|put| put.actor.host);
    call.reference.as_deref().and_then(owner).map(|(host, _)| host).or_else(by_call)
}
