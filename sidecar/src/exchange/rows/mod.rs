//! Mutable sets: made, found, read and written, for this pod and for other peers.
//!
//! ```text
//!   read    rows are packed into tensors of the asker ── map, or pull            only these rows travel
//!   commit  new rows are tensors of the writer ── leased here, or pulled ── applied in one step: version + 1
//! ```
//! A set belongs to the sidecar where it was made and lives until it is dropped or that sidecar ends. Its rows are written by that
//! sidecar alone: a writer that dies before its commit is applied has changed nothing.

mod memory;
mod remote;
mod table;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tensorlane_memory::{Landing, Owner, Purpose};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::ledger::Holder;
use tensorlane_proto::rows::{RowList, SetLayout, SetReference};
use tensorlane_proto::selection::Selection;
use tensorlane_proto::wire;

use self::memory::{MutableSet, NewRows, Terms, internal, zeroed};
use self::table::Table;
use super::acquire::Borrowed;
use super::names::tensor_name;
use super::{Caller, Exchange, Taken, session_required};
use crate::cancel::Cancel;
use crate::store::Wish;

/// Most patterns of peers that may write a set.
const WRITERS_MAX: usize = 64;
/// Longest pattern, in bytes: as long as the name of a peer may be.
const PATTERN_BYTES_MAX: usize = 253;

/// The mutable sets of this sidecar.
#[derive(Default)]
pub(super) struct MutableSets(Mutex<Table<MutableSet>>);

/// Rows that were read: a leased tensor for each leaf, all of one version.
pub struct RowsRead {
    /// The tensors, in the order of the leaves.
    pub taken: Vec<Taken>,
    /// The version.
    pub version: u64,
}

/// A set that a call means.
enum Meant {
    Here(Arc<MutableSet>),
    /// Another peer's, in one of its lives or in any, as that peer is asked for it.
    There(PeerName, Option<Incarnation>, String),
}

// === impl Exchange ===

impl Exchange {
    /// Makes a mutable set. Nothing is written.
    pub fn set_create(&self, request: v1::SetCreateRequest) -> Result<v1::SetCreateResponse, Failure> {
        let v1::SetSpec { leaves, name, rows, writers } = request.spec.unwrap_or_default();
        let name = tensor_name(&name)?;
        if writers.len() > WRITERS_MAX || writers.iter().any(|pattern| pattern.len() > PATTERN_BYTES_MAX) {
            let what = format!("a set has at most {WRITERS_MAX} writers, of {PATTERN_BYTES_MAX} bytes each");
            return Err(Failure::new(Reason::TooLarge, what).with("writers", writers.len()));
        }
        let layout = SetLayout::new(&leaves, rows)?;
        let room = self.store.arena().usage().total;
        if layout.bytes() > room {
            let what = format!(
                "the set has {} bytes and the arena of this sidecar {room}; make it smaller, or enlarge the arena",
                layout.bytes()
            );
            return Err(Failure::new(Reason::NeverFits, what).with("bytes", layout.bytes()));
        }
        let me = self.me();
        let reference = |id| SetReference {
            exchange: me.exchange.clone(),
            peer: me.peer.clone(),
            incarnation: me.incarnation,
            id,
        };
        let mut table = self.mutable_sets.0.lock();
        let made = |id| MutableSet::new(reference(id), name.clone(), writers, layout);
        let set = table.create(&name, made)?;
        Ok(v1::SetCreateResponse { set: Some(set.info()) })
    }

    /// Finds a set, here or at another peer.
    pub fn set_open(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::SetOpenRequest,
        done: impl FnOnce(Result<v1::SetOpenResponse, Failure>) + Send + 'static,
    ) {
        match self.set_meant(&request.set) {
            Ok(Meant::Here(set)) => done(Ok(v1::SetOpenResponse { set: Some(set.info()) })),
            Ok(Meant::There(peer, life, set)) => {
                let deadline = self.deadline(request.deadline_ms);
                let request = v1::SetOpenRequest { set, deadline_ms: request.deadline_ms };
                self.open_there(caller, (&peer, life), request, deadline, Box::new(done));
            }
            Err(failure) => done(Err(failure)),
        }
    }

