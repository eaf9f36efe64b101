//! Rows for programs that map nothing: their bytes come and go in chunks, and this sidecar has the tensors in its own name meanwhile.
//!
//! ```text
//!   read     as any other ── tensors of this sidecar ── chunks ── given back
//!   commit   layout of the set ── room for all bytes, or none ── chunks ── tensors of this sidecar ── a commit as any other
//! ```

use std::sync::Arc;
use std::time::Instant;

use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;
use tensorlane_proto::rows::SetLayout;

use super::commit::{check_bytes, check_extension, rows_written};
use super::memory::internal;
use super::packing::chosen;
use crate::exchange::{Borrowed, Caller, Exchange, OpenPut};
use crate::store::OWN;

/// New rows whose bytes are coming. Dropped before [`OpenRows::commit`] they leave nothing behind.
pub struct OpenRows {
    exchange: Arc<Exchange>,
    caller: Caller,
    /// Rows of each leaf.
    puts: Vec<OpenPut>,
    /// The commit, with a part for each leaf that is no tensor yet.
    request: v1::SetCommitRequest,
}

/// Tensors that this sidecar leases for a commit. Dropped, their leases end.
struct CommitLeases {
    exchange: Arc<Exchange>,
    ids: Vec<u64>,
}

/// Parts of a commit that are no tensors yet, and what is to be put for them.
type NewParts = (Vec<v1::SetPart>, Vec<v1::PutItem>);

impl Drop for CommitLeases {
    fn drop(&mut self) {
        // What was not leased any more is none of ours.
        let _ = self.exchange.store.release(OWN, &self.ids, &[]);
    }
}

// === impl Exchange ===

impl Exchange {
    /// Reads rows for somebody who copies them out: in the name of this sidecar, for as long as what is returned lives. With the version.
    pub fn set_borrow(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::SetReadRequest,
        done: impl FnOnce(Result<(Borrowed, u64), Failure>) + Send + 'static,
    ) {
        // Whoever takes them out slowly keeps no commit waiting.
        let request = v1::SetReadRequest { map: false, ..request };
        let exchange = Arc::clone(self);
        let caller = own(caller);
        self.set_read(caller, request, move |read| {
            done(read.map(|rows| (Borrowed::new(exchange, rows.taken), rows.version)));
        });
    }

    /// Makes room for the new rows of a set: for all of them, or none.
    ///
    /// # Errors
    /// Those of a commit that can be told before its bytes are here, and of room.
    pub fn open_rows(
        self: &Arc<Self>,
        caller: Caller,
        set: v1::SetInfo,
        head: v1::SetCommitHead,
        deadline: Instant,
        done: impl FnOnce(Result<OpenRows, Failure>) + Send + 'static,
    ) {
        let (parts, items) = match self.new_rows(&set, &head) {
            Ok(rows) => rows,
            Err(failure) => return done(Err(failure)),
        };
        let (exchange, caller) = (Arc::clone(self), own(caller));
        let request = v1::SetCommitRequest {
            parts,
            // The set whose layout this is, whatever has its name by then.
            set: set.reference,
            rows: head.rows,
            extend: head.extend > 0,
            expects_version: head.expects_version,
            retry_id: head.retry_id,
            deadline_ms: 0,
        };
        self.open_puts(caller.clone(), items, deadline, move |puts| {
            done(puts.map(|puts| OpenRows { caller, puts, request, exchange }));
        });
    }

    /// The parts of a commit, and what is to be put for them.
    fn new_rows(&self, set: &v1::SetInfo, head: &v1::SetCommitHead) -> Result<NewParts, Failure> {
        let v1::SetInfo { spec, .. } = set;
        let spec = spec.as_ref().ok_or_else(|| internal(&"a set without a layout"))?;
        let layout = SetLayout::new(&spec.leaves, spec.rows)?;
        let extends = head.extend > 0;
        let count = match rows_written(head.rows.clone(), extends, &layout)? {
            Some(rows) => rows.len(),
            None => check_extension(head.extend, &layout).map(|()| head.extend)?,
        };
        let (mut parts, mut items, mut bytes) = (Vec::new(), Vec::new(), 0_u64);
        for leaf in chosen(&layout, &head.keys)?.into_iter().filter_map(|leaf| layout.leaves().get(leaf)) {
            let descriptor = leaf.packed(count)?;
            bytes = bytes.saturating_add(descriptor.layout.bytes());
            items.push(v1::PutItem { descriptor: Some((&descriptor).into()), ..v1::PutItem::default() });
            parts.push(v1::SetPart { key: leaf.key.clone(), reference: String::new() });
        }
        check_bytes(bytes, self.store.arena().usage().total / 2)?;
        Ok((parts, items))
    }
}

/// Caller whose tensors this sidecar leases in its own name, in the share of whoever it is.
fn own(caller: Caller) -> Caller {
    Caller { on_behalf: Some(caller.claimant()), holder: Some(OWN), ..caller }
}

// === impl OpenRows ===

impl OpenRows {
    /// Bytes of each leaf, in the order of the keys.
    pub fn bytes(&self) -> impl Iterator<Item = u64> + '_ {
        self.puts.iter().map(|put| put.progress().1)
    }

    /// The next bytes of a leaf.
    ///
    /// # Errors
    /// LAYOUT_MISMATCH for more than it has.
    pub fn write(&mut self, leaf: usize, data: &[u8]) -> Result<(), Failure> {
        self.puts.get_mut(leaf).map_or(Ok(()), |put| put.write(data))
    }

    /// All bytes are there: commits them. What is left of them when that is over is in the set.
    pub fn commit(
        self,
        deadline_ms: u64,
        done: impl FnOnce(Result<v1::SetCommitResponse, Failure>) + Send + 'static,
    ) {
        let Self { exchange, caller, puts, mut request } = self;
        request.deadline_ms = deadline_ms;
        let mut leases =
            CommitLeases { exchange: Arc::clone(&exchange), ids: Vec::with_capacity(puts.len()) };
        for (part, put) in request.parts.iter_mut().zip(puts) {
            match put.finish() {
                Ok(stored) => {
                    leases.ids.push(stored.id);
                    part.reference = stored.reference;
                }
                Err(failure) => return done(Err(failure.with("key", &part.key))),
            }
        }
        exchange.set_commit(caller, request, move |outcome| {
            drop(leases);
            done(outcome);
        });
    }
}
