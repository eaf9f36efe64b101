//! Pipes inside a pod: descriptor, allocation, read; order, ends, and the death of either end.

use std::thread;
use std::time::{Duration, Instant};

use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{
    Allocation, ConnectOptions, Delivered, Descriptor, Incoming, Listener, Message, Pipe, Place, Tensor,
    UNREAD_MAX,
};
use tensorlane_client::{AcquireOptions, Client, PutOptions};
use tensorlane_proto::{DType, Reason};
use tensorlane_tests::other::role;
use tensorlane_tests::pipes::{LONG, go_on, is_end, next, nothing, other_end, text, undelivered};
use tensorlane_tests::sidecar::session;
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::{Sidecar, SidecarOptions, failure_in_time, reason, until};

/// A wait that ends in a test.
const SHORT: Timeout = Timeout::After(Duration::from_millis(50));

/// A pipe from one client to another.
fn pipe(from: &Client, to: &Client) -> (Pipe, Pipe, Listener) {
    let listener = to.listen("inbox").unwrap();
    let near = from.connect_pipe("inbox", &ConnectOptions::new()).unwrap();
    let far = listener.accept(LONG).unwrap();
    (near, far, listener)
}

fn sealed(client: &Client) -> u64 {
    client.status().unwrap().arena.unwrap().sealed
}

/// Waits until the sidecar has heard all that this session has said before.
fn heard(client: &Client) {
    client.status().unwrap();
}

/// The other process of the tests that kill it, which start it with a sidecar to talk to.
#[test]
fn another_process_has_an_end() {
    let Some((sockets, role)) = role() else { return };
    let client = session(sockets).unwrap();
    let pipe = client.connect_pipe("inbox", &ConnectOptions::new()).unwrap();
    go_on(&pipe, role == "writer");
}

#[test]
fn a_message_is_read_by_descriptor_allocation_and_read() {
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let (near, far, listener) = pipe(&from, &to);
    let (floats, bytes) = (dense(DType::F32, &[3, 5]), dense(DType::U8, &[1 << 20]));
    let (a, b, c) = (pattern(1, 60), pattern(2, 1 << 20), pattern(3, 1 << 20));
    let mut reservation = from.reserve(&bytes).unwrap();
    reservation.copy_from(0, &c).unwrap();
    let message = text("step 7")
        .payload("small")
        .payload(pattern(4, 200_000))
        .payload("")
        .tensor(floats.clone(), a.clone())
        .about("goes to the batch")
        .tensor(bytes.clone(), b.clone())
        .reservation(reservation);
    thread::scope(|scope| {
        let written = scope.spawn(|| near.write(message, LONG));
        let descriptor = next(&far);
        assert_eq!((descriptor.sequence(), descriptor.metadata()), (1, &b"step 7"[..]));
        assert_eq!(descriptor.payloads().collect::<Vec<_>>(), [5, 200_000, 0]);
        let tensors: Vec<_> = descriptor.tensors().map(|(d, about)| (d.clone(), about.to_vec())).collect();
        let about = b"goes to the batch".to_vec();
        assert_eq!(tensors, [(floats, about), (bytes.clone(), Vec::new()), (bytes, Vec::new())]);
        assert!(!written.is_finished(), "a write is not done before its message is read");
        let (mut own, mut third) = (vec![0; 60], vec![0; 1 << 20]);
        let places = vec![Place::Bytes(&mut own), Place::Map, Place::Bytes(&mut third)];
        let received = far.read(descriptor, Allocation::new(places)).unwrap();
        let payloads: Vec<_> =
            received.payloads.iter().map(tensorlane_client::pipe::Payload::to_vec).collect();
        assert_eq!(payloads, [b"small".to_vec(), pattern(4, 200_000), Vec::new()]);
        let Tensor::Mapped(mapped) = &received.tensors[1] else { panic!("the second tensor is mapped") };
        assert_eq!((own, mapped.to_vec(), third), (a, b, c));
        let back = written.join().unwrap().unwrap();
        assert_eq!(back.parts(), (3, 3), "the message comes back");
    });
    drop((near, far, listener, from, to));
    sidecar.assert_all_free();
}

