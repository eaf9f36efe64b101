//! What is wrong is refused with a reason that a program can act on, and nothing is left of it.

use std::str::FromStr;
use std::time::Duration;

use prost::Message;
use tensorlane_client::{AcquireOptions, Client, Error, PutOptions, RetryId, Target};
use tensorlane_proto::frame::{self, Header, INLINE_BYTES_MAX, SESSION_ITEMS_MAX, SessionKind};
use tensorlane_proto::{
    DType, ExchangeName, Failure, PeerName, Range, Reason, Reference, Selection, generated as v1, wire,
};
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::{Numbers, dense, is_intact, put_pattern, u8s};
use tensorlane_tests::{Sidecar, SidecarOptions, failure, reason, until};

fn all() -> AcquireOptions {
    AcquireOptions::new()
}

fn select(selection: Selection) -> AcquireOptions {
    AcquireOptions::new().selection(selection)
}

/// A descriptor of so many bytes, as a message.
fn bytes_of(count: u64) -> v1::Descriptor {
    v1::Descriptor { dtype: DType::U8 as u32, shape: vec![count], ..v1::Descriptor::default() }
}

fn item(descriptor: v1::Descriptor, data: &[u8]) -> v1::PutItem {
    v1::PutItem { descriptor: Some(descriptor), data: data.to_vec().into(), ..v1::PutItem::default() }
}

/// The refusal of the one item of a Put.
fn refused_put(session: &mut RawSession, item: v1::PutItem) -> Failure {
    let request = v1::PutRequest { items: vec![item], deadline_ms: 0 };
    let mut reply: v1::PutResponse = session.call(SessionKind::Put, &request).unwrap();
    match reply.results.pop().unwrap().outcome.unwrap() {
        v1::stored_result::Outcome::Failure(failure) => wire::failure(failure),
        v1::stored_result::Outcome::Stored(stored) => panic!("it was stored: {stored:?}"),
    }
}

