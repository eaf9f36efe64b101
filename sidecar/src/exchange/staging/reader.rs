//! Readers that wait for a copy: an entry in the waits, and a place in the order of their tensor.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tensorlane_proto::device::Device;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{TensorId, TensorName};
use tensorlane_proto::selection::Selection;

use super::table::Wanted;
use super::{Then, failure};
use crate::cancel::Cancel;
use crate::exchange::acquire::Terms;
use crate::exchange::fetch::Fetch;
use crate::exchange::gather::{Gather, Place};
use crate::exchange::lookup::There;
use crate::exchange::waits::{Key, Owner, WaitId, Waiter};
use crate::exchange::{Exchange, Taken};
use crate::gate;
use crate::store::Tensor;

/// Somebody who waits until a tensor is in host memory.
pub(super) struct Reader {
    exchange: Arc<Exchange>,
    tensor: TensorId,
    cancel: Cancel,
    state: Mutex<State>,
}

struct State {
    entry: Option<WaitId>,
    /// Number in the order of the tensor.
    place: Option<u64>,
    then: Option<Then>,
}

// === impl Exchange ===

impl Exchange {
    /// The selected part of a leased tensor in GPU memory, in host memory. The lease goes over to the copy.
    pub(in crate::exchange) fn select_staged(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        taken: Taken,
        selection: &Selection,
        done: Box<dyn FnOnce(Result<Taken, Failure>) + Send>,
    ) {
        if terms.require.zero_copy {
            self.untake(terms.by, &taken);
            let why = "the tensor lies in GPU memory, and to read it in host memory it is copied (host_reader); map it on its GPU, or do \
                       without zero_copy";
            return done(Err(Failure::new(Reason::RequirementNotMet, why)));
        }
        if taken.tensor.gpu.as_ref().is_some_and(|gpu| !gpu.is_own()) {
            return self.bring_staged(terms, taken, selection, done);
        }
        let tensor = Arc::clone(&taken.tensor);
        let (own, selection) = (Arc::clone(terms), selection.clone());
        let then: Then = Box::new(move |exchange, outcome| {
            let copy = outcome.and_then(|()| exchange.store.lease_staged(own.by, &taken.tensor));
            exchange.untake(own.by, &taken);
            match copy {
                Ok(copy) => exchange.select(&own, copy, &selection, done),
                Err(failure) => done(Err(failure)),
            }
        });
        let owner = Owner::Client(terms.caller.holder);
        self.staged(&tensor, owner, terms.deadline, &terms.caller.cancel, then);
    }

    /// The selected part of another peer's tensor whose GPU memory is leased here, as bytes: its owner copies them out. The lease is
    /// given back then.
    fn bring_staged(
        self: &Arc<Self>,
        terms: &Arc<Terms>,
        taken: Taken,
        selection: &Selection,
        done: Box<dyn FnOnce(Result<Taken, Failure>) + Send>,
    ) {
        let fetch = Fetch::new(taken.tensor.reference.clone(), selection.clone(), Arc::clone(terms));
        let (exchange, by) = (Arc::clone(self), terms.by);
        let gather = Gather::one(move |outcome| {
            exchange.untake(by, &taken);
            done(outcome);
        });
        self.begin_again(fetch, Place::of(&gather, 0));
        gather.arm();
    }

    /// Goes on when a tensor in GPU memory has a copy in host memory, or will not have one. The caller holds the tensor meanwhile.
    pub(in crate::exchange) fn staged(
        self: &Arc<Self>,
        tensor: &Tensor,
        owner: Owner,
        until: Instant,
        cancel: &Cancel,
        then: Then,
    ) {
        let Device::Cuda { uuid: Some(gpu), .. } = tensor.descriptor.device else {
            return then(self, Ok(()));
        };
        if self.store.copy_of(&tensor.reference).is_some() {
            return then(self, Ok(()));
        }
        let state = State { entry: None, place: None, then: Some(then) };
        let reader = Arc::new(Reader {
            exchange: Arc::clone(self),
            tensor: tensor.id,
            cancel: cancel.clone(),
            state: Mutex::new(state),
        });
        if let Err(failure) = reader.enter(owner, until, gpu, tensor.descriptor.layout.bytes()) {
            return reader.finish(Err(failure));
        }
        let leaving = Arc::downgrade(&reader);
        cancel.on_cancel(Arc::new(move || {
            if let Some(reader) = leaving.upgrade() {
                reader.leave();
            }
        }));
        self.give_orders();
    }
}

// === impl Reader ===

impl Reader {
    pub(super) fn tensor(&self) -> TensorId {
        self.tensor
    }

    fn enter(
        self: &Arc<Self>,
        owner: Owner,
        until: Instant,
        gpu: [u8; 16],
        bytes: u64,
    ) -> Result<(), Failure> {
        let exchange = &self.exchange;
        let waiter = Arc::clone(self) as Arc<dyn Waiter>;
        // Under its lock: whoever ends it at once finds all that is to be taken back.
        let mut state = self.state.lock();
        state.entry = Some(exchange.enter_staging(owner, until, waiter)?);
        let wanted = Wanted { tensor: self.tensor, gpu, bytes, until };
        let place = exchange.staging.table.lock().want(wanted, Arc::clone(self));
        state.place = Some(place.map_err(|why| failure(self.tensor, &why))?);
        drop(state);
        // After it: a clock that finds nothing to look after stops.
        exchange.start_clock()
    }

    /// Goes on, once.
    pub(super) fn finish(&self, outcome: Result<(), Failure>) {
        let State { entry, place, then } = {
            let mut state = self.state.lock();
            State { entry: state.entry.take(), place: state.place.take(), then: state.then.take() }
        };
        let exchange = &self.exchange;
        if let Some(entry) = entry {
            exchange.waits.remove(entry);
        }
        if let Some(place) = place {
            let left = exchange.staging.table.lock().leave(self.tensor, place);
            exchange.settle_staging(left);
        }
        if let Some(then) = then {
            then(exchange, outcome);
        }
    }
}

impl Waiter for Reader {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn due(&self) {
        let id = self.tensor.0;
        let message =
            format!("the tensor {id} was not copied out of GPU memory in time; give the call more time");
        self.finish(Err(Failure::new(Reason::DeadlineExceeded, message)));
    }

    fn leave(&self) {
        let failure = match self.exchange.gate.is_closed() && !self.cancel.is_cancelled() {
            true => gate::draining(),
            false => Failure::new(Reason::Cancelled, "the caller gave up"),
        };
        self.finish(Err(failure));
    }
}
