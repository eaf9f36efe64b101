//! A sidecar for tests, inside the test's process: real socket, real segments, real witnesses, no rules.
//!
//! It keeps what it is given, hands out ids and records what it is told. Tests reach into its state, make it hold its
//! replies, retire segments, hang up or start anew.

use std::collections::{HashMap, HashSet};
use std::io::{IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;
use tensorlane_memory::segment::{Sealed, Unsealed};
use tensorlane_memory::{Fallocate, Mapping, View, WriteView, passing};
use tensorlane_proto::frame::{FAILED, HEADER_BYTES, Header, REPLY, SessionKind, encode};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Incarnation, Reason, Reference, wire};

/// Size of every segment of the twin.
const SEGMENT_BYTES: u64 = 4 << 20;
/// The sidecar segment; session segments have the number of their link plus 100.
pub(crate) const SIDECAR_SEGMENT: u32 = 2;

/// Waits for a condition, with a deadline.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::yield_now();
    }
}

pub(crate) struct FakeSidecar {
    directory: TempDir,
    pub(crate) state: Arc<Mutex<State>>,
}

/// All that the twin knows.
pub(crate) struct State {
    pub(crate) incarnation: u128,
    /// Kinds of the frames that came, in order.
    pub(crate) frames: Vec<SessionKind>,
    pub(crate) released: Vec<u64>,
    pub(crate) still_mapped: Vec<u64>,
    pub(crate) aborted: Vec<u64>,
    pub(crate) cancelled: Vec<u64>,
    /// Errors that clients acknowledged segments with.
    pub(crate) mapped: Vec<String>,
    /// Set while replies are kept back.
    pub(crate) holding: bool,
    held: Vec<(usize, Vec<u8>)>,
    /// Number of waits for pipes that end as by the longest deadline of a sidecar.
    pub(crate) late: usize,
    /// Message that is the next one of every pipe; none is there without.
    pub(crate) pipe_message: Option<v1::PipeMessage>,
    /// Version of the session protocol that it speaks.
    pub(crate) version: u32,
    /// Length of the version in a Status reply, to have replies of any size.
    pub(crate) padding: usize,
    tensors: HashMap<u64, v1::Acquired>,
    names: HashMap<String, u64>,
    /// Answers to Seal by retry id.
    retries: HashMap<Vec<u8>, v1::StoredResult>,
    /// The ends of the witnesses that were given away, by segment.
    witnesses: Vec<(u32, OwnedFd)>,
    segments: HashMap<u32, Segment>,
    links: Vec<Link>,
    next: u64,
    end: u64,
    stopped: bool,
}

struct Link {
    socket: UnixStream,
    events: Option<OwnedFd>,
    announced: HashSet<u32>,
    end: u64,
}

enum Segment {
    Unsealed(Option<Unsealed>),
    Sealed(Sealed, Option<WriteView>),
}

