//! Connections to the gRPC sockets, which whoever has the socket may open: how many there are. Knows of HTTP/2 only how many bytes
//! it begins with.
//!
//! ```text
//!   accepted --> silent --preface--> heard --> closed by either end
//!                   '-- there is no room, and it is the oldest of these: shown out, it reads the end of the connection
//! ```
//!
//! Whoever means well speaks at once, so those who do not make room first. Where all have spoken the new one is turned away: a
//! call that is under way is not cut for another one. Whoever has spoken and dies is found by the keep-alive of HTTP/2.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_memory::passing;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use super::kept::Keeps;
use crate::metrics::Metrics;
use crate::metrics::label::GrpcCut;
use crate::output_budget::OutputBudget;

/// Connections beside one for each session: calls without a session, probes, and whoever has just come. Each takes a descriptor and a
/// few KiB while nothing is asked.
const BESIDE_SESSIONS: usize = 64;

/// Length of the preface that a client of HTTP/2 begins with (RFC 9113, 3.4). Until it is there no keep-alive looks
/// after the connection.
const PREFACE_BYTES: usize = 24;

/// Shortest time after which a connection is closed whose client takes no byte. A call may be less patient; a program that is not
/// scheduled for a moment keeps its connection.
const PATIENCE_MIN: Duration = Duration::from_secs(5);

/// Time for which nobody is warned again that connections are turned away. They are counted all the same.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// All that are open, of both listeners.
pub(super) struct Guests {
    most: usize,
    /// Time for which a client may take no byte of what waits for it.
    patience: Duration,
    open: Mutex<Open>,
    unread: OutputBudget,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Open {
    /// By the order in which they came.
    seats: BTreeMap<u64, Standing>,
    /// Guests that are silent.
    silent: BTreeSet<u64>,
    /// Number of guests that go.
    leaving: usize,
    next: u64,
    warned: Option<Instant>,
}

enum Standing {
    /// Guest that has not said enough to be one of HTTP/2; who is to be woken when it has to go.
    Silent(Option<Waker>),
    Heard,
    /// Guest that was silent, and goes.
    ShownOut,
}

/// A connection, for those who have calls on it: an extension of every request.
pub(super) struct Connection {
    /// Number of the process that connected, as this sidecar sees processes; 0 where it does not.
    pub(super) process: u32,
    /// Address that it came from, where it came over TCP.
    pub(super) address: Option<SocketAddr>,
    /// Bytes that this process keeps for its streams.
    pub(super) keeps: Arc<Keeps>,
    /// Number of its calls that are open.
    pub(super) calls: Arc<AtomicUsize>,
    /// Number of its streams that last.
    pub(super) lasting: AtomicUsize,
    /// Number of those that write.
    pub(super) writing: AtomicUsize,
    cut: AtomicBool,
    reader: Mutex<Option<Waker>>,
    metrics: Arc<Metrics>,
}

/// Sockets that know where they come from.
pub(super) trait Comes {
    /// Number of the process and address, as far as they are known.
    fn comes_from(&self) -> (u32, Option<SocketAddr>);
}

/// A connection that has a place among them until it is dropped.
pub(super) struct Guest<S> {
    io: S,
    connection: Arc<Connection>,
    /// Time until which its client has to take a byte, while some wait for it.
    stalls: Option<Pin<Box<Sleep>>>,
    id: u64,
    guests: Arc<Guests>,
    /// Bytes that it has said, up to its preface and what came with it.
    said: usize,
}

// === impl Guests ===

impl Guests {
    /// For so many sessions.
    pub(super) fn for_sessions(
        sessions_max: usize,
        patience: Duration,
        unread: OutputBudget,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Self::new(sessions_max.saturating_add(BESIDE_SESSIONS), patience, unread, metrics)
    }

    fn new(most: usize, patience: Duration, unread: OutputBudget, metrics: Arc<Metrics>) -> Arc<Self> {
        let patience = patience.max(PATIENCE_MIN);
        Arc::new(Self { most, patience, open: Mutex::default(), unread, metrics })
    }

    /// Lets a connection in; none where there is no room for it, upon which it is closed.
    pub(super) fn admit<S: Comes>(self: &Arc<Self>, io: S) -> Option<Guest<S>> {
        let mut open = self.open.lock();
        // Those who go are there until they have read that they do, and have their bound, too.
        let is_crowded = open.seats.len() >= self.most.saturating_mul(2);
        let is_room = open.seats.len() - open.leaving < self.most;
        let shown_out = if is_room { None } else { open.silent.first().copied() };
        if is_crowded || (!is_room && shown_out.is_none()) {
            self.turn_away(&mut open);
            return None;
        }
        let waker = shown_out.and_then(|id| open.show_out(id));
        open.next += 1;
        let id = open.next;
        open.seats.insert(id, Standing::Silent(None));
        open.silent.insert(id);
        drop(open);
        if shown_out.is_some() {
            self.metrics.sessions.cut_connections.at((GrpcCut::Silent,)).inc();
        }
        waker.into_iter().for_each(Waker::wake);
        let (process, address) = io.comes_from();
        let connection = Arc::new_cyclic(|connection: &Weak<Connection>| {
            let own = connection.clone();
            let cut = move || own.upgrade().iter().for_each(|connection| connection.cut(GrpcCut::Unread));
            Connection {
                process,
                address,
                keeps: Keeps::new(&self.unread, cut),
                calls: Arc::default(),
                lasting: AtomicUsize::new(0),
                writing: AtomicUsize::new(0),
                cut: AtomicBool::new(false),
                reader: Mutex::default(),
                metrics: Arc::clone(&self.metrics),
            }
        });
        Some(Guest { io, connection, stalls: None, id, guests: Arc::clone(self), said: 0 })
    }

