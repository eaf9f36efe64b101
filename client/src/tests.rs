//! The client against the twin: what the two sides of a session owe each other.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::{DType, Descriptor, Layout, Range, Reason, Reference, Selection, Shape};

use crate::config::{GRACE, WELCOME_MAX};
use crate::connection::Connection;
use crate::fake_sidecar::{FakeSidecar, SIDECAR_SEGMENT, until};
use crate::origin::Origin;
use crate::{
    AcquireOptions, Cancel, Client, ClientOptions, Error, Item, PutOptions, Reservation, RetryId, Stored,
    Target, Tensor,
};

fn bytes_of(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7) as u8).collect()
}

fn descriptor(dims: &[u64]) -> Descriptor {
    Descriptor::host(Layout::contiguous(DType::U8, Shape::new(dims).unwrap()).unwrap())
}

fn put(client: &Client, name: &str, bytes: &[u8]) -> Stored {
    client.put(&descriptor(&[bytes.len() as u64]), bytes, &PutOptions::named(name)).unwrap()
}

fn acquire(client: &Client, target: impl Into<Target>) -> Tensor {
    client.acquire(target, &AcquireOptions::new()).unwrap()
}

/// Tensors whose leases have ended. Those of before a fork, as another test of this process makes, end with a word more.
fn given_back(twin: &FakeSidecar) -> Vec<u64> {
    let state = twin.state.lock();
    [&state.released[..], &state.still_mapped[..]].concat()
}

fn start() -> (FakeSidecar, Client) {
    let twin = FakeSidecar::start();
    let client = Client::connect(twin.directory()).unwrap();
    (twin, client)
}

#[test]
fn a_small_tensor_is_put_in_one_call_and_read_by_reference_and_by_name() {
    let (twin, client) = start();
    let bytes = bytes_of(1, 5_000);
    let stored = put(&client, "a", &bytes);
    assert_eq!(acquire(&client, stored.reference()).to_vec(), bytes);
    assert_eq!(acquire(&client, "a").to_vec(), bytes);
    assert_eq!(twin.count(SessionKind::Put), 1);
    assert_eq!(twin.count(SessionKind::Reserve), 0);
}

#[test]
fn a_sidecar_of_an_earlier_release_is_not_asked_for_a_set() {
    let (twin, client) = start();
    let tree = tensorlane_proto::set::Tree::default();
    let refused = client.publish_set("policy", &tree, &Default::default()).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::Unsupported), "{refused}");
    assert_eq!(twin.count(SessionKind::PublishSet), 0);
}

#[test]
fn a_large_tensor_is_written_in_place_after_its_segment_was_acknowledged() {
    let (twin, client) = start();
    let bytes = bytes_of(2, 1 << 20);
    let stored = put(&client, "large", &bytes);
    assert_eq!(twin.state.lock().mapped, [""]);
    assert_eq!(acquire(&client, stored.reference()).to_vec(), bytes);
    // Another process gets the same segment, sealed.
    let other = Client::connect(twin.directory()).unwrap();
    assert_eq!(acquire(&other, "large").to_vec(), bytes);
}

#[test]
fn a_reference_that_says_what_a_tensor_of_this_sidecar_is_not_is_refused_and_its_lease_given_back() {
    let (twin, client) = start();
    let stored = put(&client, "a", &bytes_of(1, 4096));
    let truth = stored.reference();
    let lie = |dtype, dims: &[u64]| {
        let layout = Layout::contiguous(dtype, Shape::new(dims).unwrap()).unwrap();
        let (exchange, peer) = (truth.exchange().clone(), truth.peer().clone());
        Reference::new(exchange, peer, truth.incarnation(), truth.id(), &layout)
    };
    let lies = [lie(DType::I8, &[4096]), lie(DType::U8, &[64, 64]), lie(DType::U8, &[4095])];
    for lie in &lies {
        let refused = client.acquire(lie, &AcquireOptions::new()).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::LayoutMismatch), "{lie}");
        assert!(refused.to_string().contains(&lie.to_string()));
    }
    let targets = [Target::from(&lies[0]), Target::from(truth), Target::from("a")];
    let all = client.acquire_many(&targets, &AcquireOptions::new());
    assert_eq!(all.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, true]);
    drop(all);
    let acquired = lies.len() + targets.len();
    until("every lease is released", || given_back(&twin).len() == acquired);
}

