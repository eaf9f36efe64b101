//! Pods of one node that share memory: sidecars in network namespaces of their own, with one directory between them, and
//! one that has another. Needs root.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use tensorlane_client::pipe::{self, Allocation, ConnectOptions};
use tensorlane_client::{AcquireOptions, Cancel, Client, Error, PutOptions, Tensor, View};
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::selection::Range;
use tensorlane_proto::{Reason, Selection, Transport};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::pipes::{LONG, next, text};
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::tensors::{fill, is_intact, pages, pattern, put_pattern, u8s};
use tensorlane_tests::transfer::{MI, is, put, seconds};
use tensorlane_tests::wait::SetOnDrop;
use tensorlane_tests::{SidecarOptions, Workload, failure, reason, until, where_the_machine_runs_on};

/// Longest time that memory of an owner that is gone stays its own: it is looked for every two seconds, and copied by a
/// machine that may be busy.
const GRACE: Duration = Duration::from_secs(15);

/// Sidecars of one node, as many as asked for, and the directory between them.
fn node(count: usize) -> (TempDir, Peers) {
    let dir = tempfile::Builder::new().prefix("tensorlane-node-").tempdir().unwrap();
    let peers = Peers::start(count, |_, options| at(dir.path(), options.steady()));
    (dir, peers)
}

pub(crate) fn at(dir: &Path, options: SidecarOptions) -> SidecarOptions {
    options.set("node.directory", dir.display()).set("arena.size", "64Mi").set("arena.segment", "16Mi")
}

pub(crate) fn on_node() -> AcquireOptions {
    seconds(20).require(Require::SAME_NODE.and(Require::ZERO_COPY).and(Require::ENCRYPTED))
}

pub(crate) fn route(peers: &Peers, from: usize, to: usize) -> String {
    let seen = peers.seen(from, to);
    seen.route.map(|route| tensorlane_client::Moved::from(route).to_string()).unwrap_or_default()
}

fn foreign(peers: &Peers, host: usize, state: &str) -> u64 {
    peers.metric(host, "tensorlane_peer_foreign_bytes", &[&format!("state=\"{state}\"")]) as u64
}

#[test]
fn two_pods_of_a_node_map_the_same_pages_and_one_elsewhere_gets_bytes() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let peers = Peers::start(3, |host, options| {
        at(if host < 2 { here.path() } else { there.path() }, options.steady())
    });
    {
        let (owner, same, other) = (peers.client(0), peers.client(1), peers.client(2));
        let stored = put(&owner, 1, 5 * MI + 77);
        let own = owner.acquire(stored.reference(), &seconds(20)).unwrap();
        until("they have met", || route(&peers, 1, 0) == "shm");
        let mapped = same.acquire(stored.reference(), &on_node()).unwrap();
        assert_eq!((mapped.moved().transport, mapped.moved().bytes), (Some(Transport::Shm), 0));
        assert!(is(&mapped, 1, 5 * MI + 77) && pages(&mapped) == pages(&own));
        assert_eq!(peers.seen(1, 0).bytes_in, 0, "nothing travelled");
        let arena = same.status().unwrap().arena.unwrap_or_default();
        assert_eq!(
            (arena.sealed, arena.reserved, arena.retired),
            (0, 0, 0),
            "it is no arena of the reader's"
        );
        assert_eq!(foreign(&peers, 1, "used"), 5 * MI + 77);
        let second = peers.client(1);
        let again = second.acquire(stored.reference(), &on_node()).unwrap();
        assert!(again.moved().transport == Some(Transport::Shm) && pages(&again) == pages(&own));
        until("it is known that the other is elsewhere", || {
            route(&peers, 2, 0) == "tcp, not shm: other_node"
        });
        let copied = other.acquire(stored.reference(), &seconds(20)).unwrap();
        assert!(copied.moved().transport == Some(Transport::Tcp) && pages(&copied) != pages(&own));
    }
    peers.assert_all_free();
}

