//! Routes that bytes would take between the peers of an exchange, by what they have published and what the exchange
//! allows.
//!
//! The choice is that of the sidecars, `negotiate` of the protocol. What only a pair of sidecars finds out by trying (that
//! they share a node, how fast a link is, what failed lately) is not known here.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde::Serialize;
use serde_json::{Value, json};
use tensorlane_proto::crd::{
    Encryption as EncryptionWord, ExchangeSpec, Prefer, Requirement, SameNode, TensorExchange, TensorPeer,
    TransportKind,
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
    /// First of the two peers.
    pub a: String,
    /// The other one.
    pub b: String,
    /// The transport; absent where there is no way, or one of them has not published.
    pub transport: Option<&'static str>,
    /// Reason why it is not a better one, or why there is none.
    pub refusals: Vec<String>,
}

/// A single end of a pair.
struct End {
    name: String,
    offer: Option<Offer>,
    /// Requirements of its pod for every route besides its exchange.
    require: Require,
}

/// A pod, as far as its routes are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSaid {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod, which is that of its peer.
    pub name: String,
    /// Annotations, by which it speaks of itself.
    pub annotations: BTreeMap<String, String>,
}

/// Requirements of pods for their routes by their own annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requires {
    /// Requirements of each, by its namespace and name; a pod that requires nothing is not there.
    pub of: BTreeMap<(String, String), Require>,
    /// A sentence for each pod whose annotation makes no sense: it was changed after the pod was made.
    pub wrong: Vec<String>,
}

/// Collects the requirements of pods. Their annotations are read as the planner reads them.
pub fn requires(pods: Vec<PodSaid>) -> Requires {
    let mut requires = Requires::default();
    for PodSaid { namespace, name, annotations } in pods {
        match annotations::required(&annotations).map(|words| all_of(&words)) {
            Ok(Require::NONE) => {}
            Ok(require) => drop(requires.of.insert((namespace, name), require)),
            Err(bad) => requires.wrong.push(format!("pod {namespace}/{name}: {bad}")),
        }
    }
    requires
}

/// The routes of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Namespace of the exchange.
    pub namespace: String,
    /// Name of the exchange.
    pub exchange: String,
    /// Every pair of its peers.
    pub pairs: Vec<PairRoute>,
}

/// A single pair of one exchange, for programs.
#[derive(Debug, Serialize)]
struct Row<'a> {
    namespace: &'a str,
    exchange: &'a str,
    #[serde(flatten)]
    pair: &'a PairRoute,
}

/// The exchanges, by namespace and name, each with the routes between its peers.
pub fn matrices(exchanges: &[TensorExchange], peers: &[TensorPeer], requires: &Requires) -> Vec<Matrix> {
    let of = |exchange: &TensorExchange| {
        let (namespace, name) = (exchange.namespace().unwrap_or_default(), exchange.name_any());
        let is_of_it = |peer: &&TensorPeer| {
            peer.spec.exchange == name && peer.namespace().unwrap_or_default() == namespace
        };
        let own: Vec<&TensorPeer> = peers.iter().filter(is_of_it).collect();
        Matrix { pairs: pairs(&own, &exchange.spec, requires), namespace, exchange: name }
    };
    let mut all: Vec<Matrix> = exchanges.iter().map(of).collect();
    all.sort_unstable_by(|a, b| (&a.namespace, &a.exchange).cmp(&(&b.namespace, &b.exchange)));
    all
}

/// A list of all pairs, for programs.
pub fn json(matrices: &[Matrix]) -> Value {
    let rows = matrices.iter().flat_map(|matrix| {
        let Matrix { namespace, exchange, pairs } = matrix;
        pairs.iter().map(move |pair| Row { namespace, exchange, pair })
    });
    json!(rows.collect::<Vec<_>>())
}

/// Every pair of the peers, by name.
fn pairs(peers: &[&TensorPeer], spec: &ExchangeSpec, requires: &Requires) -> Vec<PairRoute> {
    let of_all = all_of(spec.require.as_deref().unwrap_or_default());
    let end = |peer: &&TensorPeer| {
        let place = (peer.namespace().unwrap_or_default(), peer.name_any());
        let require = requires.of.get(&place).copied().unwrap_or(Require::NONE);
        // As the sidecars tell each other: lanes to whoever requires it are encrypted, whatever the exchange allows.
        let offer = offer(peer).map(|offer| Offer { require: require.and(of_all), ..offer });
        End { name: place.1, offer, require }
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

/// Requirements that these words put on a route, all together.
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
    let shared = usual.with(Transport::Shm).with(Transport::CudaIpc);
    let plain = spec.security.as_ref().and_then(|security| security.encryption) == Some(EncryptionWord::None);
    Policy {
        allow: listed(spec).unwrap_or(if shares { shared } else { usual }),
        encryption: if plain { Encryption::None } else { Encryption::Tls },
        prefer: match spec.prefer {
            None | Some(Prefer::Measured) => None,
            Some(Prefer::Tcp) => Some(Transport::Tcp),
            Some(Prefer::Quic) => Some(Transport::Quic),
        },
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

/// Offer that a peer has published; none if it has not, or if it makes no sense.
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
        require: Require::NONE,
    })
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
