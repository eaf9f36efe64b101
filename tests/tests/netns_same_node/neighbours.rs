//! Single copy of a tensor a node: an owner elsewhere, and sidecars in network namespaces of their own with one
//! directory between them. Needs root.

use std::path::Path;
use std::thread::ScopedJoinHandle;

use rustix::process::Signal;
use tempfile::TempDir;
use tensorlane_client::{AcquireOptions, Client, PutOptions, Result, Tensor};
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::selection::Range;
use tensorlane_proto::{Reason, Reference, Selection, Transport};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::tensors::{fill, is_intact, put_pattern};
use tensorlane_tests::transfer::{LARGE, MI, await_counted, came, is, put, seconds, sent};
use tensorlane_tests::{SidecarOptions, Workload, failure, until};

/// Slow enough that a large tensor is on its way for two seconds.
const MBIT: u32 = 200;

/// An owner elsewhere, `a`, and pods of one node, `b`, `c`, ..., that have met.
fn node(pods: usize) -> (TempDir, Peers) {
    let dir = tempfile::Builder::new().prefix("tensorlane-node-").tempdir().unwrap();
    let peers = Peers::start(
        1 + pods,
        |host, options| if host == 0 { options.steady() } else { at(dir.path(), options) },
    );
    met(&peers);
    (dir, peers)
}

fn at(dir: &Path, options: SidecarOptions) -> SidecarOptions {
    options.steady().set("node.directory", dir.display())
}

fn met(peers: &Peers) {
    let pods = peers.sidecars.len();
    for (from, to) in
        (1..pods).flat_map(|from| (1..pods).map(move |to| (from, to))).filter(|(from, to)| from != to)
    {
        until("they have met", || {
            let route = peers.seen(from, to).route;
            route.is_some_and(|route| tensorlane_client::Moved::from(route).transport == Some(Transport::Shm))
        });
    }
}

/// Does it again, with a fresh tensor, until it gives something: on a busy machine a sidecar may not answer in its 500 ms, and
/// is not asked for 5 s then.
fn when_nobody_is_late<T>(mut once: impl FnMut(u64) -> Option<T>) -> T {
    let mut seed = 2;
    let mut found = None;
    until("nobody was late", || {
        seed += 1;
        found = once(seed);
        found.is_some()
    });
    found.unwrap()
}

/// From the node alone.
fn from_here() -> AcquireOptions {
    seconds(60).require(Require::SAME_NODE.and(Require::ZERO_COPY))
}

/// From a pod of the node that has it: one that does not answer in its 500 ms has no copy, and is not asked for 5 s.
fn from_a_pod_that_answers(reader: &Client, reference: &Reference) -> Tensor {
    let mut mapped = None;
    until("the pod that has a copy answers in time", || {
        match reader.acquire(reference, &from_here()) {
            Ok(tensor) => mapped = Some(tensor),
            refused => assert_eq!(failure(refused).reason, Reason::RequirementNotMet),
        }
        mapped.is_some()
    });
    mapped.unwrap()
}

fn from_neighbours(peers: &Peers, host: usize) -> u64 {
    peers.metric(host, "tensorlane_transfer_neighbour_tensors_total", &[]) as u64
}

/// Way in which it came, by its words.
fn how(tensor: &Tensor) -> String {
    tensor.moved().to_string()
}

#[test]
fn a_second_pod_of_a_node_maps_the_copy_of_the_first_and_holds_it_there() {
    let (_dir, peers) = node(2);
    let (owner, first, second) = (peers.client(0), peers.client(1), peers.client(2));
    let (seed, stored, copied, mapped) = when_nobody_is_late(|seed| {
        let stored = put(&owner, seed, LARGE);
        let copied = first.acquire(stored.reference(), &seconds(60)).unwrap();
        assert!(how(&copied).starts_with("tcp by "), "{}", how(&copied));
        await_counted(&peers);
        let counts = || (sent(&peers, 0), came(&peers, 2), from_neighbours(&peers, 2));
        let (by_owner, travelled, lent) = counts();
        let mapped = second.acquire(stored.reference(), &seconds(60)).unwrap();
        assert!(is(&mapped, seed, LARGE));
        if mapped.moved().transport == Some(Transport::Tcp) {
            return None;
        }
        assert_eq!((how(&mapped).as_str(), mapped.moved().bytes), ("shm from b", 0));
        assert_eq!(counts(), (by_owner, travelled, lent + 1), "nothing travelled");
        Some((seed, stored, copied, mapped))
    });
    until("it is no arena of the second one's", || {
        let arena = second.status().unwrap().arena.unwrap_or_default();
        (arena.sealed, arena.reserved, arena.retired) == (0, 0, 0)
    });
    let again = second.acquire(stored.reference(), &seconds(60)).unwrap();
    assert_eq!(again.moved().transport, Some(Transport::Shm));

    drop((copied, stored));
    first.flush().unwrap();
    owner.flush().unwrap();
    // With other bytes, as far as it goes.
    drop(fill(&first, 1_000, 4 * MI, 0));
    assert!(is(&mapped, seed, LARGE) && is(&again, seed, LARGE), "whoever lends keeps what is lent");
    drop((mapped, again, owner, first, second));
    peers.assert_all_free();
}

