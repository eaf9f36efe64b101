//! Get, and what SetRead has in common with it: leased tensors as a stream of chunks, packed row-major whatever their strides.
//!
//! Nothing is prepared ahead: a chunk is made when the connection has room for it. A client that goes away drops the
//! stream, and the leases go with it; one that stays and reads nothing loses them at its deadline.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tensorlane_memory::Block;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::CHUNK_BYTES_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::Transport;
use tensorlane_proto::selection::{Runs, Selection};
use tokio::task::AbortHandle;
use tokio_stream::Stream;
use tonic::Status;

use super::bounds::Bounds;
use super::status::broke_off;
use crate::exchange::{Borrowed, Taken};
use crate::gate::UnderWay;
use crate::metrics::Metrics;
use crate::metrics::label::{Moved, PanicScope};
use crate::store::{Streaming, Streams};
use crate::threads::Threads;

/// Runs that one chunk gathers at most, so that a finely strided part holds its thread for a fraction of a
/// millisecond at a time.
const RUNS_MAX: usize = 16_384;

/// Bytes below which a chunk is not made smaller, however many streams there are.
const CHUNK_BYTES_MIN: usize = 64 << 10;

/// Unit of the bytes of a chunk: a multiple of every element's.
const CHUNK_UNIT: usize = 4 << 10;

/// The chunks of a Get, in order.
pub(super) struct Chunks {
    borrowed: Borrowed,
    began: Instant,
    metrics: Arc<Metrics>,
    next: u32,
    reading: Option<Reading>,
    /// All streams that are under way, and the limit of what may wait for clients.
    among: Option<(Streams, u64)>,
    _under_way: UnderWay,
}

/// Messages of an answer, made one by one, of tensors that are leased until this is dropped.
pub(super) trait ChunkSource: Iterator {
    /// Says how far it came.
    fn progress(&self) -> String;
}

/// The chunks of an answer for a client that may stop reading: then what is leased goes back, and the stream ends in a failure.
pub(super) struct Watched<A> {
    shared: Arc<Mutex<Going<A>>>,
    watch: Option<AbortHandle>,
}

struct Going<A> {
    chunks: Option<(A, Streaming)>,
    moved: Instant,
    bounds: Bounds,
    failure: Option<Failure>,
}

/// The item whose bytes are going out.
struct Reading {
    item: u32,
    packed: Packed,
    bytes: u64,
    /// True if its bytes are counted here; those that came from a peer have been.
    counted: bool,
}

/// Bytes of a block, in the order of a packed result.
pub(super) struct Packed {
    block: Block,
    /// Offset from which the runs count.
    base: u64,
    runs: Runs,
    /// Rest of the run that the last chunk ended in.
    rest: Option<(u64, u64)>,
}

// === impl Chunks ===

impl Chunks {
    /// The chunks of what was borrowed for a call that began at `began`.
    pub(super) fn new(
        borrowed: Borrowed,
        began: Instant,
        metrics: Arc<Metrics>,
        under_way: UnderWay,
    ) -> Self {
        Self { borrowed, began, metrics, next: 0, reading: None, among: None, _under_way: under_way }
    }

    /// Chunks that are smaller while many streams are under way: a chunk waits in memory until its client takes it.
    pub(super) fn within(mut self, streams: Streams, limit: u64) -> Self {
        self.among = Some((streams, limit));
        self
    }

    /// Bytes of the next chunk, at most.
    fn chunk_max(&self) -> usize {
        let among = self.among.as_ref();
        among.map_or(CHUNK_BYTES_MAX, |(streams, limit)| chunk_max(streams.count(), *limit))
    }

    /// Tensors that go out, in their order.
    pub(super) fn taken(&self) -> &[Result<Taken, Failure>] {
        &self.borrowed.taken
    }

    /// Tells what the bytes of a tensor mean, and how they came.
    pub(super) fn described(&self, taken: &Taken) -> Result<v1::GetHead, Failure> {
        let (descriptor, _) = packed(taken)?;
        Ok(v1::GetHead {
            moved: Some(self.moved(taken, &descriptor)),
            descriptor: Some((&descriptor).into()),
        })
    }

    fn moved(&self, taken: &Taken, descriptor: &Descriptor) -> v1::Moved {
        let local = || v1::Moved {
            transport: v1::Transport::Local.into(),
            bytes: descriptor.layout.bytes(),
            seconds: self.began.elapsed().as_secs_f64(),
            ..v1::Moved::default()
        };
        taken.moved.as_ref().map_or_else(local, |moved| moved.message.clone())
    }

