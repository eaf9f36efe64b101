//! Status that this peer says of itself in its object, and whether that has to be said again. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use kube::Resource as _;
use serde_json::{Value, json};
use tensorlane_proto::crd::{OfferedTransport, PeerOffer, PeerStatus, TensorPeer};
use tensorlane_proto::negotiate::{Offer, TransportOffer};

use super::super::PublishedOffer;
use super::object::{SeenPeer, SeenStatus};

/// The condition that says whether others can reach the peer.
const READY: &str = "Ready";

/// Reason that the operator says there until the sidecar has said anything.
const NOT_PUBLISHED: &str = "NotPublished";

/// The status to write, if `seen` does not say it yet.
pub(super) fn due(offer: &PublishedOffer, seen: &SeenPeer, now: Timestamp) -> Option<PeerStatus> {
    let nothing = SeenStatus::default();
    let old = seen.status.as_ref().unwrap_or(&nothing);
    let wanted = PeerStatus {
        incarnation: Some(offer.offer.incarnation.to_string()),
        addresses: offer.entry.addresses.clone(),
        fingerprints: offer.entry.fingerprints.iter().map(ToString::to_string).collect(),
        offer: Some(peer_offer(&offer.offer)),
        observed_generation: seen.metadata.generation,
        conditions: vec![ready(old, seen.metadata.generation, now)],
    };
    (!says(old, &wanted)).then_some(wanted)
}

/// The body of a server-side apply.
pub(super) fn body(name: &str, status: &PeerStatus) -> Value {
    json!({
        "apiVersion": TensorPeer::api_version(&()),
        "kind": TensorPeer::kind(&()),
        "metadata": {"name": name},
        "status": status,
    })
}

/// True where nobody has said anything of readiness, or only that we had not. Everything else stays as it is: whether the
/// pod can be reached is the operator's to say, and two that correct each other would never end.
fn ready(old: &SeenStatus, generation: Option<i64>, now: Timestamp) -> Condition {
    let said = old.conditions.iter().find(|condition| condition["type"] == READY);
    let said = said.and_then(|condition| serde_json::from_value::<Condition>(condition.clone()).ok());
    match said {
        Some(said) if said.status == "True" || said.reason != NOT_PUBLISHED => said,
        _ => Condition {
            type_: READY.to_owned(),
            status: "True".to_owned(),
            reason: "Published".to_owned(),
            message: "other peers can reach the sidecar".to_owned(),
            observed_generation: generation,
            last_transition_time: Time(now.round(k8s_openapi::jiff::Unit::Second).unwrap_or(now)),
        },
    }
}

/// Returns whether the status that is there says all of this.
fn says(old: &SeenStatus, wanted: &PeerStatus) -> bool {
    let is_there = |condition: &Condition| {
        let read = |old: &Value| serde_json::from_value::<Condition>(old.clone()).ok();
        old.conditions.iter().filter_map(read).any(|old| old == *condition)
    };
    let offer = wanted.offer.as_ref().and_then(|offer| serde_json::to_value(offer).ok());
    old.incarnation == wanted.incarnation
        && old.addresses == wanted.addresses
        && old.fingerprints == wanted.fingerprints
        && old.offer == offer
        && old.observed_generation == wanted.observed_generation
        && wanted.conditions.iter().all(is_there)
}

fn peer_offer(offer: &Offer) -> PeerOffer {
    PeerOffer {
        version_min: offer.versions.min.into(),
        version_max: offer.versions.max.into(),
        transports: offer.transports.iter().filter_map(offered).collect(),
        node_token: offer.node.as_ref().map(|token| token.0.clone()),
        gpus: offer.gpus.iter().map(uuid).collect(),
    }
}

/// As tools print it: `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
fn uuid(bytes: &[u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*bytes));
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]).join("-")
}

