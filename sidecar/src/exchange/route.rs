//! Routes: which transport a transfer takes, and why no better one. The choice itself is `negotiate`, which is pure.

use std::sync::Arc;
use std::time::Duration;

use tensorlane_proto::device::Device;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::negotiate::{
    Measured, NoRoute, Offer, Policy, Refusal, Require, Route, Transport, TransportSet, What, Why, negotiate,
};
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::{Selection, SelectionKind};
use tensorlane_proto::wire;

use super::Exchange;
use crate::config::abilities::SPOKEN;
use crate::metrics::label::{Moved, Verb};
use crate::peer::PeerKey;
use crate::store::Me;

/// What routes to other peers may be, and must be: the exchange's, narrowed by the pod's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoutePolicy {
    /// The transports that may be used; absent: all of this release that need no permission.
    pub transports: Option<TransportSet>,
    /// What every route must be, besides what a call requires.
    pub require: Require,
}

// === impl RoutePolicy ===

impl RoutePolicy {
    fn policy(&self) -> Policy {
        let all = Policy::default();
        // Within one sidecar nothing travels, so nothing is to be allowed.
        Policy { allow: self.transports.map_or(all.allow, |listed| listed.with(Transport::Local)), ..all }
    }

    /// The transports that are offered to others.
    fn offered(&self) -> impl Iterator<Item = Transport> {
        let allow = self.policy().allow;
        SPOKEN.iter().filter(move |&transport| transport != Transport::Local && allow.contains(transport))
    }

    /// What is not offered because nobody could, or refused by a policy that does not speak of it, is our own lack.
    fn own_up(&self, refusals: &mut [Refusal]) {
        for refusal in refusals {
            let forbidden = self.transports.is_some_and(|listed| !listed.contains(refusal.transport));
            let ours = match refusal.why {
                Why::NotOffered => true,
                Why::Policy => !forbidden,
                _ => false,
            };
            if ours && !SPOKEN.contains(refusal.transport) {
                refusal.why = Why::NotInThisRelease;
            }
        }
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
        let (bytes, selection) = (reference.bytes(), selection.kind());
        let require = require.and(self.settings.routes.require);
        let what = What { bytes, device: Device::Host, selection, require };
        self.negotiated(reference.peer(), reference.incarnation(), &what).map_err(|none| self.no_route(none))
    }

    /// The route that a plain transfer from a peer would take now.
    pub(super) fn plain_route(
        &self,
        peer: &PeerName,
        incarnation: Option<Incarnation>,
    ) -> Result<Route, NoRoute> {
        let (selection, require) = (SelectionKind::All, self.settings.routes.require);
        let what = What { bytes: 0, device: Device::Host, selection, require };
        self.negotiated(peer, incarnation.unwrap_or(Incarnation(0)), &what)
    }

    /// Counts bytes that came, and what they came instead of.
    pub(super) fn count_moved(&self, bytes: u64, refused: &[Refusal], seconds: f64) {
        let moves = &self.metrics.moves;
        for refusal in refused {
            moves.fallbacks.at((refusal.transport, Transport::Tcp, refusal.why)).inc();
        }
        moves.got(Transport::Tcp, Moved::Done, bytes, Duration::from_secs_f64(seconds));
    }

    fn negotiated(&self, peer: &PeerName, incarnation: Incarnation, what: &What) -> Result<Route, NoRoute> {
        let theirs = self.peers.get().and_then(|p| p.offer(peer));
        // Before the first Hello it is assumed to speak what we do, wherever the directory says that it listens.
        let theirs = theirs.unwrap_or_else(|| {
            Arc::new(Offer { peer: peer.clone(), incarnation, ..self.own_offer(&[peer.to_string()]) })
        });
        let routes = &self.settings.routes;
        let mut route = negotiate(&self.offered, &theirs, what, &routes.policy(), &Measured::default());
        match &mut route {
            Ok(route) => routes.own_up(&mut route.refusals),
            Err(none) => routes.own_up(&mut none.refusals),
        }
        route
    }

