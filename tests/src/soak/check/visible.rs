//! Line 8. What came from another host says by which transport, and why by none that is better.

use super::Violation;
use super::timeline::{Call, Timeline, owner};
use crate::soak::orders::{Outcome, Verb};

pub(super) fn check(timeline: &Timeline<'_>) -> Vec<Violation> {
    timeline.calls.iter().filter_map(silent).collect()
}

fn silent(call: &Call) -> Option<Violation> {
    let Some(Outcome::Got { transport, refused, moved, bytes, .. }) = &call.outcome else { return None };
    let (host, _) = call.reference.as_deref().and_then(owner)?;
    if matches!(call.verb, Verb::Get { by_name: true, .. }) {
        // Several may have the name; the reference is that of one of them.
        return None;
    }
    let of_shm = refused.iter().any(|refusal| refusal.starts_with("shm: "));
    let what = match transport.as_str() {
        "local" | "shm" if *moved > 0 => format!("{transport} moved {moved} bytes"),
        "local" | "shm" => return None,
        "tcp" | "quic" if host == call.actor.host => format!("{transport} within a pod"),
        "tcp" | "quic" if !of_shm => format!("{transport}, and not why it was not shm: {refused:?}"),
        "tcp" | "quic" if *moved < *bytes => format!("{transport} moved {moved} bytes of {bytes}"),
        "tcp" | "quic" => return None,
        other => format!("{other:?} is no transport"),
    };
    let what = format!("{:?} was told nothing of a worse path than the best: {what}", call.actor);
    Some(Violation::new(8, [call.began, call.ended], what))
}