#[test]
fn tensors_of_a_message_to_another_pod_of_the_node_are_mapped_where_they_lie() {
    const BYTES: usize = 5 << 20;
    let (_dir, peers) = node(2);
    {
        let (from, to) = (peers.client(0), peers.client(1));
        until("they have met", || route(&peers, 1, 0) == "shm");
        let listener = to.listen("inbox").unwrap();
        let near = from.connect_pipe("b/inbox", &ConnectOptions::new()).unwrap();
        let far = listener.accept(LONG).unwrap();
        let message = text("mapped").tensor(u8s(BYTES as u64), pattern(7, BYTES));
        let writing = near.begin(message, LONG).unwrap();
        let received = far.read(next(&far), Allocation::map()).unwrap();
        let pipe::Tensor::Mapped(tensor) = &received.tensors[0] else { panic!("it is mapped") };
        assert_eq!((tensor.moved().transport, tensor.moved().bytes), (Some(Transport::Shm), 0));
        assert!(tensor.to_vec() == pattern(7, BYTES), "the mapped one is another one");
        assert_eq!(peers.seen(1, 0).bytes_in, 0, "nothing travelled");
        drop(writing.wait().unwrap());
    }
    peers.assert_all_free();
}

#[test]
fn what_must_stay_on_the_node_is_refused_with_the_reason_where_it_cannot() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let peers = Peers::start(3, |host, options| match host {
        0 => at(here.path(), options.steady()),
        1 => at(there.path(), options.steady()),
        _ => options.steady(),
    });
    {
        let owner = peers.client(0);
        let stored = put(&owner, 1, MI);
        until("it is known that the other is elsewhere", || route(&peers, 1, 0).contains("other_node"));
        for (host, why) in [(1, "other_node"), (2, "no_socket_dir")] {
            let refused = failure(peers.client(host).acquire(stored.reference(), &on_node()));
            assert_eq!(refused.reason, Reason::RequirementNotMet, "{refused}");
            assert!(format!("{refused:?}").contains(why), "{refused:?}");
            assert_eq!(peers.seen(host, 0).bytes_in, 0);
        }
    }
    peers.assert_all_free();
}

/// Both advertise memory of the node, and neither can give it: in the directory of each somebody else listens at the name that
/// the other one's socket has in its own.
#[test]
fn a_peer_that_advertises_memory_of_a_node_on_which_it_is_not_gives_bytes_and_strangers_learn_nothing() {
    where_the_machine_runs_on(|| {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let peers = Peers::start(2, |host, options| at(dirs[host].path(), options));
        let own = dirs.each_ref().map(|dir| {
            let socket = std::fs::read_dir(dir.path()).unwrap().next().expect("a socket").unwrap();
            socket.file_name()
        });
        let strangers = [0, 1].map(|host: usize| {
            let stranger = UnixListener::bind(dirs[host].path().join(&own[1 - host])).unwrap();
            stranger.set_nonblocking(true).unwrap();
            stranger
        });
        // They look for each other's sockets when they connect.
        peers.network.cut(1);
        until("the cut is noticed", || (0..2).all(|host| peers.seen(host, 1 - host).state != "connected"));
        peers.network.mend(1);
        peers.await_connected();
        for (host, other) in [(0, 1), (1, 0)] {
            let (owner, reader) = (peers.client(host), peers.client(other));
            let stored = put(&owner, 41, 9 * MI);
            let tensor = reader.acquire(stored.reference(), &seconds(20)).unwrap();
            assert!(is(&tensor, 41, 9 * MI));
            let told = tensor.moved().to_string();
            assert!(told.starts_with("tcp by ") && told.ends_with(", not shm: other_node"), "{told}");
            let next = put(&owner, 42, MI);
            let refused = failure(reader.acquire(next.reference(), &on_node()));
            assert_eq!(refused.reason, Reason::RequirementNotMet, "{refused}");
        }
        let apart = ["reason=\"other_directory\""];
        let refused =
            |host: usize| peers.metric(host, "tensorlane_peer_refused_node_connections_total", &apart);
        assert!(refused(0) >= 1.0 && refused(1) >= 1.0, "by what both have told, nobody looked");
        for stranger in strangers {
            let called = stranger.accept().map(|_| ()).unwrap_err();
            assert_eq!(called.kind(), ErrorKind::WouldBlock, "somebody called the stranger");
        }
        peers.assert_all_free();
    });
}

