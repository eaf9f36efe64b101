//! Waits for room: whoever waits for it for an hour, as often as it may, holds nobody else up.

use std::time::{Duration, Instant};

use prost::Message;
use tensorlane_client::{AcquireOptions, Client, PutOptions, Result, Stored};
use tensorlane_proto::Reason;
use tensorlane_proto::frame::{FAILED, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::{is_intact, put_pattern, u8s};
use tensorlane_tests::{Sidecar, SidecarOptions, failure_in_time, until, where_the_machine_runs_on};

use super::waits::three;

const MIB: u64 = 1 << 20;
const SEGMENT: u64 = 16 * MIB;
/// Longer than any test.
const HOUR_MS: u64 = 3_600_000;
/// Reservations of one session: more than there were ever threads for.
const WAITS: u64 = 400;

fn waiting(sidecar: &Sidecar) -> f64 {
    sidecar.metric("tensorlane_sidecar_waiting_requests", &["for=\"room\""])
}

fn reserve(bytes: u64, deadline_ms: u64) -> v1::ReserveRequest {
    let item = v1::ReserveItem { descriptor: Some((&u8s(bytes)).into()), ..v1::ReserveItem::default() };
    v1::ReserveRequest { items: vec![item], deadline_ms }
}

/// All room for puts, in segments of this session.
fn fill(client: &Client) -> Vec<Stored> {
    // Long enough to make a segment on a busy machine.
    let options = PutOptions { deadline: Some(Duration::from_secs(5)), ..PutOptions::new() };
    let mut all = Vec::new();
    let refused = failure_in_time(|| -> Result<()> {
        loop {
            all.push(put_pattern(client, 9, SEGMENT, &options)?);
        }
    });
    assert_eq!(refused.reason, Reason::ArenaFull, "{refused}");
    all
}

#[test]
fn reservations_that_wait_for_an_hour_hold_up_no_get_no_seal_and_no_put_that_fits() {
    where_the_machine_runs_on(waiting_reservations_hold_nobody_up);
}

fn waiting_reservations_hold_nobody_up() {
    let options = SidecarOptions::default().set("arena.size", 10 * SEGMENT).set("arena.segment", SEGMENT);
    let options = options.set("gc.copyIdle", "200ms");
    let (_folder, all) = three(&options, 11);
    let [owner, sidecar] = [&all[0], &all[1]];
    let (there, honest, greedy) = (owner.client(), sidecar.client(), sidecar.client());
    // With a checksum, which a sidecar looks at where it brings them.
    let checked = PutOptions { checksum: true, ..PutOptions::new() };
    let remote: Vec<_> = (0..4).map(|seed| put_pattern(&there, seed, 2 * MIB, &checked).unwrap()).collect();
    // Segments of its own, and one of the sidecar's.
    let own = [2 * MIB, 1_024].map(|bytes| put_pattern(&honest, 1, bytes, &checked).unwrap());
    // The ways between the two are up before time counts, and no room is taken here for it.
    drop(there.acquire(own[0].reference(), &AcquireOptions::new()).unwrap());
    let full = fill(&greedy);
    let mut hostile = RawSession::begin(sidecar);
    for _ in 0..WAITS {
        hostile.send(SessionKind::Reserve, &reserve(2 * SEGMENT, HOUR_MS));
    }
    until("all of them wait", || waiting(sidecar) == WAITS as f64);
    let began = Instant::now();
    for stored in &remote {
        let tensor = honest.acquire(stored.reference(), &AcquireOptions::new()).unwrap();
        assert!(is_intact(&tensor));
    }
    for bytes in [3 * MIB, 1_024] {
        let stored = put_pattern(&honest, 2, bytes, &checked).unwrap();
        assert!(is_intact(&honest.acquire(stored.reference(), &AcquireOptions::new()).unwrap()));
    }
    // Had anything stood behind them, it would have waited until its deadline.
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    // One of the session's own ends at its deadline, behind all that have none so soon.
    let late = hostile.send(SessionKind::Reserve, &reserve(2 * SEGMENT, 300));
    let (header, body) = hostile.next_frame().expect("an answer");
    assert_eq!((header.call, header.flags & FAILED), (late, 0));
    let answer = v1::ReserveResponse::decode(&*body).unwrap();
    let Some(v1::reserve_result::Outcome::Failure(failure)) = &answer.results[0].outcome else {
        panic!("{answer:?}");
    };
    assert_eq!(failure.reason, Reason::ArenaFull.as_str(), "{failure:?}");
    assert_eq!(waiting(sidecar), WAITS as f64, "the others wait on");
    drop(hostile);
    until("those of a session that is gone wait no more", || waiting(sidecar) == 0.0);
    drop((remote, own, full, there, honest, greedy));
    all.iter().for_each(Sidecar::assert_all_free);
}
