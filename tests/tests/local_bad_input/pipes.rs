//! Pipes: sessions that speak of what is not theirs, sequences and messages that are none.

use prost::Message as _;
use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{Allocation, ConnectOptions, Incoming, Message};
use tensorlane_proto::Reason;
use tensorlane_proto::frame::{PIPES_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_tests::Sidecar;
use tensorlane_tests::pipes::WRONG_WRITES;
use tensorlane_tests::raw::RawSession;

fn write(pipe: u64, sequence: u64, message: Vec<u8>) -> v1::PipeWriteRequest {
    v1::PipeWriteRequest { pipe, sequence, message: message.into(), deadline_ms: 50 }
}

#[test]
fn a_session_reads_writes_and_ends_no_pipe_of_others() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let listener = client.listen("mine").unwrap();
    let near = client.connect_pipe("mine", &ConnectOptions::new()).unwrap();
    let far = listener.accept(Timeout::Default).unwrap();
    let writing = near.begin(Message::new().metadata("safe"), Timeout::Default).unwrap();
    let mut stranger = RawSession::begin_in(&sidecar, PIPES_SINCE);
    for number in (0..10).chain((1 << 63) - 2..(1 << 63) + 3).chain([u64::MAX]) {
        for (pipe, listener) in [(number, 0), (0, number)] {
            let end = v1::PipeEndRequest { pipe, listener, read: 1, finished: true, closed: true };
            stranger.send(SessionKind::PipeEnd, &end);
        }
        let read = v1::PipeReadRequest { pipe: number, from: 0, deadline_ms: 50 };
        let refused = stranger.call::<v1::PipeReadResponse>(SessionKind::PipeRead, &read);
        assert_eq!(refused.unwrap_err().reason, Reason::NotFound);
        let refused =
            stranger.call::<v1::PipeWriteResponse>(SessionKind::PipeWrite, &write(number, 9, Vec::new()));
        assert_eq!(refused.unwrap_err().reason, Reason::NotFound);
        let accept = v1::PipeAcceptRequest { listener: number, deadline_ms: 50 };
        let refused = stranger.call::<v1::PipeOpened>(SessionKind::PipeAccept, &accept);
        assert_eq!(refused.unwrap_err().reason, Reason::NotFound);
    }
    let Incoming::Message(descriptor) = far.read_descriptor(Timeout::Default).unwrap() else {
        panic!("a message is there")
    };
    assert_eq!(descriptor.metadata(), b"safe");
    far.read(descriptor, Allocation::map()).unwrap();
    drop(writing.wait().unwrap());
    drop((near, far, listener, stranger, client));
    sidecar.assert_all_free();
}

#[test]
fn sequences_and_messages_that_are_none_are_refused_and_leave_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let listener = client.listen("mine").unwrap();
    let mut session = RawSession::begin_in(&sidecar, PIPES_SINCE);
    for (name, peer, reason) in [
        ("", "", Reason::InvalidArgument),
        ("/slash", "", Reason::InvalidArgument),
        ("absent", "", Reason::NotFound),
        ("mine", "another-peer", Reason::PeerUnreachable),
    ] {
        let (name, peer) = (name.to_owned(), peer.to_owned());
        let connect = v1::PipeConnectRequest { name, peer, wait_ms: 0, deadline_ms: 0 };
        let refused = session.call::<v1::PipeOpened>(SessionKind::PipeConnect, &connect);
        assert_eq!(refused.unwrap_err().reason, reason, "{connect:?}");
    }
    let connect = v1::PipeConnectRequest { name: "mine".to_owned(), ..Default::default() };
    let opened: v1::PipeOpened = session.call(SessionKind::PipeConnect, &connect).unwrap();
    let far = listener.accept(Timeout::Default).unwrap();
    for (sequence, bytes, reason) in WRONG_WRITES {
        let request = write(opened.pipe, sequence, vec![0xff; bytes]);
        let refused = session.call_raw(SessionKind::PipeWrite, &request.encode_to_vec()).unwrap_err();
        assert_eq!((refused.reason, refused.detail("delivered")), (reason, Some("no")), "{sequence}");
    }
    drop(session);
    let lost = far.read_descriptor(Timeout::Default).map(drop).unwrap_err();
    assert_eq!(lost.reason(), Some(Reason::PipeLost));
    // A message that no client would write is its reader's to refuse.
    let mut session = RawSession::begin_in(&sidecar, PIPES_SINCE);
    let opened: v1::PipeOpened = session.call(SessionKind::PipeConnect, &connect).unwrap();
    let far = listener.accept(Timeout::Default).unwrap();
    let request = v1::PipeWriteRequest { deadline_ms: 60_000, ..write(opened.pipe, 1, vec![0xff; 9]) };
    session.send(SessionKind::PipeWrite, &request);
    let damaged = far.read_descriptor(Timeout::Default).map(drop).unwrap_err();
    assert_eq!(damaged.reason(), Some(Reason::MessageDamaged));
    drop((session, far, listener, client));
    sidecar.assert_all_free();
}