    /// Begins the next item.
    fn head(&mut self) -> Option<v1::GetChunk> {
        use v1::get_chunk::Part;
        let item = self.next;
        let taken = self.borrowed.taken.get(usize::try_from(item).ok()?)?;
        self.next += 1;
        let begun = taken.as_ref().map_err(Clone::clone).and_then(|taken| {
            let (descriptor, packed) = packed(taken)?;
            let moved = Some(self.moved(taken, &descriptor));
            let head = v1::GetHead { descriptor: Some((&descriptor).into()), moved };
            Ok((head, Reading { item, packed, bytes: 0, counted: taken.moved.is_none() }))
        });
        let part = match begun {
            Ok((head, reading)) => {
                self.reading = Some(reading);
                Part::Head(head)
            }
            Err(failure) => Part::Failure((&failure).into()),
        };
        Some(v1::GetChunk { item, part: Some(part) })
    }

    fn tell(&self, reading: &Reading, moved: Moved) {
        if reading.counted {
            self.metrics.moves.got(Transport::Local, moved, reading.bytes, self.began.elapsed());
        }
    }
}

impl Iterator for Chunks {
    type Item = Result<v1::GetChunk, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        use v1::get_chunk::Part;
        let most = self.chunk_max();
        if let Some(mut reading) = self.reading.take() {
            match reading.packed.next(most) {
                Some(Ok(data)) => {
                    let item = reading.item;
                    reading.bytes += data.len() as u64;
                    self.reading = Some(reading);
                    return Some(Ok(v1::GetChunk { item, part: Some(Part::Data(data)) }));
                }
                // Half of a tensor is out: the whole call has to end with it.
                Some(Err(failure)) => {
                    self.tell(&reading, Moved::Failed);
                    self.next = u32::MAX;
                    return Some(Err(super::status::status(&failure)));
                }
                None => self.tell(&reading, Moved::Done),
            }
        }
        self.head().map(Ok)
    }
}

impl ChunkSource for Chunks {
    fn progress(&self) -> String {
        let items = self.borrowed.taken.len();
        let Some(reading) = &self.reading else {
            return format!("{} of {items} tensors went out", self.next);
        };
        let (number, bytes) = (reading.item + 1, reading.bytes);
        format!("{bytes} bytes of tensor {number} of {items} went out")
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if let Some(reading) = self.reading.take() {
            self.tell(&reading, Moved::Failed);
        }
    }
}

// === impl Watched ===

impl<A: ChunkSource + Send + 'static> Watched<A> {
    /// The chunks of a stream whose client reads within its bounds; and what ends it, if it does not.
    pub(super) fn new(
        chunks: A,
        held: Streaming,
        bounds: Bounds,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let moved = Instant::now();
        let mut due = bounds.due(moved);
        let going = Going { chunks: Some((chunks, held)), moved, bounds, failure: None };
        let shared = Arc::new(Mutex::new(going));
        let weak = Arc::downgrade(&shared);
        let watch = async move {
            loop {
                tokio::time::sleep_until(due.into()).await;
                let Some(shared) = Weak::upgrade(&weak) else { return };
                let next = shared.lock().next_look(Instant::now());
                match next {
                    Ok(next) => due = next,
                    // Leases go back outside of the lock.
                    Err(ended) => return drop(ended),
                }
            }
        };
        (Self { shared, watch: None }, watch)
    }

    /// Starts its watch, which ends with it.
    pub(super) fn by(mut self, threads: &Threads, watch: impl Future<Output = ()> + Send + 'static) -> Self {
        let (threads, going) = (threads.clone(), Arc::downgrade(&self.shared));
        let watch = async move {
            if threads.caught_task("grpc-get", PanicScope::Call, watch).await.is_none()
                && let Some(going) = Weak::upgrade(&going)
            {
                let ended = going.lock().break_off();
                // Leases go back outside of the lock.
                drop(ended);
            }
        };
        self.watch = Some(tokio::spawn(watch).abort_handle());
        self
    }
}

impl<C, A: ChunkSource<Item = Result<C, Status>>> Stream for Watched<A> {
    type Item = A::Item;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut going = self.shared.lock();
        if let Some(failure) = going.failure.take() {
            return Poll::Ready(Some(Err(super::status::status(&failure))));
        }
        let Some((chunks, held)) = &mut going.chunks else { return Poll::Ready(None) };
        let chunk = chunks.next();
        held.moved();
        going.moved = Instant::now();
        if chunk.is_none() {
            let ended = going.chunks.take();
            drop(going);
            drop(ended);
        }
        Poll::Ready(chunk)
    }
}

impl<A> Drop for Watched<A> {
    fn drop(&mut self) {
        self.watch.iter().for_each(AbortHandle::abort);
    }
}

// === impl Going ===

