//! Routes: which transport a transfer takes, and why no better one. The choice itself is `negotiate`, which is pure.

use std::time::Duration;

use tensorlane_proto::device::Device;
use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::negotiate::{
    Measured, NoRoute, Offer, Policy, Refusal, Require, Route, Transport, TransportOffer, VersionRange, What,
    Why, negotiate,
};
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::{Selection, SelectionKind};
use tensorlane_proto::wire;

use super::Exchange;
use crate::metrics::label::Moved;
use crate::store::Me;

/// The transports of this release.
const SPOKEN: [Transport; 2] = [Transport::Local, Transport::Tcp];

// === impl Exchange ===

impl Exchange {
    /// The route towards the owner of a tensor.
    pub(super) fn route(
        &self,
        reference: &Reference,
        selection: &Selection,
        require: Require,
    ) -> Result<Route, Failure> {
        let what =
            What { bytes: reference.bytes(), device: Device::Host, selection: selection.kind(), require };
        let incarnation = reference.incarnation();
        self.negotiated(reference.peer(), incarnation, &what).map_err(Failure::from)
    }

    /// The route that a plain transfer from a peer would take now.
    pub(super) fn plain_route(
        &self,
        peer: &PeerName,
        incarnation: Option<Incarnation>,
    ) -> Result<Route, NoRoute> {
        let (selection, require) = (SelectionKind::All, Require::NONE);
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
        let theirs = match theirs {
            Some(offer) => read_offer(peer.clone(), incarnation, &offer),
            // Before the first Hello it is assumed to speak what we do, wherever the directory says that it listens.
            None => Offer { peer: peer.clone(), incarnation, ..own_offer(self.me(), vec![peer.to_string()]) },
        };
        let mut route = negotiate(&self.our_offer(), &theirs, what, &Policy::default(), &Measured::default());
        match &mut route {
            Ok(route) => own_up(&mut route.refusals),
            Err(none) => own_up(&mut none.refusals),
        }
        route
    }

    fn our_offer(&self) -> Offer {
        own_offer(self.me(), Vec::new())
    }
}

/// What is refused by a policy that nobody can set yet, or not offered because nobody could, is our own lack.
fn own_up(refusals: &mut [Refusal]) {
    for refusal in refusals {
        if !SPOKEN.contains(&refusal.transport) && matches!(refusal.why, Why::Policy | Why::NotOffered) {
            refusal.why = Why::NotInThisRelease;
        }
    }
}

/// What this release speaks: TCP, in TLS.
pub fn offer(addresses: Vec<String>) -> v1::Offer {
    let tcp = v1::TransportOffer {
        transport: v1::Transport::Tcp.into(),
        addresses,
        details: std::collections::HashMap::new(),
    };
    v1::Offer { versions: vec![tensorlane_proto::frame::PEER_VERSION], transports: vec![tcp] }
}

/// The same, as the directory publishes it.
pub fn own_offer(me: &Me, addresses: Vec<String>) -> Offer {
    read_offer(me.peer.clone(), me.incarnation, &offer(addresses))
}

/// An offer from the wire; transports that this version does not know are passed over.
fn read_offer(peer: PeerName, incarnation: Incarnation, offer: &v1::Offer) -> Offer {
    let versions = offer.versions.iter().filter_map(|v| u16::try_from(*v).ok());
    let (min, max) = (versions.clone().min().unwrap_or(0), versions.max().unwrap_or(0));
    let read = |t: &v1::TransportOffer| {
        let transport = wire::transport(t.transport)?;
        Some(t.addresses.iter().fold(TransportOffer::new(transport), TransportOffer::at))
    };
    Offer {
        peer,
        incarnation,
        versions: VersionRange { min, max },
        transports: offer.transports.iter().filter_map(read).collect(),
        node: None,
        gpus: Vec::new(),
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

    #[test]
    fn a_transport_that_this_release_lacks_is_nobodys_policy() {
        let (me, them) = ("a".parse::<PeerName>().unwrap(), "b".parse::<PeerName>().unwrap());
        let offer = |peer: &PeerName| read_offer(peer.clone(), Incarnation(1), &offer(vec!["h:1".into()]));
        let route =
            negotiate(&offer(&me), &offer(&them), &What::default(), &Policy::default(), &Measured::default());
        let mut route = route.unwrap();
        own_up(&mut route.refusals);
        assert_eq!(route.to_string(), "tcp, not shm: not_in_this_release");
        let mut theirs = [Refusal { transport: Transport::Tcp, why: Why::NotOffered }];
        own_up(&mut theirs);
        assert_eq!(theirs[0].why, Why::NotOffered);
    }
}