#[test]
fn messages_are_read_in_the_order_of_writes_both_ways_and_before_the_accept() {
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let listener = to.listen("inbox").unwrap();
    let near = from.connect_pipe("inbox", &ConnectOptions::new()).unwrap();
    let early: Vec<_> = (0..10).map(|n| near.begin(text(&format!("{n}")), LONG).unwrap()).collect();
    let far = listener.accept(LONG).unwrap();
    let back = far.begin(text("back"), LONG).unwrap();
    // Several descriptors are had before the first is read.
    let descriptors: Vec<_> = (0..10).map(|_| next(&far)).collect();
    for (n, descriptor) in descriptors.into_iter().enumerate() {
        assert_eq!(descriptor.metadata(), format!("{n}").as_bytes());
        far.read(descriptor, Allocation::map()).unwrap();
    }
    early.into_iter().for_each(|writing| drop(writing.wait().unwrap()));
    let descriptor = next(&near);
    assert_eq!(descriptor.metadata(), b"back");
    near.read(descriptor, Allocation::map()).unwrap();
    back.wait().unwrap();
}

#[test]
fn a_stored_tensor_and_one_that_was_got_are_forwarded_without_a_copy() {
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let (near, far, _listener) = pipe(&from, &to);
    let (descriptor, bytes) = (dense(DType::U8, &[4 << 20]), pattern(1, 4 << 20));
    let stored = from.put(&descriptor, &bytes, &PutOptions::new()).unwrap();
    let reference = stored.reference().clone();
    let got = from.acquire(&reference, &AcquireOptions::new()).unwrap();
    let before = sealed(&to);
    let message = Message::new().stored(descriptor, stored).forwarded(reference, got);
    let writing = near.begin(message, LONG).unwrap();
    let received = far.read(next(&far), Allocation::map()).unwrap();
    assert_eq!(sealed(&to), before, "nothing was copied");
    drop(writing.wait().unwrap());
    // The reader's own lease keeps it.
    for tensor in &received.tensors {
        let Tensor::Mapped(tensor) = tensor else { panic!("it is mapped") };
        assert_eq!(tensor.to_vec(), bytes);
    }
}

#[test]
fn a_write_that_nobody_reads_names_who_does_not_and_the_message_comes_back() {
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let (near, far, _listener) = pipe(&from, &to);
    let failed = undelivered(&near, text("unseen"), SHORT);
    assert_eq!(failed.error.reason(), Some(Reason::DeadlineExceeded));
    assert!(failed.error.to_string().contains(&far_client(&near)), "{}", failed.error);
    assert_eq!(nothing(&far, SHORT).reason(), Some(Reason::DeadlineExceeded), "it was taken back");
    // One that was over before it could be shown is written again.
    let (descriptor, failed) = loop {
        let writing = near.begin(text("shown"), Timeout::After(Duration::from_millis(300))).unwrap();
        let shown = waits(&far);
        let failed = writing.wait().unwrap_err();
        if let Some(descriptor) = shown {
            break (descriptor, failed);
        }
    };
    assert_eq!(failed.delivered, Delivered::Unknown);
    drop(descriptor);
    // What was withdrawn by its writer is not there, either.
    drop(near.begin(text("withdrawn"), LONG).unwrap());
    heard(&from);
    let writing = near.begin(failed.message, LONG).unwrap();
    assert_eq!(next(&far).metadata(), b"shown");
    drop(writing);
}

fn far_client(pipe: &Pipe) -> String {
    pipe.remote().client.clone()
}

#[test]
fn unread_messages_have_a_bound() {
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let (near, far, _listener) = pipe(&from, &to);
    let all: Vec<_> = (0..UNREAD_MAX).map(|_| near.begin(text("unread"), LONG).unwrap()).collect();
    let failed = near.begin(text("too many"), LONG).unwrap().wait().unwrap_err();
    assert_eq!((failed.delivered, failed.error.reason()), (Delivered::No, Some(Reason::LimitExceeded)));
    let failed = undelivered(&near, text("nobody makes room"), SHORT);
    assert_eq!(failed.error.reason(), Some(Reason::LimitExceeded));
    far.read(next(&far), Allocation::map()).unwrap();
    let one_more = near.begin(text("fits"), LONG).unwrap();
    drop((all, one_more));
    heard(&from);
    assert_eq!(nothing(&far, SHORT).reason(), Some(Reason::DeadlineExceeded));
}

