//! Duties of every way of bringing bytes must do between two processes on two hosts: the same cases over all of them. A
//! new way is a line in [`WAYS`]. What it must do within a process, at every byte, is in the sidecar's own tests. Needs
//! root.

use std::time::Duration;

use rustix::process::Signal;
use tensorlane_client::{AcquireOptions, Cancel, Client, Error, Stored, Target, Tensor};
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::selection::Range;
use tensorlane_proto::{Reason, Selection, Transport};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::transfer::{LARGE, MI, ROUTES, Route, in_the_middle_of, is, put, seconds};
use tensorlane_tests::ways::{WAYS, Way};
use tensorlane_tests::{reason, until, where_the_machine_runs_on};

/// In both directions, each between hosts of its own and both at once, for most of it is waiting.
fn over(way: &Way, case: &(impl Fn(&Way, &mut Peers, Route) + Sync)) {
    std::thread::scope(|scope| {
        for route in ROUTES {
            scope.spawn(move || {
                // So that an owner that is stopped for a moment keeps what it serves.
                let (mut peers, _node) = way.pair(|_, options| options.set("gc.leaseGrace", "20s"));
                case(way, &mut peers, route);
                peers.assert_free(route.reader);
            });
        }
    });
}

/// Way by way, in both directions. A case demands an answer in its time, or that lanes are not left for standing still.
fn over_in_time<'a>(ways: impl Iterator<Item = &'a Way>, case: impl Fn(&Way, &mut Peers, Route) + Sync) {
    ways.for_each(|way| where_the_machine_runs_on(|| over(way, &case)));
}

fn for_all(case: impl Fn(&Way, &mut Peers, Route) + Sync) {
    over_in_time(WAYS.iter(), case);
}

/// For those with a middle to be in.
fn for_all_that_bring(case: impl Fn(&Way, &mut Peers, Route) + Sync) {
    over_in_time(WAYS.iter().filter(|way| way.brings), case);
}

/// Checks what is told of a tensor of that size.
fn assert_told(way: &Way, tensor: &Tensor, size: u64) {
    let moved = tensor.moved();
    if !way.brings {
        // What has no bytes has nothing to map.
        assert!(size == 0 || moved.transport == Some(way.transport), "{}: {moved}", way.name);
        assert_eq!(moved.bytes, 0, "{}: {moved}", way.name);
        return;
    }
    // Whether a small one shared a frame with others makes no difference: it came, and is told to have come.
    let [path] = &moved.paths[..] else { panic!("{}: {moved}", way.name) };
    assert_eq!((path.bytes, &path.left), (size, &None));
    let told = (moved.transport, path.way.map(tensorlane_client::Way::as_str));
    let its = (Some(way.transport), Some(way.counted));
    // What is smaller comes on the control connection.
    let from = if way.encrypted { 8 * MI } else { MI / 4 };
    let expected = if size >= from { its } else { (Some(Transport::Tcp), Some("stream")) };
    assert_eq!(told, expected, "{}: {moved}", way.name);
    let is_plain = !way.encrypted && told == its;
    assert_eq!(path.plain_bytes, if is_plain { size } else { 0 }, "{}: {moved}", way.name);
}

/// Sessions of who puts and of who gets.
fn ends(peers: &Peers, route: Route) -> (Client, Client) {
    (peers.client(route.owner), peers.client(route.reader))
}

fn get(reader: &Client, stored: &Stored) -> Tensor {
    reader.acquire(stored.reference(), &seconds(20)).unwrap()
}

/// Until a tensor has come this way: the first one need not, where lanes are slow to come up.
fn warm_up(way: &Way, writer: &Client, reader: &Client) {
    let mut seed = 0;
    until("a tensor comes this way", || {
        seed += 1;
        let tensor = get(reader, &put(writer, seed, 9 * MI));
        let moved = tensor.moved();
        match &moved.paths[..] {
            [path] if way.brings => path.way.map(tensorlane_client::Way::as_str) == Some(way.counted),
            _ => !way.brings && moved.transport == Some(way.transport),
        }
    });
}

#[test]
fn tensors_of_any_size_come_one_by_one() {
    for_all(|way, peers, route| {
        let sizes = [0, 1, MI, 8 * MI - 1, 8 * MI, 8 * MI + 1, 21 * MI + 77];
        let (writer, reader) = ends(peers, route);
        warm_up(way, &writer, &reader);
        let counted = format!("way=\"{}\"", way.counted);
        let pulls = || peers.metric(route.reader, "tensorlane_peer_pulls_total", &[counted.as_str()]);
        let before = pulls();
        let stored: Vec<Stored> = sizes.iter().map(|size| put(&writer, *size, *size)).collect();
        for (stored, size) in stored.iter().zip(sizes) {
            let tensor = get(&reader, stored);
            assert!(is(&tensor, size, size), "{}: {size} bytes", way.name);
            assert_told(way, &tensor, size);
        }
        assert!(pulls() >= before + 3.0, "{}", way.name);
    });
}

#[test]
fn many_at_once_come_in_both_directions_at_once() {
    for way in &WAYS {
        let (peers, _node) = way.pair(|_, options| options.steady());
        std::thread::scope(|scope| {
            for route in ROUTES {
                let (writer, reader) = ends(&peers, route);
                scope.spawn(move || {
                    let sizes = [9 * MI, 0, 100, 11 * MI + 5, 0, 8 * MI, 70_000];
                    let stored: Vec<Stored> =
                        (sizes.iter().zip(100..)).map(|(size, seed)| put(&writer, seed, *size)).collect();
                    let targets: Vec<Target> =
                        stored.iter().map(|stored| stored.reference().into()).collect();
                    let tensors = reader.acquire_many(&targets, &seconds(20));
                    for ((tensor, size), seed) in tensors.into_iter().zip(sizes).zip(100..) {
                        assert!(is(&tensor.unwrap(), seed, size), "{}: {size} bytes", way.name);
                    }
                });
            }
        });
        peers.assert_all_free();
    }
}

