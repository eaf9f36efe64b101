//! A channel of ours that another peer reads: this sidecar is a reader of it, with a cursor of its own, and sends what it reads.
//!
//! One thread an attachment, started and ended by the connection. It waits for messages, for credit and for the connection to take
//! more; each of these waits ends when the attachment does. A place of the ring is given back when its bytes are on the connection,
//! so the writer waits for the peer once the peer has no place either.
//!
//! In a channel that drops nobody waits: a message is read when the peer has a place for it, so that it is the newest then, or the
//! oldest that is there. What was dropped meanwhile shows in its sequence.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};
use tensorlane_memory::ring::{Deadline, Message, Read, ReadError, RingCloser, RingReader};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::CHANNEL_PIECE_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::SessionId;

use super::credit::Window;
use super::{Attached, spec_message};
use crate::exchange::Exchange;
use crate::peer::{ChannelLine, ChannelSource, Misuse, OutgoingMessages};

/// Readers that are other peers have numbers from here on where sessions have theirs.
const FIRST: u64 = 1 << 63;

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
    reader: u64,
    drops: bool,
    first: u64,
    /// Taken by the thread.
    ring: Mutex<Option<RingReader>>,
    closer: RingCloser,
    closed: AtomicBool,
    /// Set if the writer has evicted the peer, before it is closed.
    evicted: AtomicBool,
    window: Mutex<Window>,
    credited: Condvar,
}

/// Layout of a message: `has` if there is one, `new` if it is another one than before.
struct Said {
    has: bool,
    new: bool,
}

// === impl Relay ===

impl Relay {
    /// The relay of a reader that was attached.
    pub(super) fn new(
        exchange: &Arc<Exchange>,
        session: SessionId,
        attached: &Attached,
    ) -> Result<Arc<Self>, Failure> {
        let Attached { ring, cursor, first, .. } = attached;
        let internal = |error: &dyn std::fmt::Display| Failure::new(Reason::Internal, error.to_string());
        let shape = attached.spec.shape().map_err(|error| internal(&error))?;
        let ring = RingReader::of_blocks(ring, cursor, shape, *first).map_err(|error| internal(&error))?;
        Ok(Arc::new(Self {
            exchange: Arc::downgrade(exchange),
            session,
            reader: attached.reader,
            drops: attached.spec.policy.drops(),
            first: *first,
            closer: ring.closer(),
            ring: Mutex::new(Some(ring)),
            closed: AtomicBool::new(false),
            evicted: AtomicBool::new(false),
            window: Mutex::new(Window::new(attached.spec.policy, attached.spec.slots, *first)),
            credited: Condvar::new(),
        }))
    }

    /// Returns the message that tells the peer of the attachment.
    pub(super) fn message(attached: &Attached) -> v1::PeerChannelAttached {
        v1::PeerChannelAttached {
            spec: Some(spec_message(&attached.spec)),
            first: attached.first,
            missed: attached.missed,
            writer: attached.writer.to_string(),
            epoch: attached.spec.epoch,
        }
    }

    /// The writer has evicted the peer: nothing more is sent but that.
    pub(super) fn evict(&self) {
        self.evicted.store(true, Ordering::Release);
        self.ended();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Waits for what the window says. Returns whether the attachment goes on.
    fn wait(&self, may: impl Fn(&Window) -> bool, then: impl FnOnce(&mut Window)) -> bool {
        let mut window = self.window.lock();
        while !self.is_closed() {
            if may(&window) {
                then(&mut window);
                return true;
            }
            self.credited.wait(&mut window);
        }
        false
    }

    /// Sends a message. Returns whether the attachment goes on.
    fn send(&self, to: &OutgoingMessages, message: &Message, layout: &mut Option<Arc<[u8]>>) -> bool {
        let said = Said { has: !message.layout().is_empty(), new: is_new(message, layout.as_ref()) };
        // A ring that drops has a place for every layout.
        let new = said.new && !self.drops;
        if !self.wait(|window| window.may_begin(new), |window| window.begin(said.has, new)) {
            return false;
        }
        if said.new {
            *layout = Some(Arc::clone(message.layout()));
        }
        let (view, mut at) = (message.view(), 0);
        let bytes = view.len() as u64;
        loop {
            let length = (bytes - at).min(CHANNEL_PIECE_MAX as u64);
            if !self.wait(|window| window.may_send(length), |window| window.send(length)) {
                return false;
            }
            // Bounds are those of the message, which the reader has proven.
            let Ok(piece) = view.piece(at, length) else { return false };
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

    /// Sends all messages until the end; how it was, unless the peer is gone.
    fn send_all(&self, line: &ChannelLine, mut ring: RingReader) -> Option<v1::PeerChannelEnd> {
        let (to, mut layout, mut written) = (line.messages(), None, self.first);
        let outcome = loop {
            // Nothing is held while there is no place for it.
            if self.drops && !self.wait(|window| window.may_begin(false), |_| ()) {
                return None;
            }
            match ring.read(Deadline::Never, &|| self.is_closed()) {
                Ok(Read::Message(message)) => {
                    if !self.send(&to, &message, &mut layout) {
                        return None;
                    }
                    written = message.sequence() + 1;
                }
                Ok(Read::Gap { next, .. }) => written = next,
                Ok(Read::Finished) => break v1::PeerChannelOutcome::Finished,
                Ok(Read::Lost | Read::Cut) => break v1::PeerChannelOutcome::Lost,
                Err(error @ ReadError::Damaged { .. }) => {
                    tracing::warn!(reader = self.reader, %error, "a channel that a peer reads has ended");
                    break v1::PeerChannelOutcome::Lost;
                }
                Err(ReadError::Evicted) => break v1::PeerChannelOutcome::Evicted,
                // Marked by whoever ended its reader, or closed.
                Err(_) if self.is_closed() => return None,
                Err(_) => break v1::PeerChannelOutcome::Lost,
            }
        };
        let written = if self.drops { written } else { 0 };
        Some(v1::PeerChannelEnd { outcome: outcome.into(), written })
    }
}

/// Returns whether the layout of a message is another one than was sent last.
fn is_new(message: &Message, last: Option<&Arc<[u8]>>) -> bool {
    !message.layout().is_empty() && last.is_none_or(|last| last != message.layout())
}

impl ChannelSource for Relay {
    fn credit(&self, credit: &v1::PeerChannelCredit) -> Result<(), Misuse> {
        self.window.lock().credit(credit)?;
        self.credited.notify_one();
        Ok(())
    }

    fn ended(&self) {
        {
            let _window = self.window.lock();
            self.closed.store(true, Ordering::Release);
        }
        self.credited.notify_one();
        self.closer.close();
    }

    fn pump(&self, line: &ChannelLine) {
        let Some(ring) = self.ring.lock().take() else { return };
        let end = self.send_all(line, ring).or_else(|| {
            let outcome = v1::PeerChannelOutcome::Evicted.into();
            self.evicted.load(Ordering::Acquire).then_some(v1::PeerChannelEnd { outcome, written: 0 })
        });
        if let Some(exchange) = self.exchange.upgrade() {
            exchange.end_reader(self.session, self.reader, false);
        }
        if let Some(end) = end {
            line.finish(&end);
        }
    }
}
