//! Events between two hosts when one dies, the network fails or somebody lies: typed errors in time, right bytes
//! or none, and nothing left. Needs root.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tensorlane_client::{Cancel, Error, PutOptions};
use tensorlane_proto::selection::Range;
use tensorlane_proto::{DType, Reason, Reference, Selection};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::proxy::Between;
use tensorlane_tests::tensors::{dense, pattern, u8s};
use tensorlane_tests::transfer::{LARGE, MI, SLOW_MBIT, in_the_middle, is, put, seconds};
use tensorlane_tests::workload::Workload;
use tensorlane_tests::{SidecarOptions, failure, reason, until, where_the_machine_runs_on};

/// Nothing was published at host 1, and its arena is free.
fn assert_nothing_came(peers: &Peers) {
    until("nothing is left of it", || {
        let status = peers.client(1).status().unwrap();
        let arena = status.arena.unwrap();
        (status.tensors, status.leases, arena.sealed, arena.reserved) == (0, 0, 0, 0)
    });
}

#[test]
fn a_peer_killed_in_the_middle_of_a_transfer_is_an_error_in_time_and_nothing_is_published() {
    where_the_machine_runs_on(|| {
        let mut peers = Peers::pair();
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let stored = put(&writer, 1, LARGE);
            let (reference, options) = (stored.reference().clone(), seconds(9));
            let began = Instant::now();
            let outcome = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                peers.sidecars[0].kill();
                pulling.join().unwrap()
            });
            assert_eq!(reason(outcome), Reason::PeerUnreachable);
            assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
            assert_nothing_came(&peers);
            // Who asks now need not wait that long: the peer is known to be gone.
            let began = Instant::now();
            assert_eq!(reason(reader.acquire(&reference, &seconds(20))), Reason::PeerUnreachable);
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
            // While it is dialed it is being connected.
            until("it is told to be unreachable, and why", || {
                let seen = peers.seen(1, 0);
                seen.state == "unreachable" && !seen.last_error.is_empty()
            });
        }
        peers.assert_free(1);
    });
}

#[test]
fn a_restarted_peer_is_another_one_and_what_is_leased_stays_readable() {
    where_the_machine_runs_on(|| {
        // Long enough to start again on a busy machine: what was under way waits as long.
        let mut peers = Peers::start(2, |_, options| options.set("gc.leaseGrace", "25s"));
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let (large, small, named) = (put(&writer, 2, LARGE), put(&writer, 3, 4096), put(&writer, 4, MI));
            writer.name(named.reference(), "weights", None).unwrap();
            let leased = reader.acquire(named.reference(), &seconds(9)).unwrap();
            let leased_small = reader.acquire(small.reference(), &seconds(9)).unwrap();
            let (reference, options) = (large.reference().clone(), seconds(25));
            let began = Instant::now();
            let outcome = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                peers.sidecars[0].kill();
                peers.sidecars[0].start_again();
                pulling.join().unwrap()
            });
            assert_eq!(reason(outcome), Reason::OwnerLost);
            assert!(began.elapsed() < Duration::from_secs(24), "{:?}", began.elapsed());
            peers.await_connected();
            let began = Instant::now();
            for reference in [large.reference(), small.reference(), named.reference()] {
                assert_eq!(reason(reader.acquire(reference, &seconds(9))), Reason::OwnerLost);
                let part = seconds(9).selection(Selection::Ranges(vec![Range::new(0, 8)]));
                assert_eq!(reason(reader.acquire(reference, &part)), Reason::OwnerLost);
                assert_eq!(reason(reader.describe(reference)), Reason::OwnerLost);
            }
            assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
            assert_eq!(reason(reader.acquire("weights", &seconds(9))), Reason::NotFound);
            assert!(is(&leased, 4, MI) && is(&leased_small, 3, 4096));
            // The new one is as good as the old one was.
            let again = put(&peers.client(0), 5, MI);
            drop(again);
            let writer = peers.client(0);
            let again = put(&writer, 5, MI);
            assert!(is(&reader.acquire(again.reference(), &seconds(9)).unwrap(), 5, MI));
        }
        peers.assert_all_free();
    });
}

