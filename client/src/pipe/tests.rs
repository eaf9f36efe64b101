//! Waits of pipes against the twin: whose time counts.

use std::sync::mpsc;
use std::thread;

use tensorlane_proto::{DType, Descriptor as TensorDescriptor, Layout, Shape};

use super::*;
use crate::fake_sidecar::{FakeSidecar, until};
use crate::{PutOptions, Stored};

const MINUTE: Duration = Duration::from_secs(60);

fn pipe() -> (FakeSidecar, Client, Pipe) {
    let twin = FakeSidecar::start();
    twin.state.lock().version = PIPES_SINCE;
    let client = Client::connect(twin.directory()).unwrap();
    let pipe = client.connect_pipe("inbox", &ConnectOptions::new()).unwrap();
    (twin, client, pipe)
}

/// Three bytes that are stored, and what they are.
fn put_abc(client: &Client) -> (TensorDescriptor, Stored) {
    let layout = Layout::contiguous(DType::U8, Shape::new(&[3]).unwrap()).unwrap();
    let descriptor = TensorDescriptor::host(layout);
    let stored = client.put(&descriptor, b"abc", &PutOptions::new()).unwrap();
    (descriptor, stored)
}

#[test]
fn waits_go_on_after_the_longest_deadline_of_a_sidecar_until_that_of_their_caller() {
    let (twin, client, pipe) = pipe();
    let listener = client.listen("inbox").unwrap();
    for patient in [Timeout::After(MINUTE), Timeout::Never] {
        let is_late = || twin.state.lock().late = 2;
        is_late();
        listener.accept(patient).unwrap();
        is_late();
        assert!(matches!(pipe.read_descriptor(patient).unwrap(), Incoming::End));
        is_late();
        pipe.write(Message::new().metadata("a"), patient).unwrap();
    }
    let asked = || {
        [SessionKind::PipeAccept, SessionKind::PipeRead, SessionKind::PipeWrite].map(|kind| twin.count(kind))
    };
    assert_eq!(asked(), [6; 3]);
    twin.state.lock().late = 3;
    listener.accept(Timeout::Now).unwrap_err();
    pipe.read_descriptor(Timeout::Now).unwrap_err();
    pipe.write(Message::new(), Timeout::Now).unwrap_err();
    assert_eq!(asked(), [7; 3], "each is one try");
}

#[test]
fn a_wait_for_a_message_beside_that_of_another_thread_ends_in_its_time_and_when_it_is_withdrawn() {
    let (twin, _client, pipe) = pipe();
    twin.state.lock().holding = true;
    let cancel = Cancel::new();
    let pipe = Arc::new(pipe.with_cancel(cancel.clone()));
    let read = |timeout| {
        let (pipe, (tell, told)) = (Arc::clone(&pipe), mpsc::channel());
        thread::spawn(move || tell.send(pipe.read_descriptor(timeout).unwrap_err()));
        told
    };
    let first = read(Timeout::Never);
    until("the first one waits at the sidecar", || twin.count(SessionKind::PipeRead) == 1);
    for timeout in [Timeout::Now, Timeout::After(Duration::from_millis(20))] {
        let error = read(timeout).recv_timeout(MINUTE).unwrap();
        assert_eq!(error.reason(), Some(Reason::DeadlineExceeded), "{error}");
    }
    assert_eq!(twin.count(SessionKind::PipeRead), 1, "two at a time would be given the same");
    let second = read(Timeout::Never);
    cancel.cancel();
    for told in [first, second] {
        let error = told.recv_timeout(MINUTE).unwrap();
        assert!(matches!(error, Error::Withdrawn), "{error}");
    }
}

#[test]
fn bytes_of_a_message_come_within_the_time_of_their_read_which_may_be_tried_again() {
    let (twin, client, pipe) = pipe();
    let (_, stored) = put_abc(&client);
    let payload = v1::PipePart { reference: stored.reference().to_string(), bytes: 3, ..Default::default() };
    twin.state.lock().pipe_message = Some(v1::PipeMessage { payloads: vec![payload], ..Default::default() });
    let Incoming::Message(descriptor) = pipe.read_descriptor(Timeout::Now).unwrap() else {
        panic!("a message")
    };
    twin.state.lock().holding = true;
    let short = Timeout::After(Duration::from_millis(20));
    let failed = pipe.read_within(descriptor, Allocation::map(), short).unwrap_err();
    assert!(matches!(failed.error, Error::DeadlineExceeded { .. }), "{}", failed.error);
    twin.let_go_in_reverse();
    let received = pipe.read(failed.descriptor, Allocation::map()).unwrap();
    assert_eq!(received.payloads[0].to_vec(), b"abc");
}

#[test]
fn a_message_beyond_a_limit_comes_back_and_nothing_of_it_was_written() {
    let (twin, client, pipe) = pipe();
    let (descriptor, stored) = put_abc(&client);
    let kept = |message: Message| message.kept(descriptor.clone(), stored.reference().clone());
    let tensors = |count: usize, about: usize| {
        (0..count).fold(Message::new(), |message, _| kept(message).about(vec![7; about]))
    };
    let payloads = |count: usize| (0..count).fold(Message::new(), |message, _| message.payload(""));
    let metadata = |bytes: usize| Message::new().metadata(vec![7; bytes]);
    for fits in [tensors(1_024, 0), payloads(1_024), metadata(64 << 10), tensors(1, 4 << 10)] {
        pipe.write(fits, Timeout::After(MINUTE)).unwrap();
    }
    for (wrong, most) in [
        (tensors(1_025, 0), 1_024),
        (payloads(1_025), 1_024),
        (metadata((64 << 10) + 1), 64 << 10),
        (tensors(1, (4 << 10) + 1), 4 << 10),
        // Each is within its limits, and all of them are more than a message has beside its tensors.
        (tensors(130, 4 << 10), 512 << 10),
    ] {
        let parts = wrong.parts();
        let failed = pipe.write(wrong, Timeout::After(MINUTE)).unwrap_err();
        assert_eq!((failed.error.reason(), failed.delivered), (Some(Reason::TooLarge), Delivered::No));
        assert!(failed.error.to_string().contains(&format!("the {most} ")), "{most}: {}", failed.error);
        assert_eq!(failed.message.parts(), parts);
    }
    assert_eq!(twin.count(SessionKind::PipeWrite), 4);
}
