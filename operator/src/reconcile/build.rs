//! Actions to take in a namespace. Pure: the same scene gives the same actions. Applying them again changes nothing: a
//! RoleBinding is not looked at before it is applied, so that nobody needs the permission to read them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::{Resource, ResourceExt};
use tensorlane_proto::crd::{DEFAULT_EXCHANGE, ExchangeStatus, PeerSpec, TensorPeer};

use super::dereference::{PodFacts, Scene};
use super::status::{abandoned_condition, acceptance_news, exchange_status, peer_condition};

/// Action to take, in one call or two.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make `TensorExchange/default`, which people change afterwards.
    MakeDefaultExchange,
    /// Let the pods of the namespace read its peers and write their own status.
    ApplyRoleBinding {
        /// The exchanges of the namespace, or where there is none its living pods. With the last of them the permission
        /// goes, too.
        owners: Vec<OwnerReference>,
    },
    /// Make the peer of a pod, or bring it up to date.
    ApplyPeer {
        /// The pod's name, and the peer's.
        name: String,
        /// Spec that it should have.
        spec: PeerSpec,
        /// The version of the peer that was seen, where it was that of another pod of this name: what it said of itself is
        /// of the past. It is forgotten only where it still says it.
        forgets: Option<String>,
    },
    /// Say whether others can reach a peer.
    SetPeerCondition {
        /// The peer's name.
        name: String,
        /// Condition that is said.
        condition: Condition,
    },
    /// Say what is seen of an exchange.
    SetExchangeStatus {
        /// The exchange's name.
        name: String,
        /// Status that is said; its conditions are those of ours.
        status: ExchangeStatus,
    },
    /// Write an Event on an exchange: it is accepted, or no more, or for another reason not.
    ReportExchange {
        /// The exchange's name.
        name: String,
        /// UID of the exchange.
        uid: Option<String>,
        /// Condition that it is told; `Accepted`.
        condition: Condition,
    },
}

/// Builds the actions to take, in their order.
pub fn build(scene: &Scene, now: &str) -> Vec<Action> {
    let mut actions = Vec::new();
    let living: Vec<&PodFacts> = scene.pods.iter().filter(|pod| !pod.ended).collect();
    let has_default = scene.exchanges.iter().any(|exchange| exchange.name_any() == DEFAULT_EXCHANGE);
    // Pods that go away with everything else, as with their namespace, have no use for it any more.
    if !has_default && living.iter().any(|pod| !pod.ending && pod.exchange == DEFAULT_EXCHANGE) {
        actions.push(Action::MakeDefaultExchange);
    }
    let owners = owners(scene, &living);
    if scene.gap.is_none() && !owners.is_empty() {
        actions.push(Action::ApplyRoleBinding { owners });
    }
    let peers: BTreeMap<String, &TensorPeer> =
        scene.peers.iter().map(|peer| (peer.name_any(), peer)).collect();
    for pod in &scene.pods {
        let peer = peers.get(&pod.name).copied();
        if is_admitted(pod, peer, scene) {
            actions.extend(peer_spec(pod, peer));
        }
        // What the status of another pod's peer says is no news of this pod.
        if let Some(peer) = peer.filter(|peer| peer.spec.pod_uid == pod.uid) {
            actions.extend(condition_of(pod, peer, now));
        }
    }
    actions.extend(abandoned(scene, now));
    actions.extend(exchange_statuses(scene, &peers, now));
    actions
}

/// Returns whether a pod may belong to its exchange. One that says so by its label alone was never shown to the
/// webhook. Who has a peer already stays: members that are taken away are those of pods to come.
fn is_admitted(pod: &PodFacts, peer: Option<&TensorPeer>, scene: &Scene) -> bool {
    let belongs = |peer: &TensorPeer| peer.spec.pod_uid == pod.uid && peer.spec.exchange == pod.exchange;
    if pod.exchange == DEFAULT_EXCHANGE || peer.is_some_and(belongs) {
        return true;
    }
    let exchange = scene.exchanges.iter().find(|exchange| exchange.name_any() == pod.exchange);
    // While it is away nobody new comes in: it may say members when it is back.
    exchange.is_some_and(|exchange| exchange.spec.admits(&pod.account))
}