#[test]
fn a_strided_view_is_packed_row_major() {
    let (_twin, client) = start();
    let bytes = bytes_of(3, 8);
    let _stored = client.put(&descriptor(&[2, 4]), &bytes, &PutOptions::named("m")).unwrap();
    let columns = Selection::Ranges(vec![Range::FULL, Range::FULL.step_by(2)]);
    let options = AcquireOptions::new().selection(columns);
    let fetched = client.get("m", &options).unwrap();
    assert_eq!(fetched.bytes, [bytes[0], bytes[2], bytes[4], bytes[6]]);
    assert!(fetched.descriptor.layout.is_contiguous());
    let mut short = [0; 3];
    assert!(matches!(client.get_into("m", &options, &mut short), Err(Error::InvalidArgument(_))));
}

#[test]
fn a_tensor_without_bytes_has_no_segment() {
    let (_twin, client) = start();
    let _stored = put(&client, "empty", &[]);
    let tensor = acquire(&client, "empty");
    assert!(tensor.view().is_none() && tensor.to_vec().is_empty());
    let stored = client.reserve(&descriptor(&[0])).unwrap().seal(&PutOptions::new()).unwrap();
    assert!(acquire(&client, stored.reference()).is_empty());
}

#[test]
fn a_batch_has_a_result_for_each_item() {
    let (twin, client) = start();
    let shape = descriptor(&[100]);
    let all: Vec<Vec<u8>> = (0..1_000).map(|i| bytes_of(i, 100)).collect();
    let mut items: Vec<Item<'_>> =
        all.iter().map(|bytes| Item { descriptor: &shape, bytes, options: PutOptions::new() }).collect();
    items[7].bytes = &[1, 2, 3];
    let stored = client.put_many(&items);
    assert_eq!(twin.count(SessionKind::Put), 1);
    assert!(matches!(stored[7], Err(Error::InvalidArgument(_))));
    let mut targets: Vec<Target> = stored.iter().flatten().map(|stored| stored.reference().into()).collect();
    targets.push("nowhere".into());
    let tensors = client.acquire_many(&targets, &AcquireOptions::new());
    assert_eq!(tensors.len(), 1_000);
    assert_eq!(tensors[999].as_ref().unwrap_err().reason(), Some(Reason::NotFound));
    assert_eq!(tensors[500].as_ref().unwrap().to_vec(), all[501]);
}

#[test]
fn a_refusal_keeps_its_reason() {
    let (_twin, client) = start();
    let _first = put(&client, "n", &[1]);
    let second = client.put(&descriptor(&[1]), &[2], &PutOptions::named("n"));
    assert_eq!(second.unwrap_err().reason(), Some(Reason::NameTaken));
    assert_eq!(client.peers().unwrap_err().reason(), Some(Reason::Draining));
}

#[test]
fn replies_out_of_order_find_their_callers() {
    let (twin, client) = start();
    let stored: Vec<Stored> = (0..16).map(|i| put(&client, &format!("t{i}"), &bytes_of(i, 64))).collect();
    twin.state.lock().holding = true;
    thread::scope(|scope| {
        for i in 0..stored.len() {
            let client = &client;
            scope.spawn(move || assert_eq!(acquire(client, &*format!("t{i}")).to_vec(), bytes_of(i, 64)));
        }
        until("all calls are held", || twin.held() == stored.len());
        twin.let_go_in_reverse();
    });
}

#[test]
fn many_threads_share_a_connection_without_mixing_replies() {
    let (_twin, client) = start();
    let _stored: Vec<Stored> =
        (0..8).map(|i| put(&client, &format!("t{i}"), &bytes_of(i, 32 << i))).collect();
    thread::scope(|scope| {
        for i in 0..8 {
            let client = &client;
            scope.spawn(move || {
                for _ in 0..300 {
                    assert_eq!(acquire(client, &*format!("t{i}")).to_vec(), bytes_of(i, 32 << i));
                }
            });
        }
    });
}

#[test]
fn large_requests_and_large_replies_do_not_wait_for_each_other() {
    let (twin, client) = start();
    twin.state.lock().padding = 3 << 20;
    let names: Vec<String> = (0..20_000).map(|i| format!("{i:0100}")).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(client.status().unwrap().version.len(), 3 << 20)));
            // Two megabytes up, refused by the twin.
            scope.spawn(|| (0..5).for_each(|_| assert!(client.unname(&names).is_err())));
        }
    });
}