    /// Whether bytes may go out to a peer. What must be of every route holds for those that others ask for, too.
    pub(super) fn may_leave(&self, to: &PeerKey) -> Result<(), Failure> {
        self.gate.admit(Verb::Get)?;
        if self.settings.routes.require == Require::NONE {
            return Ok(());
        }
        self.plain_route(&to.name, Some(to.incarnation)).map(drop).map_err(|none| self.no_route(none))
    }

    /// With the name of the setting, where it is not the call alone that wants too much.
    fn no_route(&self, none: NoRoute) -> Failure {
        let mut failure = Failure::from(none);
        let required = self.settings.routes.require;
        if failure.reason == Reason::RequirementNotMet && required != Require::NONE {
            let hint = format!(
                "; every route of {} must be {required} (the setting require, from its exchange or the annotation \
                 tensorlane.dev/require)",
                self.me().peer
            );
            failure.message.push_str(&hint);
        }
        failure
    }

    /// What this sidecar speaks, as it says in its Hello: TCP in TLS, where the policy allows it.
    pub fn offer(&self, addresses: &[String]) -> v1::Offer {
        offer(&self.settings.routes, addresses)
    }

    /// The same, as the directory publishes it.
    pub fn own_offer(&self, addresses: &[String]) -> Offer {
        own_offer(self.me(), &self.settings.routes, addresses)
    }
}

/// What a sidecar of this release and policy offers.
pub(super) fn own_offer(me: &Me, routes: &RoutePolicy, addresses: &[String]) -> Offer {
    wire::offer(me.peer.clone(), me.incarnation, &offer(routes, addresses))
}

fn offer(routes: &RoutePolicy, addresses: &[String]) -> v1::Offer {
    let offered = |transport| v1::TransportOffer {
        transport: v1::Transport::from(transport).into(),
        addresses: addresses.to_vec(),
        details: std::collections::HashMap::new(),
    };
    v1::Offer {
        versions: vec![tensorlane_proto::frame::PEER_VERSION],
        transports: routes.offered().map(offered).collect(),
    }
}

pub(super) fn refusals(all: &[Refusal]) -> Vec<v1::Refusal> {
    let refusal = |r: &Refusal| v1::Refusal {
        transport: v1::Transport::from(r.transport).into(),
        why: r.why.as_str().to_owned(),
    };
    all.iter().map(refusal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The route between two peers of one policy, as it is shown.
    fn route(routes: RoutePolicy, require: Require) -> Result<String, String> {
        let one = |name: &str| {
            let peer: PeerName = name.parse().unwrap();
            wire::offer(peer, Incarnation(1), &offer(&routes, &["h:1".into()]))
        };
        let what = What { require, ..What::default() };
        let mut route = negotiate(&one("a"), &one("b"), &what, &routes.policy(), &Measured::default());
        match &mut route {
            Ok(route) => routes.own_up(&mut route.refusals),
            Err(none) => routes.own_up(&mut none.refusals),
        }
        route.map(|route| route.to_string()).map_err(|none| none.to_string())
    }

    fn listed(transports: &[Transport]) -> RoutePolicy {
        RoutePolicy { transports: Some(transports.iter().copied().collect()), require: Require::NONE }
    }

    #[test]
    fn a_transport_that_this_release_lacks_is_nobodys_policy() {
        let any = RoutePolicy::default();
        assert_eq!(route(any, Require::NONE), Ok("tcp, not shm: not_in_this_release".to_owned()));
        let wanted = listed(&[Transport::Shm, Transport::Tcp]);
        assert_eq!(route(wanted, Require::NONE), Ok("tcp, not shm: not_in_this_release".to_owned()));
        let mut theirs = [Refusal { transport: Transport::Tcp, why: Why::NotOffered }];
        any.own_up(&mut theirs);
        assert_eq!(theirs[0].why, Why::NotOffered);
    }

    #[test]
    fn a_transport_that_is_not_listed_is_refused_by_policy_and_not_offered() {
        assert_eq!(route(listed(&[Transport::Tcp]), Require::NONE), Ok("tcp, not shm: policy".to_owned()));
        let none = listed(&[Transport::Quic]);
        assert!(offer(&none, &["h:1".into()]).transports.is_empty());
        let refused = route(none, Require::NONE).unwrap_err();
        assert!(refused.contains("not tcp: policy"), "{refused}");
        assert!(refused.contains("not quic: not_in_this_release"), "{refused}");
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
}
