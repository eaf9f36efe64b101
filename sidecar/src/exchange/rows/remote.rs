//! Mutable sets between peers: calls to their owners, and answers to calls of others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;
use tensorlane_memory::Purpose;
use tensorlane_proto::allowed::any_matches;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::ITEMS_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::ledger::Holder;
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::rows::SETS_LEAVES_MAX;
use tensorlane_proto::selection::Selection;

use super::publishing::may_publish;
use super::share::Place;
use super::{Meant, MutableSet, RowsRead};
use crate::cancel::Cancel;
use crate::exchange::acquire::Terms;
use crate::exchange::fetch::Fetch;
use crate::exchange::gather::Gather;
use crate::exchange::waits::Owner;
use crate::exchange::{Caller, Done, Exchange, Queueing, Taken};
use crate::peer::{PeerHold, PeerKey, SetDone};
use crate::store::Claimant;

/// Time that the owner is told for that its rows are not wanted any more. Behind it the grace of a lost peer has ended the lease.
const RELEASE: Duration = Duration::from_secs(60);

/// Most of a commit's time that is left for the owner's answer to come.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Number of times that an owner is asked for rows whose answer, or whose tensors, were lost with a connection.
const TRIES: u32 = 4;

/// A read of rows of another peer's set.
pub(super) struct Reading {
    caller: Caller,
    by: Holder,
    peer: PeerName,
    life: Option<Incarnation>,
    request: v1::SetReadRequest,
    deadline: Instant,
    /// Number of times that it may be asked for, this one included.
    tries: u32,
}

/// A peer, in one of its lives or in any.
type Life<'a> = (&'a PeerName, Option<Incarnation>);

// === impl Reading ===

impl Reading {
    pub(super) fn new(
        caller: Caller,
        by: Holder,
        (peer, life): (PeerName, Option<Incarnation>),
        request: v1::SetReadRequest,
        deadline: Instant,
    ) -> Self {
        Self { caller, by, peer, life, request, deadline, tries: TRIES }
    }

    fn may_ask_again(&self) -> bool {
        self.tries > 1 && !self.caller.cancel.is_cancelled() && Instant::now() < self.deadline
    }
}

// === impl Exchange ===

impl Exchange {
    pub(super) fn open_there(
        self: &Arc<Self>,
        caller: &Caller,
        life: Life<'_>,
        request: v1::SetOpenRequest,
        deadline: Instant,
        done: Done<v1::SetOpenResponse>,
    ) {
        self.ask_owner(caller, life, v1::set_call::Kind::Open(request), deadline, move |answer| {
            done(match answer {
                Ok(v1::set_answer::Kind::Opened(set)) => Ok(v1::SetOpenResponse { set: Some(set) }),
                other => Err(unexpected(other)),
            });
        });
    }

    pub(super) fn commit_there(
        self: &Arc<Self>,
        caller: &Caller,
        life: Life<'_>,
        request: v1::SetCommitRequest,
        deadline: Instant,
        done: Done<v1::SetCommitResponse>,
    ) {
        let request = v1::SetCommitRequest { deadline_ms: for_the_owner(deadline), ..repeatable(request) };
        self.ask_owner(caller, life, v1::set_call::Kind::Commit(request), deadline, move |answer| {
            done(match answer {
                Ok(v1::set_answer::Kind::Committed(committed)) => Ok(committed),
                other => Err(unexpected(other)),
            });
        });
    }

    pub(super) fn snapshot_there(
        self: &Arc<Self>,
        caller: &Caller,
        life: Life<'_>,
        request: v1::SetSnapshotRequest,
        deadline: Instant,
        done: Done<v1::SetSnapshotResponse>,
    ) {
        self.ask_owner(caller, life, v1::set_call::Kind::Snapshot(request), deadline, move |answer| {
            done(match answer {
                Ok(v1::set_answer::Kind::Published(published)) => Ok(published),
                other => Err(unexpected(other)),
            });
        });
    }

    /// Has rows packed by their owner, brings them here and leases them for the caller.
    pub(super) fn read_there(self: &Arc<Self>, reading: Reading, done: Done<RowsRead>) {
        let exchange = Arc::clone(self);
        // Between the answer and the pulls nothing else has the connection, with which the packed rows would go.
        let hold = self.peers_or_fail().ok().and_then(|peers| peers.hold(&reading.peer));
        let asked = v1::set_call::Kind::Read(reading.request.clone());
        let (asker, owner, life, deadline) =
            (reading.caller.clone(), reading.peer.clone(), reading.life, reading.deadline);
        self.ask_owner(&asker, (&owner, life), asked, deadline, move |answer| match answer {
            Ok(v1::set_answer::Kind::Packed(packed)) => exchange.bring_rows(reading, packed, hold, done),
            other => done(Err(unexpected(other))),
        });
    }