/// The refusal of the one item of a Reserve.
fn refused_reserve(session: &mut RawSession, item: v1::ReserveItem) -> Failure {
    let request = v1::ReserveRequest { items: vec![item], deadline_ms: 0 };
    let mut reply: v1::ReserveResponse = session.call(SessionKind::Reserve, &request).unwrap();
    match reply.results.pop().unwrap().outcome.unwrap() {
        v1::reserve_result::Outcome::Failure(failure) => wire::failure(failure),
        v1::reserve_result::Outcome::Reserved(reserved) => panic!("there was room: {reserved:?}"),
    }
}

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
fn element_type_shape_strides_and_byte_count_must_agree() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let f32s = v1::Descriptor { dtype: DType::F32 as u32, shape: vec![2, 3], ..v1::Descriptor::default() };
    let cases = [
        (v1::Descriptor { dtype: 0, ..f32s.clone() }, Reason::DTypeUnknown),
        (v1::Descriptor { dtype: 9999, ..f32s.clone() }, Reason::DTypeUnknown),
        (v1::Descriptor { dtype: u32::MAX, ..f32s.clone() }, Reason::DTypeUnknown),
        (v1::Descriptor { byte_length: 23, ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { byte_length: 25, ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { shape: vec![2, 4], ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { shape: vec![], ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { strides: vec![1], ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { strides: vec![3, -1], ..f32s.clone() }, Reason::LayoutMismatch),
        (v1::Descriptor { strides: vec![4, 1], ..f32s.clone() }, Reason::LayoutMismatch),
    ];
    for (descriptor, expected) in cases {
        let refused = refused_put(&mut session, item(descriptor.clone(), &[0; 24]));
        assert_eq!(refused.reason, expected, "{descriptor:?}: {refused}");
        assert!(refused.message.len() > 10, "a refusal tells what was wrong: {refused}");
    }
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn sizes_that_overflow_are_refused_before_anything_is_set_aside() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let shaped = |shape: Vec<u64>, strides: Vec<i64>| v1::Descriptor {
        dtype: DType::F64 as u32,
        shape,
        strides,
        ..v1::Descriptor::default()
    };
    let descriptors = [
        shaped(vec![u64::MAX], vec![]),
        shaped(vec![1 << 63], vec![]),
        shaped(vec![1 << 32, 1 << 32], vec![]),
        shaped(vec![1 << 22; 32], vec![]),
        shaped(vec![1 << 46], vec![]),
        shaped(vec![2, 2], vec![i64::MAX, i64::MAX]),
        shaped(vec![3], vec![1 << 61]),
        shaped(vec![1; 33], vec![]),
        shaped(vec![1; 1_000_000], vec![]),
    ];
    for descriptor in descriptors {
        let shown = format!("{:?}", &descriptor.shape[..descriptor.shape.len().min(4)]);
        let refused = refused_put(&mut session, item(descriptor.clone(), &[]));
        assert_eq!(refused.reason, Reason::TooLarge, "{shown}: {refused}");
        let reserve = v1::ReserveItem { descriptor: Some(descriptor), ..v1::ReserveItem::default() };
        assert_eq!(refused_reserve(&mut session, reserve).reason, Reason::TooLarge, "{shown}");
    }
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn bytes_that_do_not_fit_their_descriptor_are_not_stored() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    for given in [0, 99, 101] {
        let refused = refused_put(&mut session, item(bytes_of(100), &vec![1; given]));
        assert_eq!(refused.reason, Reason::LayoutMismatch);
        assert_eq!(refused.detail("expected_bytes"), Some("100"));
    }
    let refused = refused_put(
        &mut session,
        item(bytes_of(INLINE_BYTES_MAX as u64 + 1), &vec![1; INLINE_BYTES_MAX + 1]),
    );
    assert_eq!(refused.reason, Reason::TooLarge, "{refused}");
    let wrong_sum = v1::PutItem { crc32c: Some(1), ..item(bytes_of(100), &[1; 100]) };
    assert_eq!(refused_put(&mut session, wrong_sum).reason, Reason::ChecksumMismatch);
    let client = sidecar.client();
    let short = client.put(&u8s(100), &[1; 99], &PutOptions::new());
    assert!(matches!(short, Err(Error::InvalidArgument(_))), "{short:?}");
    drop((session, client));
    sidecar.assert_all_free();
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
    for kind in [v1::selection::Kind::Ranges(ranges), v1::selection::Kind::Rows(rows)] {
        let target = v1::Target { kind: Some(v1::target::Kind::Name("small".into())), peer: String::new() };
        let selection = Some(v1::Selection { kind: Some(kind) });
        let item = v1::GetItem { target: Some(target), selection };
        let request = v1::AcquireRequest { items: vec![item], ..v1::AcquireRequest::default() };
        let mut reply: v1::AcquireResponse = session.call(SessionKind::Acquire, &request).unwrap();
        let Some(v1::acquire_result::Outcome::Failure(refused)) = reply.results.pop().unwrap().outcome else {
            panic!("it was acquired");
        };
        assert_eq!(wire::failure(refused).reason, Reason::TooLarge);
    }
    let status: v1::StatusResponse = session.call(SessionKind::Status, &v1::StatusRequest {}).unwrap();
    assert_eq!(status.leases, 1);
    drop((session, stored));
    client.unname(&["small"]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn names_over_their_limits_are_refused() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    let longest = "x".repeat(512);
    client.name(stored.reference(), &longest, None).unwrap();
    let too_long = "x".repeat(513);
    for name in [too_long.as_str(), "", "/a", "a/", "a\nb", "a\0b"] {
        let named = client.name(stored.reference(), name, None);
        assert_eq!(reason(named), Reason::InvalidArgument, "{name:?}");
        let mut gone = client.unname(&[name]).unwrap();
        assert_eq!(reason(gone.pop().unwrap()), Reason::InvalidArgument, "{name:?}");
        assert_eq!(reason(client.acquire(name, &all())), Reason::InvalidArgument, "{name:?}");
        let mut found = client.lookup(&[name], None, Duration::ZERO).unwrap();
        assert_eq!(reason(found.pop().unwrap()), Reason::InvalidArgument, "{name:?}");
        if !name.is_empty() {
            let put = put_pattern(&client, 2, 64, &PutOptions::named(name));
            assert_eq!(reason(put), Reason::InvalidArgument, "{name:?}");
        }
    }
    assert_eq!(client.status().unwrap().tensors, 1);
    let mut missing = client.unname(&["nothing"]).unwrap();
    assert_eq!(reason(missing.pop().unwrap()), Reason::NotFound);
    drop(stored);
    client.unname(&[longest]).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn metadata_over_their_limits_are_refused() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let with = |entries: Vec<(String, String)>| v1::Descriptor {
        metadata: entries.into_iter().collect(),
        ..bytes_of(1)
    };
    let numbered =
        |count: usize, bytes: usize| with((0..count).map(|i| (i.to_string(), "v".repeat(bytes))).collect());
    let cases = [
        (numbered(65, 1), Reason::TooLarge),
        (numbered(5, 4096), Reason::TooLarge),
        (with(vec![("k".repeat(129), String::new())]), Reason::TooLarge),
        (with(vec![("k".into(), "v".repeat(4097))]), Reason::TooLarge),
        (with(vec![(String::new(), "v".into())]), Reason::InvalidArgument),
    ];
    for (descriptor, expected) in cases {
        let refused = refused_put(&mut session, item(descriptor, &[1]));
        assert_eq!(refused.reason, expected, "{refused}");
    }
    drop(session);
    sidecar.assert_all_free();
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
fn a_reference_that_is_not_exactly_right_is_refused() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    let (ours, text) = (stored.reference(), stored.reference().encode());
    let mut session = RawSession::begin(&sidecar);
    let mut described = |reference: String| -> Failure {
        let kind = Some(v1::target::Kind::Reference(reference));
        let targets = vec![v1::Target { kind, peer: String::new() }];
        let request = v1::DescribeRequest { targets, deadline_ms: 0 };
        let mut reply: v1::DescribeResponse = session.call(SessionKind::Describe, &request).unwrap();
        match reply.results.pop().unwrap().outcome.unwrap() {
            v1::describe_result::Outcome::Failure(failure) => wire::failure(failure),
            v1::describe_result::Outcome::Description(known) => panic!("it is known: {known:?}"),
        }
    };
    // Every bit of it, flipped. What is no text any more cannot be said in a message at all.
    for bit in 0..text.len() * 8 {
        let mut bytes = text.clone().into_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok(flipped) = String::from_utf8(bytes) else { continue };
        assert_eq!(described(flipped.clone()).reason, Reason::ReferenceMalformed, "{flipped}");
    }
    for garbled in ["", "tl1:", "tl2:a/b", &text[..text.len() - 1], &format!("{text}0"), &"x".repeat(1 << 20)]
    {
        assert_eq!(described(garbled.to_owned()).reason, Reason::ReferenceMalformed);
    }

    let layout = u8s(64).layout;
    let (peer, incarnation) = (ours.peer().clone(), ours.incarnation());
    let elsewhere = ExchangeName::from_str("elsewhere").unwrap();
    let foreign = Reference::new(elsewhere, peer.clone(), incarnation, ours.id(), &layout);
    assert_eq!(reason(client.acquire(&foreign, &all())), Reason::WrongExchange);
    let dead = tensorlane_proto::Incarnation(incarnation.0 ^ 1);
    let dead = Reference::new(ours.exchange().clone(), peer.clone(), dead, ours.id(), &layout);
    assert_eq!(reason(client.acquire(&dead, &all())), Reason::OwnerLost);
    assert_eq!(reason(client.describe(&dead)), Reason::OwnerLost);
    let absent = Reference::new(ours.exchange().clone(), peer, incarnation, ours.id() + 1, &layout);
    assert_eq!(reason(client.acquire(&absent, &all())), Reason::NotFound);
    let stranger = PeerName::from_str("stranger").unwrap();
    let there = Reference::new(ours.exchange().clone(), stranger, incarnation, ours.id(), &layout);
    let unreachable = failure(client.acquire(&there, &all()));
    assert!(matches!(unreachable.reason, Reason::PeerUnknown | Reason::PeerUnreachable), "{unreachable}");
    assert_eq!(client.status().unwrap().leases, 1);
    drop((session, stored));
    sidecar.assert_all_free();
}

#[test]
fn a_ticket_that_is_not_exactly_right_is_refused() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    let ticket = client.ticket(stored.reference(), None, 1).unwrap();
    let (reference, secret) = ticket.split_once('#').unwrap();
    let guessed = format!("{reference}#{}", secret.chars().rev().collect::<String>());
    assert_eq!(reason(client.redeem(&guessed, None)), Reason::TicketSpent);
    for garbled in [reference, "", "#", &ticket[..ticket.len() - 1], &format!("{ticket}0")] {
        assert_eq!(reason(client.redeem(garbled, None)), Reason::ReferenceMalformed, "{garbled}");
    }
    drop(client.redeem(&ticket, None).unwrap());
    drop(stored);
    sidecar.assert_all_free();
}

#[test]
fn a_target_that_says_nothing_is_refused() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let request = v1::AcquireRequest { items: vec![v1::GetItem::default()], ..v1::AcquireRequest::default() };
    let reply: v1::AcquireResponse = session.call(SessionKind::Acquire, &request).unwrap();
    assert!(matches!(reply.results[0].outcome, Some(v1::acquire_result::Outcome::Failure(_))));
    for id in [0, 1, u64::MAX] {
        let client = sidecar.client();
        assert_eq!(reason(client.acquire(Target::Id(id), &all())), Reason::NotFound);
    }
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn more_items_than_a_request_may_have_are_refused_whole() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let too_many = SESSION_ITEMS_MAX + 1;
    let requests: [(SessionKind, Vec<u8>); 5] = [
        (
            SessionKind::Describe,
            v1::DescribeRequest { targets: vec![v1::Target::default(); too_many], deadline_ms: 0 }
                .encode_to_vec(),
        ),
        (
            SessionKind::Name,
            v1::NameRequest { items: vec![v1::NameItem::default(); too_many] }.encode_to_vec(),
        ),
        (SessionKind::Unname, v1::UnnameRequest { names: vec!["a".to_owned(); too_many] }.encode_to_vec()),
        (
            SessionKind::Ticket,
            v1::TicketRequest { items: vec![v1::TicketItem::default(); too_many] }.encode_to_vec(),
        ),
        (SessionKind::Abort, v1::AbortRequest { ids: vec![1; too_many] }.encode_to_vec()),
    ];
    for (kind, body) in requests {
        let refused = session.call_raw(kind, &body).map(|_| ()).unwrap_err();
        assert_eq!(refused.reason, Reason::TooLarge, "{kind:?}: {refused}");
    }
    let status: v1::StatusResponse = session.call(SessionKind::Status, &v1::StatusRequest {}).unwrap();
    assert_eq!(status.tensors, 0);
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn leases_that_are_not_held_cannot_be_released() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::new()).unwrap();
    let mut stranger = RawSession::begin(&sidecar);
    let id = stored.reference().id();
    for _ in 0..3 {
        stranger.send(SessionKind::Release, &v1::ReleaseRequest { ids: vec![id], still_mapped: vec![id] });
    }
    let status: v1::StatusResponse = stranger.call(SessionKind::Status, &v1::StatusRequest {}).unwrap();
    assert_eq!((status.tensors, status.leases), (1, 1));
    assert!(is_intact(&client.acquire(stored.reference(), &all()).unwrap()));
    drop((stranger, stored));
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

/// A sidecar that counts bad frames, and a client whose tensor must outlive them.
struct Attacked {
    sidecar: Sidecar,
    client: Client,
    stored: tensorlane_client::Stored,
}

impl Attacked {
    fn begin() -> Self {
        let sidecar = Sidecar::with(SidecarOptions::default().admin().set("limits.sessions", 64));
        let client = sidecar.client();
        let stored = put_pattern(&client, 1, 100_000, &PutOptions::new()).unwrap();
        Self { sidecar, client, stored }
    }

    fn rejected(&self, label: &str) -> f64 {
        let label = format!("reason=\"{label}\"");
        self.sidecar.metric("tensorlane_session_rejected_frames_total", &[&label])
    }

    /// Sends bytes on a new session and waits until it is cut for that reason.
    fn is_cut(&self, bytes: &[u8], label: &str) {
        let before = self.rejected(label);
        let mut session = RawSession::begin(&self.sidecar);
        session.send_bytes(bytes);
        session.wait_until_cut();
        until("it is counted", || self.rejected(label) == before + 1.0);
    }

    fn end(self) {
        let tensor = self.client.acquire(self.stored.reference(), &all()).unwrap();
        assert!(is_intact(&tensor), "others are served as before");
        assert_eq!(self.client.status().unwrap().tensors, 1);
        drop((tensor, self.stored, self.client));
        self.sidecar.assert_all_free();
    }
}

fn header(length: u32, kind: u16, flags: u16) -> Vec<u8> {
    Header { length, kind, flags, call: 1 }.encode().to_vec()
}

#[test]
fn frames_of_impossible_lengths_cut_the_session() {
    let attacked = Attacked::begin();
    let put = SessionKind::Put.into();
    for length in [u32::MAX, 1 << 31, (16 << 20) + 1] {
        attacked.is_cut(&header(length, put, 0), "too_long");
    }
    // A length of 2^63 reaches into the kind and the flags.
    attacked.is_cut(&(1u64 << 63).to_le_bytes().repeat(2), "unknown_flags");
    attacked.end();
}

#[test]
fn unknown_kinds_and_flags_and_bodies_that_are_no_message_cut_the_session() {
    let attacked = Attacked::begin();
    for kind in [0, 6, 15, 999, u16::MAX] {
        attacked.is_cut(&header(0, kind, 0), "unknown_kind");
    }
    for flags in [8, 0x8000, u16::MAX] {
        attacked.is_cut(&header(0, SessionKind::Status.into(), flags), "unknown_flags");
    }
    for kind in [SessionKind::Put, SessionKind::Acquire, SessionKind::Release, SessionKind::Status] {
        let garbled = [header(3, kind.into(), 0), vec![0xff; 3]].concat();
        attacked.is_cut(&garbled, "malformed");
    }
    attacked.end();
}

#[test]
fn frames_that_may_not_come_now_cut_the_session() {
    let attacked = Attacked::begin();
    for kind in [SessionKind::Hello, SessionKind::Segment, SessionKind::SegmentRetired] {
        attacked.is_cut(&header(0, kind.into(), 0), "out_of_place");
    }
    for flags in [frame::REPLY, frame::FAILED, frame::LAST] {
        attacked.is_cut(&header(0, SessionKind::Status.into(), flags), "out_of_place");
    }
    attacked.end();
}

#[test]
fn nothing_but_hello_is_heard_at_first() {
    let attacked = Attacked::begin();
    let cut = |bytes: &[u8], label: &str| {
        let before = attacked.rejected(label);
        let mut session = RawSession::connect(&attacked.sidecar);
        session.send_bytes(bytes);
        session.wait_until_cut();
        until("it is counted", || attacked.rejected(label) == before + 1.0);
    };
    let status = frame::encode(SessionKind::Status.into(), 0, 1, &v1::StatusRequest {});
    cut(&status, "out_of_place");
    let release = v1::ReleaseRequest { ids: vec![1], still_mapped: vec![] };
    cut(&frame::encode(SessionKind::Release.into(), 0, 1, &release), "out_of_place");
    let nameless = v1::SessionHello { version: 0, client: String::new() };
    cut(&frame::encode(SessionKind::Hello.into(), 0, 1, &nameless), "malformed");
    cut(b"GET / HTTP/1.1\r\n\r\n", "too_long");
    attacked.end();
}

#[test]
fn half_a_frame_and_then_nothing_ends_the_session_and_only_that() {
    let attacked = Attacked::begin();
    let put = v1::PutRequest { items: vec![item(bytes_of(100), &[1; 100])], deadline_ms: 0 };
    let whole = frame::encode(SessionKind::Put.into(), 0, 7, &put);
    for length in [1, 15, 16, 17, whole.len() - 1] {
        let mut session = RawSession::begin(&attacked.sidecar);
        session.send_bytes(&whole[..length]);
        session.finish_sending();
        session.wait_until_cut();
        assert!(session.next_frame().is_none());
    }
    // A client that goes away without reading its answer.
    let mut session = RawSession::begin(&attacked.sidecar);
    session.send_bytes(&whole);
    drop(session);
    let only_one_left = || attacked.client.status().unwrap().sessions == 1;
    until("the other sessions have ended", only_one_left);
    attacked.end();
}

#[test]
fn ten_thousand_random_frames_harm_nobody() {
    let attacked = Attacked::begin();
    let mut numbers = Numbers::of(20_261_121);
    let mut session = RawSession::begin(&attacked.sidecar);
    for round in 0..10_000 {
        let body: Vec<u8> = (0..numbers.below(40)).map(|_| numbers.draw() as u8).collect();
        let bytes = match numbers.below(4) {
            // Anything at all.
            0 => body,
            // A frame of a real kind with a random body.
            1 | 2 => {
                let kind = [1, 3, 5].into_iter().chain(16..=30).nth(numbers.below(18) as usize).unwrap();
                [header(body.len() as u32, kind, 0), body].concat()
            }
            // A real request with one bit flipped.
            _ => {
                let target =
                    v1::Target { kind: Some(v1::target::Kind::Id(numbers.draw())), peer: String::new() };
                let item = v1::GetItem { target: Some(target), selection: None };
                let request = v1::AcquireRequest { items: vec![item], ..v1::AcquireRequest::default() };
                let mut bytes = frame::encode(SessionKind::Acquire.into(), 0, round, &request);
                let bit = numbers.below(bytes.len() as u64 * 8);
                bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
                bytes
            }
        };
        session.send_bytes(&bytes);
        if round % 5 == 0 {
            session = RawSession::begin(&attacked.sidecar);
        }
    }
    drop(session);
    until("the other sessions have ended", || attacked.client.status().unwrap().sessions == 1);
    attacked.end();
}

#[test]
fn a_hello_that_never_comes_gives_its_place_back() {
    let sidecar = Sidecar::start();
    let mut silent = RawSession::connect(&sidecar);
    silent.wait_until_cut();
    sidecar.assert_all_free();
}

#[test]
fn a_future_version_is_answered_with_the_one_to_use() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::connect(&sidecar);
    let hello = v1::SessionHello { version: 1000, client: "x".repeat(5000) };
    let welcome: v1::SessionWelcome = session.call(SessionKind::Hello, &hello).unwrap();
    assert_eq!(welcome.version, frame::SESSION_VERSION);
    assert!(welcome.encoded_len() > 0 && welcome.inline_bytes_max == INLINE_BYTES_MAX as u64);
    drop(session);
    sidecar.assert_all_free();
}
