//! State of the peers: what can be seen without calling any of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tensorlane_proto::negotiate::{Measured, Offer, SameNode, Transport, TransportSet};
use tensorlane_proto::{Fingerprint, Incarnation, PeerName};

use super::api::{PeerState, PeerView};
use super::gpus::ReachableGpu;
use super::peers::Peers;
use super::remote::{NO_IP, Peer};
use super::shared::Shared;
use super::transport::shm::{Apart, Shm};

/// Most peers that one round asks. Each costs a thread and a handshake at both ends.
const ROUND_MAX: usize = 16;

impl Peers {
    /// Returns whether a connection to the peer is up.
    pub fn is_connected(&self, name: &PeerName) -> bool {
        let peer = self.shared.known_peer(name);
        peer.is_some_and(|peer| peer.state.lock().link.is_some())
    }

    /// The peers with a connection.
    pub fn connected(&self) -> Vec<PeerName> {
        let mut names: Vec<PeerName> = (self.shared.peers().iter())
            .filter(|peer| peer.state.lock().link.is_some())
            .map(|peer| peer.name.clone())
            .collect();
        names.sort_unstable();
        names
    }

    /// Number of peers that the directory lists and that are not connected.
    pub fn unconnected(&self) -> usize {
        if !self.shared.is_mesh() {
            // Of most of them nobody has thought yet.
            return self.shared.known.count().saturating_sub(1 + self.connected().len());
        }
        let listed = |peer: &Arc<Peer>| self.shared.known.peer(&peer.name).is_some();
        self.shared.peers().iter().filter(|peer| peer.state.lock().link.is_none() && listed(peer)).count()
    }

    /// Peers that are listed and not connected because nobody has needed it, in their order: a look-up for a name of any peer asks them
    /// in rounds. Those that just now could not be reached are left out.
    pub fn resting(&self) -> Vec<PeerName> {
        let (shared, now) = (&self.shared, Instant::now());
        let is_mesh = shared.is_mesh();
        let rests = |peer: &Arc<Peer>| {
            let state = peer.state.lock();
            state.link.is_none() && (!is_mesh || state.dial.rests) && state.dial.is_fresh(now)
        };
        let mut names: Vec<PeerName>;
        if is_mesh {
            let mut resting = shared.peers();
            let can_come = |peer: &Peer| shared.known.peer(&peer.name).is_some_and(|known| !known.awaits_ip);
            resting.retain(|peer| rests(peer) && can_come(peer));
            names = resting.iter().map(|peer| peer.name.clone()).collect();
        } else {
            let listed = shared.known.all().into_iter().filter(|entry| !entry.awaits_ip);
            names = listed.map(|entry| entry.name).collect();
            names.retain(|name| *name != shared.me.peer && rests(&shared.peer(name)));
        }
        names.sort_unstable();
        names
    }

    /// Most peers without a connection that are asked at the same time by one who looks for a name: each takes a seat for a moment.
    pub fn round(&self) -> usize {
        (self.shared.config.peers_max / 4).clamp(1, ROUND_MAX)
    }

    /// Returns whether an incarnation of a peer is known to be over. One of which nobody knows may be newer than the
    /// connected one, whose end was not noticed yet: a call finds out.
    pub fn is_over(&self, name: &PeerName, incarnation: Incarnation) -> bool {
        self.shared.known_peer(name).is_some_and(|peer| peer.state.lock().was(incarnation))
    }

    /// Offer of what a peer said it can speak, when it last said Hello.
    #[must_use]
    pub fn offer(&self, name: &PeerName) -> Option<Arc<Offer>> {
        let peer = self.shared.known_peer(name);
        peer.and_then(|peer| peer.state.lock().offer.clone())
    }

    /// GPUs that a peer said it reaches, on its last connection.
    #[must_use]
    pub fn gpus_of(&self, name: &PeerName) -> Vec<ReachableGpu> {
        self.shared.known_peer(name).map(|peer| peer.state.lock().gpus.clone()).unwrap_or_default()
    }