    fn bring_rows(
        self: &Arc<Self>,
        reading: Reading,
        packed: v1::SetPacked,
        hold: Option<PeerHold>,
        done: Done<RowsRead>,
    ) {
        let Reading { by, deadline, .. } = reading;
        let v1::SetPacked { references, version } = packed;
        let parsed: Result<Vec<Reference>, Failure> =
            references.iter().map(|text| text.parse().map_err(Failure::from)).collect();
        let references = match parsed {
            Ok(references) if references.iter().all(|reference| *reference.peer() == reading.peer) => {
                references
            }
            Ok(_) => return done(Err(wrong_answer(&reading.peer))),
            Err(failure) => return done(Err(failure)),
        };
        let ids: Vec<u64> = references.iter().map(Reference::id).collect();
        let terms = Arc::new(Terms {
            by,
            require: Require::NONE,
            deadline,
            host: true,
            caller: reading.caller.clone(),
        });
        let exchange = Arc::clone(self);
        let arrived = move |results: Result<Vec<Result<Taken, Failure>>, Failure>| {
            exchange.release_there((&reading.peer, reading.life), &ids);
            drop(hold);
            match results.and_then(|results| exchange.all_or_none(by, results, version)) {
                // A connection that was lost took them with it.
                Err(failure) if failure.reason == Reason::NotFound && reading.may_ask_again() => {
                    exchange.read_there(Reading { tries: reading.tries - 1, ..reading }, done);
                }
                outcome => done(outcome),
            }
        };
        let gather = Gather::new(references.len(), Box::new(arrived));
        let fetch = |(index, reference)| (index, Fetch::new(reference, Selection::All, Arc::clone(&terms)));
        self.fetch_all(references.into_iter().enumerate().map(fetch).collect(), &gather);
        gather.arm();
    }

    fn all_or_none(
        &self,
        by: Holder,
        results: Vec<Result<Taken, Failure>>,
        version: u64,
    ) -> Result<RowsRead, Failure> {
        match results.iter().find_map(|result| result.as_ref().err().cloned()) {
            None => Ok(RowsRead { taken: results.into_iter().flatten().collect(), version }),
            Some(failure) => {
                results.iter().flatten().for_each(|taken| self.untake(by, taken));
                Err(failure)
            }
        }
    }

    /// Rows that were packed for us are here, or not wanted.
    fn release_there(self: &Arc<Self>, (peer, life): Life<'_>, ids: &[u64]) {
        let Ok(peers) = self.peers_or_fail() else { return };
        for ids in ids.chunks(ITEMS_MAX) {
            let kind = Some(v1::set_call::Kind::Release(v1::SetRelease { ids: ids.to_vec() }));
            // Told or not, nobody waits for it.
            peers.set_call(peer, life, v1::SetCall { kind }, Instant::now() + RELEASE, drop);
        }
    }

    fn ask_owner(
        self: &Arc<Self>,
        caller: &Caller,
        (peer, life): Life<'_>,
        kind: v1::set_call::Kind,
        deadline: Instant,
        done: impl FnOnce(Result<v1::set_answer::Kind, Failure>) + Send + 'static,
    ) {
        let peers = match self.peers_or_fail() {
            Ok(peers) => peers,
            Err(failure) => return done(Err(failure)),
        };
        let owner = peer.clone();
        let call = peers.set_call(peer, life, v1::SetCall { kind: Some(kind) }, deadline, move |answer| {
            done(answer.and_then(|answer| answer.kind.ok_or_else(|| wrong_answer(&owner))));
        });
        caller.cancel.on_cancel(Arc::new(move || call.cancel()));
    }

