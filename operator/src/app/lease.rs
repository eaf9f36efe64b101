//! The lease by which one replica leads. No clock of another machine matters: times that are written in it are for people.
//!
//! ```text
//!   who waits:  sees a version of the lease ............ still that version after LEASE: takes it
//!   who leads:  asks to renew it ──> may write until VALID after it asked ──> nothing more, whatever it hears
//! ```
//!
//! A version that is seen is as old as the renewal that made it or younger, so the leader has ended before another one begins, and
//! between the two is time for what was under way. Each write names the version that it changes: of two who take
//! it one is refused, and a renewal that is granted says that nobody else had it meanwhile.
//!
//! A lease that was given back is taken at once, for its leader has ended. Nothing else is: a restore of etcd from a backup brings back
//! a lease of the past, with a name in it that has no part in who leads now, this replica's own included.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Client};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::names::FIELD_MANAGER;

/// Seconds for which a lease has to stay the same before another replica takes it.
const LEASE_SECONDS: u16 = 15;
const LEASE: Duration = Duration::from_secs(LEASE_SECONDS as u64);

/// Time for which a renewal lets the leader write. What is left of the lease is for writes under way.
const VALID: Duration = Duration::from_secs(10);

/// Interval of looks at the lease, and of renewals: two may fail, and one of them may not be answered.
const LOOK: Duration = Duration::from_secs(3);

/// Time that a call may take.
const CALL: Duration = Duration::from_secs(2);

/// Pause before a renewal is tried again that met a change, which may be this replica's own.
const AGAIN: Duration = Duration::from_millis(100);

/// Failure to read or write the lease.
#[derive(Debug, Error)]
pub(super) enum LeaseError {
    /// The API server refused, or was not reached.
    #[error(transparent)]
    Kube(#[from] Box<kube::Error>),
    /// No answer came.
    #[error("no answer from the API server within {} seconds", CALL.as_secs())]
    Deadline,
}

impl From<kube::Error> for LeaseError {
    fn from(error: kube::Error) -> LeaseError {
        LeaseError::Kube(Box::new(error))
    }
}

impl LeaseError {
    /// Returns whether a write named an old version, or made what is there.
    fn is_conflict(&self) -> bool {
        self.status().is_some_and(|status| status.is_conflict() || status.is_already_exists())
    }

    /// Returns whether a write was to what is not there.
    fn is_gone(&self) -> bool {
        self.status().is_some_and(Status::is_not_found)
    }

    fn status(&self) -> Option<&Status> {
        match self {
            LeaseError::Kube(error) => match &**error {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            LeaseError::Deadline => None,
        }
    }
}

/// Lease as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record {
    holder: Option<String>,
    transitions: i32,
    version: String,
}

impl From<Lease> for Record {
    fn from(lease: Lease) -> Record {
        let spec = lease.spec.unwrap_or_default();
        Record {
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
            transitions: spec.lease_transitions.unwrap_or_default(),
            version: lease.metadata.resource_version.unwrap_or_default(),
        }
    }
}

/// Knowledge of a replica that waits for the lease.
#[derive(Debug, Default)]
struct Candidate {
    /// Version of the lease, and when it was first seen. The empty one: there is none any more.
    seen: Option<(String, Instant)>,
    /// The latest version of all that were seen.
    latest: u64,
}

impl Candidate {
    /// Returns whether a lease may be made where there is none. One that was seen before may have been deleted under its leader.
    fn may_make(&mut self, now: Instant) -> bool {
        self.seen.is_none() || self.has_stayed("", now)
    }

    /// Takes in what was read. Returns whether the lease may be taken `now`.
    fn may_take(&mut self, record: &Record, now: Instant) -> bool {
        let version = record.version.parse().unwrap_or(0);
        let is_past = version < self.latest;
        self.latest = self.latest.max(version);
        let is_given_back = record.holder.is_none() && !is_past;
        is_given_back || self.has_stayed(&record.version, now)
    }