#[test]
fn a_write_beyond_the_bound_waits_until_others_are_read() {
    const WRITERS: usize = 2 * UNREAD_MAX;
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let (near, far, _listener) = pipe(&from, &to);
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| near.write(text("one of many"), LONG).unwrap());
        }
        until("all room is taken", || {
            let descriptors: Vec<_> = (0..UNREAD_MAX).map_while(|_| waits(&far)).collect();
            descriptors.len() == UNREAD_MAX
        });
        for _ in 0..WRITERS {
            far.read(next(&far), Allocation::map()).unwrap();
        }
    });
    assert_eq!(nothing(&far, SHORT).reason(), Some(Reason::DeadlineExceeded));
}

/// The next descriptor, if there is one now.
fn waits(pipe: &Pipe) -> Option<Descriptor> {
    match pipe.read_descriptor(SHORT) {
        Ok(Incoming::Message(descriptor)) => Some(descriptor),
        _ => None,
    }
}

#[test]
fn bytes_that_are_unread_have_a_bound_of_their_own() {
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let (near, far, _listener) = pipe(&from, &to);
    let large = || {
        let small = |message: Message, _| message.tensor(dense(DType::U8, &[1]), [0]).about(vec![7; 4 << 10]);
        (0..100).fold(Message::new(), small)
    };
    let mut writings = Vec::new();
    let failed = loop {
        writings.push(near.begin(large(), LONG).unwrap());
        assert!(writings.len() < 25, "they have some 400 KiB each");
        if writings.len() > 15 {
            // Those that fit wait, the one that does not comes back.
            let last = match near.begin(large(), SHORT) {
                Ok(last) => last.wait().unwrap_err(),
                Err(failed) => failed,
            };
            if last.error.reason() == Some(Reason::LimitExceeded) {
                break last;
            }
        }
    };
    assert_eq!(failed.delivered, Delivered::No);
    assert!(failed.error.to_string().contains("bytes"), "{}", failed.error);
    drop(writings);
    heard(&from);
    let writing = near.begin(failed.message, LONG).unwrap();
    far.read(next(&far), Allocation::map()).unwrap();
    drop(writing.wait().unwrap());
}

#[test]
fn a_write_waits_for_room_no_longer_than_it_was_told_and_the_message_may_be_written_again() {
    const HELD: usize = 40 << 20;
    const HOUR: Duration = Duration::from_secs(3600);
    let sidecar = Sidecar::with(SidecarOptions::default().set("arena.size", "64Mi"));
    let (from, to) = (sidecar.client().with_deadline(HOUR), sidecar.client());
    let (near, far, _listener) = pipe(&from, &to);
    let kept = from.put(&dense(DType::U8, &[HELD as u64]), &pattern(1, HELD), &PutOptions::new()).unwrap();
    let begun = Instant::now();
    let failed = undelivered(&near, text("late").payload(vec![7; 30 << 20]), SHORT);
    assert_eq!(failed.error.reason(), Some(Reason::ArenaFull));
    assert!(begun.elapsed() < HOUR / 2, "its deadline is not that of the client");
    drop(kept);
    let writing = near.begin(failed.message, LONG).unwrap();
    assert_eq!(far.read(next(&far), Allocation::map()).unwrap().payloads.len(), 1);
    drop(writing.wait().unwrap());
}

#[test]
fn an_allocation_that_does_not_fit_reads_nothing_and_the_descriptor_may_be_read_again() {
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let (near, far, _listener) = pipe(&from, &to);
    let message = Message::new().tensor(dense(DType::U8, &[100]), pattern(1, 100));
    let writing = near.begin(message, LONG).unwrap();
    let mut bytes = [7; 101];
    for places in [vec![], vec![Place::Map, Place::Map], vec![Place::Bytes(&mut bytes)]] {
        let failed = far.read(next(&far), Allocation::new(places)).unwrap_err();
        assert_eq!(failed.error.reason(), Some(Reason::LayoutMismatch));
    }
    assert_eq!(bytes, [7; 101]);
    let received = far.read(next(&far), Allocation::new(vec![Place::Bytes(&mut bytes[..100])])).unwrap();
    assert!(matches!(received.tensors[..], [Tensor::Copied]));
    assert_eq!(bytes[..100], pattern(1, 100));
    writing.wait().unwrap();
    let wrong = Message::new().tensor(dense(DType::U8, &[100]), pattern(1, 99));
    let failed = near.write(wrong, LONG).unwrap_err();
    assert_eq!((failed.delivered, failed.error.reason()), (Delivered::No, Some(Reason::LayoutMismatch)));
    let failed = near.write(Message::new().metadata(vec![0; (64 << 10) + 1]), LONG).unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::TooLarge));
}

