//! Pipes over gRPC between peers: a stream at one is an end, and a stream or a program at the other the other one.

use tensorlane_proto::DType;
use tensorlane_proto::generated::PipeDelivered::{Unknown, Yes};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::pipes::{LONG, next, text};
use tensorlane_tests::streams::Grpc;
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::where_the_machine_runs_on;

#[test]
fn streams_at_two_peers_are_ends_of_a_pipe_until_the_link_is_cut() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        let (here, there) = (Grpc::of(&peers.sidecars[0]), Grpc::of(&peers.sidecars[1]));
        let (mut a, mut b) = std::thread::scope(|scope| {
            let accepts = scope.spawn(|| here.accepts("inbox"));
            let connects = there.connects("a/inbox");
            (accepts.join().unwrap(), connects)
        });
        assert_eq!((&a.opened.route[..], &a.opened.peer[..]), ("tcp", "b"));
        assert_eq!((&b.opened.route[..], &b.opened.peer[..]), ("tcp", "a"));
        let floats = dense(DType::F32, &[1000, 1000]);
        let large = pattern(1, 4_000_000);
        for number in 1..=20 {
            a.begin("there", &[(Some((&floats).into()), &large), (None, b"and this")]);
            assert_eq!(b.read(), ("there".to_owned(), vec![b"and this".to_vec(), large.clone()]));
            assert_eq!(a.written(), (number, Yes, String::new()));
            b.begin("back", &[(Some((&floats).into()), &large)]);
            assert_eq!(a.read(), ("back".to_owned(), vec![large.clone()]));
            assert_eq!(b.written(), (number, Yes, String::new()));
        }
        // Whatever is unread when the link is cut may have been read.
        b.begin("unread", &[]);
        assert_eq!(a.received().1, "unread");
        peers.network.cut(1);
        assert_eq!(b.written(), (21, Unknown, "PIPE_LOST".to_owned()));
        assert_eq!((a.end(), b.end()), ("PIPE_LOST".to_owned(), "PIPE_LOST".to_owned()));
        peers.network.mend(1);
        drop((here, there));
        peers.assert_all_free();
    });
}

#[test]
fn a_stream_at_another_peer_reads_what_a_program_writes_and_both_finish() {
    let peers = Peers::steady();
    let there = Grpc::of(&peers.sidecars[1]);
    let listener = peers.client(0).listen("inbox").unwrap();
    let mut stream = there.connects("a/inbox");
    let pipe = listener.accept(LONG).unwrap();
    let bytes = pattern(1, 3 << 20);
    let message = text("words").tensor(dense(DType::U8, &[3 << 20]), bytes.clone()).payload(bytes.clone());
    let writing = pipe.begin(message, LONG).unwrap();
    assert_eq!(stream.read(), ("words".to_owned(), vec![bytes.clone(), bytes]));
    drop(writing.wait().unwrap());
    stream.begin("answer", &[]);
    let descriptor = next(&pipe);
    pipe.read(descriptor, tensorlane_client::pipe::Allocation::map()).unwrap();
    assert_eq!(stream.written(), (1, Yes, String::new()));
    pipe.finish().unwrap();
    stream.finish();
    assert_eq!(stream.end(), "");
    drop((pipe, listener, there));
    peers.assert_all_free();
}
