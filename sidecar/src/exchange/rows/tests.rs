//! Resources that calls about sets take: workers, room, and nothing for what cannot be.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tensorlane_memory::{Block, Purpose};
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::identity::Incarnation;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::Selection;
use tensorlane_proto::{DType, Layout, Shape};

use super::*;
use crate::cancel::Cancel;
use crate::exchange::alone::{MINUTE, alone};
use crate::peer::PeerKey;
use crate::store::{AllocRequest, OWN};

/// Bytes of a row, which is a band.
const ROW: u64 = 1 << 20;
/// The arena of these tests has eight rows.
const ROOM: u64 = 8;

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + MINUTE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn create(exchange: &Arc<Exchange>, rows: u64) -> v1::SetInfo {
    let leaf = |key: &str, row_shape: &[u64]| v1::SetLeaf {
        key: key.to_owned(),
        dtype: DType::U8.code().into(),
        row_shape: row_shape.to_vec(),
    };
    let spec = v1::SetSpec {
        name: format!("set-{rows}"),
        rows,
        leaves: vec![leaf("wide", &[ROW - 64]), leaf("thin", &[])],
        writers: vec!["*".to_owned()],
        files: None,
    };
    let (tell, told) = mpsc::channel();
    exchange
        .set_create(v1::SetCreateRequest { spec: Some(spec) }, move |outcome| tell.send(outcome).unwrap());
    told.recv_timeout(MINUTE).unwrap().unwrap().set.unwrap()
}

fn peer() -> PeerKey {
    PeerKey { name: "there".parse().unwrap(), incarnation: Incarnation(9) }
}

/// Blocks of one row each that nobody else has now.
fn fill(exchange: &Exchange, rows: u64) -> Vec<Block> {
    let cancel = Cancel::default();
    let alloc = AllocRequest {
        writer: None,
        purpose: Purpose::Put,
        bytes: ROW,
        deadline: Instant::now() + MINUTE,
        cancel: &cancel,
    };
    (0..rows).map(|_| exchange.store.allocate(&alloc).unwrap()).collect()
}

/// Rows that can be had at once, one block each.
fn free_rows(exchange: &Exchange) -> u64 {
    let cancel = Cancel::default();
    let deadline = Instant::now();
    let alloc = AllocRequest { writer: None, purpose: Purpose::Put, bytes: ROW, deadline, cancel: &cancel };
    let mut blocks = Vec::new();
    while let Ok(block) = exchange.store.allocate(&alloc) {
        blocks.push(block);
    }
    blocks.len() as u64
}

/// A small tensor of so many rows of the thin leaf.
fn thin(exchange: &Exchange, rows: u64) -> (Taken, v1::SetPart) {
    let layout = Layout::contiguous(DType::U8, Shape::new(&[rows]).unwrap()).unwrap();
    let cancel = Cancel::default();
    let deadline = Instant::now() + MINUTE;
    let alloc = AllocRequest { writer: None, purpose: Purpose::Put, bytes: rows, deadline, cancel: &cancel };
    let block = exchange.store.allocate(&alloc).unwrap();
    let taken = exchange.store.pack_in(OWN, Descriptor::host(layout), block).unwrap();
    let part = v1::SetPart { key: "thin".to_owned(), reference: taken.tensor.reference.encode() };
    (taken, part)
}

#[test]
fn a_peer_whose_reads_wait_for_room_leaves_workers_to_others() {
    let (exchange, workers, _) = alone();
    let set = create(&exchange, 4).reference;
    let held = fill(&exchange, free_rows(&exchange));
    let (tell, told) = mpsc::channel();
    let calls = crate::workers::THREADS_MAX + 64;
    for _ in 0..calls {
        let rows = Some((&Selection::rows([1])).into());
        let read = v1::SetReadRequest { set: set.clone(), rows, ..v1::SetReadRequest::default() };
        let call = v1::SetCall { kind: Some(v1::set_call::Kind::Read(read)) };
        let tell = tell.clone();
        let reply = Box::new(move |answer: Result<v1::SetAnswer, Failure>| tell.send(answer).unwrap());
        exchange.answer_set_call(&peer(), call, Cancel::default(), reply);
    }
    let (free, is_free) = mpsc::channel();
    let done = Box::new(move |outcome: Result<(), Failure>| free.send(outcome).unwrap());
    exchange.on_worker(done, |_| Ok(()));
    is_free.recv_timeout(MINUTE / 4).expect("a worker is free").unwrap();
    assert!(told.try_recv().is_err(), "all of them wait");
    drop(held);
    for _ in 0..calls {
        exchange.store.notify();
        let answer = told.recv_timeout(MINUTE).unwrap().unwrap();
        let Some(v1::set_answer::Kind::Packed(packed)) = answer.kind else { panic!("no rows") };
        for reference in packed.references {
            let id = reference.parse::<Reference>().unwrap().id();
            crate::peer::Serve::done(&*exchange, &peer(), id);
        }
    }
    workers.stop();
}

