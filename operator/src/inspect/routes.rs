//! Which way bytes would go between the peers of an exchange, by what they have published and what the exchange allows.
//!
//! The choice is that of the sidecars, `negotiate` of the protocol. What only a pair of sidecars finds out by trying (that
//! they share a node, how fast a link is, what failed lately) is not known here.

use std::collections::BTreeMap;

use serde::Serialize;
use tensorlane_proto::crd::{
    Encryption as EncryptionWord, ExchangeSpec, Requirement, SameNode, TensorPeer, TransportKind,
};
use tensorlane_proto::device::Device;
use tensorlane_proto::negotiate::{
    Encryption, Measured, Offer, Policy, Refusal, Require, Transport, TransportOffer, TransportSet,
    VersionRange, What, negotiate, own_up,
};
use tensorlane_proto::selection::SelectionKind;

use crate::annotations;

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

/// One end of a pair.
struct End {
    name: String,
    offer: Option<Offer>,
    /// What its pod requires of every route besides its exchange.
    require: Require,
}

/// What pods require of their routes by their own annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requires {
    /// What each requires, by its name; a pod that requires nothing is not there.
    pub of: BTreeMap<String, Require>,
    /// A sentence for each pod whose annotation makes no sense: it was changed after the pod was made.
    pub wrong: Vec<String>,
}

/// What pods require, by their names and annotations. They are read as the planner reads them.
pub fn requires(pods: &BTreeMap<String, BTreeMap<String, String>>) -> Requires {
    let mut requires = Requires::default();
    for (name, said) in pods {
        match annotations::required(said).map(|words| all_of(&words)) {
            Ok(Require::NONE) => {}
            Ok(require) => drop(requires.of.insert(name.clone(), require)),
            Err(bad) => requires.wrong.push(format!("pod {name}: {bad}")),
        }
    }
    requires
}

/// Every pair of the peers, by name. `requires`: what a pod requires of its routes, by its name.
pub fn pairs(
    peers: &[TensorPeer],
    spec: &ExchangeSpec,
    requires: &BTreeMap<String, Require>,
) -> Vec<PairRoute> {
    let end = |peer: &TensorPeer| {
        let name = peer.metadata.name.clone().unwrap_or_default();
        let require = requires.get(&name).copied().unwrap_or(Require::NONE);
        End { name, offer: offer(peer), require }
    };
    let mut all: Vec<End> = peers.iter().map(end).collect();
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let mut pairs = Vec::new();
    for (index, a) in all.iter().enumerate() {
        pairs.extend(all[index + 1..].iter().map(|b| pair(a, b, spec)));
    }
    pairs
}

fn pair(a: &End, b: &End, spec: &ExchangeSpec) -> PairRoute {
    // In the words of the sidecars, which blame no policy for what the release lacks.
    let words = |mut refusals: Vec<Refusal>| {
        own_up(&mut refusals, listed(spec));
        refusals.iter().map(ToString::to_string).collect()
    };
    // Whoever requires something asks for nothing else, and gives nothing otherwise.
    let what = what(spec, a.require.and(b.require));
    let (transport, refusals) = match (&a.offer, &b.offer) {
        (Some(ours), Some(theirs)) => {
            match negotiate(ours, theirs, &what, &policy(spec), &Measured::default()) {
                Ok(route) => (Some(route.transport.as_str()), words(route.refusals)),
                Err(none) => (None, words(none.refusals)),
            }
        }
        (ours, _) => {
            let silent = if ours.is_none() { &a.name } else { &b.name };
            (None, vec![format!("{silent} has not published what it speaks")])
        }
    };
    PairRoute { a: a.name.clone(), b: b.name.clone(), transport, refusals }
}

/// A plain transfer of host memory.
fn what(spec: &ExchangeSpec, of_pods: Require) -> What {
    let require = of_pods.and(all_of(spec.require.as_deref().unwrap_or_default()));
    What { bytes: 0, device: Device::Host, selection: SelectionKind::All, require }
}

/// What these words ask of a route, all together.
fn all_of(words: &[Requirement]) -> Require {
    let one = |word: &Requirement| match word {
        Requirement::ZeroCopy => Require::ZERO_COPY,
        Requirement::SameNode => Require::SAME_NODE,
        Requirement::Encrypted => Require::ENCRYPTED,
    };
    words.iter().map(one).fold(Require::NONE, Require::and)
}

