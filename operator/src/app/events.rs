//! Tells the owners of pods what the webhook has decided, as Events.

use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::AppError;
use crate::webhook::Note;

/// The most bytes of the sentence of an Event.
const SENTENCE_BYTES_MAX: usize = 1024;

/// How long one Event may take; Events are for people, and the next one waits.
const DEADLINE: Duration = Duration::from_secs(5);

/// Writes notes as they come. Repeated ones are counted by the API, not written again.
pub(super) async fn write(
    client: Client,
    mut notes: mpsc::Receiver<Note>,
    instance: String,
    stop: CancellationToken,
) -> Result<(), AppError> {
    let reporter = Reporter { controller: "tensorlane-operator".to_owned(), instance: Some(instance) };
    let recorder = Recorder::new(client.clone(), reporter);
    loop {
        let note = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            note = notes.recv() => match note {
                Some(note) => note,
                // The webhook is gone; whoever ended it says why.
                None => {
                    stop.cancelled().await;
                    return Ok(());
                }
            },
        };
        let written = tokio::time::timeout(DEADLINE, one(&client, &recorder, note)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "an Event cannot be written"),
            Err(_) => tracing::debug!("an Event takes too long"),
        }
    }
}

async fn one(client: &Client, recorder: &Recorder, note: Note) -> Result<(), kube::Error> {
    let owner = top(client, &note).await;
    let reference = ObjectReference {
        api_version: Some(owner.api_version),
        kind: Some(owner.kind),
        name: Some(owner.name),
        namespace: Some(note.namespace),
        uid: Some(owner.uid),
        ..ObjectReference::default()
    };
    let event = Event {
        type_: if note.warning { EventType::Warning } else { EventType::Normal },
        reason: note.reason.to_owned(),
        note: Some(cut(note.sentence)),
        action: "Inject".to_owned(),
        secondary: None,
    };
    recorder.publish(&event, &reference).await
}

/// People look at a Deployment, not at its ReplicaSets.
async fn top(client: &Client, note: &Note) -> OwnerReference {
    if note.owner.kind != "ReplicaSet" {
        return note.owner.clone();
    }
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), &note.namespace);
    let set = sets.get_metadata_opt(&note.owner.name).await.ok().flatten();
    let owners = set.and_then(|set| set.metadata.owner_references).unwrap_or_default();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
    controller.unwrap_or_else(|| note.owner.clone())
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
