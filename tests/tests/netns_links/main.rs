//! Links that are bad or long, for TCP and for QUIC. Needs root.

mod addresses;
mod families;
mod far;
mod links;
mod quic;
mod sizes;

use std::net::SocketAddr;

use tensorlane_tests::netns::{Entry, Peers};
use tensorlane_tests::{Sidecar, SidecarOptions};

const WINDOW: &str = "tensorlane_peer_quic_window_bytes";

/// Two peers that take QUIC for every large tensor, and are patient with a network that is slow or loses much.
fn two() -> Peers {
    let set = |_, options: SidecarOptions| {
        options.set("prefer", "quic").set("deadlines.progress", "10s").set("gc.leaseGrace", "20s")
    };
    Peers::start(2, set)
}

/// Ends every sidecar at once, lists each host of a peers file anew, and starts them again.
fn list_anew(peers: &mut Peers, addresses: impl Fn(&Peers, usize, usize) -> Vec<SocketAddr>) {
    peers.sidecars.iter_mut().for_each(Sidecar::kill);
    for host in 0..2 {
        let entry = |other: usize| Entry { addresses: addresses(peers, host, other), ..peers.entry(other) };
        peers.list(host, &[entry(0), entry(1)]);
    }
    peers.sidecars.iter_mut().for_each(Sidecar::start_again);
}