#[test]
fn parts_of_a_tensor_of_the_node_are_views_and_rows_are_packed_here() {
    let (_dir, peers) = node(2);
    {
        let (owner, reader) = (peers.client(0), peers.client(1));
        until("they have met", || route(&peers, 1, 0) == "shm");
        let stored = put(&owner, 3, MI);
        let whole = owner.acquire(stored.reference(), &seconds(20)).unwrap().to_vec();
        let part = Selection::Ranges(vec![Range::new(1000, 9000).step_by(3)]);
        let view = reader.acquire(stored.reference(), &on_node().selection(part)).unwrap();
        assert!(!view.copied() && view.moved().transport == Some(Transport::Shm));
        assert!(view.to_vec().iter().eq(whole[1000..9000].iter().step_by(3)));
        let rows = seconds(20).selection(Selection::rows(vec![9, 2, 2]));
        let packed = reader.acquire(stored.reference(), &rows).unwrap();
        assert!(packed.copied() && packed.to_vec() == [whole[9], whole[2], whole[2]]);
        // What they were packed from was mapped.
        assert_eq!(packed.moved().transport, Some(Transport::Shm));
        let mut small = Vec::new();
        for seed in 0..200 {
            small.push(put_pattern(&owner, seed, seed * 31, &PutOptions::new()).unwrap());
        }
        let targets: Vec<_> = small.iter().map(|stored| stored.reference().clone().into()).collect();
        for tensor in reader.acquire_many(&targets, &seconds(20)) {
            assert!(is_intact(&tensor.unwrap()));
        }
        assert_eq!(peers.seen(1, 0).bytes_in, 0);
    }
    peers.assert_all_free();
}

/// Fills the arena of a host with other bytes, as far as it goes, and lets go of them.
fn overwrite(client: &Client) {
    drop(fill(client, 1_000, 4 * MI, 0));
}

#[test]
fn a_readers_sidecar_that_is_killed_costs_its_clients_no_byte_and_the_owner_none_for_good() {
    let (_dir, mut peers) = node(2);
    let owner = peers.client(0);
    let stored = put_pattern(&owner, 7, 6 * MI, &PutOptions::named("kept")).unwrap();
    let reference = stored.reference().clone();
    drop(stored);
    until("they have met", || route(&peers, 1, 0) == "shm");
    let mut workload = Workload::start(&peers.sidecars[1]);
    assert_eq!(workload.ask(&format!("acquire {reference}"), "acquired"), "1");
    assert_eq!(foreign(&peers, 1, "used"), 6 * MI);
    peers.sidecars[1].kill();
    owner.unname(&["kept"]).unwrap();
    until("the grace is over, and the tensor gone for everyone", || owner.describe(&reference).is_err());
    overwrite(&owner);
    assert_eq!(workload.ask("verify", "intact"), "1");
    workload.kill();
    drop(owner);
    peers.assert_free(0);
}

#[test]
fn a_readers_client_that_dies_and_leaves_a_child_keeps_the_bytes_for_it() {
    let (_dir, peers) = node(2);
    let owner = peers.client(0);
    let stored = put_pattern(&owner, 7, 6 * MI, &PutOptions::new()).unwrap();
    until("they have met", || route(&peers, 1, 0) == "shm");
    let mut workload = Workload::start(&peers.sidecars[1]);
    assert_eq!(workload.ask(&format!("acquire {}", stored.reference()), "acquired"), "1");
    let child = workload.fork_watching();
    child.wait_until_stopped();
    workload.kill_alone();
    drop(stored);
    owner.flush().unwrap();
    overwrite(&owner);
    assert!(foreign(&peers, 1, "used") > 0, "the lease goes on for the child");
    child.signal(Signal::CONT);
    assert_eq!(workload.answer(), "intact");
    child.kill();
    drop((workload, owner));
    peers.assert_all_free();
}

