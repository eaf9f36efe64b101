//! Calls of sessions that copy out of GPU memory: each waits for an order, and reports of the one before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::GPUS_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, SessionId, TensorName};
use tensorlane_proto::wire;

use super::Answer;
use super::table::{Gpu, Written};
use crate::exchange::lookup::There;
use crate::exchange::waits::{Key, Owner, WaitId, Waiter};
use crate::exchange::{Caller, Exchange, session_required};
use crate::gate;
use crate::metrics::label::StagingEnd;

/// Most bytes of what a session says of an order that it gave up.
const SAID_BYTES_MAX: usize = 1 << 10;

/// A call that waits for an order.
pub(super) struct Poll(Arc<Waiting>);

struct Waiting {
    exchange: Arc<Exchange>,
    session: SessionId,
    number: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entry: Option<WaitId>,
    answer: Option<Answer>,
}

// === impl Exchange ===

impl Exchange {
    /// Takes the report of a session that copies out of GPU memory, and answers with its next order as soon as there is one.
    pub fn stage_next(
        self: &Arc<Self>,
        caller: &Caller,
        request: &v1::StageRequest,
        done: impl FnOnce(Result<v1::StageResponse, Failure>) + Send + 'static,
    ) {
        let (Some(Holder::Session(session)), Some(_)) = (caller.holder, &caller.link) else {
            return done(Err(session_required("Stage")));
        };
        let gpus = match gpus(request) {
            Ok(gpus) => gpus,
            Err(failure) => return done(Err(failure)),
        };
        if let Some(report) = &request.report {
            let wanted = self.reported(session, report);
            if !report.over {
                return done(Ok(v1::StageResponse { order: None, wanted }));
            }
        }
        self.session_reaches(session, &gpus, request.cuda_driver);
        let until = self.deadline(request.deadline_ms);
        self.wait_for_order(caller, session, gpus, until, Box::new(done));
    }

    /// Takes a report; whether what it is of is still wanted of that session.
    fn reported(self: &Arc<Self>, session: SessionId, report: &v1::StageReport) -> bool {
        let v1::StageReport { order, written, over, ref failure } = *report;
        let now = Instant::now();
        if !over {
            return self.staging.table.lock().progress(session, order, written, now);
        }
        if let Some(failure) = failure {
            let failure = failed(&wire::failure(failure.clone()));
            let left = self.staging.table.lock().gave_up(session, order, &failure, now);
            if let Some(left) = left {
                tracing::warn!(session = session.0, %failure, "a copy out of GPU memory was given up");
                self.metrics.staging.ended(StagingEnd::Failed);
                self.settle_staging(left);
            }
            return false;
        }
        let written = self.staging.table.lock().written(session, order, written, now);
        match written {
            Written::Whole(wanted, block) => self.staged_in(wanted, block),
            Written::Unwanted(left) => self.settle_staging(left),
        }
        false
    }

    fn wait_for_order(
        self: &Arc<Self>,
        caller: &Caller,
        session: SessionId,
        gpus: Vec<Gpu>,
        until: Instant,
        answer: Answer,
    ) {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(State { entry: None, answer: Some(answer) });
        let waiting = Arc::new(Waiting { exchange: Arc::clone(self), session, number, state });
        let entered = {
            let mut state = waiting.state.lock();
            let waiter = Arc::clone(&waiting) as Arc<dyn Waiter>;
            let entered = self.enter_staging(Owner::Client(caller.holder), until, waiter);
            entered.map(|entry| state.entry = Some(entry))
        };
        if let Err(failure) = entered {
            return waiting.answer(Err(failure));
        }
        let poll = (number, Poll(Arc::clone(&waiting)));
        let polled = self.staging.table.lock().poll(session, gpus, poll, Instant::now());
        match polled {
            Ok(left) => self.settle_staging(left),
            Err(Poll(second)) => {
                let message = "this session waits for an order already; one Stage at a time";
                return second.answer(Err(Failure::new(Reason::InvalidArgument, message)));
            }
        }
        let leaving = Arc::downgrade(&waiting);
        caller.cancel.on_cancel(Arc::new(move || {
            if let Some(waiting) = leaving.upgrade() {
                waiting.leave();
            }
        }));
    }
}

/// The GPUs that a session copies out of.
fn gpus(request: &v1::StageRequest) -> Result<Vec<Gpu>, Failure> {
    let invalid = |message: String| Failure::new(Reason::InvalidArgument, message);
    let count = request.cuda_uuids.len();
    if count == 0 || count > GPUS_MAX {
        return Err(invalid(format!("{count} GPUs were named; name 1 to {GPUS_MAX}")));
    }
    let gpu = |uuid: &bytes::Bytes| {
        Gpu::try_from(&uuid[..])
            .map_err(|_| invalid(format!("a UUID of a GPU has 16 bytes, not {}", uuid.len())))
    };
    request.cuda_uuids.iter().map(gpu).collect()
}

/// Failure that a reader is told where a session gave a copy up.
fn failed(said: &Failure) -> Failure {
    let message = format!(
        "the process that reaches the GPU could not copy the tensor out: {} ({}); ask again, or see that process",
        bounded(&said.message),
        said.reason
    );
    Failure::new(Reason::StagingFailed, message)
}

/// The text of a session, as far as it goes on to readers and into the log: 1 KiB at most, without control characters.
fn bounded(text: &str) -> String {
    let plain = text.chars().filter(|c| !c.is_control());
    let mut bytes = 0;
    let fits = |c: &char| {
        bytes += c.len_utf8();
        bytes <= SAID_BYTES_MAX
    };
    plain.take_while(fits).collect()
}

// === impl Poll ===

impl Poll {
    pub(super) fn answer(self, outcome: Result<v1::StageResponse, Failure>) {
        self.0.answer(outcome);
    }
}

// === impl Waiting ===

impl Waiting {
    /// Answers, once.
    fn answer(&self, outcome: Result<v1::StageResponse, Failure>) {
        let State { entry, answer } = std::mem::take(&mut *self.state.lock());
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        if let Some(answer) = answer {
            answer(outcome);
        }
    }

    /// Ends the wait, unless an order is on its way.
    fn give_up(&self, outcome: Result<v1::StageResponse, Failure>) {
        let poll = self.exchange.staging.table.lock().unpoll(self.session, self.number, Instant::now());
        if let Some(Poll(waiting)) = poll {
            waiting.answer(outcome);
        }
    }
}

impl Waiter for Waiting {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn due(&self) {
        self.give_up(Ok(v1::StageResponse::default()));
    }

    fn leave(&self) {
        let closed = self.exchange.gate.is_closed();
        let cancelled = || Failure::new(Reason::Cancelled, "the caller withdrew it");
        self.give_up(Err(if closed { gate::draining() } else { cancelled() }));
    }
}

#[cfg(test)]
mod tests;