/// The owner keeps what is being pulled, whoever else lets go of it, for as long as the grace.
#[test]
fn a_transfer_goes_on_where_it_was_when_the_cable_is_back_within_the_grace() {
    where_the_machine_runs_on(|| {
        let peers = Peers::start(2, |_, options| options.set("gc.leaseGrace", "20s"));
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let stored = put(&writer, 6, LARGE);
            let (reference, options) = (stored.reference().clone(), seconds(28));
            let tensor = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                peers.network.cut(1);
                until("both have noticed", || {
                    peers.seen(0, 1).state != "connected" && peers.seen(1, 0).state != "connected"
                });
                drop(stored);
                writer.flush().unwrap();
                until("only the peer holds it", || peers.client(0).status().unwrap().leases == 1);
                peers.network.fast(0);
                peers.network.mend(1);
                pulling.join().unwrap().unwrap()
            });
            assert!(is(&tensor, 6, LARGE));
            let came = peers.seen(1, 0).bytes_in;
            assert!(came < LARGE + 8 * MI, "{came} bytes came: it began anew");
            assert_eq!(tensor.moved().bytes, LARGE);
        }
        peers.assert_all_free();
    });
}

#[test]
fn a_cable_that_stays_out_is_an_error_in_time_and_the_leases_of_the_lost_peer_end_after_the_grace() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let (stored, other) = (put(&writer, 7, LARGE), put(&writer, 8, 100));
            // The grace ends it, long before.
            let (reference, options) = (stored.reference().clone(), seconds(15));
            let leases = || peers.client(0).status().unwrap().leases;
            let began = Instant::now();
            let outcome = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                assert_eq!(leases(), 3);
                peers.network.cut(1);
                pulling.join().unwrap()
            });
            assert_eq!(reason(outcome), Reason::PeerUnreachable);
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
            assert_nothing_came(&peers);
            let began = Instant::now();
            let refused = failure(reader.acquire(other.reference(), &seconds(2)));
            assert_eq!(refused.reason, Reason::PeerUnreachable, "{refused}");
            assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
            until("the grace is over", || leases() == 2);
            peers.network.fast(0);
            peers.network.mend(1);
            peers.await_connected();
            assert!(is(&reader.acquire(other.reference(), &seconds(9)).unwrap(), 8, 100));
            assert!(is(&reader.acquire(&reference, &seconds(25)).unwrap(), 7, LARGE));
        }
        peers.assert_all_free();
    });
}

/// Loses one direction of the network without a word; the other goes on.
#[test]
fn a_half_open_connection_is_noticed_within_the_progress_deadline() {
    where_the_machine_runs_on(|| {
        for (from, to) in [(0, 1), (1, 0)] {
            let peers = Peers::start(2, |_, options| options.set("gc.leaseGrace", "20s"));
            a_half_open_connection_is_noticed(from, to, peers, Duration::from_secs(1));
        }
    });
}

#[test]
fn a_half_open_connection_is_noticed_in_seconds_by_default() {
    where_the_machine_runs_on(|| {
        let peers = Peers::start(2, |_, options| {
            options.default_of("deadlines.progress").set("gc.leaseGrace", "20s")
        });
        a_half_open_connection_is_noticed(0, 1, peers, Duration::from_secs(2));
    });
}

fn a_half_open_connection_is_noticed(from: usize, to: usize, peers: Peers, progress: Duration) {
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let stored = put(&writer, 9, LARGE);
        let (reference, options) = (stored.reference().clone(), seconds(28));
        let tensor = std::thread::scope(|scope| {
            let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
            peers.network.lose(from, to);
            let began = Instant::now();
            until("both have noticed", || {
                peers.seen(0, 1).state != "connected" && peers.seen(1, 0).state != "connected"
            });
            // Three times: what is under way, the silence itself, and the other side's.
            let most = 3 * progress + Duration::from_secs(5);
            assert!(began.elapsed() < most, "{from} to {to}: {:?}", began.elapsed());
            peers.network.find(from, to);
            peers.network.fast(0);
            pulling.join().unwrap()
        });
        assert!(is(&tensor.unwrap(), 9, LARGE));
    }
    peers.assert_all_free();
}

