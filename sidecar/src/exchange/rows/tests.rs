//! Resources that calls about sets take: threads, room, and nothing for what cannot be.

mod large;
mod model;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tensorlane_memory::Block;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::identity::Incarnation;
use tensorlane_proto::ledger::RetryId;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::rows::RowList;
use tensorlane_proto::selection::Selection;
use tensorlane_proto::{DType, Layout, Range, Shape};

use super::*;
use crate::cancel::Cancel;
use crate::exchange::alone::{MINUTE, allocate, alone};
use crate::peer::PeerKey;
use crate::store::{Claimant, OWN};

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
    let spec = v1::SetSpec {
        name: format!("set-{rows}"),
        rows,
        leaves: vec![leaf("wide", &[ROW - 64]), leaf("thin", &[])],
        writers: vec!["*".to_owned()],
        files: None,
        contiguous: false,
    };
    made(exchange, spec).unwrap()
}

/// A leaf of bytes.
fn leaf(key: &str, row_shape: &[u64]) -> v1::SetLeaf {
    v1::SetLeaf { key: key.to_owned(), dtype: DType::U8.code().into(), row_shape: row_shape.to_vec() }
}

/// Makes or opens a set.
fn made(exchange: &Arc<Exchange>, spec: v1::SetSpec) -> Result<v1::SetInfo, Failure> {
    let (tell, told) = mpsc::channel();
    let asked = v1::SetCreateRequest { spec: Some(spec) };
    exchange.set_create(&nobody(), asked, move |outcome| tell.send(outcome).unwrap());
    told.recv_timeout(MINUTE).unwrap().map(|made| made.set.unwrap())
}

fn nobody() -> Caller {
    Caller { holder: Some(OWN), link: None, on_behalf: None, cancel: Cancel::default() }
}

fn peer() -> PeerKey {
    PeerKey { name: "there".parse().unwrap(), incarnation: Incarnation(9) }
}

/// Blocks of one row each that nobody else has now.
fn fill(exchange: &Exchange, rows: u64) -> Vec<Block> {
    (0..rows).map(|_| allocate(exchange, ROW, MINUTE).unwrap()).collect()
}

/// Rows that can be had at once, one block each.
fn free_rows(exchange: &Exchange) -> u64 {
    let mut blocks = Vec::new();
    // Long enough to begin a segment on a busy machine.
    while let Ok(block) = allocate(exchange, ROW, Duration::from_secs(8)) {
        blocks.push(block);
    }
    blocks.len() as u64
}

