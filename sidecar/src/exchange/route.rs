//! Routes: which transport a transfer takes, and why no better one. The choice itself is `negotiate`, which is pure.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tensorlane_proto::device::Device;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::negotiate::{
    Candidate, Encryption, NoRoute, Offer, Policy, Refusal, Require, Route, Transport, TransportSet, What,
    Why,
};
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::{Selection, SelectionKind};
use tensorlane_proto::wire;

use super::Exchange;
use super::evidence::Evidence;
use super::fetch::expected_layout;
use super::transfer::Came;
use crate::metrics::label::{Moved, Verb};
use crate::peer::PeerKey;
use crate::store::Me;

/// Policy of what routes to other peers may be, and must be: the exchange's, narrowed by the pod's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoutePolicy {
    /// The transports that may be used; absent: all of this release that need no permission.
    pub transports: Option<TransportSet>,
    /// Requirement for every route, besides what a call requires.
    pub require: Require,
    /// Encryption of lanes between peers.
    pub encryption: Encryption,
    /// Transport that brings large tensors, `tcp` or `quic`; absent: the one that was measured to be faster.
    pub prefer: Option<Transport>,
    /// Set if there is a directory in which the sidecars of a node find each other.
    pub node: bool,
    /// Set if a tensor of another node is brought here even where a pod of this one has a copy, which only that pod could prove.
    pub own_copies: bool,
}

// === impl RoutePolicy ===

impl RoutePolicy {
    fn policy(&self) -> Policy {
        let all = Policy::default();
        // Within one sidecar nothing travels, so nothing is to be allowed.
        let shared = all.allow.with(Transport::Shm).with(Transport::CudaIpc);
        let mut allow = self.transports.map_or(shared, |listed| listed.with(Transport::Local));
        if !self.node {
            allow = allow.without(Transport::Shm);
        }
        if !allow.contains(Transport::Shm) {
            // What lies on a GPU crosses the node's socket as segments do.
            allow = allow.without(Transport::CudaIpc);
        }
        if !allow.contains(Transport::Tcp) {
            // What is small, and what QUIC cannot bring, comes by TCP.
            allow = allow.without(Transport::Quic);
        }
        Policy { allow, encryption: self.encryption, prefer: self.prefer }
    }

    /// True if memory may be shared with other pods.
    pub(super) fn may_share(&self) -> bool {
        self.policy().allow.contains(Transport::Shm)
    }

    /// True if memory of GPUs may be shared with other pods.
    pub(super) fn may_share_gpus(&self) -> bool {
        self.policy().allow.contains(Transport::CudaIpc)
    }

    /// The transports that are offered to others.
    fn offered(&self) -> impl Iterator<Item = Transport> {
        let allow = self.policy().allow;
        allow.iter().filter(|&transport| transport != Transport::Local)
    }
}

// === impl Exchange ===

impl Exchange {
    /// The route towards the owner of a tensor.
    pub(super) fn route(
        &self,
        reference: &Reference,
        selection: &Selection,
        require: Require,
    ) -> Result<Route, Failure> {
        let (bytes, selection) = (selected_bytes(reference, selection), selection.kind());
        let what = What {
            bytes,
            device: Device::Host,
            selection,
            require: require.and(self.settings.routes.require),
        };
        let evidence = self.evidence(reference.peer(), reference.incarnation(), &what, true);
        evidence.route(&what).map_err(|none| {
            let mut failure = self.no_route(none, &evidence.theirs);
            if failure.reason == Reason::RequirementNotMet && require != Require::NONE {
                failure.message.push_str(&too_much(require, reference.peer()));
            }
            failure
        })
    }

    /// The route that a plain transfer of something large from a peer would take now, and how every transport stands for it.
    pub(super) fn plain_routes(
        &self,
        peer: &PeerName,
        incarnation: Option<Incarnation>,
    ) -> (Result<Route, NoRoute>, Vec<Candidate>) {
        let (evidence, what) = self.plain(peer, incarnation);
        (evidence.route(&what), evidence.candidates(&what))
    }

    fn plain(&self, peer: &PeerName, incarnation: Option<Incarnation>) -> (Evidence<'_>, What) {
        let (selection, require) = (SelectionKind::All, self.settings.routes.require);
        let bytes = self.peers.get().map_or(0, |peers| peers.choice_from());
        let what = What { bytes, device: Device::Host, selection, require };
        (self.evidence(peer, incarnation.unwrap_or(Incarnation(0)), &what, false), what)
    }

