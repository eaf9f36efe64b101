//! Effect of SIGTERM to what is under way between two hosts: transfers finish, waits end, nothing new begins, and all
//! of it for a bounded time. Needs root.

use rustix::process::Signal;
use tensorlane_client::Cancel;
use tensorlane_proto::Reason;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_tests::http;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::process::signal;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::transfer::{LARGE, in_the_middle, is, put, seconds};
use tensorlane_tests::{Sidecar, reason, until, where_the_machine_runs_on};

/// Longer than any test: what ends sooner was ended by something else.
const HOUR_MS: u64 = 3_600_000;

/// A pair of which everyone drains for so long.
fn pair(drain: &str) -> Peers {
    Peers::start(2, |_, options| options.set("deadlines.drain", drain))
}

/// Tells a sidecar to end, and waits until it drains.
fn tell_to_end(sidecar: &Sidecar) {
    signal(sidecar.pid(), Signal::TERM);
    until("it drains", || sidecar.logged("draining").is_some());
}

const CUT: &str = "cut: not everything that was under way has finished";

#[test]
fn a_transfer_that_is_under_way_finishes_while_its_owner_takes_nothing_new() {
    where_the_machine_runs_on(|| {
        let mut peers = pair("1h");
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let (large, other) = (put(&writer, 1, LARGE), put(&writer, 2, 100_000));
            let mut waiting = RawSession::begin(&peers.sidecars[0]);
            let (reference, options) = (large.reference().clone(), seconds(60));
            let got = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                let names = vec!["never".to_owned()];
                let lookup = v1::LookupRequest { names, wait_ms: HOUR_MS, ..v1::LookupRequest::default() };
                waiting.send(SessionKind::Lookup, &lookup);
                tell_to_end(&peers.sidecars[0]);
                // Who waits for what will not come is told so; who asks for something new too, from wherever it asks.
                let told = waiting.reply::<v1::LookupResponse>().unwrap_err();
                assert_eq!(told.reason, Reason::Draining, "{told}");
                assert_eq!(reason(writer.acquire(large.reference(), &seconds(9))), Reason::Draining);
                assert_eq!(reason(reader.acquire(other.reference(), &seconds(9))), Reason::Draining);
                // Who looks is answered.
                assert!(writer.status().is_ok());
                pulling.join().unwrap()
            });
            assert!(is(&got.unwrap(), 1, LARGE));
            assert_eq!(peers.sidecars[0].wait().code(), Some(0));
            assert!(peers.sidecars[0].logged(CUT).is_none(), "{}", peers.sidecars[0].log());
        }
        peers.assert_free(1);
    });
}

/// The link fails before the signal comes, or while the owner waits for the transfer: it is the same transfer.
fn goes_on_over_the_next_connection(fails_first: bool) {
    let mut peers =
        Peers::start(2, |_, options| options.set("deadlines.drain", "1h").set("gc.leaseGrace", "1m"));
    {
        let (writer, reader) = (peers.client(0), peers.client(1));
        let (large, other) = (put(&writer, 6, LARGE), put(&writer, 7, 100_000));
        let (reference, options) = (large.reference().clone(), seconds(55));
        let tensor = std::thread::scope(|scope| {
            let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
            if !fails_first {
                tell_to_end(&peers.sidecars[0]);
            }
            peers.network.cut(1);
            until("both have noticed", || {
                peers.seen(0, 1).state != "connected" && peers.seen(1, 0).state != "connected"
            });
            if fails_first {
                tell_to_end(&peers.sidecars[0]);
            }
            peers.network.mend(1);
            // In line behind it, and new: refused, now that it can be asked.
            assert_eq!(reason(reader.acquire(other.reference(), &seconds(30))), Reason::Draining);
            pulling.join().unwrap()
        });
        assert!(is(&tensor.unwrap(), 6, LARGE));
        assert_eq!(peers.sidecars[0].wait().code(), Some(0));
        assert!(peers.sidecars[0].logged(CUT).is_none(), "{}", peers.sidecars[0].log());
    }
    peers.assert_free(1);
}

