//! Lending: what peers of this node are told of our copies of others' tensors, and how they get them. Called on reader
//! threads, so nothing here waits. The other side of it is in `neighbours`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::reference::Reference;

use super::describe::inquired_result;
use super::fetch::{Fetch, Fetching, Waiting};
use super::neighbours::CopyStatus;
use super::target::Meant;
use super::transfer::is_of;
use super::{Exchange, serve};
use crate::cancel::Cancel;
use crate::peer::{AskedLoan, PeerKey, RelaySource};
use crate::store::Tensor;

/// Stage of a fetch of a whole tensor, for the neighbours.
#[derive(Debug, Default)]
pub(super) enum CopyStage {
    /// Nothing that they could wait for.
    #[default]
    Alone,
    /// Asking the neighbours; these have asked us meanwhile, and go first.
    Asking(Vec<PeerKey>),
    /// Coming into our memory.
    Coming,
}

/// Number of tensors that are waited for at neighbours.
#[derive(Debug, Default)]
pub(super) struct Waits(Arc<AtomicUsize>);

/// Permit of one wait, until it is dropped.
#[derive(Debug)]
pub(super) struct WaitPermit(Arc<AtomicUsize>);

/// A peer of this node that waits for our copy.
pub(super) struct CopyWaiter {
    gone: Cancel,
    reply: Box<dyn FnOnce(bool) + Send>,
}

// === impl Waits ===

