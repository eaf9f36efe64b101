//! SetRead: rows of one version as a stream, a head and then the bytes of one leaf after the other.
//!
//! Rows are tensors of this sidecar until the client has read them. They go out as those of a Get do.

use std::sync::Arc;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tonic::Status;

use super::super::call::{outcome, within};
use super::super::get::{ChunkSource, Chunks};
use super::super::status::status;
use super::left_ms;
use crate::exchange::{Borrowed, Caller, Exchange};

/// Rows that are here.
pub(in crate::grpc) struct Rows {
    pub(in crate::grpc) borrowed: Borrowed,
    keys: Vec<String>,
    version: u64,
}

/// Messages of an answer.
pub(in crate::grpc) struct RowChunks {
    head: Option<v1::SetReadHead>,
    chunks: Chunks,
}

/// Has rows packed, here or by the owner of their set.
pub(in crate::grpc) async fn read(
    exchange: &Arc<Exchange>,
    caller: &Caller,
    mut request: v1::SetReadRequest,
) -> Result<Rows, Failure> {
    within(request.keys.len())?;
    let mut keys = request.keys.clone();
    if keys.is_empty() {
        let deadline = exchange.deadline(request.deadline_ms);
        let v1::SetReadRequest { set, deadline_ms, .. } = &mut request;
        let open = v1::SetOpenRequest {
            set: std::mem::take(set),
            deadline_ms: *deadline_ms,
            ..v1::SetOpenRequest::default()
        };
        let opened = outcome(|done| exchange.set_open(caller, &open, done), drop).await?;
        let v1::SetInfo { reference, spec, .. } = opened.set.unwrap_or_default();
        keys = spec.unwrap_or_default().leaves.into_iter().map(|leaf| leaf.key).collect();
        // The set that has these keys, whatever has its name by then.
        (*set, *deadline_ms) = (reference, left_ms(deadline));
    }
    let (borrowed, version) =
        outcome(|done| exchange.set_borrow(caller.clone(), request, done), drop).await?;
    Ok(Rows { borrowed, keys, version })
}

// === impl Rows ===

impl Rows {
    /// The answer, of which `chunks` has the bytes.
    pub(in crate::grpc) fn going_out(
        self,
        chunks: impl FnOnce(Borrowed) -> Chunks,
    ) -> Result<RowChunks, Failure> {
        let Self { borrowed, keys, version } = self;
        let chunks = chunks(borrowed);
        if keys.len() != chunks.taken().len() {
            let what =
                format!("{} leaves were asked for, and {} were read", keys.len(), chunks.taken().len());
            return Err(Failure::new(Reason::Internal, what));
        }
        let leaf = |(key, taken): (String, &Result<_, Failure>)| {
            let v1::GetHead { descriptor, moved } =
                chunks.described(taken.as_ref().map_err(Clone::clone)?)?;
            Ok(v1::SetReadLeaf { key, descriptor, moved })
        };
        let leaves = keys.into_iter().zip(chunks.taken()).map(leaf).collect::<Result<_, Failure>>()?;
        Ok(RowChunks { head: Some(v1::SetReadHead { version, leaves }), chunks })
    }
}

// === impl RowChunks ===

impl Iterator for RowChunks {
    type Item = Result<v1::SetReadChunk, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        use v1::get_chunk::Part as Got;
        use v1::set_read_chunk::Part;
        if let Some(head) = self.head.take() {
            return Some(Ok(v1::SetReadChunk { part: Some(Part::Head(head)) }));
        }
        loop {
            let v1::GetChunk { item, part } = match self.chunks.next()? {
                Ok(chunk) => chunk,
                Err(status) => return Some(Err(status)),
            };
            return Some(match part {
                // Told ahead, all of them.
                Some(Got::Head(_)) | None => continue,
                Some(Got::Data(data)) => {
                    let bytes = v1::SetBytes { leaf: item, data };
                    Ok(v1::SetReadChunk { part: Some(Part::Bytes(bytes)) })
                }
                Some(Got::Failure(failure)) => Err(status(&Failure::new(Reason::Internal, failure.message))),
            });
        }
    }
}

impl ChunkSource for RowChunks {
    fn progress(&self) -> String {
        self.chunks.progress()
    }
}