    /// Answers a call of another peer about a set of ours.
    pub(in crate::exchange) fn answer_set_call(
        &self,
        from: &PeerKey,
        call: v1::SetCall,
        gone: Cancel,
        reply: SetDone,
    ) {
        let Some(exchange) = self.own.upgrade() else { return };
        let kind = self.may_leave(from, false).and_then(|()| call.kind.ok_or_else(nothing_asked));
        match kind {
            Ok(v1::set_call::Kind::Open(asked)) => {
                let may = |set: Arc<MutableSet>| match asked.flush {
                    true => may_write(&set, &from.name).map(|()| set),
                    false => Ok(set),
                };
                let found = self.own_set(&asked.set).and_then(may);
                let done = |opened: Result<v1::SetOpenResponse, Failure>| {
                    let info = opened.map(|response| response.set.unwrap_or_default());
                    reply(info.map(|info| answer(v1::set_answer::Kind::Opened(info))));
                };
                // What is flushed is there: a set that is waited for has nothing to be brought to the disk.
                let asked = v1::SetOpenRequest { flush: asked.flush && found.is_ok(), ..asked };
                let queueing = waits(from, self.deadline(asked.deadline_ms), &gone);
                let by = (Owner::Peer(from.name.clone()), gone);
                exchange.open_or_wait(by, found, &asked, queueing, Box::new(done));
            }
            Ok(v1::set_call::Kind::Snapshot(asked)) => exchange.serve_snapshot(from, asked, gone, reply),
            Ok(v1::set_call::Kind::Read(asked)) => exchange.serve_read(from, asked, gone, reply),
            Ok(v1::set_call::Kind::Commit(asked)) => exchange.serve_commit(from, asked, gone, reply),
            // Those who noted what was packed have answered it.
            Ok(v1::set_call::Kind::Release(_)) => reply(Err(nothing_asked())),
            Err(failure) => reply(Err(failure)),
        }
    }

    fn serve_read(
        self: &Arc<Self>,
        from: &PeerKey,
        mut asked: v1::SetReadRequest,
        gone: Cancel,
        reply: SetDone,
    ) {
        // Rows are mapped in the pod of their set alone: a peer gives back what it maps of ours seconds after its last client did.
        asked.map = false;
        let set = self.own_set(&asked.set).and_then(|set| match asked.keys.len() {
            0..=SETS_LEAVES_MAX => Ok(set),
            keys => {
                let what = format!("{keys} keys in one read; a set has {SETS_LEAVES_MAX} leaves at most");
                Err(Failure::new(Reason::TooLarge, what))
            }
        });
        let set = match set {
            Ok(set) => set,
            Err(failure) => return reply(Err(failure)),
        };
        let (from, deadline) = (from.clone(), self.deadline(asked.deadline_ms));
        let (peer, bytes) = (from.name.clone(), held(asked.encoded_len()));
        let call = move |exchange: &Arc<Self>, place: Result<Place, Failure>| match place {
            Ok(place) => exchange.on_waiter(waits(&from, deadline, &gone), reply, move |exchange| {
                let _place = place;
                let claimant = Claimant::Peer(from.name.clone());
                let pack = |holder| exchange.pack_rows(&set, holder, asked, (&claimant, deadline, &gone));
                let (_, RowsRead { taken, version }) = exchange.lease_for(&from, pack)?;
                let references = taken.iter().map(|taken| taken.tensor.reference.encode()).collect();
                Ok(answer(v1::set_answer::Kind::Packed(v1::SetPacked { references, version })))
            }),
            Err(failure) => reply(Err(failure)),
        };
        self.in_share(&peer, bytes, Box::new(call));
    }

    fn serve_commit(
        self: &Arc<Self>,
        from: &PeerKey,
        asked: v1::SetCommitRequest,
        gone: Cancel,
        reply: SetDone,
    ) {
        let set = self.own_set(&asked.set).and_then(|set| {
            if asked.parts.len() > ITEMS_MAX {
                let what =
                    format!("{} leaves in one commit; at most {ITEMS_MAX}: split it", asked.parts.len());
                return Err(Failure::new(Reason::TooLarge, what));
            }
            may_write(&set, &from.name)?;
            asked.parts.iter().try_for_each(|part| is_of(part, from)).map(|()| set)
        });
        let set = match set {
            Ok(set) => set,
            Err(failure) => return reply(Err(failure)),
        };
        let bytes = held(asked.encoded_len());
        let on_behalf = Some(Claimant::Peer(from.name.clone()));
        let call = move |exchange: &Arc<Self>, place: Result<Place, Failure>| match place {
            Ok(place) => {
                let caller = Caller { holder: None, link: None, on_behalf, cancel: gone };
                let done = move |outcome: Result<v1::SetCommitResponse, Failure>| {
                    drop(place);
                    reply(outcome.map(|done| answer(v1::set_answer::Kind::Committed(done))));
                };
                exchange.commit_here(caller, set, asked, Box::new(done));
            }
            Err(failure) => reply(Err(failure)),
        };
        self.in_share(&from.name, bytes, Box::new(call));
    }

