//! Selections of what is not there, and of too much.

use tensorlane_client::{AcquireOptions, PutOptions};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::{DType, Range, Reason, Selection, generated as v1, wire};
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::{dense, put_pattern};
use tensorlane_tests::{Sidecar, reason};

fn select(selection: Selection) -> AcquireOptions {
    AcquireOptions::new().selection(selection)
}

#[test]
fn a_selection_outside_the_tensor_is_refused_and_never_clamped() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = client.put(&dense(DType::U16, &[6, 4]), &[1; 48], &PutOptions::named("table")).unwrap();
    let scalar = client.put(&dense(DType::U16, &[]), &[1; 2], &PutOptions::named("scalar")).unwrap();
    let outside = [
        Selection::Ranges(vec![Range::new(0, 7)]),
        Selection::Ranges(vec![Range::new(4, 3)]),
        Selection::Ranges(vec![Range::FULL, Range::new(u64::MAX - 1, u64::MAX)]),
        Selection::Ranges(vec![Range::FULL; 3]),
        Selection::rows(vec![0, 6]),
        Selection::rows(vec![u64::MAX]),
    ];
    for selection in outside {
        let refused = client.acquire("table", &select(selection.clone()));
        assert_eq!(reason(refused), Reason::SelectionOutOfRange, "{selection:?}");
    }
    let no_step = Selection::Ranges(vec![Range::new(0, 6).step_by(0)]);
    assert_eq!(reason(client.acquire("table", &select(no_step))), Reason::InvalidArgument);
    let rows = client.acquire("scalar", &select(Selection::rows(vec![0])));
    assert_eq!(reason(rows), Reason::SelectionOutOfRange);
    assert_eq!(client.status().unwrap().leases, 2, "a refused selection keeps no lease");
    drop((stored, scalar));
    client.unname(&["table", "scalar"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_selection_may_not_cut_a_byte() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let halves = DType::ALL.iter().find(|dtype| dtype.bits() == 4).expect("a type of half a byte");
    let stored = client.put(&dense(*halves, &[4, 6]), &[0x21; 12], &PutOptions::new()).unwrap();
    let aligned = Selection::Ranges(vec![Range::new(1, 3), Range::new(2, 4)]);
    assert_eq!(client.get(stored.reference(), &select(aligned)).unwrap().bytes, [0x21, 0x21]);
    let cut = Selection::Ranges(vec![Range::FULL, Range::new(1, 3)]);
    assert_eq!(reason(client.acquire(stored.reference(), &select(cut))), Reason::SelectionOutOfRange);
    drop(stored);
    sidecar.assert_all_free();
}

#[test]
fn a_million_ranges_and_more_rows_than_allowed_are_refused_and_the_session_goes_on() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::named("small")).unwrap();
    let mut session = RawSession::begin(&sidecar);
    let ranges = v1::Ranges { dimensions: vec![v1::Range::default(); 1_000_000] };
    let rows = v1::Rows { indices: vec![0; (1 << 20) + 1] };
    let mut call = |kind| {
        let target = v1::Target { kind: Some(v1::target::Kind::Name("small".into())), peer: String::new() };
        let selection = Some(v1::Selection { kind: Some(kind) });
        let item = v1::GetItem { target: Some(target), selection };
        let request = v1::AcquireRequest { items: vec![item], ..v1::AcquireRequest::default() };
        session.call::<v1::AcquireResponse>(SessionKind::Acquire, &request)
    };
    // Ranges take much more memory than bytes of a request, and are never decoded.
    assert_eq!(call(v1::selection::Kind::Ranges(ranges)).unwrap_err().reason, Reason::TooLarge);
    let mut reply = call(v1::selection::Kind::Rows(rows)).unwrap();
    let Some(v1::acquire_result::Outcome::Failure(refused)) = reply.results.pop().unwrap().outcome else {
        panic!("it was acquired");
    };
    assert_eq!(wire::failure(refused).reason, Reason::TooLarge);
    let status: v1::StatusResponse = session.call(SessionKind::Status, &v1::StatusRequest {}).unwrap();
    assert_eq!(status.leases, 1);
    drop((session, stored));
    client.unname(&["small"]).unwrap();
    sidecar.assert_all_free();
}
