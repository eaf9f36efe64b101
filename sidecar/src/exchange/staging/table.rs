//! The table of staging: which tensors in GPU memory are wanted in host memory, by whom, and which session copies which. Pure; knows
//! no thread, clock, socket or store.
//!
//! ```text
//!   want ──> queued ──give──> making room ──roomed──> moving ──over──> (finished: all readers have it)
//!               ^                  │                    │
//!               '── the next one ──┴── stalled, failed, gone: that session is not asked again; none left: it fails
//!               '── again ─────────┴── it never heard of it (once), or no room by a deadline that is not the last any more
//! ```
//! A tensor has one order, however many want it, and a session one order at a time. Each time that an order is given it has another
//! number, so that nobody speaks for what was given to somebody else meanwhile. A session that stalled keeps its block until it
//! reports or is gone: it may still write there.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::ledger::{SessionId, TensorId};

use crate::cancel::Cancel;

/// Time without a further byte, or without a word, after which a session is not waited for.
pub(in crate::exchange) const STALL: Duration = Duration::from_secs(2);
/// Time until the first byte: the memory is opened, mapped and made known to the driver before.
pub(in crate::exchange) const FIRST: Duration = Duration::from_secs(5);

/// UUID of a GPU.
pub(in crate::exchange) type Gpu = [u8; 16];

/// Bounds on what is under way.
#[derive(Debug, Clone, Copy)]
pub(in crate::exchange) struct Limits {
    /// Tensors that are wanted at a time.
    pub(in crate::exchange) orders: usize,
    /// Readers that wait for one tensor.
    pub(in crate::exchange) readers: usize,
}

/// Reason for which a tensor is not copied out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::exchange) enum Why {
    /// No session reaches the GPU, or none is left that was not tried.
    Nobody,
    /// The last session that was asked stood still.
    Stalled,
    /// The last session that was asked says this, or there was no room.
    Failed(Failure),
    /// As many orders or readers as there may be are there.
    Full(usize),
}

/// A tensor that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::exchange) struct Wanted {
    pub(in crate::exchange) tensor: TensorId,
    pub(in crate::exchange) gpu: Gpu,
    pub(in crate::exchange) bytes: u64,
    /// Time until which its reader waits.
    pub(in crate::exchange) until: Instant,
}

/// Order that is given to a session, before it is told: room is to be made first.
pub(in crate::exchange) struct Given<P> {
    pub(in crate::exchange) number: u64,
    pub(in crate::exchange) session: SessionId,
    pub(in crate::exchange) wanted: Wanted,
    /// Raised when nobody wants it any more.
    pub(in crate::exchange) cancel: Cancel,
    pub(in crate::exchange) poll: P,
}

/// Order that comes to nothing, and who is to hear why.
#[derive(Debug)]
pub(in crate::exchange) struct Failed<R> {
    pub(in crate::exchange) readers: Vec<R>,
    pub(in crate::exchange) why: Why,
}

/// Rest that a change of the table leaves to do outside of its lock.
pub(in crate::exchange) struct Left<R, B> {
    pub(in crate::exchange) failed: Vec<Failed<R>>,
    /// Blocks that nobody writes any more, to be dropped.
    pub(in crate::exchange) blocks: Vec<B>,
    /// Calls to make room that nobody waits for.
    pub(in crate::exchange) cancels: Vec<Cancel>,
    /// Sessions that stood still.
    pub(in crate::exchange) stalled: Vec<SessionId>,
}

/// Fate of what a session says it has written.
pub(in crate::exchange) enum Written<R, B> {
    /// All of this tensor, in this block. Its order is under way until it is finished.
    Whole(Wanted, B),
    /// Nothing that is wanted of it.
    Unwanted(Left<R, B>),
}

struct Order<R> {
    wanted: Wanted,
    readers: Vec<(u64, R)>,
    /// Sessions that were asked and did not do.
    tried: Vec<SessionId>,
    /// Sessions that were asked and never heard of it. Each is asked once more.
    unheard: Vec<SessionId>,
    /// Session that has it, and the number that it was given by.
    given: Option<(SessionId, u64)>,
    /// Reason for which the last session did not do.
    last: Option<Why>,
}