    /// Reads rows for the caller's session.
    pub fn set_read(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::SetReadRequest,
        done: impl FnOnce(Result<RowsRead, Failure>) + Send + 'static,
    ) {
        let Some(by) = caller.holder else { return done(Err(session_required("SetRead"))) };
        let deadline = self.deadline(request.deadline_ms);
        match self.set_meant(&request.set) {
            Ok(Meant::Here(set)) => self.on_worker(Box::new(done), move |exchange| {
                exchange.pack_rows(&set, by, request, deadline, &caller.cancel)
            }),
            Ok(Meant::There(peer, life, set)) => {
                let request = v1::SetReadRequest { set, ..request };
                self.read_there(caller, by, (peer, life), request, deadline, Box::new(done));
            }
            Err(failure) => done(Err(failure)),
        }
    }

    /// Writes rows, in the name of this pod.
    pub fn set_commit(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::SetCommitRequest,
        done: impl FnOnce(Result<v1::SetCommitResponse, Failure>) + Send + 'static,
    ) {
        match self.set_meant(&request.set) {
            Ok(Meant::Here(set)) => self.commit_here(caller, set, request, Box::new(done)),
            Ok(Meant::There(peer, life, set)) => {
                let deadline = self.deadline(request.deadline_ms);
                let request = v1::SetCommitRequest { set, ..request };
                self.commit_there(&caller, (&peer, life), request, deadline, Box::new(done));
            }
            Err(failure) => done(Err(failure)),
        }
    }

    /// Mutable sets of this peer, by name.
    pub fn set_stat(&self, request: &v1::SetStatRequest) -> v1::SetStatResponse {
        let sets: Vec<Arc<MutableSet>> =
            self.mutable_sets.0.lock().beginning(&request.prefix).map(Arc::clone).collect();
        v1::SetStatResponse { sets: sets.iter().map(|set| set.info()).collect() }
    }

    /// Takes a set of this peer away. Its memory goes when the last call that reads or writes it has ended.
    pub fn set_drop(&self, request: &v1::SetDropRequest) -> Result<v1::SetDropResponse, Failure> {
        match self.set_meant(&request.set)? {
            Meant::Here(set) => {
                self.mutable_sets.0.lock().remove(set.reference.id);
                Ok(v1::SetDropResponse {})
            }
            Meant::There(peer, ..) => {
                let what = format!("the set is of the peer {peer}; drop it there");
                Err(Failure::new(Reason::NotOwned, what).with("peer", peer))
            }
        }
    }

    /// The set that a text means: a reference, a name here, or `peer/name`.
    fn set_meant(&self, text: &str) -> Result<Meant, Failure> {
        let me = self.me();
        let missing = || {
            let what = format!("no mutable set {text:?} is here; sets in memory end with their sidecar");
            Failure::new(Reason::NotFound, what).with("set", text)
        };
        if SetReference::is_meant(text) {
            let reference = SetReference::from_str(text)?;
            if reference.exchange != me.exchange {
                let what =
                    format!("{text} is of the exchange {}; this one is {}", reference.exchange, me.exchange);
                return Err(Failure::new(Reason::WrongExchange, what));
            }
            if reference.peer != me.peer {
                return Ok(Meant::There(reference.peer, Some(reference.incarnation), text.to_owned()));
            }
            if reference.incarnation != me.incarnation {
                let what = format!("the life of {} that kept {text} is over, and the set with it", me.peer);
                return Err(Failure::new(Reason::OwnerLost, what).with("peer", &me.peer));
            }
            let table = self.mutable_sets.0.lock();
            return table.set(reference.id).cloned().map(Meant::Here).ok_or_else(missing);
        }
        if let Some(set) = self.mutable_sets.0.lock().named(text) {
            return Ok(Meant::Here(Arc::clone(set)));
        }
        let (peer, name) = text.split_once('/').ok_or_else(missing)?;
        let peer: PeerName = peer.parse().map_err(|_| missing())?;
        if peer != me.peer {
            return Ok(Meant::There(peer, None, name.to_owned()));
        }
        let table = self.mutable_sets.0.lock();
        table.named(name).cloned().map(Meant::Here).ok_or_else(missing)
    }