#[test]
fn dropped_tensors_are_released_in_few_frames_and_before_the_next_request() {
    let (twin, client) = start();
    let stored = put(&client, "t", &[1, 2, 3]);
    let targets = vec![Target::from(stored.reference()); 1_000];
    drop(client.acquire_many(&targets, &AcquireOptions::new()));
    client.status().unwrap();
    assert_eq!(given_back(&twin).len(), 1_000);
    // The service thread may have taken some along at every 200 microseconds.
    assert!(twin.count(SessionKind::Release) < 100, "{} frames", twin.count(SessionKind::Release));
}

#[test]
fn what_is_dropped_while_nobody_calls_is_released_all_the_same() {
    let (twin, client) = start();
    let stored = put(&client, "t", &[1, 2, 3]);
    let id = stored.reference().id();
    for round in 1..=3 {
        drop(acquire(&client, "t"));
        until("the lease is released", || given_back(&twin) == vec![id; round]);
    }
}

#[test]
fn a_dropped_reservation_is_given_up() {
    let (twin, client) = start();
    let reservation: Reservation = client.reserve(&descriptor(&[100_000])).unwrap();
    let id = reservation.id();
    drop(reservation);
    until("it is aborted", || twin.state.lock().aborted == [id]);
    client.status().unwrap();
}

