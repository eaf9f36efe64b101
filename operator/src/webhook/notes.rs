//! Notes for the owner of a pod, later: the answer to the API server does not wait for an Event.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::plan::{Decision, Outcome};

/// The most notes that wait. More are dropped: Events are for people, and a thousand at once are read by nobody.
pub const NOTES_MAX: usize = 1024;

/// A single sentence for the owner of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// The namespace of both.
    pub namespace: String,
    /// Owner, which made the pod.
    pub owner: OwnerReference,
    /// A word for machines.
    pub reason: &'static str,
    /// A sentence for people.
    pub sentence: String,
    /// Somebody has to act.
    pub warning: bool,
}

/// Channel into which notes go.
#[derive(Clone, Debug)]
pub struct Notes(mpsc::Sender<Note>);

impl Notes {
    /// A queue of at most [`NOTES_MAX`].
    pub fn new() -> (Notes, mpsc::Receiver<Note>) {
        let (sender, receiver) = mpsc::channel(NOTES_MAX);
        (Notes(sender), receiver)
    }

    /// Leaves a note of each thing that the owner of this pod should know; false where there was no room.
    pub fn leave(&self, namespace: &str, pod: &Value, outcome: &Outcome) -> bool {
        notes(namespace, pod, outcome).into_iter().all(|note| self.0.try_send(note).is_ok())
    }
}

/// Notes that the owner should know. A pod that nobody owns tells its author by the answer itself.
fn notes(namespace: &str, pod: &Value, outcome: &Outcome) -> Vec<Note> {
    let Some(owner) = owner(pod) else { return Vec::new() };
    let note = |reason, sentence: String, warning| Note {
        namespace: namespace.to_owned(),
        owner: owner.clone(),
        reason,
        sentence,
        warning,
    };
    let mut all: Vec<Note> = Vec::new();
    match &outcome.decision {
        // A call by the API server that finds everything done is no news, and neither is what was warned of before.
        Decision::Inject(plan) if plan.patch.0.is_empty() => return all,
        Decision::Inject(plan) => {
            all.push(note("Injected", format!("the pod joins exchange {:?}", plan.exchange), false));
        }
        Decision::Skip(skip) => all.push(note("InjectionSkipped", skip.to_string(), false)),
        Decision::Deny(deny) => all.push(note("InjectionDenied", deny.to_string(), true)),
    }
    all.extend(outcome.warnings.iter().map(|warning| note("InjectionWarning", warning.clone(), true)));
    all
}

/// Owner that controls the pod.
fn owner(pod: &Value) -> Option<OwnerReference> {
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let controller = owners.iter().find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
    serde_json::from_value(controller.clone()).ok()
}
