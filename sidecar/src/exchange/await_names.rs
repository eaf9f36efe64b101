//! Waits of peers for names of this one. A peer's question is an entry in `waits`, in the share of that peer.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::TensorName;

use super::Exchange;
use super::describe::inquired_result;
use super::lookup::There;
use super::waits::{Key, Owner, Waiter, cost};
use crate::cancel::Cancel;
use crate::peer::PeerKey;
use crate::store::Own;

/// Takes the answer to a question.
type Reply = Box<dyn FnOnce(v1::Inquired) + Send>;

/// A question that waits.
struct Question {
    exchange: Arc<Exchange>,
    names: Vec<TensorName>,
    /// Raised when the asker does not want to know any more.
    gone: Cancel,
    state: Mutex<State>,
}

struct State {
    entry: Option<super::waits::WaitId>,
    reply: Option<Reply>,
}

// === impl Exchange ===

impl Exchange {
    /// Answers when one of the names is here, or at the latest then. One that appears is worth an answer: the asker asks again
    /// for the others. A peer that waits for too much already is told so for each name that is not here.
    pub(super) fn answer_later(
        &self,
        from: &PeerKey,
        names: Vec<TensorName>,
        until: Instant,
        gone: &Cancel,
        reply: Reply,
    ) {
        let Some(exchange) = self.own.upgrade() else { return };
        let (bytes, owner) = (cost(names.iter()), Owner::Peer(from.name.clone()));
        let key = |name: &TensorName| Key { at: Some(self.me().peer.clone()), name: name.clone() };
        let keys = names.iter().map(key).collect();
        let state = Mutex::new(State { entry: None, reply: Some(reply) });
        let question = Arc::new(Question { exchange, names, gone: gone.clone(), state });
        let waits = {
            let mut state = question.state.lock();
            let waiter = Arc::clone(&question);
            self.waits.enter(owner, bytes, until, waiter).and_then(|id| {
                state.entry = Some(id);
                self.waits.wait(id, keys, until)
            })
        };
        if let Err(failure) = waits {
            return question.answer(Some(&failure));
        }
        let leaving = Arc::downgrade(&question);
        gone.on_cancel(Arc::new(move || {
            if let Some(question) = leaving.upgrade() {
                question.leave();
            }
        }));
    }
}

// === impl Question ===

impl Question {
    /// Answers, once; with this for names that are not here.
    fn answer(&self, refusal: Option<&Failure>) {
        let (entry, reply) = {
            let mut state = self.state.lock();
            (state.entry.take(), state.reply.take())
        };
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        let Some(reply) = reply.filter(|_| !self.gone.is_cancelled()) else { return };
        let describe = |name: &TensorName| {
            let known = self.exchange.store.description(None, Own::Named(name));
            known.map_err(|failure| refusal.cloned().unwrap_or(failure))
        };
        let results = self.names.iter().map(|name| inquired_result(describe(name))).collect();
        reply(v1::Inquired { results });
    }
}

impl Waiter for Question {
    fn look(&self, _: &TensorName) -> bool {
        self.answer(None);
        false
    }

    fn told(&self, _: &Key, _: &Result<There, Failure>) -> bool {
        false
    }

    fn due(&self) {
        self.answer(None);
    }

    fn leave(&self) {
        self.answer(None);
    }
}