#[test]
fn a_commit_of_more_than_half_of_the_arena_is_refused_before_its_rows_are_brought() {
    let (exchange, workers, _) = alone();
    let set = create(&exchange, 5).reference;
    let layout = Layout::contiguous(DType::U8, Shape::new(&[5, ROW - 64]).unwrap()).unwrap();
    let there = peer();
    let reference = Reference::new("lab".parse().unwrap(), there.name, there.incarnation, 1, &layout);
    let part = v1::SetPart { key: "wide".to_owned(), reference: reference.encode() };
    let commit = |request: v1::SetCommitRequest| {
        let (tell, told) = mpsc::channel();
        let caller = Caller { holder: None, link: None, cancel: Cancel::default() };
        exchange.set_commit(caller, request, move |outcome| tell.send(outcome).unwrap());
        told.recv_timeout(MINUTE).unwrap().unwrap_err().reason
    };
    let whole = v1::SetCommitRequest { set, parts: vec![part], ..v1::SetCommitRequest::default() };
    assert_eq!(commit(whole.clone()), Reason::TooLarge);
    // What cannot be written is not brought either.
    let rows = Some((&Selection::rows([5])).into());
    assert_eq!(commit(v1::SetCommitRequest { rows, ..whole.clone() }), Reason::TooLarge);
    let small = Layout::contiguous(DType::U8, Shape::new(&[1, ROW - 64]).unwrap()).unwrap();
    let there = peer();
    let reference = Reference::new("lab".parse().unwrap(), there.name, there.incarnation, 1, &small);
    let part = |key: &str| v1::SetPart { key: key.to_owned(), reference: reference.encode() };
    let rows = Some((&Selection::rows([5])).into());
    let with = |parts| v1::SetCommitRequest { parts, ..whole.clone() };
    assert_eq!(
        commit(v1::SetCommitRequest { rows, ..with(vec![part("wide")]) }),
        Reason::SelectionOutOfRange
    );
    assert_eq!(
        commit(v1::SetCommitRequest { expects_version: Some(3), ..with(vec![part("wide")]) }),
        Reason::VersionChanged
    );
    assert_eq!(commit(with(vec![part("wide"), part("wide")])), Reason::InvalidArgument);
    assert_eq!(commit(with(vec![part("none")])), Reason::SetMismatch);
    assert_eq!(commit(with(vec![part("wide")])), Reason::PeerUnreachable, "this one would be brought");
    workers.stop();
}

#[test]
fn two_commits_that_fit_alone_and_not_together_do_not_wait_for_each_other() {
    let (exchange, workers, _) = alone();
    let _set = create(&exchange, ROOM);
    let set = exchange.mutable_sets.table.lock().named("set-8").cloned().unwrap();
    let each = 4;
    // Made while there is room.
    let parts = [(); 2].map(|()| thin(&exchange, each));
    let room = free_rows(&exchange);
    assert!(each <= room && room < 2 * each, "{room}");
    let held = fill(&exchange, room);
    let commit = |first: u64, (taken, part): (Taken, v1::SetPart)| {
        let request = v1::SetCommitRequest {
            parts: vec![part],
            set: set.reference.to_string(),
            rows: Some((&Selection::rows((first..first + each).collect::<Vec<_>>())).into()),
            deadline_ms: 3_000,
            ..v1::SetCommitRequest::default()
        };
        let (tell, told) = mpsc::channel();
        let caller = Caller { holder: None, link: None, cancel: Cancel::default() };
        exchange.set_commit(caller, request, move |outcome| {
            drop(taken);
            tell.send(outcome).unwrap();
        });
        told
    };
    let [one, other] = parts;
    let told = [commit(0, one), commit(each, other)];
    until("one of them is in line", || exchange.store.waiting() > 0);
    drop(held);
    // No keeper does it here.
    exchange.store.notify();
    let outcomes = told.map(|told| told.recv_timeout(MINUTE).unwrap());
    let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(refused.len() == 1 && refused[0].reason == Reason::ArenaFull, "{outcomes:?}");
    assert_eq!(set.info().held_bytes, each * set.layout.band_bytes());
    assert_eq!(free_rows(&exchange), room - each, "what was refused has left nothing");
    workers.stop();
}
