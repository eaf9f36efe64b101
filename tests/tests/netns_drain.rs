//! What SIGTERM does to what is under way between two hosts: transfers finish, waits end, nothing new begins, and all of
//! it for a bounded time. Needs root.

use rustix::process::Signal;
use tensorlane_client::Cancel;
use tensorlane_proto::Reason;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::process::signal;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::transfer::{LARGE, in_the_middle, is, put, seconds};
use tensorlane_tests::{Sidecar, reason, until};

/// Longer than any test: what ends sooner was ended by something else.
const HOUR_MS: u64 = 3_600_000;

/// A pair of which everyone drains for so long.
fn pair(drain: &str) -> Peers {
    Peers::start(2, |_, options| options.set("deadlines.drain", drain))
}

/// Tells a sidecar to end, and waits until it drains.
fn tell_to_end(sidecar: &Sidecar) {
    signal(sidecar.pid(), Signal::TERM);
    until("it drains", || has_said(sidecar, "draining"));
}

fn has_said(sidecar: &Sidecar, message: &str) -> bool {
    sidecar.log().contains(&format!("\"message\":\"{message}\""))
}

const CUT: &str = "cut: not everything that was under way has finished";

#[test]
fn a_transfer_that_is_under_way_finishes_while_its_owner_takes_nothing_new() {
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
        assert!(!has_said(&peers.sidecars[0], CUT), "{}", peers.sidecars[0].log());
    }
    peers.assert_free(1);
}

#[test]
fn a_get_that_is_under_way_finishes_while_its_readers_own_sidecar_ends() {
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
}

#[test]
fn a_transfer_that_takes_too_long_is_cut_and_the_sidecar_ends_all_the_same() {
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
        assert!(has_said(&peers.sidecars[0], CUT), "{}", peers.sidecars[0].log());
    }
    peers.assert_free(1);
}

#[test]
fn a_second_signal_ends_the_wait() {
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
        assert!(has_said(&peers.sidecars[0], CUT), "{}", peers.sidecars[0].log());
    }
    peers.assert_free(1);
}
