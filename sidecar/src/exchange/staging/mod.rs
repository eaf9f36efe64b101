//! Staging: tensors in GPU memory for those who cannot map it. A process that reaches the GPU copies one out, once, into a block of
//! this sidecar, however many want it.
//!
//! ```text
//!   reader: the lease of a tensor in GPU memory          stager: one thread of a process that reaches GPUs
//!     |  a copy is here? ----------> lease that             |  Stage: waits for an order
//!     v                                                     v
//!   an entry in `waits` --> Table: one order a tensor --> room in the stager's segment --> order
//!                             ^   progress within 2 s (first 5), or the next stager  <--- reports
//!                             '--- written: the block is entered as a copy, and leased to all who wait
//! ```
//! The copy is an entry of its own, as those of other peers' tensors are: idle it makes room for others, and it goes when its tensor
//! does. The sidecar never looks into GPU memory, and no thread waits for a copy.

mod far;
mod poll;
mod reader;
mod table;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_memory::{Block, Owner as Writer, Purpose};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, SessionId, TensorId, TensorName};

use self::poll::Poll;
use self::reader::Reader;
use self::table::{FIRST, Given, Left, Limits, STALL, Table, Wanted, Why};
use super::lookup::There;
use super::waits::{Key, Owner, WaitId, Waiter, cost};
use super::{Done, Exchange, Queueing};
use crate::metrics::label::StagingEnd;
use crate::store::{AllocRequest, Claimant, OWN, no_gpu_process, whole};

/// Tensors that are copied out or wait for that, and readers of each. A reader takes a kilobyte.
const LIMITS: Limits = Limits { orders: 1_024, readers: 4_096 };
/// Interval of looks for sessions that stand still, while anything is under way.
const TICK: Duration = Duration::from_millis(250);
/// Time by which the wait for room is over before the deadline of the last reader; half of what that has, if it has less.
const TOLD_BEFORE: Duration = Duration::from_millis(100);

/// Action when a copy is here, or will not be.
pub(super) type Then = Box<dyn FnOnce(&Arc<Exchange>, Result<(), Failure>) + Send>;

/// All that is copied out of GPU memory, and the sessions that do it.
pub(super) struct Staging {
    table: Mutex<Table<Arc<Reader>, Poll, Block>>,
    /// Set while the clock is running.
    clock: Mutex<bool>,
}

/// Looks after sessions that stand still, for as long as anything is under way.
struct Clock {
    exchange: Weak<Exchange>,
    entry: Mutex<Option<WaitId>>,
}

impl Default for Staging {
    fn default() -> Self {
        Self { table: Mutex::new(Table::new(LIMITS)), clock: Mutex::default() }
    }
}

// === impl Exchange ===

impl Exchange {
    /// Numbers of tensors that wait to be copied out of GPU memory, and of those that are being copied.
    pub fn staging(&self) -> (u64, u64) {
        self.staging.table.lock().counts()
    }

    /// Gives orders to the sessions that wait for some.
    fn give_orders(self: &Arc<Self>) {
        loop {
            let given = self.staging.table.lock().give();
            match given {
                Some(given) => self.make_room(given),
                None => return,
            }
        }
    }

    fn make_room(self: &Arc<Self>, given: Given<Poll>) {
        let Given { session, wanted, .. } = given;
        let Some(link) = self.store.link(session) else {
            let gone = Failure::new(Reason::Cancelled, "the session has ended");
            return self.no_room(given, gone);
        };
        if let Some(block) = self.store.allocate_now(Writer::Session(session.0), Purpose::Pull, wanted.bytes)
        {
            return self.order(given, block);
        }
        let (after, cancel) = (Arc::clone(self), given.cancel.clone());
        let done = move |outcome: Result<Block, Failure>| match outcome {
            Ok(block) => after.order(given, block),
            Err(failure) => after.no_room(given, failure),
        };
        // Before its readers give up, so that they hear that it was room that was missing.
        let left = wanted.until.saturating_duration_since(Instant::now());
        let deadline = wanted.until.checked_sub(TOLD_BEFORE.min(left / 2)).unwrap_or(wanted.until);
        let (claimant, purpose) = (Claimant::Holder(Some(Holder::Session(session))), Purpose::Pull);
        let queueing =
            Queueing { claimant: claimant.clone(), purpose, deadline, cancel: Some(cancel.clone()) };
        self.on_waiter(queueing, Box::new(done), move |exchange| {
            let bytes = wanted.bytes;
            exchange.store.allocate(&AllocRequest {
                writer: Some(&link),
                claimant: &claimant,
                purpose,
                bytes,
                deadline,
                cancel: &cancel,
            })
        });
    }

    /// Tells a session of its order, unless nobody wants it any more.
    fn order(self: &Arc<Self>, given: Given<Poll>, block: Block) {
        let Given { number, session, wanted, poll, .. } = given;
        let location = whole(&block);
        let roomed = self.staging.table.lock().roomed(session, number, block, Instant::now());
        let order = roomed.is_ok().then_some(v1::StageOrder {
            order: number,
            id: wanted.tensor.0,
            location: Some(location),
        });
        drop(roomed);
        poll.answer(Ok(v1::StageResponse { order, wanted: false }));
    }

    fn no_room(self: &Arc<Self>, given: Given<Poll>, failure: Failure) {
        let Given { number, session, poll, .. } = given;
        // A client that did not map its segment, could not, or is gone. The rest is ours.
        let theirs =
            matches!(failure.reason, Reason::DeadlineExceeded | Reason::Cancelled | Reason::Internal);
        let why = match failure.reason {
            Reason::DeadlineExceeded => {
                self.stalled(session);
                Why::Stalled
            }
            Reason::Cancelled => Why::Nobody,
            _ => Why::Failed(failure),
        };
        let left = self.staging.table.lock().unroomed(session, number, why, theirs, Instant::now());
        poll.answer(Ok(v1::StageResponse::default()));
        self.settle_staging(left);
    }