#[test]
fn a_silent_network_is_noticed_when_nothing_is_under_way_and_forgiven_when_it_speaks_again() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        peers.network.lose(0, 1);
        peers.network.lose(1, 0);
        let began = Instant::now();
        until("both have noticed", || {
            peers.seen(0, 1).state != "connected" && peers.seen(1, 0).state != "connected"
        });
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        let mut found = peers.client(1).lookup(&["anything"], None, Duration::ZERO).unwrap();
        let told = failure(found.remove(0));
        assert_eq!(told.reason, Reason::NotFound);
        assert!(told.message.contains("1 peer is listed and not connected"), "{told}");
        peers.network.find(0, 1);
        peers.network.find(1, 0);
        peers.await_connected();
        peers.assert_all_free();
    });
}

/// Of more than eight dimensions a reference does not say the shape: its owner is asked first.
#[test]
fn what_is_asked_before_a_transfer_is_part_of_the_deadline_and_the_limit_that_passed_is_told() {
    where_the_machine_runs_on(|| {
        let peers = Peers::start(2, |_, options| options.set("deadlines.progress", "10s"));
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let deep = dense(DType::U8, &[1, 1, 1, 1, 1, 1, 1, 1, 1, MI]);
            let stored = writer.put(&deep, &pattern(10, MI as usize), &PutOptions::new()).unwrap();
            assert!(is(&reader.acquire(stored.reference(), &seconds(9)).unwrap(), 10, MI));
            let other = writer.put(&deep, &pattern(11, MI as usize), &PutOptions::new()).unwrap();
            stop(peers.sidecars[0].pid());
            // It is the sidecar that says so, and not the client that got no answer in time.
            let late = failure(reader.acquire(other.reference(), &seconds(2)));
            assert_eq!(late.reason, Reason::DeadlineExceeded, "{late}");
            // Some of the two seconds has gone before it was asked.
            assert!(["within 1.", "within 2s"].iter().any(|limit| late.message.contains(limit)), "{late}");
            signal(peers.sidecars[0].pid(), Signal::CONT);
            peers.await_connected();
        }
        peers.assert_all_free();
    });
}

#[test]
fn a_name_of_a_peer_that_stands_still_is_not_said_to_be_missing() {
    where_the_machine_runs_on(|| {
        // It stays connected while it is asked.
        let peers = Peers::start(2, |_, options| options.set("deadlines.progress", "10s"));
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let stored = writer.put(&u8s(3), &[1, 2, 3], &PutOptions::named("model")).unwrap();
            let owner = stored.reference().peer();
            let ask = |peer| reader.lookup(&["model"], peer, Duration::ZERO).unwrap().remove(0);
            assert!(ask(Some(owner)).is_ok());
            stop(peers.sidecars[0].pid());
            let silent = failure(ask(Some(owner)));
            assert_eq!(silent.reason, Reason::PeerUnreachable);
            assert!(silent.message.contains("did not say within 2s whether it has model"), "{silent}");
            let told = failure(ask(None));
            assert_eq!(told.reason, Reason::NotFound);
            assert!(told.message.contains(&format!("which {owner} did not")), "{told}");
            // Peers have two seconds to answer, but not where the caller has less.
            let hasty = reader.with_deadline(Duration::from_millis(200));
            let began = Instant::now();
            assert_eq!(
                reason(hasty.lookup(&["model"], Some(owner), Duration::ZERO).unwrap().remove(0)),
                Reason::PeerUnreachable
            );
            assert!(began.elapsed() < Duration::from_millis(1800), "{:?}", began.elapsed());
            signal(peers.sidecars[0].pid(), Signal::CONT);
            until("it answers again", || ask(Some(owner)).is_ok());
            writer.unname(&["model"]).unwrap().remove(0).unwrap();
        }
        peers.assert_all_free();
    });
}

#[test]
fn an_owner_that_stands_still_for_a_while_goes_on_where_it_was() {
    where_the_machine_runs_on(|| {
        let peers = Peers::start(2, |_, options| options.set("gc.leaseGrace", "20s"));
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let stored = put(&writer, 10, LARGE);
            let (reference, options) = (stored.reference().clone(), seconds(28));
            let tensor = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                stop(peers.sidecars[0].pid());
                until("its silence is noticed", || peers.seen(1, 0).state != "connected");
                signal(peers.sidecars[0].pid(), Signal::CONT);
                peers.network.fast(0);
                pulling.join().unwrap().unwrap()
            });
            assert!(is(&tensor, 10, LARGE));
        }
        peers.assert_all_free();
    });
}

