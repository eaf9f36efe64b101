//! The session socket: the zero-copy road of native clients. Knows frames and sessions; what a verb does is the
//! exchange's.
//!
//! ```text
//!   accept ---> thread of the session: Hello, then frames until the end
//!                  |        quick verbs are answered at once; slow ones answer later through the link
//!                  v
//!               the end (closed, process gone, bad frame, stop): calls cancelled, leases and reservations given back
//! ```
//!
//! A session ends when its connection does, and also when the process that connected does (a pidfd, where the kernel has
//! them for sockets): a forked child that still has the connection open keeps nothing alive.

mod call;
mod dispatch;
mod link;
mod read;
mod requests;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use tensorlane_memory::passing;
use tensorlane_memory::watcher::Watch;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::{
    self, FAILED, GPU_SINCE, INLINE_BYTES_MAX, REPLY, SESSION_VERSION, SessionKind,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::SessionId;

use self::dispatch::Frame;
pub use self::link::{Around, Segments, SessionLink};
use self::read::{FrameReader, ReadError};
pub use self::requests::Requests;
pub(crate) use self::requests::{Admitted, COUNTED_FROM};
use crate::cancel::Cancel;
use crate::exchange::Exchange;
use crate::metrics::Metrics;
use crate::metrics::label::{Carrier, PanicScope, SessionCut};
use crate::output_budget::OutputBudget;
use crate::seldom::Seldom;
use crate::socket;
use crate::workers::Workers;

/// A client that has not said Hello by then is cut: it would keep one of the few places.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 512 << 10;
/// Lines of connections that could not be accepted: out of descriptors, each try fails.
static ACCEPT_FAILED: Seldom = Seldom::new();
/// The call of a session's first frame, which need not have come when it is refused.
const FIRST_CALL: u64 = 1;
/// Longest name of a client, in bytes; a longer one is cut.
const CLIENT_NAME_MAX: usize = 256;

/// Settings of the session socket.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// Path of the socket; replaced atomically where a dead sidecar left one.
    pub path: PathBuf,
    /// Most sessions at a time. Each costs a thread and three descriptors.
    pub sessions_max: usize,
    /// Most calls of one session that wait. Each costs up to one worker, but for those that wait for names.
    pub pending_max: usize,
    /// Most connections that have not said Hello. When there is one more, the oldest of them is closed: whoever means well
    /// says Hello at once.
    pub strangers_max: usize,
    /// The budget of answers that wait to be read.
    pub unread: OutputBudget,
    /// The budget of requests.
    pub requests: Requests,
    /// Time that a client may take to map a segment that it will write.
    pub map_deadline: Duration,
    /// Set if tensors in GPU memory are taken.
    pub takes_gpu: bool,
}

/// The listener and all sessions.
pub struct SessionServer {
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
    stop: OwnedFd,
}

struct Shared {
    settings: SessionSettings,
    exchange: Arc<Exchange>,
    workers: Workers,
    /// Threads for clients that read slowly: one a session at most, so that none of them is kept from its own.
    drains: Workers,
    metrics: Arc<Metrics>,
    next: AtomicU64,
    stopping: AtomicBool,
    open: Mutex<HashMap<SessionId, Open>>,
}

/// A session from its first byte on.
struct Open {
    socket: UnixStream,
    standing: Standing,
    thread: Option<JoinHandle<()>>,
}

/// Work that is left when nothing more is read from a session: dropped it is done, by a panic too.
struct Ending<'a> {
    link: &'a Arc<SessionLink>,
    pending: &'a Pending,
    /// Cancelled when it is dropped.
    _exit_watch: Option<Watch>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.link.cut();
        let calls = std::mem::take(&mut *self.pending.lock());
        calls.values().for_each(Cancel::cancel);
    }
}

/// Standing of a session: if it has said Hello, or was shown out before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Stranger,
    /// Stranger for too long, which ends.
    ShownOut,
    Known,
}

/// The calls of one session that have not been answered.
pub(crate) type Pending = Arc<Mutex<HashMap<u64, Cancel>>>;

