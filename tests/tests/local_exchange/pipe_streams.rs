//! Pipes over gRPC: a stream is one end, and a program that maps what it reads the other one.

use std::thread;
use std::time::Duration;

use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{Allocation, ConnectOptions, Delivered, Payload, Pipe, Place};
use tensorlane_proto::generated::PipeDelivered::{Unknown, Yes};
use tensorlane_proto::generated::PipeTaken;
use tensorlane_proto::generated::pipe_request::Step;
use tensorlane_proto::{DType, Reason};
use tensorlane_tests::pipes::{LONG, is_end, next, nothing, text};
use tensorlane_tests::streams::{Grpc, other_stream};
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::{Sidecar, until};

/// Words, payloads and tensors of the next message, which is read.
fn read(pipe: &Pipe) -> (Vec<u8>, Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let descriptor = next(pipe);
    let mut tensors: Vec<Vec<u8>> = descriptor
        .tensors()
        .map(|(descriptor, _)| vec![0; usize::try_from(descriptor.layout.packed_bytes()).unwrap()])
        .collect();
    let places = tensors.iter_mut().map(|bytes| Place::Bytes(bytes)).collect();
    let received = pipe.read(descriptor, Allocation::new(places)).unwrap();
    let payloads = received.payloads.iter().map(Payload::to_vec).collect();
    (received.metadata.to_vec(), payloads, tensors)
}

#[test]
fn a_stream_and_a_program_write_to_each_other_and_both_finish() {
    const MESSAGES: u64 = 100;
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    let floats = dense(DType::F32, &[700, 250]);
    let (rows, long) = (pattern(1, 700_000), pattern(2, 40_000));
    for stream_connects in [true, false] {
        let (mut stream, pipe) = thread::scope(|scope| {
            if stream_connects {
                let listener = client.listen("inbox").unwrap();
                let stream = scope.spawn(|| grpc.connects("inbox"));
                let pipe = listener.accept(LONG).unwrap();
                (stream.join().unwrap(), pipe)
            } else {
                let stream = scope.spawn(|| grpc.accepts("inbox"));
                let options = ConnectOptions::new().wait(Duration::from_secs(60));
                let pipe = client.connect_pipe("inbox", &options).unwrap();
                (stream.join().unwrap(), pipe)
            }
        });
        assert!(pipe.remote().client.starts_with("streams"), "{:?}", pipe.remote());
        assert_eq!(stream.opened.route, "local");
        for number in 1..=MESSAGES {
            let words = format!("step {number}");
            stream.begin(&words, &[(None, b"small"), (Some((&floats).into()), &rows), (None, &long)]);
            let (said, payloads, tensors) = read(&pipe);
            assert_eq!(said, words.as_bytes());
            assert!(payloads == [b"small".to_vec(), long.clone()] && tensors == [&rows[..]], "{words}");
            assert_eq!(stream.written(), (number, Yes, String::new()));
            let message = text(&words).payload(long.clone()).tensor(floats.clone(), rows.clone());
            let writing = pipe.begin(message, LONG).unwrap();
            let (_, said, parts) = stream.received();
            assert!(said == words && parts == [&long[..], &rows[..]], "{words}");
            stream.say(Step::Taken(PipeTaken { message: number }));
            drop(writing.wait().unwrap());
        }
        stream.finish();
        assert!(is_end(&pipe));
        pipe.finish().unwrap();
        assert_eq!(stream.end(), "");
        drop(pipe);
    }
    drop((grpc, client));
    sidecar.assert_all_free();
}

#[test]
fn a_process_whose_stream_is_an_end_dies_and_the_other_end_hears_of_it() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let listener = client.listen("inbox").unwrap();
    let mut other = other_stream(&sidecar, "connects");
    let pipe = listener.accept(LONG).unwrap();
    let writing = pipe.begin(text("shown"), LONG).unwrap();
    other.says("shown");
    let descriptor = next(&pipe);
    assert_eq!(descriptor.metadata(), b"written");
    other.kill();
    let failed = writing.wait().unwrap_err();
    assert_eq!((failed.delivered, failed.error.reason()), (Delivered::Unknown, Some(Reason::PipeLost)));
    until("its bytes are gone with it", || client.status().unwrap().tensors == 0);
    let failed = pipe.read(descriptor, Allocation::map()).unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::PipeLost));
    drop(failed);
    assert_eq!(nothing(&pipe, LONG).reason(), Some(Reason::PipeLost));
    drop((pipe, listener, client));
    sidecar.assert_all_free();
}

#[test]
fn a_program_that_closes_is_told_to_a_stream_and_one_that_takes_back_is_nothing_to_it() {
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    let listener = client.listen("inbox").unwrap();
    let mut stream = grpc.connects("inbox");
    let pipe = listener.accept(LONG).unwrap();
    // Shown to the stream, and taken back before it says that it has read it.
    let writing = pipe.begin(text("taken back"), LONG).unwrap();
    let (message, words, _) = stream.received();
    assert_eq!((message, words.as_str()), (1, "taken back"));
    drop(writing);
    stream.say(Step::Taken(PipeTaken { message: 1 }));
    let writing = pipe.begin(text("next"), LONG).unwrap();
    assert_eq!(stream.read().0, "next");
    drop(writing.wait().unwrap());
    stream.begin("unread", &[]);
    let descriptor = next(&pipe);
    drop((descriptor, pipe));
    assert_eq!(stream.written(), (1, Unknown, "PIPE_CLOSED".to_owned()));
    assert_eq!(stream.end(), "PIPE_CLOSED");
    drop((grpc, listener, client));
    sidecar.assert_all_free();
}

#[test]
fn a_message_whose_writer_gave_it_up_is_withdrawn_and_the_next_one_is_read() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let listener = client.listen("inbox").unwrap();
    let near = client.connect_pipe("inbox", &ConnectOptions::new()).unwrap();
    let far = listener.accept(LONG).unwrap();
    let message = text("gone").tensor(dense(DType::U8, &[100]), pattern(1, 100));
    let writing = near.begin(message, LONG).unwrap();
    let descriptor = next(&far);
    drop(writing);
    until("its bytes are free", || client.status().unwrap().tensors == 0);
    let failed = far.read(descriptor, Allocation::map()).unwrap_err();
    assert_eq!(failed.error.reason(), Some(Reason::MessageWithdrawn), "{}", failed.error);
    drop(failed);
    let writing = near.begin(text("next"), LONG).unwrap();
    let descriptor = next(&far);
    assert_eq!(descriptor.metadata(), b"next");
    far.read(descriptor, Allocation::map()).unwrap();
    drop(writing.wait().unwrap());
    assert_eq!(nothing(&far, Timeout::Now).reason(), Some(Reason::DeadlineExceeded));
    drop((near, far, listener, client));
    sidecar.assert_all_free();
}