    /// Shows all out that have said nothing: nobody waits for them at the end.
    pub(super) fn show_out_silent(&self) {
        let mut open = self.open.lock();
        let silent: Vec<u64> = open.silent.iter().copied().collect();
        let wakers: Vec<Waker> = silent.into_iter().filter_map(|id| open.show_out(id)).collect();
        drop(open);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn turn_away(&self, open: &mut Open) {
        self.metrics.sessions.cut_connections.at((GrpcCut::Crowded,)).inc();
        if open.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        open.warned = Some(Instant::now());
        tracing::warn!(
            open = open.seats.len(),
            "a gRPC connection is turned away: as many as limits.sessions and 64 are open. Let clients share connections, or raise it"
        );
    }

    /// Returns whether a silent one goes; else `waker` is woken when it has to.
    fn goes_or_wakes(&self, id: u64, waker: &Waker) -> bool {
        match self.open.lock().seats.get_mut(&id) {
            Some(Standing::Silent(waiting)) => {
                *waiting = Some(waker.clone());
                false
            }
            Some(Standing::Heard) => false,
            Some(Standing::ShownOut) | None => true,
        }
    }

    /// Notes that it has said enough. Returns whether it may stay.
    fn hear(&self, id: u64) -> bool {
        let mut open = self.open.lock();
        let Some(standing @ Standing::Silent(_)) = open.seats.get_mut(&id) else { return false };
        *standing = Standing::Heard;
        open.silent.remove(&id);
        true
    }
}

// === impl Open ===

impl Open {
    /// A silent one has to go; who is to be told.
    fn show_out(&mut self, id: u64) -> Option<Waker> {
        let standing = self.seats.get_mut(&id).filter(|_| self.silent.remove(&id))?;
        self.leaving += 1;
        match std::mem::replace(standing, Standing::ShownOut) {
            Standing::Silent(waker) => waker,
            Standing::Heard | Standing::ShownOut => None,
        }
    }
}

// === impl Connection ===

impl Connection {
    /// Ends the connection and all calls on it, for the first reason that is found: its client does not read.
    fn cut(&self, reason: GrpcCut) {
        if self.cut.swap(true, Ordering::AcqRel) {
            return;
        }
        self.metrics.sessions.cut_connections.at((reason,)).inc();
        let reader = self.reader.lock().take();
        reader.into_iter().for_each(Waker::wake);
    }

    /// Fails once it was cut; else `waker` is woken when it is.
    fn goes_on(&self, waker: &Waker) -> io::Result<()> {
        let mut reader = self.reader.lock();
        if !reader.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *reader = Some(waker.clone());
        }
        // Looked at behind it: whoever cuts raises the flag first.
        drop(reader);
        self.stands()
    }

