//! Mutable sets: made, found, read and written, for this pod and for other peers.
//!
//! ```text
//!   read      rows are packed into tensors of the asker ── map, or pull            only these rows travel
//!   map       rows are tensors of the asker where they lie ── commits to them wait until these are released
//!   commit    new rows are tensors of the writer ── leased here, or pulled ── applied in one step: version + 1
//!   snapshot  all rows of one moment are tensors of this peer ── published as a sealed set
//! ```
//! A set belongs to the sidecar where it was made and lives until it is dropped or, in memory, that sidecar ends. Its rows are written by that
//! sidecar alone: a writer that dies before its commit is applied has changed nothing.

mod commit;
mod copying;
mod files;
mod hosted;
mod locking;
mod making;
mod mapping;
mod memory;
mod packing;
mod publishing;
mod remote;
mod share;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;
mod waiting;

use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use prost::Message as _;
use tensorlane_memory::Purpose;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::rows::SetReference;
use tensorlane_proto::wire;

use self::files::Root;
pub use self::hosted::OpenRows;
use self::memory::MutableSet;
use self::remote::Reading;
use self::share::{Job, Shares};
use self::table::Table;
use self::waiting::SetWaits;
use super::{Caller, Exchange, Taken, session_required};

/// The mutable sets of this sidecar, and who is at them.
#[derive(Default)]
pub(super) struct MutableSets {
    table: Mutex<Table<MutableSet>>,
    shares: Mutex<Shares<Job>>,
    /// Directory of sets on files, if there is one.
    root: OnceLock<Arc<Root>>,
    /// Callers that wait for sets by their names.
    waiting: Mutex<SetWaits>,
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
    /// Reads rows for the caller's session.
    pub fn set_read(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::SetReadRequest,
        done: impl FnOnce(Result<RowsRead, Failure>) + Send + 'static,
    ) {
        let Some(by) = caller.holder else { return done(Err(session_required("SetRead"))) };
        // A peer would take more than these for an attack.
        if let Err(failure) = wire::check_selection(request.rows.as_ref()) {
            return done(Err(failure));
        }
        let deadline = self.deadline(request.deadline_ms);
        match self.set_meant(&request.set) {
            Ok(Meant::Here(set)) => {
                let queueing = caller.queueing(Purpose::Put, deadline);
                self.on_waiter(queueing, Box::new(done), move |exchange| {
                    let waits = (&caller.claimant(), deadline, &caller.cancel);
                    exchange.pack_rows(&set, by, request, waits)
                });
            }
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
        if let Err(failure) = wire::check_selection(request.rows.as_ref()) {
            return done(Err(failure));
        }
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
    /// TOO_LARGE where they do not fit one answer of at most so many bytes.
    pub fn set_stat(
        &self,
        request: &v1::SetStatRequest,
        most: usize,
    ) -> Result<v1::SetStatResponse, Failure> {
        let sets: Vec<Arc<MutableSet>> =
            self.mutable_sets.table.lock().beginning(&request.prefix).map(Arc::clone).collect();
        let response = v1::SetStatResponse { sets: sets.iter().map(|set| set.info()).collect() };
        let bytes = response.encoded_len();
        if bytes > most {
            let what = format!(
                "{} sets begin with {:?}, and their layouts have {bytes} bytes, at most {most}; ask for a longer prefix",
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
}
