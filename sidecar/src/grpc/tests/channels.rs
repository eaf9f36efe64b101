//! Channels over gRPC: a stream that writes, streams that read, and what ends either.

use bytes::Bytes;
use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};
use v1::channel_read_response::Event as Read;
use v1::channel_write_request::Step;
use v1::channel_write_response::Event as Wrote;

use super::world::{Client, PATIENCE, World, descriptor, info, pattern};

/// A stream that writes.
struct Writer {
    steps: mpsc::UnboundedSender<v1::ChannelWriteRequest>,
    answers: Streaming<v1::ChannelWriteResponse>,
}

impl Writer {
    async fn begin(client: &mut Client) -> Self {
        let (steps, requests) = mpsc::unbounded_channel();
        let answers = client.channel_write(UnboundedReceiverStream::new(requests)).await.unwrap();
        Self { steps, answers: answers.into_inner() }
    }

    /// A channel of that name, of four slots of 64 KiB.
    async fn open(client: &mut Client, name: &str, policy: v1::ChannelPolicy) -> Self {
        let mut writer = Self::begin(client).await;
        writer.say(open(name, policy));
        assert!(matches!(writer.next().await, Wrote::Opened(_)));
        writer
    }

    fn say(&self, step: Step) {
        self.steps.send(v1::ChannelWriteRequest { step: Some(step) }).unwrap();
    }

    async fn answer(&mut self) -> Result<Option<v1::ChannelWriteResponse>, Status> {
        tokio::time::timeout(PATIENCE, self.answers.message()).await.expect("an answer comes")
    }

    async fn next(&mut self) -> Wrote {
        self.answer().await.unwrap().unwrap().event.unwrap()
    }

    /// The next answer that is not about a wait.
    async fn outcome(&mut self) -> Wrote {
        loop {
            match self.next().await {
                Wrote::Blocked(_) => {}
                other => return other,
            }
        }
    }

    async fn written(&mut self) -> v1::ChannelWritten {
        match self.outcome().await {
            Wrote::Written(written) => written,
            other => panic!("a message is written, not {other:?}"),
        }
    }

    async fn refused(&mut self) -> (u64, v1::Failure) {
        match self.outcome().await {
            Wrote::Refused(refused) => (refused.message, refused.failure.unwrap()),
            other => panic!("a message is refused, not {other:?}"),
        }
    }
}

fn open(name: &str, policy: v1::ChannelPolicy) -> Step {
    let spec = v1::ChannelSpec {
        name: name.to_owned(),
        slots: 4,
        slot_bytes: 64 << 10,
        policy: policy.into(),
        ..Default::default()
    };
    Step::Open(v1::ChannelOpen { spec: Some(spec), client: "writes".to_owned(), ..Default::default() })
}

fn message(parts: Vec<v1::ChannelPart>, wait_ms: Option<u64>) -> Step {
    Step::Message(v1::ChannelWriteMessage { parts, wait_ms })
}

/// Plain bytes in one piece.
fn plain(bytes: &[u8]) -> Step {
    let data = Bytes::copy_from_slice(bytes);
    message(vec![v1::ChannelPart { descriptor: None, bytes: bytes.len() as u64, data }], None)
}

fn announced(bytes: u64) -> Step {
    message(vec![v1::ChannelPart { bytes, ..Default::default() }], None)
}

fn chunk(part: u32, bytes: &[u8]) -> Step {
    Step::Chunk(v1::ChannelChunk { part, data: Bytes::copy_from_slice(bytes) })
}

fn finish() -> Step {
    Step::Finish(v1::ChannelFinish {})
}

fn reads(name: &str) -> v1::ChannelReadRequest {
    v1::ChannelReadRequest { name: name.to_owned(), client: "reads".to_owned(), ..Default::default() }
}

/// A stream that reads, with what it was told first.
async fn attach(client: &mut Client, request: v1::ChannelReadRequest) -> Streaming<v1::ChannelReadResponse> {
    let mut stream = client.channel_read(request).await.unwrap().into_inner();
    match event(&mut stream).await {
        Read::Attached(_) => stream,
        other => panic!("a reader is attached first, not {other:?}"),
    }
}

async fn event(stream: &mut Streaming<v1::ChannelReadResponse>) -> Read {
    let answer = tokio::time::timeout(PATIENCE, stream.message()).await.expect("an answer comes");
    answer.unwrap().unwrap().event.unwrap()
}