#[test]
fn a_transfer_that_was_cut_before_its_owner_is_told_to_end_goes_on_when_the_link_is_back() {
    where_the_machine_runs_on(|| goes_on_over_the_next_connection(true));
}

#[test]
fn a_transfer_that_is_cut_while_its_owner_ends_goes_on_when_the_link_is_back() {
    where_the_machine_runs_on(|| goes_on_over_the_next_connection(false));
}

#[test]
fn a_get_that_is_under_way_finishes_while_its_readers_own_sidecar_ends() {
    where_the_machine_runs_on(|| {
        let mut peers = pair("1h");
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let large = put(&writer, 3, LARGE);
            let (reference, options) = (large.reference().clone(), seconds(60));
            let got = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                tell_to_end(&peers.sidecars[1]);
                pulling.join().unwrap()
            });
            let tensor = got.unwrap();
            assert_eq!(peers.sidecars[1].wait().code(), Some(0));
            // The memory outlives the sidecar for as long as somebody maps it.
            assert!(is(&tensor, 3, LARGE));
        }
        peers.assert_free(0);
    });
}

#[test]
fn a_transfer_that_takes_too_long_is_cut_and_the_sidecar_ends_all_the_same() {
    where_the_machine_runs_on(|| {
        let mut peers = pair("50ms");
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let large = put(&writer, 4, LARGE);
            // It does not wait for an owner that stays away: no longer than the owner would keep its leases.
            let (reference, options) = (large.reference().clone(), seconds(3600));
            let refused = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                signal(peers.sidecars[0].pid(), Signal::TERM);
                assert_eq!(peers.sidecars[0].wait().code(), Some(0));
                pulling.join().unwrap()
            });
            // Its owner will not come back; which of the two the reader hears first is the network's affair.
            let why = reason(refused);
            assert!([Reason::PeerUnreachable, Reason::OwnerLost, Reason::Draining].contains(&why), "{why:?}");
            assert!(peers.sidecars[0].logged(CUT).is_some(), "{}", peers.sidecars[0].log());
        }
        peers.assert_free(1);
    });
}

#[test]
fn a_second_signal_ends_the_wait() {
    where_the_machine_runs_on(|| {
        let mut peers = pair("1h");
        {
            let give_up = Cancel::new();
            let (writer, reader) = (peers.client(0), peers.client(1).with_cancel(give_up.clone()));
            let large = put(&writer, 5, LARGE);
            let (reference, options) = (large.reference().clone(), seconds(60));
            std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                // So slow that it does not finish while the test looks.
                peers.network.slow(0, 8);
                tell_to_end(&peers.sidecars[0]);
                signal(peers.sidecars[0].pid(), Signal::INT);
                assert_eq!(peers.sidecars[0].wait().code(), Some(0));
                give_up.cancel();
                assert!(pulling.join().unwrap().is_err());
            });
            assert!(peers.sidecars[0].logged(CUT).is_some(), "{}", peers.sidecars[0].log());
        }
        peers.assert_free(1);
    });
}

#[test]
fn a_sidecar_that_drains_is_alive_and_not_ready() {
    where_the_machine_runs_on(|| {
        let mut peers = pair("1h");
        {
            let (writer, reader) = (peers.client(0), peers.client(1));
            let large = put(&writer, 7, LARGE);
            let (reference, options) = (large.reference().clone(), seconds(60));
            let probes = || {
                let ask = |path| http::get(peers.sidecars[0].admin(), path).0;
                peers.network.inside(0, || (ask("/livez"), ask("/readyz")))
            };
            until("it is ready", || probes() == (200, 200));
            let got = std::thread::scope(|scope| {
                let pulling = in_the_middle(scope, &peers, &reader, &reference, &options);
                // So slow that it does not finish while the test looks.
                peers.network.slow(0, 8);
                tell_to_end(&peers.sidecars[0]);
                assert_eq!(probes(), (200, 503), "an end by its liveness would cut what is under way");
                peers.network.slow(0, 400);
                pulling.join().unwrap()
            });
            assert!(is(&got.unwrap(), 7, LARGE));
            assert_eq!(peers.sidecars[0].wait().code(), Some(0));
        }
        peers.assert_free(1);
    });
}