struct Stager<P, B> {
    gpus: Vec<Gpu>,
    poll: Option<(u64, P)>,
    has: Option<Has<B>>,
    /// Time at which its last call was answered.
    answered: Instant,
}

/// Order that a session has, wanted or not.
struct Has<B> {
    number: u64,
    /// None where nobody waits for it from this session any more.
    tensor: Option<TensorId>,
    /// Deadline of its readers when it was given, up to which room is waited for.
    deadline: Instant,
    block: Option<B>,
    written: u64,
    /// Time at which it has stood still; none while room is made, which is not the session's doing.
    until: Option<Instant>,
    cancel: Cancel,
}

/// All orders and the sessions that carry them out; `R` is a reader, `P` a call that waits for an order, `B` a block.
pub(in crate::exchange) struct Table<R, P, B> {
    limits: Limits,
    orders: HashMap<TensorId, Order<R>>,
    /// Orders that nobody has, the oldest first.
    queue: VecDeque<TensorId>,
    stagers: HashMap<SessionId, Stager<P, B>>,
    last: u64,
}

// === impl Left ===

impl<R, B> Default for Left<R, B> {
    fn default() -> Self {
        Self { failed: Vec::new(), blocks: Vec::new(), cancels: Vec::new(), stalled: Vec::new() }
    }
}

// === impl Table ===

impl<R: Clone, P, B> Table<R, P, B> {
    pub(in crate::exchange) fn new(limits: Limits) -> Self {
        let (orders, queue, stagers) = (HashMap::new(), VecDeque::new(), HashMap::new());
        Self { limits, orders, queue, stagers, last: 0 }
    }

    /// Somebody wants a tensor; the number by which it leaves. `Nobody` and `Full` change nothing.
    pub(in crate::exchange) fn want(&mut self, wanted: Wanted, reader: R) -> Result<u64, Why> {
        let Limits { orders, readers } = self.limits;
        let number = self.last + 1;
        if let Some(order) = self.orders.get_mut(&wanted.tensor) {
            if order.readers.len() >= readers {
                return Err(Why::Full(readers));
            }
            order.wanted.until = order.wanted.until.max(wanted.until);
            order.readers.push((number, reader));
            self.last = number;
            return Ok(number);
        }
        if !self.stagers.values().any(|stager| stager.gpus.contains(&wanted.gpu)) {
            return Err(Why::Nobody);
        }
        if self.orders.len() >= orders {
            return Err(Why::Full(orders));
        }
        let (readers, tried, unheard) = (vec![(number, reader)], Vec::new(), Vec::new());
        let order = Order { wanted, readers, tried, unheard, given: None, last: None };
        self.orders.insert(wanted.tensor, order);
        self.queue.push_back(wanted.tensor);
        self.last = number;
        Ok(number)
    }

    /// A reader does not wait any more. The last one takes the order with it.
    pub(in crate::exchange) fn leave(&mut self, tensor: TensorId, number: u64) -> Left<R, B> {
        let mut left = Left::default();
        let Some(order) = self.orders.get_mut(&tensor) else { return left };
        order.readers.retain(|(known, _)| *known != number);
        if order.readers.is_empty() {
            self.remove(tensor, &mut left);
        }
        left
    }

    /// A session waits for an order, by a call of that number. What it had before is over, whatever it was: the call before it has
    /// said how, or it never heard of it. Of the latter it hears again, once.
    ///
    /// # Errors
    /// The call is given back where one of the session waits already.
    pub(in crate::exchange) fn poll(
        &mut self,
        session: SessionId,
        gpus: Vec<Gpu>,
        poll: (u64, P),
        now: Instant,
    ) -> Result<Left<R, B>, P> {
        let mut left = Left::default();
        if self.stagers.get(&session).is_some_and(|stager| stager.poll.is_some()) {
            return Err(poll.1);
        }
        self.give_unheard_back(session);
        self.end(session, &Why::Stalled, now, &mut left);
        let none = || Stager { gpus: Vec::new(), poll: None, has: None, answered: now };
        let stager = self.stagers.entry(session).or_insert_with(none);
        (stager.gpus, stager.poll) = (gpus, Some(poll));
        Ok(left)
    }