    /// Counts bytes that came, and what they came instead of.
    pub(super) fn count_moved(&self, bytes: u64, refused: impl Iterator<Item = Refusal>, came: &Came) {
        let moves = &self.metrics.moves;
        for refusal in refused {
            moves.fallbacks.at((refusal.transport, came.transport, refusal.why)).inc();
        }
        moves.got(came.transport, Moved::Done, bytes, Duration::from_secs_f64(came.seconds));
    }

    /// `pulls`: a pull follows, which may be used to find out more about the transports.
    pub(super) fn evidence(
        &self,
        peer: &PeerName,
        incarnation: Incarnation,
        what: &What,
        pulls: bool,
    ) -> Evidence<'_> {
        // GPUs say nothing of the way that bytes of the host take.
        let ours = match what.device.is_host() && pulls {
            true => Cow::Borrowed(&self.offered),
            false => Cow::Owned(Offer { gpus: self.reach.uuids(), ..self.offered.clone() }),
        };
        let theirs = self.peers.get().and_then(|p| p.offer(peer));
        // Before the first Hello it is assumed to speak what we do, wherever the directory says that it listens.
        let theirs = theirs.unwrap_or_else(|| {
            let own = self.own_offer(&[peer.to_string()]);
            Arc::new(Offer { peer: peer.clone(), incarnation, require: Require::NONE, ..own })
        });
        // What it required when it was last heard may be over. It holds to it itself.
        let is_heard = || self.peers.get().is_some_and(|peers| peers.is_connected(peer));
        let theirs = if theirs.require == Require::NONE || is_heard() {
            theirs
        } else {
            Arc::new(Offer { require: Require::NONE, ..(*theirs).clone() })
        };
        let routes = &self.settings.routes;
        let mut policy = routes.policy();
        let mut measured =
            self.peers.get().map(|peers| peers.measured(peer, what.bytes, pulls)).unwrap_or_default();
        if policy.encryption == Encryption::None && what.require.encrypted {
            // Where it is QUIC that makes it encrypted, something encrypted takes the place of QUIC that is not there.
            measured.absent = TransportSet::EMPTY;
        } else if self.peers.get().is_some_and(|peers| !peers.has_quic()) {
            policy.allow = policy.allow.without(Transport::Quic);
        }
        // Below a few MiB lanes are not worth their while, on whatever they run.
        if !self.peers.get().is_some_and(|peers| peers.has_choice(what.bytes)) {
            policy.prefer = Some(Transport::Tcp);
        }
        Evidence { ours, theirs, policy, measured, listed: routes.transports }
    }

    /// True if it will be known in a moment, and is not yet, whether a peer's memory can be mapped.
    pub(super) fn is_meeting(&self, peer: &PeerName) -> bool {
        let shares = self.settings.routes.may_share();
        shares && self.peers.get().is_some_and(|peers| peers.is_meeting(peer))
    }

    /// Checks that bytes may go out to a peer. What must be of every route holds for those that others ask for, too.
    /// `goes_on`: some of them have gone already, so the end of this sidecar does not stop the others.
    pub(super) fn may_leave(&self, to: &PeerKey, goes_on: bool) -> Result<(), Failure> {
        if !goes_on {
            self.gate.admit(Verb::Get)?;
        }
        if self.settings.routes.require == Require::NONE {
            return Ok(());
        }
        let (evidence, what) = self.plain(&to.name, Some(to.incarnation));
        evidence.route(&what).map(drop).map_err(|none| self.no_route(none, &evidence.theirs))
    }

    /// With the name of the setting that speaks against a route, and whose it is.
    fn no_route(&self, none: NoRoute, theirs: &Offer) -> Failure {
        let missed: Vec<Why> = none.refusals.iter().map(|refusal| refusal.why).collect();
        let mut failure = Failure::from(none);
        if failure.reason != Reason::RequirementNotMet {
            return failure;
        }
        let insist = [(&self.me().peer, self.settings.routes.require), (&theirs.peer, theirs.require)];
        for (peer, required) in insist.into_iter().filter(|(_, required)| speaks_against(*required, &missed))
        {
            let hint = format!(
                "; every route of {peer} must be {required} (the setting require, from its exchange or the annotation \
                 tensorlane.dev/require)"
            );
            failure.message.push_str(&hint);
        }
        failure
    }

    /// Offer of this sidecar, as it says in its Hello: TCP in TLS and QUIC, where the policy allows them.
    pub fn offer(&self, addresses: &[String]) -> v1::Offer {
        offer(&self.settings.routes, addresses)
    }

    /// Offer of this sidecar as the directory publishes it.
    pub fn own_offer(&self, addresses: &[String]) -> Offer {
        own_offer(self.me(), &self.settings.routes, addresses)
    }
}

