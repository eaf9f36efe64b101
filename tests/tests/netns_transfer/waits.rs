//! Waits for names at other peers end with those who wait.

use tensorlane_proto::frame::{self, FAILED, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::until;

/// Longer than any test: what ends sooner was ended by somebody.
const HOUR_MS: u64 = 3_600_000;

fn waiting(peers: &Peers, host: usize) -> f64 {
    peers.metric(host, "tensorlane_sidecar_waiting_requests", &["for=\"name\""])
}

/// A session of host 1 that waits for a name, at host 0 too; the number of its call.
fn wait_at_both(peers: &Peers) -> (RawSession, u64) {
    let mut session = RawSession::begin(&peers.sidecars[1]);
    let names = vec!["never".to_owned()];
    let lookup = v1::LookupRequest { names, wait_ms: HOUR_MS, ..v1::LookupRequest::default() };
    let call = session.send(SessionKind::Lookup, &lookup);
    until("both wait", || waiting(peers, 0) == 1.0 && waiting(peers, 1) == 1.0);
    (session, call)
}

#[test]
fn the_owner_waits_no_longer_than_the_asker() {
    let peers = Peers::steady();
    // It withdraws its call.
    let (mut session, call) = wait_at_both(&peers);
    session.send_bytes(&frame::encode(SessionKind::Cancel.into(), 0, call, &v1::Cancel {}));
    let (header, _) = session.next_frame().expect("the end of the call");
    assert!(header.is_reply() && header.call == call && header.flags & FAILED == 0);
    until("nobody waits", || waiting(&peers, 0) == 0.0 && waiting(&peers, 1) == 0.0);
    // It ends.
    drop(wait_at_both(&peers));
    until("nobody waits", || waiting(&peers, 0) == 0.0 && waiting(&peers, 1) == 0.0);
    // Its name appears nearer.
    let (mut session, _) = wait_at_both(&peers);
    let client = peers.client(1);
    let named =
        tensorlane_client::PutOptions { no_lease: true, ..tensorlane_client::PutOptions::named("never") };
    drop(client.put(&tensorlane_tests::tensors::u8s(1), &[1], &named).unwrap());
    assert!(session.next_frame().is_some());
    until("nobody waits", || waiting(&peers, 0) == 0.0 && waiting(&peers, 1) == 0.0);
    client.unname(&["never"]).unwrap().remove(0).unwrap();
    drop((client, session));
    peers.assert_all_free();
}
