//! Status of peers and exchanges: conditions and counts. Pure; none if everything is said already.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tensorlane_proto::crd::{ExchangeStatus, TensorExchange, TensorPeer};

use super::dereference::PodFacts;
use crate::abilities::{Abilities, unsupported};
use crate::manifests::Gap;

/// The word and the sentence of a condition.
type Why = (&'static str, String);

/// Condition that says whether others can reach the peer, if that is not said yet.
pub(super) fn peer_condition(
    pod: &PodFacts,
    peer: &TensorPeer,
    old: Option<&Condition>,
    now: &str,
) -> Option<Condition> {
    let (ready, (reason, message)) = readiness(pod, peer);
    condition("Ready", ready, reason, message, peer.metadata.generation, old, now)
}

/// Condition of a peer whose pod is gone and that nobody collects, if that is not said yet.
pub(super) fn abandoned_condition(
    peer: &TensorPeer,
    old: Option<&Condition>,
    now: &str,
) -> Option<Condition> {
    let message = "its pod is gone and nothing owns it: delete this TensorPeer".to_owned();
    condition("Ready", false, "PodGone", message, peer.metadata.generation, old, now)
}

fn readiness(pod: &PodFacts, peer: &TensorPeer) -> (bool, Why) {
    let published = peer
        .status
        .as_ref()
        .is_some_and(|status| status.incarnation.is_some() && !status.fingerprints.is_empty());
    let why = match pod {
        _ if pod.ended => ("PodEnded", "the pod's containers have ended"),
        _ if pod.ending => ("PodEnding", "the pod is being deleted"),
        _ if pod.node_lost => ("NodeLost", "the pod's node does not answer"),
        _ if !pod.sidecar_ready => ("SidecarNotReady", "the sidecar's container is not ready"),
        _ if !published => ("NotPublished", "the sidecar has not said yet how it is reached"),
        _ if pod.ips.is_empty() => ("NoPodIP", "Kubernetes has told no IP of the pod yet: nobody dials it"),
        _ => ("Published", "other peers can reach the sidecar"),
    };
    (why.0 == "Published", (why.0, why.1.to_owned()))
}

/// Status of an exchange, if it is not said yet.
pub(super) fn exchange_status(
    exchange: &TensorExchange,
    members: &[&PodFacts],
    peers: &BTreeMap<String, &TensorPeer>,
    gap: Option<&Gap>,
    now: &str,
) -> Option<ExchangeStatus> {
    let is_ready = |pod: &&&PodFacts| {
        peers.get(&pod.name).is_some_and(|peer| peer.spec.pod_uid == pod.uid && readiness(pod, peer).0)
    };
    let ready = members.iter().filter(is_ready).count();
    let old = exchange.status.clone().unwrap_or_default();
    let was = |kind: &str| old.conditions.iter().find(|condition| condition.type_ == kind);
    let generation = exchange.metadata.generation;
    let (can, (reason, message)) = acceptance(exchange, gap);
    let accepted = condition("Accepted", can, reason, message, generation, was("Accepted"), now);
    let (all, (reason, message)) = completeness(members.len(), ready);
    let complete = condition("Ready", all, reason, message, generation, was("Ready"), now);
    let status = ExchangeStatus {
        peers: i32::try_from(members.len()).ok(),
        ready_peers: i32::try_from(ready).ok(),
        observed_generation: generation,
        conditions: [("Accepted", &accepted), ("Ready", &complete)]
            .into_iter()
            .filter_map(|(kind, new)| new.clone().or_else(|| was(kind).cloned()))
            .collect(),
    };
    let counts = |status: &ExchangeStatus| (status.peers, status.ready_peers, status.observed_generation);
    let news = accepted.is_some() || complete.is_some() || counts(&status) != counts(&old);
    news.then_some(status)
}

/// News about `Accepted`. That a new exchange is accepted is no news: it is what everybody expects.
pub(super) fn acceptance_news(exchange: &TensorExchange, status: &ExchangeStatus) -> Option<Condition> {
    let of = |status: &ExchangeStatus| {
        status.conditions.iter().find(|condition| condition.type_ == "Accepted").cloned()
    };
    let (old, new) = (exchange.status.as_ref().and_then(of), of(status)?);
    let is_news = match &old {
        Some(old) => (&old.status, &old.reason, &old.message) != (&new.status, &new.reason, &new.message),
        None => new.status != "True",
    };
    is_news.then_some(new)
}

/// Acceptance of an exchange. If nobody guards peers none can join, whatever the exchange says.
fn acceptance(exchange: &TensorExchange, gap: Option<&Gap>) -> (bool, Why) {
    if let Some(gap) = gap {
        return (false, (gap.reason, gap.message()));
    }
    let lacks = unsupported(&exchange.spec, &Abilities::THIS_RELEASE);
    if lacks.is_empty() {
        return (true, ("Accepted", "pods may join".to_owned()));
    }
    let lacks: Vec<String> = lacks.iter().map(ToString::to_string).collect();
    (false, ("Unsupported", format!("its pods are refused: {}", lacks.join("; "))))
}

fn completeness(members: usize, ready: usize) -> (bool, Why) {
    match members {
        0 => (false, ("NoPeers", "no pod belongs to the exchange".to_owned())),
        _ if ready == members => (true, ("AllReady", format!("all {members} peers can be reached"))),
        _ => (false, ("PeersNotReady", format!("{ready} of {members} peers can be reached"))),
    }
}

/// A condition, where it says anything else than the old one. The time changes with the status only.
fn condition(
    kind: &str,
    holds: bool,
    reason: &str,
    message: String,
    generation: Option<i64>,
    old: Option<&Condition>,
    now: &str,
) -> Option<Condition> {
    let status = if holds { "True" } else { "False" };
    let kept = old.filter(|old| old.status == status);
    if kept.is_some_and(|old| {
        old.reason == reason && old.message == message && old.observed_generation == generation
    }) {
        return None;
    }
    let time = kept.map(|old| old.last_transition_time.clone()).or_else(|| time(now))?;
    Some(Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time: time,
    })
}

fn time(text: &str) -> Option<Time> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
}