#[test]
fn a_reservation_is_read_from_a_file_and_given_up_where_the_file_ends_before() {
    let (twin, client) = start();
    let bytes = bytes_of(2, 100_000);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let mut reservation = client.reserve(&descriptor(&[90_000])).unwrap();
    reservation.read_from(50_000, 40_000, &file, 60_000).unwrap();
    reservation.read_from(0, 50_000, &file, 10_000).unwrap();
    let stored = reservation.seal(&PutOptions::named("t")).unwrap();
    assert!(acquire(&client, stored.reference()).to_vec() == bytes[10_000..]);

    let mut cut = client.reserve(&descriptor(&[90_000])).unwrap();
    let id = cut.id();
    let mut refused = |len, at| cut.read_from(0, len, &file, at).unwrap_err().kind();
    assert_eq!(refused(90_000, 20_000), ErrorKind::UnexpectedEof);
    assert_eq!(refused(90_001, 0), ErrorKind::InvalidInput);
    drop(cut);
    until("it is aborted", || twin.state.lock().aborted == [id]);

    let mut empty = client.reserve(&descriptor(&[0])).unwrap();
    empty.read_from(0, 0, &file, 0).unwrap();
    assert_eq!(empty.read_from(0, 1, &file, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_large_put_that_is_repeated_gets_the_first_answer_and_leaves_no_reservation() {
    let (twin, client) = start();
    let bytes = bytes_of(5, 100_000);
    let options = PutOptions { retry_id: Some(RetryId([9; 16])), ..PutOptions::named("once") };
    let first = client.put(&descriptor(&[100_000]), &bytes, &options).unwrap();
    let again = client.put(&descriptor(&[100_000]), &bytes, &options).unwrap();
    assert_eq!(first.reference(), again.reference());
    let second = first.reference().id() + 1;
    until("the second reservation is aborted", || twin.state.lock().aborted == [second]);
}

#[test]
fn a_guard_from_before_a_fork_says_that_a_child_may_still_map() {
    let (twin, client) = start();
    let stored = put(&client, "t", &[1, 2, 3]);
    let tensor = acquire(&client, "t");
    // A user id makes the standard library fork instead of spawning.
    Command::new("true").uid(rustix::process::getuid().as_raw()).status().unwrap();
    drop(tensor);
    client.flush().unwrap();
    client.status().unwrap();
    assert_eq!(twin.state.lock().still_mapped, [stored.reference().id()]);
}

#[test]
fn a_forked_child_gives_nothing_back() {
    let (twin, _client) = start();
    let path = twin.directory().join("session.sock");
    let connection = Connection::open(&path, "child", Instant::now(), || WELCOME_MAX, &|| Ok(())).unwrap();
    connection.release(5, &Origin::parent());
    connection.abort(6, &Origin::parent());
    assert!(connection.releases().is_empty());
}

#[test]
fn a_retired_segment_is_unmapped_when_no_tensor_lies_in_it() {
    let (twin, client) = start();
    let _stored = put(&client, "t", &[1, 2, 3]);
    let tensor = acquire(&client, "t");
    twin.retire(SIDECAR_SEGMENT);
    // The event was read when the second retirement, which changes nothing, has no effect either.
    drop(acquire(&client, "t"));
    assert!(!twin.is_unmapped(SIDECAR_SEGMENT));
    assert_eq!(tensor.to_vec(), [1, 2, 3]);
    drop(tensor);
    until("the witness has ended", || twin.is_unmapped(SIDECAR_SEGMENT));
}

#[test]
fn a_segment_that_holds_nothing_is_unmapped_as_soon_as_it_is_retired() {
    let (twin, client) = start();
    let _stored = put(&client, "t", &[1, 2, 3]);
    drop(acquire(&client, "t"));
    assert!(!twin.is_unmapped(SIDECAR_SEGMENT));
    twin.retire(SIDECAR_SEGMENT);
    until("the witness has ended", || twin.is_unmapped(SIDECAR_SEGMENT));
}

#[test]
fn a_clone_of_a_view_keeps_the_witness_open() {
    let (twin, client) = start();
    let _stored = put(&client, "t", &[1, 2, 3]);
    let tensor = acquire(&client, "t");
    let view = tensor.view().unwrap().clone();
    drop(tensor);
    twin.retire(SIDECAR_SEGMENT);
    client.status().unwrap();
    assert!(!twin.is_unmapped(SIDECAR_SEGMENT));
    assert_eq!(view.to_vec(), [1, 2, 3]);
    drop(view);
    until("the witness has ended", || twin.is_unmapped(SIDECAR_SEGMENT));
}

#[test]
fn a_view_that_outlives_its_session_ends_the_witness_when_it_is_dropped() {
    let (twin, client) = start();
    let stored = put(&client, "t", &[1, 2, 3]);
    let view = acquire(&client, "t").view().unwrap().clone();
    drop((stored, client));
    assert!(!twin.is_unmapped(SIDECAR_SEGMENT));
    assert_eq!(view.to_vec(), [1, 2, 3]);
    drop(view);
    until("the witness has ended", || twin.is_unmapped(SIDECAR_SEGMENT));
}

/// The pages from before are let go of, and those from now are mapped.
fn has_exchanged(twin: &FakeSidecar) -> bool {
    twin.ended(SIDECAR_SEGMENT) == [true, false]
}

#[test]
fn other_pages_take_the_place_of_those_that_are_mapped_though_nobody_waits_for_a_reply() {
    let (twin, client) = start();
    let bytes = bytes_of(3, 5_000);
    let _stored = put(&client, "t", &bytes);
    let tensor = acquire(&client, "t");
    let (view, at) = (tensor.view().unwrap().clone(), tensor.view().unwrap().as_ptr());
    twin.exchange(SIDECAR_SEGMENT, true);
    until("the pages are exchanged", || has_exchanged(&twin));
    assert_eq!((tensor.to_vec(), view.to_vec(), view.as_ptr()), (bytes.clone(), bytes.clone(), at));
    let again = acquire(&client, "t");
    assert_eq!((again.view().unwrap().as_ptr(), again.to_vec()), (at, bytes));
    assert_eq!(twin.ended(SIDECAR_SEGMENT), [true, false], "one map, with one witness");
    drop((tensor, view, again));
    twin.retire(SIDECAR_SEGMENT);
    until("it is unmapped", || twin.is_unmapped(SIDECAR_SEGMENT));
}

#[test]
fn a_private_map_shows_the_tensor_and_keeps_its_own_witness_when_pages_are_exchanged() {
    let (twin, client) = start();
    let bytes = bytes_of(5, 5_000);
    let _stored = put(&client, "t", &bytes);
    let tensor = acquire(&client, "t");
    let own = tensor.own().unwrap().expect("it has bytes");
    let shown = || {
        let mut shown = vec![0; own.map().len()];
        own.map().copy_range_to(0, &mut shown).unwrap();
        shown
    };
    assert_eq!(shown(), bytes);
    twin.exchange(SIDECAR_SEGMENT, true);
    until("the new pages are mapped", || twin.ended(SIDECAR_SEGMENT).len() == 2);
    client.status().unwrap();
    assert_eq!((shown(), tensor.to_vec()), (bytes.clone(), bytes));
    assert_eq!(twin.ended(SIDECAR_SEGMENT), [false, false], "the pages from before are mapped still");
    drop(own);
    until("nobody maps the pages from before", || has_exchanged(&twin));
}

#[test]
fn a_tensor_without_bytes_has_no_private_map() {
    let (_twin, client) = start();
    let _stored = put(&client, "t", &[]);
    assert!(acquire(&client, "t").own().unwrap().is_none());
}

#[test]
fn pages_are_exchanged_by_whoever_reads_the_socket_and_under_tensors_of_a_retired_segment_too() {
    let (twin, client) = start();
    let _stored = put(&client, "t", &[1, 2, 3]);
    let tensor = acquire(&client, "t");
    twin.retire(SIDECAR_SEGMENT);
    twin.exchange(SIDECAR_SEGMENT, false);
    client.status().unwrap();
    until("it is exchanged", || has_exchanged(&twin));
    assert_eq!(tensor.to_vec(), [1, 2, 3]);
    drop(tensor);
    until("it is unmapped", || twin.is_unmapped(SIDECAR_SEGMENT));
}

#[test]
fn a_segment_that_is_announced_again_and_is_not_mapped_any_more_is_not_mapped() {
    let (twin, client) = start();
    let _stored = put(&client, "t", &[1, 2, 3]);
    drop(acquire(&client, "t"));
    twin.retire(SIDECAR_SEGMENT);
    until("it is unmapped", || twin.is_unmapped(SIDECAR_SEGMENT));
    twin.exchange(SIDECAR_SEGMENT, true);
    client.status().unwrap();
    until("its second witness has ended, too", || twin.ended(SIDECAR_SEGMENT) == [true, true]);
}

#[test]
fn a_client_that_is_dropped_unmaps_everything() {
    let (twin, client) = start();
    let stored = put(&client, "t", &bytes_of(1, 100_000));
    drop(acquire(&client, stored.reference()));
    drop(stored);
    drop(client);
    until("the witness has ended", || twin.is_unmapped(100));
}

#[test]
fn tensors_outlive_the_sidecar_and_the_next_call_reconnects() {
    let (twin, client) = start();
    let _stored = put(&client, "t", &[1, 2, 3]);
    let tensor = acquire(&client, "t");
    twin.die();
    until("the loss is noticed", || !tensor.lease().is_live());
    assert_eq!(tensor.to_vec(), [1, 2, 3]);
    assert!(matches!(client.status(), Err(Error::SessionLost { .. })), "the loss is told");
    let hasty = client.with_deadline(Duration::from_millis(20));
    assert!(matches!(hasty.status(), Err(Error::SidecarUnreachable { .. })));
    twin.rise();
    let incarnation = client.incarnation().unwrap();
    client.status().unwrap();
    assert_ne!(client.incarnation().unwrap(), incarnation);
    drop(tensor);
    client.flush().unwrap();
    client.status().unwrap();
    assert!(
        twin.state.lock().released.is_empty(),
        "a lease of the dead incarnation was released at the new one"
    );
    until("the old map is gone", || twin.is_unmapped(SIDECAR_SEGMENT));
}

#[test]
fn calls_under_way_fail_at_once_when_the_sidecar_dies() {
    let (twin, client) = start();
    twin.state.lock().holding = true;
    thread::scope(|scope| {
        let calls: Vec<_> = (0..4).map(|_| scope.spawn(|| client.status())).collect();
        until("all calls are held", || twin.held() == 4);
        twin.die();
        for call in calls {
            assert!(matches!(call.join().unwrap(), Err(Error::SessionLost { .. })));
        }
    });
}

#[test]
fn a_call_waits_for_a_sidecar_that_comes_back() {
    let (twin, client) = start();
    twin.die();
    thread::scope(|scope| {
        let call = scope.spawn(|| {
            // The first meets the dead session.
            client.status().or_else(|_| client.status())
        });
        twin.rise();
        call.join().unwrap().unwrap();
    });
}

#[test]
fn nobody_at_the_socket_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let error = Client::connect(directory.path()).unwrap_err();
    assert!(error.to_string().contains("session.sock"), "{error}");
}

#[test]
fn a_call_beyond_its_deadline_is_withdrawn_and_its_late_reply_given_back() {
    let (twin, client) = start();
    let stored = put(&client, "t", &[1, 2, 3]);
    twin.state.lock().holding = true;
    let options = AcquireOptions::new().deadline(Duration::from_millis(1));
    let error = client.acquire("t", &options).unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded { .. }), "{error}");
    until("the call is withdrawn", || twin.state.lock().cancelled.len() == 1);
    twin.let_go_in_reverse();
    until("the late lease is released", || twin.state.lock().released == [stored.reference().id()]);
}

