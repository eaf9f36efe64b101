//! Acquire, Release, Get: tensors are leased, here or after bringing them here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_memory::Purpose;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, TensorId};
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::reference::{Reference, SharedParts};
use tensorlane_proto::selection::{Resolved, Selection};
use tensorlane_proto::wire;

use super::fetch::Fetch;
use super::follow::Named;
use super::gather::Gather;
use super::target::Meant;
use super::transfer::is_of;
use super::{Caller, Exchange, Taken, session_required};
use crate::store::{OWN, Part, no_gpu_process};

/// Leases that the sidecar holds for a caller without a session, while it reads the bytes out.
pub struct Borrowed {
    exchange: Arc<Exchange>,
    /// The tensors, in the order of the items.
    pub taken: Vec<Result<Taken, Failure>>,
}

/// Terms on which all items of a call are to be had.
pub(super) struct Terms {
    pub(super) by: Holder,
    pub(super) require: Require,
    pub(super) deadline: Instant,
    /// Set if what lies in GPU memory is wanted in host memory.
    pub(super) host: bool,
    pub(super) caller: Caller,
}

// === impl Exchange ===

impl Exchange {
    /// Leases tensors for the caller's session.
    pub fn acquire(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::AcquireRequest,
        done: impl FnOnce(Result<Vec<Result<Taken, Failure>>, Failure>) + Send + 'static,
    ) {
        let Some(by) = caller.holder else { return done(Err(session_required("Acquire"))) };
        if let Some(ids) = plain_ids(&request) {
            let taken = self.store.lease_many(by, caller.holder, ids);
            if !request.host || taken.iter().flatten().all(|taken| taken.tensor.gpu.is_none()) {
                return done(Ok(taken));
            }
            return self.hand_over_all(&self.terms(by, &request, caller), taken, done);
        }
        let terms = self.terms(by, &request, caller);
        self.take(&terms, request.items, request.wait_ms, done);
    }

    fn terms(&self, by: Holder, request: &v1::AcquireRequest, caller: Caller) -> Arc<Terms> {
        let (deadline, require) = (self.deadline(request.deadline_ms), wire::require(request.require));
        Arc::new(Terms { by, require, deadline, host: request.host, caller })
    }

    /// Leases tensors in the sidecar's own name, so that their bytes can be read out.
    pub fn borrow(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::GetRequest,
        done: impl FnOnce(Result<Borrowed, Failure>) + Send + 'static,
    ) {
        let require = wire::require(request.require);
        if require.zero_copy {
            let why = "bytes that are brought out are copied; zero_copy is for maps over the session socket";
            return done(Err(Failure::new(Reason::RequirementNotMet, why)));
        }
        let deadline = self.deadline(request.deadline_ms);
        let terms = Arc::new(Terms { by: OWN, require, deadline, host: true, caller });
        let exchange = Arc::clone(self);
        self.take(&terms, request.items, request.wait_ms, move |outcome| {
            done(outcome.map(|taken| Borrowed { exchange, taken }));
        });
    }

    fn take(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        items: Vec<v1::GetItem>,
        wait_ms: u64,
        done: impl FnOnce(Result<Vec<Result<Taken, Failure>>, Failure>) + Send + 'static,
    ) {
        let gather = Gather::new(items.len(), Box::new(done));
        let mut named = Vec::new();
        let (mut fetches, mut shared) = (Vec::with_capacity(items.len()), SharedParts::default());
        for (index, item) in items.into_iter().enumerate() {
            let meant = wire::selection(item.selection).and_then(|selection| {
                let meant = self.meant_sharing(item.target.unwrap_or_default(), &mut shared)?;
                Ok((meant, selection))
            });
            match meant {
                Err(failure) => gather.put(index, Err(failure)),
                Ok((Meant::Here(id, said), selection)) => {
                    self.take_here(terms, id, said.as_ref(), &selection, &gather, index);
                }
                Ok((Meant::There(reference), selection)) => {
                    fetches.push((index, Fetch::new(reference, selection, Arc::clone(terms))));
                }
                Ok((Meant::Named(peer, name), selection)) => {
                    let is_here = peer.as_ref().is_none_or(|p| *p == self.me().peer);
                    let by = (terms.by, terms.caller.holder);
                    let leased = is_here.then(|| self.store.lease_named(by.0, by.1, &name)).flatten();
                    match leased {
                        Some(taken) => self.hand_over(terms, taken, &selection, &gather, index),
                        None => named.push(Named { index, peer, name, selection, gone: None }),
                    }
                }
            }
        }
        self.fetch_all(fetches, &gather);
        if !named.is_empty() {
            let until = Instant::now() + Duration::from_millis(wait_ms).min(self.settings.deadline_max);
            self.take_named(terms, named, until, &gather);
        }
        gather.arm();
    }

    fn take_here(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        id: TensorId,
        said: Option<&Reference>,
        selection: &Selection,
        gather: &Arc<Gather<Taken>>,
        index: usize,
    ) {
        let taken = self.store.lease(terms.by, terms.caller.holder, id).and_then(|taken| {
            let Some(Err(failure)) = said.map(|reference| is_of(reference, &taken.tensor)) else {
                return Ok(taken);
            };
            self.untake(terms.by, &taken);
            Err(failure)
        });
        self.hand_over(terms, taken, selection, gather, index);
    }

