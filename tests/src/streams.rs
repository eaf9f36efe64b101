//! Streams of channels and pipes over gRPC, as a program in another language has them: of this process, and of one that is killed.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::tensorlane_client::TensorlaneClient;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use v1::channel_read_response::Event as Read;
use v1::channel_write_request::Step;
use v1::channel_write_response::Event as Wrote;
use v1::pipe_request::Step as PipeStep;
use v1::pipe_response::Event as PipeEvent;

use crate::other::{Other, role};
use crate::{Sidecar, until};

/// Longer than any wait of a test that succeeds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection over gRPC, with what it runs on.
pub struct Grpc {
    runtime: Runtime,
    client: TensorlaneClient<Channel>,
}

/// A stream that writes a channel.
pub struct StreamWriter<'a> {
    grpc: &'a Grpc,
    steps: Option<mpsc::UnboundedSender<v1::ChannelWriteRequest>>,
    answers: Streaming<v1::ChannelWriteResponse>,
}

/// A stream that reads a channel.
pub struct StreamReader<'a> {
    grpc: &'a Grpc,
    answers: Streaming<v1::ChannelReadResponse>,
    /// Result of its attach.
    pub attached: v1::ChannelAttached,
}

/// A stream that is an end of a pipe.
pub struct StreamPipe<'a> {
    grpc: &'a Grpc,
    steps: Option<mpsc::UnboundedSender<v1::PipeRequest>>,
    answers: Streaming<v1::PipeResponse>,
    /// The other end.
    pub opened: v1::PipeOpened,
}

/// Event of a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// A message: its sequence and the bytes of its parts.
    Message(u64, Vec<Vec<u8>>),
    /// Messages that were dropped, and the sequence behind them.
    Gap(u64, u64),
    /// The last answer.
    End(v1::ChannelOutcome),
}

// === impl Grpc ===

impl Grpc {
    /// Connects to a sidecar.
    pub fn of(sidecar: &Sidecar) -> Self {
        Self::at(&sidecar.sockets())
    }

