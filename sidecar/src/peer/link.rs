//! A connection that is up: its two threads, and how it ends.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::frame::{
    self, FrameError, PEER_CHANNELS_SINCE, PEER_PIPES_SINCE, PEER_SET_SNAPSHOTS_SINCE, PeerKind,
    QUESTIONS_SINCE, SET_CALLS_SINCE,
};
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::Offer;
use tensorlane_proto::{Incarnation, PeerName};
use tracing::{debug, error, info};

use super::api::PeerKey;
use super::calls::Call;
use super::channels::Attachments;
use super::gather_frame::GatherFrame;
use super::handshake::timed_out;
use super::outbox::Outbox;
use super::parse::FrameParser;
use super::pipe_calls::{self, PipeCalls};
use super::receive::Receiver;
use super::record::RecordError;
use super::record_reader::{Drained, RecordReader};
use super::relay::HOLDERS_SINCE;
use super::remote::{Carrier, Peer};
use super::seats::{self, Sitter};
use super::send_error::SendError;
use super::shared::Shared;
use super::slowest;
use super::transport::shm::{AT_NODE_SINCE, Apart, SocketName};
use super::transport::{Way, Ways};
use crate::metrics::label::PanicScope;

/// Reason for which a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// Frame from the peer that may not be.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// Record from the peer that may not be, or that was altered.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// Nothing moved for the progress deadline.
    #[error("nothing moved for the progress deadline")]
    Progress,
    /// Bytes were taken, and too few of them.
    #[error("the peer takes bytes too slowly")]
    Slow,
    /// The socket ended or failed.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The peer said Goodbye.
    #[error("the peer went away in order")]
    Goodbye,
    /// Given away: nobody used it, and its seat went to a peer that was needed.
    #[error("it gave its seat to a peer that was needed")]
    GaveWay,
    /// The peer said the same.
    #[error("the peer gave its seat to another one that was needed")]
    Yielded,
    /// The peer does not take our Hello, though we took its own.
    #[error("the peer refused us: {0}")]
    Refused(tensorlane_proto::Failure),
    /// A newer connection of the same peer took its place.
    #[error("a newer connection took its place")]
    Replaced,
    /// Stop of this sidecar.
    #[error("this sidecar is stopping")]
    Stopped,
    /// The directory does not list the peer's key any more.
    #[error("the peer's key is no longer in the directory")]
    Revoked,
    /// Told of another socket in the node's directory than ours is now.
    #[error("our socket in the node's directory is another one now")]
    Moved,
    /// Made with a key of ours that is no longer used.
    #[error("our key was changed")]
    Rotated,
    /// Something of ours is not as it must be.
    #[error("a mistake of this sidecar: {0}")]
    Ours(String),
    /// The peer asks and does not read the answers.
    #[error("the peer does not read its answers")]
    Backlog,
    /// Answers that nobody reads have spent their budget, and it has the most of them.
    #[error("the peer has the most unread answers, and limits.unreadBytes is spent")]
    Unread,
}

impl Ended {
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Frame(error) => error.label(),
            Self::Record(_) => "record",
            Self::Progress => "progress",
            Self::Slow => "slow",
            Self::Lost(_) => "lost",
            Self::Goodbye => "goodbye",
            Self::GaveWay => "gave_way",
            Self::Yielded => "yielded",
            Self::Refused(_) => "refused",
            Self::Replaced => "replaced",
            Self::Stopped => "stopped",
            Self::Revoked => "revoked",
            Self::Rotated => "rotated",
            Self::Moved => "moved",
            Self::Ours(_) => "ours",
            Self::Backlog => "backlog",
            Self::Unread => "unread",
        }
    }

    /// Notes why a connection ended. The first reason holds, except that a loss gives way to what either thread at the socket finds
    /// besides: of a deadline the kernel tells a single one, and what the peer said last is still there when a write has failed.
    fn note(self, known: &mut Option<Self>) {
        let holds = match &*known {
            None => true,
            Some(Self::Lost(_)) => self.outweighs_a_loss(),
            Some(_) => false,
        };
        if holds {
            *known = Some(self);
        }
    }

    /// Returns whether a thread at the socket found it, and it says more than that the connection is gone.
    fn outweighs_a_loss(&self) -> bool {
        matches!(
            self,
            Self::Progress
                | Self::Slow
                | Self::Frame(_)
                | Self::Record(_)
                | Self::Goodbye
                | Self::Yielded
                | Self::Refused(_)
        )
    }
}

