//! Harm that a network does to bytes on their way between two hosts: it flips, repeats and reorders them, sends some of
//! them again, and fails at any byte, in each direction. Over the control connection, and over lanes in TLS and plain
//! ones. The right bytes or a typed error, one more connection, and nothing left. What is hurt at more places is in the
//! sidecar's own tests. Needs root.

use tensorlane_client::{Client, Result, Tensor};
use tensorlane_proto::{Reason, Transport};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::proxy::Between;
use tensorlane_tests::transfer::{MI, ROUTES, Route, is, put, seconds};
use tensorlane_tests::until;
use tensorlane_tests::ways::{WAYS, Way};
use tensorlane_tests::wire::Hurt;

/// Enough for lanes.
const BYTES: u64 = 9 * MI;
/// Fewer bytes than any message is.
const LESS_THAN_A_MESSAGE: u64 = 20;

/// Two peers that take a way, and what is between them.
struct Hosts {
    way: &'static Way,
    peers: Peers,
    between: Between,
}

impl Hosts {
    /// Gets a new tensor. The sessions end with it: what is left is left by peers.
    fn get(&self, route: Route, seed: u64) -> Result<Tensor> {
        let (writer, reader): (Client, Client) =
            (self.peers.client(route.owner), self.peers.client(route.reader));
        let stored = put(&writer, seed, BYTES);
        reader.acquire(stored.reference(), &seconds(25))
    }

    /// Gets a new tensor while something is done to the wire that leads to `host`, after so many bytes: it is right, or it is
    /// none. Whether anything was done.
    fn get_hurt(&self, route: Route, host: usize, (bytes, hurt): (u64, Hurt)) -> bool {
        let wire = &self.between.wires[host];
        let what = format!("{}: {hurt:?} after {bytes} bytes to {host}, {route:?}", self.way.name);
        let before = wire.hurts();
        wire.hurt_after(bytes, hurt);
        let outcome = self.get(route, bytes);
        wire.mend();
        match outcome {
            Ok(tensor) => assert!(is(&tensor, bytes, BYTES), "wrong bytes came: {what}"),
            Err(error) => assert_eq!(error.reason(), Some(Reason::ChecksumMismatch), "{what}: {error}"),
        }
        wire.hurts() > before
    }

    /// After so many of them: new connections came in the place of those that were closed, and what comes over them is right.
    fn assert_mended(&self, route: Route, hurts: u64, before: u64) {
        // A lost peer is dialed from both ends, and one of two connections goes: what is hurt of that one needs no other.
        let least = before + hurts.div_ceil(2);
        // Lanes are made again when they are needed, and a hurt one may not have ended when the next tensor is.
        until(&format!("{}: new connections after {hurts} were hurt", self.way.name), || {
            assert!(is(&self.get(route, 77).expect("nothing hurts it"), 77, BYTES));
            self.between.connections() >= least
        });
    }
}

/// Over the ways that take TCP; at once, for most of it is waiting for connections.
fn over_tcp(case: impl Fn(&Hosts) + Sync) {
    std::thread::scope(|scope| {
        for way in WAYS.iter().filter(|way| way.brings && way.transport == Transport::Tcp) {
            let case = &case;
            scope.spawn(move || {
                // So that what a lost connection was bringing is there when the next one is.
                let (peers, _) = way.pair(|_, options| options.set("gc.leaseGrace", "20s"));
                let between = Between::start(&peers);
                let hosts = Hosts { way, peers, between };
                case(&hosts);
                hosts.peers.assert_all_free();
                hosts.between.end(&hosts.peers);
            });
        }
    });
}

#[test]
fn what_is_flipped_repeated_reordered_or_overlapping_closes_a_connection_and_is_never_published() {
    over_tcp(|hosts| {
        for hurt in [Hurt::Flipped, Hurt::Repeated, Hurt::Reordered, Hurt::Overlapping] {
            for route in ROUTES {
                let before = hosts.between.connections();
                for step in 1..4 {
                    let hurts = hosts.get_hurt(route, route.reader, (step * 2_300_007, hurt));
                    assert!(hurts, "{}: all of it came, and nothing was hurt", hosts.way.name);
                }
                hosts.assert_mended(route, 3, before);
            }
        }
    });
}

#[test]
fn a_wire_that_fails_at_the_nth_byte_costs_time_and_no_byte() {
    over_tcp(|hosts| {
        let small = [0, 1, 100, 1_000, 2_500, 10_000];
        let large = [MI, 4 * MI + 4_000, 8 * MI + 8_000];
        for route in ROUTES {
            let before = hosts.between.connections();
            let mut cuts = 0;
            for bytes in small {
                let is_cut = hosts.get_hurt(route, route.owner, (bytes, Hurt::Cut));
                assert!(is_cut || bytes >= LESS_THAN_A_MESSAGE, "{}: it was asked for", hosts.way.name);
                cuts += u64::from(is_cut);
            }
            for bytes in small.into_iter().chain(large) {
                assert!(hosts.get_hurt(route, route.reader, (bytes, Hurt::Cut)), "{}", hosts.way.name);
                cuts += 1;
            }
            hosts.assert_mended(route, cuts, before);
        }
    });
}
