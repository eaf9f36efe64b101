//! Channels that a program without maps writes or reads: this sidecar is the writer or the reader in its place.
//!
//! ```text
//!   program ── stream ──> HostedWriter + RingWriter ═══ ring ═══> any reader
//!   any writer ═══ ring or replica ═══> HostedReader + RingReader ── stream ──> program
//! ```
//! A stream of such a program has a number of its own where others have a session, so the table knows it as a party like any other. Its
//! end is the drop of what it was given here; no process is asked for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorlane_memory::ring::{Message, RingCloser, RingReader, RingReaders, RingWriter};
use tensorlane_memory::{Block, Purpose};
use tensorlane_proto::channel::check_expected;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, SessionId};

use super::attach::Who;
use super::table::{self, Party, Spec};
use super::{Attached, Channels, enter_cursor, first_of, own_spec, relay, spec_message};
use crate::cancel::Cancel;
use crate::exchange::{Exchange, Queueing};
use crate::store::Claimant;

/// Streams have numbers from here on where sessions have theirs. Those of peers come behind them.
const FIRST: u64 = 1 << 62;

/// Number of a stream.
fn session(number: u64) -> SessionId {
    SessionId(FIRST + number)
}

/// Returns whether that is such a number.
pub(super) fn is_stream(session: SessionId) -> bool {
    session.0 >= FIRST && !relay::is_peer(session)
}

/// Readers of a ring that this sidecar writes for a program.
pub(super) struct HostedReaders {
    ring: Arc<RingReaders>,
    /// Called when one has come.
    came: Box<dyn Fn() + Send + Sync>,
}

/// Writer of a channel in the place of a program. Dropped, the channel has ended: as lost, unless its ring was finished.
pub struct HostedWriter {
    exchange: Arc<Exchange>,
    session: SessionId,
    channel: u64,
    spec: Spec,
    readers: Arc<RingReaders>,
}

/// Reader of a channel in the place of a program. Dropped, it reads no more, and its writer waits for it no longer.
pub struct HostedReader {
    exchange: Arc<Exchange>,
    session: SessionId,
    channel: u64,
    reader: u64,
    attached: v1::ChannelAttached,
    epoch: u64,
    closer: RingCloser,
}

// === impl HostedReaders ===

impl HostedReaders {
    /// Looks at the cursor of a new reader from now on. Its first message, and how many it has missed.
    pub(super) fn attach(&self, reader: u64, cursor: &Block, from: i32) -> Result<(u64, u64), Failure> {
        let from = v1::ChannelFrom::try_from(from).unwrap_or_default();
        enter_cursor(&self.ring, reader, cursor, first_of(from))
    }

    /// Tells whoever waits for readers.
    pub(super) fn tell(&self) {
        (self.came)();
    }

    /// Looks at a cursor no more.
    pub(super) fn detach(&self, reader: u64) {
        self.ring.detach(reader);
    }
}

// === impl Channels ===

impl Channels {
    /// Readers of the ring that a stream writes, while it does.
    pub(super) fn hosted(&self, writer: SessionId) -> Option<Arc<HostedReaders>> {
        self.hosted.lock().get(&writer).cloned()
    }

    fn next_stream(&self) -> SessionId {
        session(self.last_stream.fetch_add(1, Ordering::Relaxed))
    }
}

// === impl Exchange ===