impl From<SendError> for Ended {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Closed => Self::Lost("closed".into()),
            SendError::Backlog => Self::Backlog,
            SendError::Progress => Self::Progress,
            SendError::Slow => Self::Slow,
            SendError::Socket(error) => Self::Lost(error.to_string()),
            SendError::Tls(error) => Self::Record(error.into()),
            SendError::Source(error) => Self::Ours(error.to_string()),
        }
    }
}

/// A connection.
pub(super) struct Link {
    /// Unlike any other connection of this process.
    pub(super) id: u64,
    pub(super) peer: Arc<Peer>,
    pub(super) incarnation: Incarnation,
    /// The version of the protocol that both ends speak.
    pub(super) version: u32,
    /// Offer of what it said it can speak.
    pub(super) offer: Arc<Offer>,
    /// True if we dialed it.
    pub(super) dialed: bool,
    /// The key it was authenticated by.
    pub(super) fingerprint: tensorlane_proto::Fingerprint,
    /// The key of ours that it was made with.
    pub(super) ours: tensorlane_proto::Fingerprint,
    /// The socket of ours in the node's directory that it was told of.
    pub(super) told: Option<SocketName>,
    /// Reason for which it is not met there, where it told of a socket, too.
    pub(super) apart: Option<Apart>,
    /// Reason for which none of its addresses takes datagrams from here, where both have QUIC.
    pub(super) no_datagrams: Option<String>,
    /// Time at which its socket was connected, which orders the lives of the peer.
    pub(super) begun: Instant,
    /// Time at which it was up.
    pub(super) since: Instant,
    pub(super) outbox: Arc<Outbox>,
    /// Ways by which the bytes of pulls come and go.
    pub(super) ways: Ways,
    /// Channels that either end reads of the other.
    pub(super) channels: Attachments,
    /// Calls about pipes that were opened on it.
    pub(super) pipes: PipeCalls,
    socket: TcpStream,
    /// Milliseconds from `since` to the last byte that came, on lanes too.
    heard: AtomicU64,
    /// Bytes of pulls that had been sent when that byte came.
    sent_when_heard: AtomicU64,
    /// Milliseconds from `since` to when it was first asked whether it lives, after the last byte came; 0 before that.
    asked: AtomicU64,
    /// Microseconds from `since` to when the other end last said anything but that it lives; 0 before that.
    used: AtomicU64,
    /// Milliseconds from `since` to when it gave way, and one more; 0 while it has its seat.
    gave_way: AtomicU64,
    /// Cause for which it ends: see [`Ended::note`].
    ended: Mutex<Option<Ended>>,
}

/// Parts of a new link.
pub(super) struct LinkParts {
    pub(super) id: u64,
    pub(super) peer: Arc<Peer>,
    pub(super) incarnation: Incarnation,
    pub(super) version: u32,
    pub(super) offer: Arc<Offer>,
    pub(super) dialed: bool,
    pub(super) fingerprint: tensorlane_proto::Fingerprint,
    pub(super) ours: tensorlane_proto::Fingerprint,
    pub(super) told: Option<SocketName>,
    pub(super) apart: Option<Apart>,
    pub(super) no_datagrams: Option<String>,
    pub(super) begun: Instant,
    pub(super) outbox: Arc<Outbox>,
    pub(super) ways: Ways,
    pub(super) socket: TcpStream,
}

