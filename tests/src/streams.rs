//! Streams of channels over gRPC, as a program in another language has them: of this process, and of one that is killed.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::tensorlane_client::TensorlaneClient;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use v1::channel_read_response::Event as Read;
use v1::channel_write_request::Step;
use v1::channel_write_response::Event as Wrote;

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
        let (name, wait_ms) = (name.to_owned(), 30_000);
        let request = v1::ChannelReadRequest { name, wait_ms, ..Default::default() };
        let mut client = self.client.clone();
        let mut answers = self.runtime.block_on(client.channel_read(request)).unwrap().into_inner();
        match self.next(&mut answers) {
            Read::Attached(attached) => StreamReader { grpc: self, answers, attached },
            other => panic!("a reader is attached first, not {other:?}"),
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
    let spec = v1::ChannelSpec { name, slots: 4, slot_bytes, readers_max: 0, policy: policy.into() };
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

    /// The next message, which is of plain bytes.
    pub fn plain(&mut self) -> (u64, Vec<u8>) {
        match self.event() {
            Came::Message(sequence, mut parts) if parts.len() == 1 => (sequence, parts.remove(0)),
            other => panic!("plain bytes, not {other:?}"),
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
