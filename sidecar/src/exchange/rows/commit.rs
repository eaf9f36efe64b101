//! Commits to sets of this sidecar: proven first, then brought, then written.

use std::sync::Arc;

use tensorlane_memory::Purpose;
use tensorlane_proto::Range;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::rows::{Committed, RowList, SetLayout};
use tensorlane_proto::selection::Selection;
use tensorlane_proto::wire;

use super::memory::{Band, MutableSet, NewRows, Terms, internal, zeroed};
use super::packing::Waits;
use crate::exchange::acquire::Borrowed;
use crate::exchange::{Caller, Done, Exchange};
use crate::store::{AllocRequest, NoTurn, turn};

/// A commit that may be made, as far as can be said before its new rows are here.
#[derive(Debug)]
struct Plan {
    /// Leaf of each part.
    leaves: Vec<usize>,
    terms: Terms,
    /// Rows that are written; none where it extends.
    rows: Option<RowList>,
}

// === impl Exchange ===

impl Exchange {
    /// Leases the new rows, which may come from another peer, and writes them.
    pub(super) fn commit_here(
        self: &Arc<Self>,
        caller: Caller,
        set: Arc<MutableSet>,
        mut request: v1::SetCommitRequest,
        done: Done<v1::SetCommitResponse>,
    ) {
        let plan = match Plan::new(&set, &request, self.store.arena().usage().total / 2) {
            Ok(plan) => plan,
            Err(failure) => return done(Err(failure)),
        };
        let deadline = self.deadline(request.deadline_ms);
        let (claimant, cancel) = (caller.claimant(), caller.cancel.clone());
        let queueing = caller.queueing(Purpose::Put, deadline);
        let item = |part: &mut v1::SetPart| v1::GetItem {
            target: Some(v1::Target {
                kind: Some(v1::target::Kind::Reference(std::mem::take(&mut part.reference))),
                ..v1::Target::default()
            }),
            ..v1::GetItem::default()
        };
        let items = request.parts.iter_mut().map(item).collect();
        let borrow = v1::GetRequest { items, deadline_ms: request.deadline_ms, ..v1::GetRequest::default() };
        let exchange = Arc::clone(self);
        self.borrow(caller, borrow, move |borrowed| match borrowed {
            Ok(borrowed) => exchange.on_waiter(queueing, done, move |exchange| {
                exchange.write_rows(&set, &plan, &borrowed, (&claimant, deadline, &cancel))
            }),
            Err(failure) => done(Err(failure)),
        });
    }

    /// Writes rows that are here. Blocks: for waiters.
    fn write_rows(
        &self,
        set: &MutableSet,
        plan: &Plan,
        borrowed: &Borrowed,
        waits: Waits<'_>,
    ) -> Result<v1::SetCommitResponse, Failure> {
        let mut parts: Vec<NewRows<'_>> = Vec::with_capacity(plan.leaves.len());
        let mut count = None;
        for (index, taken) in plan.leaves.iter().zip(&borrowed.taken) {
            let leaf = set.layout.leaves().get(*index).ok_or_else(|| internal(&"no such leaf"))?;
            let taken = taken.as_ref().map_err(|failure| failure.clone().with("key", &leaf.key))?;
            if taken.tensor.gpu.is_some() {
                let what =
                    format!("the new rows of {:?} lie in GPU memory; put them into host memory", leaf.key);
                return Err(Failure::new(Reason::Unsupported, what).with("key", &leaf.key));
            }
            if taken.block().is_piece() {
                // It would wait for the very map that its new rows lie in.
                let what = format!(
                    "the new rows of {:?} are mapped rows of a set; copy them, and release the map first",
                    leaf.key
                );
                return Err(Failure::new(Reason::InvalidArgument, what).with("key", &leaf.key));
            }
            let layout = &taken.tensor.descriptor.layout;
            count = count.or_else(|| layout.shape().first().copied());
            let rows = plan.rows.as_ref().map_or(count.unwrap_or(0), RowList::len);
            leaf.check(rows, layout)?;
            parts.push(NewRows { leaf: *index, block: taken.block() });
        }
        if let Some(rows) = &plan.rows {
            return self.write_list(set, rows, &parts, plan.terms, waits);
        }
        let (_, deadline, cancel) = waits;
        let _extending = match turn(&set.extending, deadline, cancel) {
            Ok(turn) => turn,
            Err(NoTurn::Cancelled) => {
                return Err(Failure::new(Reason::Cancelled, "the writer is gone, or withdrew the call"));
            }
            Err(NoTurn::TooLate) => {
                let what = "another extension of the set is being written";
                return Err(Failure::new(Reason::DeadlineExceeded, what));
            }
        };
        let (rows, is_new) = extended(set, count.unwrap_or(0), plan.terms)?;
        let written = self.write_list(set, &rows, &parts, plan.terms, waits);
        if is_new && written.is_err() {
            set.commits.lock().give_back(&rows);
        }
        written
    }