impl Exchange {
    /// Makes a channel that the caller writes through its ring. `came` is called whenever a reader was attached.
    pub fn channel_create_hosted(
        self: &Arc<Self>,
        client: Arc<str>,
        cancel: Cancel,
        open: &v1::ChannelOpen,
        came: impl Fn() + Send + Sync + 'static,
        done: impl FnOnce(Result<(HostedWriter, RingWriter), Failure>) + Send + 'static,
    ) {
        let writer = Party { session: self.channels.next_stream(), client };
        let checked = own_spec(open.spec.as_ref(), open.readers.as_ref()).and_then(|made| {
            check_eviction(&made.0, open.evict_after_ms)?;
            check_growth(&made.0)?;
            check_expected(open.expect_readers, made.0.readers_max)?;
            self.channels.table.lock().check_create(writer.session, &made.0)?;
            Ok(made)
        });
        let (spec, shape) = match checked {
            Ok(checked) => checked,
            Err(failure) => return done(Err(failure)),
        };
        let (deadline, evict_after) = (self.deadline(open.deadline_ms), open.evict_after_ms);
        let claimant = Claimant::Holder(Some(Holder::Session(writer.session)));
        let queueing = Queueing {
            claimant: claimant.clone(),
            purpose: Purpose::Put,
            deadline,
            cancel: Some(cancel.clone()),
        };
        self.on_waiter(queueing, Box::new(done), move |exchange| {
            let session = writer.session;
            let ring = exchange.allocate_ring(None, shape, (&claimant, deadline, &cancel))?;
            let internal = |error: &dyn std::fmt::Display| Failure::new(Reason::Internal, error.to_string());
            let mut writing = RingWriter::of_block(&ring, shape, 0).map_err(|error| internal(&error))?;
            if evict_after > 0 {
                let exchange = Arc::downgrade(exchange);
                writing.evict_after(Duration::from_millis(evict_after), move |reader| {
                    if let Some(exchange) = exchange.upgrade() {
                        exchange.channel_evict(session, reader);
                    }
                });
            }
            let readers = writing.readers();
            let hosted = HostedReaders { ring: Arc::clone(&readers), came: Box::new(came) };
            // Before anybody can attach.
            exchange.channels.hosted.lock().insert(session, Arc::new(hosted));
            match exchange.enter_channel(writer, 0, spec.clone(), ring) {
                Ok(channel) => {
                    let exchange = Arc::clone(exchange);
                    Ok((HostedWriter { exchange, session, channel, spec, readers }, writing))
                }
                Err(failure) => {
                    exchange.channels.hosted.lock().remove(&session);
                    Err(failure)
                }
            }
        });
    }

    /// Attaches a reader to a channel of this peer or another one, which the caller reads through its ring.
    pub fn channel_attach_hosted(
        self: &Arc<Self>,
        client: Arc<str>,
        cancel: Cancel,
        request: v1::ChannelReadRequest,
        done: impl FnOnce(Result<(HostedReader, RingReader), Failure>) + Send + 'static,
    ) {
        let session = self.channels.next_stream();
        let v1::ChannelReadRequest { name, peer, from, wait_ms, deadline_ms, .. } = request;
        let request = v1::ChannelAttachRequest {
            name,
            peer,
            from,
            wait_ms,
            deadline_ms,
            hold: 1,
            takes_gaps: true,
            require: None,
        };
        let exchange = Arc::clone(self);
        let attached = move |outcome: Result<Attached, Failure>| {
            done(outcome.and_then(|attached| {
                HostedReader::new(&exchange, session, &attached).inspect_err(|_| {
                    exchange.end_reader(session, attached.reader, false);
                })
            }));
        };
        self.channel_attach_for((Who::Stream { session, client }, cancel), &request, Box::new(attached));
    }

    /// A reader of a channel that a stream writes has gone.
    pub(super) fn hosted_reader_gone(&self, writer: SessionId, reader: u64) {
        if let Some(hosted) = self.channels.hosted(writer) {
            hosted.detach(reader);
        }
        self.channels.table.lock().forget(writer, reader);
    }
}

// === impl HostedWriter ===

impl HostedWriter {
    /// Shape of the channel.
    #[must_use]
    pub fn spec(&self) -> v1::ChannelSpec {
        spec_message(&self.spec)
    }

