//! Caller of a pipe that waits: for a listener, a pipe, a message or its reader.
//!
//! The table says once what becomes of it; a deadline or a cancel takes it out of the table first. So it has one outcome, whatever
//! comes at the same time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::TensorName;

use super::super::lookup::There;
use super::super::waits::{Key, WaitId, Waiter, cost};
use super::super::{Done, Exchange};
use super::asker::Asker;
use super::table::{Effect, Ended, Party, Table, Waits};
use super::{LOCAL, connect, far};
use crate::cancel::Cancel;

/// Result that a caller waited for.
pub(super) enum Outcome {
    /// A pipe, by the number of this end, and the other end.
    Opened(u64, Party),
    /// A message with its sequence.
    Message(u64, Bytes),
    /// No more messages.
    End,
    /// The message was read.
    Written,
}

/// An answer at once, if there is one, and what follows for others.
pub(super) type Placed = Result<(Option<Outcome>, Vec<Effect<Who>>), Failure>;

/// A caller that waits.
pub(super) struct Op {
    exchange: Arc<Exchange>,
    asker: Asker,
    waits: Waits,
    after: Duration,
    state: Mutex<State>,
}

struct State {
    /// Taken by whatever answers.
    done: Option<Done<Outcome>>,
    entry: Option<WaitId>,
    /// The table has taken it in, and says what becomes of it unless it is taken out.
    placed: bool,
}

/// Caller as the table knows it.
pub(super) struct Who(Arc<Op>);

// === impl Outcome ===

impl Outcome {
    /// The pipe, for a session of the peer `me`.
    pub(super) fn opened(self, me: &PeerName) -> Result<v1::PipeOpened, Failure> {
        let Self::Opened(pipe, other) = self else { return Err(unexpected()) };
        let route = if other.peer.is_some() { far::ROUTE } else { LOCAL };
        let peer = other.peer.as_ref().unwrap_or(me).to_string();
        Ok(v1::PipeOpened { pipe, peer, client: other.client.to_string(), route: route.to_owned() })
    }
}

// === impl Who ===

impl Who {
    pub(super) fn tell(&self, outcome: Result<Outcome, Failure>) {
        self.0.finish(outcome);
    }

    /// A listener is there that was waited for.
    pub(super) fn connect_again(self) {
        let Waits::Listener(name) = self.0.waits.clone() else { return };
        let op = Arc::clone(&self.0);
        op.place(|table, asker, me| connect(table, asker, &name, me, true));
    }
}

// === impl Op ===

impl Op {
    /// Begins to wait. `place` puts it into the table, or answers at once; `done` is called once.
    pub(super) fn begin(
        exchange: &Arc<Exchange>,
        (asker, cancel): (Asker, Cancel),
        waits: Waits,
        after: Duration,
        done: Done<Outcome>,
        place: impl FnOnce(&mut Table<Who>, &Asker, Who) -> Placed,
    ) {
        let state = Mutex::new(State { done: Some(done), entry: None, placed: false });
        let op = Arc::new(Self { exchange: Arc::clone(exchange), asker, waits, after, state });
        // First: however short its time is, what is there is given.
        op.place(place);
        if let Err(failure) = op.enter() {
            op.give_up(|_| failure);
        }
        let leaving = Arc::downgrade(&op);
        cancel.on_cancel(Arc::new(move || {
            if let Some(op) = leaving.upgrade() {
                op.leave();
            }
        }));
    }

    fn place(self: &Arc<Self>, place: impl FnOnce(&mut Table<Who>, &Asker, Who) -> Placed) {
        let placed = {
            let mut table = self.exchange.pipes.table.lock();
            // Its time may be over.
            if self.state.lock().done.is_none() {
                return;
            }
            let placed = place(&mut table, &self.asker, Who(Arc::clone(self)));
            self.state.lock().placed = matches!(placed, Ok((None, _)));
            placed
        };
        match placed {
            Ok((outcome, effects)) => {
                self.exchange.carry_out_pipes(effects);
                if let Some(outcome) = outcome {
                    self.finish(Ok(outcome));
                }
            }
            Err(failure) => self.finish(Err(failure)),
        }
        if self.asker.is_over() {
            // Its end may have come before this was in the table.
            self.exchange.pipes_of_asker_over(&self.asker);
        }
    }

