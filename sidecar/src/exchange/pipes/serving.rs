//! Pipes that other peers have to listeners here: their calls are those of a session, which is the connection that they come on.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{PeerSlot, SessionId, TensorName};

use super::asker::{Asker, life_account, peer_session};
use super::op::{self, Outcome};
use super::table::{Ended, Waits};
use super::{checked, connect, unseen};
use crate::cancel::Cancel;
use crate::exchange::Exchange;
use crate::exchange::lookup::There;
use crate::exchange::names::tensor_name;
use crate::exchange::waits::{Key, Owner, WaitId, Waiter, cost};
use crate::peer::{PipeAsker, PipeDone, TellConnected};

/// Longest name of a client, in bytes.
pub(super) const CLIENT_MAX: usize = 256;

/// Pipes of a connection that was lost, until their peer is waited for no longer.
struct AwaitedPipes {
    exchange: Weak<Exchange>,
    session: SessionId,
    entry: Mutex<Option<WaitId>>,
}

impl Exchange {
    /// Another peer, as somebody who asks about pipes. `client` is the one that connects, if one does.
    fn peer_asker(&self, from: &PipeAsker, client: &str) -> Asker {
        let account = if from.resumes { life_account(self.slot_of(&from.key)) } else { peer_session(from) };
        Asker::Peer(from.clone(), Arc::from(client), account)
    }

    /// Connects another peer to a listener of ours.
    pub(in crate::exchange) fn answer_pipe_connect(
        &self,
        from: &PipeAsker,
        asked: v1::PeerPipeConnect,
        gone: Cancel,
        reply: TellConnected,
    ) {
        let Some(exchange) = self.own.upgrade() else { return reply(Err(crate::gate::draining())) };
        if gone.is_cancelled() {
            // It was read late, from a connection that another one has replaced: of a life that is over nothing is noted any more.
            return reply(Err(Failure::new(Reason::Cancelled, "the peer asks on another connection")));
        }
        let v1::PeerPipeConnect { name, client, wait_ms, .. } = asked;
        let name = self.may_leave(&from.key, false).and_then(|()| tensor_name(&name)).and_then(|name| {
            if client.len() > CLIENT_MAX {
                let what = format!("the client's name has {} bytes, at most {CLIENT_MAX}", client.len());
                return Err(Failure::new(Reason::InvalidArgument, what));
            }
            Ok(name)
        });
        let name = match name {
            Ok(name) => name,
            Err(failure) => return reply(Err(failure)),
        };
        let after = if wait_ms == 0 { Duration::ZERO } else { exchange.pipe_time(wait_ms) };
        let done = move |outcome: Result<Outcome, Failure>| {
            reply(outcome.and_then(|outcome| match outcome {
                Outcome::Opened(pipe, other) => {
                    Ok(v1::PeerPipeConnected { pipe, client: other.client.to_string() })
                }
                _ => Err(op::unexpected()),
            }));
        };
        let (asker, waits) = (self.peer_asker(from, &client), Waits::Listener(name.clone()));
        op::Op::begin(&exchange, (asker, gone), waits, after, Box::new(done), |table, asker, me| {
            connect(table, asker, &name, me, !after.is_zero())
        });
    }

    /// Goes on with a pipe of another peer, which was on another connection.
    pub(in crate::exchange) fn resume_pipe(
        &self,
        from: &PipeAsker,
        pipe: u64,
    ) -> Result<v1::PeerPipeConnected, Failure> {
        self.may_leave(&from.key, true)?;
        let asker = self.peer_asker(from, "");
        let (other, effects) = self.pipes.table.lock().resume(&asker.party(), pipe)?;
        self.carry_out_pipes(effects);
        Ok(v1::PeerPipeConnected { pipe, client: other.client.to_string() })
    }

