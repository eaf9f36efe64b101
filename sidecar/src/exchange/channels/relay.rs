//! A channel of ours that another peer reads: this sidecar is a reader of it, with a cursor of its own, and sends what it reads.
//!
//! One thread an attachment, however many connections that is on. It waits for messages, for credit and for the connection to take
//! more; each of these waits ends when the attachment or the connection does. Then it waits for another connection
//! ([`super::attachment`]), and goes back to what the peer does not have. A place of the ring is given back when the peer says that it
//! has the message, so the writer waits for the peer once the peer has no place either. A peer of an earlier release says nothing of
//! that: what is on the connection is given back.
//!
//! An end is waited for until the peer has confirmed it, for the grace of leases at most: then the ring and the thread are free again.
//!
//! In a channel that drops nobody waits: a message is read when the peer has a place for it, so that it is the newest then, or the
//! oldest that is there. What was dropped meanwhile shows in its sequence.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorlane_memory::ring::{self, Deadline, Mark, Message, Read, ReadError, RingCloser, RingReader};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::{CHANNEL_PIECE_MAX, PEER_CHANNELS_MAX};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::SessionId;

use super::super::names::tensor_name;
use super::attach::Attach;
use super::attachment::{Attachment, Standing};
use super::credit::Window;
use super::{Attached, far_spec};
use crate::cancel::Cancel;
use crate::exchange::Exchange;
use crate::metrics::label::PanicScope;
use crate::peer::{
    AttachedHere, ChannelLine, ChannelSource, Misuse, OutgoingMessages, PeerKey, TellAttached,
};

/// Readers that are other peers have numbers from here on where sessions have theirs.
const FIRST: u64 = 1 << 63;
/// Channels of this peer that all others read together, at most, those included whose connection is lost. Each costs a thread, up to
/// 4 MiB on their way, and the ring for as long as it is read.
const RELAYS_MAX: usize = 1_024;

/// Number of a reader that is another peer.
pub(super) fn session(number: u64) -> SessionId {
    SessionId(FIRST + number)
}

/// Returns whether that is such a number.
pub(super) fn is_peer(session: SessionId) -> bool {
    session.0 >= FIRST
}

/// See the module.
pub(super) struct Relay {
    exchange: Weak<Exchange>,
    session: SessionId,
    channel: u64,
    reader: u64,
    /// The peer that reads.
    peer: PeerKey,
    drops: bool,
    /// Most messages that may be on their way, with one before them and one after.
    marks_max: usize,
    /// Answer to the attach.
    message: v1::PeerChannelAttached,
    /// Taken by the thread.
    ring: Mutex<Option<RingReader>>,
    closer: RingCloser,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    attachment: Attachment,
    /// The connection of a turn, until the thread takes it.
    line: Option<(u64, ChannelLine)>,
    /// The writer has evicted the peer.
    evicted: bool,
    /// Ended by this side, and by what ends the connection too.
    closed: bool,
}

/// A turn of a relay: what is said on its connection.
struct Turn {
    relay: Arc<Relay>,
    number: u64,
}

/// Layout of a message: `has` if there is one, `new` if it is another one than before.
struct Said {
    has: bool,
    new: bool,
}

// === impl Exchange ===

impl Exchange {
    /// Attaches another peer to a channel of this one.
    pub(in crate::exchange) fn channel_attach_peer(
        self: &Arc<Self>,
        from: &PeerKey,
        asked: &v1::PeerChannelAttach,
        gone: Cancel,
        reply: TellAttached,
    ) {
        if let Some(resume) = &asked.resume {
            return reply(self.resume_relay(from, resume));
        }
        let name = self.may_leave(from, false).and_then(|()| tensor_name(&asked.name));
        let name = match name.and_then(|name| self.check_relays(from).map(|()| name)) {
            Ok(name) => name,
            Err(failure) => return reply(Err(failure)),
        };
        let session = session(self.channels.last_peer.fetch_add(1, Ordering::Relaxed));
        let (exchange, peer, resumes) = (Arc::clone(self), from.clone(), asked.resumes);
        let done = move |outcome: Result<Attached, Failure>| {
            let relayed = outcome.and_then(|attached| {
                let relay = Relay::begin(&exchange, (session, &peer, resumes), &attached);
                // Others may have come since it was looked at.
                let entered = relay.and_then(|made| exchange.enter_relay(attached.reader, made));
                let (relay, here) = entered.inspect_err(|_| {
                    exchange.end_reader(session, attached.reader, false);
                })?;
                if ring::inspect_cursor(&attached.cursor).evicted {
                    // Before it could be told.
                    relay.evict();
                }
                Ok(here)
            });
            reply(relayed);
        };
        Attach::begin_for_peer(self, (session, &from.name, gone), asked, name, Box::new(done));
    }