fn policy(spec: &ExchangeSpec) -> Policy {
    let shares = spec.same_node.is_some_and(|word| word != SameNode::Off);
    let usual = Policy::default().allow;
    let plain = spec.security.as_ref().and_then(|security| security.encryption) == Some(EncryptionWord::None);
    Policy {
        allow: listed(spec).unwrap_or(if shares { usual.with(Transport::Shm) } else { usual }),
        encryption: if plain { Encryption::None } else { Encryption::Tls },
        prefer: None,
    }
}

/// The transports that the exchange names.
fn listed(spec: &ExchangeSpec) -> Option<TransportSet> {
    let all = spec.transports.as_ref()?;
    Some(all.iter().map(|kind| transport(*kind)).collect::<TransportSet>().with(Transport::Local))
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
        let all = pairs(&peers, &ExchangeSpec::default(), &BTreeMap::new());
        let told = shown(&all);
        assert_eq!(told[0], "a-b tcp (not shm: no_socket_dir)");
        assert!(told[1].starts_with("a-c none") && told[1].contains("not tcp: not_offered"), "{told:?}");
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn an_exchange_that_requires_or_forbids_is_heard() {
        let peers = [peer("a", &["tcp"]), peer("b", &["tcp"])];
        let same_node = shown(&pairs(&peers, &spec(json!({"require": ["same_node"]})), &BTreeMap::new()));
        assert!(
            same_node[0].contains("none") && same_node[0].contains("not tcp: not_same_node"),
            "{same_node:?}"
        );
        let no_tcp = shown(&pairs(&peers, &spec(json!({"transports": ["quic"]})), &BTreeMap::new()));
        assert!(no_tcp[0].contains("not tcp: policy"), "{no_tcp:?}");
        let tcp = shown(&pairs(&peers, &spec(json!({"transports": ["tcp"]})), &BTreeMap::new()));
        assert_eq!(tcp, ["a-b tcp (not shm: policy)"], "the exchange itself leaves it out");
        let encrypted = shown(&pairs(
            &peers,
            &spec(json!({"require": ["encrypted"], "sameNode": "claim"})),
            &BTreeMap::new(),
        ));
        assert_eq!(encrypted, ["a-b tcp (not shm: not_offered)"]);
    }

    #[test]
    fn what_a_pod_requires_holds_for_every_pair_of_it() {
        let peers = [peer("a", &["tcp"]), peer("b", &["tcp"]), peer("c", &["tcp"])];
        let requires = BTreeMap::from([("b".to_owned(), Require::SAME_NODE)]);
        let told = shown(&pairs(&peers, &ExchangeSpec::default(), &requires));
        assert!(told[0].starts_with("a-b none") && told[0].contains("not tcp: not_same_node"), "{told:?}");
        assert!(told[1].starts_with("a-c tcp") && told[2].starts_with("b-c none"), "{told:?}");
    }

    #[test]
    fn what_pods_require_is_read_as_the_planner_reads_it() {
        let pod = |name: &str, said: &str| {
            (name.to_owned(), BTreeMap::from([("tensorlane.dev/require".to_owned(), said.to_owned())]))
        };
        let pods = BTreeMap::from([
            pod("none", "none"),
            pod("spaced", "zero_copy, encrypted"),
            pod("wrong", "speed"),
            ("silent".to_owned(), BTreeMap::new()),
        ]);
        let Requires { of, wrong } = requires(&pods);
        let both = Require::ZERO_COPY.and(Require::ENCRYPTED);
        assert_eq!(of, BTreeMap::from([("spaced".to_owned(), both)]));
        assert!(wrong.len() == 1 && wrong[0].starts_with("pod wrong: tensorlane.dev/require: "), "{wrong:?}");
    }

    #[test]
    fn a_peer_that_has_not_published_is_named() {
        let mut silent = peer("b", &["tcp"]);
        silent.status = None;
        let told = shown(&pairs(&[peer("a", &["tcp"]), silent], &ExchangeSpec::default(), &BTreeMap::new()));
        assert_eq!(told, ["a-b none (b has not published what it speaks)"]);
    }
}