/// A batch of three requests, all of which the twin holds.
fn held_batch(twin: &FakeSidecar, client: &Client) -> (Vec<Stored>, Vec<Target>) {
    let stored: Vec<Stored> = (0..3).map(|i| put(client, &format!("t{i}"), &bytes_of(i, 64))).collect();
    let targets = (0..300).map(|i| Target::from(stored[i / 128].reference())).collect();
    twin.state.lock().holding = true;
    (stored, targets)
}

#[test]
fn a_large_batch_goes_in_requests_that_are_under_way_together_and_keeps_its_order() {
    let (twin, client) = start();
    let (_stored, targets) = held_batch(&twin, &client);
    thread::scope(|scope| {
        let tensors = scope.spawn(|| client.acquire_many(&targets, &AcquireOptions::new()));
        until("all requests are held", || twin.held() == 3);
        twin.let_go_in_reverse();
        let tensors = tensors.join().unwrap();
        assert_eq!(tensors.len(), targets.len());
        for (i, tensor) in tensors.into_iter().enumerate() {
            assert_eq!(tensor.unwrap().to_vec(), bytes_of(i / 128, 64), "{i}");
        }
    });
}

#[test]
fn a_large_batch_is_withdrawn_whole_and_at_once_and_what_it_brings_is_given_back() {
    let (twin, client) = start();
    let (_stored, targets) = held_batch(&twin, &client);
    let cancel = Cancel::new();
    let cancelling = client.with_cancel(cancel.clone());
    thread::scope(|scope| {
        let tensors = scope.spawn(|| cancelling.acquire_many(&targets, &AcquireOptions::new()));
        until("all requests are held", || twin.held() == 3);
        cancel.cancel();
        let tensors = tensors.join().unwrap();
        assert_eq!(tensors.len(), targets.len());
        assert!(tensors.iter().all(|tensor| matches!(tensor, Err(Error::Withdrawn))));
    });
    until("every request is withdrawn", || twin.state.lock().cancelled.len() == 3);
    twin.let_go_in_reverse();
    until("the late leases are released", || given_back(&twin).len() == targets.len());
}

