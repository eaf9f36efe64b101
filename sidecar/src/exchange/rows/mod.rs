//! Mutable sets: made, found, read and written, for this pod and for other peers.
//!
//! ```text
//!   read    rows are packed into tensors of the asker ── map, or pull            only these rows travel
//!   commit  new rows are tensors of the writer ── leased here, or pulled ── applied in one step: version + 1
//! ```
//! A set belongs to the sidecar where it was made and lives until it is dropped or, in memory, that sidecar ends. Its rows are written by that
//! sidecar alone: a writer that dies before its commit is applied has changed nothing.

mod commit;
mod files;
mod making;
mod memory;
mod remote;
mod share;
mod table;
#[cfg(test)]
mod tests;

use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use prost::Message as _;
use tensorlane_memory::Purpose;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::SESSION_BODY_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::ledger::Holder;
use tensorlane_proto::rows::{RowList, SetReference};
use tensorlane_proto::wire;

use self::files::Root;
pub use self::making::FileSetTotals;
use self::memory::{MutableSet, internal};
use self::remote::Reading;
use self::share::{Job, Shares};
use self::table::Table;
use super::{Caller, Exchange, Taken, session_required};
use crate::cancel::Cancel;
use crate::store::AllocRequest;

/// The mutable sets of this sidecar, and who is at them.
#[derive(Default)]
pub(super) struct MutableSets {
    table: Mutex<Table<MutableSet>>,
    shares: Mutex<Shares<Job>>,
    /// Directory of sets on files, if there is one.
    root: OnceLock<Arc<Root>>,
}

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
    /// Finds a set, here or at another peer.
    pub fn set_open(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::SetOpenRequest,
        done: impl FnOnce(Result<v1::SetOpenResponse, Failure>) + Send + 'static,
    ) {
        match self.set_meant(&request.set) {
            Ok(Meant::Here(set)) => self.opened(set, request.flush, Box::new(done)),
            Ok(Meant::There(peer, life, set)) => {
                let deadline = self.deadline(request.deadline_ms);
                let request = v1::SetOpenRequest { set, ..request.clone() };
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
                self.read_there(Reading::new(caller, by, (peer, life), request, deadline), Box::new(done));
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
    ///
    /// # Errors
    /// TOO_LARGE where they do not fit one answer.
    pub fn set_stat(&self, request: &v1::SetStatRequest) -> Result<v1::SetStatResponse, Failure> {
        let sets: Vec<Arc<MutableSet>> =
            self.mutable_sets.table.lock().beginning(&request.prefix).map(Arc::clone).collect();
        let response = v1::SetStatResponse { sets: sets.iter().map(|set| set.info()).collect() };
        let bytes = response.encoded_len();
        if bytes > SESSION_BODY_MAX as usize {
            let what = format!(
                "{} sets begin with {:?}, and their layouts have {bytes} bytes, at most {SESSION_BODY_MAX}; ask for a longer prefix",
                sets.len(),
                request.prefix
            );
            return Err(Failure::new(Reason::TooLarge, what).with("bytes", bytes));
        }
        Ok(response)
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
                return Ok(Meant::There(reference.peer, reference.id.incarnation(), text.to_owned()));
            }
            if reference.id.incarnation().is_some_and(|life| life != me.incarnation) {
                let what = format!("the life of {} that kept {text} is over, and the set with it", me.peer);
                return Err(Failure::new(Reason::OwnerLost, what).with("peer", &me.peer));
            }
            let table = self.mutable_sets.table.lock();
            return table.set(reference.id).cloned().map(Meant::Here).ok_or_else(missing);
        }
        if let Some(set) = self.mutable_sets.table.lock().named(text) {
            return Ok(Meant::Here(Arc::clone(set)));
        }
        let (peer, name) = text.split_once('/').ok_or_else(missing)?;
        let peer: PeerName = peer.parse().map_err(|_| missing())?;
        if peer != me.peer {
            return Ok(Meant::There(peer, None, name.to_owned()));
        }
        let table = self.mutable_sets.table.lock();
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
        if cancel.is_cancelled() {
            return Err(Failure::new(Reason::Cancelled, "the reader is gone, or withdrew the call"));
        }
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
        let total = bytes.iter().fold(0_u64, |sum, one| sum.saturating_add(*one));
        let most = self.store.arena().usage().total / 2;
        if total > most {
            let what = format!(
                "a read of {total} bytes; at most {most}, half of the owner's arena: read fewer rows"
            );
            return Err(Failure::new(Reason::TooLarge, what).with("bytes", total));
        }
        let alloc = AllocRequest { writer: None, purpose: Purpose::Put, bytes: total, deadline, cancel };
        let room = self.store.allocate_all(&bytes, &alloc)?;
        let mut blocks = Vec::with_capacity(leaves.len());
        let mut landings = Vec::with_capacity(leaves.len());
        for (leaf, block) in leaves.iter().filter_map(|leaf| set.layout.leaves().get(*leaf)).zip(room) {
            landings.push(block.landing().ok_or_else(|| internal(&"a fresh block cannot be written"))?);
            blocks.push((leaf.packed(rows.len())?, block));
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