    /// Returns whether this version has been the one for as long as a lease lasts.
    fn has_stayed(&mut self, version: &str, now: Instant) -> bool {
        match &self.seen {
            Some((seen, since)) if seen == version => now.saturating_duration_since(*since) >= LEASE,
            _ => {
                self.seen = Some((version.to_owned(), now));
                false
            }
        }
    }
}

/// A term of this replica.
pub(super) struct Term {
    record: Record,
    /// Time until which it may write.
    until: watch::Sender<Instant>,
}

impl Term {
    fn new(record: Record, asked: Instant) -> Term {
        Term { record, until: watch::Sender::new(asked + VALID) }
    }

    /// Time until which this replica may write, as renewals move it.
    pub(super) fn until(&self) -> watch::Receiver<Instant> {
        self.until.subscribe()
    }
}

/// The lease, as this replica asks for it.
pub(super) struct Leadership {
    api: Api<Lease>,
    name: String,
    identity: String,
}

impl Leadership {
    pub(super) fn new(client: Client, namespace: &str, name: &str, identity: String) -> Leadership {
        Leadership { api: Api::namespaced(client, namespace), name: name.to_owned(), identity }
    }

    /// Waits until this replica has the lease.
    pub(super) async fn won(&self) -> Term {
        let mut candidate = Candidate::default();
        loop {
            match self.attempt(&mut candidate).await {
                Ok(Some(term)) => return term,
                Ok(None) => {}
                Err(error) if error.is_conflict() => {}
                Err(error) => tracing::warn!(%error, "the lease cannot be asked for"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn attempt(&self, candidate: &mut Candidate) -> Result<Option<Term>, LeaseError> {
        let found = in_time(self.api.get_opt(&self.name)).await?.map(Record::from);
        let asked = Instant::now();
        let record = match found {
            None if candidate.may_make(asked) => self.make().await?,
            None => return Ok(None),
            Some(record) if candidate.may_take(&record, asked) => {
                let now = MicroTime(Timestamp::now());
                let spec = json!({
                    "holderIdentity": self.identity, "leaseDurationSeconds": LEASE_SECONDS,
                    "acquireTime": now, "renewTime": now, "leaseTransitions": record.transitions.wrapping_add(1),
                });
                self.write(&record, &spec).await?
            }
            Some(_) => return Ok(None),
        };
        Ok(Some(Term::new(record, asked)))
    }

    /// Renews the lease of a term until this replica has it no more; says why.
    pub(super) async fn keep(&self, term: &mut Term) -> String {
        let mut pause = LOOK;
        loop {
            tokio::time::sleep(std::mem::replace(&mut pause, LOOK)).await;
            let asked = Instant::now();
            let spec = json!({"renewTime": MicroTime(Timestamp::now())});
            match self.write(&term.record, &spec).await {
                Ok(record) => {
                    term.record = record;
                    term.until.send_replace(asked + VALID);
                }
                Err(error) if error.is_conflict() || error.is_gone() => {
                    if let Some(why) = self.look_again(term).await {
                        return why;
                    }
                    pause = AGAIN;
                }
                Err(error) => tracing::warn!(%error, "the lease is not renewed, and is tried again"),
            }
        }
    }

    /// Reads what stands in the way of a renewal: another holder, or a change of the object that is none of the lease.
    async fn look_again(&self, term: &mut Term) -> Option<String> {
        match in_time(self.api.get_opt(&self.name)).await {
            Ok(Some(lease)) => {
                let record = Record::from(lease);
                if record.holder.as_ref() != Some(&self.identity) {
                    return Some(format!("the lease is of {}", record.holder.as_deref().unwrap_or("nobody")));
                }
                term.record = record;
                None
            }
            Ok(None) => Some("the lease was deleted".to_owned()),
            Err(error) => {
                tracing::warn!(%error, "the lease cannot be read, and is tried again");
                None
            }
        }
    }

    /// Gives the lease back where this replica still has it, so that another one leads at once.
    pub(super) async fn give_back(&self, term: &Term) {
        let spec = json!({"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null});
        match self.write(&term.record, &spec).await {
            Err(error) if !error.is_conflict() => tracing::warn!(%error, "the lease is not given back"),
            _ => {}
        }
    }

    async fn make(&self) -> Result<Record, LeaseError> {
        let now = MicroTime(Timestamp::now());
        let spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(LEASE_SECONDS.into()),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(0),
            ..LeaseSpec::default()
        };
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(spec) };
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        Ok(in_time(self.api.create(&parameters, &lease)).await?.into())
    }

    /// Writes this into the version that was read, and no other.
    async fn write(&self, record: &Record, spec: &Value) -> Result<Record, LeaseError> {
        let patch = json!({"metadata": {"resourceVersion": record.version}, "spec": spec});
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        Ok(in_time(self.api.patch(&self.name, &parameters, &Patch::Merge(patch))).await?.into())
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, LeaseError> {
    Ok(tokio::time::timeout(CALL, call).await.map_err(|_| LeaseError::Deadline)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn of(holder: &str, version: u32) -> Record {
        Record { holder: Some(holder.to_owned()), transitions: 1, version: version.to_string() }
    }

    #[test]
    fn a_lease_is_taken_once_it_has_stayed_the_same_and_never_while_it_is_renewed() {
        let (mut candidate, begun) = (Candidate::default(), Instant::now());
        for renewal in 0..9 {
            let at = begun + LOOK * renewal;
            assert!(!candidate.may_take(&of("first", renewal), at), "it is renewed");
        }
        let last = begun + LOOK * 8;
        assert!(!candidate.may_take(&of("first", 8), last + LEASE - S / 10));
        assert!(candidate.may_take(&of("first", 8), last + LEASE));
    }

    #[test]
    fn a_lease_that_was_given_back_is_taken_at_once_and_no_other() {
        let (now, free) = (Instant::now(), |version: u32| Record { holder: None, ..of("", version) });
        assert!(Candidate::default().may_take(&free(7), now));
        assert!(!Candidate::default().may_take(&of("a", 7), now));
        let mut waiting = Candidate::default();
        assert!(!waiting.may_take(&of("first", 7), now) && waiting.may_take(&free(8), now + S));
        let given_back = Lease {
            spec: Some(LeaseSpec { holder_identity: Some(String::new()), ..LeaseSpec::default() }),
            ..Lease::default()
        };
        assert_eq!(Record::from(given_back).holder, None);
    }

    /// etcd was restored from a backup while another replica leads. What is read says who led then, or that nobody did.
    #[test]
    fn a_lease_of_the_past_is_taken_late_whatever_stands_in_it() {
        let begun = Instant::now();
        for then in [of("second", 50), Record { holder: None, ..of("", 50) }] {
            let mut second = Candidate::default();
            assert!(!second.may_take(&of("first", 100), begun));
            let restored = begun + S;
            for at in [restored, restored + LOOK, restored + LEASE - S / 10] {
                assert!(!second.may_take(&then, at), "its leader may not know yet: {then:?}");
            }
            assert!(second.may_take(&then, restored + LEASE));
        }
    }

    #[test]
    fn a_lease_is_made_at_once_where_none_was_seen_and_late_where_one_went_away() {
        let (mut fresh, begun) = (Candidate::default(), Instant::now());
        assert!(fresh.may_make(begun));
        let mut waiting = Candidate::default();
        assert!(!waiting.may_take(&of("first", 1), begun));
        assert!(!waiting.may_make(begun + S), "its leader may not know yet");
        assert!(!waiting.may_make(begun + LEASE));
        assert!(waiting.may_make(begun + S + LEASE));
    }

    #[test]
    fn a_leader_has_ended_before_another_one_begins() {
        // Whoever takes it saw the last renewal no sooner than the leader asked for it.
        assert!(VALID + CALL <= LEASE && LOOK + CALL + LOOK < VALID);
    }
}