// === impl SessionServer ===

impl SessionServer {
    /// Binds the socket and begins to accept.
    pub fn start(
        settings: SessionSettings,
        exchange: Arc<Exchange>,
        workers: Workers,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let listener = socket::bind(&settings.path)?;
        let (stopped, stop) = passing::pipe()?;
        let drains = Workers::in_line("drain", workers.threads().clone(), settings.sessions_max);
        let shared = Arc::new(Shared {
            settings,
            exchange,
            workers,
            drains,
            metrics,
            next: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        let accept = move || accepting.accept(&listener, &stopped);
        let thread = shared.workers.threads().start("sessions", PanicScope::Process, accept)?;
        Ok(Self { shared, accepting: Mutex::new(Some(thread)), stop })
    }

    /// Returns the number of open sessions.
    pub fn open(&self) -> usize {
        self.shared.open.lock().len()
    }

    /// Ends the listener and every session, and waits for their threads.
    pub fn stop(&self) {
        self.shared.settings.requests.close();
        // The acceptor may be gone already; then nobody needs to be told.
        let _ = rustix::io::write(&self.stop, &[0]);
        if let Some(thread) = self.accepting.lock().take() {
            let _ = thread.join();
        }
        // The path may be somebody else's by now only if it was taken from us; either way it is not ours any more.
        let _ = std::fs::remove_file(&self.shared.settings.path);
        let threads: Vec<JoinHandle<()>> = {
            let mut open = self.shared.open.lock();
            self.shared.stopping.store(true, Ordering::Release);
            for session in open.values() {
                // Its thread sees the end, and gives back what the session had.
                let _ = session.socket.shutdown(std::net::Shutdown::Both);
            }
            open.values_mut().filter_map(|s| s.thread.take()).collect()
        };
        for thread in threads {
            let _ = thread.join();
        }
        self.shared.drains.stop();
    }
}

// === impl Shared ===

impl Shared {
    fn accept(self: &Arc<Self>, listener: &UnixListener, stopped: &OwnedFd) {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
            ];
            if poll(&mut fds, None).is_err() {
                continue;
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            match listener.accept() {
                Ok((socket, _)) => self.begin(socket),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    if let Some(times) = ACCEPT_FAILED.times(Instant::now()) {
                        tracing::warn!(%error, times, "a session could not be accepted");
                    }
                    // Out of descriptors: the listener stays readable, so do not spin on it.
                    std::thread::park_timeout(Duration::from_millis(50));
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, socket: UnixStream) {
        let id = SessionId(self.next.fetch_add(1, Ordering::Relaxed));
        let end = match socket.try_clone() {
            Ok(end) => end,
            Err(error) => {
                // Mostly no descriptor is left.
                if let Some(times) = ACCEPT_FAILED.times(Instant::now()) {
                    tracing::warn!(%error, times, "a session could not be accepted");
                }
                self.metrics.session_refused();
                return refuse(
                    &socket,
                    FIRST_CALL,
                    &format!("the sidecar cannot take one more session: {error}; close some"),
                );
            }
        };
        let mut open = self.open.lock();
        if self.stopping.load(Ordering::Acquire) {
            return;
        }
        let SessionSettings { sessions_max, strangers_max, .. } = self.settings;
        let known = count(&open, Standing::Known);
        // Whoever says nothing takes no session's place. Those that are shown out are gone in a moment, but not if they come faster
        // than their threads end.
        if known >= sessions_max || count(&open, Standing::ShownOut) > strangers_max {
            drop(open);
            self.metrics.session_refused();
            return refuse(&socket, FIRST_CALL, &too_many(known, sessions_max));
        }
        let shown_out = match count(&open, Standing::Stranger) >= strangers_max {
            true => self.show_out_oldest(&mut open),
            false => None,
        };
        open.insert(id, Open { socket: end, standing: Standing::Stranger, thread: None });
        let shared = Arc::clone(self);
        let (threads, name) = (self.workers.threads(), format!("session-{}", id.0));
        let run = move || shared.run(id, socket);
        let thread = threads.start_small(STACK_BYTES, &name, PanicScope::Connection, run);
        let failed = match thread {
            // The session may have ended already; its own end has then removed the entry, and the handle is not needed.
            Ok(thread) => {
                if let Some(session) = open.get_mut(&id) {
                    session.thread = Some(thread);
                }
                None
            }
            Err(error) => open.remove(&id).map(|_| error),
        };
        // A line of the log is a write that may wait, and everyone who begins or ends waits for this lock.
        drop(open);
        if let Some(SessionId(oldest)) = shown_out {
            tracing::warn!(session = oldest, "too many connections have not said Hello; the oldest is cut");
        }
        if let Some(error) = failed {
            tracing::error!(%error, "no thread for a session");
        }
    }

    /// Makes room for one more stranger. Returns the one that has to go.
    fn show_out_oldest(&self, open: &mut HashMap<SessionId, Open>) -> Option<SessionId> {
        let strangers = open.iter().filter(|(_, session)| session.standing == Standing::Stranger);
        let oldest = strangers.map(|(id, _)| *id).min()?;
        let session = open.get_mut(&oldest)?;
        session.standing = Standing::ShownOut;
        self.metrics.sessions.cut.at((SessionCut::Stranger,)).inc();
        // Its thread sees the end.
        let _ = session.socket.shutdown(std::net::Shutdown::Both);
        Some(oldest)
    }

    /// The whole life of one session.
    fn run(self: &Arc<Self>, id: SessionId, socket: UnixStream) {
        let threads = self.workers.threads();
        let outcome = threads.caught("session", PanicScope::Connection, || self.serve(id, socket));
        // Whoever ends all sessions holds it until every socket is shut down: a client that hears of another's end finds its own ended.
        drop(self.open.lock());
        self.exchange.session_ended(id);
        self.open.lock().remove(&id);
        let Some(outcome) = outcome else {
            return tracing::error!(session = id.0, "session cut: its thread has panicked");
        };
        match outcome {
            Ok(()) => tracing::debug!(session = id.0, "session ended"),
            Err(ReadError::Frame(error)) => {
                self.metrics.sessions.rejected_frames.at((error.into(),)).inc();
                tracing::warn!(session = id.0, %error, "session cut: bad frame");
            }
            Err(error @ ReadError::Late) => {
                self.metrics.sessions.cut.at((SessionCut::HalfSent,)).inc();
                tracing::warn!(session = id.0, %error, "session cut");
            }
            Err(error @ ReadError::NoDescriptor) => tracing::warn!(session = id.0, %error, "session cut"),
            Err(error) => tracing::debug!(session = id.0, %error, "session ended"),
        }
    }

    /// Makes a stranger that has said Hello a session.
    ///
    /// # Errors
    /// There are as many as may be, so many; or it was shown out before that was read.
    fn takes_a_place(&self, id: SessionId) -> Result<(), usize> {
        let mut open = self.open.lock();
        let known = count(&open, Standing::Known);
        match open.get_mut(&id) {
            Some(session) if session.standing == Standing::Stranger && known < self.settings.sessions_max => {
                session.standing = Standing::Known;
                Ok(())
            }
            _ => Err(known),
        }
    }

    fn serve(self: &Arc<Self>, id: SessionId, socket: UnixStream) -> Result<(), ReadError> {
        let mut reader = FrameReader::of_stranger(Instant::now() + HELLO_DEADLINE);
        let (header, body) = reader.next(&socket)?;
        let hello = dispatch::hello(&header, body)?;
        if hello.version == 0 {
            return Err(frame::FrameError::Malformed(header.kind).into());
        }
        reader.trust();
        if let Err(known) = self.takes_a_place(id) {
            self.metrics.session_refused();
            refuse(&socket, header.call, &too_many(known, self.settings.sessions_max));
            return Ok(());
        }
        let (read_end, write_end) = passing::pipe()?;
        rustix::io::ioctl_fionbio(&write_end, true).map_err(io::Error::from)?;
        let version = hello.version.min(SESSION_VERSION);
        let around = Around {
            client: client_name(&hello.client),
            version,
            drains: self.drains.clone(),
            unread: &self.settings.unread,
            metrics: Arc::clone(&self.metrics),
            map_deadline: self.settings.map_deadline,
        };
        let link = SessionLink::new(id, socket, write_end, around);
        self.exchange.session_began(&link);
        let exit_watch = self.watch_process(&link)?;
        let welcome = self.welcome(id, version);
        link.send(frame::encode(SessionKind::Hello.into(), REPLY, header.call, &welcome), vec![read_end]);
        self.metrics.sessions.opened.at((Carrier::Socket,)).inc();
        tracing::debug!(session = id.0, client = %hello.client, "session began");
        let pending = Pending::default();
        let _ending = Ending { link: &link, pending: &pending, _exit_watch: exit_watch };
        if version >= GPU_SINCE {
            reader.take_descriptors();
        }
        self.read_frames(&link, &mut reader, &pending)
    }

    fn read_frames(
        self: &Arc<Self>,
        link: &Arc<SessionLink>,
        reader: &mut FrameReader,
        pending: &Pending,
    ) -> Result<(), ReadError> {
        loop {
            let (header, body) = reader.next_counted(link.socket(), &self.settings.requests)?;
            self.workers.threads().point("session");
            let memory = match header.kind == u16::from(SessionKind::PutGpu) {
                true => Some(reader.descriptor(&header)?),
                false => None,
            };
            let frame = Frame { header, body, memory };
            dispatch::frame(&self.exchange, link, pending, &self.settings, frame)?;
        }
    }

    fn welcome(&self, id: SessionId, version: u32) -> v1::SessionWelcome {
        let me = self.exchange.me();
        v1::SessionWelcome {
            version,
            session: id.0,
            exchange: me.exchange.to_string(),
            peer: me.peer.to_string(),
            incarnation: me.incarnation.to_string(),
            inline_bytes_max: INLINE_BYTES_MAX as u64,
        }
    }

    /// Cuts the link when the connecting process ends, though a child of it may still hold the socket.
    fn watch_process(&self, link: &Arc<SessionLink>) -> Result<Option<Watch>, ReadError> {
        let Some(pidfd) = passing::peer_pidfd(link.socket().as_fd())? else { return Ok(None) };
        let link = Arc::downgrade(link);
        let watch = self.exchange.store().arena().watcher().on_exit(pidfd, move || {
            if let Some(link) = link.upgrade() {
                link.cut();
            }
        })?;
        Ok(Some(watch))
    }
}

/// The name of a client as people are shown it: cut at 256 bytes, without control characters.
pub(crate) fn client_name(said: &str) -> Arc<str> {
    let (mut name, shown) = (String::new(), said.chars().filter(|c| !c.is_control()));
    for c in shown {
        if name.len() + c.len_utf8() > CLIENT_NAME_MAX {
            break;
        }
        name.push(c);
    }
    name.into()
}

/// Number of sessions that stand so.
fn count(open: &HashMap<SessionId, Open>, standing: Standing) -> usize {
    open.values().filter(|session| session.standing == standing).count()
}

/// Reason for which there is no session for one more.
fn too_many(open: usize, most: usize) -> String {
    if open >= most {
        format!("{open} sessions are open already; close some, or raise limits.sessions")
    } else {
        "more connections than can be shown out say nothing on the session socket; try again in a moment"
            .into()
    }
}

/// Says why, in the form of a reply to the Hello that is on its way.
fn refuse(socket: &UnixStream, call: u64, why: &str) {
    let failure = Failure::new(Reason::SessionLimit, why.to_owned());
    let frame = frame::encode(SessionKind::Hello.into(), REPLY | FAILED, call, &v1::Failure::from(&failure));
    // Whoever does not read this sees the end of the connection instead.
    let _ = rustix::net::send(
        socket,
        &frame,
        rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL,
    );
}
