//! Reservations, and requests that are made twice.

use tensorlane_client::{PutOptions, RetryId};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::{Failure, Reason, generated as v1, wire};
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::put_pattern;
use tensorlane_tests::{Sidecar, SidecarOptions, reason};

use super::{bytes_of, item, refused_put, refused_reserve};

/// The outcome of the one item of a Seal.
fn seal(session: &mut RawSession, item: v1::SealItem) -> Result<v1::Stored, Failure> {
    let request = v1::SealRequest { items: vec![item] };
    let mut reply: v1::SealResponse = session.call(SessionKind::Seal, &request).unwrap();
    match reply.results.pop().unwrap().outcome.unwrap() {
        v1::stored_result::Outcome::Failure(failure) => Err(wire::failure(failure)),
        v1::stored_result::Outcome::Stored(stored) => Ok(stored),
    }
}

/// A reservation without bytes, for which no segment is needed.
fn reserve_nothing(session: &mut RawSession) -> u64 {
    let item = v1::ReserveItem { descriptor: Some(bytes_of(0)), ..v1::ReserveItem::default() };
    let request = v1::ReserveRequest { items: vec![item], deadline_ms: 0 };
    let mut reply: v1::ReserveResponse = session.call(SessionKind::Reserve, &request).unwrap();
    match reply.results.pop().unwrap().outcome.unwrap() {
        v1::reserve_result::Outcome::Reserved(reserved) => reserved.id,
        v1::reserve_result::Outcome::Failure(failure) => panic!("{failure:?}"),
    }
}

#[test]
fn a_reservation_is_sealed_once_and_by_its_own_session() {
    let sidecar = Sidecar::start();
    let (mut session, mut stranger) = (RawSession::begin(&sidecar), RawSession::begin(&sidecar));
    let abort = |session: &mut RawSession, id: u64| -> Option<Failure> {
        let mut reply: v1::AbortResponse =
            session.call(SessionKind::Abort, &v1::AbortRequest { ids: vec![id] }).unwrap();
        reply.results.pop().unwrap().failure.map(wire::failure)
    };
    let of = |id| v1::SealItem { id, ..v1::SealItem::default() };
    let id = reserve_nothing(&mut session);
    assert_eq!(seal(&mut stranger, of(id)).unwrap_err().reason, Reason::NotFound);
    assert_eq!(abort(&mut stranger, id).unwrap().reason, Reason::NotFound);
    seal(&mut session, of(id)).unwrap();
    assert_eq!(seal(&mut session, of(id)).unwrap_err().reason, Reason::AlreadySealed);
    assert_eq!(abort(&mut session, id).unwrap().reason, Reason::AlreadySealed);

    let id = reserve_nothing(&mut session);
    assert!(abort(&mut session, id).is_none());
    assert_eq!(seal(&mut session, of(id)).unwrap_err().reason, Reason::NotFound);
    assert_eq!(abort(&mut session, id).unwrap().reason, Reason::NotFound);
    for nothing in [0, u64::MAX] {
        assert_eq!(seal(&mut session, of(nothing)).unwrap_err().reason, Reason::NotFound);
    }
    let id = reserve_nothing(&mut session);
    let keep = Some(v1::Keep { no_lease: true, ..v1::Keep::default() });
    assert_eq!(seal(&mut session, v1::SealItem { keep, ..of(id) }).unwrap_err().reason, Reason::WouldVanish);
    drop((session, stranger));
    sidecar.assert_all_free();
}

#[test]
fn a_retry_id_has_sixteen_bytes_and_stands_for_one_request() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    for length in [1, 15, 17, 1000] {
        let with = |_| vec![7; length].into();
        let put = v1::PutItem { retry_id: with(()), ..item(bytes_of(1), &[1]) };
        assert_eq!(refused_put(&mut session, put).reason, Reason::InvalidArgument, "{length}");
        let reserve = v1::ReserveItem { retry_id: with(()), descriptor: Some(bytes_of(1)) };
        assert_eq!(refused_reserve(&mut session, reserve).reason, Reason::InvalidArgument, "{length}");
        let item = v1::SealItem { retry_id: with(()), ..v1::SealItem::default() };
        assert_eq!(seal(&mut session, item).unwrap_err().reason, Reason::InvalidArgument, "{length}");
    }
    let client = sidecar.client();
    let options = PutOptions { retry_id: Some(RetryId([9; 16])), ..PutOptions::new() };
    let stored = put_pattern(&client, 1, 64, &options).unwrap();
    let ticket = client.ticket(stored.reference(), None, 1).unwrap();
    assert_eq!(reason(client.redeem(&ticket, options.retry_id)), Reason::RetryMismatch);
    drop(client.redeem(&ticket, None).unwrap());
    drop((session, stored));
    client.flush().unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_writer_that_never_maps_its_segment_is_told_so_and_the_memory_comes_back() {
    let options = SidecarOptions::default().set("deadlines.map", "50ms");
    let sidecar = Sidecar::with(options);
    let mut session = RawSession::begin(&sidecar);
    let reserve = v1::ReserveItem { descriptor: Some(bytes_of(1 << 20)), ..v1::ReserveItem::default() };
    let refused = refused_reserve(&mut session, reserve);
    assert_eq!(refused.reason, Reason::DeadlineExceeded, "{refused}");
    sidecar.assert_all_free();
    // An acknowledgement that comes too late, or for nothing at all, does no harm.
    for segment in [1, 77] {
        let mapped = v1::SegmentMapped { segment, error: String::new() };
        session.send(SessionKind::SegmentMapped, &mapped);
    }
    let _: v1::StatusResponse = session.call(SessionKind::Status, &v1::StatusRequest {}).unwrap();
    drop(session);
    sidecar.assert_all_free();
}