    /// A call that waits for an order is answered without one, if it still waits.
    pub(in crate::exchange) fn unpoll(&mut self, session: SessionId, number: u64, now: Instant) -> Option<P> {
        let stager = self.stagers.get_mut(&session)?;
        stager.answered = now;
        stager.poll.take_if(|(known, _)| *known == number).map(|(_, poll)| poll)
    }

    /// Takes the next order that can be given, with the call that waits for it.
    pub(in crate::exchange) fn give(&mut self) -> Option<Given<P>> {
        let found = self.queue.iter().enumerate().find_map(|(at, tensor)| {
            let order = self.orders.get(tensor)?;
            let mut free = self.stagers.iter().filter(|(session, stager)| {
                stager.poll.is_some() && stager.has.is_none() && order.may_ask(**session, &stager.gpus)
            });
            free.next().map(|(session, _)| (at, *tensor, *session))
        });
        let (at, tensor, session) = found?;
        let order = self.orders.get_mut(&tensor)?;
        let stager = self.stagers.get_mut(&session)?;
        let (_, poll) = stager.poll.take()?;
        self.queue.remove(at);
        self.last += 1;
        let (number, cancel) = (self.last, Cancel::default());
        order.given = Some((session, number));
        let has = Has {
            number,
            tensor: Some(tensor),
            deadline: order.wanted.until,
            block: None,
            written: 0,
            until: None,
            cancel: cancel.clone(),
        };
        stager.has = Some(has);
        Some(Given { number, session, wanted: order.wanted, cancel, poll })
    }

    /// Room is there for an order that was given. The block comes back where nobody wants it any more: then the session is free, and
    /// is not to be told of it.
    pub(in crate::exchange) fn roomed(
        &mut self,
        session: SessionId,
        number: u64,
        block: B,
        now: Instant,
    ) -> Result<(), B> {
        let Some(stager) = self.stagers.get_mut(&session) else { return Err(block) };
        match stager.has.as_mut().filter(|has| has.number == number) {
            Some(has) if has.tensor.is_some() => {
                (has.block, has.until) = (Some(block), Some(now + FIRST));
                Ok(())
            }
            Some(_) => {
                (stager.has, stager.answered) = (None, now);
                Err(block)
            }
            None => Err(block),
        }
    }

    /// No room is to be had for an order that was given, and the session never hears of it. `theirs`: because of that session.
    /// Otherwise the order goes on where a reader has come meanwhile that waits for longer.
    pub(in crate::exchange) fn unroomed(
        &mut self,
        session: SessionId,
        number: u64,
        why: Why,
        theirs: bool,
        now: Instant,
    ) -> Left<R, B> {
        let mut left = Left::default();
        let stager = self.stagers.get_mut(&session);
        let Some(has) = stager.and_then(|stager| stager.has.take_if(|has| has.number == number)) else {
            return left;
        };
        if let Some(stager) = self.stagers.get_mut(&session) {
            stager.answered = now;
        }
        let Some(tensor) = has.tensor else { return left };
        if theirs {
            self.next(tensor, (session, number), why, &mut left);
        } else if let Some(order) = self.given(tensor, (session, number)) {
            match order.wanted.until > has.deadline {
                true => self.requeue(tensor),
                false => self.fail(tensor, why, &mut left),
            }
        }
        left
    }

    /// A session says how far it is. Whether that is still wanted of it.
    pub(in crate::exchange) fn progress(
        &mut self,
        session: SessionId,
        number: u64,
        written: u64,
        now: Instant,
    ) -> bool {
        let stager = self.stagers.get_mut(&session);
        let has = stager.and_then(|stager| stager.has.as_mut()).filter(|has| has.number == number);
        let Some(has) = has else { return false };
        if written > has.written {
            has.written = written;
            has.until = has.until.map(|_| now + STALL);
        }
        has.tensor.is_some()
    }