impl Link {
    pub(super) fn new(parts: LinkParts) -> Self {
        let LinkParts {
            id,
            peer,
            incarnation,
            version,
            offer,
            dialed,
            fingerprint,
            ours,
            told,
            apart,
            no_datagrams,
            begun,
            outbox,
            ways,
            socket,
        } = parts;
        Self {
            id,
            peer,
            incarnation,
            version,
            offer,
            dialed,
            fingerprint,
            ours,
            told,
            apart,
            no_datagrams,
            begun,
            since: Instant::now(),
            outbox,
            ways,
            channels: Attachments::default(),
            pipes: PipeCalls::default(),
            socket,
            heard: AtomicU64::new(0),
            sent_when_heard: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            used: AtomicU64::new(0),
            gave_way: AtomicU64::new(0),
            ended: Mutex::new(None),
        }
    }

    /// Returns whether it is the connection of its peer still.
    pub(super) fn is_present(&self) -> bool {
        self.peer.state.lock().link.as_ref().is_some_and(|present| present.id == self.id)
    }

    /// The peer in the life that this connection leads to.
    pub(super) fn key(&self) -> PeerKey {
        PeerKey { name: self.peer.name.clone(), incarnation: self.incarnation }
    }

    /// The address of the other end.
    pub(super) fn other_end(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Sends a frame in its turn; a connection that cannot is ended.
    pub(super) fn submit(&self, frame: Vec<u8>) {
        self.submitted(self.outbox.submit(frame));
    }

    /// Sends a frame that is not put together yet in its turn.
    pub(super) fn submit_gathered(&self, frame: GatherFrame) {
        self.submitted(self.outbox.submit_gathered(frame));
    }

    /// Sends an answer that keeps so many bytes and is made when there is room for it.
    pub(super) fn submit_late(&self, bytes: usize, late: impl FnOnce() -> GatherFrame + Send + 'static) {
        self.submitted(self.outbox.submit_late(bytes, Box::new(late)));
    }

    /// Takes the outcome of a frame that its sender gave to the outbox. Returns whether the connection goes on.
    pub(super) fn gone_on(&self, sent: Result<bool, SendError>) -> bool {
        let goes_on = matches!(sent, Ok(true));
        self.submitted(sent.map(|_| ()));
        goes_on
    }

    fn submitted(&self, sent: Result<(), SendError>) {
        match sent {
            Ok(()) | Err(SendError::Closed) => {}
            Err(error) => self.end(error.into()),
        }
    }

    /// Asks for a map at the node's socket; on the control connection where that does not take it.
    pub(super) fn ask_at_node(&self, call: u64, frame: Vec<u8>) {
        let taken = self.ways.shm().is_some_and(|shm| shm.ask(&frame));
        // Where it is over by now, or given up with the socket, nobody needs an answer.
        if !taken && self.peer.state.lock().leaves_node(call, self.id) {
            self.submit(frame);
        }
    }

    /// Ends the connection at once.
    pub(super) fn end(&self, why: Ended) {
        why.note(&mut self.ended.lock());
        self.outbox.end(false);
    }

    /// Ends the connection in order: what waits is sent, then Goodbye. The reader goes on until the other side closes.
    pub(super) fn end_in_order(&self, why: Ended) {
        self.say_goodbye(why, false);
    }

    /// Ends a connection whose place another one took. `rests`: nobody uses it, and if the other end finds it last, nobody was lost.
    pub(super) fn end_replaced(&self, rests: bool) {
        self.say_goodbye(Ended::Replaced, rests);
    }

    fn say_goodbye(&self, why: Ended, idle: bool) {
        let goodbye = v1::Goodbye { idle };
        why.note(&mut self.ended.lock());
        // Closed already, or full: then it ends without.
        let _ = self.outbox.submit(frame::encode(PeerKind::Goodbye.into(), 0, 0, &goodbye));
        self.outbox.end(true);
    }

    /// Gives its seat away: ends in order, and says that nobody uses it.
    pub(super) fn give_way(&self) {
        let millis = self.since.elapsed().as_millis() as u64;
        if self.gave_way.swap(millis + 1, Ordering::Relaxed) != 0 {
            return;
        }
        Ended::GaveWay.note(&mut self.ended.lock());
        // Closed already, or full: then it ends without.
        let goodbye = v1::Goodbye { idle: true };
        let _ = self.outbox.submit(frame::encode(PeerKind::Goodbye.into(), 0, 0, &goodbye));
        self.outbox.end(true);
    }

    /// Returns whether it has given its seat away and has not ended.
    pub(super) fn gives_way(&self) -> bool {
        self.gave_way.load(Ordering::Relaxed) != 0
    }

    /// Ends it where it gave its seat away and takes too long to end.
    pub(super) fn hurry_away(&self) {
        let gave_way = Duration::from_millis(self.gave_way.load(Ordering::Relaxed));
        if self.since.elapsed().saturating_sub(gave_way) >= seats::FAREWELL {
            self.end(Ended::GaveWay);
        }
    }

    /// Returns whether it ended because its seat was given away, by either end.
    fn is_given_away(&self) -> bool {
        matches!(*self.ended.lock(), Some(Ended::GaveWay | Ended::Yielded))
    }

    /// The other end said something on it that it is for.
    pub(super) fn was_used(&self) {
        self.used.store((self.since.elapsed().as_micros() as u64).max(1), Ordering::Relaxed);
    }

    /// State in which the link holds its seat. `is_used`: what goes on with the peer needs it.
    pub(super) fn sitter(&self, shared: &Shared, is_used: bool, now: Instant) -> Sitter {
        let used = self.used.load(Ordering::Relaxed);
        let in_use =
            is_used || self.peer.is_held() || !self.channels.is_empty() || pipe_calls::is_used(shared, self);
        Sitter {
            in_use,
            is_unspoken: used == 0 && !self.dialed,
            unused: now.saturating_duration_since(self.since + Duration::from_micros(used)),
        }
    }

    /// Time for which nothing was heard, in excess of what bulk bytes under way excuse.
    pub(super) fn silent(&self) -> Duration {
        let heard = Duration::from_millis(self.heard.load(Ordering::Relaxed));
        let sent_when_heard = self.sent_when_heard.load(Ordering::Relaxed);
        silence(self.since.elapsed(), heard, self.outbox.bulk_bytes(), sent_when_heard)
    }

    /// Time since something was last heard.
    pub(super) fn unheard(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.heard.load(Ordering::Relaxed)))
    }

    /// Asks whether the other side lives; for how long that has gone unanswered.
    pub(super) fn ask(&self) -> Duration {
        let now = self.since.elapsed();
        let asked = self.asked.load(Ordering::Relaxed);
        if asked > self.heard.load(Ordering::Relaxed) {
            return now.saturating_sub(Duration::from_millis(asked));
        }
        self.asked.store(now.as_millis() as u64, Ordering::Relaxed);
        self.submit(frame::encode(PeerKind::Ping.into(), 0, 0, &v1::Ping {}));
        Duration::ZERO
    }

    /// Something came from the other side: on this connection, or on a lane of it.
    pub(super) fn hear(&self) {
        let millis = self.since.elapsed().as_millis() as u64;
        if self.heard.swap(millis, Ordering::Relaxed) != millis {
            self.sent_when_heard.store(self.outbox.bulk_bytes(), Ordering::Relaxed);
        }
    }
}