/// Nothing is on its way where memory is shared, so the middle of a map is the question to the owner.
#[test]
fn a_map_that_is_cancelled_while_the_owner_stands_still_is_answered_and_its_lease_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    // Neither the end of the connection nor a grace gives anything back.
    let peers = Peers::start(2, |_, options| {
        at(dir.path(), options).set("deadlines.progress", "25s").set("gc.leaseGrace", "1h")
    });
    {
        let (owner, reader) = (peers.client(0), peers.client(1));
        let stored = put(&owner, 9, 6 * MI);
        until("they have met", || route(&peers, 1, 0) == "shm");
        let cancel = Cancel::new();
        let cancelling = reader.with_cancel(cancel.clone());
        stop(peers.sidecars[0].pid());
        let outcome = std::thread::scope(|scope| {
            let mapping = scope.spawn(|| cancelling.acquire(stored.reference(), &on_node()));
            // Nobody tells when the owner has been asked; that it was not yet is as good an answer.
            std::thread::park_timeout(Duration::from_millis(500));
            assert!(!mapping.is_finished(), "the owner stands still");
            cancel.cancel();
            mapping.join().unwrap()
        });
        assert!(matches!(outcome, Err(Error::Withdrawn)), "{outcome:?}");
        signal(peers.sidecars[0].pid(), Signal::CONT);
        // What follows on the same connection is answered after what was asked before.
        let mapped = reader.acquire(stored.reference(), &on_node()).unwrap();
        assert!(is(&mapped, 9, 6 * MI) && mapped.moved().transport == Some(Transport::Shm));
        drop(mapped);
        reader.flush().unwrap();
        until("the owner keeps it for its writer alone", || owner.status().unwrap().leases == 1);
        assert_eq!(foreign(&peers, 1, "used"), 0);
    }
    peers.assert_all_free();
}

/// Bytes of dead owners' segments that a host has copied.
fn copied(peers: &Peers, host: usize) -> u64 {
    peers.metric(host, "tensorlane_peer_orphaned_bytes_total", &["end=\"copied\""]) as u64
}

fn arena(client: &Client) -> v1::ArenaStatus {
    client.status().unwrap().arena.unwrap_or_default()
}

#[test]
fn the_pages_of_an_owner_that_is_killed_become_those_of_whoever_maps_them() {
    where_the_machine_runs_on(|| {
        let (_dir, mut peers) = node(2);
        until("they have met", || route(&peers, 1, 0) == "shm");
        let stored = put_pattern(&peers.client(0), 7, 6 * MI, &PutOptions::named("kept")).unwrap();
        let reader = peers.client(1);
        let mapped = reader.acquire(stored.reference(), &on_node()).unwrap();
        let mut workload = Workload::start(&peers.sidecars[1]);
        assert_eq!(workload.ask(&format!("acquire {}", stored.reference()), "acquired"), "1");
        let at = |tensor: &Tensor| tensor.view().map(View::as_ptr);
        let (address, before, segment) = (at(&mapped), pages(&mapped), foreign(&peers, 1, "mapped"));
        peers.sidecars[0].kill();
        let killed = Instant::now();
        // Neither process says a word meanwhile, and the grace of a lease is not awaited.
        until("the pages are copied, and all map the copy", || {
            let left = ["mapped", "orphaned", "used"].map(|state| foreign(&peers, 1, state));
            copied(&peers, 1) == segment && left == [0; 3]
        });
        assert!(killed.elapsed() < GRACE, "{:?}", killed.elapsed());
        assert!(at(&mapped) == address && pages(&mapped) != before && is_intact(&mapped));
        assert_eq!(mapped.moved().transport, Some(Transport::Shm), "it says how it came");
        assert_eq!(workload.ask("verify", "intact"), "1");
        let usage = arena(&reader);
        assert_eq!((usage.sealed, usage.sealed + usage.retired), (6 * MI, segment), "{usage:?}");
        assert_eq!(usage.free + usage.reserved + usage.sealed + usage.held + usage.retired, usage.total);
        drop(mapped);
        workload.ask("drop", "dropped 1");
        drop((workload, reader, stored));
        peers.assert_free(1);
    });
}