/// True if one of these refusals is for what is required here.
fn speaks_against(required: Require, missed: &[Why]) -> bool {
    required.zero_copy && missed.contains(&Why::NotZeroCopy)
        || required.same_node && missed.contains(&Why::NotSameNode)
        || required.encrypted && missed.contains(&Why::NotEncrypted)
}

/// Text on what a call wants of the way to a peer, if no way has it.
fn too_much(require: Require, peer: &PeerName) -> String {
    format!(
        "; the call requires {require} of the way to {peer}: let it require less, or open such a way \
         (`tensorlane routes` tells how each stands)"
    )
}

/// Offer of a sidecar of this release and policy.
pub(super) fn own_offer(me: &Me, routes: &RoutePolicy, addresses: &[String]) -> Offer {
    wire::offer(me.peer.clone(), me.incarnation, &offer(routes, addresses))
}

fn offer(routes: &RoutePolicy, addresses: &[String]) -> v1::Offer {
    let offered = |transport: Transport| v1::TransportOffer {
        transport: v1::Transport::from(transport).into(),
        // What stays on the node is reached through its directory, which is told on each connection.
        addresses: if transport.stays_on_node() { Vec::new() } else { addresses.to_vec() },
        details: std::collections::HashMap::new(),
    };
    v1::Offer {
        // Newest first.
        versions: (1..=tensorlane_proto::frame::PEER_VERSION).rev().collect(),
        transports: routes.offered().map(offered).collect(),
        require: (routes.require != Require::NONE).then(|| routes.require.into()),
    }
}

/// Number of bytes that travel for a selection, as far as its reference says it; at most all.
fn selected_bytes(reference: &Reference, selection: &Selection) -> u64 {
    let all = reference.bytes();
    if *selection == Selection::All {
        return all;
    }
    let layout = expected_layout(reference);
    layout.and_then(|layout| selection.resolve(&layout).ok()).map_or(all, |resolved| resolved.bytes())
}

/// `plain_lanes`: what TCP brings of large tensors comes in the clear, where that is known.
pub(super) fn shown_candidates(all: &[Candidate], plain_lanes: Option<bool>) -> Vec<v1::Candidate> {
    let one = |one: &Candidate| v1::Candidate {
        transport: v1::Transport::from(one.transport).into(),
        standing: one.standing.as_str().to_owned(),
        why: one.standing.why().to_owned(),
        goodput: one.goodput.unwrap_or_default(),
        plain: if one.transport == Transport::Tcp { plain_lanes } else { Some(false) },
    };
    all.iter().map(one).collect()
}