#[test]
fn a_sidecar_that_does_not_answer_is_waited_for_once_however_many_requests_a_batch_has() {
    // Long enough for all of them to be sent on a busy machine.
    const DEADLINE: Duration = Duration::from_secs(3);
    let (twin, client) = start();
    let stored = put(&client, "t", &[1, 2, 3]);
    twin.state.lock().holding = true;
    let began = Instant::now();
    let targets = vec![Target::from(stored.reference()); 1_000];
    let tensors = client.acquire_many(&targets, &AcquireOptions::new().deadline(DEADLINE));
    assert!(tensors.iter().all(|tensor| matches!(tensor, Err(Error::DeadlineExceeded { .. }))));
    // For each of them it would be eight times that, and more.
    assert!(began.elapsed() < 7 * (DEADLINE + GRACE), "{:?}", began.elapsed());
    until("every request is withdrawn", || twin.state.lock().cancelled.len() == 8);
    twin.let_go_in_reverse();
    until("the late leases are released", || given_back(&twin).len() == targets.len());
}

#[test]
fn a_session_that_is_lost_in_the_middle_of_a_batch_is_one_error_for_all_that_had_no_answer() {
    let (twin, client) = start();
    let stored = put(&client, "t", &[1, 2, 3]);
    twin.state.lock().holding = true;
    // More than are under way at a time: some are to be asked for when the session is lost already.
    let targets = vec![Target::from(stored.reference()); 5_000];
    let tensors = thread::scope(|scope| {
        let tensors = scope.spawn(|| client.acquire_many(&targets, &AcquireOptions::new()));
        until("as many as may be are held", || twin.held() == 8);
        twin.die();
        tensors.join().unwrap()
    });
    let told: BTreeSet<String> = tensors.into_iter().map(|tensor| tensor.unwrap_err().to_string()).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told.iter().all(|told| told.contains("call again to reconnect")), "{told:?}");
    twin.rise();
    twin.state.lock().holding = false;
    client.status().unwrap();
}