    /// Connects to the socket in that directory.
    pub fn at(sockets: &Path) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let socket = sockets.join("grpc.sock");
        // It is there a moment after that of sessions.
        until("the socket of gRPC is there", || socket.exists());
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
        // A client that reads nothing has little on its way.
        let endpoint = endpoint.unwrap().initial_stream_window_size(64 << 10).user_agent("streams").unwrap();
        let client = TensorlaneClient::new(runtime.block_on(endpoint.connect()).unwrap());
        Self { runtime, client }
    }

    /// A client of this connection.
    #[must_use]
    pub fn client(&self) -> TensorlaneClient<Channel> {
        self.client.clone()
    }

    /// Waits for a call of that client, or for one more message of it.
    pub fn wait<T>(&self, call: impl Future<Output = T>) -> T {
        let in_time = async { tokio::time::timeout(PATIENCE, call).await };
        self.runtime.block_on(in_time).expect("an answer comes")
    }

    /// Begins a call of that client beside others.
    pub fn spawn<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(call)
    }

    /// Sends all messages of a stream of puts.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn put(&self, chunks: Vec<v1::PutChunk>) -> Result<v1::PutResponse, tonic::Status> {
        let mut client = self.client.clone();
        let answer = self.runtime.block_on(client.put(tokio_stream::iter(chunks)));
        answer.map(tonic::Response::into_inner)
    }

    /// Makes a channel and writes it.
    pub fn writes(&self, open: v1::ChannelOpen) -> StreamWriter<'_> {
        let (steps, requests) = mpsc::unbounded_channel();
        let mut client = self.client.clone();
        let answers = client.channel_write(UnboundedReceiverStream::new(requests));
        let answers = self.runtime.block_on(answers).unwrap().into_inner();
        let mut writer = StreamWriter { grpc: self, steps: Some(steps), answers };
        writer.say(Step::Open(open));
        assert!(matches!(writer.answer(), Wrote::Opened(_)));
        writer
    }

    /// Attaches a reader, which waits for a channel that does not exist yet.
    pub fn reads(&self, name: &str) -> StreamReader<'_> {
        self.reads_as(name, false)
    }

    /// Reads a channel, and goes on behind its end.
    pub fn follows(&self, name: &str) -> StreamReader<'_> {
        self.reads_as(name, true)
    }

    fn reads_as(&self, name: &str, follow: bool) -> StreamReader<'_> {
        let (name, wait_ms) = (name.to_owned(), 30_000);
        let request = v1::ChannelReadRequest { name, wait_ms, follow, ..Default::default() };
        let mut client = self.client.clone();
        let mut answers = self.runtime.block_on(client.channel_read(request)).unwrap().into_inner();
        match self.next(&mut answers) {
            Read::Attached(attached) => StreamReader { grpc: self, answers, attached },
            other => panic!("a reader is attached first, not {other:?}"),
        }
    }

    /// Connects a pipe to a listener, for which it waits.
    pub fn connects(&self, name: &str) -> StreamPipe<'_> {
        let name = name.to_owned();
        self.pipe(PipeStep::Connect(v1::PipeConnect { name, wait_ms: 30_000, ..Default::default() }))
    }

    /// Listens on a name for one pipe.
    pub fn accepts(&self, name: &str) -> StreamPipe<'_> {
        self.pipe(PipeStep::Accept(v1::PipeAccept { name: name.to_owned(), ..Default::default() }))
    }

    fn pipe(&self, first: PipeStep) -> StreamPipe<'_> {
        let (steps, requests) = mpsc::unbounded_channel();
        let mut client = self.client.clone();
        let answers = self.runtime.block_on(client.pipe(UnboundedReceiverStream::new(requests)));
        let (answers, opened) = (answers.unwrap().into_inner(), v1::PipeOpened::default());
        let mut pipe = StreamPipe { grpc: self, steps: Some(steps), answers, opened };
        pipe.say(first);
        match pipe.event() {
            PipeEvent::Opened(opened) => StreamPipe { opened, ..pipe },
            other => panic!("it is opened first, not {other:?}"),
        }
    }

    fn next(&self, answers: &mut Streaming<v1::ChannelReadResponse>) -> Read {
        let next = async { tokio::time::timeout(PATIENCE, answers.message()).await };
        self.runtime.block_on(next).expect("an answer comes").unwrap().unwrap().event.unwrap()
    }
}

/// A channel of that name and policy, of four slots of so many bytes.
pub fn channel(name: &str, slot_bytes: u64, policy: v1::ChannelPolicy) -> v1::ChannelOpen {
    let name = name.to_owned();
    let spec = v1::ChannelSpec { name, slots: 4, slot_bytes, policy: policy.into(), ..Default::default() };
    v1::ChannelOpen { spec: Some(spec), ..Default::default() }
}

// === impl StreamWriter ===

impl StreamWriter<'_> {
    /// Sends a step.
    pub fn say(&mut self, step: Step) {
        let request = v1::ChannelWriteRequest { step: Some(step) };
        self.steps.as_ref().unwrap().send(request).unwrap();
    }

    /// The next answer.
    pub fn answer(&mut self) -> Wrote {
        let next = async { tokio::time::timeout(PATIENCE, self.answers.message()).await };
        self.grpc.runtime.block_on(next).expect("an answer comes").unwrap().unwrap().event.unwrap()
    }

    /// Sends a message of these parts in chunks, which may wait so long for a slot; without a time for ever.
    pub fn begin(&mut self, parts: &[(Option<v1::Descriptor>, &[u8])], wait_ms: Option<u64>) {
        let part = |(descriptor, bytes): &(Option<v1::Descriptor>, &[u8])| v1::ChannelPart {
            descriptor: descriptor.clone(),
            bytes: bytes.len() as u64,
            data: Bytes::new(),
        };
        let message = v1::ChannelWriteMessage { parts: parts.iter().map(part).collect(), wait_ms };
        self.say(Step::Message(message));
        for (part, (_, bytes)) in (0..).zip(parts) {
            for piece in bytes.chunks(100_000) {
                let data = Bytes::copy_from_slice(piece);
                self.say(Step::Chunk(v1::ChannelChunk { part, data }));
            }
        }
    }

    /// Writes a message of plain bytes.
    pub fn write(&mut self, bytes: &[u8]) -> v1::ChannelWritten {
        self.begin(&[(None, bytes)], None);
        loop {
            match self.answer() {
                Wrote::Written(written) => return written,
                Wrote::Blocked(_) => {}
                other => panic!("a message is written, not {other:?}"),
            }
        }
    }

    /// Says that no message comes any more.
    pub fn finish(mut self) {
        self.say(Step::Finish(v1::ChannelFinish {}));
        assert!(matches!(self.answer(), Wrote::Finished(_)));
    }
}

