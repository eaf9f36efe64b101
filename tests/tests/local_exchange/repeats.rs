//! Secrets that only its writer may know, and retry ids that stand for exactly one request.

use tensorlane_client::{PutOptions, RetryId};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::{DType, Reason, generated as v1};
use tensorlane_tests::Sidecar;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::{dense, is_intact, put_pattern};
use tensorlane_tests::{reason, until};

const ID: [u8; 16] = [7; 16];

fn u8s(count: u64) -> v1::Descriptor {
    v1::Descriptor { dtype: DType::U8 as u32, shape: vec![count], ..v1::Descriptor::default() }
}

fn reason_of(failure: v1::Failure) -> Reason {
    failure.reason.parse().unwrap()
}

fn put(session: &mut RawSession, item: v1::PutItem) -> Result<v1::Stored, Reason> {
    let request = v1::PutRequest { items: vec![item], deadline_ms: 0 };
    let mut reply: v1::PutResponse = session.call(SessionKind::Put, &request).unwrap();
    stored(reply.results.pop().unwrap())
}

fn seal(session: &mut RawSession, item: v1::SealItem) -> Result<v1::Stored, Reason> {
    let mut reply: v1::SealResponse =
        session.call(SessionKind::Seal, &v1::SealRequest { items: vec![item] }).unwrap();
    stored(reply.results.pop().unwrap())
}

fn stored(result: v1::StoredResult) -> Result<v1::Stored, Reason> {
    match result.outcome.unwrap() {
        v1::stored_result::Outcome::Stored(stored) => Ok(stored),
        v1::stored_result::Outcome::Failure(failure) => Err(reason_of(failure)),
    }
}

fn reserve(session: &mut RawSession, item: v1::ReserveItem) -> Result<u64, Reason> {
    let request = v1::ReserveRequest { items: vec![item], deadline_ms: 0 };
    let mut reply: v1::ReserveResponse = session.call(SessionKind::Reserve, &request).unwrap();
    match reply.results.pop().unwrap().outcome.unwrap() {
        v1::reserve_result::Outcome::Reserved(reserved) => Ok(reserved.id),
        v1::reserve_result::Outcome::Failure(failure) => Err(reason_of(failure)),
    }
}

/// A reservation without bytes, for which no segment is needed.
fn empty(session: &mut RawSession, rows: u64) -> u64 {
    let descriptor = v1::Descriptor { shape: vec![rows, 0], ..u8s(0) };
    reserve(session, v1::ReserveItem { descriptor: Some(descriptor), ..Default::default() }).unwrap()
}

fn named(name: &str) -> Option<v1::Keep> {
    Some(v1::Keep { name: name.to_owned(), ..v1::Keep::default() })
}

#[test]
fn a_put_with_a_used_retry_id_is_answered_only_if_it_is_the_same_put() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let item = v1::PutItem {
        retry_id: ID.to_vec().into(),
        descriptor: Some(u8s(4)),
        data: vec![1, 2, 3, 4].into(),
        keep: named("a"),
        crc32c: None,
    };
    let first = put(&mut session, item.clone()).unwrap();
    let metadata = [("k".to_owned(), "v".to_owned())].into_iter().collect();
    let others = [
        v1::PutItem { descriptor: Some(v1::Descriptor { shape: vec![2, 2], ..u8s(4) }), ..item.clone() },
        v1::PutItem { descriptor: Some(v1::Descriptor { metadata, ..u8s(4) }), ..item.clone() },
        v1::PutItem { data: vec![1, 2, 3, 5].into(), ..item.clone() },
        v1::PutItem { keep: named("b"), ..item.clone() },
        v1::PutItem { keep: None, ..item.clone() },
        v1::PutItem { keep: Some(v1::Keep { ticket_ms: 1000, ..named("a").unwrap() }), ..item.clone() },
        v1::PutItem { keep: Some(v1::Keep { no_lease: true, ..named("a").unwrap() }), ..item.clone() },
        v1::PutItem { crc32c: Some(0), ..item.clone() },
    ];
    for other in others {
        assert_eq!(put(&mut session, other.clone()), Err(Reason::RetryMismatch), "{other:?}");
    }
    assert_eq!(put(&mut session, item.clone()).as_ref(), Ok(&first));
    let mut another = RawSession::begin(&sidecar);
    assert_eq!(put(&mut another, item).as_ref(), Ok(&first), "a repeat may come over another session");
    let unname = v1::UnnameRequest { names: vec!["a".to_owned()] };
    let _: v1::UnnameResponse = session.call(SessionKind::Unname, &unname).unwrap();
    drop((session, another));
    sidecar.assert_all_free();
}