    /// Answers a call of another peer about a pipe that it has here.
    pub(in crate::exchange) fn answer_pipe_call(
        &self,
        from: &PipeAsker,
        call: v1::peer_pipe_call::Kind,
        gone: Cancel,
        reply: PipeDone,
    ) {
        let Some(exchange) = self.own.upgrade() else { return reply(Err(crate::gate::draining())) };
        // A call is of its connection alone: it gives no number to a life of a peer, which may be over.
        let asker = (Asker::Peer(from.clone(), Arc::from(""), peer_session(from)), gone);
        let answer = |kind| v1::PeerPipeAnswer { kind: Some(kind) };
        match call {
            v1::peer_pipe_call::Kind::Write(request) => {
                let request = match checked(request) {
                    Ok(request) => request,
                    Err(failure) => return reply(Err(unseen(failure))),
                };
                exchange.write_here(asker, request, move |outcome| {
                    reply(outcome.map(|written| answer(v1::peer_pipe_answer::Kind::Written(written))));
                });
            }
            v1::peer_pipe_call::Kind::Read(request) => {
                if let Err(failure) = self.may_leave(&from.key, true) {
                    return reply(Err(failure));
                }
                exchange.read_here(asker, request, move |outcome| {
                    reply(outcome.map(|message| answer(v1::peer_pipe_answer::Kind::Message(message))));
                });
            }
            v1::peer_pipe_call::Kind::End(_) => reply(Err(op::unexpected())),
        }
    }

    /// Hears what another peer says of ends, and of what it has read. What is not its own is nothing.
    pub(in crate::exchange) fn hear_pipe_end(&self, from: &PipeAsker, end: &v1::PeerPipeEnd) {
        let v1::PeerPipeEnd { pipe, read, finished, closed, lost, resumed } = *end;
        let ended = match (closed, lost) {
            (_, true) => Some(Ended::Lost),
            (true, false) => Some(Ended::Closed),
            (false, false) => None,
        };
        let session = peer_session(from);
        let effects = self.pipes.table.lock().hear(session, pipe, read, (resumed, finished), ended);
        self.carry_out_pipes(effects);
    }

    /// Returns whether a connection of another peer has a pipe here that has not ended there.
    pub(in crate::exchange) fn has_pipes_of_peer(&self, from: &PipeAsker) -> bool {
        self.pipes.table.lock().has_any(peer_session(from))
    }

    /// A connection of another peer has ended: its pipes end, and the ends here are told. Those that go on are waited for.
    pub(in crate::exchange) fn pipes_of_peer_over(&self, from: &PipeAsker) {
        let session = peer_session(from);
        let (effects, is_awaited) = self.pipes.table.lock().lose(session);
        self.carry_out_pipes(effects);
        if is_awaited {
            let until = Instant::now() + self.store.lease_grace();
            let entry = Mutex::default();
            let awaited = Arc::new(AwaitedPipes { exchange: Weak::clone(&self.own), session, entry });
            if awaited.enter(self, Owner::Peer(from.key.name.clone()), until).is_err() {
                awaited.end();
            }
        }
    }

    /// A life of another peer is over, and its pipes on whatever connection.
    pub(in crate::exchange) fn pipes_of_life_over(&self, slot: PeerSlot) {
        let effects = self.pipes.table.lock().end_account(life_account(slot));
        self.carry_out_pipes(effects);
    }
}

// === impl AwaitedPipes ===

impl AwaitedPipes {
    fn enter(self: &Arc<Self>, exchange: &Exchange, owner: Owner, until: Instant) -> Result<(), Failure> {
        let waiter = Arc::clone(self) as Arc<dyn Waiter>;
        let entry = exchange.waits.enter(owner, cost(std::iter::empty()), until, waiter)?;
        *self.entry.lock() = Some(entry);
        exchange.waits.wait(entry, Vec::new(), until)
    }

    /// Ends those that have not gone on: they are of the lost connection still.
    fn end(&self) {
        let Some(exchange) = self.exchange.upgrade() else { return };
        let entry = self.entry.lock().take();
        if let Some(entry) = entry {
            exchange.waits.remove(entry);
        }
        exchange.pipes_end(self.session);
    }
}

impl Waiter for AwaitedPipes {
    fn look(&self, _: &TensorName) -> bool {
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn due(&self) {
        self.end();
    }

    fn leave(&self) {
        self.end();
    }
}