/// Time since something was last heard, at `heard`, in excess of what the bytes excuse that were sent since. Each was
/// read in a moment of its own, and something may have been heard and sent between any two: what came before what it follows is
/// nothing.
fn silence(now: Duration, heard: Duration, sent: u64, sent_when_heard: u64) -> Duration {
    let unheard = sent.saturating_sub(sent_when_heard);
    now.saturating_sub(heard).saturating_sub(slowest::time_for(unheard))
}

impl Carrier for Link {
    fn id(&self) -> u64 {
        self.id
    }

    fn begun(&self) -> Instant {
        self.begun
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn offer(&self) -> &Arc<Offer> {
        &self.offer
    }

    fn peer(&self) -> &PeerName {
        &self.peer.name
    }

    fn maps(&self) -> bool {
        self.ways.maps()
    }

    fn maps_at_node(&self) -> bool {
        self.version >= AT_NODE_SINCE && self.ways.maps()
    }

    fn passes_on(&self) -> bool {
        self.version >= HOLDERS_SINCE
    }

    fn has_channels(&self) -> bool {
        self.version >= PEER_CHANNELS_SINCE
    }

    fn takes_questions(&self) -> bool {
        self.version >= QUESTIONS_SINCE
    }

    fn takes_sets(&self) -> bool {
        self.version >= SET_CALLS_SINCE
    }

    fn takes_set_snapshots(&self) -> bool {
        self.version >= PEER_SET_SNAPSHOTS_SINCE
    }

    fn has_pipes(&self) -> bool {
        self.version >= PEER_PIPES_SINCE
    }

    fn want_no_more(&self, way: Way, call: u64) {
        if let Some(lanes) = self.ways.lanes_of(way) {
            lanes.want_no_more(call);
        }
    }

    fn choose_way(&self, call: &mut Call) {
        call.speak(self.version);
        call.choose_way(&self.ways);
    }
}

/// Connection that is given its place. Dropped it has ended, however that came: what was on it waits again, and its seat is free.
/// So none is left that nobody runs, where a thread panics between the two.
pub(super) struct AdoptedLink {
    shared: Arc<Shared>,
    link: Arc<Link>,
    writer: Option<JoinHandle<()>>,
}

impl AdoptedLink {
    /// A connection that is about to be adopted.
    pub(super) fn new(shared: &Arc<Shared>, link: &Arc<Link>) -> Self {
        Self { shared: Arc::clone(shared), link: Arc::clone(link), writer: None }
    }

