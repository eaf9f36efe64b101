//! A peer of the exchange that speaks of pipes and channels as it must not: what it never opened is not its own, what is malformed ends
//! its connection, and the pipes of others go on. Needs root.

use std::thread;
use std::time::Duration;

use tensorlane_client::channel::{ChannelSpec, End, Policy, Read, ReadOptions, Timeout};
use tensorlane_client::pipe::{Allocation, ConnectOptions, Delivered, Incoming, Message, Pipe};
use tensorlane_proto::frame::{
    FAILED, LAST, PEER_PIPES_SINCE, PIPE_MESSAGE_MAX, PIPES_RESUMED_SINCE, PeerKind, REPLY,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::peer_pipe_call::Kind;
use tensorlane_proto::{Failure, Reason};
use tensorlane_tests::hostile::Hostile;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::pipes::WRONG_WRITES;
use tensorlane_tests::{reason, until};

use super::TURNS;

/// Two sidecars, of which that of host 1 has ended: somebody else speaks for it.
fn alone() -> Peers {
    alone_for("3s")
}

/// The same, where the one that is left waits so long for others.
fn alone_for(grace: &str) -> Peers {
    let mut peers = Peers::start(2, |_, options| options.steady().set("gc.leaseGrace", grace));
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
    calls(Kind::End(v1::PeerPipeEnd {
        pipe,
        read: 1,
        finished: true,
        closed: true,
        lost: true,
        resumed: true,
    }))
}

fn connect(hostile: &mut Hostile, call: u64, name: &str, client: &str) -> Result<u64, Failure> {
    let (name, client) = (name.to_owned(), client.to_owned());
    let asked = v1::PeerPipeConnect { name, client, ..v1::PeerPipeConnect::default() };
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
    for (sequence, bytes, reason) in WRONG_WRITES {
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
fn a_peer_goes_on_with_no_pipe_but_its_own_and_with_that_where_it_has_heard_of_it() {
    let _turn = TURNS.beside_others();
    let peers = alone_for("120s");
    let client = peers.client(0);
    let listener = client.listen("mine").unwrap();
    let near = client.connect_pipe("mine", &ConnectOptions::new()).unwrap();
    let far = listener.accept(Timeout::Default).unwrap();
    let resume = |hostile: &mut Hostile, call: u64, resume: u64| {
        let asked = v1::PeerPipeConnect { resume, ..v1::PeerPipeConnect::default() };
        hostile.send(PeerKind::PipeConnect, 0, call, &asked);
        hostile.answer::<v1::PeerPipeConnected>(PeerKind::PipeConnect, call)
    };
    let mut hostile = Hostile::speaking(PIPES_RESUMED_SINCE, &peers, 1, "b");
    let numbers = (1..12).chain([1 << 62, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX]);
    for (call, number) in (1..).zip(numbers) {
        assert_eq!(resume(&mut hostile, call, number).unwrap_err().reason, Reason::NotFound, "{number}");
    }
    assert_goes_on(&near, &far);
    let [heard, unheard] = [50, 51].map(|call| connect(&mut hostile, call, "mine", "theirs").unwrap());
    let theirs = listener.accept(Timeout::Default).unwrap();
    let other = listener.accept(Timeout::Default).unwrap();
    let end = v1::PeerPipeEnd { pipe: heard, ..v1::PeerPipeEnd::default() };
    hostile.send(PeerKind::PipeCall, 0, 52, &calls(Kind::End(end)));
    hostile.answer::<v1::PeerPipeAnswer>(PeerKind::PipeCall, 52).unwrap();
    drop(hostile);
    let lost = other.read_descriptor(Timeout::Default).map(drop).unwrap_err();
    assert_eq!(lost.reason(), Some(Reason::PipeLost));
    let mut hostile = Hostile::speaking(PIPES_RESUMED_SINCE, &peers, 1, "b");
    assert_eq!(resume(&mut hostile, 1, unheard).unwrap_err().reason, Reason::NotFound);
    assert_eq!(resume(&mut hostile, 2, heard).unwrap().pipe, heard);
    let garbled = write(heard, 1, 3);
    hostile.send(PeerKind::PipeCall, 0, 3, &garbled);
    assert_eq!(reason(theirs.read_descriptor(Timeout::Default).map(drop)), Reason::MessageDamaged);
    drop(hostile);
    assert_goes_on(&near, &far);
    drop((theirs, other, near, far, listener, client));
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
        let asked = v1::PeerPipeConnect { name, client, wait_ms: 60_000, resume: 0 };
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
    let credit = v1::PeerChannelCredit { next: 9, landed: 9, ..v1::PeerChannelCredit::default() };
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
            let end = v1::PeerChannelEnd { outcome: 77, ..Default::default() };
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

/// A pipe of a client of host 0 to a listener that the hostile peer says it has.
fn opened(peers: &Peers, hostile: &mut Hostile) -> Pipe {
    let client = peers.client(0);
    let connecting = thread::spawn(move || client.connect_pipe("b/theirs", &ConnectOptions::new()).unwrap());
    let (call, asked) = hostile.asked::<v1::PeerPipeConnect>(PeerKind::PipeConnect);
    assert_eq!(asked.name, "theirs");
    let connected = v1::PeerPipeConnected { pipe: 77, client: "liar".to_owned() };
    hostile.send(PeerKind::PipeConnect, REPLY, call, &connected);
    connecting.join().unwrap()
}

#[test]
fn answers_about_a_pipe_that_may_not_be_lose_it_and_leave_nothing() {
    let _turn = TURNS.beside_others();
    let peers = alone();
    let answer = |kind| v1::PeerPipeAnswer { kind };
    let message = v1::peer_pipe_answer::Kind::Message(v1::PipeReadResponse::default());
    let written = v1::peer_pipe_answer::Kind::Written(v1::PipeWriteResponse {});
    let twice = answer(Some(written.clone()));
    for (what, times, wrong) in [
        ("nothing", 1, answer(None)),
        ("a message for a write", 1, answer(Some(message))),
        ("an answer twice", 2, twice.clone()),
    ] {
        let mut hostile = Hostile::speaking(PEER_PIPES_SINCE, &peers, 1, "b");
        let pipe = opened(&peers, &mut hostile);
        assert_eq!((&*pipe.remote().peer, &*pipe.remote().client), ("b", "liar"));
        let outcome = thread::scope(|scope| {
            let writing = scope.spawn(|| pipe.write(Message::new().metadata("x"), Timeout::Default));
            let (call, asked) = hostile.asked::<v1::PeerPipeCall>(PeerKind::PipeCall);
            let Some(Kind::Write(asked)) = asked.kind else { panic!("a write, not {asked:?}") };
            assert_eq!((asked.pipe, asked.sequence), (77, 1));
            for _ in 0..times {
                hostile.send(PeerKind::PipeCall, REPLY, call, &wrong);
            }
            writing.join().unwrap()
        });
        assert!(hostile.is_closed(), "{what}");
        if times == 1 {
            let failed = outcome.unwrap_err();
            assert_eq!(
                (failed.delivered, failed.error.reason()),
                (Delivered::Unknown, Some(Reason::PipeLost)),
                "{what}"
            );
        }
        // The other end of a connection may see its end a moment before the pipe is lost here.
        until("a write is refused before it leaves", || {
            let failed = pipe.write(Message::new(), Timeout::Default).unwrap_err();
            assert_eq!(failed.error.reason(), Some(Reason::PipeLost));
            failed.delivered == Delivered::No
        });
    }
    // A right answer to a read says of a message what it likes: its reader refuses it.
    let mut hostile = Hostile::speaking(PEER_PIPES_SINCE, &peers, 1, "b");
    let pipe = opened(&peers, &mut hostile);
    let garbled = v1::PipeReadResponse { sequence: 1, message: vec![0xff; 9].into() };
    thread::scope(|scope| {
        let reading = scope.spawn(|| pipe.read_descriptor(Timeout::Default).map(drop));
        let (call, _) = hostile.asked::<v1::PeerPipeCall>(PeerKind::PipeCall);
        let kind = Some(v1::peer_pipe_answer::Kind::Message(garbled));
        hostile.send(PeerKind::PipeCall, REPLY, call, &v1::PeerPipeAnswer { kind });
        assert_eq!(reason(reading.join().unwrap()), Reason::MessageDamaged);
    });
    drop((pipe, hostile));
    peers.assert_free(0);
}

#[test]
fn messages_of_a_channel_that_may_not_be_end_the_connection_and_its_readers() {
    let _turn = TURNS.beside_others();
    let peers = alone();
    let first =
        v1::PeerChannelMessage { sequence: 5, bytes: 8, data: vec![1; 8].into(), ..Default::default() };
    let of = |change: fn(&mut v1::PeerChannelMessage)| {
        let mut message = first.clone();
        change(&mut message);
        message
    };
    let wrongs = [
        ("one that is not the next", of(|message| message.sequence = 6)),
        ("one that was before", of(|message| message.sequence = 4)),
        ("one that begins in its middle", of(|message| message.offset = 1)),
        ("one with more than it says", of(|message| message.bytes = 7)),
        ("one without bytes", of(|message| message.data = Vec::new().into())),
        ("one larger than a place", of(|message| message.bytes = 1 << 20)),
    ];
    for (at, (what, wrong)) in wrongs.into_iter().enumerate() {
        let mut hostile = Hostile::speaking(PEER_PIPES_SINCE, &peers, 1, "b");
        let (client, name) = (peers.client(0), format!("b/c{at}"));
        let attaching = thread::spawn(move || client.channel_reader(&name, &ReadOptions::new()).unwrap());
        let (call, _) = hostile.asked::<v1::PeerChannelAttach>(PeerKind::ChannelAttach);
        let (name, writer) = (format!("c{at}"), "liar".to_owned());
        let spec = v1::ChannelSpec { name, slots: 4, slot_bytes: 64 << 10, ..Default::default() };
        let attached = v1::PeerChannelAttached {
            spec: Some(spec),
            first: 5,
            missed: 0,
            writer,
            epoch: 1,
            ..v1::PeerChannelAttached::default()
        };
        hostile.send(PeerKind::ChannelAttach, REPLY, call, &attached);
        let mut reader = attaching.join().unwrap();
        let (credited, _) = hostile.asked::<v1::PeerChannelCredit>(PeerKind::ChannelCredit);
        assert_eq!(credited, call);
        hostile.send(PeerKind::ChannelMessage, 0, call, &wrong);
        assert!(hostile.is_closed(), "{what}");
        let end = match reader.read(Timeout::After(Duration::from_secs(60))).unwrap() {
            Read::End(end) => end,
            other => panic!("{what} is {other:?}"),
        };
        assert_eq!(end, End::PeerLost, "{what}");
    }
    peers.assert_free(0);
}

#[test]
fn a_credit_for_what_was_not_sent_ends_the_connection_and_frees_the_writer() {
    let _turn = TURNS.beside_others();
    let peers = alone();
    let client = peers.client(0);
    let mut writer = client.channel_writer(&ChannelSpec::new("c").slots(4).slot_bytes(64 << 10)).unwrap();
    for credit in [
        v1::PeerChannelCredit { next: 0, landed: 1, ..v1::PeerChannelCredit::default() },
        v1::PeerChannelCredit { next: u64::MAX, landed: 0, ..v1::PeerChannelCredit::default() },
        v1::PeerChannelCredit { next: 1, landed: 0, ..v1::PeerChannelCredit::default() },
    ] {
        let mut hostile = Hostile::speaking(PEER_PIPES_SINCE, &peers, 1, "b");
        let attach = v1::PeerChannelAttach { name: "c".to_owned(), deadline_ms: 9_000, ..Default::default() };
        let attached = thread::scope(|scope| {
            hostile.send(PeerKind::ChannelAttach, 0, 3, &attach);
            // The writer's word of a new reader is heard by its calls.
            let writing = scope.spawn(|| {
                until("the reader is there", || {
                    writer.write_bytes(b"x", Timeout::Now).unwrap();
                    writer.readers() == 1
                });
            });
            let attached = hostile.answer::<v1::PeerChannelAttached>(PeerKind::ChannelAttach, 3);
            writing.join().unwrap();
            attached.unwrap()
        });
        let credit = v1::PeerChannelCredit { next: credit.next.saturating_add(attached.first + 9), ..credit };
        hostile.send(PeerKind::ChannelCredit, 0, 3, &credit);
        assert!(hostile.is_closed(), "{credit:?}");
        for _ in 0..20 {
            writer.write_bytes(b"alone", Timeout::After(Duration::from_secs(60))).unwrap();
        }
        until("the writer knows", || writer.readers() == 0);
    }
    drop((writer, client));
    peers.assert_free(0);
}

#[test]
fn a_peer_that_knows_no_gaps_is_refused_by_a_channel_that_drops_and_leaves_nothing() {
    let _turn = TURNS.beside_others();
    let peers = alone();
    let client = peers.client(0);
    let spec = ChannelSpec::new("c").slots(4).slot_bytes(64 << 10).policy(Policy::DropOldest);
    let mut writer = client.channel_writer(&spec).unwrap();
    let mut earlier = Hostile::speaking(PEER_PIPES_SINCE, &peers, 1, "b");
    let attach = v1::PeerChannelAttach { name: "c".to_owned(), deadline_ms: 9_000, ..Default::default() };
    earlier.send(PeerKind::ChannelAttach, 0, 3, &attach);
    let refused = earlier.answer::<v1::PeerChannelAttached>(PeerKind::ChannelAttach, 3).unwrap_err();
    assert_eq!((refused.reason, refused.detail("policy")), (Reason::Unsupported, Some("drop_oldest")));
    assert_eq!(writer.write_bytes(b"on", Timeout::Now).unwrap().readers, 0);
    drop((writer, client, earlier));
    peers.assert_free(0);
}