#[test]
fn a_reader_that_stands_still_is_cut_and_holds_up_neither_the_owner_nor_another_reader() {
    where_the_machine_runs_on(|| {
        // Long enough to see that nobody waits until it is cut, and readers do not serve each other.
        let options =
            |_, options: SidecarOptions| options.set("deadlines.progress", "5s").set("peers.fanOut", "0");
        let peers = Peers::start(3, options);
        {
            let (writer, stopped, other) = (peers.client(0), peers.client(1), peers.client(2));
            let (stored, own) = (put(&writer, 10, LARGE), put(&writer, 11, 9 * MI));
            let (reference, options) = (stored.reference().clone(), seconds(60));
            let leases = || peers.client(0).status().unwrap().leases;
            let outcome = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &stopped, &reference, &options);
                stop(peers.sidecars[1].pid());
                assert_eq!(leases(), 3, "what is being pulled is held for who pulls it");
                peers.network.fast(0);
                assert!(is(&other.acquire(own.reference(), &seconds(20)).unwrap(), 11, 9 * MI));
                assert_eq!(peers.seen(0, 1).state, "connected", "nobody else waited until it was cut");
                assert!(is(&other.acquire(&reference, &seconds(20)).unwrap(), 10, LARGE));
                until("it is cut", || peers.seen(0, 1).state != "connected");
                until("the grace is over, and only the writer holds anything", || leases() == 2);
                signal(peers.sidecars[1].pid(), Signal::CONT);
                pulling.join().unwrap()
            });
            // The tensor is there still, so it comes all the same.
            assert!(is(&outcome.unwrap(), 10, LARGE));
            peers.await_connected();
            assert!(is(&stopped.acquire(own.reference(), &seconds(20)).unwrap(), 11, 9 * MI));
        }
        peers.assert_all_free();
    });
}

#[test]
fn a_reader_that_restarts_gives_back_what_its_old_life_held_at_once() {
    where_the_machine_runs_on(|| {
        let mut peers = Peers::start(2, |_, options| options.set("gc.leaseGrace", "1h"));
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let stored = put(&writer, 11, LARGE);
            let (reference, options) = (stored.reference().clone(), seconds(20));
            let outcome = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                assert_eq!(peers.client(0).status().unwrap().leases, 2);
                peers.sidecars[1].kill();
                pulling.join().unwrap()
            });
            assert!(matches!(outcome, Err(Error::SessionLost { .. })), "{outcome:?}");
            until("the loss is noticed", || peers.seen(0, 1).state != "connected");
            assert_eq!(peers.client(0).status().unwrap().leases, 2, "it may come back");
            peers.sidecars[1].start_again();
            until("it is another one", || peers.client(0).status().unwrap().leases == 1);
            peers.network.fast(0);
            assert!(is(&reader.acquire(&reference, &seconds(9)).unwrap(), 11, LARGE));
        }
        peers.assert_all_free();
    });
}

#[test]
fn an_arena_full_of_what_a_dead_peer_was_pulling_is_free_after_the_grace() {
    where_the_machine_runs_on(|| {
        let small =
            |_, options: SidecarOptions| options.set("arena.size", "64Mi").set("gc.leaseGrace", "10s");
        let mut peers = Peers::start(2, small);
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let stored: Vec<_> = (0..3).map(|seed| put(&writer, seed, 16 * MI)).collect();
            let references: Vec<_> = stored.iter().map(|stored| stored.reference().clone()).collect();
            std::thread::scope(|scope| {
                peers.network.slow(0, 40);
                for reference in &references {
                    let reader = &reader;
                    scope.spawn(move || assert!(reader.acquire(reference, &seconds(20)).is_err()));
                }
                until("all are being pulled", || peers.client(0).status().unwrap().leases == 6);
                peers.sidecars[1].kill();
            });
            drop(stored);
            let began = Instant::now();
            let patient = PutOptions { deadline: Some(Duration::from_secs(40)), ..PutOptions::new() };
            let count = 40 * MI;
            let waited = writer.put(&dense(DType::U8, &[count]), &pattern(1, count as usize), &patient);
            drop(waited.unwrap());
            let took = began.elapsed();
            assert!(took > Duration::from_secs(1) && took < Duration::from_secs(30), "{took:?}");
        }
        peers.assert_free(0);
    });
}

