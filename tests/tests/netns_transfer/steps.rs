//! Things that come to an end while a tensor is on its way between two hosts, at several points of that way, over every
//! way there is: the reader cancels, the owner lets go, either sidecar is killed. Right bytes or a typed error, and
//! nothing left at whoever lives on. Where nothing travels the point is that the owner was asked and stands still; what
//! is between its few bytes is in the sidecar's own tests. Needs root.

use std::time::Duration;

use rustix::process::Signal;

use tensorlane_client::{Cancel, Client, Error, Result, Stored, Tensor};
use tensorlane_proto::{Reason, Reference};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::transfer::{MI, ROUTES, Route, SLOW_MBIT, is, put, seconds};
use tensorlane_tests::ways::{WAYS, Way};
use tensorlane_tests::{until, where_the_machine_runs_on};

/// Four seconds of a slow cable, and enough for lanes.
const BYTES: u64 = 24 * MI;
/// Point at which something ends.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// So many tenths have come.
    Tenths(u64),
    /// The owner has been asked and stands still.
    Asked,
}

/// Points for which there is something in between.
const MIDDLE: [Point; 3] = [Point::Tenths(1), Point::Tenths(5), Point::Tenths(9)];

fn points(way: &Way) -> &'static [Point] {
    if way.brings { &MIDDLE } else { &[Point::Asked] }
}

/// A case at one point of one way, in one direction.
struct At<'a> {
    way: &'a Way,
    route: Route,
    point: Point,
    seed: u64,
}

impl At<'_> {
    /// The reader gets something of the owner over a slow cable; does something when so much of it has come.
    fn meanwhile(
        &self,
        peers: &mut Peers,
        reader: &Client,
        reference: &Reference,
        act: impl FnOnce(&mut Peers),
    ) -> Result<Tensor> {
        let tenths = match self.point {
            Point::Tenths(tenths) => tenths,
            Point::Asked => return self.while_the_owner_stands(peers, reader, reference, act),
        };
        let options = seconds(20);
        let came = |peers: &Peers| peers.seen(self.route.reader, self.route.owner).bytes_in;
        peers.network.slow(self.route.owner, SLOW_MBIT);
        let before = came(peers);
        let outcome = std::thread::scope(|scope| {
            let pulling = scope.spawn(|| reader.acquire(reference, &options));
            // On a busy machine all of it may be here before anybody looks.
            until("it has come so far", || {
                pulling.is_finished() || came(peers) - before >= BYTES * tenths / 10
            });
            act(peers);
            pulling.join().expect("no panic")
        });
        peers.network.fast(self.route.owner);
        outcome
    }

    /// The reader gets something that does not travel: it is answered although the owner stands still, or comes once it
    /// goes on.
    fn while_the_owner_stands(
        &self,
        peers: &mut Peers,
        reader: &Client,
        reference: &Reference,
        act: impl FnOnce(&mut Peers),
    ) -> Result<Tensor> {
        let (options, owner) = (seconds(20), peers.sidecars[self.route.owner].pid());
        stop(owner);
        std::thread::scope(|scope| {
            let getting = scope.spawn(|| reader.acquire(reference, &options));
            std::thread::park_timeout(Duration::from_millis(300));
            assert!(!getting.is_finished(), "{}: nobody has answered", self.way.name);
            act(peers);
            until("it is over, though the owner stands still", || getting.is_finished());
            if peers.sidecars[self.route.owner].is_running() {
                signal(owner, Signal::CONT);
            }
            getting.join().expect("no panic")
        })
    }

    /// Asserts that it failed for one of these reasons, or came whole; returns whether it failed.
    fn assert_typed(&self, outcome: &Result<Tensor>, is_one: impl Fn(&Error) -> bool) -> bool {
        let Self { way, point, seed, .. } = self;
        match outcome {
            Ok(tensor) => {
                assert!(is(tensor, *seed, BYTES), "{}: wrong bytes at {point:?}", way.name);
            }
            Err(error) => assert!(is_one(error), "{}: {error} at {point:?}", way.name),
        }
        outcome.is_err()
    }
}

