//! Copies out of the GPU memory of other peers: a peer is asked to make one, and makes it when it is asked.
//!
//! ```text
//!   reader's sidecar: Pull or map --> NO_GPU_PROCESS --> Inquire { stage } ---> owner: as for a reader of its own
//!                     the same again <------------------ when the copy is there, or why not
//! ```
//! A copy that is there already is found by the first question. Who asks has its deadline, and withdraws what it does not want.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::TensorId;

use super::Then;
use crate::cancel::Cancel;
use crate::clock;
use crate::exchange::describe::inquired_result;
use crate::exchange::fetch::Fetch;
use crate::exchange::gather::Place;
use crate::exchange::lookup::there;
use crate::exchange::target::{Meant, target_of};
use crate::exchange::waits::Owner;
use crate::exchange::{Exchange, Taken};
use crate::peer::PeerKey;
use crate::store::{OWN, copy_dropped};

/// The longest that a peer may let us wait for a copy.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

// === impl Exchange ===

impl Exchange {
    /// Copies a tensor of ours out of GPU memory for a peer, which then asks for its bytes.
    pub(in crate::exchange) fn stage_for(
        &self,
        from: &PeerKey,
        inquire: v1::Inquire,
        gone: &Cancel,
        reply: Box<dyn FnOnce(v1::Inquired) + Send>,
    ) {
        let Some(exchange) = self.own.upgrade() else { return };
        let answer = |result| v1::Inquired { results: vec![inquired_result(result)] };
        let mut targets = inquire.targets.into_iter();
        let (target, rest) = (targets.next(), targets.len());
        let meant = match target.filter(|_| rest == 0) {
            Some(target) => self.meant(target),
            None => {
                let message = format!("{} tensors to be copied out at once; one at a time", rest + 1);
                return reply(v1::Inquired {
                    results: (0..=rest)
                        .map(|_| inquired_result(Err(Failure::new(Reason::InvalidArgument, message.clone()))))
                        .collect(),
                });
            }
        };
        let known = self.known_now(meant.as_ref());
        let (Ok(Meant::Here(id, _)), Ok(_)) = (&meant, &known) else { return reply(answer(known)) };
        // Held in our own name, so that it lives until the copy is there.
        let taken = match self.store.lease(OWN, None, TensorId(id.0)) {
            Ok(taken) => taken,
            Err(failure) => return reply(answer(Err(failure))),
        };
        let until = Instant::now() + Duration::from_millis(inquire.wait_ms).min(WAIT_MAX);
        let tensor = Arc::clone(&taken.tensor);
        let then: Then = Box::new(move |exchange, outcome| {
            exchange.untake(OWN, &taken);
            reply(answer(outcome.and(known)));
        });
        exchange.staged(&tensor, Owner::Peer(from.name.clone()), until, gone, then);
    }

    /// Has a peer copy a tensor of its own out of GPU memory, then begins the fetch anew.
    pub(in crate::exchange) fn stage_far(self: &Arc<Self>, mut fetch: Fetch, place: Place<Taken>) {
        let why = self.not_on_gpu(&fetch);
        fetch.staged = Some(why);
        if fetch.terms.require.zero_copy {
            let why = format!(
                "the tensor lies in GPU memory of another peer, and to read it here it is copied ({why}); map it on its GPU, or do \
                 without zero_copy"
            );
            return place.put(Err(Failure::new(Reason::RequirementNotMet, why)));
        }
        let peers = match self.peers_or_fail() {
            Ok(peers) => peers,
            Err(failure) => return place.put(Err(failure)),
        };
        let (reference, deadline) = (fetch.reference.clone(), fetch.terms.deadline);
        let wait_ms = clock::millis(deadline.saturating_duration_since(Instant::now())).max(1);
        let inquire = v1::Inquire {
            targets: vec![target_of(&reference)],
            wait_ms,
            stage: true,
            ..v1::Inquire::default()
        };
        let (after, cancel) = (Arc::clone(self), fetch.terms.caller.cancel.clone());
        let done = move |outcome: Result<v1::Inquired, Failure>| {
            let first = outcome.and_then(|r| there(r.results.into_iter().next().unwrap_or_default()));
            match first {
                Ok(_) => after.begin_again(fetch, place),
                Err(failure) => place.put(Err(failure)),
            }
        };
        let call = peers.inquire(reference.peer(), Some(reference.incarnation()), inquire, deadline, done);
        cancel.on_cancel(Arc::new(move || call.cancel()));
    }
}

impl Fetch {
    /// Returns whether its owner is to be asked for a copy out of GPU memory, for this is why it did not come.
    pub(in crate::exchange) fn is_to_be_staged(&self, failure: &Failure) -> bool {
        failure.reason == Reason::NoGpuProcess && self.staged.is_none()
    }

    /// Failure that its caller is told. Bytes that are in GPU memory alone, after its owner said that they are copied out: the copy
    /// is gone again.
    pub(in crate::exchange) fn told(&self, failure: &Failure) -> Failure {
        match failure.reason == Reason::NoGpuProcess && self.staged.is_some() {
            true => copy_dropped(),
            false => failure.clone(),
        }
    }
}