    /// Runs it on this thread (which becomes its reader), until it ends. The calls on it wait again then.
    pub(super) fn run(mut self, incoming: RecordReader, parser: FrameParser) {
        let ended = match self.start_writer() {
            Ok(()) => {
                let (shared, link) = (&self.shared, &self.link);
                let reading = || {
                    link.ways.tend();
                    read(shared, link, incoming, parser)
                };
                shared.caught("read", reading).unwrap_or_else(broke_off)
            }
            Err(error) => Ended::Lost(format!("no thread to write: {error}")),
        };
        ended.note(&mut self.link.ended.lock());
    }

    fn start_writer(&mut self) -> io::Result<()> {
        let (on_thread, link) = (Arc::clone(&self.shared), Arc::clone(&self.link));
        let write = move || match on_thread.caught("write", || link.outbox.write()) {
            Some(Ok(())) => {}
            Some(Err(error)) => link.end(error.into()),
            None => link.end(broke_off()),
        };
        self.writer = Some(self.shared.config.threads.start("tl-peer-out", PanicScope::Connection, write)?);
        Ok(())
    }
}

impl Drop for AdoptedLink {
    fn drop(&mut self) {
        // Whoever ran it to its end has noted why.
        broke_off().note(&mut self.link.ended.lock());
        let (shared, link) = (&self.shared, &self.link);
        // Whatever breaks off here, the connection is over: its calls go on over the next one.
        let _ = shared.caught("ways end", || link.ways.end());
        link.outbox.end(false);
        let _ = shared.caught("streams end", || link.channels.end());
        let _ = shared.caught("streams end", || pipe_calls::end(shared, link));
        if let Some(writer) = self.writer.take() {
            // It ends with the outbox. A panic there has been counted.
            let _ = writer.join();
        }
        let threads = &shared.config.threads;
        let _ = threads.caught("link ends", PanicScope::Connection, || note_standstill(shared, link));
        let _ = threads.caught("link ends", PanicScope::Connection, || give_up_place(shared, link));
    }
}

/// Tells the path to the peer where the connection stood still.
fn note_standstill(shared: &Shared, link: &Link) {
    // The other side may have found out first.
    let unheard = link.unheard() >= shared.config.progress * 3 / 4;
    let stood_still = match *link.ended.lock() {
        Some(Ended::Progress) => true,
        Some(Ended::Lost(_) | Ended::Replaced) => unheard,
        _ => false,
    };
    if stood_still {
        let due = link.peer.state.lock().stood_still(link.id);
        link.peer.standstill.lock().control_was_cut(shared.config.progress, due, Instant::now());
    }
}

/// Takes a connection whose threads have ended out of its place, and says why it ended.
fn give_up_place(shared: &Shared, link: &Arc<Link>) {
    let why = link.ended.lock().as_ref().map(Ended::to_string).unwrap_or_default();
    shared.link_ended(link, &why, link.is_given_away());
    let ended = link.ended.lock();
    let Some(ended) = ended.as_ref() else { return };
    match ended {
        Ended::Frame(error) => shared.counters.frames_refused.add(error.label()),
        Ended::Refused(_) => shared.refused(&link.peer, &why),
        _ => {}
    }
    shared.counters.closed.add(ended.label());
    match ended {
        Ended::Ours(_) => error!(peer = %link.peer.name, why, "connection ended"),
        Ended::Replaced
        | Ended::Stopped
        | Ended::Rotated
        | Ended::Moved
        | Ended::GaveWay
        | Ended::Yielded => {
            debug!(peer = %link.peer.name, why, "connection closed");
        }
        _ => info!(peer = %link.peer.name, why, "connection lost"),
    }
}

fn broke_off() -> Ended {
    Ended::Ours("its thread has panicked".into())
}

fn read(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    mut incoming: RecordReader,
    mut parser: FrameParser,
) -> Ended {
    let mut receiver = Receiver::new(shared, link);
    loop {
        let drained = incoming.drain(|plain| parser.feed(plain, &mut receiver));
        receiver.pause();
        match drained {
            Ok(Drained::All) => {}
            // This receiver never stops in the middle; without a Goodbye the stream is over all the same.
            Ok(Drained::Closed | Drained::Stopped) => return Ended::Lost("the peer closed".into()),
            Err(ended) => return ended,
        }
        if incoming.take_update_request() {
            link.outbox.update_keys();
        }
        match incoming.receive(&link.socket) {
            Ok(0) => return Ended::Lost("end of file".into()),
            Ok(_) => link.hear(),
            // A mid-stream timeout of the kernel (TCP_USER_TIMEOUT) reads as TimedOut.
            Err(error) if timed_out(&error) => return Ended::Progress,
            Err(error) => return Ended::Lost(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::{Failure, Reason};

    use super::*;

    #[test]
    fn a_deadline_outweighs_a_loss_whichever_thread_is_first_and_else_the_first_reason_holds() {
        let noted = |reasons: [Ended; 2]| {
            let mut known = None;
            reasons.into_iter().for_each(|reason| reason.note(&mut known));
            known.expect("a reason").label()
        };
        let lost = || Ended::Lost("end of file".into());
        assert_eq!(noted([lost(), Ended::Progress]), "progress");
        assert_eq!(noted([Ended::Progress, lost()]), "progress");
        assert_eq!(noted([lost(), Ended::Slow]), "slow");
        assert_eq!(noted([lost(), Ended::Stopped]), "lost");
        assert_eq!(noted([Ended::GaveWay, Ended::Progress]), "gave_way");
    }

    #[test]
    fn the_last_word_of_a_peer_outweighs_the_write_that_failed_before_it_was_read() {
        let refused = Failure::new(Reason::PeerUnreachable, "no seat");
        let said = [
            Ended::Goodbye,
            Ended::Yielded,
            Ended::Refused(refused),
            FrameError::OutOfPlace(PeerKind::Pull.into()).into(),
        ];
        for word in said {
            let (label, mut known) = (word.label(), None);
            Ended::Lost("broken pipe".into()).note(&mut known);
            word.note(&mut known);
            Ended::Lost("end of file".into()).note(&mut known);
            assert_eq!(known.expect("a reason").label(), label);
        }
    }

    #[test]
    fn silence_is_never_less_than_nothing_whatever_was_read_first() {
        let second = Duration::from_secs(1);
        assert_eq!(silence(3 * second, second, 0, 0), 2 * second);
        assert_eq!(
            silence(second, 3 * second, 0, 0),
            Duration::ZERO,
            "it was heard after the clock was read"
        );
        assert_eq!(silence(3 * second, second, 5, 9), 2 * second, "it was heard after the bytes were read");
        assert_eq!(silence(3 * second, second, u64::MAX, 0), Duration::ZERO);
    }
}