    fn write_list(
        &self,
        set: &MutableSet,
        rows: &RowList,
        parts: &[NewRows<'_>],
        terms: Terms,
        (claimant, deadline, cancel): Waits<'_>,
    ) -> Result<v1::SetCommitResponse, Failure> {
        terms.check(set)?;
        let mut _unmapped = None;
        if let Some(pieces) = &set.pieces {
            if let Some(Committed { version, first }) = set.commits.lock().repeated(terms.retry) {
                // A repeat writes nothing, and waits for nobody.
                return Ok(v1::SetCommitResponse { version, first });
            }
            _unmapped = Some(pieces.unmapped(rows, parts, deadline, cancel)?);
        }
        let (missing, bytes) = (set.missing(rows, parts, (deadline, cancel))?, set.layout.band_bytes());
        let fresh: Vec<(u64, Band)> = if set.pieces.is_some() {
            missing.into_iter().map(|band| (band, Band::InPieces)).collect()
        } else {
            let purpose = Purpose::Put;
            let alloc = AllocRequest { writer: None, claimant, purpose, bytes, deadline, cancel };
            let room = self.store.allocate_all(&vec![bytes; missing.len()], &alloc)?;
            let own = |(band, block)| Ok((band, Band::Own(zeroed(block)?)));
            missing.into_iter().zip(&room).map(own).collect::<Result<_, Failure>>()?
        };
        let committed = set.apply(rows, parts, terms, fresh, (deadline, cancel))?;
        self.metrics.sets.commits.inc();
        self.metrics.sets.rows_written.inc_by(rows.len());
        Ok(v1::SetCommitResponse { version: committed.version, first: committed.first })
    }
}

// === impl Plan ===

impl Plan {
    /// Proves a commit, of `most` bytes at most. References say how many there are, and owners refuse those that lie.
    fn new(set: &MutableSet, request: &v1::SetCommitRequest, most: u64) -> Result<Self, Failure> {
        if request.parts.is_empty() {
            return Err(Failure::new(
                Reason::InvalidArgument,
                "a commit writes at least one leaf; give new rows",
            ));
        }
        let (mut leaves, mut bytes) = (Vec::with_capacity(request.parts.len()), 0_u64);
        let mut given = vec![false; set.layout.leaves().len()];
        for v1::SetPart { key, reference } in &request.parts {
            let leaf = set.layout.leaf(key)?;
            if given.get_mut(leaf).is_none_or(|given| std::mem::replace(given, true)) {
                let what = format!("{key:?} is given twice; give each leaf once");
                return Err(Failure::new(Reason::InvalidArgument, what).with("key", key));
            }
            let reference: Reference =
                reference.parse().map_err(|error| Failure::from(error).with("key", key))?;
            bytes = bytes.saturating_add(reference.bytes());
            leaves.push(leaf);
        }
        check_bytes(bytes, most)?;
        let rows = rows_written(request.rows.clone(), request.extend, &set.layout)?;
        let terms = Terms { expects: request.expects_version, retry: wire::retry(&request.retry_id)? };
        terms.check(set)?;
        Ok(Self { leaves, terms, rows })
    }
}

// === impl Terms ===

impl Terms {
    /// Checks that the set is at the expected version. A repeat of a commit that was made expects the version before it.
    fn check(self, set: &MutableSet) -> Result<(), Failure> {
        let commits = set.commits.lock();
        commits.check(self.expects).or_else(|failure| commits.repeated(self.retry).map(drop).ok_or(failure))
    }
}

/// Checks that a commit is not larger than a set takes at once.
pub(super) fn check_bytes(bytes: u64, most: u64) -> Result<(), Failure> {
    if bytes <= most {
        return Ok(());
    }
    let what = format!("a commit of {bytes} bytes; at most {most}, half of the arena: split it");
    Err(Failure::new(Reason::TooLarge, what).with("bytes", bytes))
}

/// Rows that a commit names; none where it extends.
pub(super) fn rows_written(
    rows: Option<v1::Selection>,
    extend: bool,
    layout: &SetLayout,
) -> Result<Option<RowList>, Failure> {
    match extend {
        false => RowList::new(&wire::selection(rows)?, layout).map(Some),
        true if rows.is_some() => {
            let what = "an extension chooses its rows itself; leave the rows out, or do not extend";
            Err(Failure::new(Reason::InvalidArgument, what))
        }
        true => Ok(None),
    }
}

/// Checks that an extension by so many rows fits into a set.
pub(super) fn check_extension(count: u64, layout: &SetLayout) -> Result<(), Failure> {
    let of = layout.rows();
    if count > of {
        let what = format!("{count} rows do not fit into a set of {of}; extend by fewer");
        return Err(Failure::new(Reason::TooLarge, what).with("rows", count));
    }
    RowList::new(&Selection::Ranges(vec![Range::new(0, count)]), layout).map(drop)
}

/// Rows that an extension writes: those of the commit that it repeats, or the next ones; and whether they are new.
fn extended(set: &MutableSet, count: u64, terms: Terms) -> Result<(RowList, bool), Failure> {
    check_extension(count, &set.layout)?;
    let of = set.layout.rows();
    let mut commits = set.commits.lock();
    Ok(match commits.repeated(terms.retry) {
        Some(before) => (RowList::Round { first: before.first, count, of }, false),
        None => (commits.take(count, of), true),
    })
}
