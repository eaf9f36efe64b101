//! Links that are bad or long, for TCP and for QUIC. Needs root.

mod addresses;
mod far;
mod links;
mod quic;
mod sizes;

use tensorlane_tests::SidecarOptions;
use tensorlane_tests::netns::Peers;

const WINDOW: &str = "tensorlane_peer_quic_window_bytes";

/// Two peers that take QUIC for every large tensor, and are patient with a network that is slow or loses much.
fn two() -> Peers {
    let set = |_, options: SidecarOptions| {
        options.set("prefer", "quic").set("deadlines.progress", "10s").set("gc.leaseGrace", "20s")
    };
    Peers::start(2, set)
}