    /// A session has copied a tensor out: everyone who waits gets theirs.
    fn staged_in(self: &Arc<Self>, wanted: Wanted, block: Block) {
        let Wanted { tensor, bytes, .. } = wanted;
        let sealed = block.mark_sealed().map_err(|e| Failure::new(Reason::Internal, e.to_string()));
        let entered = sealed.and_then(|()| self.store.stage_in(tensor, block));
        // Whoever comes from now on finds the copy.
        let (readers, cancel) = self.staging.table.lock().finish(tensor);
        if let Some(cancel) = cancel {
            cancel.cancel();
        }
        let outcome = entered.as_ref().map(drop).map_err(Clone::clone);
        match &outcome {
            Ok(()) => self.metrics.staging.done(bytes),
            Err(failure) => {
                tracing::warn!(id = tensor.0, %failure, "a copy out of GPU memory was not entered");
                self.metrics.staging.ended(StagingEnd::Failed);
            }
        }
        readers.iter().for_each(|reader| reader.finish(outcome.clone()));
        // Until here it makes no room for others.
        if let Ok(copy) = entered {
            self.store.release(OWN, &[copy.0], &[]);
        }
    }

    /// Does what a change of the table leaves to do; called without its lock.
    fn settle_staging(self: &Arc<Self>, left: Left<Arc<Reader>, Block>) {
        let Left { failed, blocks, cancels, stalled } = left;
        drop(blocks);
        cancels.iter().for_each(crate::cancel::Cancel::cancel);
        stalled.into_iter().for_each(|session| self.stalled(session));
        for failed in failed {
            for reader in failed.readers {
                reader.finish(Err(failure(reader.tensor(), &failed.why)));
            }
        }
        self.give_orders();
    }

    fn stalled(&self, session: SessionId) {
        tracing::warn!(
            session = session.0,
            "STAGER_STALLED: a process does not go on with a copy out of GPU memory"
        );
        self.metrics.staging.ended(StagingEnd::Stalled);
    }

    /// A session is over.
    pub(super) fn staging_of_session_ended(&self, session: SessionId) {
        let (left, poll) = self.staging.table.lock().gone(session, Instant::now());
        let Some(exchange) = self.own.upgrade() else { return };
        if !left.blocks.is_empty() {
            self.metrics.staging.ended(StagingEnd::Gone);
        }
        if let Some(poll) = poll {
            poll.answer(Err(Failure::new(Reason::Cancelled, "the session has ended")));
        }
        exchange.settle_staging(left);
    }

    /// Has somebody look after sessions that stand still.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED, DRAINING.
    fn start_clock(self: &Arc<Self>) -> Result<(), Failure> {
        let mut running = self.staging.clock.lock();
        if !*running {
            let clock = Clock { exchange: Arc::downgrade(self), entry: Mutex::default() };
            Arc::new(clock).wind(self)?;
            *running = true;
        }
        Ok(())
    }

    /// An entry in the waits that is told at its deadline.
    fn enter_staging(
        &self,
        owner: Owner,
        until: Instant,
        waiter: Arc<dyn Waiter>,
    ) -> Result<WaitId, Failure> {
        let entry = self.waits.enter(owner, cost(std::iter::empty()), until, waiter)?;
        match self.waits.wait(entry, Vec::new(), until) {
            Ok(()) => Ok(entry),
            Err(full) => {
                self.waits.remove(entry);
                Err(full)
            }
        }
    }
}

/// Failure that a reader is told.
fn failure(tensor: TensorId, why: &Why) -> Failure {
    let id = tensor.0;
    match why {
        Why::Nobody => no_gpu_process(tensor),
        Why::Failed(failure) => failure.clone(),
        Why::Stalled => Failure::new(
            Reason::StagerStalled,
            format!(
                "the process that copies the tensor {id} out of GPU memory has not gone on for {} s, or not begun within {} s, \
                 and no other reaches that GPU; look whether it is stopped, and ask again",
                STALL.as_secs(),
                FIRST.as_secs()
            ),
        ),
        Why::Full(most) => Failure::new(
            Reason::LimitExceeded,
            format!(
                "{most} tensors, or readers of one, may wait for copies out of GPU memory; ask again later"
            ),
        )
        .with("limit", most),
    }
}

// === impl Clock ===

impl Clock {
    fn wind(self: &Arc<Self>, exchange: &Exchange) -> Result<(), Failure> {
        let mut entry = self.entry.lock();
        let waiter = Arc::clone(self) as Arc<dyn Waiter>;
        *entry = Some(exchange.waits.enter(
            // Without a bound: while there are orders, there is a clock.
            Owner::Sidecar,
            cost(std::iter::empty()),
            Instant::now() + TICK,
            waiter,
        )?);
        Ok(())
    }

    fn tick(&self) -> Option<()> {
        let exchange = self.exchange.upgrade()?;
        if let Some(entry) = self.entry.lock().take() {
            exchange.waits.remove(entry);
        }
        let left = exchange.staging.table.lock().tick(Instant::now());
        exchange.settle_staging(left);
        let mut running = exchange.staging.clock.lock();
        *running = false;
        if !exchange.staging.table.lock().is_idle() {
            let clock = Clock { exchange: Weak::clone(&self.exchange), entry: Mutex::default() };
            *running = Arc::new(clock).wind(&exchange).is_ok();
        }
        Some(())
    }
}

impl Waiter for Clock {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn due(&self) {
        self.tick();
    }

    fn leave(&self) {}
}

/// Takes an answer to Stage.
type Answer = Done<v1::StageResponse>;