impl FakeSidecar {
    pub(crate) fn start() -> Self {
        let state = State {
            incarnation: 7,
            frames: Vec::new(),
            released: Vec::new(),
            still_mapped: Vec::new(),
            aborted: Vec::new(),
            cancelled: Vec::new(),
            mapped: Vec::new(),
            holding: false,
            held: Vec::new(),
            tensors: HashMap::new(),
            names: HashMap::new(),
            retries: HashMap::new(),
            witnesses: Vec::new(),
            late: 0,
            pipe_message: None,
            version: 1,
            padding: 0,
            segments: HashMap::new(),
            links: Vec::new(),
            next: 1,
            end: 0,
            stopped: false,
        };
        let twin = Self { directory: tempfile::tempdir().unwrap(), state: Arc::new(Mutex::new(state)) };
        twin.listen();
        twin
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn listen(&self) {
        let listener = UnixListener::bind(self.directory().join("session.sock")).unwrap();
        let state = Arc::clone(&self.state);
        thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                let mut locked = state.lock();
                if locked.stopped {
                    return;
                }
                let link = locked.links.len();
                let own = socket.try_clone().unwrap();
                locked.links.push(Link { socket: own, events: None, announced: HashSet::new(), end: 0 });
                drop(locked);
                let state = Arc::clone(&state);
                thread::spawn(move || serve(&state, link, socket));
            }
        });
    }

    /// Dies as a process does: socket file stays, connections and pipes end, memory of others lives on.
    pub(crate) fn die(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.hang_up();
        state.tensors.clear();
        state.names.clear();
        state.segments.clear();
        drop(state);
        // Wakes the listener, which ends.
        let _ = UnixStream::connect(self.directory().join("session.sock"));
        std::fs::remove_file(self.directory().join("session.sock")).unwrap();
    }

    /// Comes back as another incarnation.
    pub(crate) fn rise(&self) {
        let mut state = self.state.lock();
        state.stopped = false;
        state.incarnation += 1;
        drop(state);
        self.listen();
    }

    /// Sends the replies that were kept back, the latest first.
    pub(crate) fn let_go_in_reverse(&self) {
        let mut state = self.state.lock();
        state.holding = false;
        while let Some((link, frame)) = state.held.pop() {
            (&state.links[link].socket).write_all(&frame).unwrap();
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Tells the first client that a segment is retired.
    pub(crate) fn retire(&self, segment: u32) {
        let state = self.state.lock();
        let frame = encode(SessionKind::SegmentRetired.into(), 0, 0, &v1::SegmentRetired { segment });
        rustix::io::write(state.links[0].events.as_ref().unwrap(), &frame).unwrap();
    }

    /// Gives the first client other pages for a sidecar segment, with the same bytes. `is_told`: also on the event pipe.
    pub(crate) fn exchange(&self, number: u32, is_told: bool) {
        let mut state = self.state.lock();
        let Some(Segment::Sealed(before, _)) = state.segments.get(&number) else {
            panic!("it is not sealed")
        };
        let before = Arc::new(Mapping::reader(before.reader_fd(), SEGMENT_BYTES).unwrap());
        let (sealed, mut view) = writable();
        view.copy_from(0, &View::new(before, 0, SEGMENT_BYTES).unwrap().to_vec()).unwrap();
        state.segments.insert(number, Segment::Sealed(sealed, Some(view)));
        let event = v1::SegmentFrame { segment: number, bytes: SEGMENT_BYTES, writable: false, again: true };
        state.send_segment(0, &event);
        if is_told {
            let frame = encode(SessionKind::SegmentExchanged.into(), 0, 0, &event);
            rustix::io::write(state.links[0].events.as_ref().unwrap(), &frame).unwrap();
        }
    }

    /// Returns whether nobody maps a segment any more, as far as its witnesses tell.
    pub(crate) fn is_unmapped(&self, segment: u32) -> bool {
        self.ended(segment).iter().all(|ended| *ended)
    }

    /// Tells for each witness of a segment whether it is at its end, in the order in which they were given away.
    pub(crate) fn ended(&self, segment: u32) -> Vec<bool> {
        let state = self.state.lock();
        let of_segment = state.witnesses.iter().filter(|(number, _)| *number == segment);
        let ended = of_segment.map(|(_, witness)| {
            let mut ready = [PollFd::new(witness, PollFlags::IN)];
            poll(&mut ready, Some(&Timespec::default())).unwrap();
            ready[0].revents().contains(PollFlags::HUP)
        });
        let ended: Vec<bool> = ended.collect();
        assert!(!ended.is_empty(), "segment {segment} was never announced");
        ended
    }

    pub(crate) fn count(&self, kind: SessionKind) -> usize {
        self.state.lock().frames.iter().filter(|seen| **seen == kind).count()
    }
}

/// A sealed segment that the twin writes.
fn writable() -> (Sealed, WriteView) {
    let unsealed = Unsealed::create(SEGMENT_BYTES, &Fallocate).unwrap();
    let mapping = Mapping::writer(unsealed.writer_fd().unwrap().as_fd(), SEGMENT_BYTES).unwrap();
    let view = WriteView::new(Arc::new(mapping), 0, SEGMENT_BYTES).unwrap();
    (unsealed.seal().unwrap(), view)
}

impl Drop for FakeSidecar {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.hang_up();
        drop(state);
        let _ = UnixStream::connect(self.directory().join("session.sock"));
    }
}