/// Proof that one copy comes, if nobody is late, is given in all orders of questions and answers by the model of the
/// sidecar (`exchange::neighbours::model`). Here the clock is real: on a busy machine a sidecar does not answer within
/// its 500 ms, and is then not asked for 5 s, in which there is a copy more in every round. So no number of rounds says
/// how often it must be one. It must be once, and in each round every copy has travelled once, and whoever brought none
/// has mapped one that was.
#[test]
fn pods_of_a_node_that_come_together_bring_one_copy() {
    let (_dir, peers) = node(4);
    let owner = peers.client(0);
    let readers: Vec<Client> = (1..5).map(|host| peers.client(host)).collect();
    let mut seed = 0;
    // On a busy machine somebody may not answer in time; then there is a copy more than one.
    until("one copy served all", || {
        seed += 1;
        let stored = put(&owner, seed, LARGE);
        let all_came = || (1..5).map(|host| came(&peers, host)).sum::<u64>();
        let before = all_came();
        let tensors: Vec<Tensor> = std::thread::scope(|scope| {
            let getting: Vec<ScopedJoinHandle<'_, Result<Tensor>>> = readers
                .iter()
                .map(|reader| scope.spawn(|| Client::acquire(reader, stored.reference(), &seconds(60))))
                .collect();
            getting.into_iter().map(|getting| getting.join().unwrap().unwrap()).collect()
        });
        assert!(tensors.iter().all(|tensor| is(tensor, seed, LARGE)));
        let copies = tensors.iter().filter(|tensor| tensor.moved().transport == Some(Transport::Tcp)).count();
        assert!(copies >= 1, "somebody brought it");
        assert_eq!(all_came() - before, copies as u64 * LARGE, "and each copy travelled once");
        let brought = |name: &str| {
            let at = ["b", "c", "d", "e"].iter().position(|pod| *pod == name);
            at.is_some_and(|at| tensors[at].moved().transport == Some(Transport::Tcp))
        };
        for mapped in tensors.iter().filter(|tensor| tensor.moved().transport != Some(Transport::Tcp)) {
            let from = &mapped.moved().senders;
            assert!(how(mapped).starts_with("shm from ") && brought(&from[0].0), "{}", how(mapped));
        }
        copies == 1
    });
    drop((readers, owner));
    peers.assert_all_free();
}

#[test]
fn a_pod_that_waits_for_a_copy_of_one_that_is_killed_or_gives_up_brings_it_itself() {
    let (_dir, mut peers) = node(3);
    let owner = peers.client(0);
    let readers = [peers.client(1), peers.client(2), peers.client(3)];
    // Where one of the others is not answered in time it brings its own, and is not to wait for anybody for 5 s.
    let shown = (3..11).any(|seed| is_killed_while_others_wait(&mut peers, &owner, &readers, seed));
    assert!(shown, "the others never waited for the first one");
    drop((readers, owner));
    peers.sidecars[1].start_again();
    peers.await_connected();
    peers.assert_all_free();
}

