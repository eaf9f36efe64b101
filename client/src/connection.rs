//! Connection of one session: a socket, the calls under way on it, and what must be given back.
//!
//! A call writes its request on the caller's own thread and reads the reply there too (see calls.rs). Everything that
//! goes wrong with the socket ends here in [`Connection::lose`]: every call fails at once, the next one belongs to a
//! new connection, and what is mapped stays mapped.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use tensorlane_proto::frame::{SESSION_BODY_MAX, SessionKind, encode, encode_into};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

use crate::calls::{Calls, Delivered, Turn};
use crate::channel::Channels;
use crate::error::{Error, Result};
#[cfg(feature = "gpu")]
use crate::gpu::imported::Imported;
#[cfg(feature = "gpu")]
use crate::gpu::owned::Owned;
use crate::late::{self, Late};
use crate::origin::{Origin, Standing};
use crate::reader::{Filled, Frame, Reader};
use crate::release::Releases;
use crate::segments::{Segment, Segments};
use crate::sender::Sender;
use crate::wait::{STALLED_AFTER, Wait};
use crate::{handshake, service, wire};

/// Time that a read or a stuck write waits before deadlines are looked at again.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Identity of the sidecar, and the terms of the session with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sidecar {
    pub(crate) exchange: tensorlane_proto::ExchangeName,
    pub(crate) peer: tensorlane_proto::PeerName,
    pub(crate) incarnation: tensorlane_proto::Incarnation,
    /// Number of the session.
    pub(crate) session: u64,
    /// Version of the session protocol that both ends speak.
    pub(crate) version: u32,
    /// Largest tensor that may travel inside a Put.
    pub(crate) inline_bytes_max: u64,
}

/// Connection of one session.
#[derive(Debug)]
pub(crate) struct Connection {
    origin: Origin,
    sidecar: Sidecar,
    socket: UnixStream,
    reader: Mutex<Reader>,
    sender: Sender,
    calls: Calls,
    releases: Releases,
    segments: Segments,
    channels: Channels,
    #[cfg(feature = "gpu")]
    owned: Owned,
    #[cfg(feature = "gpu")]
    imported: Imported,
}

/// A call whose request was sent.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) number: u64,
    pub(crate) kind: SessionKind,
}

impl Connection {
    /// Connects, shakes hands and starts the service thread, which ends with the connection.
    /// `until`: for how long a sidecar that is not there is waited for; `welcome`: how long one that is may take to answer, asked
    /// at each try.
    pub(crate) fn open(
        path: &std::path::Path,
        name: &str,
        until: Instant,
        welcome: impl Fn() -> Duration,
        heed: &dyn Fn() -> Result<()>,
    ) -> Result<Arc<Self>> {
        let (socket, reader, sidecar, events) = handshake::perform(path, name, until, welcome, heed)?;
        Self::start(socket, reader, sidecar, events)
    }

    fn start(socket: UnixStream, reader: Reader, sidecar: Sidecar, events: OwnedFd) -> Result<Arc<Self>> {
        let connection = Arc::new(Self {
            origin: Origin::here(),
            sidecar,
            socket,
            reader: Mutex::new(reader),
            sender: Sender::default(),
            calls: Calls::new(),
            releases: Releases::new()?,
            segments: Segments::default(),
            channels: Channels::default(),
            #[cfg(feature = "gpu")]
            owned: Owned::default(),
            #[cfg(feature = "gpu")]
            imported: Imported::default(),
        });
        service::start(&connection, events)?;
        Ok(connection)
    }

    /// The process that this session belongs to. Only there do its calls succeed.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Sidecar at the other end.
    pub(crate) fn sidecar(&self) -> &Sidecar {
        &self.sidecar
    }

    /// Checks that the sidecar speaks a version of the session protocol. The message says that it does not, then `what` and the
    /// version, then `remedy` with the sign before it.
    ///
    /// # Errors
    /// UNSUPPORTED.
    pub(crate) fn require(&self, since: u32, what: &str, remedy: &str) -> Result<()> {
        let spoken = self.sidecar.version;
        if spoken >= since {
            return Ok(());
        }
        let message = format!(
            "the sidecar speaks version {spoken} of the session protocol, and {what} {since}{remedy}"
        );
        Err(Failure::new(Reason::Unsupported, message).into())
    }

