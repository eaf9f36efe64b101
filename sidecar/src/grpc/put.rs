//! Put and Fill: bytes of a stream go into blocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::CHUNK_BYTES_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::TensorId;
use tensorlane_proto::negotiate::Transport;

use super::bounds::Bounds;
use super::call::{Cancelled, needs_session, outcome, within};
use super::status::broken;
use crate::exchange::{Caller, Exchange, OpenPut, stored_result};
use crate::metrics::Metrics;
use crate::metrics::label::Moved;
use crate::store::{Direction, Program, Streaming};

/// The items of one Put stream. They are sealed together at its end: a stream that breaks leaves nothing behind.
struct Puts {
    exchange: Arc<Exchange>,
    caller: Caller,
    metrics: Arc<Metrics>,
    /// Time that the items may still wait for room, together.
    patience: Duration,
    items: Vec<Item>,
    from: From,
    /// Place of the stream among those that keep bytes of the arena.
    held: Streaming,
    /// Bytes that it keeps.
    kept: u64,
}

/// Origin of a stream: who sends it, and within which bounds.
pub(super) struct From {
    pub(super) program: Arc<Program>,
    pub(super) bounds: Bounds,
}

/// Item of a Put stream.
struct Item {
    fate: Fate,
    began: Instant,
    last: Instant,
    bytes: u64,
}

enum Fate {
    /// Item whose bytes are coming.
    Open(Box<OpenPut>),
    /// A repeat of an earlier put, which has its result; its bytes are passed over.
    Repeated(v1::Stored),
    /// Failed item; its bytes are passed over.
    Failed(Failure),
}

/// Stores the tensors of a stream.
pub(super) async fn put(
    exchange: Arc<Exchange>,
    caller: Caller,
    metrics: Arc<Metrics>,
    from: From,
    mut stream: tonic::Streaming<v1::PutChunk>,
) -> Result<v1::PutResponse, Failure> {
    let cancelled = Cancelled::of(&caller.cancel);
    from.bounds.cancels(&caller.cancel);
    let held = exchange.store().streams().enter(Direction::Put, Arc::clone(&from.program));
    let mut puts =
        Puts { exchange, caller, metrics, patience: Duration::ZERO, items: Vec::new(), from, held, kept: 0 };
    let mut first = true;
    loop {
        let chunk = match next(&mut stream, &cancelled, &puts.from.bounds).await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(failure) => return Err(puts.broken_off(failure)),
        };
        puts.held.moved();
        if std::mem::take(&mut first) {
            let deadline = puts.exchange.deadline(chunk.deadline_ms);
            puts.patience = deadline.saturating_duration_since(Instant::now());
            if chunk.deadline_ms > 0 {
                // Whoever says when to give up may stand still until then.
                puts.from.bounds.bear_until(deadline);
            }
        }
        match chunk.part {
            Some(v1::put_chunk::Part::Item(item)) => puts.begin(item).await?,
            Some(v1::put_chunk::Part::Data(data)) => puts.write(&data)?,
            None => return Err(Failure::new(Reason::InvalidArgument, "a chunk without a header or bytes")),
        }
    }
    Ok(puts.finish())
}

// === impl Puts ===

impl Puts {
    /// The header of the next item; waits for room where there is none.
    async fn begin(&mut self, mut item: v1::PutItem) -> Result<(), Failure> {
        within(self.items.len() + 1)?;
        let data = std::mem::take(&mut item.data);
        let began = Instant::now();
        let deadline = began + self.patience;
        let (exchange, caller) = (&self.exchange, self.caller.clone());
        // Its client may send on, and is not taken for one that stands still.
        let pause = self.from.bounds.pause();
        let opened = outcome(|done| exchange.open_put(caller, item, deadline, done), drop).await;
        drop(pause);
        let fate = match opened {
            Ok(Ok(open)) => Fate::Open(Box::new(open)),
            Ok(Err(stored)) => Fate::Repeated(stored),
            Err(failure) => Fate::Failed(failure),
        };
        self.patience = self.patience.saturating_sub(began.elapsed());
        if let Fate::Open(open) = &fate {
            self.kept += open.progress().1;
            self.held.keeps_bytes(self.kept);
        }
        self.items.push(Item { fate, began, last: Instant::now(), bytes: 0 });
        self.write(&data)
    }