    /// From now on it is told at its deadline, unless it has its answer.
    fn enter(self: &Arc<Self>) -> Result<(), Failure> {
        let (until, owner) = (Instant::now() + self.after, self.asker.owner());
        let names = match &self.waits {
            Waits::Listener(name) => Some(name),
            _ => None,
        };
        let waits = &self.exchange.waits;
        let mut state = self.state.lock();
        if state.done.is_none() {
            return Ok(());
        }
        let waiter = Arc::clone(self) as Arc<dyn Waiter>;
        let entry = waits.enter(owner, cost(names.into_iter()), until, waiter)?;
        state.entry = Some(entry);
        waits.wait(entry, Vec::new(), until)
    }

    /// The answer, once. A pipe that nobody takes is closed.
    fn finish(&self, outcome: Result<Outcome, Failure>) {
        let (done, entry) = {
            let mut state = self.state.lock();
            (state.done.take(), state.entry.take())
        };
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        match (done, outcome) {
            (Some(done), outcome) => done(outcome),
            (None, Ok(Outcome::Opened(pipe, _))) => {
                let session = self.asker.session();
                let effects = self.exchange.pipes.table.lock().close(session, pipe, Ended::Lost);
                self.exchange.carry_out_pipes(effects);
            }
            (None, _) => {}
        }
    }

    /// Gives up, unless an outcome is on its way.
    fn give_up(&self, why: impl FnOnce(&Table<Who>) -> Failure) {
        let (failure, done, entry) = {
            let mut table = self.exchange.pipes.table.lock();
            let failure = why(&table);
            let shown = table.forget(&self.waits, |who: &Who| std::ptr::eq(&*who.0, self));
            let mut state = self.state.lock();
            // Whoever connects is answered here all the same: a listener that came may be gone again.
            if shown.is_none() && state.placed && !matches!(self.waits, Waits::Listener(_)) {
                return;
            }
            let failure = match (&self.waits, shown) {
                (Waits::Reader(..), Some(true)) => failure.with("delivered", "unknown"),
                (Waits::Reader(..), _) => failure.with("delivered", "no"),
                _ => failure,
            };
            (failure, state.done.take(), state.entry.take())
        };
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        if let Some(done) = done {
            done(Err(failure));
        }
    }

    fn over(&self, table: &Table<Who>) -> Failure {
        let waited = self.after.as_millis();
        let message = match &self.waits {
            Waits::Listener(name) => {
                let more = self.exchange.no_such_peer(name);
                return absent(name, &more).with("waited_ms", waited);
            }
            Waits::Pipe(_) => format!("nobody connected to the listener within {waited} ms"),
            Waits::Message(pipe) => match table.describe(*pipe) {
                Some((name, other, _)) => {
                    format!("{other} wrote no message to the pipe {name} within {waited} ms")
                }
                None => format!("no message came within {waited} ms"),
            },
            Waits::Reader(pipe, sequence) => match table.describe(*pipe) {
                Some((name, other, unread)) => format!(
                    "{other} has not read message {sequence} of the pipe {name} within {waited} ms; {unread} messages are unread there"
                ),
                None => format!("message {sequence} was not read within {waited} ms"),
            },
        };
        Failure::new(Reason::DeadlineExceeded, message)
    }
}

impl Waiter for Op {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn due(&self) {
        self.give_up(|table| self.over(table));
    }

    fn leave(&self) {
        self.give_up(|_| Failure::new(Reason::Cancelled, "the caller or the sidecar is ending"));
    }
}

/// Something else came than was asked for.
pub(super) fn unexpected() -> Failure {
    Failure::new(Reason::Internal, "an answer about a pipe is of another kind than what was asked")
}

/// Makes the failure of a connect to a name on which nobody listens here, with what else is known of the name.
pub(super) fn absent(name: &TensorName, more: &str) -> Failure {
    let message = format!("nobody listens on {name} here{more}; connect with a wait, or listen first");
    Failure::new(Reason::NotFound, message).with("name", name)
}