#[test]
fn a_call_returns_half_a_second_after_its_deadline_though_no_answer_comes() {
    let (twin, client) = start();
    twin.state.lock().holding = true;
    let deadline = Duration::from_millis(1_000);
    let took = [(); 3].map(|()| {
        let began = Instant::now();
        assert!(matches!(client.with_deadline(deadline).status(), Err(Error::DeadlineExceeded { .. })));
        began.elapsed()
    });
    // Never before; and on a busy machine one or another may be later.
    assert!(took.iter().all(|took| *took >= deadline + GRACE), "{took:?}");
    assert!(took.iter().any(|took| *took < deadline + 4 * GRACE), "{took:?}");
}

#[test]
fn an_answer_that_came_while_this_process_stood_still_is_read_however_late_it_is() {
    let twin = Arc::new(FakeSidecar::start());
    let (answering, looks) = (Arc::clone(&twin), Mutex::new(0));
    // As a process that is stopped in the middle of a call: it goes on long after the deadline, and the answer is there.
    let stall = move || {
        if !answering.state.lock().holding {
            return false;
        }
        let mut looks = looks.lock();
        *looks += 1;
        // The first look is before the request leaves.
        if *looks == 2 {
            until("the call is held", || answering.held() == 1);
            let over = Instant::now() + 2 * GRACE;
            until("the deadline is long over", || Instant::now() >= over);
            answering.let_go_in_reverse();
        }
        false
    };
    let client = ClientOptions::at(twin.directory()).interrupt(stall).connect().unwrap();
    twin.state.lock().holding = true;
    client.with_deadline(Duration::from_millis(100)).status().unwrap();
}

#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_future_withdraws_its_call() {
    let (twin, client) = start();
    let client = crate::AsyncClient::from(client);
    let stored = client.put(descriptor(&[3]), [1, 2, 3], PutOptions::named("t")).await.unwrap();
    let tensor = client.acquire("t", AcquireOptions::new()).await.unwrap();
    assert_eq!(tensor.to_vec(), [1, 2, 3]);
    twin.state.lock().holding = true;
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.acquire("t", AcquireOptions::new()).await }
    });
    until("the call is held", || twin.held() == 1);
    call.abort();
    until("the call is withdrawn", || twin.state.lock().cancelled.len() == 1);
    twin.let_go_in_reverse();
    until("the late lease is released", || twin.state.lock().released == [stored.reference().id()]);
}

#[cfg(feature = "tokio")]
#[tokio::test(flavor = "multi_thread")]
async fn what_a_future_that_ended_has_made_goes_on() {
    let (twin, client) = start();
    let client = crate::AsyncClient::from(client);
    let mut reservation = client.reserve(descriptor(&[3])).await.unwrap();
    reservation.copy_from(0, &[1, 2, 3]).unwrap();
    let _stored = client.seal(reservation, PutOptions::named("t")).await.unwrap();
    assert_eq!(client.acquire("t", AcquireOptions::new()).await.unwrap().to_vec(), [1, 2, 3]);
    // By itself, too.
    let reservation = client.run(|client| client.reserve(&descriptor(&[0]))).await.unwrap();
    let _other = reservation.seal(&PutOptions::named("u")).unwrap();
    // A seal whose future is dropped is withdrawn.
    let reservation = client.reserve(descriptor(&[3])).await.unwrap();
    twin.state.lock().holding = true;
    let seal = tokio::spawn({
        let client = client.clone();
        async move { client.seal(reservation, PutOptions::named("v")).await }
    });
    until("the seal is held", || twin.held() == 1);
    seal.abort();
    until("the seal is withdrawn", || twin.state.lock().cancelled.len() == 1);
}

#[test]
fn patience_and_deadlines_beyond_the_clock_are_no_fault() {
    let twin = FakeSidecar::start();
    let client = Client::options(twin.directory()).patience(Duration::MAX).deadline(Duration::MAX);
    let client = client.connect().unwrap();
    let _stored = put(&client, "a", &[1]);
    let refused = client.get_set("a", &AcquireOptions::new()).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::NotASet), "{refused}");
    let refused = client.publish_set("policy", &Default::default(), &Default::default()).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::Unsupported), "{refused}");
}