#[test]
fn a_reserve_with_a_used_retry_id_is_answered_only_if_it_is_the_same_reserve() {
    let sidecar = Sidecar::start();
    let (mut session, mut another) = (RawSession::begin(&sidecar), RawSession::begin(&sidecar));
    let shaped = |shape: Vec<u64>| v1::ReserveItem {
        retry_id: ID.to_vec().into(),
        descriptor: Some(v1::Descriptor { shape, ..u8s(0) }),
    };
    let id = reserve(&mut session, shaped(vec![3, 0])).unwrap();
    assert_eq!(reserve(&mut session, shaped(vec![3, 0])), Ok(id));
    // As many bytes, and another meaning.
    assert_eq!(reserve(&mut session, shaped(vec![0, 3])), Err(Reason::RetryMismatch));
    assert_eq!(reserve(&mut another, shaped(vec![3, 0])), Err(Reason::RetryMismatch));
    drop((session, another));
    sidecar.assert_all_free();
}

#[test]
fn a_seal_with_a_used_retry_id_is_answered_only_if_it_seals_the_same() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let of = |id| v1::SealItem { retry_id: ID.to_vec().into(), id, ..v1::SealItem::default() };
    let id = empty(&mut session, 3);
    let first = seal(&mut session, of(id)).unwrap();
    assert_eq!(seal(&mut session, of(id)).as_ref(), Ok(&first));
    assert_eq!(seal(&mut session, v1::SealItem { keep: named("n"), ..of(id) }), Err(Reason::RetryMismatch));
    assert_eq!(seal(&mut session, v1::SealItem { crc32c: Some(0), ..of(id) }), Err(Reason::RetryMismatch));
    let other = empty(&mut session, 4);
    assert_eq!(seal(&mut session, of(other)), Err(Reason::RetryMismatch), "it means something else");
    let sealed = empty(&mut session, 3);
    let fresh = v1::SealItem { retry_id: Vec::new().into(), ..of(sealed) };
    seal(&mut session, fresh).unwrap();
    for id in [sealed, 0, u64::MAX] {
        assert_eq!(seal(&mut session, of(id)), Err(Reason::RetryMismatch), "it is no reservation");
    }
    // A large put that is made anew comes with a reservation of its own.
    let anew = empty(&mut session, 3);
    assert_eq!(seal(&mut session, of(anew)).as_ref(), Ok(&first));
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn a_retry_id_of_one_large_put_is_not_good_for_another() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let options = PutOptions { retry_id: Some(RetryId(ID)), ..PutOptions::new() };
    let first = put_pattern(&client, 1, 100_000, &options).unwrap();
    assert_eq!(reason(put_pattern(&client, 1, 100_004, &options)), Reason::RetryMismatch);
    let named = PutOptions { retry_id: options.retry_id, ..PutOptions::named("n") };
    assert_eq!(reason(put_pattern(&client, 1, 100_000, &named)), Reason::RetryMismatch);
    let summed = PutOptions { checksum: true, ..options };
    assert_eq!(reason(put_pattern(&client, 1, 100_000, &summed)), Reason::RetryMismatch);
    until("nothing but the first is left", || client.status().unwrap().tensors == 1);
    let all = tensorlane_client::AcquireOptions::new();
    assert!(is_intact(&client.acquire(first.reference(), &all).unwrap()));
    drop(first);
    client.flush().unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_reservation_is_there_for_its_writer_alone() {
    let sidecar = Sidecar::start();
    let (client, stranger) = (sidecar.client(), sidecar.client());
    let mut reservation = client.reserve(&dense(DType::U8, &[100_000])).unwrap();
    reservation.copy_from(0, &[1; 100_000]).unwrap();
    let (mut own, mut other) = (RawSession::begin(&sidecar), RawSession::begin(&sidecar));
    let id = empty(&mut own, 1);
    for hidden in [id, reservation.id()] {
        let told = what_is_told(&mut other, hidden);
        assert!(told.iter().all(|reason| *reason == Reason::NotFound), "{told:?}");
        assert_eq!(told, what_is_told(&mut other, u64::MAX), "as if it were not there");
    }
    let told = what_is_told(&mut own, id);
    assert_eq!(told[..4], [Reason::NotSealed; 4], "acquire, describe, name and ticket of one's own");
    drop((reservation, stranger, client, own, other));
    sidecar.assert_all_free();
}