    /// Fails once it was cut.
    fn stands(&self) -> io::Result<()> {
        match self.cut.load(Ordering::Acquire) {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}

// === impl Comes ===

impl Comes for UnixStream {
    fn comes_from(&self) -> (u32, Option<SocketAddr>) {
        let peer = passing::peer_credentials(self.as_fd());
        (peer.ok().and_then(|peer| u32::try_from(peer.pid).ok()).unwrap_or(0), None)
    }
}

impl Comes for TcpStream {
    fn comes_from(&self) -> (u32, Option<SocketAddr>) {
        (0, self.peer_addr().ok())
    }
}

// === impl Guest ===

impl<S> Guest<S> {
    /// Outcome of a write: an error where the client has taken nothing for too long.
    fn written<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalls = None;
            return written;
        }
        // One that waits for its client may not look at what it reads.
        self.connection.stands()?;
        let patience = self.guests.patience;
        let stalls = self.stalls.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        match stalls.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                self.connection.cut(GrpcCut::Stalled);
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<S> Drop for Guest<S> {
    fn drop(&mut self) {
        let mut open = self.guests.open.lock();
        match open.seats.remove(&self.id) {
            Some(Standing::Silent(_)) => drop(open.silent.remove(&self.id)),
            Some(Standing::ShownOut) => open.leaving -= 1,
            Some(Standing::Heard) | None => {}
        }
    }
}

impl<S> Connected for Guest<S> {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Self::ConnectInfo {
        Arc::clone(&self.connection)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guest<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.said >= PREFACE_BYTES {
            self.connection.goes_on(cx.waker())?;
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        if self.guests.goes_or_wakes(self.id, cx.waker()) {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        self.said += buf.filled().len() - before;
        if self.said >= PREFACE_BYTES && !self.guests.hear(self.id) {
            // Too late by a moment: as if it had not been read.
            buf.set_filled(before);
            return Poll::Ready(Ok(()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guest<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const PREFACE: &[u8; PREFACE_BYTES] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn guests(most: usize) -> Arc<Guests> {
        Guests::new(
            most,
            Duration::from_secs(60),
            OutputBudget::new(1 << 20),
            Arc::new(Metrics::new(&prometheus::Registry::new()).unwrap()),
        )
    }

    fn cut(guests: &Guests, reason: GrpcCut) -> u64 {
        guests.metrics.sessions.cut_connections.at((reason,)).get()
    }

    impl Comes for DuplexStream {
        fn comes_from(&self) -> (u32, Option<SocketAddr>) {
            (0, None)
        }
    }

    /// A connection, and its other end.
    fn one(guests: &Arc<Guests>) -> Option<(Guest<DuplexStream>, DuplexStream)> {
        let (here, there) = duplex(64);
        Some((guests.admit(here)?, there))
    }

    async fn says_something((guest, there): &mut (Guest<DuplexStream>, DuplexStream)) {
        there.write_all(PREFACE).await.unwrap();
        let mut heard = [0; PREFACE_BYTES];
        guest.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, PREFACE);
    }

    #[tokio::test]
    async fn the_oldest_that_has_said_nothing_makes_room_and_reads_the_end() {
        let guests = guests(3);
        let [mut heard, mut oldest, mut other] = [(); 3].map(|()| one(&guests).unwrap());
        says_something(&mut heard).await;
        let (mut guest, _there) = (oldest.0, &mut oldest.1);
        let waits = tokio::spawn(async move { guest.read(&mut [0; 8]).await.map(|read| (read, guest)) });
        tokio::task::yield_now().await;
        let mut new = one(&guests).unwrap();
        let (read, _guest) = waits.await.unwrap().unwrap();
        assert_eq!(read, 0, "it was woken, and is at its end");
        for stays in [&mut heard, &mut other, &mut new] {
            says_something(stays).await;
        }
        assert_eq!((cut(&guests, GrpcCut::Silent), cut(&guests, GrpcCut::Crowded)), (1, 0));
    }

    #[tokio::test]
    async fn who_begins_to_speak_and_does_not_end_is_silent() {
        let guests = guests(1);
        let (mut guest, mut there) = one(&guests).unwrap();
        there.write_all(&PREFACE[..PREFACE_BYTES - 1]).await.unwrap();
        assert_eq!(guest.read(&mut [0; 64]).await.unwrap(), PREFACE_BYTES - 1);
        let _new = one(&guests).unwrap();
        assert_eq!(guest.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn at_the_end_nobody_waits_for_those_who_say_nothing() {
        let guests = guests(2);
        let [mut heard, mut silent] = [(); 2].map(|()| one(&guests).unwrap());
        says_something(&mut heard).await;
        guests.show_out_silent();
        assert_eq!(silent.0.read(&mut [0; 8]).await.unwrap(), 0);
        says_something(&mut heard).await;
    }

    #[tokio::test]
    async fn nobody_who_has_spoken_is_cut_and_a_place_that_is_given_back_is_free() {
        let guests = guests(2);
        let mut both = [(); 2].map(|()| one(&guests).unwrap());
        for guest in &mut both {
            says_something(guest).await;
        }
        assert!(one(&guests).is_none() && one(&guests).is_none());
        assert_eq!((cut(&guests, GrpcCut::Silent), cut(&guests, GrpcCut::Crowded)), (0, 2));
        let [_stays, goes] = both;
        drop(goes);
        assert!(one(&guests).is_some());
    }

    #[tokio::test]
    async fn what_comes_after_it_was_shown_out_is_not_read() {
        let guests = guests(1);
        let (mut guest, mut there) = one(&guests).unwrap();
        there.write_all(PREFACE).await.unwrap();
        let _new = one(&guests).unwrap();
        assert_eq!(guest.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[test]
    fn a_connection_is_cut_for_the_first_reason_and_counted_once() {
        let guests = guests(1);
        let (guest, _there) = one(&guests).unwrap();
        for reason in [GrpcCut::Stalled, GrpcCut::Unread, GrpcCut::Stalled] {
            guest.connection.cut(reason);
        }
        assert_eq!((cut(&guests, GrpcCut::Stalled), cut(&guests, GrpcCut::Unread)), (1, 0));
    }

    #[tokio::test]
    async fn those_who_go_are_bounded_too() {
        let guests = guests(2);
        let all: Vec<_> = std::iter::from_fn(|| one(&guests)).collect();
        assert_eq!(all.len(), 4, "two stay, and two have not noticed yet that they go");
    }
}