/// At every point of every way, in both directions; all ways at once, for most of it is waiting for the cable.
fn at_every_point(case: impl Fn(&At<'_>, &mut Peers) -> bool + Sync) {
    at_the_points_of(WAYS.iter(), "3s", case);
}

fn at_the_points_of<'a>(
    ways: impl Iterator<Item = &'a Way>,
    grace: &str,
    case: impl Fn(&At<'_>, &mut Peers) -> bool + Sync,
) {
    let ways: Vec<&Way> = ways.collect();
    where_the_machine_runs_on(|| once_at_the_points_of(&ways, grace, &case));
}

fn once_at_the_points_of(ways: &[&Way], grace: &str, case: &(impl Fn(&At<'_>, &mut Peers) -> bool + Sync)) {
    std::thread::scope(|scope| {
        for &way in ways {
            for route in ROUTES {
                scope.spawn(move || {
                    let (mut peers, _node) = way.pair(|_, options| options.set("gc.leaseGrace", grace));
                    let points = (1..).zip(points(way).iter().copied());
                    let ended = points
                        .map(|(seed, point)| case(&At { way, route, point, seed }, &mut peers))
                        .collect::<Vec<_>>();
                    assert!(ended.contains(&true), "{}, {route:?}: nothing was in the middle", way.name);
                    peers.assert_all_free();
                });
            }
        }
    });
}

/// Of a host: tensors, leases, and bytes of the arena that are in use.
fn kept(peers: &Peers, host: usize) -> (u64, u64, u64) {
    let status = peers.client(host).status().expect("a status");
    let arena = status.arena.unwrap_or_default();
    (status.tensors, status.leases, arena.sealed + arena.reserved)
}

fn await_nothing(peers: &Peers, host: usize) {
    until("nothing is left of it", || kept(peers, host) == (0, 0, 0));
}

/// Waits until its writer holds it, and nobody else.
fn await_the_writers_alone(peers: &Peers, owner: usize) {
    until("the owner keeps it for its writer alone", || {
        let (tensors, leases, _) = kept(peers, owner);
        (tensors, leases) == (1, 1)
    });
}

fn stored(peers: &Peers, at: &At<'_>) -> (Client, Client, Stored) {
    let (writer, reader) = (peers.client(at.route.owner), peers.client(at.route.reader));
    let stored = put(&writer, at.seed, BYTES);
    (writer, reader, stored)
}

#[test]
fn a_reader_that_cancels_at_any_point_leaves_nothing_at_either_end() {
    // Where a connection is lost on a busy machine, the call must still be there to be cancelled when the peer is back.
    at_the_points_of(WAYS.iter(), "20s", |at, peers| {
        let (_writer, reader, stored) = stored(peers, at);
        let cancel = Cancel::new();
        let cancelling = reader.with_cancel(cancel.clone());
        let outcome = at.meanwhile(peers, &cancelling, stored.reference(), |_| cancel.cancel());
        let ended = at.assert_typed(&outcome, |error| matches!(error, Error::Withdrawn));
        drop(outcome);
        await_the_writers_alone(peers, at.route.owner);
        await_nothing(peers, at.route.reader);
        ended
    });
}

#[test]
fn an_owner_that_lets_go_at_any_point_gives_all_of_it_to_whoever_was_pulling_and_keeps_nothing() {
    // Where a connection is lost on a busy machine, the peer's lease alone keeps the tensor until it is back.
    // An owner that stands still lets go of nothing, so that this is of ways with a middle.
    at_the_points_of(WAYS.iter().filter(|way| way.brings), "20s", |at, peers| {
        let (writer, reader, stored) = stored(peers, at);
        let reference = stored.reference().clone();
        let mut was_held = false;
        let outcome = at.meanwhile(peers, &reader, &reference, |peers| {
            drop(stored);
            writer.flush().expect("the sidecar is there");
            was_held = kept(peers, at.route.owner).1 == 1;
        });
        assert!(is(&outcome.unwrap(), at.seed, BYTES), "{}", at.way.name);
        await_nothing(peers, at.route.owner);
        await_nothing(peers, at.route.reader);
        was_held
    });
}

#[test]
fn a_readers_sidecar_that_is_killed_at_any_point_leaves_nothing_at_the_owner() {
    at_every_point(|at, peers| {
        let (_writer, reader, stored) = stored(peers, at);
        let outcome =
            at.meanwhile(peers, &reader, stored.reference(), |peers| peers.sidecars[at.route.reader].kill());
        // What is mapped stays, whoever dies.
        let ended = at.assert_typed(&outcome, |error| matches!(error, Error::SessionLost { .. }));
        drop(outcome);
        await_the_writers_alone(peers, at.route.owner);
        peers.sidecars[at.route.reader].start_again();
        peers.await_connected();
        ended
    });
}

#[test]
fn an_owners_sidecar_that_is_killed_at_any_point_is_a_typed_error_and_leaves_nothing_at_the_reader() {
    at_every_point(|at, peers| {
        let (_writer, reader, stored) = stored(peers, at);
        let outcome =
            at.meanwhile(peers, &reader, stored.reference(), |peers| peers.sidecars[at.route.owner].kill());
        let ended = at.assert_typed(&outcome, |error| {
            matches!(error.reason(), Some(Reason::PeerUnreachable | Reason::OwnerLost))
        });
        drop(outcome);
        await_nothing(peers, at.route.reader);
        peers.sidecars[at.route.owner].start_again();
        peers.await_connected();
        ended
    });
}