#[test]
fn a_selection_comes_packed_or_is_a_view_of_what_is_there() {
    for_all(|way, peers, route| {
        let (writer, reader) = ends(peers, route);
        let stored = put(&writer, 5, 24 * MI);
        let ranges = Selection::Ranges(vec![Range::new(3, 24 * MI).step_by(2)]);
        let tensor = reader.acquire(stored.reference(), &seconds(60).selection(ranges)).unwrap();
        let whole = pattern(5, 24 << 20);
        assert!(tensor.to_vec().iter().eq(whole.iter().skip(3).step_by(2)), "{}", way.name);
        assert_eq!(tensor.moved().bytes, if way.brings { 12 * MI - 1 } else { 0 });
        // Rows are packed where they are read, if the whole is there.
        let list: Vec<u64> = (0..24 * MI).rev().step_by(4099).collect();
        let wanted: Vec<u8> = list.iter().map(|row| whole[*row as usize]).collect();
        let rows = seconds(60).selection(Selection::rows(list));
        let tensor = reader.acquire(stored.reference(), &rows).unwrap();
        assert!(tensor.to_vec() == wanted, "{}", way.name);
        assert_eq!(tensor.moved().bytes, if way.brings { wanted.len() as u64 } else { 0 });
    });
}

#[test]
fn encryption_that_is_required_is_had_or_refused() {
    for_all(|way, peers, route| {
        let (writer, reader) = ends(peers, route);
        let stored = put(&writer, 5, 9 * MI);
        let encrypted = AcquireOptions { require: Require::ENCRYPTED, ..seconds(20) };
        let outcome = reader.acquire(stored.reference(), &encrypted);
        if way.encrypted {
            assert!(is(&outcome.unwrap(), 5, 9 * MI));
        } else {
            assert_eq!(reason(outcome), Reason::RequirementNotMet);
        }
    });
}

#[test]
fn a_reader_that_cancels_in_the_middle_is_answered_and_the_owner_is_told() {
    for_all_that_bring(|way, peers, route| {
        let (writer, reader) = ends(peers, route);
        let stored = put(&writer, 6, LARGE);
        let cancel = Cancel::new();
        let cancelling = reader.with_cancel(cancel.clone());
        let options = seconds(20);
        let outcome = std::thread::scope(|scope| {
            let pulling = in_the_middle_of(scope, peers, route, (&cancelling, stored.reference(), &options));
            cancel.cancel();
            pulling.join().unwrap()
        });
        assert!(matches!(outcome, Err(Error::Withdrawn)), "{}: {outcome:?}", way.name);
        peers.network.fast(route.owner);
        let leases = || peers.client(route.owner).status().unwrap().leases;
        until("the owner keeps it for its writer alone", || leases() == 1);
        assert!(is(&get(&reader, &stored), 6, LARGE), "{}", way.name);
    });
}

#[test]
fn a_reader_that_is_stopped_has_not_got_it_and_gets_it_when_it_goes_on() {
    for_all(|way, peers, route| {
        let (writer, reader) = ends(peers, route);
        let stored = put(&writer, 7, LARGE);
        let options = seconds(28);
        let tensor = std::thread::scope(|scope| {
            let begin = || scope.spawn(|| reader.acquire(stored.reference(), &options));
            let get = (&reader, stored.reference(), &options);
            let begun = way.brings.then(|| in_the_middle_of(scope, peers, route, get));
            stop(peers.sidecars[route.reader].pid());
            let pulling = begun.unwrap_or_else(begin);
            if way.brings {
                peers.network.fast(route.owner);
            }
            // The owner may think so, but nobody has told the reader.
            std::thread::park_timeout(Duration::from_millis(500));
            assert!(!pulling.is_finished(), "{}", way.name);
            signal(peers.sidecars[route.reader].pid(), Signal::CONT);
            pulling.join().unwrap().unwrap()
        });
        assert!(is(&tensor, 7, LARGE), "{}", way.name);
    });
}

#[test]
fn an_owner_that_is_killed_in_the_middle_is_an_error_in_time() {
    for_all_that_bring(|way, peers, route| {
        let (writer, reader) = ends(peers, route);
        let stored = put(&writer, 8, LARGE);
        let options = seconds(8);
        let outcome = std::thread::scope(|scope| {
            let pulling = in_the_middle_of(scope, peers, route, (&reader, stored.reference(), &options));
            peers.sidecars[route.owner].kill();
            pulling.join().unwrap()
        });
        assert_eq!(reason(outcome), Reason::PeerUnreachable, "{}", way.name);
    });
}

#[test]
fn an_owner_that_is_killed_leaves_what_is_mapped_and_nothing_else() {
    over_in_time(WAYS.iter().filter(|way| !way.brings), |way, peers, route| {
        let (writer, reader) = ends(peers, route);
        let stored = [put(&writer, 8, LARGE), put(&writer, 9, LARGE)];
        let mapped = get(&reader, &stored[0]);
        assert_eq!(mapped.moved().transport, Some(way.transport));
        peers.sidecars[route.owner].kill();
        assert_eq!(reason(reader.acquire(stored[1].reference(), &seconds(4))), Reason::PeerUnreachable);
        assert!(is(&mapped, 8, LARGE), "{}", way.name);
    });
}