// === impl StreamReader ===

impl StreamReader<'_> {
    /// The next event, whole.
    pub fn event(&mut self) -> Came {
        let message = match self.grpc.next(&mut self.answers) {
            Read::Message(message) => message,
            Read::Gap(gap) => return Came::Gap(gap.dropped, gap.next),
            Read::End(end) => return Came::End(end.outcome()),
            other => panic!("a message or an end, not {other:?}"),
        };
        let mut parts: Vec<Vec<u8>> = message.parts.iter().map(|part| part.data.to_vec()).collect();
        let missing = |parts: &[Vec<u8>]| {
            parts.iter().zip(&message.parts).any(|(came, part)| (came.len() as u64) < part.bytes)
        };
        while missing(&parts) {
            match self.grpc.next(&mut self.answers) {
                Read::Chunk(chunk) => parts[chunk.part as usize].extend_from_slice(&chunk.data),
                other => panic!("more of a message, not {other:?}"),
            }
        }
        Came::Message(message.sequence, parts)
    }

    /// Reason for which the stream ends, whatever comes before.
    pub fn failure(mut self) -> String {
        loop {
            let next = async { tokio::time::timeout(PATIENCE, self.answers.message()).await };
            match self.grpc.runtime.block_on(next).expect("an answer comes") {
                Ok(Some(_)) => {}
                Ok(None) => return String::new(),
                Err(status) => return reason_of(&status),
            }
        }
    }

    /// The next message, which is of plain bytes.
    pub fn plain(&mut self) -> (u64, Vec<u8>) {
        match self.event() {
            Came::Message(sequence, mut parts) if parts.len() == 1 => (sequence, parts.remove(0)),
            other => panic!("plain bytes, not {other:?}"),
        }
    }
}

// === impl StreamPipe ===

