//! The sending side of one session: replies and segments go out in order, and nobody ever blocks here.
//!
//! Replies come from the session's own thread, from workers and from the threads that read from peers. None of them may
//! wait for a client that does not read: what the socket does not take at once is queued, and a thread `drain` drains the queue
//! with a deadline. A client that takes nothing for [`STALL`] is cut, and so is one whose queue grows over
//! [`BACKLOG_BYTES_MAX`], or is the longest when all of them together spend their budget; nobody else notices.
//!
//! A segment is announced, with its memory and its witness, before the first reply that refers to it; and again where its pages
//! become others while the client maps it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};
use tensorlane_memory::{Block, SegmentHandle, passing};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::{self, EXCHANGE_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::SessionId;

use crate::metrics::Metrics;
use crate::metrics::label::{Label, PanicScope, SessionCut};
use crate::no_descriptor::no_descriptor;
use crate::output_budget::{OutputBudget, OutputShare};
use crate::workers::Workers;

/// A client that accepts no byte for this long is cut.
pub(super) const STALL: Duration = Duration::from_secs(5);
/// Most bytes that wait for one client. Costs that much memory for each client that does not read.
pub(super) const BACKLOG_BYTES_MAX: usize = 64 << 20;
const DESCRIPTORS_MAX: usize = 2;

/// Way back from a session to its client.
pub struct SessionLink {
    id: SessionId,
    /// The name that the client gave itself.
    client: Arc<str>,
    /// The version of the protocol that both ends speak.
    version: u32,
    socket: UnixStream,
    events: OwnedFd,
    out: Mutex<Out>,
    acks: Mutex<HashMap<u32, SyncSender<Result<(), String>>>>,
    drains: Workers,
    metrics: Arc<Metrics>,
    /// The backlog, in the budget of the process.
    account: OutputShare,
    map_deadline: Duration,
    cut: AtomicBool,
}

/// Surroundings of a link, as far as it needs them.
pub struct Around<'a> {
    /// The name that the client gave itself.
    pub client: Arc<str>,
    /// The version of the protocol that both ends speak.
    pub version: u32,
    /// Threads for what slow clients leave.
    pub drains: Workers,
    /// The budget that its backlog is a part of.
    pub unread: &'a OutputBudget,
    /// Metrics in which a client is counted that had to be cut.
    pub metrics: Arc<Metrics>,
    /// Time that the client may take to map a segment that it will write.
    pub map_deadline: Duration,
}

/// Frames on their way out, with the segments that were announced.
#[derive(Default)]
struct Out {
    announced: HashSet<u32>,
    /// Segments that were announced again, with other pages.
    exchanged: HashSet<u32>,
    /// Frames about readers so far.
    readers: u64,
    backlog: VecDeque<Outgoing>,
    backlog_bytes: usize,
    draining: bool,
}

struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: Vec<Arc<OwnedFd>>,
}

/// Backlog that a thread is to drain. Dropped before that is done, as by a panic, it cuts the link: nobody would drain it any more.
struct Draining {
    link: Arc<SessionLink>,
    done: bool,
}

impl Drop for Draining {
    fn drop(&mut self) {
        if !self.done {
            self.link.cut();
        }
    }
}

enum Sent {
    All,
    Partly,
}

/// Gives the two descriptors of a segment to a session: read-only memory, and a witness of this session's own.
pub trait Segments: Send + Sync {
    /// Called once for each segment and session, before the session first hears of it, and once more where it is announced
    /// again.
    fn open(&self, segment: &SegmentHandle, session: SessionId) -> io::Result<(OwnedFd, OwnedFd)>;
}

// === impl SessionLink ===

