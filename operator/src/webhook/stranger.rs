//! Answers to reviews on a path without its secret part, which anybody may send. Pure.
//!
//! Such a review is planned by the pod alone: nothing is looked up, so the answer tells nothing of a namespace. What
//! is wrong with the pod is told with its remedy, and a pod that wants no sidecar is let through. Whatever else takes
//! the exchanges, the limits and the quotas of its namespace, and is refused: an API server that calls the plain path
//! is told the secret one within seconds, and the pod's controller tries again. A sidecar with the settings of an
//! installation instead of those of its exchange would be a mistake that nobody sees.

use kube::core::DynamicObject;
use kube::core::admission::AdmissionReview;

use super::review::Question;
use crate::abilities::Abilities;
use crate::dns::Label;
use crate::plan::{Decision, Defaults, Deny, Facts, Namespace, Outcome, Skip, plan};

/// Refusal of a pod that cannot be decided by itself.
const UNKNOWN: &str = "this call came without the secret part of the webhook's path, so nothing of the namespace is looked at: the operator's leader writes that path within seconds, so try again; if it stays so, `kubectl tensorlane check` says why";

/// Refusal of one review too many.
const TOO_MANY: &str =
    "too many calls for this namespace came without the secret part of the webhook's path: try again later";

/// The answer to a review of a stranger.
pub(super) fn answer(question: &Question, defaults: &Defaults) -> AdmissionReview<DynamicObject> {
    let outcome = plan(&question.pod, &alone(&question.namespace, defaults));
    if follows_from_the_pod(&outcome) { question.answer(&outcome) } else { question.refuse(503, UNKNOWN) }
}

/// The answer to one that is too many.
pub(super) fn too_many(question: &Question) -> AdmissionReview<DynamicObject> {
    question.refuse(429, TOO_MANY)
}

/// Facts of which none was read.
fn alone(namespace: &Label, defaults: &Defaults) -> Facts {
    let namespace = Namespace { name: namespace.to_string(), ..Namespace::default() };
    Facts { namespace, defaults: defaults.clone(), abilities: Abilities::THIS_RELEASE, ..Facts::default() }
}

/// Returns whether a decision is the same whatever is in the namespace.
fn follows_from_the_pod(outcome: &Outcome) -> bool {
    match &outcome.decision {
        Decision::Inject(_) | Decision::Skip(Skip::NotRequested) => false,
        Decision::Skip(Skip::Disabled | Skip::MirrorPod) => true,
        Decision::Deny(deny) => !matches!(deny, Deny::ExchangeMissing { .. } | Deny::NotAMember { .. }),
    }
}
