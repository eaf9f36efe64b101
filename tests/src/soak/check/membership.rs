//! Line 7. While a directory is away every call goes on as if it were not, and everyone who was parted by something else
//! meets again. That a lost API server and a lost operator do no more is shown on a cluster (`cluster_outages`).

use super::bytes::directory_is_lost;
use super::timeline::{Call, Timeline};
use super::{Violation, excuse};
use crate::soak::history::What;
use crate::soak::orders::Outcome;

pub(super) fn check(timeline: &Timeline<'_>) -> Vec<Violation> {
    let broken = timeline.calls.iter().filter_map(|call| broken(timeline, call));
    let apart = timeline.events.iter().enumerate().filter_map(|(index, event)| match &event.what {
        What::Unsettled { seen } => {
            Some(Violation::new(7, [index], format!("nothing parts them, and they do not meet: {seen}")))
        }
        _ => None,
    });
    broken.chain(apart).collect()
}

fn broken(timeline: &Timeline<'_>, call: &Call) -> Option<Violation> {
    let gone = matches!(&call.outcome, Some(Outcome::Failed { reason, .. })
        if matches!(reason.as_str(), "NOT_FOUND" | "OWNER_LOST"));
    if gone || call.actor.host == timeline.stranger || !directory_is_lost(timeline, call) {
        return None;
    }
    let why = excuse::inexcusable(timeline, call)?;
    let what = format!("{:?} of {:?} {why} but that a directory was away", call.verb, call.actor);
    Some(Violation::new(7, [call.began, call.ended.min(timeline.events.len() - 1)], what))
}