/// `local` is nothing to offer to others: it has no word there.
fn offered(offer: &TransportOffer) -> Option<OfferedTransport> {
    Some(OfferedTransport {
        transport: offer.transport.as_str().parse().ok()?,
        addresses: offer.addresses.clone(),
        gpu_memory: offer.gpu_memory,
        detail: Some(offer.detail.clone()).filter(|detail| !detail.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::identity::{Fingerprint, Incarnation};
    use tensorlane_proto::negotiate::{Require, Transport, VersionRange};

    use super::super::super::PeerEntry;
    use super::*;

    fn offer(incarnation: u128) -> PublishedOffer {
        let entry = PeerEntry {
            name: "a".parse().unwrap(),
            addresses: vec!["10.0.0.7:9421".to_owned()],
            fingerprints: vec![Fingerprint([1; 32]), Fingerprint([2; 32])],
            node: None,
            awaits_ip: false,
        };
        let offer = Offer {
            peer: entry.name.clone(),
            incarnation: Incarnation(incarnation),
            versions: VersionRange { min: 1, max: 2 },
            transports: vec![
                TransportOffer::new(Transport::Local),
                TransportOffer::new(Transport::Tcp).at("10.0.0.7:9421"),
            ],
            node: None,
            gpus: Vec::new(),
            require: Require::NONE,
        };
        PublishedOffer { entry, offer }
    }

    fn object(generation: i64, status: &Value) -> SeenPeer {
        let metadata = json!({"name": "a", "uid": "u", "resourceVersion": "1", "generation": generation});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// The status that is there once it has been written over `old`.
    fn written(old: &Value, second: i64) -> Value {
        serde_json::to_value(due(&offer(7), &object(1, old), at(second)).unwrap()).unwrap()
    }

    #[test]
    fn gpus_have_their_uuids_as_tools_print_them() {
        let bytes = std::array::from_fn(|i| u8::try_from(i * 17).unwrap());
        assert_eq!(uuid(&bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn all_is_said_once_and_not_again() {
        let status = written(&json!(null), 0);
        assert_eq!(status["incarnation"], format!("{:032x}", 7));
        assert_eq!(status["addresses"], json!(["10.0.0.7:9421"]));
        assert_eq!(status["fingerprints"][1], Fingerprint([2; 32]).to_string());
        let tcp = json!([{"transport": "tcp", "addresses": ["10.0.0.7:9421"], "gpuMemory": false}]);
        assert_eq!(status["offer"], json!({"versionMin": 1, "versionMax": 2, "transports": tcp}));
        let ready = &status["conditions"][0];
        assert_eq!(
            (&ready["type"], &ready["status"], &ready["reason"]),
            (&json!("Ready"), &json!("True"), &json!("Published"))
        );
        assert_eq!(due(&offer(7), &object(1, &status), at(5)), None);
        let body = body("a", &serde_json::from_value(status).unwrap());
        assert_eq!(
            (&body["apiVersion"], &body["kind"]),
            (&json!("tensorlane.dev/v1alpha1"), &json!("TensorPeer"))
        );
    }

    #[test]
    fn a_new_life_a_new_generation_or_a_lost_field_is_said_and_the_transition_keeps_its_time() {
        let status = written(&json!(null), 0);
        let since = status["conditions"][0]["lastTransitionTime"].clone();
        let again = due(&offer(8), &object(1, &status), at(5)).unwrap();
        assert_eq!(serde_json::to_value(&again.conditions[0].last_transition_time).unwrap(), since);
        assert_eq!(due(&offer(7), &object(2, &status), at(5)).unwrap().observed_generation, Some(2));
        for field in ["incarnation", "addresses", "fingerprints", "offer", "conditions", "observedGeneration"]
        {
            let mut less = status.clone();
            less.as_object_mut().unwrap().remove(field);
            assert!(due(&offer(7), &object(1, &less), at(5)).is_some(), "{field}");
        }
    }

    #[test]
    fn what_the_operator_says_of_the_pod_is_not_contradicted() {
        let mut status = written(&json!(null), 0);
        let mut say = |reason: &str| {
            status["conditions"][0]["status"] = json!("False");
            status["conditions"][0]["reason"] = json!(reason);
            status.clone()
        };
        let lost = say("NodeLost");
        assert_eq!(due(&offer(7), &object(1, &lost), at(5)), None);
        let other_life = due(&offer(8), &object(1, &lost), at(5)).unwrap();
        assert_eq!(
            (other_life.conditions[0].reason.as_str(), other_life.conditions[0].status.as_str()),
            ("NodeLost", "False")
        );
        let unsaid = say("NotPublished");
        let now_said = due(&offer(7), &object(1, &unsaid), at(5)).unwrap();
        assert_eq!(now_said.conditions[0].status, "True");
        assert_eq!(now_said.conditions[0].last_transition_time, Time(at(5)));
    }
}