#[test]
fn a_reader_that_cancels_leaves_nothing() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let stored = put(&writer, 12, LARGE);
            let part = Selection::Ranges(vec![Range::new(0, LARGE - 1)]);
            for options in [seconds(20), seconds(20).selection(part)] {
                let cancel = Cancel::new();
                let cancelling = reader.with_cancel(cancel.clone());
                let outcome = std::thread::scope(|scope| {
                    let pulling = in_the_middle(scope, &peers, &cancelling, stored.reference(), &options);
                    // So slow that it is not over before it is cancelled.
                    peers.network.slow(0, 8);
                    cancel.cancel();
                    let began = Instant::now();
                    let outcome = pulling.join().unwrap();
                    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
                    outcome
                });
                assert!(matches!(outcome, Err(Error::Withdrawn)), "{outcome:?}");
                let began = Instant::now();
                until("the owner keeps it for its writer alone", || {
                    peers.client(0).status().unwrap().leases == 1
                });
                assert_nothing_came(&peers);
                assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
            }
        }
        peers.assert_all_free();
    });
}

/// Somebody else who came to wait for the same tensor gets it all the same.
#[test]
fn a_reader_that_cancels_takes_nothing_from_another() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        {
            let (writer, reader, other) = (peers.client(0), peers.client(1), peers.client(1));
            let stored = put(&writer, 13, LARGE);
            let cancel = Cancel::new();
            let cancelling = reader.with_cancel(cancel.clone());
            let options = seconds(20);
            std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &cancelling, stored.reference(), &options);
                // So slow that it is not over before the other one has come.
                peers.network.slow(0, 10);
                let joined = scope.spawn(|| other.acquire(stored.reference(), &options));
                // It waits with the first one as soon as it has asked.
                std::thread::park_timeout(Duration::from_millis(1500));
                cancel.cancel();
                assert!(pulling.join().unwrap().is_err());
                peers.network.fast(0);
                assert!(is(&joined.join().unwrap().unwrap(), 13, LARGE));
            });
            assert!(peers.seen(1, 0).bytes_in < LARGE + MI, "it was not begun anew");
        }
        peers.assert_all_free();
    });
}

#[test]
fn a_reader_process_that_is_killed_in_the_middle_leaves_nothing() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        {
            let writer = peers.client(0);
            let stored = put(&writer, 15, LARGE);
            let inside = ["ip", "netns", "exec", peers.network.namespace(1)].map(str::to_owned);
            let mut reader = Workload::start_in(&peers.sidecars[1], inside.to_vec());
            peers.network.slow(0, SLOW_MBIT);
            reader.tell(&format!("acquire {}", stored.reference()));
            until("some bytes have come", || peers.seen(1, 0).bytes_in > 4 * MI);
            assert_eq!(peers.client(0).status().unwrap().leases, 2, "the owner keeps it for the reader too");
            reader.kill();
            until("the owner keeps it for its writer alone", || {
                peers.client(0).status().unwrap().leases == 1
            });
            assert_nothing_came(&peers);
            let came = peers.seen(1, 0).bytes_in;
            assert!(came < LARGE, "all {came} bytes came: nothing was in the middle");
        }
        peers.assert_all_free();
    });
}

#[test]
fn a_reader_whose_deadline_passes_in_the_middle_leaves_nothing() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let stored = put(&writer, 14, LARGE);
            let options = seconds(3);
            std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, stored.reference(), &options);
                assert_eq!(reason(pulling.join().unwrap()), Reason::DeadlineExceeded);
            });
            until("the owner keeps it for its writer alone", || {
                peers.client(0).status().unwrap().leases == 1
            });
            assert_nothing_came(&peers);
        }
        peers.assert_all_free();
    });
}

#[test]
fn a_peer_with_a_key_that_nobody_lists_is_refused_and_counted() {
    where_the_machine_runs_on(|| {
        let peers = Peers::unconnected(3, |host, options| match host {
            // It calls itself what the directory calls another key.
            2 => options.set("peer", "b"),
            _ => options,
        });
        let refused = |host, reason: &str| {
            let label = format!("reason=\"{reason}\"");
            peers.metric(host, "tensorlane_peer_refused_connections_total", &[&label])
        };
        let known = [peers.entry(0), peers.entry(1)];
        let began = Instant::now();
        // The directory knows its key as that of `c`.
        until("it is refused for its name", || {
            // Whoever has the smaller key dials by itself; a question makes it certain.
            let outcome = peers.client(2).describe(reference_of(&peers, 0));
            assert_eq!(reason(outcome), Reason::PeerUnreachable);
            refused(0, "other_peer") >= 1.0
        });
        peers.list(0, &known);
        peers.list(1, &known);
        until("it is refused for its key", || {
            let outcome = peers.client(2).acquire(reference_of(&peers, 0), &seconds(20));
            assert_eq!(reason(outcome), Reason::PeerUnreachable);
            refused(0, "unknown_key") >= 1.0
        });
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        until("whom the directory knows is connected", || peers.seen(0, 1).state == "connected");
        peers.assert_all_free();
    });
}

