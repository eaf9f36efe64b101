//! A `TensorPeer` as this directory reads it: the fields that it needs, so that words that a newer version adds do
//! not make a list unreadable, and nothing else is kept.

use std::net::SocketAddr;

use serde::Deserialize;
use serde_json::Value;
use tensorlane_proto::crd::is_at_pod;
use tensorlane_proto::identity::Fingerprint;

use super::super::{ADDRESSES_MAX, FINGERPRINTS_MAX, PeerEntry};
use crate::metrics::label::LeftOut;

/// An object as the API server shows it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct SeenPeer {
    pub(super) metadata: SeenMeta,
    #[serde(default)]
    pub(super) spec: SeenSpec,
    pub(super) status: Option<SeenStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SeenMeta {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) generation: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SeenSpec {
    pub(super) node: Option<String>,
    #[serde(rename = "podIPs")]
    pub(super) pod_ips: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SeenStatus {
    pub(super) incarnation: Option<String>,
    pub(super) addresses: Vec<String>,
    pub(super) fingerprints: Vec<String>,
    pub(super) offer: Option<Value>,
    pub(super) observed_generation: Option<i64>,
    pub(super) conditions: Vec<Value>,
}

/// Returns whether a condition says that the pod's containers have ended for good, as the operator sees it: nobody
/// answers there.
fn has_ended(condition: &Value) -> bool {
    condition["type"] == "Ready" && condition["status"] == "False" && condition["reason"] == "PodEnded"
}

/// Returns whether an address may be that of a pod: a pod says so itself, and all others dial it. A name could stand
/// for anything at any time, and some addresses are those of whoever dials.
fn is_of_a_pod(text: &str) -> bool {
    let address: Option<SocketAddr> = text.parse().ok();
    address.is_some_and(|address| {
        let ip = address.ip().to_canonical();
        address.port() > 0 && !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
    })
}

impl SeenPeer {
    /// The entry of the table. Of its addresses it has those at the pod's own IPs: a pod says what it likes, and all others
    /// would dial it. Its key is believed whatever it says of addresses, so that it may still call others.
    ///
    /// # Errors
    /// Why it is left out: a peer that has said nothing yet, or something that is no entry.
    pub(super) fn entry(&self) -> Result<PeerEntry, LeftOut> {
        let name = self.metadata.name.parse().map_err(|_| LeftOut::Name)?;
        let status = self.status.as_ref().filter(|status| !status.fingerprints.is_empty());
        let status = status.ok_or(LeftOut::NotPublished)?;
        if status.conditions.iter().any(has_ended) {
            return Err(LeftOut::Ended);
        }
        let wrong_address = |text: &String| !is_of_a_pod(text);
        if status.addresses.len() > ADDRESSES_MAX || status.addresses.iter().any(wrong_address) {
            return Err(LeftOut::Address);
        }
        let read: Result<Vec<Fingerprint>, _> = status.fingerprints.iter().map(|text| text.parse()).collect();
        let mut fingerprints = read.map_err(|_| LeftOut::Fingerprint)?;
        fingerprints.dedup();
        if fingerprints.len() > FINGERPRINTS_MAX {
            return Err(LeftOut::Fingerprint);
        }
        Ok(PeerEntry {
            name,
            addresses: status.addresses.iter().filter(|one| self.is_own(one)).cloned().collect(),
            fingerprints,
            node: self.spec.node.clone(),
            awaits_ip: self.spec.pod_ips.as_ref().is_some_and(Vec::is_empty),
        })
    }

    fn is_own(&self, address: &str) -> bool {
        is_at_pod(address, self.spec.pod_ips.as_deref())
    }

    /// Addresses that the peer says of itself and that are not at its pod's IPs.
    pub(super) fn foreign_addresses(&self) -> usize {
        let said = self.status.iter().flat_map(|status| &status.addresses);
        said.take(ADDRESSES_MAX).filter(|one| !self.is_own(one)).count()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seen(status: &Value) -> SeenPeer {
        let object = json!({
            "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer",
            "metadata": {"name": "trainer-0", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}},
            "spec": {"exchange": "ml", "podUID": "p", "node": "node-a"},
            "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    fn key(digits: &str) -> String {
        format!("sha256:{}", digits.repeat(32))
    }

    #[test]
    fn an_object_is_an_entry_whatever_newer_words_it_has() {
        let peer = seen(&json!({
            "incarnation": "0".repeat(32), "addresses": ["10.0.0.7:9421", "[fd00::7]:9421"],
            "fingerprints": [key("0a"), key("0b")], "color": "green",
            "offer": {"transports": [{"transport": "carrier-pigeon", "wings": 2}]},
            "conditions": [{"type": "Ready", "status": "Perhaps"}],
        }));
        let entry = peer.entry().unwrap();
        assert_eq!(entry.name.as_str(), "trainer-0");
        assert_eq!(entry.addresses, ["10.0.0.7:9421", "[fd00::7]:9421"]);
        assert_eq!(
            entry.fingerprints.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [key("0a"), key("0b")]
        );
        assert_eq!(entry.node.as_deref(), Some("node-a"));
    }

    #[test]
    fn a_peer_that_only_calls_others_is_an_entry_without_addresses() {
        let entry = seen(&json!({"fingerprints": [key("0a"), key("0a")]})).entry().unwrap();
        assert_eq!((entry.addresses.len(), entry.fingerprints.len()), (0, 1));
    }

    #[test]
    fn an_address_that_is_not_the_pods_own_is_dialed_by_nobody_and_the_peer_may_still_call() {
        let said = json!({"fingerprints": [key("0a")], "addresses": ["10.0.0.1:6443", "10.0.0.7:9421", "[fd00::7]:9421"]});
        let with = |pod_ips: Option<&[&str]>| {
            let mut peer = seen(&said);
            peer.spec.pod_ips = pod_ips.map(|all| all.iter().map(|&one| one.to_owned()).collect());
            let entry = peer.entry().unwrap();
            assert_eq!(entry.awaits_ip, pod_ips == Some(&[]));
            (entry.addresses, peer.foreign_addresses())
        };
        assert_eq!(with(Some(&["10.0.0.7"])), (vec!["10.0.0.7:9421".to_owned()], 2));
        let both = vec!["10.0.0.7:9421".to_owned(), "[fd00::7]:9421".to_owned()];
        assert_eq!(with(Some(&["fd00::7", "10.0.0.7"])), (both, 1));
        assert_eq!(with(Some(&[])), (Vec::new(), 3), "the pod has no address yet");
        assert_eq!(with(None).1, 0, "an operator of an earlier release says nothing of it");
    }

    #[test]
    fn what_is_no_entry_is_left_out_with_the_reason() {
        let fine = key("0a");
        for (status, why) in [
            (json!(null), LeftOut::NotPublished),
            (json!({}), LeftOut::NotPublished),
            (
                json!({"fingerprints": [fine], "conditions": [{"type": "Ready", "status": "False", "reason": "PodEnded"}]}),
                LeftOut::Ended,
            ),
            (json!({"addresses": ["a:1"]}), LeftOut::NotPublished),
            (json!({"fingerprints": ["sha256:12"]}), LeftOut::Fingerprint),
            (json!({"fingerprints": [fine, "md5:1"]}), LeftOut::Fingerprint),
            (json!({"fingerprints": [key("0a"), key("0b"), key("0c")]}), LeftOut::Fingerprint),
            (json!({"fingerprints": [fine], "addresses": ["10.0.0.7"]}), LeftOut::Address),
            (json!({"fingerprints": [fine], "addresses": ["10.0.0.7:0"]}), LeftOut::Address),
            (
                json!({"fingerprints": [fine], "addresses": vec!["10.0.0.7:1"; ADDRESSES_MAX + 1]}),
                LeftOut::Address,
            ),
            (json!({"fingerprints": [fine], "addresses": ["metadata.internal:80"]}), LeftOut::Address),
            (json!({"fingerprints": [fine], "addresses": ["127.0.0.1:9421"]}), LeftOut::Address),
            (json!({"fingerprints": [fine], "addresses": ["[::ffff:127.0.0.1]:9421"]}), LeftOut::Address),
            (json!({"fingerprints": [fine], "addresses": ["0.0.0.0:9421"]}), LeftOut::Address),
            (
                json!({"fingerprints": [fine], "addresses": ["10.0.0.7:9421", "[ff02::1]:9421"]}),
                LeftOut::Address,
            ),
        ] {
            assert_eq!(seen(&status).entry(), Err(why), "{status}");
        }
        let nameless = SeenPeer {
            metadata: SeenMeta { name: "A_b".to_owned(), ..SeenMeta::default() },
            ..seen(&json!({}))
        };
        assert_eq!(nameless.entry(), Err(LeftOut::Name));
    }
}