    /// Packs rows into tensors that a holder leases. Blocks: for workers.
    fn pack_rows(
        &self,
        set: &MutableSet,
        by: Holder,
        request: v1::SetReadRequest,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<RowsRead, Failure> {
        let rows = RowList::new(&wire::selection(request.rows)?, &set.layout)?;
        let all = 0..set.layout.leaves().len();
        let leaves: Vec<usize> = match request.keys.as_slice() {
            [] => all.collect(),
            keys => chosen(set, keys)?,
        };
        let packed = |leaf: &usize| {
            set.layout.leaves().get(*leaf).map_or(Ok(0), |leaf| Ok(leaf.packed(rows.len())?.layout.bytes()))
        };
        let bytes: Vec<u64> = leaves.iter().map(packed).collect::<Result<_, Failure>>()?;
        let bytes = bytes.into_iter().fold(0_u64, u64::saturating_add);
        let most = self.store.arena().usage().total / 2;
        if bytes > most {
            let what = format!(
                "a read of {bytes} bytes; at most {most}, half of the owner's arena: read fewer rows"
            );
            return Err(Failure::new(Reason::TooLarge, what).with("bytes", bytes));
        }
        let mut blocks = Vec::with_capacity(leaves.len());
        let mut landings = Vec::with_capacity(leaves.len());
        for leaf in leaves.iter().filter_map(|leaf| set.layout.leaves().get(*leaf)) {
            let descriptor = leaf.packed(rows.len())?;
            let (purpose, bytes) = (Purpose::Put, descriptor.layout.bytes());
            let block = self.store.room(&Wish { writer: None, purpose, bytes, deadline, cancel })?;
            landings.push(block.landing().ok_or_else(|| internal(&"a fresh block cannot be written"))?);
            blocks.push((descriptor, block));
        }
        let version = set.gather(&rows, &leaves, &mut landings)?;
        drop(landings);
        let mut taken = Vec::with_capacity(blocks.len());
        for (descriptor, block) in blocks {
            match self.store.pack_in(by, descriptor, block) {
                Ok(one) => taken.push(Taken { copied: true, ..one }),
                Err(failure) => {
                    taken.iter().for_each(|one| self.untake(by, one));
                    return Err(failure);
                }
            }
        }
        Ok(RowsRead { taken, version })
    }

    /// Leases the new rows, which may come from another peer, and writes them.
    fn commit_here(
        self: &Arc<Self>,
        caller: Caller,
        set: Arc<MutableSet>,
        mut request: v1::SetCommitRequest,
        done: Box<dyn FnOnce(Result<v1::SetCommitResponse, Failure>) + Send>,
    ) {
        let (deadline, cancel) = (self.deadline(request.deadline_ms), caller.cancel.clone());
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
            Ok(borrowed) => exchange.on_worker(done, move |exchange| {
                exchange.write_rows(&set, &request, &borrowed, deadline, &cancel)
            }),
            Err(failure) => done(Err(failure)),
        });
    }

    /// Writes rows that are here. Blocks: for workers.
    fn write_rows(
        &self,
        set: &MutableSet,
        request: &v1::SetCommitRequest,
        borrowed: &Borrowed,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<v1::SetCommitResponse, Failure> {
        let terms = Terms { expects: request.expects_version, retry: wire::retry(&request.retry_id)? };
        let mut parts: Vec<NewRows<'_>> = Vec::with_capacity(request.parts.len());
        let (mut bytes, mut count) = (0, None);
        for (part, taken) in request.parts.iter().zip(&borrowed.taken) {
            let leaf = set.layout.leaf(&part.key)?;
            let taken = taken.as_ref().map_err(|failure| failure.clone().with("key", &part.key))?;
            if taken.tensor.gpu.is_some() {
                let what =
                    format!("the new rows of {:?} lie in GPU memory; put them into host memory", part.key);
                return Err(Failure::new(Reason::Unsupported, what).with("key", &part.key));
            }
            if parts.iter().any(|given| given.leaf == leaf) {
                let what = format!("{:?} is given twice; give each leaf once", part.key);
                return Err(Failure::new(Reason::InvalidArgument, what).with("key", &part.key));
            }
            count = count.or_else(|| taken.tensor.descriptor.layout.shape().first().copied());
            bytes += taken.tensor.descriptor.layout.bytes();
            parts.push(NewRows { leaf, block: taken.block() });
        }
        if parts.is_empty() {
            return Err(Failure::new(
                Reason::InvalidArgument,
                "a commit writes at least one leaf; give new rows",
            ));
        }
        let most = self.store.arena().usage().total / 2;
        if bytes > most {
            let what = format!("a commit of {bytes} bytes; at most {most}, half of the arena: split it");
            return Err(Failure::new(Reason::TooLarge, what).with("bytes", bytes));
        }
        let count = count.unwrap_or(0);
        if !request.extend {
            let rows = RowList::new(&wire::selection(request.rows.clone())?, &set.layout)?;
            return self.write_list(set, &rows, (&parts, request, borrowed), terms, deadline, cancel);
        }
        let Some(_extending) = set.extending.try_lock_until(deadline) else {
            return Err(Failure::new(
                Reason::DeadlineExceeded,
                "another extension of the set is being written",
            ));
        };
        let (rows, is_new) = extended(set, request, count, terms)?;
        let written = self.write_list(set, &rows, (&parts, request, borrowed), terms, deadline, cancel);
        if is_new && written.is_err() {
            set.commits.lock().give_back(&rows);
        }
        written
    }

    fn write_list(
        &self,
        set: &MutableSet,
        rows: &RowList,
        (parts, request, borrowed): (&[NewRows<'_>], &v1::SetCommitRequest, &Borrowed),
        terms: Terms,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<v1::SetCommitResponse, Failure> {
        for (part, taken) in request.parts.iter().zip(borrowed.taken.iter().flatten()) {
            if let Some(leaf) = set.layout.leaves().get(set.layout.leaf(&part.key)?) {
                leaf.check(rows.len(), &taken.tensor.descriptor.layout)?;
            }
        }
        {
            let commits = set.commits.lock();
            // A repeat of a commit that was made expects the version before it.
            commits
                .check(terms.expects)
                .or_else(|failure| commits.repeated(terms.retry).map(drop).ok_or(failure))?;
        }
        let bytes = set.layout.band_bytes();
        let fresh = |band: u64| {
            let block = match self.store.room_now(Owner::Sidecar, Purpose::Put, bytes) {
                Some(block) => block,
                None => {
                    let purpose = Purpose::Put;
                    self.store.room(&Wish { writer: None, purpose, bytes, deadline, cancel })?
                }
            };
            Ok((band, zeroed(&block)?))
        };
        let fresh: Vec<(u64, Landing)> =
            set.missing(rows).into_iter().map(fresh).collect::<Result<_, Failure>>()?;
        let committed = set.apply(rows, parts, terms, fresh)?;
        Ok(v1::SetCommitResponse { version: committed.version, first: committed.first })
    }
}

/// Rows that an extension writes: those of the commit that it repeats, or the next ones; and whether they are new.
fn extended(
    set: &MutableSet,
    request: &v1::SetCommitRequest,
    count: u64,
    terms: Terms,
) -> Result<(RowList, bool), Failure> {
    let of = set.layout.rows();
    if request.rows.is_some() {
        let what = "an extension chooses its rows itself; leave the rows out, or do not extend";
        return Err(Failure::new(Reason::InvalidArgument, what));
    }
    if count > of {
        let what = format!("{count} rows do not fit into a set of {of}; extend by fewer");
        return Err(Failure::new(Reason::TooLarge, what).with("rows", count));
    }
    let proof = Selection::Ranges(vec![tensorlane_proto::Range::new(0, count)]);
    RowList::new(&proof, &set.layout)?;
    let mut commits = set.commits.lock();
    Ok(match commits.repeated(terms.retry) {
        Some(before) => (RowList::Round { first: before.first, count, of }, false),
        None => (commits.take(count, of), true),
    })
}

/// Leaves of keys, of which none is given twice.
fn chosen(set: &MutableSet, keys: &[String]) -> Result<Vec<usize>, Failure> {
    let mut given = vec![false; set.layout.leaves().len()];
    let mut leaf_of = |key: &String| {
        let leaf = set.layout.leaf(key)?;
        match given.get_mut(leaf).is_some_and(|given| !std::mem::replace(given, true)) {
            true => Ok(leaf),
            false => {
                let what = format!("{key:?} is given twice; give each leaf once");
                Err(Failure::new(Reason::InvalidArgument, what).with("key", key))
            }
        }
    };
    keys.iter().map(&mut leaf_of).collect()
}