    /// Returns whether no call can succeed on the connection any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.calls.is_lost()
    }

    /// Returns whether the sidecar has ended the session, also where nobody has read that yet.
    pub(crate) fn has_hung_up(&self) -> bool {
        let mut ready = [PollFd::new(&self.socket, PollFlags::empty())];
        self.is_lost() || poll(&mut ready, Some(&timespec(Duration::ZERO))).is_ok_and(|ended| ended > 0)
    }

    /// The segment of that number.
    pub(crate) fn segment(&self, number: u32) -> Result<Arc<Segment>> {
        self.segments.find(number)
    }

    /// Leases that are to be ended.
    pub(crate) fn releases(&self) -> &Releases {
        &self.releases
    }

    /// The segments of this session.
    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The channels that this session writes.
    pub(crate) fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Ends a channel or a reader, sooner or later. `origin` is that of the guard.
    pub(crate) fn detach(&self, mut end: v1::ChannelDetachRequest, origin: &Origin) {
        let standing = origin.standing();
        if standing != Standing::Child && !self.is_lost() {
            end.still_mapped = standing == Standing::Forked;
            self.releases.push_detach(end);
        }
    }

    /// Says to the sidecar what the writer of a channel makes of a reader.
    pub(crate) fn answer_readers(&self, answers: &[v1::ChannelReady]) -> Result<()> {
        if answers.is_empty() {
            return Ok(());
        }
        for ready in answers {
            self.sender.post(&encode(SessionKind::ChannelReady.into(), 0, 0, ready));
        }
        let sent = self.send_mail();
        // What was written may end in the middle of a frame: nothing can follow it.
        self.lose_on(sent)
    }

    /// Says something that has no reply.
    pub(crate) fn say(&self, kind: SessionKind, message: &impl Message) -> Result<()> {
        if self.is_lost() {
            return Err(Error::lost("the session has ended"));
        }
        self.sender.post(&encode(kind.into(), 0, 0, message));
        let sent = self.send_mail();
        // What was written may end in the middle of a frame: nothing can follow it.
        self.lose_on(sent)
    }

    /// Withdraws a call that nobody waits for.
    pub(crate) fn withdraw(&self, asked: &Asked) {
        // Its reply may have come: it holds nothing.
        let _ = self.give_up(asked.number, Late::Nothing, Error::Withdrawn);
    }

    /// GPU memory of this process that tensors of this session lie in.
    #[cfg(feature = "gpu")]
    pub(crate) fn owned(&self) -> &Owned {
        &self.owned
    }

    /// GPU memory of others that this session maps.
    #[cfg(feature = "gpu")]
    pub(crate) fn imported(&self) -> &Imported {
        &self.imported
    }

    /// Calls under way.
    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Makes one call and waits for its reply.
    pub(crate) fn call<R: Message + Default>(
        &self,
        kind: SessionKind,
        request: &impl Message,
        wait: &Wait,
        late: Late,
    ) -> Result<R> {
        let asked = self.ask(kind, request, Some(wait))?;
        self.answer(&asked, wait, late)
    }

    /// Sends the request of a call, whose reply must be asked for with [`Self::answer`].
    /// `wait` ends the wait for others' requests to be written; none where a lock is held that a signal's handler may want.
    pub(crate) fn ask(
        &self,
        kind: SessionKind,
        request: &impl Message,
        wait: Option<&Wait>,
    ) -> Result<Asked> {
        self.ask_with(kind, request, None, wait)
    }

    /// Sends a request with a descriptor, for a kind that has one; else as [`Self::ask`].
    pub(crate) fn ask_with(
        &self,
        kind: SessionKind,
        request: &impl Message,
        descriptor: Option<BorrowedFd<'_>>,
        wait: Option<&Wait>,
    ) -> Result<Asked> {
        self.telling(|| {
            if self.origin.is_child() {
                return Err(Error::Forked);
            }
            check_length(request)?;
            let number = self.calls.begin()?;
            match self.write(number, kind, request, descriptor, wait) {
                Ok(()) => {
                    // What passed was another one's write.
                    wait.inspect(|wait| wait.looked_until_now());
                    Ok(Asked { number, kind })
                }
                Err(error) => {
                    self.calls.forget(number);
                    Err(error)
                }
            }
        })
    }

    /// Waits for the reply to what was asked.
    pub(crate) fn answer<R: Message + Default>(&self, asked: &Asked, wait: &Wait, late: Late) -> Result<R> {
        let Asked { number, kind } = *asked;
        self.telling(|| {
            let frame = self.reply(number, wait, late)?;
            wire::reply(kind, frame).inspect_err(|error| {
                if matches!(error, Error::Protocol(_)) {
                    self.lose(error);
                }
            })
        })
    }

    /// Notes it where a caller is told that the connection is lost.
    pub(crate) fn telling<R>(&self, part: impl FnOnce() -> Result<R>) -> Result<R> {
        part().inspect_err(|error| {
            if matches!(error, Error::SessionLost { .. } | Error::Protocol(_)) {
                self.calls.loss_was_told();
            }
        })
    }

    /// Ends a lease, sooner or later. `origin` is that of the guard.
    pub(crate) fn release(&self, id: u64, origin: &Origin) {
        match origin.standing() {
            Standing::Same if !self.is_lost() => self.releases.push(id, false),
            Standing::Forked if !self.is_lost() => self.releases.push(id, true),
            // The session has ended and its leases with it, or they belong to the parent.
            Standing::Same | Standing::Forked | Standing::Child => {}
        }
    }

    /// Gives a reservation up, sooner or later. `origin` is that of the guard.
    pub(crate) fn abort(&self, id: u64, origin: &Origin) {
        if origin.standing() != Standing::Child && !self.is_lost() {
            self.releases.push_abort(id);
        }
    }

    /// Sends the leases that were ended, now.
    pub(crate) fn flush(&self) -> Result<()> {
        if self.origin.is_child() {
            return Err(Error::Forked);
        }
        if self.is_lost() || self.releases.is_empty() {
            return Ok(());
        }
        self.send(|out| self.drain_releases(out), &|| Ok(()))
    }

    /// Ends the connection for everyone. Only the first error counts.
    pub(crate) fn lose(&self, error: &Error) {
        // Before anyone hears of it: what was put lives on, and is none of this process's to use again.
        #[cfg(feature = "gpu")]
        self.owned.end();
        self.calls.lose(error);
        // A thread that reads at this moment comes back at once. It fails only where the socket is closed already.
        let _ = shutdown(&self.socket, Shutdown::Both);
        self.segments.let_go_of_all();
    }

    /// Reads what there is, for calls that nobody waits for; see service.rs.
    pub(crate) fn read_unwanted(&self) {
        if self.calls.try_lead() {
            let read = self.read_once();
            self.calls.step_down(None);
            if let Err(error) = read {
                self.lose(&error);
            }
        }
    }

    fn write(
        &self,
        number: u64,
        kind: SessionKind,
        request: &impl Message,
        descriptor: Option<BorrowedFd<'_>>,
        wait: Option<&Wait>,
    ) -> Result<()> {
        let heed = || wait.map_or(Ok(()), Wait::check);
        if let Some(descriptor) = descriptor {
            let fill = |out: &mut Vec<u8>| encode_into(out, kind.into(), 0, number, request);
            let sent = self.sender.send_with(
                &self.socket,
                fill,
                descriptor,
                &heed,
                self.until_stalled(Self::make_room),
            );
            return self.lose_unsent(sent);
        }
        let fill = |out: &mut Vec<u8>| {
            self.drain_releases(out);
            encode_into(out, kind.into(), 0, number, request);
        };
        self.send(fill, &heed)
    }

    fn drain_releases(&self, out: &mut Vec<u8>) {
        self.releases.drain_into(out, &self.calls);
    }

    fn send(&self, fill: impl FnOnce(&mut Vec<u8>), heed: &dyn Fn() -> Result<()>) -> Result<()> {
        let sent = self.sender.send(&self.socket, fill, heed, self.until_stalled(Self::make_room));
        self.lose_unsent(sent)
    }

    /// Sends what was posted, from a thread that may be the one that reads.
    fn send_mail(&self) -> Result<()> {
        self.sender.send_mail(&self.socket, self.until_stalled(Self::wait_for_room))
    }

    fn lose_unsent(&self, sent: Result<()>) -> Result<()> {
        sent.inspect_err(|error| match error {
            // Nothing was written.
            Error::Withdrawn | Error::DeadlineExceeded { .. } => {}
            // What was written may end in the middle of a frame: nothing can follow it.
            error => self.lose(error),
        })
    }

    /// Wait for room, for as long as the sidecar takes something now and then.
    fn until_stalled(&self, wait_for_some: fn(&Self, &Wait) -> Result<()>) -> impl FnMut(bool) -> Result<()> {
        let mut stalled = Wait::briefly();
        move |moved| {
            if moved {
                stalled = Wait::briefly();
            }
            wait_for_some(self, &stalled)
        }
    }

    /// The socket is full. The sidecar may be waiting for us to read, so that is done, unless another thread does it.
    fn make_room(&self, stalled: &Wait) -> Result<()> {
        if self.is_lost() {
            return Err(Error::lost("the connection ended while a request was being written"));
        }
        stalled.check().map_err(stood_still)?;
        let leads = self.calls.try_lead();
        let events = if leads { PollFlags::OUT | PollFlags::IN } else { PollFlags::OUT };
        let mut ready = [PollFd::new(&self.socket, events)];
        let polled = poll(&mut ready, Some(&timespec(SLICE)));
        let readable = polled.is_ok() && ready[0].revents().intersects(PollFlags::IN | PollFlags::HUP);
        if leads {
            let read = if readable { self.read_once() } else { Ok(()) };
            self.calls.step_down(None);
            return read;
        }
        Ok(())
    }

    /// Waits for the reply of call `number`, reading it if nobody else does.
    pub(crate) fn reply(&self, number: u64, wait: &Wait, late: Late) -> Result<Frame> {
        loop {
            let over = wait.check();
            if let Err(Error::DeadlineExceeded { .. }) = over {
                // The answer may have come while nobody looked.
                self.read_unwanted();
            }
            if let Err(error) = over {
                return self.give_up(number, late, error);
            }
            match self.calls.turn(number)? {
                Turn::Done(frame) => return Ok(frame),
                Turn::Lead => {
                    let read = self.lead(number, wait.slice());
                    let own = self.lose_on(read).ok().flatten();
                    self.calls.step_down(own.as_ref().map(|_| number));
                    if let Some(frame) = own {
                        return Ok(frame);
                    }
                }
                Turn::Follow => thread::park_timeout(wait.slice()),
            }
        }
    }

    /// Reads until the reply of call `number` is here, or a slice of time is over.
    fn lead(&self, number: u64, slice: Duration) -> Result<Option<Frame>> {
        let mut reader = self.reader.lock();
        let began = Instant::now();
        loop {
            let mut own = None;
            while let Some(frame) = next_frame(&mut reader)? {
                if frame.header.call == number && frame.header.is_reply() {
                    own = Some(frame);
                } else {
                    self.dispatch(frame, &mut reader)?;
                }
            }
            if own.is_some() {
                return Ok(own);
            }
            // Frames of others may come without end; the clock must be looked at all the same.
            if began.elapsed() >= slice || reader.fill_within(&self.socket, slice)? == Filled::Nothing {
                return Ok(None);
            }
        }
    }

    fn read_once(&self) -> Result<()> {
        let mut reader = self.reader.lock();
        reader.fill(&self.socket)?;
        while let Some(frame) = next_frame(&mut reader)? {
            self.dispatch(frame, &mut reader)?;
        }
        Ok(())
    }

    fn dispatch(&self, frame: Frame, reader: &mut Reader) -> Result<()> {
        let kind =
            SessionKind::try_from(frame.header.kind).map_err(|error| Error::protocol(error.to_string()))?;
        if kind == SessionKind::Segment {
            return self.map_segment(&frame, reader);
        }
        if kind == SessionKind::ChannelReader && !frame.header.is_reply() {
            let told: v1::ChannelReader = wire::decode(kind, &frame.body[..])?;
            let answer = self.channels.hear(&self.segments, told);
            return self.answer_readers(answer.as_slice());
        }
        if !frame.header.is_reply() {
            return Err(Error::protocol(format!("a frame of kind {kind:?} came that is no reply")));
        }
        match self.calls.deliver(frame) {
            Delivered::Taken => Ok(()),
            Delivered::Late(late, frame) => {
                late::give_back(self, late, &frame);
                Ok(())
            }
            Delivered::Unknown => Err(Error::protocol(format!("a reply of kind {kind:?} came to no call"))),
        }
    }

    fn map_segment(&self, frame: &Frame, reader: &mut Reader) -> Result<()> {
        let announced: v1::SegmentFrame = wire::decode(SessionKind::Segment, &frame.body[..])?;
        let (memory, witness) = (reader.descriptor()?, reader.descriptor()?);
        let mapped = self.segments.announce(&announced, memory, witness);
        if announced.writable {
            let error = mapped.err().map_or_else(String::new, |error| error.to_string());
            let said = v1::SegmentMapped { segment: announced.segment, error };
            self.sender.post(&encode(SessionKind::SegmentMapped.into(), 0, 0, &said));
            self.send_mail()?;
        }
        self.segments.populate(announced.segment);
        Ok(())
    }

    /// The thread that reads finds the socket full. A segment's acknowledgement is small, and the sidecar always
    /// reads, so a moment is all it takes.
    fn wait_for_room(&self, stalled: &Wait) -> Result<()> {
        stalled.check().map_err(stood_still)?;
        let mut ready = [PollFd::new(&self.socket, PollFlags::OUT)];
        // A failure shows in the next write.
        let _ = poll(&mut ready, Some(&timespec(SLICE)));
        if self.is_lost() {
            Err(Error::lost("the connection ended while the sidecar was answered"))
        } else {
            Ok(())
        }
    }

    /// Withdraws a call. What it brings all the same is given back when it comes.
    fn give_up(&self, number: u64, late: Late, error: Error) -> Result<Frame> {
        if let Some(frame) = self.calls.give_up(number, late) {
            return Ok(frame);
        }
        let cancel = |out: &mut Vec<u8>| encode_into(out, SessionKind::Cancel.into(), 0, number, &());
        // If it cannot be sent, the connection is lost and the sidecar withdraws the call itself.
        let _ = self.send(cancel, &|| Ok(()));
        self.releases.wake();
        Err(error)
    }

    fn lose_on<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.lose(error))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if !self.origin.is_child() {
            // The service thread finds the connection gone and ends.
            self.releases.wake();
        }
    }
}

/// The next whole frame, with its descriptor where it is a reply that has one: whoever drops the frame closes that.
fn next_frame(reader: &mut Reader) -> Result<Option<Frame>> {
    let Some(mut frame) = reader.next_frame()? else { return Ok(None) };
    let header = &frame.header;
    if header.kind == u16::from(SessionKind::OpenGpu) && header.is_reply() && !header.is_failed() {
        frame.descriptor = Some(reader.descriptor()?);
    }
    Ok(Some(frame))
}

fn check_length(request: &impl Message) -> Result<()> {
    let length = request.encoded_len();
    if length > SESSION_BODY_MAX as usize {
        return Err(Error::invalid(format!(
            "the request has {length} bytes and at most {SESSION_BODY_MAX} are allowed; split it"
        )));
    }
    Ok(())
}

/// A duration as the kernel wants it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

fn stood_still(_: Error) -> Error {
    Error::lost(format!("the sidecar took nothing from the socket of the session for {STALLED_AFTER:?}"))
}
