//! Which way bytes would go between the peers of an exchange, by what they have published and what the exchange allows.
//!
//! The choice is that of the sidecars, `negotiate` of the protocol. What only a pair of sidecars finds out by trying (that
//! they share a node, how fast a link is, what failed lately) is not known here.

use serde::Serialize;
use tensorlane_proto::crd::{
    Encryption as EncryptionWord, ExchangeSpec, Requirement, SameNode, TensorPeer, TransportKind,
};
use tensorlane_proto::device::Device;
use tensorlane_proto::negotiate::{
    Encryption, Measured, Offer, Policy, Refusal, Require, Transport, TransportOffer, TransportSet,
    VersionRange, What, negotiate,
};
use tensorlane_proto::selection::SelectionKind;

/// The way between two peers, in either direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairRoute {
    /// One of them.
    pub a: String,
    /// The other one.
    pub b: String,
    /// The transport; absent where there is no way, or one of them has not published.
    pub transport: Option<&'static str>,
    /// Why it is not a better one, or why there is none.
    pub refusals: Vec<String>,
}

/// Every pair of the peers, by name.
pub fn pairs(peers: &[TensorPeer], spec: &ExchangeSpec) -> Vec<PairRoute> {
    let mut all: Vec<(String, Option<Offer>)> =
        peers.iter().map(|peer| (peer.metadata.name.clone().unwrap_or_default(), offer(peer))).collect();
    all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut pairs = Vec::new();
    for (index, a) in all.iter().enumerate() {
        pairs.extend(all[index + 1..].iter().map(|b| pair(a, b, spec)));
    }
    pairs
}

fn pair(a: &(String, Option<Offer>), b: &(String, Option<Offer>), spec: &ExchangeSpec) -> PairRoute {
    let words = |refusals: &[Refusal]| refusals.iter().map(ToString::to_string).collect();
    let (transport, refusals) = match (&a.1, &b.1) {
        (Some(ours), Some(theirs)) => {
            match negotiate(ours, theirs, &what(spec), &policy(spec), &Measured::default()) {
                Ok(route) => (Some(route.transport.as_str()), words(&route.refusals)),
                Err(none) => (None, words(&none.refusals)),
            }
        }
        (ours, _) => {
            let silent = if ours.is_none() { &a.0 } else { &b.0 };
            (None, vec![format!("{silent} has not published what it speaks")])
        }
    };
    PairRoute { a: a.0.clone(), b: b.0.clone(), transport, refusals }
}

/// A plain transfer of host memory.
fn what(spec: &ExchangeSpec) -> What {
    let add = |require: Require, word: &Requirement| {
        require.and(match word {
            Requirement::ZeroCopy => Require::ZERO_COPY,
            Requirement::SameNode => Require::SAME_NODE,
            Requirement::Encrypted => Require::ENCRYPTED,
        })
    };
    let require = spec.require.iter().flatten().fold(Require::NONE, add);
    What { bytes: 0, device: Device::Host, selection: SelectionKind::All, require }
}

fn policy(spec: &ExchangeSpec) -> Policy {
    let listed = spec
        .transports
        .as_ref()
        .map(|all| all.iter().map(|kind| transport(*kind)).collect::<TransportSet>().with(Transport::Local));
    let shares = spec.same_node.is_some_and(|word| word != SameNode::Off);
    let usual = Policy::default().allow;
    let plain = spec.security.as_ref().and_then(|security| security.encryption) == Some(EncryptionWord::None);
    Policy {
        allow: listed.unwrap_or(if shares { usual.with(Transport::Shm) } else { usual }),
        encryption: if plain { Encryption::None } else { Encryption::Tls },
        prefer: None,
    }
}

fn transport(kind: TransportKind) -> Transport {
    match kind {
        TransportKind::Shm => Transport::Shm,
        TransportKind::CudaIpc => Transport::CudaIpc,
        TransportKind::Tcp => Transport::Tcp,
        TransportKind::Quic => Transport::Quic,
    }
}

/// What a peer has published; none where it has not, or where it makes no sense.
fn offer(peer: &TensorPeer) -> Option<Offer> {
    let status = peer.status.as_ref()?;
    let said = status.offer.as_ref()?;
    let one = |offered: &tensorlane_proto::crd::OfferedTransport| TransportOffer {
        gpu_memory: offered.gpu_memory,
        addresses: offered.addresses.clone(),
        ..TransportOffer::new(transport(offered.transport))
    };
    Some(Offer {
        peer: peer.metadata.name.as_deref()?.parse().ok()?,
        incarnation: status.incarnation.as_deref()?.parse().ok()?,
        versions: VersionRange {
            min: u16::try_from(said.version_min).ok()?,
            max: u16::try_from(said.version_max).ok()?,
        },
        transports: said.transports.iter().map(one).collect(),
        node: None,
        gpus: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn peer(name: &str, transports: &[&str]) -> TensorPeer {
        let offered: Vec<_> = transports
            .iter()
            .map(|word| json!({"transport": word, "addresses": ["10.0.0.1:9421"]}))
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "tensorlane.dev/v1alpha1", "kind": "TensorPeer", "metadata": {"name": name},
            "spec": {"exchange": "default", "podUID": "u"},
            "status": {
                "incarnation": format!("{:032x}", 7),
                "offer": {"versionMin": 1, "versionMax": 1, "transports": offered},
            },
        }))
        .unwrap()
    }

    fn spec(spec: serde_json::Value) -> ExchangeSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn shown(pairs: &[PairRoute]) -> Vec<String> {
        let one = |pair: &PairRoute| {
            format!(
                "{}-{} {} ({})",
                pair.a,
                pair.b,
                pair.transport.unwrap_or("none"),
                pair.refusals.join(", ")
            )
        };
        pairs.iter().map(one).collect()
    }

    #[test]
    fn every_pair_has_its_way_and_says_why_not_a_better_one() {
        let peers = [peer("b", &["tcp"]), peer("a", &["tcp"]), peer("c", &["quic"])];
        let all = pairs(&peers, &ExchangeSpec::default());
        let told = shown(&all);
        assert_eq!(told[0], "a-b tcp (not shm: policy)");
        assert!(told[1].starts_with("a-c none") && told[1].contains("not tcp: not_offered"), "{told:?}");
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn an_exchange_that_requires_or_forbids_is_heard() {
        let peers = [peer("a", &["tcp"]), peer("b", &["tcp"])];
        let same_node = shown(&pairs(&peers, &spec(json!({"require": ["same_node"]}))));
        assert!(
            same_node[0].contains("none") && same_node[0].contains("not tcp: not_same_node"),
            "{same_node:?}"
        );
        let no_tcp = shown(&pairs(&peers, &spec(json!({"transports": ["quic"]}))));
        assert!(no_tcp[0].contains("not tcp: policy"), "{no_tcp:?}");
        let encrypted = shown(&pairs(&peers, &spec(json!({"require": ["encrypted"], "sameNode": "claim"}))));
        assert_eq!(encrypted, ["a-b tcp (not shm: not_offered)"]);
    }

    #[test]
    fn a_peer_that_has_not_published_is_named() {
        let mut silent = peer("b", &["tcp"]);
        silent.status = None;
        let told = shown(&pairs(&[peer("a", &["tcp"]), silent], &ExchangeSpec::default()));
        assert_eq!(told, ["a-b none (b has not published what it speaks)"]);
    }
}