#[test]
fn finish_is_an_end_and_a_close_is_an_error() {
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let (near, far, listener) = pipe(&from, &to);
    let last = near.begin(text("last"), LONG).unwrap();
    near.finish().unwrap();
    far.read(next(&far), Allocation::map()).unwrap();
    last.wait().unwrap();
    assert!(is_end(&far) && is_end(&far), "an end stays one");
    let failed = near.write(text("late"), LONG).unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::PipeClosed));
    // The other way is open yet.
    let back = far.begin(text("back"), LONG).unwrap();
    near.read(next(&near), Allocation::map()).unwrap();
    back.wait().unwrap();
    near.close();
    assert!(is_end(&far));
    let failed = far.write(text("nobody"), LONG).unwrap_err();
    assert_eq!((failed.delivered, failed.error.reason()), (Delivered::No, Some(Reason::PipeClosed)));
    let near = from.connect_pipe("inbox", &ConnectOptions::new()).unwrap();
    let far = listener.accept(LONG).unwrap();
    drop(near);
    assert_eq!(nothing(&far, LONG).reason(), Some(Reason::PipeClosed));
}

#[test]
fn a_connect_waits_for_its_listener_and_an_accept_for_its_connect() {
    let sidecar = Sidecar::start();
    let (from, to) = (sidecar.client(), sidecar.client());
    let absent = from.connect_pipe("inbox", &ConnectOptions::new());
    assert_eq!(reason(absent), Reason::NotFound);
    thread::scope(|scope| {
        let options = ConnectOptions::new().wait(Duration::from_secs(60));
        let from = &from;
        let waiting = scope.spawn(move || from.connect_pipe("inbox", &options).unwrap());
        let listener = to.listen("inbox").unwrap();
        assert_eq!(reason(from.listen("inbox")), Reason::NameTaken);
        let far = listener.accept(LONG).unwrap();
        let near = waiting.join().unwrap();
        assert_eq!(near.remote().peer, to.peer().unwrap().to_string());
        assert_eq!(failure_in_time(|| listener.accept(SHORT)).reason, Reason::DeadlineExceeded);
        drop(listener);
        heard(&to);
        assert_eq!(reason(from.connect_pipe("inbox", &ConnectOptions::new())), Reason::NotFound);
        // What was accepted lives on.
        let writing = near.begin(text("still"), LONG).unwrap();
        far.read(next(&far), Allocation::map()).unwrap();
        writing.wait().unwrap();
    });
}

#[test]
fn a_killed_reader_gives_every_message_back_and_leaves_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let listener = client.listen("inbox").unwrap();
    let mut other = other_end(&sidecar, "reader");
    let pipe = listener.accept(LONG).unwrap();
    let message = text("first").tensor(dense(DType::U8, &[1 << 20]), pattern(1, 1 << 20));
    let first = pipe.begin(message, LONG).unwrap();
    other.says("shown");
    // Behind it, and shown to the read that waits: or not, when it is killed first.
    other.kill();
    let failed = first.wait().unwrap_err();
    assert_eq!((failed.delivered, failed.error.reason()), (Delivered::Unknown, Some(Reason::PipeLost)));
    let failed = pipe.write(failed.message, LONG).unwrap_err();
    assert_eq!((failed.delivered, failed.error.reason()), (Delivered::No, Some(Reason::PipeLost)));
    drop((failed, pipe, listener, client));
    sidecar.assert_all_free();
}

#[test]
fn a_killed_writer_is_an_error_and_no_end_and_leaves_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let listener = client.listen("inbox").unwrap();
    let mut other = other_end(&sidecar, "writer");
    let pipe = listener.accept(LONG).unwrap();
    other.says("written");
    let descriptor = next(&pipe);
    assert_eq!(descriptor.metadata(), b"first");
    other.kill();
    until("its bytes are gone with it", || sealed(&client) == 0);
    let failed = pipe.read(descriptor, Allocation::map()).unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::PipeLost));
    drop(failed);
    assert_eq!(nothing(&pipe, LONG).reason(), Some(Reason::PipeLost));
    drop((pipe, listener, client));
    sidecar.assert_all_free();
}
