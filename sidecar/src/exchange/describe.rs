//! Describe and List: what is known, without moving it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::SESSION_BODY_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, TensorId, TensorName};
use tensorlane_proto::reference::Reference;

use super::gather::Gather;
use super::lookup::{Found, Look, Wanted, there};
use super::target::{Meant, target_of};
use super::{Caller, Exchange};
use crate::store::Own;

/// Names a page has where nobody says how many.
pub(super) const PAGE: u32 = 1_000;
/// Names a page has at most. Costs about 2 MB of reply.
pub(super) const PAGE_MAX: u32 = 10_000;
/// Bytes a page has at most, but for its last entry: with metadata an entry may take 16 KiB and more, and clients of gRPC
/// take 4 MiB by default.
pub(super) const PAGE_BYTES_MAX: usize = 3 << 20;
/// Bytes of a leased name in a reply beside the name, at most.
const LEASED_BYTES: usize = 24;

// === impl Exchange ===

impl Exchange {
    /// Tells what is known of tensors, here or at their owners.
    pub fn describe(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::DescribeRequest,
        done: impl FnOnce(Result<v1::DescribeResponse, Failure>) + Send + 'static,
    ) {
        let deadline = self.deadline(request.deadline_ms);
        let answer =
            move |outcome: Result<Vec<Result<v1::Description, Failure>>, Failure>| {
                done(outcome.map(|all| v1::DescribeResponse {
                    results: all.into_iter().map(describe_result).collect(),
                }));
            };
        let gather = Gather::new(request.targets.len(), Box::new(answer));
        let mut named = Vec::new();
        let mut remote: HashMap<_, Vec<(usize, Reference)>> = HashMap::new();
        for (index, target) in request.targets.into_iter().enumerate() {
            match self.meant(target) {
                Err(failure) => gather.put(index, Err(failure)),
                Ok(Meant::Here(id, _)) => {
                    gather.put(index, self.store.description(caller.holder, Own::Id(id)));
                }
                Ok(Meant::There(reference)) => {
                    remote.entry(reference.peer().clone()).or_default().push((index, reference));
                }
                Ok(Meant::Named(peer, name)) => named.push((index, (peer, name))),
            }
        }
        for (peer, wanted) in remote {
            self.describe_there(&peer, wanted, deadline, &gather);
        }
        if !named.is_empty() {
            self.describe_named(caller, named, deadline, &gather);
        }
        gather.arm();
    }

    fn describe_there(
        self: &Arc<Self>,
        peer: &tensorlane_proto::identity::PeerName,
        wanted: Vec<(usize, Reference)>,
        deadline: Instant,
        gather: &Arc<Gather<v1::Description>>,
    ) {
        let peers = match self.peers_or_fail() {
            Ok(peers) => peers,
            Err(failure) => return wanted.iter().for_each(|(i, _)| gather.put(*i, Err(failure.clone()))),
        };
        let target = |(_, reference): &(usize, Reference)| target_of(reference);
        let inquire = v1::Inquire { targets: wanted.iter().map(target).collect(), ..v1::Inquire::default() };
        let (exchange, gather) = (Arc::clone(self), Arc::clone(gather));
        // It ends by itself at the deadline.
        peers.inquire(peer, None, inquire, deadline, move |outcome| match outcome {
            Ok(inquired) => {
                let mut results = inquired.results.into_iter();
                for (index, _) in wanted {
                    let result = results.next().unwrap_or_default();
                    gather.put(index, there(result).map(|there| exchange.seen_from_here(there)));
                }
            }
            Err(failure) => wanted.iter().for_each(|(i, _)| gather.put(*i, Err(failure.clone()))),
        });
    }

    fn describe_named(
        self: &Arc<Self>,
        caller: Caller,
        named: Vec<(usize, (Option<tensorlane_proto::identity::PeerName>, TensorName))>,
        deadline: Instant,
        gather: &Arc<Gather<v1::Description>>,
    ) {
        let (indices, wanted): (Vec<usize>, Vec<_>) = named.into_iter().unzip();
        let own = Arc::clone(gather);
        let wanted = Wanted { names: wanted, wait: std::time::Duration::ZERO, deadline };
        let look: Look<_> = Box::new(Self::stood_for);
        let then = move |exchange: &Arc<Self>, found: Vec<Result<Found<_>, Failure>>| {
            for (index, found) in indices.into_iter().zip(found) {
                own.put(index, found.map(|found| exchange.described(found)));
            }
        };
        self.find(caller, wanted, look, Box::new(then));
    }

    /// Leases all names with a prefix in one step: at most `most`, whose names must fit into one reply.
    fn lease_names(&self, by: Holder, prefix: &str, most: usize) -> Result<v1::ListResponse, Failure> {
        let names = self.store.lease_names(by, prefix, most)?;
        let bytes: usize = names.iter().map(|(name, _)| name.as_str().len() + LEASED_BYTES).sum();
        if bytes > SESSION_BODY_MAX as usize {
            let ids: Vec<u64> = names.iter().map(|(_, id)| id.0).collect();
            self.store.release(by, &ids, &[]);
            return Err(Failure::new(
                Reason::TooLarge,
                format!(
                    "the names that begin with {prefix:?} take {bytes} bytes, and at most {SESSION_BODY_MAX} are leased in one \
                     step: ask for a longer prefix"
                ),
            ));
        }
        let leased = |(name, id): (TensorName, TensorId)| v1::Listed {
            name: name.to_string(),
            description: None,
            lease: Some(id.0),
        };
        Ok(v1::ListResponse {
            entries: names.into_iter().map(leased).collect(),
            next_page_token: String::new(),
        })
    }

    /// Page of this peer's names; or all of them, leased for the caller, at most `most`.
    pub fn list(
        &self,
        caller: &Caller,
        request: &v1::ListRequest,
        most: usize,
    ) -> Result<v1::ListResponse, Failure> {
        if request.lease {
            let none = || Failure::new(Reason::SessionRequired, "names are leased for a session: begin one");
            return self.lease_names(caller.holder.ok_or_else(none)?, &request.prefix, most);
        }
        let size = match request.page_size {
            0 => PAGE,
            size => size.min(PAGE_MAX),
        };
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(TensorName::new(token).map_err(|_| {
                Failure::new(Reason::InvalidArgument, "this is not a page token of List; begin without one")
            })?),
        };
        let names = self.store.list(&request.prefix, after.as_ref(), size as usize + 1);
        let total = names.len();
        let (mut entries, mut bytes) = (Vec::with_capacity(total), 0);
        for (name, known) in names.into_iter().take(size as usize) {
            let entry = v1::Listed { name: name.to_string(), description: Some(known.into()), lease: None };
            bytes += entry.encoded_len();
            entries.push(entry);
            if bytes > PAGE_BYTES_MAX {
                break;
            }
        }
        let more = entries.len() < total;
        let next_page_token = entries.last().filter(|_| more).map(|e| e.name.clone()).unwrap_or_default();
        Ok(v1::ListResponse { entries, next_page_token })
    }
}

/// Result of a description for a peer: who holds what here is not told to it.
pub(super) fn inquired_result(outcome: Result<v1::Description, Failure>) -> v1::DescribeResult {
    describe_result(outcome.map_err(Failure::for_peer))
}

/// A description or why there is none, as the wire has it.
pub(super) fn describe_result(outcome: Result<v1::Description, Failure>) -> v1::DescribeResult {
    use v1::describe_result::Outcome;
    let outcome = match outcome {
        Ok(description) => Outcome::Description(description),
        Err(failure) => Outcome::Failure((&failure).into()),
    };
    v1::DescribeResult { outcome: Some(outcome) }
}