#[test]
fn an_owner_that_is_killed_and_comes_back_has_nothing_to_do_with_what_its_readers_keep() {
    let (_dir, mut peers) = node(2);
    until("they have met", || route(&peers, 1, 0) == "shm");
    let stored = put_pattern(&peers.client(0), 7, 6 * MI, &PutOptions::named("kept")).unwrap();
    let reference = stored.reference().clone();
    let mut workload = Workload::start(&peers.sidecars[1]);
    assert_eq!(workload.ask(&format!("acquire {reference}"), "acquired"), "1");
    peers.sidecars[0].kill();
    until("the pages are copied", || copied(&peers, 1) > 0 && foreign(&peers, 1, "orphaned") == 0);
    assert_eq!(workload.ask("verify", "intact"), "1");
    peers.sidecars[0].start_again();
    peers.await_connected();
    until("they have met again", || route(&peers, 1, 0) == "shm");
    let reader = peers.client(1);
    assert_eq!(reason(reader.acquire(&reference, &seconds(20))), Reason::OwnerLost);
    let (owner, seed) = (peers.client(0), 8);
    let next = put_pattern(&owner, seed, 3 * MI, &PutOptions::new()).unwrap();
    let mapped = reader.acquire(next.reference(), &on_node()).unwrap();
    assert!(is_intact(&mapped) && mapped.moved().transport == Some(Transport::Shm));
    assert_eq!(workload.ask("verify", "intact"), "1");
    // A client that is killed gives back a copy as it does anything else.
    workload.kill();
    drop((mapped, next, owner, reader, stored));
    peers.assert_all_free();
}

#[test]
fn where_the_arena_has_no_room_the_pages_of_a_dead_owner_stay_and_are_copied_when_there_is() {
    let (_dir, mut peers) = node(2);
    until("they have met", || route(&peers, 1, 0) == "shm");
    let stored = put_pattern(&peers.client(0), 7, 6 * MI, &PutOptions::named("kept")).unwrap();
    let reader = peers.client(1);
    let mapped = reader.acquire(stored.reference(), &on_node()).unwrap();
    let before = pages(&mapped);
    let filled = fill(&reader, 100, 4 * MI, 8);
    peers.sidecars[0].kill();
    until("the pages are nobody's", || foreign(&peers, 1, "orphaned") > 0);
    // Longer than any copy that finds room takes to be begun, and made: the test is that nothing is.
    std::thread::park_timeout(Duration::from_secs(5));
    assert!(foreign(&peers, 1, "orphaned") > 0 && copied(&peers, 1) == 0);
    assert!(
        is_intact(&mapped)
            && pages(&mapped) == before
            && filled.iter().all(|stored| stored.lease().is_some())
    );
    drop(filled);
    until("they are copied", || copied(&peers, 1) > 0 && foreign(&peers, 1, "mapped") == 0);
    assert!(is_intact(&mapped) && pages(&mapped) != before);
    drop((mapped, reader, stored));
    peers.assert_free(1);
}

#[test]
fn a_child_of_a_client_keeps_the_pages_of_a_dead_owner_and_they_are_shown_until_it_ends() {
    let (_dir, mut peers) = node(2);
    until("they have met", || route(&peers, 1, 0) == "shm");
    let stored = put_pattern(&peers.client(0), 7, 6 * MI, &PutOptions::named("kept")).unwrap();
    let mut workload = Workload::start(&peers.sidecars[1]);
    assert_eq!(workload.ask(&format!("acquire {}", stored.reference()), "acquired"), "1");
    let child = workload.fork_watching();
    child.wait_until_stopped();
    peers.sidecars[0].kill();
    until("the pages are copied", || copied(&peers, 1) > 0);
    assert_eq!(workload.ask("verify", "intact"), "1");
    assert!(foreign(&peers, 1, "orphaned") > 0, "the child maps them");
    child.signal(Signal::CONT);
    assert_eq!(workload.answer(), "intact");
    until("nobody maps them", || foreign(&peers, 1, "orphaned") == 0);
    drop((child, workload, stored));
    peers.assert_free(1);
}