    fn serve_snapshot(
        self: &Arc<Self>,
        from: &PeerKey,
        asked: v1::SetSnapshotRequest,
        gone: Cancel,
        reply: SetDone,
    ) {
        let may = |set: Arc<MutableSet>| {
            may_write(&set, &from.name)?;
            may_publish(&set, &asked).map(|()| set)
        };
        let set = match self.own_set(&asked.set).and_then(may) {
            Ok(set) => set,
            Err(failure) => return reply(Err(failure)),
        };
        let (deadline, bytes) = (self.deadline(asked.deadline_ms), held(asked.encoded_len()));
        let (peer, from) = (from.name.clone(), from.clone());
        let call = move |exchange: &Arc<Self>, place: Result<Place, Failure>| match place {
            Ok(place) => exchange.on_waiter(waits(&from, deadline, &gone), reply, move |exchange| {
                let _place = place;
                let claimant = Claimant::Peer(from.name.clone());
                let published = exchange.publish_rows(&set, &asked, (&claimant, deadline, &gone))?;
                Ok(answer(v1::set_answer::Kind::Published(published)))
            }),
            Err(failure) => reply(Err(failure)),
        };
        self.in_share(&peer, bytes, Box::new(call));
    }

    /// A set of ours that another peer asks for.
    fn own_set(&self, text: &str) -> Result<Arc<MutableSet>, Failure> {
        match self.set_meant(text)? {
            Meant::Here(set) => Ok(set),
            Meant::There(peer, ..) => {
                let what = format!("the set is of {peer}, not of {}; ask there", self.me().peer);
                Err(Failure::new(Reason::NotOwned, what).with("peer", peer))
            }
        }
    }
}

/// Checks that workloads of a peer may write.
fn may_write(set: &MutableSet, peer: &PeerName) -> Result<(), Failure> {
    if any_matches(&set.writers, peer) {
        return Ok(());
    }
    let what = format!(
        "workloads of {peer} may not write the set {} of {}; make it with {peer} among its writers",
        set.name, set.reference.peer
    );
    Err(Failure::new(Reason::PermissionDenied, what).with("peer", peer))
}

/// Checks that new rows are tensors of the peer that writes them: others it reads by itself, under its own name.
fn is_of(part: &v1::SetPart, peer: &PeerKey) -> Result<(), Failure> {
    let reference: Reference = part.reference.parse()?;
    if *reference.peer() == peer.name {
        return Ok(());
    }
    let what =
        format!("the new rows of {:?} are a tensor of {}, not of {}", part.key, reference.peer(), peer.name);
    Err(Failure::new(Reason::PermissionDenied, what).with("key", &part.key))
}

/// A commit that a lost connection may bring twice, and that is made once: with a number of its own where the caller gave none.
fn repeatable(mut request: v1::SetCommitRequest) -> v1::SetCommitRequest {
    if request.retry_id.is_empty() {
        request.retry_id = bytes::Bytes::copy_from_slice(&rand::random::<[u8; 16]>());
    }
    request
}

/// Milliseconds that the owner may wait: less than is left here, so that its reason comes in time.
fn for_the_owner(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    let less = left.saturating_sub((left / 10).min(ANSWER_MAX));
    u64::try_from(less.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Wait of a peer for room.
fn waits(from: &PeerKey, deadline: Instant, gone: &Cancel) -> Queueing {
    let claimant = Claimant::Peer(from.name.clone());
    Queueing { claimant, purpose: Purpose::Put, deadline, cancel: Some(gone.clone()) }
}

fn nothing_asked() -> Failure {
    Failure::new(Reason::InvalidArgument, "a call about a set asks for nothing")
}

fn answer(kind: v1::set_answer::Kind) -> v1::SetAnswer {
    v1::SetAnswer { kind: Some(kind) }
}

fn unexpected(answer: Result<v1::set_answer::Kind, Failure>) -> Failure {
    answer.err().unwrap_or_else(|| Failure::new(Reason::Internal, "the owner of the set gave another answer"))
}

fn wrong_answer(peer: &PeerName) -> Failure {
    Failure::new(Reason::Internal, format!("{peer} answered what makes no sense")).with("peer", peer)
}

/// Heap that a request takes that has so many bytes on the wire, at most: a row of one byte there has eight here.
fn held(wire: usize) -> u64 {
    (wire as u64).saturating_mul(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_goes_to_another_peer_has_a_retry_id() {
        let [one, other] = [(); 2].map(|()| repeatable(v1::SetCommitRequest::default()).retry_id);
        assert!(one.len() == 16 && other.len() == 16 && one != other);
        let own = v1::SetCommitRequest { retry_id: vec![7; 16].into(), ..v1::SetCommitRequest::default() };
        assert_eq!(repeatable(own.clone()), own, "the caller's stays");
    }
}