    /// Number of readers that are attached.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.readers.len()
    }

    /// Evicts a reader of a channel that is made for it. One that is not its own, or has gone, is nothing.
    pub fn evict(&self, reader: u64) {
        self.readers.evict(reader);
        self.exchange.channel_evict(self.session, reader);
    }

    /// Client of a reader; empty where it has gone.
    #[must_use]
    pub fn client_of(&self, reader: u64) -> String {
        let table = self.exchange.channels.table.lock();
        let reader = table.channel(self.channel).and_then(|channel| channel.readers.get(&reader));
        reader.map(|reader| reader.party.client.to_string()).unwrap_or_default()
    }
}

impl Drop for HostedWriter {
    fn drop(&mut self) {
        let end = v1::ChannelDetachRequest { channel: self.channel, ..Default::default() };
        self.exchange.channel_detach(self.session, &end);
        self.exchange.channels.hosted.lock().remove(&self.session);
    }
}

// === impl HostedReader ===

impl HostedReader {
    fn new(
        exchange: &Arc<Exchange>,
        session: SessionId,
        attached: &Attached,
    ) -> Result<(Self, RingReader), Failure> {
        let internal = |error: &dyn std::fmt::Display| Failure::new(Reason::Internal, error.to_string());
        let Attached { reader, channel, spec, writer, ring, cursor, first, missed, route, peer } = attached;
        let shape = spec.shape().map_err(|error| internal(&error))?;
        let ring = RingReader::of_blocks(ring, cursor, shape, *first).map_err(|error| internal(&error))?;
        let attached = v1::ChannelAttached {
            spec: Some(spec_message(spec)),
            first: *first,
            missed: *missed,
            writer: writer.to_string(),
            route: (*route).to_owned(),
            peer: peer.as_ref().map(ToString::to_string).unwrap_or_default(),
        };
        let (exchange, closer) = (Arc::clone(exchange), ring.closer());
        let (channel, reader, epoch) = (*channel, *reader, spec.epoch);
        Ok((Self { exchange, session, channel, reader, attached, epoch, closer }, ring))
    }

    /// Result of the attach.
    #[must_use]
    pub fn attached(&self) -> &v1::ChannelAttached {
        &self.attached
    }

    /// Number that tells the channel from others that had its name; 0 where that is not known.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Finds the bytes of a message that was read, where it is larger than a slot.
    ///
    /// # Errors
    /// MESSAGE_DAMAGED where they are not there.
    pub fn find(&self, message: &mut Message) -> Result<(), Failure> {
        self.exchange.find_extent(self.channel, message)
    }
}

impl Drop for HostedReader {
    fn drop(&mut self) {
        // In this order: whoever sleeps on the ring finds it closed.
        self.exchange.end_reader(self.session, self.reader, false);
        self.closer.close();
    }
}

/// Checks that a channel of which readers are to be evicted is made for that.
fn check_eviction(spec: &Spec, evict_after_ms: u64) -> Result<(), Failure> {
    if evict_after_ms == 0 || spec.evicts {
        return Ok(());
    }
    let message = "`evict_after_ms` is for a channel whose shape says `evicts`; say both, or neither";
    Err(Failure::new(Reason::InvalidArgument, message).with("evict_after_ms", evict_after_ms))
}

/// Checks that a stream can write a channel of that shape: its messages lie in slots alone.
pub(super) fn check_growth(spec: &Spec) -> Result<(), Failure> {
    if spec.growth == 0 {
        return Ok(());
    }
    let message = "messages over gRPC are written to slots: leave `growth` out, and make `slot_bytes` the largest message";
    Err(Failure::new(Reason::Unsupported, message).with("growth", spec.growth))
}

/// Attaches a reader to the ring of a stream; ended where the stream is.
pub(super) fn attach(
    channels: &Channels,
    writer: SessionId,
    reader: u64,
    cursor: &Block,
    from: i32,
) -> Result<(Arc<HostedReaders>, u64, u64), Failure> {
    let hosted = channels.hosted(writer).ok_or_else(table::ended)?;
    let (first, missed) = hosted.attach(reader, cursor, from)?;
    Ok((hosted, first, missed))
}