#[test]
fn where_the_directory_goes_under_load_bytes_travel_and_it_is_seen() {
    let (dir, peers) = node(2);
    {
        let (owner, reader) = (peers.client(0), peers.client(1));
        until("they have met", || route(&peers, 1, 0) == "shm");
        let aside = dir.path().with_extension("aside");
        let mut ways = BTreeSet::new();
        for seed in 0..400 {
            if seed == 100 {
                std::fs::rename(dir.path(), &aside).unwrap();
            }
            let stored = put_pattern(&owner, seed, 100_000 + seed, &PutOptions::new()).unwrap();
            let tensor = reader.acquire(stored.reference(), &seconds(20)).unwrap();
            assert!(is_intact(&tensor), "{seed}");
            ways.extend(tensor.moved().transport.map(Transport::as_str));
            if seed == 100 {
                until("both have seen it", || {
                    route(&peers, 1, 0).starts_with("tcp, not shm")
                        && route(&peers, 0, 1).starts_with("tcp, not shm")
                });
            }
        }
        assert_eq!(ways.into_iter().collect::<Vec<_>>(), ["shm", "tcp"]);
        assert!(peers.metric(1, "tensorlane_route_fallbacks_total", &["from=\"shm\"", "to=\"tcp\""]) >= 1.0);
        let stored = put_pattern(&owner, 1, 100_000, &PutOptions::new()).unwrap();
        let refused = failure(reader.acquire(stored.reference(), &on_node()));
        assert_eq!(refused.reason, Reason::RequirementNotMet, "{refused}");
        std::fs::rename(&aside, dir.path()).unwrap();
        until("they have met again", || {
            reader.acquire(stored.reference(), &on_node()).is_ok_and(|tensor| is_intact(&tensor))
        });
    }
    peers.assert_all_free();
}

/// Removed with the sockets in it, and made anew, while four readers map.
#[test]
fn while_the_directory_is_removed_gets_go_on_and_what_must_be_on_the_node_is_there_or_refused() {
    const READERS: u64 = 4;
    let (dir, peers) = node(2);
    let (over, mapped, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let get = |owner: &Client, reader: &Client, seed| {
        let stored = put_pattern(owner, seed, 100_000 + seed, &PutOptions::new()).unwrap();
        assert!(is_intact(&reader.acquire(stored.reference(), &seconds(20)).unwrap()), "{seed}");
        let stored = put_pattern(owner, seed, 200_000 + seed, &PutOptions::new()).unwrap();
        match reader.acquire(stored.reference(), &on_node()) {
            Ok(tensor) => {
                assert!(is_intact(&tensor), "{seed}");
                assert_eq!(tensor.moved().transport, Some(Transport::Shm), "{}", tensor.moved());
                mapped.fetch_add(1, Ordering::SeqCst);
            }
            outcome => {
                let refusal = failure(outcome);
                assert_eq!(refusal.reason, Reason::RequirementNotMet, "{refusal}");
                refused.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    until("they have met", || route(&peers, 1, 0) == "shm");
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        for number in 0..READERS {
            let (owner, reader, over, get) = (peers.client(0), peers.client(1), &over, &get);
            scope.spawn(move || {
                for seed in (number..).step_by(READERS as usize).take_while(|_| !over.load(Ordering::SeqCst))
                {
                    get(&owner, &reader, seed);
                }
            });
        }
        let now = |count: &AtomicU64| count.load(Ordering::SeqCst);
        until("they map", || now(&mapped) > 20);
        std::fs::remove_dir_all(dir.path()).unwrap();
        until("it is refused", || now(&refused) > 20);
        std::fs::create_dir(dir.path()).unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let before = now(&mapped);
        until("they map again", || now(&mapped) > before + 20);
    });
    peers.assert_all_free();
}