/// Returns whether the others waited for the first one, which was killed then; then all that follows from it holds.
fn is_killed_while_others_wait(peers: &mut Peers, owner: &Client, readers: &[Client; 3], seed: u64) -> bool {
    let stored = put(owner, seed, LARGE);
    peers.network.slow(0, MBIT);
    let before = [1, 2, 3].map(|host| came(peers, host));
    let have_come = |peers: &Peers, host: usize| came(peers, host) - before[host - 1];
    std::thread::scope(|scope| {
        let mut getting = Vec::new();
        getting.push(scope.spawn(|| readers[0].acquire(stored.reference(), &seconds(60))));
        until("it is on its way to the first one", || have_come(peers, 1) > LARGE / 10);
        // So slow that it is not over before it is killed.
        peers.network.slow(0, 20);
        for reader in &readers[1..] {
            getting.push(scope.spawn(|| reader.acquire(stored.reference(), &seconds(60))));
        }
        until("it is nearly there", || have_come(peers, 1) > LARGE / 3);
        let others_wait = (have_come(peers, 2), have_come(peers, 3)) == (0, 0);
        if others_wait {
            peers.sidecars[1].kill();
        }
        peers.network.slow(0, MBIT);
        let first = getting.remove(0).join().unwrap();
        assert_eq!(first.is_err(), others_wait, "the first one was in the middle, and is killed or gets it");
        let mut others = getting.into_iter().map(|getting| getting.join().unwrap().unwrap());
        assert!(others.all(|tensor| is(&tensor, seed, LARGE)));
        others_wait
    })
}

#[test]
fn a_copy_of_a_pod_that_is_killed_becomes_that_of_those_who_map_it_and_others_get_it_from_them() {
    let (_dir, mut peers) = node(3);
    let owner = peers.client(0);
    let first = peers.client(1);
    let mut workload = Workload::start(&peers.sidecars[2]);
    let (stored, copied) = when_nobody_is_late(|seed| {
        let stored = put_pattern(&owner, seed, LARGE, &PutOptions::new()).unwrap();
        let copied = first.acquire(stored.reference(), &seconds(60)).unwrap();
        let before = from_neighbours(&peers, 2);
        assert_eq!(workload.ask(&format!("acquire {}", stored.reference()), "acquired"), "1");
        if from_neighbours(&peers, 2) == before + 1 {
            return Some((stored, copied));
        }
        workload.ask("drop", "dropped 1");
        None
    });
    peers.sidecars[1].kill();
    drop((copied, first));
    until("its pages are copied", || {
        peers.metric(2, "tensorlane_peer_orphaned_bytes_total", &["end=\"copied\""]) > 0.0
    });
    assert_eq!(workload.ask("verify", "intact"), "1");
    let other = peers.client(3);
    let theirs = from_a_pod_that_answers(&other, stored.reference());
    assert!(is_intact(&theirs) && how(&theirs).starts_with("shm"), "{}", how(&theirs));
    assert_eq!(workload.ask("verify", "intact"), "1");
    workload.kill();
    assert!(is_intact(&theirs));
    drop((theirs, other, stored, owner));
    peers.sidecars[1].start_again();
    peers.await_connected();
    peers.assert_all_free();
}

#[test]
fn a_pod_that_does_not_answer_costs_the_others_a_moment() {
    let (_dir, peers) = node(2);
    let owner = peers.client(0);
    let stored = put(&owner, 3, LARGE);
    let reader = peers.client(2);
    stop(peers.sidecars[1].pid());
    let tensor = reader.acquire(stored.reference(), &seconds(60));
    signal(peers.sidecars[1].pid(), Signal::CONT);
    let tensor = tensor.unwrap();
    assert!(is(&tensor, 3, LARGE) && how(&tensor).starts_with("tcp by "), "{}", how(&tensor));
    drop((tensor, stored, reader, owner));
    peers.assert_all_free();
}

#[test]
fn what_must_be_on_the_node_is_refused_until_a_pod_of_it_has_a_copy() {
    let (_dir, peers) = node(2);
    let (owner, first, second) = (peers.client(0), peers.client(1), peers.client(2));
    let stored = put(&owner, 3, LARGE);
    let refused = failure(second.acquire(stored.reference(), &from_here()));
    assert_eq!(refused.reason, Reason::RequirementNotMet, "{refused}");
    let copied = first.acquire(stored.reference(), &seconds(60)).unwrap();
    let mapped = from_a_pod_that_answers(&second, stored.reference());
    assert!(is(&mapped, 3, LARGE));
    assert_eq!((how(&mapped).split(',').next(), came(&peers, 2)), (Some("shm from b"), 0));
    drop((copied, mapped, stored, owner, first, second));
    peers.assert_all_free();
}

