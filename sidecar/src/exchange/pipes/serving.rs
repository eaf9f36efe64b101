//! Pipes that other peers have to listeners here: their calls are those of a session, which is the connection that they come on.

use std::sync::Arc;
use std::time::Duration;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;

use super::asker::{Asker, peer_session};
use super::op::{self, Outcome};
use super::table::{Ended, Waits};
use super::{checked, connect, unseen};
use crate::cancel::Cancel;
use crate::exchange::Exchange;
use crate::exchange::names::tensor_name;
use crate::peer::{PipeAsker, PipeDone, TellConnected};

/// Longest name of a client, in bytes.
pub(super) const CLIENT_MAX: usize = 256;

impl Exchange {
    /// Connects another peer to a listener of ours.
    pub(in crate::exchange) fn answer_pipe_connect(
        &self,
        from: &PipeAsker,
        asked: v1::PeerPipeConnect,
        gone: Cancel,
        reply: TellConnected,
    ) {
        let Some(exchange) = self.own.upgrade() else { return reply(Err(crate::gate::draining())) };
        let v1::PeerPipeConnect { name, client, wait_ms } = asked;
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
        let (asker, waits) = (Asker::Peer(from.clone(), Arc::from(client)), Waits::Listener(name.clone()));
        op::Op::begin(&exchange, (asker, gone), waits, after, Box::new(done), |table, asker, me| {
            connect(table, asker, &name, me, !after.is_zero())
        });
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
        let asker = (Asker::Peer(from.clone(), Arc::from("")), gone);
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
        let v1::PeerPipeEnd { pipe, read, finished, closed, lost } = *end;
        let ended = match (closed, lost) {
            (_, true) => Some(Ended::Lost),
            (true, false) => Some(Ended::Closed),
            (false, false) => None,
        };
        let effects = self.pipes.table.lock().hear(peer_session(from), pipe, read, finished, ended);
        self.carry_out_pipes(effects);
    }

    /// Returns whether a connection of another peer has a pipe here that has not ended there.
    pub(in crate::exchange) fn has_pipes_of_peer(&self, from: &PipeAsker) -> bool {
        self.pipes.table.lock().has_any(peer_session(from))
    }

    /// A connection of another peer has ended: its pipes end, and the ends here are told.
    pub(in crate::exchange) fn pipes_of_peer_over(&self, from: &PipeAsker) {
        self.pipes_end(peer_session(from));
    }
}