/// Acquire, Describe, Name and Ticket; for somebody else's, Seal and Abort too.
fn what_is_told(session: &mut RawSession, id: u64) -> Vec<Reason> {
    let target = || Some(v1::Target { kind: Some(v1::target::Kind::Id(id)), peer: String::new() });
    let item = v1::GetItem { target: target(), selection: None };
    let request = v1::AcquireRequest { items: vec![item], ..Default::default() };
    let mut acquired: v1::AcquireResponse = session.call(SessionKind::Acquire, &request).unwrap();
    let Some(v1::acquire_result::Outcome::Failure(acquire)) = acquired.results.pop().unwrap().outcome else {
        panic!("it was acquired")
    };
    let request = v1::DescribeRequest { targets: target().into_iter().collect(), deadline_ms: 0 };
    let mut described: v1::DescribeResponse = session.call(SessionKind::Describe, &request).unwrap();
    let Some(v1::describe_result::Outcome::Failure(describe)) = described.results.pop().unwrap().outcome
    else {
        panic!("it was described")
    };
    let item = v1::NameItem { target: target(), name: "n".to_owned(), replaces: String::new() };
    let mut named: v1::NameResponse =
        session.call(SessionKind::Name, &v1::NameRequest { items: vec![item], together: false }).unwrap();
    let item = v1::TicketItem { target: target(), ttl_ms: 0, uses: 0 };
    let mut tickets: v1::TicketResponse =
        session.call(SessionKind::Ticket, &v1::TicketRequest { items: vec![item] }).unwrap();
    let Some(v1::ticket_result::Outcome::Failure(ticket)) = tickets.results.pop().unwrap().outcome else {
        panic!("there is a ticket")
    };
    let name = named.results.pop().unwrap().failure.unwrap();
    let mut told: Vec<Reason> = [acquire, describe, name, ticket].into_iter().map(reason_of).collect();
    if told[0] == Reason::NotFound {
        told.push(seal(session, v1::SealItem { id, ..Default::default() }).unwrap_err());
        let abort = v1::AbortRequest { ids: vec![id] };
        let mut aborted: v1::AbortResponse = session.call(SessionKind::Abort, &abort).unwrap();
        told.push(reason_of(aborted.results.pop().unwrap().failure.unwrap()));
    }
    told
}

#[test]
fn a_large_put_whose_seal_is_refused_leaves_no_reservation() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let first = put_pattern(&client, 1, 100_000, &PutOptions::named("taken")).unwrap();
    assert_eq!(reason(put_pattern(&client, 2, 100_000, &PutOptions::named("taken"))), Reason::NameTaken);
    until("the reservation has been given up", || client.status().unwrap().tensors == 1);
    client.unname(&["taken"]).unwrap().remove(0).unwrap();
    drop(first);
    client.flush().unwrap();
    sidecar.assert_all_free();
}