impl<A: ChunkSource> Going<A> {
    /// Ends a stream that nobody looks after any more in a failure. Returns what goes back.
    fn break_off(&mut self) -> Option<(A, Streaming)> {
        if self.chunks.is_some() {
            self.failure = Some(broke_off());
        }
        self.chunks.take()
    }

    /// When to look again; or what goes back, because its client has not read in time.
    fn next_look(&mut self, now: Instant) -> Result<Instant, Option<Box<(A, Streaming)>>> {
        let due = self.bounds.due(self.moved);
        if now < due {
            return Ok(due);
        }
        if let Some((chunks, _)) = &self.chunks {
            let why = match self.bounds.until() {
                Some(_) => "the deadline of this call passed, and its client takes no chunk".to_owned(),
                None => format!("the client of this call took no chunk for {:?}", self.bounds.patience()),
            };
            let message = format!("{why}: {}; what it leased was given back", chunks.progress());
            self.failure = Some(Failure::new(Reason::DeadlineExceeded, message));
        }
        Err(self.chunks.take().map(Box::new))
    }
}

/// Bytes of a chunk where so many streams share a limit: all together they wait for clients with a quarter of it.
fn chunk_max(streams: usize, limit: u64) -> usize {
    let share = usize::try_from(limit / 4).unwrap_or(usize::MAX) / streams.max(1);
    // Whole elements of every type.
    (share & !(CHUNK_UNIT - 1)).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)
}

// === impl Packed ===

impl Packed {
    /// The next bytes, at most so many.
    pub(super) fn next(&mut self, most: usize) -> Option<Result<Bytes, Failure>> {
        let (start, length) = self.run(most)?;
        if length == most {
            return Some(self.whole(start, length));
        }
        let Some(mut run) = self.run(most - length) else {
            return Some(self.whole(start, length));
        };
        let mut data = BytesMut::with_capacity(most);
        if let Err(failure) = self.copy((start, length), &mut data) {
            return Some(Err(failure));
        }
        for _ in 0..RUNS_MAX {
            if let Err(failure) = self.copy(run, &mut data) {
                return Some(Err(failure));
            }
            match self.run(most - data.len()) {
                Some(next) => run = next,
                None => return Some(Ok(data.freeze())),
            }
        }
        self.put_back(run);
        Some(Ok(data.freeze()))
    }

    /// The next run, no more of it than `most` bytes.
    fn run(&mut self, most: usize) -> Option<(u64, usize)> {
        if most == 0 {
            return None;
        }
        let (start, length) = self.rest.take().or_else(|| self.runs.next())?;
        let now = length.min(most as u64);
        if now < length {
            self.rest = Some((start + now, length - now));
        }
        Some((start, usize::try_from(now).unwrap_or(most)))
    }

    /// A run that did not get into the chunk.
    fn put_back(&mut self, (start, length): (u64, usize)) {
        let after = self.rest.take().map_or(0, |(_, after)| after);
        self.rest = Some((start, length as u64 + after));
    }

    /// Returns one run as it lies in the block: it is copied only into the frame.
    fn whole(&self, start: u64, length: usize) -> Result<Bytes, Failure> {
        let at = self.base + start;
        self.block.owned_chunk(at..at + length as u64).map(Bytes::from_owner).map_err(|e| internal(&e))
    }

    fn copy(&self, (start, length): (u64, usize), into: &mut BytesMut) -> Result<(), Failure> {
        let at = self.base + start;
        into.extend_from_slice(self.block.chunk(at..at + length as u64).map_err(|e| internal(&e))?);
        Ok(())
    }
}

/// The descriptor of the packed bytes, and the bytes.
pub(super) fn packed(taken: &Taken) -> Result<(Descriptor, Packed), Failure> {
    let tensor = &taken.tensor;
    let (base, layout) = match &taken.part {
        None => (0, &tensor.descriptor.layout),
        Some(part) => (part.offset, &part.layout),
    };
    let all = Selection::All.resolve(layout)?;
    let descriptor = Descriptor { layout: all.packed_layout(), ..tensor.descriptor.clone() };
    Ok((descriptor, Packed { block: tensor.block.clone(), base, runs: all.runs(), rest: None }))
}

fn internal(error: &dyn std::error::Error) -> Failure {
    Failure::new(Reason::Internal, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_become_smaller_where_many_streams_share_the_limit() {
        let limit = 128 << 20;
        assert_eq!([0, 1, 32].map(|streams| chunk_max(streams, limit)), [CHUNK_BYTES_MAX; 3]);
        assert_eq!(
            [64, 200, 100_000].map(|streams| chunk_max(streams, limit)),
            [512 << 10, 160 << 10, 64 << 10]
        );
        assert!((1..2000).all(|streams| chunk_max(streams, limit).is_multiple_of(CHUNK_UNIT)));
    }
}
