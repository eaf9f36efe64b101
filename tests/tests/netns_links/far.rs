//! QUIC between two processes that are far from each other. Needs root.

use std::time::Duration;

use tensorlane_client::Moved;
use tensorlane_proto::Transport;
use tensorlane_tests::far::LongWay;
use tensorlane_tests::transfer::{MI, is, put, seconds};
use tensorlane_tests::{until, where_the_machine_runs_on};

use super::{WINDOW, two};

/// Around half of the world.
const ROUND_TRIP: Duration = Duration::from_millis(300);
/// More than what a connection has where nothing is far, which its two lanes ask for at a time.
const FLOOR: u64 = 17 * MI;
/// Most that it may have, and a little.
const MOST: u64 = 65 * MI;

/// Datagrams grow until a batch of them is what the kernel takes in one call. Had they grown beyond, whole batches would be lost,
/// and this would take more than a minute.
#[test]
fn tensors_come_by_quic_over_a_long_way_within_half_a_minute() {
    where_the_machine_runs_on(|| {
        let peers = two();
        let _way = LongWay::start(&peers, ROUND_TRIP);
        // One of the two has the relay on its own host, where the path carries the largest datagrams.
        for (owner, reader) in [(0, 1), (1, 0)] {
            let (writer, reader) = (peers.client(owner), peers.client(reader));
            let get = |seed| {
                let stored = put(&writer, seed, 9 * MI);
                let tensor = reader.acquire(stored.reference(), &seconds(30)).unwrap();
                assert!(is(&tensor, seed, 9 * MI));
                tensor.moved().clone()
            };
            let by_quic = |moved: &Moved| moved.transport == Some(Transport::Quic);
            // The first one need not wait for a connection that takes its time, nor those soon after it.
            let mut seeds = 10..;
            until("one comes by QUIC", || by_quic(&get(seeds.next().expect("a number"))));
            for seed in 1..3 {
                let moved = get(seed);
                assert!(by_quic(&moved), "{moved}");
            }
        }
    });
}

/// Bytes under way on a link that is full are its goodput times its round trip. The floor of the window allows some 28
/// MB/s at twice the distance; twice the product passes it from 15 MB/s on, which the relay of a busy machine can do as
/// well.
#[test]
fn the_window_of_a_quic_connection_grows_with_what_is_under_way_on_a_long_way_up_to_its_limit() {
    where_the_machine_runs_on(|| {
        let peers = two();
        let _way = LongWay::start(&peers, 2 * ROUND_TRIP);
        let (writer, reader) = (peers.client(0), peers.client(1));
        for seed in 1..=12 {
            let stored = put(&writer, seed, 64 * MI);
            let tensor = reader.acquire(stored.reference(), &seconds(60)).unwrap();
            assert!(is(&tensor, seed, 64 * MI));
            let window = peers.metric(1, WINDOW, &["direction=\"in\""]);
            assert!(window <= MOST as f64, "{window}");
            if window > FLOOR as f64 {
                return;
            }
        }
        panic!("twice the product was never more than the floor");
    });
}