    /// The failure of a stream that ended before its time, with what had come of it. Where its last item had failed before, that is
    /// what its client has to hear.
    fn broken_off(&self, failure: Failure) -> Failure {
        let told = matches!(failure.reason, Reason::DeadlineExceeded | Reason::LimitExceeded);
        let number = self.items.len();
        let Some(item) = self.items.last().filter(|_| told) else { return failure };
        let (came, all) = match &item.fate {
            Fate::Open(open) => open.progress(),
            Fate::Repeated(_) => return failure,
            // One that was told to go gave up its wait for room, and that is no news.
            Fate::Failed(own) if own.reason != Reason::Cancelled => return own.clone(),
            Fate::Failed(_) => return failure,
        };
        let missing = match all - came {
            0 => "the end of the stream was missing".to_owned(),
            left => format!("{left} bytes were missing"),
        };
        let message = format!(
            "{}; nothing was stored: {came} of {all} bytes of tensor {number} of the stream had come, {missing}",
            failure.message
        );
        let Failure { reason, details, .. } = failure;
        let told = Failure::new(reason, message).with("given_bytes", came).with("expected_bytes", all);
        details.into_iter().fold(told, |told, (key, value)| told.with(key, value))
    }

    /// The next bytes of the item begun last.
    fn write(&mut self, data: &Bytes) -> Result<(), Failure> {
        check_chunk(data)?;
        let Some(item) = self.items.last_mut() else {
            let why = "the first message of a Put stream is a header, not bytes";
            return Err(Failure::new(Reason::InvalidArgument, why));
        };
        if let Fate::Open(open) = &mut item.fate {
            match open.write(data) {
                Ok(()) => item.bytes += data.len() as u64,
                // The block goes back here and now.
                Err(failure) => {
                    self.kept -= open.progress().1;
                    self.held.keeps_bytes(self.kept);
                    item.fate = Fate::Failed(failure);
                }
            }
            item.last = Instant::now();
        }
        Ok(())
    }

    /// The stream has ended well.
    fn finish(self) -> v1::PutResponse {
        let metrics = self.metrics;
        let finish = |item: Item| {
            let Item { fate, began, last, bytes } = item;
            let outcome = match fate {
                Fate::Open(open) => open.finish(),
                Fate::Repeated(stored) => return stored_result(Ok(stored)),
                Fate::Failed(failure) => Err(failure),
            };
            let moved = match &outcome {
                // The seal has counted its bytes.
                Ok(_) => Moved::Done,
                Err(_) => {
                    metrics.moves.put_bytes.at((Transport::Local, Moved::Failed)).inc_by(bytes);
                    Moved::Failed
                }
            };
            metrics.moves.put_seconds.at((Transport::Local, moved)).observe((last - began).as_secs_f64());
            stored_result(outcome)
        };
        v1::PutResponse { results: self.items.into_iter().map(finish).collect() }
    }
}

/// Writes the chunks of a stream into reservations.
pub(super) async fn fill(
    exchange: Arc<Exchange>,
    caller: Caller,
    from: From,
    mut stream: tonic::Streaming<v1::FillChunk>,
) -> Result<v1::FillResponse, Failure> {
    let by = needs_session(&caller)?;
    let cancelled = Cancelled::of(&caller.cancel);
    from.bounds.cancels(&caller.cancel);
    let mut bytes = 0;
    while let Some(chunk) = next(&mut stream, &cancelled, &from.bounds).await? {
        check_chunk(&chunk.data)?;
        exchange.fill(by, TensorId(chunk.id), chunk.offset, &chunk.data)?;
        bytes += chunk.data.len() as u64;
    }
    Ok(v1::FillResponse { bytes })
}

/// The next message of a stream; a failure once the call is cancelled, for the budget or at the end of the sidecar.
pub(super) async fn next<T>(
    stream: &mut tonic::Streaming<T>,
    cancelled: &Cancelled,
    bounds: &Bounds,
) -> Result<Option<T>, Failure> {
    tokio::select! {
        biased;
        message = stream.message() => message.map_err(|status| broken(&status)),
        failure = cancelled.wait() => Err(bounds.spent().unwrap_or(failure)),
    }
}

fn check_chunk(data: &Bytes) -> Result<(), Failure> {
    if data.len() <= CHUNK_BYTES_MAX {
        return Ok(());
    }
    Err(Failure::new(
        Reason::TooLarge,
        format!("a chunk of {} bytes; at most {CHUNK_BYTES_MAX}: send more of them", data.len()),
    )
    .with("bytes", data.len())
    .with("bytes_max", CHUNK_BYTES_MAX))
}