    /// Hands over whole tensors that were leased here.
    fn hand_over_all(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        taken: Vec<Result<Taken, Failure>>,
        done: impl FnOnce(Result<Vec<Result<Taken, Failure>>, Failure>) + Send + 'static,
    ) {
        let gather = Gather::new(taken.len(), Box::new(done));
        for (index, taken) in taken.into_iter().enumerate() {
            self.hand_over(terms, taken, &Selection::All, &gather, index);
        }
        gather.arm();
    }

    /// The selected part of what was leased here goes to its place.
    pub(super) fn hand_over(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        taken: Result<Taken, Failure>,
        selection: &Selection,
        gather: &Arc<Gather<Taken>>,
        index: usize,
    ) {
        match taken {
            Ok(taken) => {
                let gather = Arc::clone(gather);
                self.select(terms, taken, selection, move |outcome| gather.put(index, outcome));
            }
            Err(failure) => gather.put(index, Err(failure)),
        }
    }

    /// The selected part of a leased tensor: a view where that can be, else packed into a block of its own. The lease is
    /// given back where it is not needed.
    pub(super) fn select(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        mut taken: Taken,
        selection: &Selection,
        done: impl FnOnce(Result<Taken, Failure>) + Send + 'static,
    ) {
        if taken.tensor.gpu.is_some() && terms.host {
            return self.select_staged(terms, taken, selection, Box::new(done));
        }
        if *selection == Selection::All {
            return done(Ok(taken));
        }
        if taken.tensor.gpu.is_some() && matches!(selection, Selection::Rows(_)) {
            self.untake(terms.by, &taken);
            return done(Err(no_gpu_process(taken.id)));
        }
        let resolved = match selection.resolve(&taken.tensor.descriptor.layout) {
            Ok(resolved) => resolved,
            Err(error) => {
                self.untake(terms.by, &taken);
                return done(Err(error.into()));
            }
        };
        match resolved {
            Resolved::View(view) => {
                taken.part = Some(Part { offset: view.offset_bytes, layout: view.layout });
                done(Ok(taken));
            }
            Resolved::Rows(_) if terms.require.zero_copy => {
                self.untake(terms.by, &taken);
                let why = "a list of rows is packed into a new block; take ranges, or do without zero_copy";
                done(Err(Failure::new(Reason::RequirementNotMet, why)));
            }
            rows @ Resolved::Rows(_) => {
                let terms = Arc::clone(terms);
                let queueing = terms.caller.queueing(Purpose::Put, terms.deadline);
                self.on_waiter(queueing, Box::new(done), move |exchange| {
                    let packed = exchange.pack(&terms, &taken, &rows);
                    exchange.untake(terms.by, &taken);
                    packed
                });
            }
        }
    }

    fn pack(&self, terms: &Terms, taken: &Taken, rows: &Resolved) -> Result<Taken, Failure> {
        let layout = rows.packed_layout();
        let block = self.room_for_put(&terms.caller, None, layout.bytes(), terms.deadline)?;
        let mut landing = block
            .landing()
            .ok_or_else(|| Failure::new(Reason::Internal, "a fresh block cannot be written"))?;
        let mut at = 0;
        for (offset, length) in rows.runs() {
            let from = taken.tensor.block.chunk(offset..offset + length).map_err(|e| internal(&e))?;
            landing.write(at, from).map_err(|e| internal(&e))?;
            at += length;
        }
        drop(landing);
        let descriptor = Descriptor { layout, ..taken.tensor.descriptor.clone() };
        let packed = self.store.pack_in(terms.by, descriptor, block)?;
        // By the way that the whole came.
        Ok(Taken { copied: true, moved: taken.moved.clone(), ..packed })
    }

    /// Gives a lease back that came to nothing.
    pub(super) fn untake(&self, by: Holder, taken: &Taken) {
        // It may have ended with its session already.
        let _ = self.store.release(by, &[taken.id.0], &[]);
    }

    /// Ends leases; one result for each id, those still mapped last.
    pub fn release(&self, by: Holder, request: &v1::ReleaseRequest) -> Vec<Result<(), Failure>> {
        self.store.release(by, &request.ids, &request.still_mapped)
    }
}

// === impl Borrowed ===

impl Borrowed {
    /// Tensors that this sidecar leases in its own name, all of them.
    pub(super) fn new(exchange: Arc<Exchange>, taken: Vec<Taken>) -> Self {
        Self { exchange, taken: taken.into_iter().map(Ok).collect() }
    }

    /// Tensors that are leased for it, each once: numbers and bytes.
    pub fn tensors(&self) -> BTreeMap<u64, u64> {
        self.taken.iter().flatten().map(|taken| (taken.id.0, taken.tensor.block.len())).collect()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let ids: Vec<u64> = self.taken.iter().flatten().map(|t| t.id.0).collect();
        self.exchange.store.release(OWN, &ids, &[]);
    }
}

/// The ids of a request for whole tensors of this peer by id: the common case, and the fast one.
fn plain_ids(request: &v1::AcquireRequest) -> Option<impl Iterator<Item = TensorId> + '_> {
    let id = |item: &v1::GetItem| match (&item.selection, &item.target) {
        (None, Some(v1::Target { kind: Some(v1::target::Kind::Id(id)), .. })) => Some(TensorId(*id)),
        _ => None,
    };
    request.items.iter().all(|i| id(i).is_some()).then(|| request.items.iter().filter_map(id))
}

fn internal(error: &dyn std::error::Error) -> Failure {
    Failure::new(Reason::Internal, error.to_string())
}