impl State {
    fn hang_up(&mut self) {
        for link in &mut self.links {
            let _ = link.socket.shutdown(Shutdown::Both);
            link.events = None;
        }
    }

    fn store(&mut self, place: Option<v1::Location>, descriptor: Option<v1::Descriptor>) -> u64 {
        let id = self.next;
        self.next += 1;
        let tensor = v1::Acquired { id, location: place, descriptor, ..v1::Acquired::default() };
        self.tensors.insert(id, tensor);
        id
    }

    fn stored(&mut self, id: u64, keep: &v1::Keep) -> v1::StoredResult {
        if !keep.name.is_empty() && self.names.contains_key(&keep.name) {
            let failure = (&Failure::new(Reason::NameTaken, "the name is taken")).into();
            return v1::StoredResult { outcome: Some(v1::stored_result::Outcome::Failure(failure)) };
        }
        if !keep.name.is_empty() {
            self.names.insert(keep.name.clone(), id);
        }
        let descriptor = wire::descriptor(self.tensors[&id].descriptor.clone().unwrap()).unwrap();
        let (exchange, peer) = ("ml".parse().unwrap(), "twin".parse().unwrap());
        let reference = Reference::new(exchange, peer, Incarnation(self.incarnation), id, &descriptor.layout);
        let ticket = if keep.ticket_ms > 0 { "ticket".into() } else { String::new() };
        let stored = v1::Stored { reference: reference.encode(), id, ticket };
        v1::StoredResult { outcome: Some(v1::stored_result::Outcome::Stored(stored)) }
    }

    fn acquire(&mut self, link: usize, item: &v1::GetItem) -> v1::AcquireResult {
        use v1::acquire_result::Outcome;
        let target = item.target.clone().unwrap();
        let id = match target.kind.unwrap() {
            v1::target::Kind::Id(id) => Some(id),
            v1::target::Kind::Name(name) => self.names.get(&name).copied(),
            v1::target::Kind::Reference(_) => None,
        };
        let Some(mut tensor) = id.and_then(|id| self.tensors.get(&id).cloned()) else {
            let failure = (&Failure::new(Reason::NotFound, "no such tensor")).into();
            return v1::AcquireResult { outcome: Some(Outcome::Failure(failure)) };
        };
        if let Some(place) = &tensor.location {
            self.announce(link, place.segment, false);
        }
        if let Some(v1::Selection { kind: Some(v1::selection::Kind::Ranges(_)) }) = &item.selection {
            // The one selection that the twin knows: every second column.
            let descriptor = tensor.descriptor.as_mut().unwrap();
            let row = descriptor.shape[1];
            descriptor.shape[1] /= 2;
            descriptor.strides = vec![i64::try_from(row).unwrap(), 2];
            descriptor.byte_length -= 1;
            tensor.location.as_mut().unwrap().bytes -= 1;
        }
        v1::AcquireResult { outcome: Some(Outcome::Acquired(tensor)) }
    }

    /// Announces a segment on a link, once.
    fn announce(&mut self, link: usize, number: u32, writable: bool) {
        if !self.links[link].announced.insert(number) {
            return;
        }
        let frame = v1::SegmentFrame { segment: number, bytes: SEGMENT_BYTES, writable, again: false };
        self.send_segment(link, &frame);
    }