impl SessionLink {
    /// A link over `socket`; `events` is the write end of the client's event pipe, non-blocking.
    pub fn new(id: SessionId, socket: UnixStream, events: OwnedFd, around: Around<'_>) -> Arc<Self> {
        let Around { client, version, drains, unread, metrics, map_deadline } = around;
        let (out, acks) = (Mutex::default(), Mutex::default());
        Arc::new_cyclic(|link: &Weak<Self>| {
            let link = Weak::clone(link);
            let account = unread.open(move || {
                if let Some(link) = link.upgrade() {
                    link.cut_for(SessionCut::Unread);
                }
            });
            let cut = AtomicBool::new(false);
            Self {
                id,
                client,
                version,
                socket,
                events,
                out,
                acks,
                drains,
                metrics,
                account,
                map_deadline,
                cut,
            }
        })
    }

    /// The session.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The name that the client gave itself.
    pub fn client(&self) -> &Arc<str> {
        &self.client
    }

    /// Number of the process that connected, as this sidecar sees processes; 0 where it does not.
    pub fn process(&self) -> u32 {
        passing::peer_credentials(self.socket.as_fd())
            .ok()
            .and_then(|peer| u32::try_from(peer.pid).ok())
            .unwrap_or(0)
    }

    /// Time that the client has to map what it is shown.
    pub fn map_deadline(&self) -> Duration {
        self.map_deadline
    }

    /// The socket, for the thread that reads from it.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends one frame with descriptors on its first byte.
    pub fn send(self: &Arc<Self>, bytes: Vec<u8>, descriptors: Vec<OwnedFd>) {
        self.send_shared(bytes, descriptors.into_iter().map(Arc::new).collect());
    }

    /// Sends one frame with descriptors that others hold, too: none is made, however many frames wait with them.
    pub fn send_shared(self: &Arc<Self>, bytes: Vec<u8>, descriptors: Vec<Arc<OwnedFd>>) {
        let mut out = self.out.lock();
        self.push(&mut out, Outgoing { bytes, sent: 0, descriptors });
    }

