//! Pipes over gRPC: two streams are the ends of one, and what ends either.

use std::time::Duration;

use bytes::Bytes;
use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};
use v1::PipeDelivered::{No, Unknown, Yes};
use v1::pipe_request::Step;
use v1::pipe_response::Event;

use super::world::{ARENA_BYTES, Client, PATIENCE, Shape, World, descriptor, info, pattern};

/// A stream that is an end of a pipe.
struct End {
    steps: mpsc::UnboundedSender<v1::PipeRequest>,
    answers: Streaming<v1::PipeResponse>,
}

impl End {
    async fn begin(client: &mut Client, first: Step) -> Self {
        let (steps, requests) = mpsc::unbounded_channel();
        let answers = client.pipe(UnboundedReceiverStream::new(requests)).await.unwrap().into_inner();
        let end = Self { steps, answers };
        end.say(first);
        end
    }

    fn say(&self, step: Step) {
        self.steps.send(v1::PipeRequest { step: Some(step) }).unwrap();
    }

    async fn answer(&mut self) -> Result<Option<v1::PipeResponse>, Status> {
        tokio::time::timeout(PATIENCE, self.answers.message()).await.expect("an answer comes")
    }

    async fn event(&mut self) -> Event {
        self.answer().await.unwrap().unwrap().event.unwrap()
    }

    async fn opened(&mut self) -> v1::PipeOpened {
        match self.event().await {
            Event::Opened(opened) => opened,
            other => panic!("it is opened first, not {other:?}"),
        }
    }

    /// End of the write of a message: its number, whether it was delivered, and why not.
    async fn written(&mut self) -> (u64, v1::PipeDelivered, String) {
        match self.event().await {
            Event::Written(written) => {
                let reason = written.failure.as_ref().map(|failure| failure.reason.clone());
                (written.message, written.delivered(), reason.unwrap_or_default())
            }
            other => panic!("a write has ended, not {other:?}"),
        }
    }

    /// The next message, with the bytes of its parts.
    async fn received(&mut self) -> (v1::PipeReceived, Vec<Vec<u8>>) {
        let Event::Received(received) = self.event().await else { panic!("a message is there") };
        let mut parts: Vec<Vec<u8>> = received.parts.iter().map(|part| part.data.to_vec()).collect();
        let is_whole = |parts: &[Vec<u8>]| {
            parts.iter().zip(&received.parts).all(|(came, part)| came.len() as u64 == part.bytes)
        };
        while !is_whole(&parts) {
            match self.event().await {
                Event::Chunk(chunk) => parts[chunk.part as usize].extend_from_slice(&chunk.data),
                other => panic!("more of the message, not {other:?}"),
            }
        }
        (received, parts)
    }

    fn take(&self, message: u64) {
        self.say(Step::Taken(v1::PipeTaken { message }));
    }

    /// Reason for which the stream ended.
    async fn failed(&mut self) -> String {
        loop {
            match self.answer().await {
                Ok(Some(_)) => {}
                Ok(None) => return String::new(),
                Err(status) => return info(&status).reason,
            }
        }
    }
}

fn accept(name: &str) -> Step {
    let (name, client) = (name.to_owned(), "accepts".to_owned());
    Step::Accept(v1::PipeAccept { name, client, ..Default::default() })
}

fn connect(name: &str) -> Step {
    let (name, client) = (name.to_owned(), "connects".to_owned());
    Step::Connect(v1::PipeConnect { name, client, wait_ms: 20_000, ..Default::default() })
}

/// A message of metadata alone.
fn text(metadata: &'static str) -> Step {
    Step::Message(v1::PipeStreamMessage { metadata: metadata.into(), ..Default::default() })
}

fn payload(bytes: &[u8]) -> v1::PipeStreamPart {
    let data = Bytes::copy_from_slice(bytes);
    v1::PipeStreamPart { bytes: bytes.len() as u64, data, ..Default::default() }
}

fn tensor(shape: &[u64], data: &[u8]) -> v1::PipeStreamPart {
    let (descriptor, data) = (Some(descriptor(DType::F32, shape)), Bytes::copy_from_slice(data));
    v1::PipeStreamPart { descriptor, data, metadata: Bytes::from_static(b"about"), ..Default::default() }
}

fn message(parts: Vec<v1::PipeStreamPart>) -> Step {
    Step::Message(v1::PipeStreamMessage { parts, ..Default::default() })
}

fn finish() -> Step {
    Step::Finish(v1::PipeFinish {})
}