/// None of them controls it, each keeps it. Where an exchange was deleted under its pods there may be none: the pods go
/// on, and keep it themselves. Whoever collects garbage takes it with the last of them, also without an operator.
fn owners(scene: &Scene, living: &[&PodFacts]) -> Vec<OwnerReference> {
    let mut owners: Vec<OwnerReference> =
        scene.exchanges.iter().filter_map(|exchange| exchange.owner_ref(&())).collect();
    if owners.is_empty() {
        owners = living.iter().map(|pod| owner(pod)).collect();
    }
    // Watches give them in any order, and another order would be a change.
    owners.sort_by(|one, other| one.uid.cmp(&other.uid));
    owners.truncate(OWNERS_MAX);
    owners
}

fn owner(pod: &PodFacts) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        ..OwnerReference::default()
    }
}

/// The most owners of a permission, each of which takes about 150 bytes of it. Others take the place of those that go. Only
/// where all of them go while no operator runs does the permission go before the rest.
const OWNERS_MAX: usize = 500;

fn peer_spec(pod: &PodFacts, peer: Option<&TensorPeer>) -> Option<Action> {
    // A pod that ends for good needs no new peer.
    if peer.is_none() && (pod.ended || pod.ending) {
        return None;
    }
    let spec = PeerSpec {
        exchange: pod.exchange.clone(),
        pod_uid: pod.uid.clone(),
        node: pod.node.clone(),
        pod_ips: Some(pod.ips.clone()),
    };
    let owned = peer.is_some_and(|peer| peer.owner_references().iter().any(|owner| owner.uid == pod.uid));
    if owned && peer.is_some_and(|peer| peer.spec == spec) {
        return None;
    }
    let former = peer.filter(|peer| peer.spec.pod_uid != pod.uid && peer.status.is_some());
    let forgets = former.and_then(ResourceExt::resource_version);
    Some(Action::ApplyPeer { name: pod.name.clone(), spec, forgets })
}

/// Condition of a peer that says whether others reach it, as it stands.
fn ready(peer: &TensorPeer) -> Option<&Condition> {
    peer.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == "Ready")
}

fn condition_of(pod: &PodFacts, peer: &TensorPeer, now: &str) -> Option<Action> {
    let condition = peer_condition(pod, peer, ready(peer), now)?;
    Some(Action::SetPeerCondition { name: pod.name.clone(), condition })
}

/// Conditions of peers whose pods are gone and that nobody collects: their owner was taken off, as by a deletion with
/// `--cascade=orphan`. Of others it is known soon enough, and a list of pods may be behind that of peers.
fn abandoned<'a>(scene: &'a Scene, now: &'a str) -> impl Iterator<Item = Action> + 'a {
    let uids: BTreeSet<&str> = scene.pods.iter().map(|pod| pod.uid.as_str()).collect();
    let is_abandoned = move |peer: &&TensorPeer| {
        peer.owner_references().is_empty() && !uids.contains(peer.spec.pod_uid.as_str())
    };
    scene.peers.iter().filter(is_abandoned).filter_map(|peer| {
        let condition = abandoned_condition(peer, ready(peer), now)?;
        Some(Action::SetPeerCondition { name: peer.name_any(), condition })
    })
}

fn exchange_statuses(scene: &Scene, peers: &BTreeMap<String, &TensorPeer>, now: &str) -> Vec<Action> {
    let statuses = scene.exchanges.iter().filter_map(|exchange| {
        let uid = exchange.metadata.uid.clone();
        let name = exchange.name_any();
        let members: Vec<&PodFacts> =
            scene.pods.iter().filter(|pod| !pod.ended && pod.exchange == name).collect();
        let peer = |pod: &PodFacts| peers.get(&pod.name).copied();
        // Whoever is not admitted keeps no exchange from being ready.
        let members: Vec<&PodFacts> =
            members.into_iter().filter(|pod| is_admitted(pod, peer(pod), scene)).collect();
        let status = exchange_status(exchange, &members, peers, scene.gap.as_ref(), now)?;
        let report = acceptance_news(exchange, &status).map(|condition| Action::ReportExchange {
            name: name.clone(),
            uid,
            condition,
        });
        Some(std::iter::once(Action::SetExchangeStatus { name, status }).chain(report))
    });
    statuses.flatten().collect()
}