    fn send_segment(&mut self, link: usize, frame: &v1::SegmentFrame) {
        let number = frame.segment;
        let frame = encode(SessionKind::Segment.into(), 0, 0, frame);
        let (ours, witness) = passing::pipe().unwrap();
        self.witnesses.push((number, ours));
        let send = |memory: BorrowedFd<'_>| {
            let socket = self.links[link].socket.as_fd();
            let sent = passing::send(socket, &[IoSlice::new(&frame)], &[memory, witness.as_fd()]).unwrap();
            assert_eq!(sent, frame.len());
        };
        match &self.segments[&number] {
            Segment::Unsealed(segment) => send(segment.as_ref().unwrap().writer_fd().unwrap().as_fd()),
            Segment::Sealed(segment, _) => send(segment.reader_fd()),
        }
    }

    /// Makes the sidecar segment if need be and writes bytes into it.
    fn write(&mut self, bytes: &[u8]) -> Option<v1::Location> {
        if bytes.is_empty() {
            return None;
        }
        let segment = self.segments.entry(SIDECAR_SEGMENT).or_insert_with(|| {
            self.end = 0;
            let (sealed, view) = writable();
            Segment::Sealed(sealed, Some(view))
        });
        let Segment::Sealed(_, Some(view)) = segment else {
            panic!("the sidecar segment is written by the twin")
        };
        view.copy_from(self.end, bytes).unwrap();
        let place = v1::Location { segment: SIDECAR_SEGMENT, offset: self.end, bytes: bytes.len() as u64 };
        self.end += bytes.len() as u64;
        Some(place)
    }

    fn reserve(&mut self, link: usize, item: v1::ReserveItem) -> v1::ReserveResult {
        let number = 100 + u32::try_from(link).unwrap();
        let unsealed = || Segment::Unsealed(Some(Unsealed::create(SEGMENT_BYTES, &Fallocate).unwrap()));
        self.segments.entry(number).or_insert_with(unsealed);
        self.announce(link, number, true);
        let bytes = item.descriptor.as_ref().unwrap().byte_length;
        let place = v1::Location { segment: number, offset: self.links[link].end, bytes };
        self.links[link].end += bytes;
        let location = (bytes > 0).then_some(place);
        let id = self.store(location, item.descriptor);
        let reserved = v1::Reserved { id, location };
        v1::ReserveResult { outcome: Some(v1::reserve_result::Outcome::Reserved(reserved)) }
    }

    fn sealed(&mut self, mapped: v1::SegmentMapped) {
        if let Some(Segment::Unsealed(segment)) = self.segments.get_mut(&mapped.segment) {
            let sealed = segment.take().unwrap().seal().unwrap();
            self.segments.insert(mapped.segment, Segment::Sealed(sealed, None));
        }
        self.mapped.push(mapped.error);
    }

    /// The reply to a call; none where none is due.
    fn answer(&mut self, link: usize, kind: SessionKind, call: u64, body: &[u8]) -> Option<Vec<u8>> {
        let reply = |message: &dyn Fn() -> Vec<u8>| {
            let body = message();
            let header =
                Header { length: u32::try_from(body.len()).unwrap(), kind: kind.into(), flags: REPLY, call };
            Some([&header.encode()[..], &body].concat())
        };
        match kind {
            SessionKind::Put => {
                let mut results = Vec::new();
                for item in v1::PutRequest::decode(body).unwrap().items {
                    let place = self.write(&item.data);
                    let id = self.store(place, item.descriptor);
                    results.push(self.stored(id, &item.keep.unwrap()));
                }
                reply(&|| v1::PutResponse { results: results.clone() }.encode_to_vec())
            }
            SessionKind::Reserve => {
                let items = v1::ReserveRequest::decode(body).unwrap().items;
                let results: Vec<_> = items.into_iter().map(|item| self.reserve(link, item)).collect();
                reply(&|| v1::ReserveResponse { results: results.clone() }.encode_to_vec())
            }
            SessionKind::Seal => {
                let mut results = Vec::new();
                for item in v1::SealRequest::decode(body).unwrap().items {
                    let retry = item.retry_id.to_vec();
                    let result = match self.retries.get(&retry) {
                        Some(first) => first.clone(),
                        None => self.stored(item.id, &item.keep.unwrap()),
                    };
                    self.retries.insert(retry, result.clone());
                    results.push(result);
                }
                reply(&|| v1::SealResponse { results: results.clone() }.encode_to_vec())
            }
            SessionKind::Acquire => {
                let items = v1::AcquireRequest::decode(body).unwrap().items;
                let results: Vec<_> = items.iter().map(|item| self.acquire(link, item)).collect();
                reply(&|| v1::AcquireResponse { results: results.clone() }.encode_to_vec())
            }
            SessionKind::Abort => {
                self.aborted.extend(v1::AbortRequest::decode(body).unwrap().ids);
                reply(&|| v1::AbortResponse::default().encode_to_vec())
            }
            SessionKind::Release => {
                let request = v1::ReleaseRequest::decode(body).unwrap();
                self.released.extend(request.ids);
                self.still_mapped.extend(request.still_mapped);
                None
            }
            SessionKind::Cancel => {
                self.cancelled.push(call);
                None
            }
            SessionKind::SegmentMapped => {
                self.sealed(v1::SegmentMapped::decode(body).unwrap());
                None
            }
            SessionKind::Status => {
                let status = v1::StatusResponse { version: "x".repeat(self.padding), ..Default::default() };
                reply(&|| status.encode_to_vec())
            }
            kind => self.answer_of_pipes(kind, call),
        }
    }

    /// The reply to a call about pipes.
    fn answer_of_pipes(&mut self, kind: SessionKind, call: u64) -> Option<Vec<u8>> {
        let failed =
            |failure: &Failure| Some(encode(kind.into(), REPLY | FAILED, call, &v1::Failure::from(failure)));
        let pipe = v1::PipeOpened { pipe: 1, ..Default::default() };
        match kind {
            SessionKind::PipeAccept | SessionKind::PipeRead | SessionKind::PipeWrite if self.late > 0 => {
                self.late -= 1;
                let late = Failure::new(Reason::DeadlineExceeded, "an hour is over");
                failed(&late.with("delivered", "no"))
            }
            SessionKind::PipeListen => {
                Some(encode(kind.into(), REPLY, call, &v1::PipeListenResponse { listener: 1 }))
            }
            SessionKind::PipeConnect | SessionKind::PipeAccept => {
                Some(encode(kind.into(), REPLY, call, &pipe))
            }
            SessionKind::PipeRead => {
                let message = self.pipe_message.as_ref().map(Message::encode_to_vec);
                let sequence = u64::from(message.is_some());
                let read = v1::PipeReadResponse { sequence, message: message.unwrap_or_default().into() };
                Some(encode(kind.into(), REPLY, call, &read))
            }
            SessionKind::PipeWrite => Some(encode(kind.into(), REPLY, call, &v1::PipeWriteResponse {})),
            SessionKind::PipeEnd => None,
            _ => failed(&Failure::new(Reason::Draining, "the twin cannot")),
        }
    }
}