    /// A session says that it has written all of it, and is free.
    pub(in crate::exchange) fn written(
        &mut self,
        session: SessionId,
        number: u64,
        bytes: u64,
        now: Instant,
    ) -> Written<R, B> {
        let has = self.stagers.get_mut(&session).and_then(|stager| stager.has.as_mut());
        let Some(has) = has.filter(|has| has.number == number) else {
            return Written::Unwanted(Left::default());
        };
        let order = has.tensor.and_then(|tensor| self.orders.get(&tensor));
        let order = order.filter(|order| order.given == Some((session, number)));
        let whole = order.map(|order| order.wanted).filter(|wanted| wanted.bytes == bytes);
        if let Some(wanted) = whole
            && let Some(block) = has.block.take()
        {
            // What is still to be done with it is not the session's.
            has.tensor = None;
            let mut left = Left::default();
            self.end(session, &Why::Nobody, now, &mut left);
            return Written::Whole(wanted, block);
        }
        let mut left = Left::default();
        let message = format!("{bytes} bytes were said to be all of it, which they are not");
        let why = Why::Failed(Failure::new(Reason::StagingFailed, message));
        self.end(session, &why, now, &mut left);
        Written::Unwanted(left)
    }

    /// A session gave an order up. None where it has no such order.
    pub(in crate::exchange) fn gave_up(
        &mut self,
        session: SessionId,
        number: u64,
        why: &Failure,
        now: Instant,
    ) -> Option<Left<R, B>> {
        let has = self.stagers.get(&session)?.has.as_ref();
        has.filter(|has| has.number == number)?;
        let mut left = Left::default();
        self.end(session, &Why::Failed(why.clone()), now, &mut left);
        Some(left)
    }

    /// The tensor is there, or will not be: its order is over. Those who wait are given, and what ends the making of room for a
    /// session that has the order.
    pub(in crate::exchange) fn finish(&mut self, tensor: TensorId) -> (Vec<R>, Option<Cancel>) {
        let Some(order) = self.orders.remove(&tensor) else { return (Vec::new(), None) };
        self.queue.retain(|queued| *queued != tensor);
        let cancel = order.given.and_then(|given| self.forget(given));
        (order.readers.into_iter().map(|(_, reader)| reader).collect(), cancel)
    }

    /// A session is gone: its process has no map of its block any more that anyone else would get.
    pub(in crate::exchange) fn gone(&mut self, session: SessionId, now: Instant) -> (Left<R, B>, Option<P>) {
        let mut left = Left::default();
        self.end(session, &Why::Nobody, now, &mut left);
        let poll = self.stagers.remove(&session).and_then(|stager| stager.poll).map(|(_, poll)| poll);
        self.drop_hopeless(now, &mut left);
        (left, poll)
    }

    /// Time has passed: whoever stands still is not waited for, and what nobody can do fails.
    pub(in crate::exchange) fn tick(&mut self, now: Instant) -> Left<R, B> {
        let mut left = Left::default();
        let still = |has: &Has<B>| has.tensor.is_some() && has.until.is_some_and(|until| until <= now);
        let stalled: Vec<SessionId> = self
            .stagers
            .iter()
            .filter(|(_, stager)| stager.has.as_ref().is_some_and(still))
            .map(|(session, _)| *session)
            .collect();
        for session in stalled {
            // It may still write there: the block stays with it.
            let has = self.stagers.get_mut(&session).and_then(|stager| stager.has.as_mut());
            let Some(has) = has else { continue };
            let (tensor, number) = (has.tensor.take(), has.number);
            if let Some(tensor) = tensor {
                left.stalled.push(session);
                self.next(tensor, (session, number), Why::Stalled, &mut left);
            }
        }
        self.drop_hopeless(now, &mut left);
        left
    }

    /// Returns whether anything is under way.
    pub(in crate::exchange) fn is_idle(&self) -> bool {
        self.orders.is_empty()
    }

    /// Numbers of orders that wait for a session, and of those that one has.
    pub(in crate::exchange) fn counts(&self) -> (u64, u64) {
        let queued = self.queue.len() as u64;
        (queued, (self.orders.len() as u64).saturating_sub(queued))
    }

    /// Ends what a session has, which is free then.
    fn end(&mut self, session: SessionId, why: &Why, now: Instant, left: &mut Left<R, B>) {
        let Some(stager) = self.stagers.get_mut(&session) else { return };
        stager.answered = now;
        let Some(Has { number, tensor, block, cancel, .. }) = stager.has.take() else { return };
        left.blocks.extend(block);
        left.cancels.push(cancel);
        if let Some(tensor) = tensor {
            self.next(tensor, (session, number), why.clone(), left);
        }
    }

