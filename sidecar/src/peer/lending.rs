//! Copies that a peer of this node lends: who could be asked for one. What is asked and given is a map like any other, see
//! `transport::shm`.

use std::time::{Duration, Instant};

use tensorlane_proto::PeerName;

use super::api::PeerKey;
use super::peers::Peers;
use super::remote::State;

/// The first version of the protocol in which copies are mapped.
pub(super) const LENDS_SINCE: u32 = 4;
/// Time for which a neighbour that did not answer in time is not asked.
const QUIET: Duration = Duration::from_secs(5);

impl Peers {
    /// The connected peers that are proven to be on this node, and can lend copies of others' tensors.
    pub fn neighbours(&self) -> Vec<PeerKey> {
        if self.shared.node.is_none() {
            return Vec::new();
        }
        let now = Instant::now();
        let peers = self.shared.peers();
        peers.iter().filter_map(|peer| peer.state.lock().lender(now)).collect()
    }

    /// A neighbour did not answer in time: for a while nobody waits for it.
    pub fn was_late(&self, name: &PeerName) {
        if let Some(peer) = self.shared.known_peer(name) {
            peer.state.lock().late = Some(Instant::now());
        }
    }
}

impl State {
    fn lender(&self, now: Instant) -> Option<PeerKey> {
        let link = self.link.as_ref().filter(|link| link.version >= LENDS_SINCE)?;
        let is_quiet = self.late.is_some_and(|late| now.saturating_duration_since(late) < QUIET);
        (link.ways.maps() && !is_quiet && self.cooling().is_none()).then(|| link.key())
    }
}