impl Waits {
    /// Enters a further one, if there are fewer than so many.
    pub(super) fn enter(&self, most: usize) -> Option<WaitPermit> {
        let permit = WaitPermit(Arc::clone(&self.0));
        // Counted by the permit's drop in either case.
        (self.0.fetch_add(1, Ordering::Relaxed) < most).then_some(permit)
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl CopyStage ===

impl CopyStage {
    /// Peers that go first.
    pub(super) fn ahead(&self) -> &[PeerKey] {
        match self {
            Self::Asking(ahead) => ahead,
            Self::Alone | Self::Coming => &[],
        }
    }

    /// Word that a neighbour is told. Of two that ask each other the one whose name comes first goes first: it is told
    /// that there is nothing, and the other one that we ask.
    pub(super) fn word(&mut self, me: &PeerName, asker: &PeerKey) -> CopyStatus {
        match self {
            Self::Alone => CopyStatus::No,
            Self::Coming => CopyStatus::Coming,
            Self::Asking(_) if *me < asker.name => CopyStatus::Asking,
            Self::Asking(ahead) => {
                if !ahead.contains(asker) {
                    ahead.push(asker.clone());
                }
                CopyStatus::No
            }
        }
    }
}

// === impl CopyWaiter ===

impl CopyWaiter {
    /// Tells whether our copy can be mapped now. Called without locks.
    pub(super) fn tell(self, here: bool) {
        (self.reply)(here);
    }
}

// === impl Exchange ===

impl Exchange {
    /// True if anybody of this pod waits for a tensor that is being fetched.
    pub(super) fn is_wanted(&self, reference: &Reference) -> bool {
        self.fetches.lock().get(reference).is_some_and(|fetching| !fetching.waiting.is_empty())
    }

    /// Changes what a fetch is to the neighbours. Those who waited for it hear that they need not, where they need not.
    pub(super) fn stage<T>(
        &self,
        reference: &Reference,
        decide: impl FnOnce(&CopyStage) -> (T, CopyStage),
    ) -> T {
        let (decided, left) = {
            let mut fetches = self.fetches.lock();
            // One that is over has no neighbours any more.
            let Some(fetching) = fetches.get_mut(reference) else { return decide(&CopyStage::Alone).0 };
            let (decided, stage) = decide(&fetching.stage);
            fetching.stage = stage;
            let left = match fetching.stage {
                CopyStage::Alone => std::mem::take(&mut fetching.borrowers),
                CopyStage::Asking(_) | CopyStage::Coming => Vec::new(),
            };
            (decided, left)
        };
        left.into_iter().for_each(|borrower| borrower.tell(false));
        decided
    }

    /// A fetch is over: neighbours who wait for it hear whether they can map it here, and those of this pod are given back.
    pub(super) fn end_fetch(&self, reference: &Reference, here: bool) -> Vec<Waiting> {
        let Fetching { mut waiting, borrowers, on_gpu, .. } =
            self.fetches.lock().remove(reference).unwrap_or_default();
        waiting.iter_mut().for_each(|waiting| waiting.fetch.gpu_asked |= on_gpu);
        borrowers.into_iter().for_each(|borrower| borrower.tell(here));
        waiting
    }

    /// A fetch goes on in another way: what was begun before is not what its last caller would end.
    pub(super) fn redirect(&self, fetch: &Fetch) {
        if let Some(fetching) = self.fetches.lock().get_mut(&fetch.reference) {
            fetching.turn = fetch.turn;
        }
    }

    /// Answers what a neighbour asks of copies; later where it waits for one.
    pub(super) fn copies(
        &self,
        from: &PeerKey,
        inquire: v1::Inquire,
        gone: Cancel,
        reply: Box<dyn FnOnce(v1::Inquired) + Send>,
    ) {
        let v1::Inquire { targets, wait_ms, .. } = inquire;
        let wanted: Vec<_> = targets.into_iter().map(|target| self.of_others(target)).collect();
        if let [Ok(reference)] = wanted.as_slice()
            && wait_ms > 0
        {
            let asked = reference.clone();
            let later = move |here| {
                reply(answer(vec![found(&asked, if here { CopyStatus::Here } else { CopyStatus::No })]));
            };
            let borrower = CopyWaiter { gone, reply: Box::new(later) };
            if let Err((word, borrower)) = self.wait_here(from, reference, borrower) {
                borrower.tell(word == CopyStatus::Here);
            }
            return;
        }
        let found = |wanted: Result<Reference, Failure>| {
            wanted.and_then(|reference| found(&reference, self.word_on(from, &reference)))
        };
        reply(answer(wanted.into_iter().map(found).collect()));
    }

    /// Gives our copy of another peer's tensor to a neighbour.
    pub(super) fn lent_to(&self, from: &PeerKey, asked: &AskedLoan) -> Result<RelaySource, Failure> {
        self.may_leave(from, false)?;
        let AskedLoan { owner, id, bytes } = asked;
        if !self.settings.routes.may_share() {
            let message = "the policy of this sidecar shares no memory with other pods";
            return Err(Failure::new(Reason::Unsupported, message));
        }
        let not_here = || {
            let message = format!("no copy of tensor {id} of {} is here", owner.name);
            Failure::new(Reason::NotFound, message).with("peer", &owner.name)
        };
        let copy = |holder| {
            let taken = self.store.lease_copy_of(holder, &owner.name, owner.incarnation, *id);
            taken.ok_or_else(not_here)?
        };
        let (holder, taken) = self.lease_for(from, copy)?;
        let served = serve::lent(&taken.tensor, *bytes);
        if served.is_err() {
            self.untake(holder, &taken);
        }
        Ok(RelaySource { served: served?, leased: Some(taken.id.0) })
    }

    /// Lets a neighbour wait for a tensor that is on its way; else it is given back with what there is to say.
    fn wait_here(
        &self,
        from: &PeerKey,
        reference: &Reference,
        borrower: CopyWaiter,
    ) -> Result<(), (CopyStatus, CopyWaiter)> {
        let me = &self.me().peer;
        {
            let mut fetches = self.fetches.lock();
            if let Some(fetching) = fetches.get_mut(reference)
                && matches!(fetching.stage.word(me, from), CopyStatus::Coming | CopyStatus::Asking)
                && !self.gate.is_closed()
            {
                fetching.borrowers.retain(|other| !other.gone.is_cancelled());
                fetching.borrowers.push(borrower);
                return Ok(());
            }
        }
        Err((self.word_on(from, reference), borrower))
    }

    /// Word that there is to say of a copy now.
    fn word_on(&self, from: &PeerKey, reference: &Reference) -> CopyStatus {
        // Who ends lends nothing new, nor who may not share memory.
        if self.gate.is_closed() || !self.settings.routes.may_share() {
            return CopyStatus::No;
        }
        let coming = {
            let mut fetches = self.fetches.lock();
            fetches
                .get_mut(reference)
                .map_or(CopyStatus::No, |fetching| fetching.stage.word(&self.me().peer, from))
        };
        // Behind the look at what is coming: what is here now was coming before.
        let is_it = |tensor: Arc<Tensor>| !tensor.block.is_foreign() && is_of(reference, &tensor).is_ok();
        let is_ours = |id| self.store.sealed(None, id).is_ok_and(is_it);
        if self.store.copy_of(reference).is_some_and(is_ours) { CopyStatus::Here } else { coming }
    }

    /// A target that must be the tensor of another peer.
    fn of_others(&self, target: v1::Target) -> Result<Reference, Failure> {
        match self.meant(target)? {
            Meant::There(reference) => Ok(reference),
            Meant::Here(..) | Meant::Named(..) => {
                let message = "copies are asked for by the references of other peers' tensors";
                Err(Failure::new(Reason::InvalidArgument, message))
            }
        }
    }
}

fn answer(results: Vec<Result<v1::Description, Failure>>) -> v1::Inquired {
    v1::Inquired { results: results.into_iter().map(inquired_result).collect() }
}

fn found(reference: &Reference, word: CopyStatus) -> Result<v1::Description, Failure> {
    let description =
        |here| v1::Description { reference: reference.encode(), here, ..v1::Description::default() };
    match word {
        CopyStatus::Here => Ok(description(true)),
        CopyStatus::Coming => Ok(description(false)),
        CopyStatus::Asking => {
            Err(Failure::new(Reason::NotSealed, format!("whether to bring {reference} here is being asked")))
        }
        CopyStatus::No => Err(Failure::new(Reason::NotFound, format!("no copy of {reference} is here"))),
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::Incarnation;

    use super::*;

    fn peer(name: &str) -> PeerKey {
        PeerKey { name: name.parse().unwrap(), incarnation: Incarnation(1) }
    }

    #[test]
    fn so_many_wait_and_no_more_until_one_has_ended() {
        let waits = Waits::default();
        let both = [waits.enter(2), waits.enter(2)];
        assert!(both.iter().all(Option::is_some) && waits.enter(2).is_none() && waits.enter(2).is_none());
        drop(both);
        assert!(waits.enter(1).is_some());
    }

    #[test]
    fn of_two_that_ask_each_other_one_waits_and_one_goes_on_whoever_was_first() {
        let (a, b) = (peer("a"), peer("b"));
        let mut here = CopyStage::Asking(Vec::new());
        assert_eq!(here.word(&a.name, &b), CopyStatus::Asking);
        assert!(here.ahead().is_empty());
        let mut there = CopyStage::Asking(Vec::new());
        for _ in 0..2 {
            assert_eq!(there.word(&b.name, &a), CopyStatus::No);
        }
        assert_eq!(
            there.ahead(),
            std::slice::from_ref(&a),
            "and waits for it, though it heard before that there is nothing"
        );
        assert_eq!(CopyStage::Alone.word(&a.name, &b), CopyStatus::No);
        assert_eq!(CopyStage::Coming.word(&b.name, &a), CopyStatus::Coming);
    }
}