    /// Announces the segments of `blocks` that the client has not heard of: before a frame that refers to them. They stay
    /// announced at least for as long as the blocks are kept.
    ///
    /// # Errors
    /// A segment cannot be opened for the client (descriptors run out).
    pub fn announce<'a>(
        self: &Arc<Self>,
        blocks: impl Iterator<Item = &'a Block>,
        segments: &dyn Segments,
    ) -> Result<(), Failure> {
        let mut out = self.out.lock();
        let mut last = 0;
        for block in blocks {
            let segment = block.segment_id();
            if last == segment || out.announced.contains(&segment) {
                continue;
            }
            last = segment;
            let Some(handle) = block.segment() else { continue };
            let (memory, witness) = segments.open(&handle, self.id).map_err(|e| no_descriptor(&e))?;
            let announce = v1::SegmentFrame { segment, bytes: handle.bytes(), writable: false, again: false };
            let frame = frame::encode(SessionKind::Segment.into(), 0, 0, &announce);
            self.push(
                &mut out,
                Outgoing { bytes: frame, sent: 0, descriptors: vec![Arc::new(memory), Arc::new(witness)] },
            );
            out.announced.insert(segment);
        }
        Ok(())
    }

    /// Lets the client map a segment that only it will write, and waits until it has: the segment is sealed after that.
    ///
    /// Blocks for as long as the deadline for maps allows; called by those who may wait only.
    pub fn map_writable(
        self: &Arc<Self>,
        segment: u32,
        bytes: u64,
        memory: OwnedFd,
        witness: OwnedFd,
    ) -> Result<(), Failure> {
        let (ack, acked) = sync_channel(1);
        {
            let mut acks = self.acks.lock();
            // Whoever cuts the link raises its flag before it clears the acks.
            if self.is_cut() {
                return Err(ended());
            }
            acks.insert(segment, ack);
        }
        {
            let mut out = self.out.lock();
            out.announced.insert(segment);
            let announce = v1::SegmentFrame { segment, bytes, writable: true, again: false };
            let frame = frame::encode(SessionKind::Segment.into(), 0, 0, &announce);
            self.push(
                &mut out,
                Outgoing { bytes: frame, sent: 0, descriptors: vec![Arc::new(memory), Arc::new(witness)] },
            );
        }
        let answer = acked.recv_timeout(self.map_deadline);
        self.acks.lock().remove(&segment);
        match answer {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(Failure::new(
                Reason::Internal,
                format!("the client could not map segment {segment} of {bytes} bytes: {why}"),
            )),
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
            Err(RecvTimeoutError::Timeout) => Err(Failure::new(
                Reason::DeadlineExceeded,
                format!(
                    "the client did not map segment {segment} within {:?}; its memory was taken back",
                    self.map_deadline
                ),
            )),
        }
    }

    /// The client has answered [`Self::map_writable`]; an answer nobody waits for is out of place.
    pub fn mapped(&self, answer: v1::SegmentMapped) -> bool {
        let Some(ack) = self.acks.lock().remove(&answer.segment) else { return false };
        let result = if answer.error.is_empty() { Ok(()) } else { Err(answer.error) };
        // The waiter may have given up at its deadline this very moment; then nobody wants the answer.
        let _ = ack.try_send(result);
        true
    }

    /// Announces a segment again whose pages are others now, with the same bytes, for the client to put in the place of those that
    /// it maps; once. Nothing if it never heard of the segment, or speaks a version in which this is not known: then it goes on
    /// with those from before.
    ///
    /// # Errors
    /// The segment cannot be opened for the client now (descriptors run out).
    pub fn exchange(self: &Arc<Self>, segment: &SegmentHandle, segments: &dyn Segments) -> io::Result<()> {
        let number = segment.id();
        let mut out = self.out.lock();
        let knows = self.version >= EXCHANGE_SINCE && out.announced.contains(&number);
        if !knows || out.exchanged.contains(&number) {
            return Ok(());
        }
        let (memory, witness) = segments.open(segment, self.id)?;
        let bytes = segment.bytes();
        let announce = v1::SegmentFrame { segment: number, bytes, writable: false, again: true };
        let frame = frame::encode(SessionKind::Segment.into(), 0, 0, &announce);
        self.push(
            &mut out,
            Outgoing { bytes: frame, sent: 0, descriptors: vec![Arc::new(memory), Arc::new(witness)] },
        );
        out.exchanged.insert(number);
        drop(out);
        // Behind it: a client that waits for no reply reads the socket because of this.
        self.tell(&frame::encode(SessionKind::SegmentExchanged.into(), 0, 0, &announce));
        Ok(())
    }

    /// Tells the writer of a channel of a reader that comes or goes: on the socket, behind the segment that it refers to, and on the
    /// event pipe for a client that waits for no reply. There the number of such frames stands in the place of a call.
    pub fn tell_reader(self: &Arc<Self>, kind: SessionKind, reader: &v1::ChannelReader) {
        let told = {
            let mut out = self.out.lock();
            out.readers += 1;
            let bytes = frame::encode(kind.into(), 0, 0, reader);
            self.push(&mut out, Outgoing { bytes, sent: 0, descriptors: Vec::new() });
            out.readers
        };
        self.tell(&frame::encode(kind.into(), 0, told, &()));
    }

    /// Tells the client that nobody keeps the tensor in an allocation of its own any more.
    pub fn gpu_freed(&self, allocation: u64, reusable: bool) {
        let event = v1::GpuFreed { allocation, reusable };
        self.tell(&frame::encode(SessionKind::GpuFreed.into(), 0, 0, &event));
    }

    /// The version of the protocol that both ends speak.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Tells the client to let go of a segment; nothing if it never heard of it.
    pub fn retire(&self, segment: u32) {
        let was_announced = {
            let mut out = self.out.lock();
            out.exchanged.remove(&segment);
            out.announced.remove(&segment)
        };
        if was_announced {
            let event = v1::SegmentRetired { segment };
            self.tell(&frame::encode(SessionKind::SegmentRetired.into(), 0, 0, &event));
        }
    }

    /// An event. A full pipe means a client that reads none; its witnesses keep the memory accounted for.
    fn tell(&self, frame: &[u8]) {
        let _ = rustix::io::write(&self.events, frame);
    }

    /// Ends the connection from this side: whoever reads from it sees the end.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        // It may have been shut down already, by either side.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        self.acks.lock().clear();
    }

    /// Ends the connection from this side because the client does not read.
    fn cut_for(&self, reason: SessionCut) {
        // Several threads may find one at a time: the first one counts.
        if self.cut.swap(true, Ordering::AcqRel) {
            return;
        }
        self.metrics.sessions.cut.at((reason,)).inc();
        tracing::warn!(session = self.id.0, reason = reason.as_str(), "the client reads too slowly; cut");
        self.cut();
    }

    /// Returns whether [`Self::cut`] was called.
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    fn push(self: &Arc<Self>, out: &mut Out, mut frame: Outgoing) {
        if self.is_cut() {
            return;
        }
        if out.backlog.is_empty() {
            match frame.send(self.socket.as_fd()) {
                Ok(Sent::All) => return,
                Ok(Sent::Partly) => {}
                Err(_) => return self.cut(),
            }
        }
        let bytes = frame.left();
        out.backlog_bytes += bytes;
        out.backlog.push_back(frame);
        self.account.add(bytes);
        if out.backlog_bytes > BACKLOG_BYTES_MAX {
            self.cut_for(SessionCut::Backlog);
        }
        if !out.draining {
            out.draining = true;
            let draining = Draining { link: Arc::clone(self), done: false };
            let drain = move || {
                // Moved in whole: thrown away or broken off it cuts the link.
                let mut draining = draining;
                let link = Arc::clone(&draining.link);
                let threads = link.drains.threads();
                let drained = threads.caught("drain", PanicScope::Connection, || {
                    threads.point("drain of a session");
                    link.drain();
                });
                draining.done = drained.is_some();
            };
            // There is one a session at most. A job that is refused is thrown away, and so cuts it.
            let _ = self.drains.run(drain);
        }
    }

    /// Runs on a thread of its own until the backlog is empty or the client has stalled.
    fn drain(self: &Arc<Self>) {
        loop {
            if !wait_writable(self.socket.as_fd(), STALL) {
                self.cut_for(SessionCut::Stalled);
            }
            let mut out = self.out.lock();
            if self.is_cut() {
                out.backlog.clear();
                self.account.take(std::mem::take(&mut out.backlog_bytes));
                out.draining = false;
                return;
            }
            if self.drain_some(&mut out).is_err() {
                self.cut();
            } else if out.backlog.is_empty() {
                out.draining = false;
                return;
            }
        }
    }

    fn drain_some(&self, out: &mut Out) -> Result<(), Errno> {
        let before = out.backlog_bytes;
        let drained = self.send_backlog(out);
        self.account.take(before - out.backlog_bytes);
        drained
    }

    fn send_backlog(&self, out: &mut Out) -> Result<(), Errno> {
        while let Some(frame) = out.backlog.front_mut() {
            let before = frame.left();
            let sent = frame.send(self.socket.as_fd())?;
            out.backlog_bytes -= before - frame.left();
            match sent {
                Sent::All => drop(out.backlog.pop_front()),
                Sent::Partly => return Ok(()),
            }
        }
        Ok(())
    }
}

// === impl Outgoing ===

impl Outgoing {
    fn left(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends as much as the socket takes now.
    fn send(&mut self, socket: BorrowedFd<'_>) -> Result<Sent, Errno> {
        while self.left() > 0 {
            let rest = &self.bytes[self.sent..];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = if self.descriptors.is_empty() {
                rustix::net::send(socket, rest, flags)
            } else {
                send_with(socket, rest, &self.descriptors, flags)
            };
            match sent {
                Ok(bytes) => {
                    self.sent += bytes;
                    self.descriptors.clear();
                }
                Err(Errno::AGAIN) => return Ok(Sent::Partly),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Sent::All)
    }
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[Arc<OwnedFd>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

fn wait_writable(socket: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    let timeout = Timespec { tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
    loop {
        match poll(&mut fds, Some(&timeout)) {
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn ended() -> Failure {
    Failure::new(Reason::Cancelled, "the session has ended")
}