    /// An order that a session does not carry out goes to another one, if there is one.
    fn next(&mut self, tensor: TensorId, tried: (SessionId, u64), why: Why, left: &mut Left<R, B>) {
        let order = self.orders.get_mut(&tensor).filter(|order| order.given == Some(tried));
        let Some(order) = order else { return };
        order.tried.push(tried.0);
        order.given = None;
        order.last = Some(why.clone());
        match self.stagers.iter().any(|(session, stager)| order.may_ask(*session, &stager.gpus)) {
            true => self.queue.push_back(tensor),
            false => self.fail(tensor, why, left),
        }
    }

    /// The order of a tensor, if a session has it by this number.
    fn given(&mut self, tensor: TensorId, to: (SessionId, u64)) -> Option<&mut Order<R>> {
        self.orders.get_mut(&tensor).filter(|order| order.given == Some(to))
    }

    /// An order that was given waits again, before all others, for any session that may have it.
    fn requeue(&mut self, tensor: TensorId) {
        if let Some(order) = self.orders.get_mut(&tensor) {
            order.given = None;
            self.queue.push_front(tensor);
        }
    }

    /// A session asks anew and has said nothing of its order: it never heard of it. Whoever does so twice is not believed.
    fn give_unheard_back(&mut self, session: SessionId) {
        let has = self.stagers.get(&session).and_then(|stager| stager.has.as_ref());
        let Some((tensor, number)) = has.and_then(|has| Some((has.tensor?, has.number))) else { return };
        let Some(order) = self.given(tensor, (session, number)) else { return };
        if order.unheard.contains(&session) {
            return;
        }
        order.unheard.push(session);
        self.forget((session, number));
        self.requeue(tensor);
    }

    fn fail(&mut self, tensor: TensorId, why: Why, left: &mut Left<R, B>) {
        let (readers, cancel) = self.finish(tensor);
        left.cancels.extend(cancel);
        left.failed.push(Failed { readers, why });
    }

    /// Ends what is queued where every session that could do it is gone, or neither waits for orders nor works on one.
    fn drop_hopeless(&mut self, now: Instant, left: &mut Left<R, B>) {
        let is_there = |stager: &Stager<P, B>| {
            // One that goes on with what nobody wants any more will ask for the next.
            let goes_on = match &stager.has {
                Some(has) => has.until.is_none_or(|until| now < until),
                None => now < stager.answered + STALL,
            };
            stager.poll.is_some() || goes_on
        };
        let hopeless: Vec<(TensorId, Why)> = self
            .queue
            .iter()
            .filter_map(|tensor| {
                let order = self.orders.get(tensor)?;
                let mut able = self.stagers.iter().filter(|(id, stager)| order.may_ask(**id, &stager.gpus));
                let any = able.clone().next().is_some();
                let hopeless = !able.any(|(_, stager)| is_there(stager));
                let why = || match any {
                    true => Why::Stalled,
                    false => order.last.clone().unwrap_or(Why::Nobody),
                };
                hopeless.then(|| (*tensor, why()))
            })
            .collect();
        for (tensor, why) in hopeless {
            self.fail(tensor, why, left);
        }
    }

    /// Nobody wants a tensor any more.
    fn remove(&mut self, tensor: TensorId, left: &mut Left<R, B>) {
        let Some(order) = self.orders.remove(&tensor) else { return };
        self.queue.retain(|queued| *queued != tensor);
        left.cancels.extend(order.given.and_then(|given| self.forget(given)));
    }

    /// An order that a session has is not wanted of it any more, nor room for it. The session hears of it when it reports, and has its
    /// block until then.
    fn forget(&mut self, (session, number): (SessionId, u64)) -> Option<Cancel> {
        let has = self.stagers.get_mut(&session)?.has.as_mut();
        let has = has.filter(|has| has.number == number)?;
        has.tensor = None;
        Some(has.cancel.clone())
    }
}

// === impl Order ===

impl<R> Order<R> {
    fn may_ask(&self, session: SessionId, gpus: &[Gpu]) -> bool {
        gpus.contains(&self.wanted.gpu) && !self.tried.contains(&session)
    }
}

#[cfg(test)]
mod tests;
