//! Tells the owners of pods what the webhook has decided, as Events.

use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::AppError;
use crate::dns::{Label, Subdomain};
use crate::webhook::{Note, Owner};

/// Time that one Event may take; Events are for people, and the next one waits.
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
        name: Some(owner.name.to_string()),
        namespace: Some(note.namespace.to_string()),
        uid: Some(owner.uid),
        ..ObjectReference::default()
    };
    let event = Event {
        type_: if note.warning { EventType::Warning } else { EventType::Normal },
        reason: note.reason.to_owned(),
        note: Some(note.sentence),
        action: "Inject".to_owned(),
        secondary: None,
    };
    recorder.publish(&event, &reference).await
}

/// People look at a Deployment, not at its ReplicaSets, and at a CronJob, not at its Jobs.
async fn top(client: &Client, note: &Note) -> Owner {
    let (namespace, name) = (&note.namespace, &note.owner.name);
    let metadata = match note.owner.kind.as_str() {
        "ReplicaSet" => metadata::<ReplicaSet>(client, namespace, name).await,
        "Job" => metadata::<Job>(client, namespace, name).await,
        _ => None,
    };
    let owners = metadata.and_then(|metadata| metadata.owner_references).unwrap_or_default();
    let controller = owners.iter().find(|owner| owner.controller == Some(true));
    controller.and_then(Owner::of).unwrap_or_else(|| note.owner.clone())
}

async fn metadata<K>(client: &Client, namespace: &Label, name: &Subdomain) -> Option<ObjectMeta>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let all: Api<K> = Api::namespaced(client.clone(), namespace.as_str());
    all.get_metadata_opt(name.as_str()).await.ok().flatten().map(|found| found.metadata)
}
