//! Calls on the QUIC connection of a pair: who takes QUIC for large tensors asks for small ones there too, on one stream in each
//! direction. Where packets are lost they come sooner than over TCP (decision 013 has what was measured).
//!
//! ```text
//!   pump (any thread) ── Asks (what waits) ── asker thread ══ stream ══ answering thread ── Serve::small
//!                                               └─ Receiver, as on the control connection
//! ```
//! Questions and answers are the frames of the control connection, answered in order. The control connection stays beside it: what
//! has no answer when the stream ends is asked again there. This module knows no tensor; what is asked is `remote`'s, what is
//! answered `serving`'s.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use quinn::Connection;
use tensorlane_proto::frame::{CALLS_STREAM, FrameError, Header, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tokio::sync::Notify;

use super::super::bind::progress;
use super::super::wire::{LaneEnd, PROGRESS_MIN, TICK};
use super::connection::QuicConnection;
use super::wire::{Cut, Moved, QuicWire};
use crate::peer::connect::Refused;
use crate::peer::link::{Ended, Link};
use crate::peer::parse::{Body, Flow, Sink};
use crate::peer::receive::Receiver;
use crate::peer::serving;
use crate::peer::shared::Shared;

/// The first version of the protocol in which small tensors are asked for on QUIC.
pub(super) const CALLS_SINCE: u32 = 7;

/// Bytes of questions that may be on their way or wait for their answer, unless there is one alone: those that are not read yet take of the window
/// that the asks of lanes need, too, and it may be no wider than 64 KiB. What is behind them waits here.
const ASKED_BYTES: usize = 16 << 10;
/// Time for which no stream is opened again after one has ended.
const AGAIN: Duration = Duration::from_secs(1);

/// A question of ours.
struct Question {
    call: u64,
    frame: Vec<u8>,
    deadline: Instant,
}

/// Questions that wait for their stream. There are never more than calls on a connection.
pub(super) struct Asks {
    /// Unlike that of any stream before on this control connection.
    id: u64,
    queue: Mutex<Queue>,
    came: Notify,
}

#[derive(Default)]
struct Queue {
    questions: VecDeque<Question>,
    ended: bool,
}

// === impl Asks ===

impl Asks {
    pub(super) fn new(id: u64) -> Arc<Self> {
        Arc::new(Self { id, queue: Mutex::default(), came: Notify::new() })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Takes a question, unless the stream is over: gives it back then.
    pub(super) fn push(&self, call: u64, frame: Vec<u8>, deadline: Instant) -> Result<u64, Vec<u8>> {
        let mut queue = self.queue.lock();
        if queue.ended {
            return Err(frame);
        }
        queue.questions.push_back(Question { call, frame, deadline });
        drop(queue);
        self.came.notify_one();
        Ok(self.id)
    }

    /// The next question, if there is room for its bytes.
    fn take(&self, has_room: impl FnOnce(usize) -> bool) -> Option<Question> {
        let mut queue = self.queue.lock();
        let fits = queue.questions.front().is_some_and(|next| has_room(next.frame.len()));
        if fits { queue.questions.pop_front() } else { None }
    }

    fn end(&self) {
        let mut queue = self.queue.lock();
        queue.ended = true;
        queue.questions.clear();
    }
}

/// Opens both streams of a connection that we dialed, each on a thread of its own, and again where one ends before the connection. Until
/// one is up calls of its direction stay on the control connection.
pub(super) fn open(shared: &Arc<Shared>, link: &Arc<Link>, connection: &Connection) {
    if link.version < CALLS_SINCE {
        return;
    }
    for serves in [false, true] {
        let (on_thread, link, connection) = (Arc::clone(shared), Arc::clone(link), connection.clone());
        let thread = if serves { "tl-quic-answer" } else { "tl-quic-ask" };
        shared.spawn(thread, move || {
            while connection.close_reason().is_none() {
                // Where an answer was taken in a panic, which its hook has reported, those after it are not to go without.
                let dialed = AssertUnwindSafe(|| dialed(&on_thread, &link, &connection, serves));
                if let Ok(Err(refused)) = catch_unwind(dialed) {
                    tracing::debug!(peer = %link.peer.name, %refused, serves, "no calls on QUIC");
                }
                let Some(endpoint) = on_thread.endpoint() else { return };
                match endpoint.within(Instant::now() + AGAIN, connection.closed()) {
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                    _ => return,
                }
            }
        });
    }
}

fn dialed(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    connection: &Connection,
    serves: bool,
) -> Result<(), Refused> {
    let (quic, until) = (quic_connection(link)?, Instant::now() + shared.config.handshake);
    let (mut wire, cut) = quic.open(shared, connection, until)?;
    let hello = v1::LaneHello { lane: CALLS_STREAM, serves, ..v1::LaneHello::default() };
    wire.introduce(&hello, until)?;
    let place = Place::of(shared, link, quic, connection, !serves)?;
    place.run(wire, cut);
    Ok(())
}

/// A stream for calls came in: runs it on this thread until it ends. `serves`: the other end answers on it.
pub(in super::super) fn arrived(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    connection: &Connection,
    (mut wire, cut): (QuicWire, Cut),
    serves: bool,
) -> Result<(), Refused> {
    if link.version < CALLS_SINCE {
        return Err(Refused::Lane("there is no lane of its number"));
    }
    let mut place = Place::of(shared, link, quic_connection(link)?, connection, serves);
    let until = Instant::now() + TICK;
    // One that has ended may be on its way out of the place still.
    while place.is_err() && Instant::now() < until {
        std::thread::sleep(TICK / 20);
        place = Place::of(shared, link, quic_connection(link)?, connection, serves);
    }
    let place = place?;
    // A stream that cannot take the reply is found out by whoever uses it.
    let _ = wire.say(PeerKind::LaneHello, REPLY, &v1::LaneHello::default());
    place.run(wire, cut);
    Ok(())
}

fn quic_connection(link: &Link) -> Result<&QuicConnection, Refused> {
    let quic = link.ways.quic().and_then(super::super::Lanes::quic_connection);
    quic.ok_or(Refused::Lane("its connection has no QUIC"))
}

/// The place of a stream: one in each direction of the present connection. Given up when this is dropped, by a panic too: what has
/// no answer goes to the control connection then.
struct Place<'a> {
    shared: &'a Arc<Shared>,
    link: &'a Arc<Link>,
    quic: &'a QuicConnection,
    connection: &'a Connection,
    /// None: we answer on it.
    asks: Option<Arc<Asks>>,
}

// === impl Place ===

impl<'a> Place<'a> {
    fn of(
        shared: &'a Arc<Shared>,
        link: &'a Arc<Link>,
        quic: &'a QuicConnection,
        connection: &'a Connection,
        we_ask: bool,
    ) -> Result<Self, Refused> {
        let taken = || Refused::Lane("there is a stream for calls already, or another connection");
        let asks = match we_ask {
            true => Some(quic.begin_asks(connection.stable_id()).ok_or_else(taken)?),
            false => quic.begin_answers(connection.stable_id()).then_some(None).ok_or_else(taken)?,
        };
        Ok(Self { shared, link, quic, connection, asks })
    }

    fn run(self, mut wire: QuicWire, _cut: Cut) {
        let ended = match &self.asks {
            Some(asks) => self.ask(asks, &mut wire),
            None => self.answer(&mut wire),
        };
        drop(wire);
        let Err(over) = ended;
        match over {
            Over::Wire(end) => {
                tracing::debug!(peer = %self.link.peer.name, %end, "a stream for calls ended");
            }
            Over::Sink(why) => self.link.end(why),
        }
    }

    /// Asks what waits, and takes the answers.
    fn ask(&self, asks: &Asks, wire: &mut QuicWire) -> Result<Infallible, Over> {
        let receiver = Receiver::new(self.shared, self.link).on_quic(asks.id());
        let mut answers = Answers { receiver, quic: self.quic, asked: Outstanding::default() };
        let mut out = Vec::new();
        let mut moved = Instant::now();
        let progress = progress(self.shared);
        loop {
            while let Some(question) = asks.take(|bytes| answers.asked.has_room(bytes)) {
                answers.asked.add(&question, progress);
                out.push(Bytes::from(question.frame));
            }
            let most = (!answers.asked.is_empty()).then_some(TICK);
            match wire.turn(&mut out, asks.came.notified(), most)? {
                Moved::In => {
                    moved = Instant::now();
                    wire.parse(&mut answers, |_| false)?;
                }
                Moved::Out => moved = Instant::now(),
                Moved::Nothing if answers.asked.is_late(moved) => return Err(LaneEnd::Progress.into()),
                Moved::Nothing => {}
            }
        }
    }

    /// Answers what is asked.
    fn answer(&self, wire: &mut QuicWire) -> Result<Infallible, Over> {
        loop {
            let mut questions = Questions(None);
            wire.next_frame::<_, Over>(&mut questions, |questions| questions.0.is_some())?;
            let Some((header, body)) = questions.0 else { continue };
            self.quic.called();
            let answer = serving::small_apart(self.shared, self.link, header, &body)?;
            wire.reply(&mut answer.into_chunks())?;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(asks) = &self.asks else { return self.quic.answers_over(self.connection.stable_id()) };
        asks.end();
        self.quic.asks_over(asks.id());
        if self.link.is_ending() {
            // Its end takes all calls back, these among them.
            return;
        }
        let (again, effects) = self.link.peer.state.lock().leave_quic(self.link.id, asks.id());
        (0..again).for_each(|_| self.shared.counters.quic_calls.add("again"));
        if again > 0 {
            tracing::info!(peer = %self.link.peer.name, again, "what was asked on QUIC is asked again");
        }
        self.shared.perform(effects);
    }
}

/// End of a stream for calls. What the other end may not say on the control connection it may not say here: both end.
enum Over {
    Wire(LaneEnd),
    Sink(Ended),
}

impl From<LaneEnd> for Over {
    fn from(end: LaneEnd) -> Self {
        Self::Wire(end)
    }
}

impl From<Ended> for Over {
    fn from(why: Ended) -> Self {
        Self::Sink(why)
    }
}

/// A question that has no answer yet.
#[derive(Debug, Clone, Copy)]
struct Asked {
    call: u64,
    bytes: usize,
    at: Instant,
    /// Time for which nothing may come. Where its deadline is near it is left time to be asked again.
    patience: Duration,
}

/// All of them, in the order in which they were asked.
#[derive(Debug, Default)]
struct Outstanding {
    asked: VecDeque<Asked>,
    bytes: usize,
}

// === impl Outstanding ===

impl Outstanding {
    fn add(&mut self, question: &Question, progress: Duration) {
        let at = Instant::now();
        let quarter = question.deadline.saturating_duration_since(at) / 4;
        let patience = progress.min(quarter.max(PROGRESS_MIN));
        let bytes = question.frame.len();
        self.asked.push_back(Asked { call: question.call, bytes, at, patience });
        self.bytes += bytes;
    }

    fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Returns whether one more of so many bytes may be asked: any, where there is none.
    fn has_room(&self, bytes: usize) -> bool {
        self.is_empty() || self.bytes + bytes <= ASKED_BYTES
    }

    /// Takes the oldest one away, if it is this call.
    fn answered(&mut self, call: u64) -> bool {
        let Some(asked) = self.asked.front().copied().filter(|asked| asked.call == call) else {
            return false;
        };
        self.asked.pop_front();
        self.bytes -= asked.bytes;
        true
    }

    /// Returns whether any should have been answered by now, where something last came then.
    fn is_late(&self, moved: Instant) -> bool {
        self.asked.iter().any(|asked| asked.at.max(moved).elapsed() >= asked.patience)
    }
}

/// Takes answers, in the order in which was asked.
struct Answers<'a> {
    receiver: Receiver<'a>,
    quic: &'a QuicConnection,
    asked: Outstanding,
}

impl Sink for Answers<'_> {
    type Error = Ended;

    fn message(&mut self, kind: PeerKind, header: Header, body: Body<'_>) -> Result<Flow, Ended> {
        if kind != PeerKind::PullMany || !header.is_reply() || !self.asked.answered(header.call) {
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        self.quic.answered();
        self.receiver.message(kind, header, body)
    }
}

/// Takes one question.
struct Questions(Option<(Header, Bytes)>);

impl Sink for Questions {
    type Error = Ended;

    fn message(&mut self, kind: PeerKind, header: Header, body: Body<'_>) -> Result<Flow, Ended> {
        if kind != PeerKind::PullMany || header.flags != 0 || header.call == 0 {
            return Err(FrameError::OutOfPlace(header.kind).into());
        }
        self.0 = Some((header, body.into()));
        Ok(Flow::Stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(left: Duration, progress: Duration) -> Outstanding {
        let question = Question { call: 1, frame: vec![0; 40 << 10], deadline: Instant::now() + left };
        let mut all = Outstanding::default();
        all.add(&question, progress);
        all
    }

    #[test]
    fn who_waits_on_quic_is_left_most_of_its_time_for_the_control_connection() {
        let progress = Duration::from_secs(2);
        let patience = |left| asked(left, progress).asked[0].patience;
        assert_eq!(patience(Duration::from_secs(60)), progress);
        let quarter = patience(Duration::from_secs(4));
        assert!(quarter <= Duration::from_secs(1) && quarter > Duration::from_millis(900), "{quarter:?}");
        assert_eq!(patience(Duration::from_millis(1)), PROGRESS_MIN);
    }

    #[test]
    fn it_is_late_where_one_is_that_has_no_answer_however_long_those_before_it_may_wait() {
        let mut all = asked(Duration::from_secs(60), Duration::from_secs(2));
        assert!(!all.is_late(Instant::now()));
        let (frame, deadline) = (Vec::new(), Instant::now());
        all.add(&Question { call: 2, frame, deadline }, Duration::ZERO);
        assert!(all.is_late(Instant::now()));
        assert!(!all.answered(2) && all.answered(1) && all.answered(2) && !all.answered(2));
        assert!(all.is_empty() && !all.is_late(Instant::now()));
    }

    #[test]
    fn one_question_may_be_long_and_nothing_goes_beside_it() {
        let mut all = asked(Duration::from_secs(60), Duration::from_secs(2));
        assert!(!all.has_room(1) && all.answered(1) && all.has_room(40 << 10));
        let short = Question { call: 2, frame: vec![0; 1 << 10], deadline: Instant::now() };
        let mut count = 0;
        while all.has_room(1 << 10) {
            all.add(&short, Duration::ZERO);
            assert!(!all.has_room(40 << 10), "nor after short ones");
            count += 1;
        }
        assert_eq!(count, ASKED_BYTES >> 10);
    }

    #[test]
    fn a_stream_that_is_over_gives_questions_back() {
        let (asks, deadline) = (Asks::new(7), Instant::now());
        assert_eq!(asks.push(1, vec![1], deadline), Ok(7));
        asks.end();
        assert_eq!(asks.push(2, vec![2], deadline), Err(vec![2]));
        assert!(asks.take(|_| true).is_none(), "what it had is asked again by whoever knows the calls");
    }
}