/// The next message, with the bytes of its parts.
async fn read(stream: &mut Streaming<v1::ChannelReadResponse>) -> (v1::ChannelMessage, Vec<Vec<u8>>) {
    let Read::Message(message) = event(stream).await else { panic!("a message is there") };
    let mut parts: Vec<Vec<u8>> = message.parts.iter().map(|part| part.data.to_vec()).collect();
    let is_whole = |parts: &[Vec<u8>]| {
        parts.iter().zip(&message.parts).all(|(came, part)| came.len() as u64 == part.bytes)
    };
    while !is_whole(&parts) {
        match event(stream).await {
            Read::Chunk(chunk) => parts[chunk.part as usize].extend_from_slice(&chunk.data),
            other => panic!("more of the message, not {other:?}"),
        }
    }
    (message, parts)
}

async fn ended(stream: &mut Streaming<v1::ChannelReadResponse>) -> v1::ChannelOutcome {
    let outcome = match event(stream).await {
        Read::End(end) => end.outcome(),
        other => panic!("an end, not {other:?}"),
    };
    assert!(stream.message().await.unwrap().is_none(), "an end is the last answer");
    outcome
}

/// Channels, and readers of them.
fn counts(world: &World) -> (usize, usize) {
    let totals = world.exchange.channel_totals();
    (totals.channels, totals.readers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_parts_go_through_a_channel_and_its_finish_is_told() {
    let world = World::new().await;
    let (mut writes, mut reads_) = (world.client().await, world.client().await);
    let mut writer = Writer::open(&mut writes, "c", v1::ChannelPolicy::Block).await;
    let mut reader = attach(&mut reads_, reads("c")).await;
    let parts = |data: &[&[u8]]| {
        let shapes = [vec![3u64], vec![2, 5000]];
        let part = |(shape, data): (&Vec<u64>, &&[u8])| v1::ChannelPart {
            descriptor: Some(descriptor(DType::F32, shape)),
            bytes: 0,
            data: Bytes::copy_from_slice(data),
        };
        message(shapes.iter().zip(data).map(part).collect(), None)
    };
    let (small, large) = (pattern(12), pattern(40_000));
    for sequence in 0..3 {
        writer.say(parts(&[&small[..5], &[]]));
        for piece in large.chunks(7_777) {
            writer.say(chunk(1, piece));
        }
        writer.say(chunk(0, &small[5..]));
        let written = writer.written().await;
        assert_eq!((written.message, written.sequence, written.readers), (sequence, sequence, 1));
        let (told, bytes) = read(&mut reader).await;
        assert_eq!((told.sequence, bytes), (sequence, vec![small.clone(), large.clone()]));
        let whole = v1::Descriptor { byte_length: 40_000, ..descriptor(DType::F32, &[2, 5000]) };
        assert_eq!(told.parts[1].descriptor, Some(whole));
    }
    writer.say(plain(b"bytes"));
    assert_eq!(read(&mut reader).await.1, [b"bytes"]);
    writer.say(message(Vec::new(), None));
    assert_eq!(read(&mut reader).await.1, [b""]);
    writer.say(finish());
    writer.written().await;
    writer.written().await;
    assert_eq!(writer.next().await, Wrote::Finished(v1::ChannelFinished { written: 5 }));
    assert!(writer.answer().await.unwrap().is_none());
    assert_eq!(ended(&mut reader).await, v1::ChannelOutcome::Finished);
    drop((writer, reader, writes, reads_));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_without_a_finish_is_a_writer_that_died() {
    let world = World::new().await;
    let (mut writes, mut client) = (world.client().await, world.client().await);
    // Its client says no more, in the middle of a message.
    let mut writer = Writer::open(&mut writes, "c", v1::ChannelPolicy::Block).await;
    let mut reader = attach(&mut client, reads("c")).await;
    writer.say(plain(b"whole"));
    writer.say(announced(10));
    writer.say(chunk(0, b"half"));
    writer.written().await;
    let Writer { steps, mut answers } = writer;
    drop(steps);
    assert_eq!(info(&answers.message().await.unwrap_err()).reason, "CANCELLED");
    assert_eq!(read(&mut reader).await.1, [b"whole"]);
    assert_eq!(ended(&mut reader).await, v1::ChannelOutcome::WriterLost);
    // Its client gives it up, and the name is free.
    let writer = Writer::open(&mut writes, "c", v1::ChannelPolicy::Block).await;
    let mut reader = attach(&mut client, reads("c")).await;
    drop(writer);
    assert_eq!(ended(&mut reader).await, v1::ChannelOutcome::WriterLost);
    drop((reader, writes, client));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_waits_hears_for_whom_and_goes_on_when_that_reader_ends() {
    let world = World::new().await;
    let (mut writes, mut client) = (world.client().await, world.narrow_channel(64 << 10).await);
    let mut client_ = Client::new(client.clone());
    let mut writer = Writer::open(&mut writes, "c", v1::ChannelPolicy::Block).await;
    let reader = attach(&mut client_, reads("c")).await;
    // It reads nothing: what is on its way to it is bounded, and then the ring is full.
    let bytes = pattern(60_000);
    let mut sent = 0;
    let blocked = loop {
        writer.say(plain(&bytes));
        sent += 1;
        match writer.next().await {
            Wrote::Written(_) => assert!(sent < 64, "nobody holds the writer up"),
            Wrote::Blocked(blocked) => break blocked,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((blocked.message, blocked.client.as_str()), (sent - 1, "reads"));
    assert!(blocked.held_ms >= 1_000);
    drop(reader);
    assert_eq!(writer.written().await.message, sent - 1);
    // Now with a time to wait.
    let reader = attach(&mut client_, reads("c")).await;
    let hurried = |bytes: &[u8]| {
        let data = Bytes::copy_from_slice(bytes);
        let part = v1::ChannelPart { bytes: bytes.len() as u64, data, ..Default::default() };
        message(vec![part], Some(50))
    };
    let failure = loop {
        writer.say(hurried(&bytes));
        sent += 1;
        match writer.outcome().await {
            Wrote::Written(_) => assert!(sent < 128, "nobody holds the writer up"),
            Wrote::Refused(refused) => break refused.failure.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((failure.reason.as_str(), failure.details["client"].as_str()), ("BLOCKED_BY", "reads"));
    drop(reader);
    world.until("the reader is gone", || counts(&world).1 == 0).await;
    writer.say(finish());
    assert!(matches!(writer.outcome().await, Wrote::Finished(_)));
    drop((writer, writes, client_));
    client = world.channel().await;
    drop(client);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_a_channel_that_drops_is_told_what_it_missed() {
    for policy in [v1::ChannelPolicy::DropOldest, v1::ChannelPolicy::Latest] {
        let world = World::new().await;
        let mut writes = world.client().await;
        let mut client = Client::new(world.narrow_channel(64 << 10).await);
        let mut writer = Writer::open(&mut writes, "c", policy).await;
        let mut reader = attach(&mut client, reads("c")).await;
        let bytes = pattern(60_000);
        for sequence in 0..40 {
            writer.say(plain(&bytes));
            assert_eq!(writer.written().await.sequence, sequence);
        }
        writer.say(finish());
        assert!(matches!(writer.next().await, Wrote::Finished(_)));
        let (mut next, mut dropped) = (0, 0);
        loop {
            match event(&mut reader).await {
                Read::Message(message) => {
                    assert_eq!((message.sequence, &message.parts[0].data[..]), (next, &bytes[..]));
                    next += 1;
                }
                Read::Gap(gap) => {
                    next += gap.dropped;
                    dropped += gap.dropped;
                    assert_eq!(next, gap.next);
                }
                Read::End(end) => {
                    assert_eq!((next, end.outcome()), (40, v1::ChannelOutcome::Finished));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(dropped > 0, "{policy:?}");
        drop((writer, reader, writes, client));
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_understood_ends_the_stream_and_leaves_nothing() {
    let world = World::new().await;
    let mut client = world.client().await;
    let unknown = v1::ChannelPart {
        descriptor: Some(v1::Descriptor { dtype: 0xffff, shape: vec![1], ..Default::default() }),
        ..Default::default()
    };
    let too_long = v1::ChannelOpen { client: "c".repeat(65), ..Default::default() };
    let fine = || open("c", v1::ChannelPolicy::Block);
    let Step::Open(crowded) = fine() else { panic!("it opens") };
    let spec = crowded.spec.clone().map(|spec| v1::ChannelSpec { readers_max: 2, ..spec });
    let crowded = v1::ChannelOpen { spec, expect_readers: 3, ..crowded };
    let Step::Open(grows) = fine() else { panic!("it opens") };
    let spec = grows.spec.clone().map(|spec| v1::ChannelSpec { growth: 1 << 20, ..spec });
    let grows = v1::ChannelOpen { spec, ..grows };
    for (steps, reason) in [
        (vec![plain(b"first")], "INVALID_ARGUMENT"),
        (vec![finish()], "INVALID_ARGUMENT"),
        (vec![Step::Open(v1::ChannelOpen::default())], "INVALID_ARGUMENT"),
        (vec![Step::Open(too_long)], "INVALID_ARGUMENT"),
        (vec![Step::Open(crowded)], "INVALID_ARGUMENT"),
        (vec![Step::Open(grows)], "UNSUPPORTED"),
        (vec![fine(), fine()], "INVALID_ARGUMENT"),
        (vec![fine(), chunk(0, b"of nothing")], "INVALID_ARGUMENT"),
        (vec![fine(), announced(4), chunk(0, b"beyond")], "INVALID_ARGUMENT"),
        (vec![fine(), announced(4), chunk(1, b"else")], "INVALID_ARGUMENT"),
        (vec![fine(), announced(4), plain(b"other")], "INVALID_ARGUMENT"),
        (vec![fine(), announced(4), finish()], "INVALID_ARGUMENT"),
        (vec![fine(), announced(4 << 20), chunk(0, &vec![0; (1 << 20) + 1])], "TOO_LARGE"),
        (vec![fine(), message(vec![unknown], None)], "DTYPE_UNKNOWN"),
    ] {
        let mut writer = Writer::begin(&mut client).await;
        steps.iter().for_each(|step| writer.say(step.clone()));
        let refused = loop {
            match writer.answer().await {
                Ok(Some(answer)) => {
                    assert!(matches!(answer.event, Some(Wrote::Opened(_) | Wrote::Refused(_))), "{steps:?}");
                }
                Ok(None) => panic!("{steps:?} is taken"),
                Err(refused) => break refused,
            }
        };
        assert_eq!(info(&refused).reason, reason, "{steps:?}: {refused}");
        assert_eq!(counts(&world), (0, 0), "{steps:?}");
    }
    let mut stream = client.channel_read(reads("absent")).await.unwrap().into_inner();
    assert_eq!(info(&stream.message().await.unwrap_err()).reason, "NOT_FOUND");
    drop((stream, client));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_does_not_fit_is_passed_over_and_the_stream_goes_on() {
    let world = World::new().await;
    let mut client = world.client().await;
    let mut writer = Writer::open(&mut client, "c", v1::ChannelPolicy::Block).await;
    let bytes = pattern(100_000);
    writer.say(announced(bytes.len() as u64));
    bytes.chunks(50_000).for_each(|piece| writer.say(chunk(0, piece)));
    let (number, failure) = writer.refused().await;
    assert_eq!((number, failure.reason.as_str()), (0, "TOO_LARGE"));
    // Each may have that much metadata, and a ring has room for less than twice as much.
    let metadata = (0..3).map(|key| (key.to_string(), "m".repeat(4_000))).collect();
    let wordy = v1::Descriptor { metadata, ..descriptor(DType::U8, &[0]) };
    let part = v1::ChannelPart { descriptor: Some(wordy), ..Default::default() };
    writer.say(message(vec![part.clone(), part], None));
    let (number, failure) = writer.refused().await;
    assert_eq!((number, failure.reason.as_str()), (1, "TOO_LARGE"));
    writer.say(plain(b"fits"));
    let written = writer.written().await;
    assert_eq!((written.message, written.sequence), (2, 0));
    // Of so many parts nothing is made.
    let part = v1::ChannelPart { descriptor: Some(descriptor(DType::U8, &[0])), ..Default::default() };
    writer.say(message(vec![part; 1_025], None));
    assert_eq!(info(&writer.answer().await.unwrap_err()).reason, "TOO_LARGE");
    drop((writer, client));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_message_waits_for_the_readers_that_are_expected() {
    let world = World::new().await;
    let mut client = world.client().await;
    let mut writer = Writer::begin(&mut client).await;
    let Step::Open(expects) = open("c", v1::ChannelPolicy::Latest) else { unreachable!() };
    writer.say(Step::Open(v1::ChannelOpen { expect_readers: 1, ..expects }));
    assert!(matches!(writer.next().await, Wrote::Opened(_)));
    writer.say(message(Vec::new(), Some(20)));
    assert_eq!(writer.refused().await.1.reason, "DEADLINE_EXCEEDED");
    writer.say(plain(b"for one"));
    let mut reader = attach(&mut client, reads("c")).await;
    assert_eq!(writer.written().await.readers, 1);
    assert_eq!(read(&mut reader).await.1, [b"for one"]);
    // A name has one writer, whoever it is.
    let mut second = Writer::begin(&mut client).await;
    second.say(open("c", v1::ChannelPolicy::Block));
    assert_eq!(info(&second.answer().await.unwrap_err()).reason, "NAME_TAKEN");
    drop((writer, second, reader, client));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_streams_than_a_connection_may_have_are_refused_and_the_end_of_the_sidecar_ends_them() {
    let world = World::new().await;
    let mut client = world.client().await;
    let mut writer = Writer::open(&mut client, "c", v1::ChannelPolicy::Block).await;
    // One writer more than three could keep everything else of its connection out.
    let mut others = Vec::new();
    for name in ["d", "e"] {
        others.push(Writer::open(&mut client, name, v1::ChannelPolicy::Block).await);
    }
    let (_steps, requests) = mpsc::unbounded_channel::<v1::ChannelWriteRequest>();
    let refused = client.channel_write(UnboundedReceiverStream::new(requests)).await.map(drop).unwrap_err();
    assert_eq!(
        (info(&refused).reason.as_str(), &info(&refused).metadata["most"][..]),
        ("LIMIT_EXCEEDED", "3")
    );
    drop(others);
    world.until("two writers are gone", || counts(&world).0 == 1).await;
    let mut readers = Vec::new();
    for _ in 1..64 {
        readers.push(attach(&mut client, reads("c")).await);
    }
    let refused = client.channel_read(reads("c")).await.map(|_| ()).unwrap_err();
    assert_eq!(
        (info(&refused).reason.as_str(), &info(&refused).metadata["most"][..]),
        ("LIMIT_EXCEEDED", "64")
    );
    drop(readers.pop());
    world.until("a reader is gone", || counts(&world).1 == 62).await;
    readers.push(attach(&mut client, reads("c")).await);
    world.exchange.close();
    assert_eq!(info(&writer.answer().await.unwrap_err()).reason, "DRAINING");
    for mut reader in readers {
        assert_eq!(info(&reader.message().await.unwrap_err()).reason, "DRAINING");
    }
    assert_eq!(counts(&world), (0, 0));
    drop((writer, client));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_follows_is_told_of_the_next_channel_of_the_name() {
    let world = World::new().await;
    let (mut writes, mut reads_) = (world.client().await, world.client().await);
    let mut writer = Writer::open(&mut writes, "c", v1::ChannelPolicy::Block).await;
    let mut reader = attach(&mut reads_, v1::ChannelReadRequest { follow: true, ..reads("c") }).await;
    for bytes in [b"0", b"1"] {
        writer.say(plain(bytes));
        assert_eq!(read(&mut reader).await.1, [bytes]);
        writer.written().await;
    }
    writer.say(finish());
    assert!(matches!(writer.outcome().await, Wrote::Finished(_)));
    let mut writer = Writer::open(&mut writes, "c", v1::ChannelPolicy::Block).await;
    writer.say(plain(b"2"));
    let Read::Epoch(epoch) = event(&mut reader).await else { panic!("another channel is told") };
    let attached = epoch.attached.clone().unwrap();
    assert_eq!((epoch.outcome(), attached.first), (v1::ChannelOutcome::Finished, 0));
    assert_eq!(attached.writer, "writes");
    let (message, parts) = read(&mut reader).await;
    assert_eq!((message.sequence, parts), (0, vec![b"2".to_vec()]));
    drop(reader);
    writer.written().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_evicted_by_its_number_and_told() {
    let world = World::new().await;
    let (mut writes, mut reads_) = (world.client().await, world.client().await);
    let mut writer = Writer::begin(&mut writes).await;
    let Step::Open(mut opens) = open("c", v1::ChannelPolicy::Block) else { panic!("it opens") };
    opens.spec.as_mut().unwrap().evicts = true;
    writer.say(Step::Open(opens));
    assert!(matches!(writer.next().await, Wrote::Opened(_)));
    let mut reader = attach(&mut reads_, reads("c")).await;
    let channels = world.exchange.channel_stat(&v1::ChannelStatRequest::default()).channels;
    let number = channels[0].readers[0].reader;
    writer.say(Step::Evict(v1::ChannelEvict { reader: number }));
    writer.say(Step::Evict(v1::ChannelEvict { reader: number + 100 }));
    let told = tokio::time::timeout(PATIENCE, reader.message()).await.expect("it is told");
    assert_eq!(info(&told.unwrap_err()).reason, "EVICTED");
    writer.say(plain(b"on"));
    assert_eq!(writer.written().await.readers, 0);
    assert_eq!(world.exchange.channel_totals().evicted, 1);
    // One that was not made for it has nobody evicted.
    let mut writer = Writer::open(&mut writes, "d", v1::ChannelPolicy::Block).await;
    writer.say(Step::Evict(v1::ChannelEvict { reader: 1 }));
    assert_eq!(info(&writer.answer().await.unwrap_err()).reason, "INVALID_ARGUMENT");
}
