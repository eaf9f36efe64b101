//! QUIC between two processes that are far from each other. Needs root.

use std::time::Duration;

use tensorlane_proto::Transport;
use tensorlane_tests::SidecarOptions;
use tensorlane_tests::far::LongWay;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::transfer::{MI, is, put, seconds};

/// Around half of the world.
const ROUND_TRIP: Duration = Duration::from_millis(300);

/// Datagrams grow until a batch of them is what the kernel takes in one call. Had they grown beyond, whole batches would be lost,
/// and this would take more than a minute.
#[test]
fn tensors_come_by_quic_over_a_long_way_within_half_a_minute() {
    let set = |_, options: SidecarOptions| {
        options.set("prefer", "quic").set("deadlines.progress", "10s").set("gc.leaseGrace", "20s")
    };
    let peers = Peers::start(2, set);
    let _way = LongWay::start(&peers, ROUND_TRIP);
    // One of the two has the relay on its own host, where the path carries the largest datagrams.
    for (owner, reader) in [(0, 1), (1, 0)] {
        let (writer, reader) = (peers.client(owner), peers.client(reader));
        for seed in 1..4 {
            let stored = put(&writer, seed, 9 * MI);
            let tensor = reader.acquire(stored.reference(), &seconds(30)).unwrap();
            assert!(is(&tensor, seed, 9 * MI));
            // The first one need not wait for a connection that takes its time.
            let by_quic = tensor.moved().transport == Some(Transport::Quic);
            assert!(by_quic || seed == 1, "{}", tensor.moved());
        }
    }
}