    /// Goes on with a channel that a peer reads, on another connection.
    fn resume_relay(&self, from: &PeerKey, resume: &v1::PeerChannelResume) -> Result<AttachedHere, Failure> {
        self.may_leave(from, true)?;
        let relay = self.relays().into_iter().find(|relay| relay.is(from, resume.attachment));
        relay.ok_or_else(over)?.resume(resume.next)
    }

    /// Checks that a peer may read one channel more, with those that wait until it is back.
    fn check_relays(&self, peer: &PeerKey) -> Result<(), Failure> {
        check_relays(&self.relays(), peer)
    }

    /// Enters a relay that was made, if there may be one more.
    fn enter_relay(
        &self,
        reader: u64,
        (relay, here): (Arc<Relay>, AttachedHere),
    ) -> Result<(Arc<Relay>, AttachedHere), Failure> {
        let mut relays = self.channels.relays.lock();
        let there: Vec<Arc<Relay>> = relays.values().filter_map(Weak::upgrade).collect();
        check_relays(&there, &relay.peer)?;
        relays.insert(reader, Arc::downgrade(&relay));
        drop(relays);
        Ok((relay, here))
    }

    fn relays(&self) -> Vec<Arc<Relay>> {
        self.channels.relays.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Channels that a life of a peer reads end: it does not come back.
    pub(in crate::exchange) fn channels_of_peer_over(&self, peer: &PeerKey) {
        self.relays().iter().filter(|relay| relay.is_of(peer)).for_each(|relay| relay.close());
    }

    /// Closes all attachments as this sidecar stops: nobody comes back for a channel.
    pub(in crate::exchange) fn channels_stop(&self) {
        self.relays().iter().for_each(|relay| relay.close());
    }

    /// An attachment between peers goes on after a connection was lost.
    pub(super) fn channel_resumed(&self) {
        self.channels.resumed.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Relay ===

impl Relay {
    /// The relay of a reader that was attached, and its first turn.
    pub(super) fn begin(
        exchange: &Arc<Exchange>,
        (session, peer, resumes): (SessionId, &PeerKey, bool),
        attached: &Attached,
    ) -> Result<(Arc<Self>, AttachedHere), Failure> {
        let Attached { ring, cursor, first, spec, .. } = attached;
        let internal = |error: &dyn std::fmt::Display| Failure::new(Reason::Internal, error.to_string());
        let shape = spec.shape().map_err(|error| internal(&error))?;
        let ring = RingReader::of_blocks(ring, cursor, shape, *first).map_err(|error| internal(&error))?;
        let ring = if resumes { ring.acknowledging() } else { ring };
        let message = v1::PeerChannelAttached {
            spec: Some(far_spec(spec)),
            first: *first,
            missed: attached.missed,
            writer: attached.writer.to_string(),
            epoch: spec.epoch,
            attachment: if resumes { rand::random::<u64>().max(1) } else { 0 },
        };
        let attachment = Attachment::new(Window::new(spec.policy, spec.slots, *first), resumes);
        let relay = Arc::new(Self {
            exchange: Arc::downgrade(exchange),
            session,
            channel: attached.channel,
            reader: attached.reader,
            peer: peer.clone(),
            drops: spec.policy.drops(),
            marks_max: usize::try_from(spec.slots).unwrap_or(usize::MAX).saturating_add(2),
            message: message.clone(),
            closer: ring.closer(),
            ring: Mutex::new(Some(ring)),
            state: Mutex::new(State { attachment, line: None, evicted: false, closed: false }),
            changed: Condvar::new(),
        });
        let source = Arc::new(Turn { relay: Arc::clone(&relay), number: 1 });
        Ok((relay, AttachedHere { message, source, resumed: false }))
    }

    /// Returns whether it is that attachment of a peer.
    pub(super) fn is(&self, peer: &PeerKey, attachment: u64) -> bool {
        attachment != 0 && self.message.attachment == attachment && self.is_of(peer)
    }

    /// Returns whether a life of a peer reads it.
    pub(super) fn is_of(&self, peer: &PeerKey) -> bool {
        self.peer == *peer
    }

    /// Returns whether the peer is away, and may come back.
    pub(super) fn is_away(&self) -> bool {
        matches!(self.state.lock().attachment.standing(), Standing::Away(_))
    }

    /// The peer is back, and goes on with that sequence.
    pub(super) fn resume(self: &Arc<Self>, next: u64) -> Result<AttachedHere, Failure> {
        let resumed = self.change(|state| state.attachment.resume(next, Instant::now()));
        let number = resumed.map_err(|_| over())?;
        let source = Arc::new(Turn { relay: Arc::clone(self), number });
        let message = v1::PeerChannelAttached { first: next, ..self.message.clone() };
        Ok(AttachedHere { message, source, resumed: true })
    }

    /// The writer has evicted the peer: nothing more is sent but that.
    pub(super) fn evict(&self) {
        self.change(|state| state.evicted = true);
    }

    /// Ends it: nobody comes back.
    pub(super) fn close(&self) {
        self.change(|state| {
            state.attachment.close();
            state.closed = true;
        });
    }

    /// Changes the state, and has the thread look at it.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state.lock());
        self.changed.notify_all();
        self.closer.wake();
        changed
    }

    /// Returns whether nothing more is to be sent in a turn.
    fn is_stopped(&self, turn: u64) -> bool {
        let state = self.state.lock();
        state.evicted || !state.attachment.is_on(turn)
    }

    /// Waits for what the window says. Returns whether the turn goes on.
    fn wait(&self, turn: u64, may: impl Fn(&Window) -> bool, then: impl FnOnce(&mut Window)) -> bool {
        let mut state = self.state.lock();
        while !state.evicted && state.attachment.is_on(turn) {
            if may(&state.attachment.window) {
                then(&mut state.attachment.window);
                return true;
            }
            self.changed.wait(&mut state);
        }
        false
    }

    /// Sends a message. Returns whether the turn goes on.
    fn send(
        &self,
        turn: u64,
        to: &OutgoingMessages,
        message: &Message,
        layout: &mut Option<Arc<[u8]>>,
    ) -> bool {
        let said = Said { has: !message.layout().is_empty(), new: is_new(message, layout.as_ref()) };
        // A ring that drops has a place for every layout.
        let new = said.new && !self.drops;
        let begin = |window: &mut Window| window.begin(message.sequence(), said.has, new);
        if !self.wait(turn, |window| window.may_begin(new), begin) {
            return false;
        }
        if said.new {
            *layout = Some(Arc::clone(message.layout()));
        }
        let (view, mut at) = (message.view(), 0);
        let bytes = view.len() as u64;
        loop {
            let length = (bytes - at).min(CHANNEL_PIECE_MAX as u64);
            if !self.wait(turn, |window| window.may_send(length), |window| window.send(length)) {
                return false;
            }
            let Ok(piece) = view.piece(at, length) else {
                // Bounds are those of the message, which the reader has proven.
                self.close();
                return false;
            };
            let mut frame = v1::PeerChannelMessage {
                sequence: message.sequence(),
                bytes,
                offset: at,
                ..Default::default()
            };
            if at == 0 {
                frame.same_layout = said.has && !said.new;
                frame.layout = said.new.then(|| message.layout().to_vec().into());
            }
            if !to.send(&frame, &piece) {
                return false;
            }
            at += length;
            if at == bytes {
                return true;
            }
        }
    }

    /// Sends all messages of a turn until the end; how it was, unless the turn is over before. `marks` are the places to which it may go
    /// back.
    fn send_all(
        &self,
        (turn, line): (u64, &ChannelLine),
        ring: &mut RingReader,
        marks: &mut VecDeque<Mark>,
    ) -> Option<v1::PeerChannelEnd> {
        let (to, mut layout, mut written) = (line.messages(), None, ring.mark().next);
        let outcome = loop {
            // Nothing is held while there is no place for it.
            if self.drops && !self.wait(turn, |window| window.may_begin(false), |_| ()) {
                return self.evicted();
            }
            match ring.read(Deadline::Never, &|| self.is_stopped(turn)) {
                Ok(Read::Message(mut message)) => {
                    if !self.finds(&mut message) {
                        break v1::PeerChannelOutcome::Lost;
                    }
                    if !self.send(turn, &to, &message, &mut layout) {
                        return self.evicted();
                    }
                    written = message.sequence() + 1;
                    drop(message);
                    if self.message.attachment != 0 && !self.remember(marks, ring.mark()) {
                        self.close();
                        return None;
                    }
                }
                Ok(Read::Gap { next, .. }) => written = next,
                Ok(Read::Finished) => break v1::PeerChannelOutcome::Finished,
                Ok(Read::Lost | Read::Cut) => break v1::PeerChannelOutcome::Lost,
                Err(error @ ReadError::Damaged { .. }) => {
                    tracing::warn!(reader = self.reader, %error, "a channel that a peer reads has ended");
                    break v1::PeerChannelOutcome::Lost;
                }
                Err(ReadError::Evicted) => break v1::PeerChannelOutcome::Evicted,
                Err(_) if self.is_stopped(turn) => return self.evicted(),
                // Marked by whoever ended its reader.
                Err(_) => break v1::PeerChannelOutcome::Lost,
            }
        };
        Some(end(outcome, if self.drops { written } else { 0 }))
    }

    /// Finds the bytes of a message that is larger than a slot. Returns whether they are there.
    fn finds(&self, message: &mut Message) -> bool {
        let Some(exchange) = self.exchange.upgrade() else { return false };
        let found = exchange.find_extent(self.channel, message);
        if let Err(failure) = &found {
            tracing::warn!(reader = self.reader, %failure, "a channel that a peer reads has ended");
        }
        found.is_ok()
    }

    /// Keeps a place to which it may go back, and none that the peer is past. Returns whether there are no more than can be: a peer that
    /// gives back what it says it has not received would have them kept for ever.
    fn remember(&self, marks: &mut VecDeque<Mark>, mark: Mark) -> bool {
        marks.push_back(mark);
        let received = self.state.lock().attachment.window.received();
        while marks.get(1).is_some_and(|mark| mark.next <= received) {
            marks.pop_front();
        }
        marks.len() <= self.marks_max
    }

    /// The end of a peer that was evicted.
    fn evicted(&self) -> Option<v1::PeerChannelEnd> {
        self.state.lock().evicted.then(|| end(v1::PeerChannelOutcome::Evicted, 0))
    }

    /// Waits for the turn after one, as long as the peer may come back; its connection, and the sequence that it begins with.
    fn next_turn(&self, turn: u64) -> Option<(u64, ChannelLine, u64)> {
        let mut state = self.state.lock();
        loop {
            if state.attachment.expire(Instant::now()) {
                let (peer, reader) = (&self.peer.name, self.reader);
                tracing::warn!(%peer, reader, "a peer that reads a channel did not come back, or confirm its end, in time");
            }
            match state.attachment.standing() {
                Standing::Over => return None,
                Standing::On(now) if now > turn => {
                    if let Some(line) = taken(&mut state, now) {
                        return Some((now, line, state.attachment.window.received()));
                    }
                }
                // The peer is away. Or its connection has ended, and this end has not heard; or it is about to leave.
                Standing::Away(_) | Standing::On(_) => {}
            }
            match state.attachment.expires() {
                Some(until) => {
                    self.changed.wait_until(&mut state, until);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Time that a peer has to come back, or to confirm an end.
    fn grace(&self) -> Duration {
        self.exchange.upgrade().map(|exchange| exchange.store.lease_grace()).unwrap_or_default()
    }

    /// Sends everything, in one turn after the other, beginning on this connection; how it was, where that is still to be said. A peer
    /// that can come back has its end when it says so.
    fn turns(&self, mut ring: RingReader, line: &mut ChannelLine) -> Option<v1::PeerChannelEnd> {
        let mut marks = VecDeque::from([ring.mark()]);
        let mut turn = 1;
        loop {
            let end = self.send_all((turn, &*line), &mut ring, &mut marks);
            if self.message.attachment == 0 {
                return end;
            }
            if let Some(end) = &end {
                line.finish(end);
                let until = Instant::now() + self.grace();
                self.state.lock().attachment.finished(turn, until);
            }
            let (next_turn, next_line, next) = self.next_turn(turn)?;
            while marks.len() > 1 && marks.back().is_some_and(|mark| mark.next > next) {
                marks.pop_back();
            }
            if let Some(mark) = marks.back() {
                ring.go_back(*mark);
            }
            (turn, *line) = (next_turn, next_line);
        }
    }

    /// Sends everything and ends the reader. Where that breaks off, the peer hears that nothing more comes.
    fn run(&self, line: &ChannelLine) {
        let Some(ring) = self.ring.lock().take() else { return };
        let threads = self.exchange.upgrade().map(|exchange| exchange.threads().clone()).unwrap_or_default();
        let mut line = line.clone();
        let sent = threads.caught("tl-channel-out", PanicScope::Connection, || {
            threads.point("pump");
            self.turns(ring, &mut line)
        });
        let last = sent.unwrap_or_else(|| Some(end(v1::PeerChannelOutcome::Lost, 0)));
        if let Some(exchange) = self.exchange.upgrade() {
            exchange.end_reader(self.session, self.reader, false);
        }
        let (left, closed) = {
            let mut state = self.state.lock();
            (state.line.take(), state.closed)
        };
        // A peer that waits on a connection for what comes on another one hears that nothing comes. One that has left does not hear it.
        let lost = (self.message.attachment != 0 && !closed).then(|| end(v1::PeerChannelOutcome::Lost, 0));
        if let Some(end) = last.or(lost) {
            line.finish(&end);
        }
        line.over();
        if let Some((_, left)) = left {
            left.over();
        }
    }
}

/// Checks that a peer may read one channel more beside these.
fn check_relays(relays: &[Arc<Relay>], peer: &PeerKey) -> Result<(), Failure> {
    check_counts(&peer.name, relays.iter().filter(|relay| relay.is_of(peer)).count(), relays.len())
}

/// Checks that a peer that reads so many channels of this one may read one more, where all others read so many.
fn check_counts(peer: &PeerName, its: usize, all: usize) -> Result<(), Failure> {
    let (what, most) = if its >= PEER_CHANNELS_MAX {
        (
            format!("{peer} reads {its} channels of this peer already, at most {PEER_CHANNELS_MAX}"),
            PEER_CHANNELS_MAX,
        )
    } else if all >= RELAYS_MAX {
        (format!("other peers read {all} channels of this peer already, at most {RELAYS_MAX}"), RELAYS_MAX)
    } else {
        return Ok(());
    };
    let message = format!("{what}; end some first, or send several in one");
    Err(Failure::new(Reason::LimitExceeded, message).with("most", most))
}

/// The connection of a turn, if it is there.
fn taken(state: &mut MutexGuard<'_, State>, turn: u64) -> Option<ChannelLine> {
    state.line.take_if(|(of, _)| *of == turn).map(|(_, line)| line)
}

fn end(outcome: v1::PeerChannelOutcome, written: u64) -> v1::PeerChannelEnd {
    v1::PeerChannelEnd { outcome: outcome.into(), written }
}

/// The attachment that a peer would resume is no more.
pub(super) fn over() -> Failure {
    let message = "the attachment to the channel has ended: the connection was lost for too long, or the reader was ended";
    Failure::new(Reason::ChannelEnded, message)
}

/// Returns whether the layout of a message is another one than was sent last.
fn is_new(message: &Message, last: Option<&Arc<[u8]>>) -> bool {
    !message.layout().is_empty() && last.is_none_or(|last| last != message.layout())
}

// === impl Turn ===

impl ChannelSource for Turn {
    fn credit(&self, credit: &v1::PeerChannelCredit) -> Result<(), Misuse> {
        let Self { relay, number } = self;
        let received = {
            let mut state = relay.state.lock();
            state.attachment.credit(*number, credit)?;
            state.attachment.window.received()
        };
        relay.changed.notify_all();
        relay.closer.acknowledge(received);
        Ok(())
    }

    fn ended(&self) {
        self.relay.change(|state| state.attachment.left(self.number));
    }

    fn lost(&self) {
        let until = Instant::now() + self.relay.grace();
        self.relay.change(|state| state.attachment.lost(self.number, until));
    }

    fn resumed(&self, line: ChannelLine) {
        if let Some(exchange) = self.relay.exchange.upgrade() {
            exchange.channel_resumed();
        }
        // Of a turn that is over meanwhile nobody takes the connection.
        let unused = self.relay.change(|state| match state.attachment.is_on(self.number) {
            true => state.line.replace((self.number, line)).map(|(_, before)| before),
            false => Some(line),
        });
        if let Some(unused) = unused {
            unused.over();
        }
    }

    fn pump(&self, line: &ChannelLine) {
        self.relay.run(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_that_peers_read_have_a_bound_for_each_peer_and_one_for_all() {
        let peer: PeerName = "reader-0".parse().unwrap();
        let counts = |its, all| check_counts(&peer, its, all).map_err(|failure| failure.message);
        assert_eq!(counts(PEER_CHANNELS_MAX - 1, RELAYS_MAX - 1), Ok(()));
        let its = counts(PEER_CHANNELS_MAX, PEER_CHANNELS_MAX).unwrap_err();
        assert!(
            its.contains("reader-0 reads 64 channels") && its.contains("at most 64; end some first"),
            "{its}"
        );
        let all = counts(0, RELAYS_MAX).unwrap_err();
        assert!(
            all.contains("other peers read 1024 channels") && all.contains("at most 1024; end some"),
            "{all}"
        );
        let refused = check_counts(&peer, 0, RELAYS_MAX).unwrap_err();
        assert_eq!((refused.reason, refused.detail("most")), (Reason::LimitExceeded, Some("1024")));
    }
}