impl StreamPipe<'_> {
    /// Sends a step.
    pub fn say(&mut self, step: PipeStep) {
        self.steps.as_ref().unwrap().send(v1::PipeRequest { step: Some(step) }).unwrap();
    }

    /// The next answer; none at the end of the stream.
    ///
    /// # Errors
    /// The status that ended it.
    pub fn answer(&mut self) -> Result<Option<PipeEvent>, tonic::Status> {
        let next = async { tokio::time::timeout(PATIENCE, self.answers.message()).await };
        let answer = self.grpc.runtime.block_on(next).expect("an answer comes")?;
        Ok(answer.map(|answer| answer.event.unwrap()))
    }

    /// The next answer, which is no end.
    pub fn event(&mut self) -> PipeEvent {
        self.answer().unwrap().unwrap()
    }

    /// Sends a message of these words and parts, in chunks.
    pub fn begin(&mut self, words: &str, parts: &[(Option<v1::Descriptor>, &[u8])]) {
        let part = |(descriptor, bytes): &(Option<v1::Descriptor>, &[u8])| v1::PipeStreamPart {
            descriptor: descriptor.clone(),
            bytes: bytes.len() as u64,
            ..Default::default()
        };
        self.say(PipeStep::Message(v1::PipeStreamMessage {
            metadata: Bytes::copy_from_slice(words.as_bytes()),
            parts: parts.iter().map(part).collect(),
            deadline_ms: 60_000,
        }));
        for (part, (_, bytes)) in (0..).zip(parts) {
            for piece in bytes.chunks(100_000) {
                let data = Bytes::copy_from_slice(piece);
                self.say(PipeStep::Chunk(v1::PipeChunk { part, data }));
            }
        }
    }

    /// The end of a write: its number, whether it was delivered, and the reason if it was not.
    pub fn written(&mut self) -> (u64, v1::PipeDelivered, String) {
        match self.event() {
            PipeEvent::Written(written) => {
                let reason = written.failure.as_ref().map(|failure| failure.reason.clone());
                (written.message, written.delivered(), reason.unwrap_or_default())
            }
            other => panic!("a write has ended, not {other:?}"),
        }
    }

    /// The next message, which is taken: its words, and the bytes of its parts.
    pub fn read(&mut self) -> (String, Vec<Vec<u8>>) {
        let (message, words, parts) = self.received();
        self.say(PipeStep::Taken(v1::PipeTaken { message }));
        (words, parts)
    }

    /// The next message with its number, which is not taken.
    pub fn received(&mut self) -> (u64, String, Vec<Vec<u8>>) {
        let PipeEvent::Received(received) = self.event() else { panic!("a message is there") };
        let mut parts: Vec<Vec<u8>> = received.parts.iter().map(|part| part.data.to_vec()).collect();
        let missing = |parts: &[Vec<u8>]| {
            parts.iter().zip(&received.parts).any(|(came, part)| (came.len() as u64) < part.bytes)
        };
        while missing(&parts) {
            match self.event() {
                PipeEvent::Chunk(chunk) => parts[chunk.part as usize].extend_from_slice(&chunk.data),
                other => panic!("more of a message, not {other:?}"),
            }
        }
        (received.message, String::from_utf8(received.metadata.to_vec()).unwrap(), parts)
    }

    /// Says that no message comes any more.
    pub fn finish(&mut self) {
        self.say(PipeStep::Finish(v1::PipeFinish {}));
    }

    /// Reason for which the stream ends; empty where it ends well.
    pub fn end(mut self) -> String {
        loop {
            match self.answer() {
                Ok(Some(_)) => {}
                Ok(None) => return String::new(),
                Err(status) => return reason_of(&status),
            }
        }
    }
}

/// Starts a stream in a process of its own: the test `streams::another_process_has_a_stream` of this program, which calls
/// [`play_role`].
pub fn other_stream(sidecar: &Sidecar, role: &str) -> Other {
    Other::start("streams::another_process_has_a_stream", sidecar, role)
}

/// Writes or reads the channel `c` until it is killed, where this process is the other one of a test.
pub fn play_role() {
    let Some((sockets, role)) = role() else { return };
    let grpc = Grpc::at(Path::new(&sockets));
    if role == "connects" {
        let mut pipe = grpc.connects("inbox");
        pipe.begin("written", &[(None, &[7; 100_000])]);
        pipe.say(PipeStep::Message(v1::PipeStreamMessage {
            parts: vec![v1::PipeStreamPart { bytes: 1 << 20, ..Default::default() }],
            ..Default::default()
        }));
        assert_eq!(pipe.received().1, "shown");
        println!("shown");
        // Killed here: no answer comes.
        let _ = pipe.answer();
        return;
    }
    if role == "writes" {
        let mut writer = grpc.writes(channel("c", 64 << 10, v1::ChannelPolicy::Block));
        writer.write(b"written");
        let half =
            v1::ChannelPart { bytes: 8, data: Bytes::from_static(b"half"), ..v1::ChannelPart::default() };
        let message = v1::ChannelWriteMessage { parts: vec![half], wait_ms: None };
        writer.say(Step::Message(message));
        println!("written");
        // Killed here: no answer comes.
        let _ = writer.answer();
        return;
    }
    let mut reader = grpc.reads("c");
    println!("attached");
    // Killed here.
    while !matches!(reader.event(), Came::End(_)) {}
}

/// Reason that a status gives; empty where it gives none.
#[must_use]
pub fn reason_of(status: &tonic::Status) -> String {
    let details = tonic_types::StatusExt::get_details_error_info(status);
    details.map(|info| info.reason).unwrap_or_default()
}
