//! Get: leased tensors as a stream of chunks, packed row-major whatever their strides.
//!
//! Nothing is prepared ahead: a chunk is made when the connection has room for it. A client that goes away drops the
//! stream, and the leases go with it.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use tensorlane_memory::Block;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::CHUNK_BYTES_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::Transport;
use tensorlane_proto::selection::{Runs, Selection};
use tonic::Status;

use crate::exchange::{Borrowed, Taken};
use crate::gate::UnderWay;
use crate::metrics::Metrics;
use crate::metrics::label::Moved;

/// Runs that one chunk gathers at most, so that a finely strided part holds its thread for a fraction of a
/// millisecond at a time.
const RUNS_MAX: usize = 16_384;

/// The chunks of a Get, in order.
pub(super) struct Chunks {
    borrowed: Borrowed,
    began: Instant,
    metrics: Arc<Metrics>,
    next: u32,
    reading: Option<Reading>,
    _under_way: UnderWay,
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
struct Packed {
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
        Self { borrowed, began, metrics, next: 0, reading: None, _under_way: under_way }
    }

    /// Begins the next item.
    fn head(&mut self) -> Option<v1::GetChunk> {
        use v1::get_chunk::Part;
        let item = self.next;
        let taken = self.borrowed.taken.get(usize::try_from(item).ok()?)?;
        self.next += 1;
        let begun = taken.as_ref().map_err(Clone::clone).and_then(|taken| {
            let (descriptor, packed) = packed(taken)?;
            let local = || v1::Moved {
                transport: v1::Transport::Local.into(),
                bytes: descriptor.layout.bytes(),
                seconds: self.began.elapsed().as_secs_f64(),
                ..v1::Moved::default()
            };
            let head = v1::GetHead {
                descriptor: Some((&descriptor).into()),
                moved: Some(taken.moved.as_ref().map_or_else(local, |moved| moved.message.clone())),
            };
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
        if let Some(mut reading) = self.reading.take() {
            match reading.packed.next() {
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

impl Drop for Chunks {
    fn drop(&mut self) {
        if let Some(reading) = self.reading.take() {
            self.tell(&reading, Moved::Failed);
        }
    }
}

// === impl Packed ===

impl Iterator for Packed {
    type Item = Result<Bytes, Failure>;

    /// The next bytes, at most 1 MiB.
    fn next(&mut self) -> Option<Self::Item> {
        let (start, length) = self.run(CHUNK_BYTES_MAX)?;
        if length == CHUNK_BYTES_MAX {
            return Some(self.whole(start, length));
        }
        let Some(mut run) = self.run(CHUNK_BYTES_MAX - length) else {
            return Some(self.whole(start, length));
        };
        let mut data = BytesMut::with_capacity(CHUNK_BYTES_MAX);
        if let Err(failure) = self.copy((start, length), &mut data) {
            return Some(Err(failure));
        }
        for _ in 0..RUNS_MAX {
            if let Err(failure) = self.copy(run, &mut data) {
                return Some(Err(failure));
            }
            match self.run(CHUNK_BYTES_MAX - data.len()) {
                Some(next) => run = next,
                None => return Some(Ok(data.freeze())),
            }
        }
        self.put_back(run);
        Some(Ok(data.freeze()))
    }
}

impl Packed {
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
fn packed(taken: &Taken) -> Result<(Descriptor, Packed), Failure> {
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
