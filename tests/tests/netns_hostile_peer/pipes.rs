//! A peer of the exchange that speaks of pipes and channels as it must not: what it never opened is not its own, what is malformed ends
//! its connection, and the pipes of others go on. Needs root.

use tensorlane_client::channel::Timeout;
use tensorlane_client::pipe::{Allocation, ConnectOptions, Incoming, Message, Pipe};
use tensorlane_proto::frame::{FAILED, LAST, PEER_PIPES_SINCE, PIPE_MESSAGE_MAX, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::peer_pipe_call::Kind;
use tensorlane_proto::{Failure, Reason};
use tensorlane_tests::hostile::Hostile;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::until;

use super::TURNS;

/// Two sidecars, of which that of host 1 has ended: somebody else speaks for it.
fn alone() -> Peers {
    let mut peers = Peers::start(2, |_, options| options.set("deadlines.progress", "20s"));
    peers.sidecars[1].kill();
    until("its connection is gone", || peers.seen(0, 1).state != "connected");
    peers
}

fn calls(kind: Kind) -> v1::PeerPipeCall {
    v1::PeerPipeCall { kind: Some(kind) }
}

fn write(pipe: u64, sequence: u64, bytes: usize) -> v1::PeerPipeCall {
    let message = vec![0xff; bytes].into();
    calls(Kind::Write(v1::PipeWriteRequest { pipe, sequence, message, deadline_ms: 50 }))
}

fn read(pipe: u64) -> v1::PeerPipeCall {
    calls(Kind::Read(v1::PipeReadRequest { pipe, from: 0, deadline_ms: 50 }))
}

fn all_ends(pipe: u64) -> v1::PeerPipeCall {
    calls(Kind::End(v1::PeerPipeEnd { pipe, read: 1, finished: true, closed: true, lost: true }))
}

fn connect(hostile: &mut Hostile, call: u64, name: &str, client: &str) -> Result<u64, Failure> {
    let (name, client) = (name.to_owned(), client.to_owned());
    let asked = v1::PeerPipeConnect { name, client, wait_ms: 0 };
    hostile.send(PeerKind::PipeConnect, 0, call, &asked);
    hostile.answer::<v1::PeerPipeConnected>(PeerKind::PipeConnect, call).map(|opened| opened.pipe)
}

fn refusal(hostile: &mut Hostile, call: u64, asked: &v1::PeerPipeCall) -> Failure {
    hostile.send(PeerKind::PipeCall, 0, call, asked);
    hostile.answer::<v1::PeerPipeAnswer>(PeerKind::PipeCall, call).unwrap_err()
}

/// A message that is there is read, and its write is done.
fn assert_goes_on(near: &Pipe, far: &Pipe) {
    let writing = near.begin(Message::new().metadata("safe"), Timeout::Default).unwrap();
    let Incoming::Message(descriptor) = far.read_descriptor(Timeout::Default).unwrap() else {
        panic!("a message is there")
    };
    assert_eq!(descriptor.metadata(), b"safe");
    far.read(descriptor, Allocation::map()).unwrap();
    drop(writing.wait().unwrap());
}

#[test]
fn a_peer_reads_writes_and_ends_no_pipe_that_it_has_not_opened_and_what_it_may_not_say_is_refused() {
    let _turn = TURNS.beside_others();
    let peers = alone();
    let client = peers.client(0);
    let listener = client.listen("mine").unwrap();
    let near = client.connect_pipe("mine", &ConnectOptions::new()).unwrap();
    let far = listener.accept(Timeout::Default).unwrap();
    let mut hostile = Hostile::speaking(PEER_PIPES_SINCE, &peers, 1, "b");
    for (name, called, reason) in [
        ("", "c", Reason::InvalidArgument),
        ("/slash", "c", Reason::InvalidArgument),
        ("absent", "c", Reason::NotFound),
        ("mine", &*"c".repeat(257), Reason::InvalidArgument),
    ] {
        assert_eq!(connect(&mut hostile, 1, name, called).unwrap_err().reason, reason, "{name:?}");
    }
    let numbers = (0..12).chain([1 << 62, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX]);
    for number in numbers {
        hostile.send(PeerKind::PipeCall, 0, 0, &all_ends(number));
        let refused = refusal(&mut hostile, 2, &write(number, 1, 3));
        assert_eq!((refused.reason, refused.detail("delivered")), (Reason::NotFound, Some("no")));
        assert_eq!(refusal(&mut hostile, 3, &read(number)).reason, Reason::NotFound);
    }
    assert_goes_on(&near, &far);
    let pipe = connect(&mut hostile, 4, "mine", "theirs").unwrap();
    let theirs = listener.accept(Timeout::Default).unwrap();
    let remote = theirs.remote();
    assert_eq!((&*remote.peer, &*remote.client, &*remote.route), ("b", "theirs", "tcp"));
    for (sequence, bytes, reason) in [
        (0, 0, Reason::InvalidArgument),
        (1, PIPE_MESSAGE_MAX + 1, Reason::TooLarge),
        (u64::MAX, 10, Reason::DeadlineExceeded),
        (5, 10, Reason::InvalidArgument),
    ] {
        let refused = refusal(&mut hostile, 5, &write(pipe, sequence, bytes));
        assert_eq!((refused.reason, refused.detail("delivered")), (reason, Some("no")), "{sequence}");
    }
    // The end of the listener is not theirs, either.
    hostile.send(PeerKind::PipeCall, 0, 0, &all_ends(pipe + 1));
    assert_eq!(refusal(&mut hostile, 6, &read(pipe + 1)).reason, Reason::NotFound);
    drop(hostile);
    let lost = theirs.read_descriptor(Timeout::Default).map(drop).unwrap_err();
    assert_eq!(lost.reason(), Some(Reason::PipeLost));
    assert_goes_on(&near, &far);
    drop((theirs, near, far, listener, client));
    peers.assert_free(0);
}

#[test]
fn a_peer_that_asks_without_end_is_refused_and_keeps_nobody_out() {
    let _turn = TURNS.beside_others();
    let peers = alone();
    let client = peers.client(0);
    let listener = client.listen("mine").unwrap();
    let mut hostile = Hostile::speaking(PEER_PIPES_SINCE, &peers, 1, "b");
    let pipe = connect(&mut hostile, 1, "mine", "theirs").unwrap();
    let waits = |deadline_ms| calls(Kind::Read(v1::PipeReadRequest { pipe, from: 0, deadline_ms }));
    for call in 2..=65 {
        hostile.send(PeerKind::PipeCall, 0, call, &waits(60_000));
    }
    assert_eq!(refusal(&mut hostile, 66, &waits(60_000)).reason, Reason::LimitExceeded);
    // Those that wait are withdrawn, and answered all the same.
    hostile.send(PeerKind::Cancel, 0, 2, &v1::Cancel {});
    let withdrawn = hostile.answer::<v1::PeerPipeAnswer>(PeerKind::PipeCall, 2).unwrap_err();
    assert_eq!(withdrawn.reason, Reason::Cancelled);
    // Messages of 512 KiB: sixteen of them are all that may be unread.
    let large = |sequence| {
        let message = vec![0xff; PIPE_MESSAGE_MAX].into();
        calls(Kind::Write(v1::PipeWriteRequest { pipe, sequence, message, deadline_ms: 60_000 }))
    };
    for sequence in 1..=16 {
        hostile.send(PeerKind::PipeCall, 0, 100 + sequence, &large(sequence));
    }
    let full = refusal(&mut hostile, 200, &large(17));
    assert_eq!((full.reason, full.detail("delivered")), (Reason::LimitExceeded, Some("no")));
    for (call, name) in (1_000..1_300).zip(std::iter::repeat("absent")) {
        let (name, client) = (name.to_owned(), String::new());
        let asked = v1::PeerPipeConnect { name, client, wait_ms: 60_000 };
        hostile.send(PeerKind::PipeConnect, 0, call, &asked);
    }
    let full = hostile.answer::<v1::PeerPipeConnected>(PeerKind::PipeConnect, 1_299).unwrap_err();
    assert_eq!(full.reason, Reason::LimitExceeded);
    let near = client.connect_pipe("mine", &ConnectOptions::new()).unwrap();
    let theirs = listener.accept(Timeout::Default).unwrap();
    let far = listener.accept(Timeout::Default).unwrap();
    assert_goes_on(&near, &far);
    drop(hostile);
    until("its pipe is lost", || {
        let lost = theirs.read_descriptor(Timeout::Default).map(drop);
        lost.is_err_and(|error| error.reason() == Some(Reason::PipeLost))
    });
    drop((theirs, near, far, listener, client));
    peers.assert_free(0);
}

#[test]
fn frames_of_pipes_and_channels_that_may_not_be_end_the_connection_and_nothing_else() {
    let _turn = TURNS.beside_others();
    let peers = alone();
    let client = peers.client(0);
    let listener = client.listen("mine").unwrap();
    let near = client.connect_pipe("mine", &ConnectOptions::new()).unwrap();
    let far = listener.accept(Timeout::Default).unwrap();
    let hello = v1::PeerHello { version: 9, ..v1::PeerHello::default() };
    let credit = v1::PeerChannelCredit { next: 9, landed: 9 };
    type Says<'a> = Box<dyn Fn(&mut Hostile) + 'a>;
    let call = |kind: PeerKind, flags: u16, call: u64, asked: v1::PeerPipeCall| -> Says<'_> {
        Box::new(move |hostile| hostile.send(kind, flags, call, &asked))
    };
    let wrongs: Vec<(&str, u32, Says<'_>)> = vec![
        ("a call of a later version", 8, call(PeerKind::PipeCall, 0, 7, read(2))),
        ("an end of a later version", 8, call(PeerKind::PipeCall, 0, 0, all_ends(2))),
        ("a connect of a later version", 8, call(PeerKind::PipeConnect, 0, 7, v1::PeerPipeCall::default())),
        ("a call without a kind", 9, call(PeerKind::PipeCall, 0, 7, v1::PeerPipeCall::default())),
        ("a write of call 0", 9, call(PeerKind::PipeCall, 0, 0, write(2, 1, 1))),
        ("an end that is a call", 9, call(PeerKind::PipeCall, 0, 7, all_ends(2))),
        ("a connect of call 0", 9, call(PeerKind::PipeConnect, 0, 0, v1::PeerPipeCall::default())),
        ("an answer to nothing", 9, call(PeerKind::PipeCall, REPLY, 7, v1::PeerPipeCall::default())),
        ("a failure of nothing", 9, call(PeerKind::PipeCall, REPLY | FAILED, 7, v1::PeerPipeCall::default())),
        ("a pipe for nothing", 9, call(PeerKind::PipeConnect, REPLY, 7, v1::PeerPipeCall::default())),
        ("a last call", 9, call(PeerKind::PipeCall, LAST, 7, read(2))),
        ("another message", 9, Box::new(|hostile| hostile.send(PeerKind::PipeCall, 0, 7, &hello))),
        ("another message for a connect", 9, {
            Box::new(|hostile| hostile.send(PeerKind::PipeConnect, 0, 7, &hello))
        }),
        ("a call twice", 9, {
            Box::new(|hostile| {
                let pipe = connect(hostile, 1, "mine", "theirs").unwrap();
                let waits = calls(Kind::Read(v1::PipeReadRequest { pipe, from: 0, deadline_ms: 60_000 }));
                hostile.send(PeerKind::PipeCall, 0, 7, &waits);
                hostile.send(PeerKind::PipeCall, 0, 7, &waits);
            })
        }),
        ("a credit with a flag", 9, {
            Box::new(|hostile| hostile.send(PeerKind::ChannelCredit, LAST, 7, &credit))
        }),
        ("a credit of call 0", 9, Box::new(|hostile| hostile.send(PeerKind::ChannelCredit, 0, 0, &credit))),
        ("a credit of an earlier version", 7, {
            Box::new(|hostile| hostile.send(PeerKind::ChannelCredit, 0, 7, &credit))
        }),
        ("an end of a channel that is none", 9, {
            let end = v1::PeerChannelEnd { outcome: 77 };
            Box::new(move |hostile| hostile.send(PeerKind::ChannelEnd, 0, 7, &end))
        }),
        ("an attachment to nothing", 9, {
            Box::new(|hostile| {
                hostile.send(PeerKind::ChannelAttach, REPLY, 7, &v1::PeerChannelAttached::default());
            })
        }),
    ];
    for (what, version, say) in wrongs {
        let mut hostile = Hostile::speaking(version, &peers, 1, "b");
        say(&mut hostile);
        assert!(hostile.is_closed(), "{what}");
        assert_goes_on(&near, &far);
    }
    drop((near, far, listener, client));
    peers.assert_free(0);
}