pub(super) fn refusals(all: impl Iterator<Item = Refusal>) -> Vec<v1::Refusal> {
    let refusal = |r: Refusal| v1::Refusal {
        transport: v1::Transport::from(r.transport).into(),
        why: r.why.as_str().to_owned(),
    };
    all.map(refusal).collect()
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::negotiate::{Measured, SameNode};

    use super::*;

    /// Evidence by which two peers of one policy go.
    fn between<T>(routes: RoutePolicy, measured: Measured, then: impl Fn(Evidence<'_>) -> T) -> T {
        let one = |name: &str| {
            let peer: PeerName = name.parse().unwrap();
            wire::offer(peer, Incarnation(1), &offer(&routes, &["h:1".into()]))
        };
        let (ours, theirs) = (one("a"), Arc::new(one("b")));
        let listed = routes.transports;
        then(Evidence { ours: Cow::Owned(ours), theirs, policy: routes.policy(), measured, listed })
    }

    /// The route between two peers of one policy, as it is shown.
    fn route(routes: RoutePolicy, require: Require) -> Result<String, String> {
        let what = What { require, ..What::default() };
        let route = between(routes, Measured::default(), |evidence| evidence.route(&what));
        route.map(|route| route.to_string()).map_err(|none| none.to_string())
    }

    /// Standing of every transport between them.
    fn standings(routes: RoutePolicy, measured: Measured) -> Vec<String> {
        let all = between(routes, measured, |evidence| evidence.candidates(&What::default()));
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_transport_has_a_reason_and_the_lack_of_a_directory_is_called_so() {
        let (any, unknown) = (RoutePolicy::default(), Measured::default());
        let expected = [
            "shm: refused, no_socket_dir",
            "cuda_ipc: refused, no_socket_dir",
            "tcp: taken",
            "quic: fits, not_compared",
        ];
        assert_eq!(standings(any, unknown), expected);
        let apart = Measured { same_node: SameNode::Refuted, ..unknown };
        assert_eq!(
            standings(RoutePolicy { node: true, ..any }, apart)[..2],
            ["shm: refused, other_node", "cuda_ipc: refused, other_node"]
        );
        let met = Measured { same_node: SameNode::Proven, ..unknown };
        assert_eq!(
            standings(RoutePolicy { node: true, ..any }, met)[..2],
            ["shm: taken", "cuda_ipc: refused, no_gpu_process"]
        );
        let only = standings(listed(&[Transport::Tcp]), unknown);
        let expected =
            ["shm: refused, policy", "cuda_ipc: refused, policy", "tcp: taken", "quic: refused, policy"];
        assert_eq!(only, expected);
        let with_cuda = standings(listed(&[Transport::CudaIpc, Transport::Tcp]), unknown);
        assert_eq!(with_cuda[1], "cuda_ipc: refused, policy", "it needs shm");
    }

    fn listed(transports: &[Transport]) -> RoutePolicy {
        RoutePolicy { transports: Some(transports.iter().copied().collect()), ..RoutePolicy::default() }
    }

    #[test]
    fn a_transport_that_lacks_a_directory_is_nobodys_policy() {
        let any = RoutePolicy::default();
        assert_eq!(route(any, Require::NONE), Ok("tcp, not shm: no_socket_dir".to_owned()));
        let wanted = listed(&[Transport::Shm, Transport::Tcp]);
        assert_eq!(route(wanted, Require::NONE), Ok("tcp, not shm: no_socket_dir".to_owned()));
        let of_a_gpu = listed(&[Transport::CudaIpc, Transport::Tcp]);
        assert!(route(of_a_gpu, Require::NONE).is_ok_and(|route| route.starts_with("tcp")));
    }

    #[test]
    fn a_transport_that_is_not_listed_is_refused_by_policy_and_not_offered() {
        assert_eq!(route(listed(&[Transport::Tcp]), Require::NONE), Ok("tcp, not shm: policy".to_owned()));
        let none = listed(&[Transport::Shm, Transport::Quic]);
        assert!(offer(&none, &["h:1".into()]).transports.is_empty());
        let refused = route(none, Require::NONE).unwrap_err();
        assert!(refused.contains("not tcp: policy") && refused.contains("not quic: policy"), "{refused}");
        assert!(refused.contains("not shm: no_socket_dir"), "{refused}");
    }

    #[test]
    fn quic_is_taken_where_it_is_preferred_or_alone_is_encrypted() {
        let prefer = RoutePolicy { prefer: Some(Transport::Quic), ..RoutePolicy::default() };
        assert_eq!(route(prefer, Require::NONE), Ok("quic, not shm: no_socket_dir".to_owned()));
        let plain = RoutePolicy { encryption: Encryption::None, ..RoutePolicy::default() };
        let encrypted = route(plain, Require::ENCRYPTED);
        let expected = "quic, not shm: no_socket_dir, not tcp: not_encrypted";
        assert_eq!(encrypted, Ok(expected.to_owned()));
    }

    #[test]
    fn encryption_is_had_and_what_stays_on_the_node_or_is_not_copied_is_not() {
        let any = RoutePolicy::default();
        assert!(route(any, Require::ENCRYPTED).is_ok());
        for (require, why) in [(Require::SAME_NODE, "not_same_node"), (Require::ZERO_COPY, "not_zero_copy")] {
            let refused = route(any, require).unwrap_err();
            assert!(refused.contains(&format!("not tcp: {why}")), "{refused}");
        }
    }

    #[test]
    fn memory_is_shared_where_there_is_a_directory_and_the_policy_lets_it() {
        let there = RoutePolicy { node: true, ..RoutePolicy::default() };
        assert_eq!(route(there, Require::NONE), Ok("tcp, not shm: node_unproven".to_owned()));
        let forbidden = RoutePolicy { node: true, ..listed(&[Transport::Tcp]) };
        assert_eq!(route(forbidden, Require::NONE), Ok("tcp, not shm: policy".to_owned()));
        let offered = offer(&there, &["h:1".into()]).transports;
        let has_address: Vec<_> = offered.iter().map(|offer| !offer.addresses.is_empty()).collect();
        assert_eq!(has_address, [false, false, true, true], "shared memory needs none");
        let proven = Measured { same_node: SameNode::Proven, ..Measured::default() };
        let what = What { require: Require::ZERO_COPY.and(Require::SAME_NODE), ..What::default() };
        let route = between(there, proven, |evidence| evidence.route(&what)).unwrap();
        assert_eq!((route.transport, route.zero_copy), (Transport::Shm, true));
    }

    #[test]
    fn plain_lanes_are_refused_to_whoever_requires_encryption() {
        let plain = RoutePolicy { encryption: Encryption::None, ..listed(&[Transport::Tcp]) };
        assert!(route(plain, Require::NONE).is_ok());
        let refused = route(plain, Require::ENCRYPTED).unwrap_err();
        assert!(refused.contains("not tcp: not_encrypted"), "{refused}");
    }
}