    /// Tells all peers the GPUs that this side reaches: at most 64.
    pub fn tell_gpus(&self, gpus: Vec<ReachableGpu>) {
        self.shared.tell_gpus(gpus);
    }

    /// Measures whether a peer is on this node, and whether its memory can be had now.
    pub(super) fn met(&self, name: &PeerName) -> Measured {
        let Some(peer) = self.shared.known_peer(name) else { return Measured::default() };
        let state = peer.state.lock();
        let shm = state.link.as_ref().and_then(|link| link.ways.shm());
        let apart = state.link.as_ref().and_then(|link| link.apart);
        let elsewhere = apart.is_some_and(|apart| apart != Apart::Untold);
        let untried = if elsewhere { SameNode::Refuted } else { SameNode::Unknown };
        let same_node = shm.map_or(untried, Shm::same_node);
        let (cooling, unshared) = match state.cooling() {
            Some(why) => (TransportSet::EMPTY.with(Transport::Shm), why),
            None => (TransportSet::EMPTY, None),
        };
        // What both have said in their Hellos.
        let without_quic = state.link.as_ref().filter(|link| link.ways.quic().is_none());
        let no_datagrams = without_quic.is_some_and(|link| link.no_datagrams.is_some());
        let has_no_quic = without_quic.is_some() && !no_datagrams;
        let untold = apart == Some(Apart::Untold);
        let absent = [(Transport::Quic, has_no_quic), (Transport::Shm, untold), (Transport::CudaIpc, untold)];
        let absent = absent.into_iter().filter(|(_, is_absent)| *is_absent).map(|(one, _)| one).collect();
        let unreached =
            if no_datagrams { TransportSet::EMPTY.with(Transport::Quic) } else { TransportSet::EMPTY };
        Measured { same_node, cooling, unshared, absent, unreached, ..Measured::default() }
    }

    /// Returns whether large amounts have stood still on the way to a peer, so that as little as can be comes on the control connection.
    pub fn is_wary(&self, name: &PeerName) -> bool {
        self.shared.known_peer(name).is_some_and(|peer| peer.standstill.lock().is_wary(Instant::now()))
    }

    /// Returns whether it is not known yet whether a peer is on this node, and about to be: a moment later it is.
    #[must_use]
    pub fn is_meeting(&self, name: &PeerName) -> bool {
        if self.shared.node.as_ref().is_none_or(|node| node.socket().is_none()) {
            return false;
        }
        let Some(peer) = self.shared.known_peer(name) else { return true };
        let state = peer.state.lock();
        match &state.link {
            None => true,
            Some(link) => link.ways.shm().is_some_and(Shm::is_pending),
        }
    }

    /// Addresses at which this sidecar is reached and the node it is on, as others read it; if nobody lists it, the
    /// address that it listens on.
    pub fn listed(&self) -> (Vec<String>, Option<String>) {
        let listed = self.shared.known.peer(&self.shared.me.peer);
        let listed = listed.map(|me| (me.addresses, me.node)).filter(|(addresses, _)| !addresses.is_empty());
        listed.unwrap_or_else(|| (vec![self.bound_address().to_string()], None))
    }

