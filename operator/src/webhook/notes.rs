//! Notes for the owner of a pod, later: the answer to the API server does not wait for an Event.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::mpsc;

use super::lookups::Owner;
use super::rates::{Rate, Rates};
use crate::dns::Label;
use crate::plan::{Decision, Outcome};

/// The most notes that wait. More are dropped: Events are for people, and a thousand at once are read by nobody.
pub const NOTES_MAX: usize = 1024;

/// Notes of a namespace: so many at once, and five a second. Pods of one namespace that are made without end take no
/// Events of others.
const OF_NAMESPACE: Rate = Rate { burst: 64, every: Duration::from_millis(200) };

/// The most bytes of a sentence, which are those of an Event. Notes that wait keep them.
const SENTENCE_BYTES_MAX: usize = 1024;

/// A single sentence for the owner of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// The namespace of both.
    pub namespace: Label,
    /// Owner, which made the pod.
    pub owner: Owner,
    /// A word for machines.
    pub reason: &'static str,
    /// A sentence for people, at most 1,024 bytes.
    pub sentence: String,
    /// Somebody has to act.
    pub warning: bool,
}

/// Channel into which notes go.
#[derive(Clone, Debug)]
pub struct Notes {
    queue: mpsc::Sender<Note>,
    rates: Arc<Rates>,
}

impl Notes {
    /// A queue of at most [`NOTES_MAX`].
    pub fn new() -> (Notes, mpsc::Receiver<Note>) {
        let (queue, receiver) = mpsc::channel(NOTES_MAX);
        (Notes { queue, rates: Arc::new(Rates::new(OF_NAMESPACE)) }, receiver)
    }

    /// Leaves a note of each thing that the owner of this pod should know; false where there was no room, or there were
    /// too many of this namespace.
    pub fn leave(&self, namespace: &Label, pod: &Value, outcome: &Outcome) -> bool {
        let now = Instant::now();
        let mut all = notes(namespace, pod, outcome).into_iter();
        all.all(|note| self.rates.take(namespace, now) && self.queue.try_send(note).is_ok())
    }
}

/// Notes that the owner should know. A pod that nobody owns tells its author by the answer itself.
fn notes(namespace: &Label, pod: &Value, outcome: &Outcome) -> Vec<Note> {
    let Some(owner) = Owner::of_pod(pod) else { return Vec::new() };
    let note = |reason, sentence: String, warning| Note {
        namespace: namespace.clone(),
        owner: owner.clone(),
        reason,
        sentence: cut(sentence),
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

/// Cut at a letter, not within one.
fn cut(mut sentence: String) -> String {
    let end = (0..=SENTENCE_BYTES_MAX.min(sentence.len())).rev().find(|end| sentence.is_char_boundary(*end));
    sentence.truncate(end.unwrap_or(0));
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_sentence_is_cut_between_letters() {
        assert_eq!(cut("short".to_owned()), "short");
        let long = format!("{}ää", "x".repeat(SENTENCE_BYTES_MAX - 1));
        assert_eq!(cut(long).len(), SENTENCE_BYTES_MAX - 1);
    }
}
