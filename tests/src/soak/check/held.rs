//! Line 3. What somebody certainly held is not said to be gone; what is mapped shows its bytes also without a lease; what
//! nobody holds any more is freed within a bound.

use super::sealed::{differs, shown};
use super::timeline::{Call, Claim, Timeline, owner};
use super::{Violation, excuse};
use crate::soak::history::What;
use crate::soak::orders::{Outcome, Verb};

/// A holder beside the owner: 10 ms after the kernel says so, and what a busy machine takes until threads run and an answer is
/// here, in microseconds.
const LOCAL_BOUND_US: u64 = 10_000 + 490_000;
/// A holder elsewhere: beyond the grace, `deadlines.progress` until it is missed and a second for a busy machine, in microseconds.
const REMOTE_SLACK_US: u64 = 3_000_000;

pub(super) fn check(timeline: &Timeline<'_>) -> Vec<Violation> {
    let calls = timeline.calls.iter();
    let of_calls = calls.filter_map(|call| freed_early(timeline, call).or_else(|| reused(timeline, call)));
    of_calls.chain(kept_for_nobody(timeline)).collect()
}

fn freed_early(timeline: &Timeline<'_>, call: &Call) -> Option<Violation> {
    let Some(Outcome::Failed { reason, .. }) = &call.outcome else { return None };
    let of_us = matches!(reason.as_str(), "NOT_FOUND" | "OWNER_LOST") && call.actor.host != timeline.stranger;
    if !of_us {
        return None;
    }
    let why = excuse::inexcusable(timeline, call)?;
    let reference = call.reference.as_deref()?;
    let claim = timeline.was_held(reference, call.actor.host, call.began, call.ended);
    let holder = claim.map_or_else(|| "its owner lived on".to_owned(), shown);
    let what = format!("{:?} of {:?} {why}: {holder}", call.verb, call.actor);
    Some(Violation::new(3, claim.map(|claim| claim.from).into_iter().chain([call.began, call.ended]), what))
}

fn reused(timeline: &Timeline<'_>, call: &Call) -> Option<Violation> {
    let (held, live) = differs(timeline, call)?;
    (!live).then(|| {
        let what = format!(
            "what {:?} still maps shows other bytes than before: its block was used again",
            call.actor
        );
        Violation::new(3, [held.began, held.ended, call.began, call.ended], what)
    })
}

fn kept_for_nobody(timeline: &Timeline<'_>) -> Vec<Violation> {
    let probes = timeline.events.iter().enumerate().filter_map(|(index, event)| match &event.what {
        What::Probed { reference, asked, leases: Some(leases) } => Some((index, reference, *asked, *leases)),
        _ => None,
    });
    let judged = probes.filter_map(|(index, reference, asked, leases)| {
        let (free_from, last) = free_from(timeline, reference, index)?;
        (asked > free_from).then(|| {
            let late = (asked - free_from) / 1000;
            let what = format!(
                "{reference} lives with {leases} leases {late} ms after the bound, and nobody holds it"
            );
            Violation::new(3, [last, index], what)
        })
    });
    judged.collect()
}

/// Time from which a tensor must be free, as of an event; and what ended last. None if somebody may hold it.
fn free_from(timeline: &Timeline<'_>, reference: &str, index: usize) -> Option<(u64, usize)> {
    let (owner, _) = owner(reference)?;
    let mut until = None;
    let mut consider = |host: usize, gone: usize| {
        if gone > index {
            return None;
        }
        let bound = if host == owner { LOCAL_BOUND_US } else { timeline.grace_us + REMOTE_SLACK_US };
        let end = (timeline.at(gone) + bound, gone);
        until = until.max(Some(end));
        Some(())
    };
    for Claim { actor, maybe_from, gone, .. } in claims_of(timeline, reference) {
        if *maybe_from <= index {
            consider(actor.host, *gone)?;
        }
    }
    for call in timeline.calls.iter().filter(|call| call.began <= index && may_hold(call, reference)) {
        if left_a_name(call) {
            return None;
        }
        consider(call.actor.host, call.ended)?;
    }
    until
}

fn claims_of<'t>(timeline: &'t Timeline<'_>, reference: &'t str) -> impl Iterator<Item = &'t Claim> {
    timeline.claims.iter().filter(move |claim| claim.reference == reference)
}

/// A put whose answer was lost may have given the name, which keeps the tensor for ever.
fn left_a_name(call: &Call) -> bool {
    let answered = matches!(call.outcome, Some(Outcome::Stored { .. }));
    matches!(call.verb, Verb::Put { named: true, .. }) && !answered
}

/// Returns whether a call may hold the tensor while it is under way, or, where a put is repeated, afterwards: its
/// answer may have been lost.
fn may_hold(call: &Call, reference: &str) -> bool {
    match (call.verb, &call.outcome) {
        (Verb::Put { .. }, Some(Outcome::Stored { reference: other })) => other == reference,
        (Verb::Put { .. }, _) => true,
        _ => {
            call.reference.as_deref() == Some(reference)
                || matches!(call.verb, Verb::Get { by_name: true, .. })
        }
    }
}