/// A small tensor of so many rows of the thin leaf, which are ones.
fn thin(exchange: &Exchange, rows: u64) -> (Taken, v1::SetPart) {
    let layout = Layout::contiguous(DType::U8, Shape::new(&[rows]).unwrap()).unwrap();
    let block = allocate(exchange, rows, MINUTE).unwrap();
    block.landing().unwrap().write(0, &vec![1; usize::try_from(rows).unwrap()]).unwrap();
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
fn a_set_remembers_fewer_commits_where_there_are_many_sets() {
    let (exchange, workers, _) = alone();
    for number in 1..=257 {
        let (name, leaves) = (format!("set-{number}"), vec![leaf("thin", &[])]);
        made(&exchange, v1::SetSpec { name, rows: 1, leaves, ..v1::SetSpec::default() }).unwrap();
    }
    let remembered = |number: u64| {
        let table = exchange.mutable_sets.table.lock();
        let mut commits = table.named(&format!("set-{number}")).unwrap().commits.lock();
        let retry = |number: u128| Some(RetryId(number.to_le_bytes()));
        for number in 0..2_000 {
            commits.commit(&RowList::Range { first: 0, count: 1, step: 1 }, retry(number));
        }
        (0..2_000).filter(|number| commits.repeated(retry(*number)).is_some()).count()
    };
    assert_eq!([1, 256, 257].map(remembered), [1_024, 1_024, 256]);
    workers.stop();
}

#[test]
fn a_peer_that_waits_for_room_holds_up_no_put_of_this_pod() {
    let (exchange, workers, _) = alone();
    let set = create(&exchange, 4).reference;
    let small = allocate(&exchange, 4_096, MINUTE).unwrap();
    let held = fill(&exchange, free_rows(&exchange));
    let rows = Some((&Selection::rows([1])).into());
    let read = v1::SetReadRequest { set, rows, ..v1::SetReadRequest::default() };
    let call = v1::SetCall { kind: Some(v1::set_call::Kind::Read(read)) };
    let (tell, told) = mpsc::channel();
    let reply = Box::new(move |answer: Result<v1::SetAnswer, Failure>| drop(tell.send(answer)));
    let gone = Cancel::default();
    exchange.answer_set_call(&peer(), call, gone.clone(), reply);
    until("it waits for room", || exchange.store.waiting() == 1);
    drop(small);
    let layout = Layout::contiguous(DType::U8, Shape::new(&[64]).unwrap()).unwrap();
    let item = v1::PutItem {
        descriptor: Some((&Descriptor::host(layout)).into()),
        data: vec![7; 64].into(),
        ..v1::PutItem::default()
    };
    let (tell, stored) = mpsc::channel();
    let request = v1::PutRequest { items: vec![item], ..v1::PutRequest::default() };
    let caller = Caller { holder: Some(OWN), link: None, on_behalf: None, cancel: Cancel::default() };
    exchange.put(caller, request, move |outcome| tell.send(outcome).unwrap());
    let stored = stored.try_recv().expect("at once").unwrap();
    let outcome = stored.results[0].outcome.as_ref();
    assert!(matches!(outcome, Some(v1::stored_result::Outcome::Stored(_))), "{outcome:?}");
    assert!(told.try_recv().is_err(), "the peer waits");
    gone.cancel();
    assert_eq!(told.recv_timeout(MINUTE).unwrap().unwrap_err().reason, Reason::Cancelled);
    drop(held);
    exchange.stop_waiters();
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
        let caller = Caller { holder: None, link: None, on_behalf: None, cancel: Cancel::default() };
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
fn ranges_of_many_neighbours_are_snapshots_as_all_rows_are() {
    let (exchange, workers, _) = alone();
    let rows = 1_200_000;
    let leaf = v1::SetLeaf { key: "thin".to_owned(), dtype: DType::U8.code().into(), row_shape: vec![] };
    let spec = v1::SetSpec { name: "long".to_owned(), rows, leaves: vec![leaf], ..v1::SetSpec::default() };
    let (tell, told) = mpsc::channel();
    let asked = v1::SetCreateRequest { spec: Some(spec) };
    exchange.set_create(&nobody(), asked, move |outcome| tell.send(outcome).unwrap());
    told.recv_timeout(MINUTE).unwrap().unwrap();
    let set = exchange.mutable_sets.table.lock().named("long").cloned().unwrap();
    let read = |range: Range, deadline: Duration| {
        let request = v1::SetReadRequest {
            rows: Some((&Selection::Ranges(vec![range])).into()),
            ..v1::SetReadRequest::default()
        };
        exchange.pack_rows(
            &set,
            OWN,
            request,
            (&Claimant::Holder(None), Instant::now() + deadline, &Cancel::default()),
        )
    };
    for range in [Range::FULL, Range::new(0, rows), Range::new(1, rows)] {
        let turn = set.copying.lock();
        let waits = read(range, Duration::from_millis(1)).err().unwrap();
        assert_eq!(waits.reason, Reason::DeadlineExceeded, "{range}: {}", waits.message);
        drop(turn);
        let read = read(range, MINUTE).unwrap();
        let count = rows - range.start.unwrap_or(0);
        assert_eq!(read.taken[0].tensor.descriptor.layout.bytes(), count, "{range}");
        let ids: Vec<u64> = read.taken.iter().map(|taken| taken.id.0).collect();
        exchange.store.release(OWN, &ids, &[]);
    }
    let _turn = set.copying.lock();
    assert!(read(Range::new(1, rows / 2), MINUTE).is_ok(), "few bytes are copied under their locks");
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
    let (tell, told) = mpsc::channel();
    let commit = |number: usize, (taken, part): (Taken, v1::SetPart)| {
        let first = number as u64 * each;
        let request = v1::SetCommitRequest {
            parts: vec![part],
            set: set.reference.to_string(),
            rows: Some((&Selection::rows((first..first + each).collect::<Vec<_>>())).into()),
            deadline_ms: 60_000,
            ..v1::SetCommitRequest::default()
        };
        let (tell, cancel) = (tell.clone(), Cancel::default());
        let caller = Caller { holder: None, link: None, on_behalf: None, cancel: cancel.clone() };
        exchange.set_commit(caller, request, move |outcome| {
            drop(taken);
            tell.send((number, outcome)).unwrap();
        });
        cancel
    };
    let [one, other] = parts;
    let cancels = [commit(0, one), commit(1, other)];
    until("one of them is in line", || exchange.store.waiting() > 0);
    drop(held);
    // No keeper does it here.
    exchange.store.notify();
    let (made, outcome) = told.recv_timeout(MINUTE).unwrap();
    outcome.unwrap();
    // The other one waits for the room of it.
    cancels[1 - made].cancel();
    let (_, outcome) = told.recv_timeout(MINUTE).unwrap();
    assert_eq!(outcome.unwrap_err().reason, Reason::Cancelled);
    assert_eq!(set.info().held_bytes, each * set.layout.band_bytes());
    assert_eq!(free_rows(&exchange), room - each, "what was refused has left nothing");
    workers.stop();
}

#[test]
fn a_set_on_files_keeps_its_durability_and_writers_and_others_are_refused_until_it_is_dropped() {
    use v1::SetDurability::{Disk, Process, Unspecified};
    let folder = tempfile::tempdir().unwrap();
    let (exchange, workers, _) = alone();
    exchange.open_sets(folder.path(), 8, 64 << 10).unwrap();
    let ask = |open: bool, durability: v1::SetDurability, writers: &[&str]| {
        let files = v1::SetFiles { directory: "replay".to_owned(), open, durability: durability.into() };
        let writers = writers.iter().map(|pattern| (*pattern).to_owned()).collect();
        let leaves = vec![leaf("x", &[])];
        let spec = v1::SetSpec { leaves, rows: 4, writers, files: Some(files), ..v1::SetSpec::default() };
        made(&exchange, spec).map(|made| made.spec.unwrap())
    };
    let made = ask(false, Disk, &["a", "b-*"]).unwrap();
    assert_eq!(made.files.as_ref().unwrap().durability(), Disk);
    assert_eq!(ask(true, Unspecified, &[]).unwrap(), made);
    assert_eq!(ask(true, Disk, &["b-*", "a"]).unwrap(), made);
    assert_eq!(ask(true, Process, &[]).unwrap_err().reason, Reason::SetMismatch);
    assert_eq!(ask(true, Unspecified, &["a"]).unwrap_err().reason, Reason::SetMismatch);
    let (tell, told) = mpsc::channel();
    let asked = v1::SetDropRequest { set: "replay".to_owned() };
    exchange.set_drop(&nobody(), &asked, move |outcome| tell.send(outcome).unwrap());
    told.recv_timeout(MINUTE).unwrap().unwrap();
    let opened = ask(true, Process, &["a"]).unwrap();
    assert_eq!((opened.files.unwrap().durability(), opened.writers), (Process, vec!["a".to_owned()]));
    workers.stop();
}

#[test]
fn one_caller_that_waits_for_the_disk_leaves_workers_and_the_disk_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let (exchange, workers, _) = alone();
    exchange.open_sets(folder.path(), 8, 64 << 10).unwrap();
    let (tell, told) = mpsc::channel();
    let create = || {
        let files = v1::SetFiles { directory: "replay".to_owned(), ..v1::SetFiles::default() };
        let spec = v1::SetSpec {
            leaves: vec![leaf("x", &[])],
            rows: 4,
            files: Some(files),
            ..v1::SetSpec::default()
        };
        let tell = tell.clone();
        let asked = v1::SetCreateRequest { spec: Some(spec) };
        exchange.set_create(&nobody(), asked, move |outcome| tell.send(outcome).unwrap());
    };
    create();
    told.recv_timeout(MINUTE).unwrap().unwrap();
    let root = exchange.mutable_sets.root.get().cloned().unwrap();
    let making = root.making.lock();
    let calls = crate::workers::THREADS_MAX + 64;
    (0..calls).for_each(|_| create());
    let flush = |caller: &Caller, deadline_ms: u64| {
        let (tell, told) = mpsc::channel();
        let asked = v1::SetOpenRequest {
            set: "replay".to_owned(),
            flush: true,
            deadline_ms,
            ..v1::SetOpenRequest::default()
        };
        exchange.set_open(caller, &asked, move |outcome| tell.send(outcome).unwrap());
        told.recv_timeout(MINUTE).unwrap().map(drop)
    };
    let other = Caller { on_behalf: Some(Claimant::Peer(peer().name)), ..nobody() };
    assert_eq!(flush(&other, 0), Ok(()));
    assert_eq!(flush(&nobody(), 1).unwrap_err().reason, Reason::DeadlineExceeded, "its share is taken");
    let (free, is_free) = mpsc::channel();
    let done = Box::new(move |outcome: Result<(), Failure>| free.send(outcome).unwrap());
    exchange.on_worker(done, |_| Ok(()));
    is_free.recv_timeout(MINUTE).expect("a worker is free").unwrap();
    drop(making);
    for _ in 0..calls {
        assert!(told.recv_timeout(MINUTE).unwrap().is_err(), "it is there already");
    }
    exchange.stop_waiters();
    workers.stop();
}

#[test]
fn snapshots_of_other_peers_end_no_version_that_the_pod_of_the_set_keeps() {
    let (exchange, workers, _) = alone();
    let anew = || {
        let (name, leaves) = ("thin".to_owned(), vec![leaf("x", &[])]);
        made(&exchange, v1::SetSpec { name, rows: 4, leaves, ..v1::SetSpec::default() }).unwrap();
        exchange.mutable_sets.table.lock().named("thin").cloned().unwrap()
    };
    let publish = |set: &MutableSet, claimant: &Claimant, keep: u32| {
        let asked = v1::SetSnapshotRequest { keep, ..v1::SetSnapshotRequest::default() };
        let waits = (claimant, Instant::now() + MINUTE, &Cancel::default());
        exchange.publish_rows(set, &asked, waits).unwrap();
        exchange.store.versions(&set.name)
    };
    let (here, there) = (Claimant::Holder(None), Claimant::Peer(peer().name));
    let set = anew();
    assert_eq!([3, 1, 1].map(|keep| publish(&set, &there, keep)), [1, 1, 1], "the pod has none");
    assert_eq!(publish(&set, &here, 3), 2);
    assert_eq!([1, 1, 4].map(|keep| publish(&set, &there, keep)), [3, 3, 4]);
    assert_eq!((publish(&set, &here, 1), publish(&set, &there, 2), publish(&set, &there, 1)), (1, 2, 1));
    assert_eq!([2, 2].map(|keep| publish(&set, &here, keep)), [2, 2]);
    // Of a new set of the name those that are there are the pod's.
    exchange.mutable_sets.table.lock().remove(set.reference.id);
    assert_eq!(publish(&anew(), &there, 1), 2);
    workers.stop();
}