/// Both ends of a pipe, that which connected first.
async fn pipe(world: &World) -> (End, End) {
    let mut accepting = End::begin(&mut world.client().await, accept("inbox")).await;
    let mut connecting = End::begin(&mut world.client().await, connect("inbox")).await;
    let (a, b) = (connecting.opened().await, accepting.opened().await);
    assert_eq!(
        (&a.client[..], &b.client[..], &a.route[..], &b.peer[..]),
        ("accepts", "connects", "local", "here")
    );
    (connecting, accepting)
}

/// Pipes of which an end is open, and messages that are not read.
fn counts(world: &World) -> (usize, usize) {
    let totals = world.exchange.pipe_totals();
    (totals.pipes, totals.unread)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_go_both_ways_and_a_write_has_ended_when_the_other_end_says_that_it_was_read() {
    let world = World::new().await;
    let (mut a, mut b) = pipe(&world).await;
    let (small, large, long) = (pattern(12), pattern(600_000), pattern(20_000));
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = &mut [&mut a, &mut b];
        for number in 1..3 {
            ends[from].say(Step::Message(v1::PipeStreamMessage {
                metadata: Bytes::from_static(b"words"),
                parts: vec![
                    payload(b"inside"),
                    tensor(&[2, 75_000], b""),
                    payload(&long),
                    tensor(&[3], &small),
                ],
                deadline_ms: 0,
            }));
            for piece in large.chunks(70_000) {
                ends[from].say(Step::Chunk(v1::PipeChunk { part: 1, data: Bytes::copy_from_slice(piece) }));
            }
            let (told, parts) = ends[to].received().await;
            assert_eq!((told.message, &told.metadata[..]), (number, &b"words"[..]));
            assert_eq!(parts, [b"inside".to_vec(), long.clone(), large.clone(), small.clone()]);
            let whole = v1::Descriptor { byte_length: 600_000, ..descriptor(DType::F32, &[2, 75_000]) };
            assert_eq!(
                (&told.parts[2].descriptor, &told.parts[2].metadata[..]),
                (&Some(whole), &b"about"[..])
            );
            assert_eq!((told.parts[1].descriptor.is_none(), counts(&world).1), (true, 1), "it is not read");
            ends[to].take(number);
            assert_eq!(ends[from].written().await, (number, Yes, String::new()));
        }
    }
    // Nothing at all, and the end.
    a.say(message(Vec::new()));
    a.say(finish());
    assert_eq!(b.received().await.1, Vec::<Vec<u8>>::new());
    assert!(matches!(b.event().await, Event::End(_)));
    b.take(3);
    assert_eq!(a.written().await, (3, Yes, String::new()));
    b.say(text("after the end of the other one"));
    b.say(finish());
    assert_eq!(&a.received().await.0.metadata[..], b"after the end of the other one");
    assert!(matches!(a.event().await, Event::End(_)));
    a.take(3);
    assert!(a.answer().await.unwrap().is_none(), "both have finished, and all was read");
    assert_eq!(b.written().await, (3, Yes, String::new()));
    assert!(b.answer().await.unwrap().is_none());
    world.until("nothing is left", || counts(&world) == (0, 0)).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_only_writes_ends_its_side_behind_its_finish_and_hears_of_every_message() {
    let world = World::new().await;
    let (a, mut b) = pipe(&world).await;
    a.say(text("one"));
    a.say(text("two"));
    a.say(finish());
    let End { steps, mut answers } = a;
    drop(steps);
    for number in 1..3 {
        assert_eq!(b.received().await.0.message, number);
    }
    assert!(matches!(b.event().await, Event::End(_)));
    b.take(2);
    b.take(1);
    for number in [2, 1] {
        match answers.message().await.unwrap().unwrap().event.unwrap() {
            Event::Written(written) => assert_eq!((written.message, written.delivered()), (number, Yes)),
            other => panic!("a write has ended, not {other:?}"),
        }
    }
    assert!(answers.message().await.unwrap().is_none());
    // The other end is gone, and has finished.
    b.say(text("for nobody"));
    assert_eq!(b.written().await, (1, No, "PIPE_CLOSED".to_owned()));
    b.say(finish());
    assert!(b.answer().await.unwrap().is_none());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_dies_is_told_to_the_other_one_and_what_came_half_is_never_seen() {
    let world = World::new().await;
    let (mut a, mut b) = pipe(&world).await;
    a.say(text("shown"));
    assert_eq!(b.received().await.0.message, 1);
    a.say(message(vec![tensor(&[1000], &[0; 1000])]));
    world.until("half of it has come", || world.exchange.store().streams().count() > 0).await;
    assert_eq!(counts(&world), (1, 1));
    drop(b);
    assert_eq!(a.written().await, (1, Unknown, "PIPE_LOST".to_owned()));
    assert_eq!(a.failed().await, "PIPE_LOST");
    // The other way round: what was written and is not read is lost with its writer.
    let (mut a, b) = pipe(&world).await;
    b.say(message(vec![tensor(&[2], &[7; 8])]));
    assert_eq!(a.received().await.1, [[7; 8]]);
    b.say(message(vec![tensor(&[2], &[7; 4])]));
    let End { steps, mut answers } = b;
    drop(steps);
    let cut = answers.message().await.unwrap_err();
    assert_eq!(info(&cut).reason, "CANCELLED");
    assert!(cut.message().contains("in the middle of a message"), "{}", cut.message());
    assert_eq!(a.failed().await, "PIPE_LOST");
    // One that goes before anybody has connected.
    let gone = End::begin(&mut world.client().await, accept("inbox")).await;
    world.until("it listens", || world.exchange.pipe_totals().listeners == 1).await;
    drop(gone);
    world.until("the name is free", || world.exchange.pipe_totals().listeners == 0).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_refused_for_its_message_alone_and_nobody_has_seen_it() {
    let world = World::new().await;
    let (mut a, mut b) = pipe(&world).await;
    let metadata = Bytes::from(vec![0; (64 << 10) + 1]);
    a.say(Step::Message(v1::PipeStreamMessage { metadata, parts: vec![payload(b"x")], deadline_ms: 0 }));
    assert_eq!(a.written().await, (1, No, "TOO_LARGE".to_owned()));
    a.say(message(vec![tensor(&[ARENA_BYTES], b"its first bytes")]));
    assert_eq!(a.written().await, (2, No, "NEVER_FITS".to_owned()));
    // Each of them would fit.
    let most = tensor(&[ARENA_BYTES / 16 * 3], b"");
    b.say(message(vec![most.clone(), most]));
    assert_eq!(b.written().await, (1, No, "NEVER_FITS".to_owned()));
    let mut c = pipe_named(&world, "others", false).await;
    let mut d = pipe_named(&world, "others", true).await;
    c.opened().await;
    d.opened().await;
    let many: Vec<v1::PipeStreamPart> =
        vec![v1::PipeStreamPart { metadata: vec![1; 4096].into(), ..payload(b"") }; 200];
    c.say(message(many));
    assert_eq!(c.written().await, (1, No, "TOO_LARGE".to_owned()), "its descriptor has more than 512 KiB");
    c.say(text("on"));
    assert_eq!(d.received().await.0.message, 2);
    d.take(2);
    assert_eq!(c.written().await, (2, Yes, String::new()));
    // A write that nobody reads in time may have been read, and its bytes are free.
    c.say(Step::Message(v1::PipeStreamMessage {
        metadata: Bytes::new(),
        parts: vec![tensor(&[2], &[7; 8])],
        deadline_ms: 10_000,
    }));
    assert_eq!(d.received().await.0.message, 3);
    assert_eq!(c.written().await, (3, Unknown, "DEADLINE_EXCEEDED".to_owned()));
    d.take(3);
    c.say(text("on"));
    assert_eq!(d.received().await.0.message, 4);
    drop((a, c, d));
    assert_eq!(b.failed().await, "PIPE_LOST");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_in_the_midst_of_a_message_keeps_its_room_for_the_patience_of_the_sidecar() {
    let world = World::with(Shape { patience: Duration::from_secs(3), ..Shape::default() }).await;
    let (mut a, mut b) = pipe(&world).await;
    a.say(message(vec![tensor(&[2], b"half")]));
    assert_eq!(a.failed().await, "DEADLINE_EXCEEDED");
    assert_eq!(b.failed().await, "PIPE_LOST");
    world.until("its room is free", || world.exchange.store().arena().usage().reserved == 0).await;
    world.end().await;
}

/// An end that connects to a name, or accepts on it.
async fn pipe_named(world: &World, name: &str, accepts: bool) -> End {
    End::begin(&mut world.client().await, if accepts { accept(name) } else { connect(name) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_understood_ends_the_stream_with_the_reason() {
    let world = World::new().await;
    for first in [text("before it is opened"), finish(), Step::Taken(v1::PipeTaken { message: 1 })] {
        let mut end = End::begin(&mut world.client().await, first).await;
        assert_eq!(end.failed().await, "INVALID_ARGUMENT");
    }
    let chunk = |part, data: &[u8]| Step::Chunk(v1::PipeChunk { part, data: Bytes::copy_from_slice(data) });
    let unknown = v1::PipeStreamPart { descriptor: Some(v1::Descriptor::default()), ..payload(b"") };
    let wrong: [(Vec<Step>, &str); 8] = [
        (vec![accept("again")], "INVALID_ARGUMENT"),
        (vec![chunk(0, b"of nothing")], "INVALID_ARGUMENT"),
        (vec![Step::Taken(v1::PipeTaken { message: 1 })], "INVALID_ARGUMENT"),
        (vec![message(vec![tensor(&[2], b"")]), text("too early")], "INVALID_ARGUMENT"),
        (vec![message(vec![tensor(&[2], b"")]), chunk(0, &[0; 9])], "INVALID_ARGUMENT"),
        (vec![message(vec![unknown])], "DTYPE_UNKNOWN"),
        (vec![message(vec![tensor(&[1 << 20], b"")]), chunk(0, &[0; (1 << 20) + 1])], "TOO_LARGE"),
        (vec![finish(), text("behind the finish")], "INVALID_ARGUMENT"),
    ];
    for (steps, reason) in wrong {
        let (mut a, mut b) = pipe(&world).await;
        let had_finished = matches!(steps[0], Step::Finish(_));
        steps.into_iter().for_each(|step| a.say(step));
        assert_eq!(a.failed().await, reason);
        // To the other end it is lost, unless it had finished before.
        if had_finished {
            b.say(finish());
        }
        assert_eq!(b.failed().await, if had_finished { "" } else { "PIPE_LOST" });
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_many_unread_messages_is_held_back_and_goes_on_when_they_are_read() {
    const MESSAGES: u64 = 200;
    let world = World::new().await;
    let (mut a, mut b) = pipe(&world).await;
    for _ in 0..MESSAGES {
        a.say(message(vec![tensor(&[500], &[5; 2000])]));
    }
    a.say(finish());
    world.until("so many are unread", || counts(&world).1 == 64).await;
    for number in 1..=64 {
        assert_eq!(b.received().await.0.message, number);
    }
    assert!(world.totals().tensors <= 65, "what is held back takes no room");
    for number in 1..=MESSAGES {
        if number > 64 {
            assert_eq!(b.received().await.0.message, number);
        }
        b.take(number);
        assert_eq!(a.written().await, (number, Yes, String::new()));
    }
    assert!(matches!(b.event().await, Event::End(_)));
    drop((a, b));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_has_one_that_accepts_and_is_free_when_it_has_its_pipe_or_its_time_is_over() {
    let world = World::new().await;
    let mut client = world.client().await;
    let accepting = End::begin(&mut client, accept("inbox")).await;
    world.until("it listens", || world.exchange.pipe_totals().listeners == 1).await;
    let mut second = End::begin(&mut client, accept("inbox")).await;
    assert_eq!(second.failed().await, "NAME_TAKEN");
    drop((accepting, second));
    world.until("the name is free", || world.exchange.pipe_totals().listeners == 0).await;
    let late = v1::PipeAccept { name: "inbox".to_owned(), deadline_ms: 50, ..Default::default() };
    let mut late = End::begin(&mut client, Step::Accept(late)).await;
    assert_eq!(late.failed().await, "DEADLINE_EXCEEDED");
    let mut nobody = End::begin(
        &mut client,
        Step::Connect(v1::PipeConnect { name: "inbox".to_owned(), ..Default::default() }),
    )
    .await;
    assert_eq!(nobody.failed().await, "NOT_FOUND");
    // Two wait for it, and each accept gets one.
    let mut waiting = [pipe_named(&world, "inbox", false).await, pipe_named(&world, "inbox", false).await];
    let mut accepted = Vec::new();
    for _ in 0..2 {
        let mut end = pipe_named(&world, "inbox", true).await;
        end.opened().await;
        accepted.push(end);
    }
    for end in &mut waiting {
        end.opened().await;
    }
    assert_eq!((counts(&world).0, world.exchange.pipe_totals().listeners), (2, 0));
    // The end of the sidecar is told to all.
    world.exchange.close();
    for end in waiting.iter_mut().chain(&mut accepted) {
        assert!(["DRAINING", "PIPE_LOST"].contains(&&end.failed().await[..]));
    }
    drop((waiting, accepted, client));
    world.end().await;
}