/// Some reference to a tensor of a host.
fn reference_of(peers: &Peers, host: usize) -> Reference {
    put(&peers.client(host), 0, 8).reference().clone()
}

#[test]
fn a_key_that_leaves_the_directory_is_cut_off_and_one_that_comes_is_let_in() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let stored = put(&writer, 16, MI);
            let mut everyone = peers.everyone();
            let key = everyone[1].fingerprints.clone();
            // Another key than the one that it has.
            everyone[1].fingerprints =
                vec![key[0].chars().rev().filter(char::is_ascii_hexdigit).take(64).collect()];
            everyone[1].fingerprints[0].insert_str(0, "sha256:");
            peers.list(0, &everyone);
            until("it is cut off", || peers.seen(0, 1).state != "connected");
            let refused = reason(reader.acquire(stored.reference(), &seconds(2)));
            assert_eq!(refused, Reason::PeerUnreachable);
            until("it is counted", || {
                peers.metric(0, "tensorlane_peer_refused_connections_total", &["unknown_key"]) >= 1.0
            });
            // While a key is changed there are two.
            everyone[1].fingerprints.extend(key);
            peers.list(0, &everyone);
            peers.await_connected();
            assert!(is(&reader.acquire(stored.reference(), &seconds(9)).unwrap(), 16, MI));
        }
        peers.assert_all_free();
    });
}

const LISTED: &str = "this peer is in the peers file";
const NOT_LISTED: &str = "this peer is not in the peers file: others refuse it until it is";

#[test]
fn a_peer_that_leaves_the_directory_is_unknown_and_one_that_joins_is_found() {
    where_the_machine_runs_on(|| {
        let peers = Peers::start(3, |_, options| options);
        {
            let stored = put(&peers.client(2), 17, MI);
            let reader = peers.client(0);
            let said = |message| peers.sidecars[2].log().matches(message).count();
            let before = [LISTED, NOT_LISTED].map(said);
            peers.list(2, &peers.everyone()[..2]);
            until("it says that it is not there", || said(NOT_LISTED) > before[1]);
            peers.list(2, &peers.everyone());
            until("it says that it is there again", || said(LISTED) > before[0]);
            peers.list(0, &peers.everyone()[..2]);
            until("it is cut off", || {
                reader.peers().unwrap().iter().all(|peer| peer.name != "c" || peer.state != "connected")
            });
            let refused = reason(reader.acquire(stored.reference(), &seconds(2)));
            assert!(matches!(refused, Reason::PeerUnknown | Reason::PeerUnreachable), "{refused}");
            peers.list(0, &peers.everyone());
            peers.await_connected();
            assert!(is(&reader.acquire(stored.reference(), &seconds(9)).unwrap(), 17, MI));
        }
        peers.assert_all_free();
    });
}

#[test]
fn flipped_bits_end_connections_and_never_reach_a_reader() {
    where_the_machine_runs_on(|| {
        let peers = Peers::start(2, |_, options| options.set("gc.leaseGrace", "20s"));
        let between = Between::start(&peers);
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let patient = seconds(28);
            between.flip(10, 6 * MI);
            let mut seed = 20;
            while between.flips_left().iter().all(|left| *left > 0) {
                for count in [20 * MI, 4096] {
                    seed += 1;
                    let stored = put(&writer, seed, count);
                    let tensor = reader.acquire(stored.reference(), &patient).unwrap();
                    assert!(is(&tensor, seed, count), "wrong bytes came of {}", stored.reference());
                }
            }
            between.flip(0, 1);
            let carried = between.connections();
            assert!(carried >= 8, "{carried} connections for 10 flips");
        }
        peers.assert_all_free();
        between.end(&peers);
    });
}