fn serve(state: &Mutex<State>, link: usize, mut socket: UnixStream) {
    while let Some((header, body)) = read_frame(&mut socket) {
        let kind = SessionKind::try_from(header.kind).unwrap();
        let mut state = state.lock();
        state.frames.push(kind);
        if kind == SessionKind::Hello {
            welcome(&mut state, link, header.call);
            continue;
        }
        let Some(frame) = state.answer(link, kind, header.call, &body) else { continue };
        if state.holding {
            state.held.push((link, frame));
        } else {
            drop(state);
            if socket.write_all(&frame).is_err() {
                return;
            }
        }
    }
}

fn welcome(state: &mut State, link: usize, call: u64) {
    let (read, write) = passing::pipe().unwrap();
    state.links[link].events = Some(write);
    let welcome = v1::SessionWelcome {
        version: state.version,
        session: link as u64,
        exchange: "ml".into(),
        peer: "twin".into(),
        incarnation: Incarnation(state.incarnation).to_string(),
        inline_bytes_max: 65_536,
    };
    let frame = encode(SessionKind::Hello.into(), REPLY, call, &welcome);
    passing::send(state.links[link].socket.as_fd(), &[IoSlice::new(&frame)], &[read.as_fd()]).unwrap();
}

fn read_frame(socket: &mut UnixStream) -> Option<(Header, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    socket.read_exact(&mut head).ok()?;
    let header = Header::decode(&head, u32::MAX).unwrap();
    let mut body = vec![0; header.length as usize];
    socket.read_exact(&mut body).ok()?;
    Some((header, body))
}