    /// Reasons that keep peers away and that a change of the table of peers, or of the own address, mends; empty where none is known.
    pub fn own_error(&self) -> String {
        let Shared { known, refused_keys, own_addresses, .. } = &*self.shared;
        let is_listed = |key: &Fingerprint| !known.claimants(key).is_empty();
        let refused = refused_keys.told(Instant::now(), is_listed);
        let told = [known.own_lack(), known.outage(), refused, own_addresses.told()];
        told.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Bytes of our memory that each peer of the node keeps, by name, also by connections that have ended.
    pub fn lent(&self) -> Vec<(PeerName, u64)> {
        let Some(node) = &self.shared.node else { return Vec::new() };
        let lent = |name: &PeerName| {
            let link = self.shared.known_peer(name).and_then(|peer| peer.state.lock().link.clone());
            link.and_then(|link| link.ways.shm().map(Shm::lent_bytes)).unwrap_or(0)
        };
        node.holders().into_iter().map(|name| (name.clone(), lent(&name) + node.kept(&name))).collect()
    }

    /// Bytes of our GPU memory that peers of the node have leased, of all together.
    pub fn lent_gpu_bytes(&self) -> u64 {
        let links = self.shared.peers().into_iter().filter_map(|peer| peer.state.lock().link.clone());
        links.filter_map(|link| link.ways.shm().map(Shm::lent_gpu_bytes)).sum()
    }

    /// Bytes of the lists of rows that open pulls of peers keep here, and the most that they may have.
    #[must_use]
    pub fn row_list_bytes(&self) -> (u64, u64) {
        self.shared.row_lists.bytes()
    }

    /// Bytes that QUIC connections may fill, in and out, of all of them; and those of a datagram, where they are fewest. None
    /// without a connection.
    #[must_use]
    pub fn quic(&self) -> Option<(u64, u64, u16)> {
        let links = self.shared.peers().into_iter().filter_map(|peer| peer.state.lock().link.clone());
        let standings = links.filter_map(|link| link.ways.quic()?.quic_connection()?.view());
        let seen = standings.map(|seen| (seen.receive, seen.send, seen.datagram));
        seen.reduce(|all, one| (all.0 + one.0, all.1 + one.1, all.2.min(one.2)))
    }

    /// Every peer of the directory, and those that left it, as far as they are remembered, by name.
    pub fn status(&self) -> Vec<PeerView> {
        let known = self.shared.known.all();
        for entry in &known {
            if entry.name != self.shared.me.peer {
                self.shared.peer(&entry.name);
            }
        }
        // A directory that lists nobody is one that is not well, not one that everyone has left.
        let view = |peer: &Arc<Peer>| self.view(peer, !known.is_empty());
        let mut views: Vec<PeerView> = self.shared.peers().iter().map(view).collect();
        views.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// `may_have_left`: whom the directory does not list.
    fn view(&self, peer: &Peer, may_have_left: bool) -> PeerView {
        let known = self.shared.known.peer(&peer.name);
        let has_left = may_have_left && known.is_none();
        let (addresses, node) = known.map(|known| (known.addresses, known.node)).unwrap_or_default();
        let state = peer.state.lock();
        let standing = match &state.link {
            Some(_) => PeerState::Connected,
            None if state.dial.running || state.no_seat.is_some() && state.needs_link() => {
                PeerState::Connecting
            }
            None if has_left => PeerState::Left,
            None if state.last_error.is_empty() && !state.awaits_ip => PeerState::Idle,
            None => PeerState::Unreachable,
        };
        let is_plain = super::transport::lanes::Lanes::is_plain;
        PeerView {
            plain_lanes: state.link.as_ref().map(|link| link.ways.lanes().is_some_and(is_plain)),
            name: peer.name.clone(),
            state: standing,
            incarnation: state.incarnation,
            addresses,
            node,
            bytes_in: peer.bytes_in.load(Ordering::Relaxed),
            bytes_out: peer.bytes_out.load(Ordering::Relaxed),
            last_error: match &state.link {
                Some(link) => {
                    let told = [Some(peer.standstill.lock().told(Instant::now())), link.no_datagrams.clone()];
                    let told = told.into_iter().flatten().filter(|told| !told.is_empty());
                    told.collect::<Vec<_>>().join("; ")
                }
                None => match state.no_seat.filter(|_| state.needs_link()) {
                    Some((super::seats::LackingSide::Theirs, told)) => told.to_string(),
                    Some((super::seats::LackingSide::Ours, told)) => {
                        format!("all {0} seats for peers here are in use (peers.max is {0})", told.most)
                    }
                    None if state.awaits_ip => NO_IP.to_owned(),
                    None => state.last_error.clone(),
                },
            },
        }
    }

    /// Pulls of others that go on, and those that a lost connection interrupted, for as long as they may be taken up again.
    pub fn open_pulls(&self) -> usize {
        let grace = self.shared.config.grace;
        self.shared.peers().iter().map(|peer| peer.state.lock().open_pulls(grace, Instant::now())).sum()
    }
}