#[test]
fn a_pod_whose_policy_shares_no_memory_lends_nothing() {
    let dir = tempfile::Builder::new().prefix("tensorlane-node-").tempdir().unwrap();
    let peers = Peers::start(3, |host, options| match host {
        0 => options.steady(),
        1 => at(dir.path(), options).set("transports", "tcp"),
        _ => at(dir.path(), options),
    });
    for host in [1, 2] {
        until("they have met", || {
            peers.metric(host, "tensorlane_peer_node_connections_total", &["event=\"met\""]) > 0.0
        });
    }
    let (owner, first, second) = (peers.client(0), peers.client(1), peers.client(2));
    let stored = put(&owner, 3, LARGE);
    let copied = first.acquire(stored.reference(), &seconds(60)).unwrap();
    let own = second.acquire(stored.reference(), &seconds(60)).unwrap();
    assert!(is(&own, 3, LARGE) && how(&own).starts_with("tcp by "), "{}", how(&own));
    drop((copied, own, stored, owner, first, second));
    peers.assert_all_free();
}

#[test]
fn a_pod_that_does_not_trust_its_neighbours_brings_its_own_copy_and_maps_what_is_theirs() {
    let dir = tempfile::Builder::new().prefix("tensorlane-node-").tempdir().unwrap();
    let peers = Peers::start(3, |host, options| match host {
        0 => options.steady(),
        1 => at(dir.path(), options),
        _ => at(dir.path(), options).set("security.neighbours", "off"),
    });
    met(&peers);
    {
        let (owner, first, second) = (peers.client(0), peers.client(1), peers.client(2));
        let stored = put(&owner, 1, LARGE);
        let copied = first.acquire(stored.reference(), &seconds(60)).unwrap();
        let own = second.acquire(stored.reference(), &seconds(60)).unwrap();
        assert!(is(&copied, 1, LARGE) && is(&own, 1, LARGE));
        assert!(how(&own).starts_with("tcp by "), "{}", how(&own));
        assert_eq!(from_neighbours(&peers, 2), 0);
        let theirs = put(&first, 2, LARGE);
        assert!(is(&from_a_pod_that_answers(&second, theirs.reference()), 2, LARGE));
    }
    peers.assert_all_free();
}

#[test]
fn a_pod_that_has_no_room_for_a_copy_keeps_nobody_waiting() {
    let dir = tempfile::Builder::new().prefix("tensorlane-node-").tempdir().unwrap();
    let peers = Peers::start(3, |host, options| match host {
        0 => options.steady(),
        1 => at(dir.path(), options).set("arena.size", "64Mi").set("arena.segment", "16Mi"),
        _ => at(dir.path(), options),
    });
    met(&peers);
    let (owner, full, other) = (peers.client(0), peers.client(1), peers.client(2));
    let stored = put(&owner, 3, LARGE);
    let kept = put(&full, 4, 32 * MI);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| full.acquire(stored.reference(), &seconds(20)));
        until("it waits for room", || {
            peers.metric(1, "tensorlane_sidecar_waiting_requests", &["for=\"room\""]) > 0.0
                || waiting.is_finished()
        });
        assert!(!waiting.is_finished(), "there is no room for it");
        let own = other.acquire(stored.reference(), &seconds(20)).unwrap();
        assert!(is(&own, 3, LARGE) && how(&own).starts_with("tcp by "), "{}", how(&own));
        drop((kept, own));
        full.flush().unwrap();
        assert!(waiting.join().unwrap().is_ok_and(|tensor| is(&tensor, 3, LARGE)));
    });
    drop((stored, owner, full, other));
    peers.assert_all_free();
}

#[test]
fn parts_and_small_tensors_are_not_looked_for_on_the_node() {
    let (_dir, peers) = node(2);
    let (owner, first, second) = (peers.client(0), peers.client(1), peers.client(2));
    let (large, small) = (put(&owner, 3, MI), put(&owner, 4, 5_000));
    let copies = [&large, &small].map(|stored| first.acquire(stored.reference(), &seconds(60)).unwrap());
    let part = Selection::Ranges(vec![Range::new(1_000, 9_000)]);
    let part = second.acquire(large.reference(), &seconds(60).selection(part)).unwrap();
    assert_eq!(part.to_vec(), copies[0].to_vec()[1_000..9_000]);
    let own = second.acquire(small.reference(), &seconds(60)).unwrap();
    assert!(is(&own, 4, 5_000));
    assert_eq!((from_neighbours(&peers, 2), came(&peers, 2)), (0, 8_000 + 5_000));
    drop((part, own, copies, large, small, owner, first, second));
    peers.assert_all_free();
}
