//! Bytes in and bytes out.

use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::world::{
    World, all, collect, data, descriptor, failed, get, header, id, item, named, pattern, stored, unname,
    whole,
};
use crate::metrics::label::{Outcome, Verb};

fn range(start: u64, stop: u64, step: u64) -> v1::Range {
    v1::Range { start: Some(start), stop: Some(stop), step: Some(step) }
}

fn part(target: v1::Target, selection: v1::selection::Kind) -> v1::GetItem {
    v1::GetItem { target: Some(target), selection: Some(v1::Selection { kind: Some(selection) }) }
}

fn ranges(target: v1::Target, dimensions: Vec<v1::Range>) -> v1::GetItem {
    part(target, v1::selection::Kind::Ranges(v1::Ranges { dimensions }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_put_is_got_whole_in_ranges_and_in_rows() {
    let world = World::new().await;
    let mut client = world.client().await;
    let (rows, columns) = (1_000_usize, 3_001_usize);
    let bytes = pattern(rows * columns);
    let chunks = whole(item(DType::U8, &[1_000, 3_001], "w"), &bytes);
    let response = client.put(tokio_stream::iter(chunks)).await.unwrap().into_inner();
    assert_eq!(response.results.len(), 1);
    assert!(stored(&response.results[0]).ticket.is_empty(), "a name keeps it");

    let w = || named("w");
    let list = v1::selection::Kind::Rows(v1::Rows { indices: vec![999, 0, 7, 7] });
    let items = vec![
        all(w()),
        ranges(w(), vec![range(1, 900, 3), range(0, 3_001, 2)]),
        ranges(w(), vec![range(10, 20, 1)]),
        part(w(), list),
        ranges(w(), vec![range(5, 5, 1)]),
        ranges(w(), vec![range(0, 1_000, 1), range(1, 3_000, 1)]),
    ];
    let got = collect(client.get(get(items)).await.unwrap().into_inner()).await.unwrap();
    let row = |r: usize| &bytes[r * columns..(r + 1) * columns];
    let stepped: Vec<u8> = (1..900).step_by(3).flat_map(|r| row(r).iter().copied().step_by(2)).collect();
    let inner: Vec<u8> = (0..rows).flat_map(|r| row(r)[1..3_000].iter().copied()).collect();
    let expected: [(&[u64], Vec<u8>); 6] = [
        (&[1_000, 3_001], bytes.clone()),
        (&[300, 1_501], stepped),
        (&[10, 3_001], bytes[10 * columns..20 * columns].to_vec()),
        (&[4, 3_001], [row(999), row(0), row(7), row(7)].concat()),
        (&[0, 3_001], Vec::new()),
        (&[1_000, 2_999], inner),
    ];
    for (got, (shape, bytes)) in got.iter().zip(&expected) {
        let (head, got) = got.as_ref().unwrap();
        let descriptor = head.descriptor.as_ref().unwrap();
        assert_eq!((descriptor.shape.as_slice(), descriptor.strides.len()), (*shape, 0));
        assert_eq!(descriptor.byte_length, bytes.len() as u64);
        assert!(got == bytes, "{shape:?}");
        let moved = head.moved.as_ref().unwrap();
        assert_eq!((moved.transport(), moved.bytes), (v1::Transport::Local, bytes.len() as u64));
    }
    assert_eq!(got.len(), expected.len());
    assert_eq!(world.totals().leases, 0, "what was borrowed went back");
    unname(&mut client, "w").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tensor_that_is_stored_with_strides_comes_out_packed() {
    let world = World::new().await;
    let mut client = world.client().await;
    // 3 rows of 2 elements, transposed in memory: element (r, c) is at r + 3c.
    let strided = v1::Descriptor { strides: vec![1, 3], ..descriptor(DType::U8, &[3, 2]) };
    let header = v1::PutItem {
        descriptor: Some(strided),
        data: vec![1, 2, 3, 4, 5, 6].into(),
        ..item(DType::U8, &[], "t")
    };
    client.put(tokio_stream::iter([super::world::header(header)])).await.unwrap();
    let got = collect(client.get(get(vec![all(named("t"))])).await.unwrap().into_inner()).await.unwrap();
    assert_eq!(got[0].as_ref().unwrap().1, [1, 4, 2, 5, 3, 6]);
    unname(&mut client, "t").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tensors_come_in_one_stream_and_a_bad_one_does_not_spoil_the_others() {
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    let bytes = pattern(4_000);
    let mut chunks = Vec::new();
    for index in 0..300_u64 {
        let dtype = if index == 100 {
            v1::Descriptor { dtype: 9_999, ..descriptor(DType::U8, &[8]) }
        } else {
            descriptor(DType::U8, &[index])
        };
        chunks.push(header(v1::PutItem { descriptor: Some(dtype), ..v1::PutItem::default() }));
        if index > 0 {
            chunks.push(data(&bytes[..usize::try_from(index).unwrap()]));
        }
    }
    let response = client.put(session.with(tokio_stream::iter(chunks))).await.unwrap().into_inner();
    assert_eq!(response.results.len(), 300);
    assert_eq!(failed(&response.results[100]).reason, "DTYPE_UNKNOWN");
    let ids: Vec<u64> = (0..300).filter(|i| *i != 100).map(|i| stored(&response.results[i]).id).collect();
    assert_eq!((world.totals().tensors, world.totals().leases), (299, 299));
    let count = |outcome| world.metrics.calls.items.at((Verb::Put, outcome)).get();
    assert_eq!(count(Outcome::Ok), 299);
    assert_eq!(count(Outcome::Failed(tensorlane_proto::Reason::DTypeUnknown)), 1);

    let items = ids.iter().map(|i| all(id(*i))).chain([all(id(77))]).collect();
    let got = collect(client.get(get(items)).await.unwrap().into_inner()).await.unwrap();
    for (got, length) in got[..299].iter().zip((0..300).filter(|i| *i != 100)) {
        assert_eq!(got.as_ref().unwrap().1, bytes[..length]);
    }
    assert_eq!(got[299].as_ref().unwrap_err().reason, "NOT_FOUND");
    let release = v1::ReleaseRequest { ids, still_mapped: Vec::new() };
    let released = client.release(session.with(release)).await.unwrap().into_inner();
    assert!(released.results.iter().all(|r| r.failure.is_none()));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_of_the_wrong_length_fails_alone() {
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    let eight = || item(DType::U8, &[8], "");
    let sum = crc32c::crc32c(&[3; 8]);
    let chunks = vec![
        header(eight()),
        data(&[1; 7]),
        header(eight()),
        data(&[2; 5]),
        data(&[2; 5]),
        data(&[2; 5]),
        header(v1::PutItem { crc32c: Some(sum), ..eight() }),
        data(&[3; 4]),
        data(&[3; 4]),
        header(v1::PutItem { crc32c: Some(sum ^ 1), ..eight() }),
        data(&[3; 8]),
    ];
    let results = client.put(session.with(tokio_stream::iter(chunks))).await.unwrap().into_inner().results;
    let short = failed(&results[0]);
    assert_eq!((short.reason.as_str(), short.details["given_bytes"].as_str()), ("LAYOUT_MISMATCH", "7"));
    assert_eq!(failed(&results[1]).reason, "LAYOUT_MISMATCH");
    assert!(!stored(&results[2]).reference.is_empty());
    assert_eq!(failed(&results[3]).reason, "CHECKSUM_MISMATCH");
    assert_eq!(world.totals().tensors, 1);
    let release = v1::ReleaseRequest { ids: vec![stored(&results[2]).id], still_mapped: Vec::new() };
    client.release(session.with(release)).await.unwrap();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_leaves_nothing_behind() {
    let world = World::new().await;
    let mut client = world.client().await;
    let (chunks, stream) = mpsc::channel(4);
    let put = tokio::spawn(async move { client.put(ReceiverStream::new(stream)).await });
    // One whole item and half of another.
    chunks.send(header(item(DType::U8, &[100], "whole"))).await.unwrap();
    chunks.send(data(&[1; 100])).await.unwrap();
    chunks.send(header(item(DType::U8, &[4_000_000], "half"))).await.unwrap();
    chunks.send(data(&[1; 1_000_000])).await.unwrap();
    world.until("both have room", || world.exchange.store().arena().usage().reserved >= 4_000_000).await;
    assert_eq!(world.totals().names, 0, "nothing is visible before the stream has ended");
    put.abort();
    world.until_free().await;
    assert_eq!(world.totals().tickets, 0);
    drop(chunks);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_put_gets_the_first_answer() {
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    let once = || {
        let item = v1::PutItem { retry_id: vec![9; 16].into(), ..item(DType::U8, &[4], "") };
        session.with(tokio_stream::iter(vec![header(item), data(&[1, 2, 3, 4])]))
    };
    let first = client.put(once()).await.unwrap().into_inner();
    let second = client.put(once()).await.unwrap().into_inner();
    assert_eq!(first, second);
    assert_eq!((world.totals().tensors, world.totals().leases), (1, 1));
    let release = v1::ReleaseRequest { ids: vec![stored(&first.results[0]).id], still_mapped: Vec::new() };
    client.release(session.with(release)).await.unwrap();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_away_gives_its_borrow_back() {
    let world = World::new().await;
    let mut client = world.client().await;
    let bytes = pattern(20 << 20);
    client.put(tokio_stream::iter(whole(item(DType::U8, &[20 << 20], "w"), &bytes))).await.unwrap();
    let mut stream = client.get(get(vec![all(named("w"))])).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    assert_eq!(world.totals().leases, 1, "the rest of the bytes waits for the reader");
    drop(stream);
    world.until("the borrow is back", || world.totals().leases == 0).await;
    unname(&mut client, "w").await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_is_filled_by_a_stream_and_sealed() {
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    let bytes = pattern(3_000_000);
    let wish = v1::ReserveItem {
        descriptor: Some(descriptor(DType::U8, &[3_000_000])),
        ..v1::ReserveItem::default()
    };
    let request = v1::ReserveRequest { items: vec![wish.clone(), wish], deadline_ms: 0 };
    let reserved = client.reserve(session.with(request)).await.unwrap().into_inner().results;
    let ids: Vec<u64> = reserved
        .iter()
        .map(|r| match &r.outcome {
            Some(v1::reserve_result::Outcome::Reserved(v1::Reserved { id, location: None })) => *id,
            other => panic!("{other:?}"),
        })
        .collect();
    let fill: Vec<_> = bytes
        .chunks(999_999)
        .enumerate()
        .map(|(i, part)| v1::FillChunk { id: ids[0], offset: i as u64 * 999_999, data: part.to_vec().into() })
        .collect();
    let filled = client.fill(session.with(tokio_stream::iter(fill))).await.unwrap().into_inner();
    assert_eq!(filled.bytes, 3_000_000);
    let seal = |crc| v1::SealRequest {
        items: vec![v1::SealItem { id: ids[0], crc32c: Some(crc), ..v1::SealItem::default() }],
    };
    let crc = crc32c::crc32c(&bytes);
    let wrong = client.seal(session.with(seal(!crc))).await.unwrap().into_inner();
    assert_eq!(failed(&wrong.results[0]).reason, "CHECKSUM_MISMATCH");
    let right = client.seal(session.with(seal(crc))).await.unwrap().into_inner();
    assert_eq!(stored(&right.results[0]).id, ids[0]);
    let aborted =
        client.abort(session.with(v1::AbortRequest { ids: ids.clone() })).await.unwrap().into_inner();
    assert_eq!(aborted.results[0].failure.as_ref().unwrap().reason, "ALREADY_SEALED");
    assert!(aborted.results[1].failure.is_none());
    let got = collect(client.get(get(vec![all(id(ids[0]))])).await.unwrap().into_inner()).await.unwrap();
    assert!(got[0].as_ref().unwrap().1 == bytes);
    let release = v1::ReleaseRequest { ids: vec![ids[0]], still_mapped: Vec::new() };
    client.release(session.with(release)).await.unwrap();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_that_nobody_fills_shows_no_byte_of_an_earlier_tensor() {
    const BYTES: u64 = 3_000_000;
    let world = World::new().await;
    let (mut client, session) = world.session().await;
    // The arena's room is full of secrets, and free.
    let secret = item(DType::U8, &[BYTES], "secret");
    client.put(tokio_stream::iter(whole(secret, &[0xa5; BYTES as usize]))).await.unwrap();
    unname(&mut client, "secret").await;
    let descriptor = Some(descriptor(DType::U8, &[BYTES]));
    let wish = v1::ReserveItem { descriptor, ..v1::ReserveItem::default() };
    let request = v1::ReserveRequest { items: vec![wish], deadline_ms: 0 };
    let reserved = client.reserve(session.with(request)).await.unwrap().into_inner();
    let Some(v1::reserve_result::Outcome::Reserved(room)) = &reserved.results[0].outcome else {
        panic!("{reserved:?}")
    };
    let seal = v1::SealRequest { items: vec![v1::SealItem { id: room.id, ..v1::SealItem::default() }] };
    client.seal(session.with(seal)).await.unwrap();
    let got = collect(client.get(get(vec![all(id(room.id))])).await.unwrap().into_inner()).await.unwrap();
    assert!(got[0].as_ref().unwrap().1 == vec![0; BYTES as usize]);
    let release = v1::ReleaseRequest { ids: vec![room.id], still_mapped: Vec::new() };
    client.release(session.with(release)).await.unwrap();
    world.end().await;
}
