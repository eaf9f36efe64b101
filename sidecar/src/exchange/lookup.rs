//! Finding names: here first, else at all connected peers, else at those that nobody needed yet, in rounds; now, or when they
//! appear. No thread waits for it.
//!
//! ```text
//!   all are here ────────────────────────────────────────────────────> done, on the caller's thread
//!   else ask the peers ──(all have answered, or 2 s)──> found ───────> done
//!     └─ more are listed than have seats ──(a few at a time, until found or for half a minute)──^
//!                                                          └─ wait ──> an entry in `waits` ──(found, deadline, cancel)──> done
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::TensorName;

use super::describe::describe_result;
use super::search::{End, Search};
pub(super) use super::search::{Found, Looked, There, there};
use super::waits::{Key, Owner, WaitId, Waiter, cost};
use super::{Caller, Exchange};
use crate::gate;
use crate::peer::{CallHandle, Question};
use crate::store::Own;

/// Time that the peers may take to answer a question that waits for nothing. One that does not is not connected enough.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

/// Time for rounds through peers that are not connected since nobody needed it.
pub(super) const ROUNDS: Duration = Duration::from_secs(30);

/// Names that are to be found, and the time for it.
pub(super) struct Wanted {
    /// The names, each of one peer or of whichever has it.
    pub(super) names: Vec<(Option<PeerName>, TensorName)>,
    /// Time for which names are waited for that do not exist.
    pub(super) wait: Duration,
    /// Time at which everything ends.
    pub(super) deadline: Instant,
}

/// Does with names of this peer what they are wanted for, in one step each: what is done in a later one may find that a name
/// was replaced.
pub(super) type Look<T> = Box<dyn Fn(&Exchange, &[&TensorName]) -> Looked<T> + Send + Sync>;
/// Takes a result for each name. Called once, on whatever thread has the last one; must not wait.
pub(super) type Then<T> = Box<dyn FnOnce(&Arc<Exchange>, Vec<Result<Found<T>, Failure>>) + Send>;

/// A search under way.
struct Hunt<T> {
    exchange: Arc<Exchange>,
    caller: Caller,
    look: Look<T>,
    began: Instant,
    /// Time that all may take to answer the first questions.
    answer: Duration,
    wait: Duration,
    deadline: Instant,
    state: Mutex<Hunting<T>>,
}

struct Hunting<T> {
    search: Search<T>,
    entry: Option<WaitId>,
    /// Peers that have not answered the first question, which waits for nothing.
    asked: HashMap<PeerName, Option<CallHandle>>,
    /// Peers that are to be asked, some at a time, once the connected ones have answered.
    queue: VecDeque<PeerName>,
    /// Peers that were asked, where there are rounds.
    rounds: Option<usize>,
    /// The connected ones have answered.
    is_round: bool,
    turn: Turn,
    /// The first questions are over, and names are waited for.
    waits: bool,
    then: Option<Then<T>>,
}

/// Turn of the thread that continues the rounds: a single one at a time, and once more for those that came meanwhile.
#[derive(Default)]
struct Turn {
    taken: bool,
    again: bool,
}

impl Turn {
    /// Returns whether it is the caller's turn.
    fn begin(&mut self) -> bool {
        self.again = true;
        !std::mem::replace(&mut self.taken, true)
    }

    /// Ends the turn, but where somebody came meanwhile. Returns whether it goes on.
    fn end(&mut self) -> bool {
        self.taken = std::mem::take(&mut self.again);
        self.taken
    }

    fn is_taken(&self) -> bool {
        self.taken
    }
}

/// Step that follows a step of a search, outside of its lock.
enum Next {
    Nothing,
    /// Withdrawal of the calls to those who have not answered: they are not wanted any more.
    Withdraw(Vec<CallHandle>),
    Finish(Option<Failure>),
}

// === impl Exchange ===

impl Exchange {
    /// Finds names; waits for those that do not exist yet.
    pub fn lookup(
        self: &Arc<Self>,
        caller: Caller,
        request: v1::LookupRequest,
        done: impl FnOnce(Result<v1::LookupResponse, Failure>) + Send + 'static,
    ) {
        let peer = match self.named_peer(&request.peer) {
            Ok(peer) => peer,
            Err(failure) => return done(Err(failure)),
        };
        let wait = Duration::from_millis(request.wait_ms).min(self.settings.deadline_max);
        // Where no peer is to be asked in rounds all have answered before.
        let most = wait + ROUNDS.max(ANSWER);
        let within = match request.deadline_ms {
            0 => most,
            ms => Duration::from_millis(ms).min(most),
        };
        let parsed = |name: &String| {
            TensorName::new(name).map_err(|error| Failure::new(Reason::InvalidArgument, error.to_string()))
        };
        let names: Vec<Result<TensorName, Failure>> = request.names.iter().map(parsed).collect();
        drop(request);
        let wanted = Wanted {
            names: names.iter().flatten().map(|name| (peer.clone(), name.clone())).collect(),
            wait,
            deadline: Instant::now() + within,
        };
        // Which are names; why the others are none.
        let bad: Vec<Option<Failure>> = names.into_iter().map(Result::err).collect();
        let look: Look<_> = Box::new(Self::stood_for);
        let answer = move |exchange: &Arc<Self>, found: Vec<Result<Found<_>, Failure>>| {
            if exchange.gate.is_closed() {
                return done(Err(gate::draining()));
            }
            let mut found = found.into_iter();
            let result = |bad: Option<Failure>| match bad {
                Some(failure) => Err(failure),
                None => found.next().unwrap_or_else(|| Err(Failure::new(Reason::Internal, "no answer"))),
            };
            let found: Vec<_> = bad.into_iter().map(result).collect();
            let described = |found: Result<_, _>| found.map(|found| exchange.described(found));
            let results = found.into_iter().map(|found| describe_result(described(found))).collect();
            done(Ok(v1::LookupResponse { results }));
        };
        self.find(caller, wanted, look, Box::new(answer));
    }

    /// Finds names, and goes on with what each stands for: when all are found, the wait is over, or the caller cancels. A wait for a
    /// name of a peer that is not listed or not reached yet is a wait for that peer, too.
    pub(super) fn find<T: Send + 'static>(
        self: &Arc<Self>,
        caller: Caller,
        wanted: Wanted,
        look: Look<T>,
        then: Then<T>,
    ) {
        let Wanted { names, wait, deadline } = wanted;
        let mut search = Search::new(names);
        search.look_here(&self.me().peer, None, |names| look(self, names));
        let began = Instant::now();
        if search.is_complete() {
            let end = End::Over { limit: Duration::ZERO, unasked: 0, rounds: None };
            return then(self, search.finish(&end, |_| false));
        }
        let connected = self.peers.get().map(|peers| peers.connected()).unwrap_or_default();
        let asks_any = !search.open().is_empty();
        let resting = self.peers.get().filter(|_| asks_any).map(|peers| peers.resting()).unwrap_or_default();
        let rounds = (!resting.is_empty()).then_some(connected.len());
        // Whoever waits has the others asked in turn meanwhile, and hears of names that appear.
        let answer = if rounds.is_some() && wait.is_zero() { ROUNDS } else { ANSWER };
        let questions = search.questions(&self.me().peer, &connected);
        let (bytes, owner) = (cost(search.names()), Owner::Client(caller.holder));
        let (asked, cancel) =
            (questions.keys().map(|peer| (peer.clone(), None)).collect(), caller.cancel.clone());
        let (queue, then) = (resting.into(), Some(then));
        let state = Hunting {
            search,
            entry: None,
            asked,
            queue,
            rounds,
            is_round: false,
            turn: Turn::default(),
            waits: false,
            then,
        };
        let exchange = Arc::clone(self);
        let state = Mutex::new(state);
        let hunt = Arc::new(Hunt { exchange, caller, look, began, answer, wait, deadline, state });
        let until = deadline.min(began + answer);
        let entered = {
            let mut state = hunt.state.lock();
            let waiter = Arc::clone(&hunt);
            let entered = self.waits.enter(owner, bytes, until, waiter);
            entered.map(|id| state.entry = Some(id))
        };
        if let Err(failure) = entered {
            return hunt.finish(Some(failure));
        }
        let leaving = Arc::downgrade(&hunt);
        cancel.on_cancel(Arc::new(move || {
            if let Some(hunt) = leaving.upgrade() {
                hunt.leave();
            }
        }));
        if questions.is_empty() {
            return hunt.go_round();
        }
        let until = until.min(began + ANSWER);
        questions.into_iter().for_each(|(peer, names)| hunt.ask(&peer, names, until));
    }

    /// Descriptions of what names of this peer stand for, at one moment; none for those that it does not have.
    pub(super) fn stood_for(&self, names: &[&TensorName]) -> Vec<Option<Result<v1::Description, Failure>>> {
        let all = self.store.descriptions(None, names.iter().copied().map(Own::Named));
        all.into_iter().map(|one| one.ok().map(Ok)).collect()
    }

    pub(super) fn described(&self, found: Found<v1::Description>) -> v1::Description {
        match found {
            Found::Here(description) => description,
            Found::There(there) => self.seen_from_here(*there),
        }
    }

    /// Another peer's description, with whether a copy is here.
    pub(super) fn seen_from_here(&self, there: There) -> v1::Description {
        let here = self.store.copy_of(&there.reference).is_some();
        v1::Description { here, ..there.description }
    }
}

// === impl Hunt ===

impl<T: Send + 'static> Hunt<T> {
    /// Asks a peer what it has now.
    fn ask(self: &Arc<Self>, peer: &PeerName, names: Vec<usize>, until: Instant) {
        let peers = match self.exchange.peers_or_fail() {
            Ok(peers) => peers,
            Err(failure) => {
                // Without a way to peers there is none that comes.
                self.state.lock().search.failed(&names, &failure);
                return self.answered(peer, &names, Err(failure));
            }
        };
        let asked = {
            let state = self.state.lock();
            names.iter().map(|index| state.search.name(*index).clone()).collect()
        };
        let (hunt, who) = (Arc::clone(self), peer.clone());
        let question = Question::of_names(asked, v1::Inquire::default());
        let call =
            peers.inquire(peer, None, question, until, move |outcome| hunt.answered(&who, &names, outcome));
        if let Some(handle) = self.state.lock().asked.get_mut(peer) {
            *handle = Some(call);
        }
    }

    /// A peer has answered the first question.
    fn answered(self: &Arc<Self>, peer: &PeerName, names: &[usize], outcome: Result<v1::Inquired, Failure>) {
        {
            let mut state = self.state.lock();
            if state.waits || state.then.is_none() || state.asked.remove(peer).is_none() {
                return;
            }
            state.search.answered(peer, names, outcome);
        }
        self.go_round();
    }

    /// Asks some of those that are not connected, once the others have answered and while a name is open; else what was found is
    /// what there is. One thread at a time: whoever is answered meanwhile, on this thread too, leaves the next step to it.
    fn go_round(self: &Arc<Self>) {
        let most = self.exchange.peers.get().map_or(0, |peers| peers.round());
        if self.state.lock().turn.begin() {
            loop {
                let next = self.state.lock().next_round(most);
                let Some((names, next)) = next else { break };
                let until = self.deadline.min(self.began + self.answer).min(Instant::now() + ANSWER);
                next.iter().for_each(|peer| self.ask(peer, names.clone(), until));
            }
        }
        let is_over = self.state.lock().is_answered();
        if is_over {
            self.first_answered();
        }
    }

    /// Nobody is waited for any more who was asked first: what is missing is waited for now, if it is.
    fn first_answered(&self) {
        let next = {
            let mut state = self.state.lock();
            if state.waits || state.then.is_none() {
                return;
            }
            let unanswered: Vec<_> = state.asked.drain().collect();
            state.search.silent.extend(unanswered.iter().map(|(peer, _)| peer.clone()));
            state.search.settle_remote();
            let until = self.deadline.min(self.began + self.wait);
            if state.search.is_complete() || self.wait.is_zero() || until <= Instant::now() {
                state.asked.extend(unanswered);
                Next::Finish(None)
            } else {
                state.waits = true;
                let keys = state.search.missing();
                match state.entry.map_or(Ok(()), |id| self.exchange.waits.wait(id, keys, until)) {
                    Ok(()) => Next::Withdraw(unanswered.into_iter().filter_map(|(_, call)| call).collect()),
                    Err(full) => Next::Finish(Some(full)),
                }
            }
        };
        self.go_on(next);
    }

    fn go_on(&self, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Withdraw(calls) => calls.iter().for_each(CallHandle::cancel),
            Next::Finish(failure) => self.finish(failure),
        }
    }

    /// A step of who waits for a name, and whether it still does.
    fn step(&self, name: &TensorName, step: impl FnOnce(&mut Search<T>)) -> bool {
        let (next, misses) = {
            let mut state = self.state.lock();
            if state.then.is_none() {
                return false;
            }
            step(&mut state.search);
            let next = if state.search.is_complete() { Next::Finish(None) } else { Next::Nothing };
            (next, state.search.misses(name))
        };
        self.go_on(next);
        misses
    }

    /// Answers, once; with this for what was not found.
    fn finish(&self, failure: Option<Failure>) {
        let (search, then, entry, asked, left, rounds) = {
            let mut state = self.state.lock();
            let Some(then) = state.then.take() else { return };
            let search = std::mem::replace(&mut state.search, Search::new(Vec::new()));
            let (asked, left) = (std::mem::take(&mut state.asked), state.queue.len());
            (search, then, state.entry.take(), asked, left, state.rounds)
        };
        if let Some(entry) = entry {
            self.exchange.waits.remove(entry);
        }
        // Else the other side would be asked for what nobody here wants any more.
        asked.into_values().flatten().for_each(|call| call.cancel());
        let end = match failure {
            _ if self.caller.cancel.is_cancelled() => {
                End::Failed(Failure::new(Reason::Cancelled, "the caller gave up the lookup"))
            }
            Some(failure) => End::Failed(failure),
            None => {
                let until = self.deadline.min(self.began + self.wait.max(self.answer));
                let limit = until.saturating_duration_since(self.began);
                let unconnected = || self.exchange.peers.get().map_or(0, |peers| peers.unconnected());
                let unasked = if rounds.is_some() { left } else { unconnected() };
                End::Over { limit, unasked, rounds }
            }
        };
        let lists = |peer: &PeerName| self.exchange.peers.get().is_some_and(|peers| peers.lists(peer));
        then(&self.exchange, search.finish(&end, lists));
    }
}

impl<T> Hunting<T> {
    /// Peers that are asked next, and for which names, while so many are asked at a time. None where there is nothing more to do in
    /// this turn: connected ones have not answered, all that may be are asked, or no name is open.
    fn next_round(&mut self, most: usize) -> Option<(Vec<usize>, Vec<PeerName>)> {
        let names = self.search.open();
        let room = most.saturating_sub(self.asked.len()).min(self.queue.len());
        let may_ask = self.is_round || self.asked.is_empty();
        let is_over = self.waits || self.then.is_none() || names.is_empty();
        let rounds = self.rounds.as_mut().filter(|_| may_ask && !is_over && room > 0);
        let Some(rounds) = rounds else {
            return if self.turn.end() { Some((names, Vec::new())) } else { None };
        };
        self.is_round = true;
        let next: Vec<PeerName> = self.queue.drain(..room).collect();
        *rounds += next.len();
        self.asked.extend(next.iter().map(|peer| (peer.clone(), None)));
        Some((names, next))
    }

    /// Returns whether nobody is asked any more whose answer would be of use, or is to be.
    fn is_answered(&self) -> bool {
        let asks_on = self.rounds.is_some() && !self.queue.is_empty() && !self.search.open().is_empty();
        !self.turn.is_taken() && (self.search.is_complete() || self.asked.is_empty() && !asks_on)
    }
}

impl<T: Send + 'static> Waiter for Hunt<T> {
    fn look(&self, name: &TensorName) -> bool {
        let me = &self.exchange.me().peer;
        self.step(name, |search| {
            search.look_here(me, Some(name), |names| (self.look)(&self.exchange, names));
        })
    }

    fn told(&self, key: &Key, told: &Result<There, Failure>) -> bool {
        self.step(&key.name, |search| search.told(key, told))
    }

    fn due(&self) {
        let waits = {
            let mut state = self.state.lock();
            if state.waits {
                // What came in this moment is not known to have come.
                let me = &self.exchange.me().peer;
                state.search.look_here(me, None, |names| (self.look)(&self.exchange, names));
            }
            state.waits
        };
        match waits {
            true => self.finish(None),
            false => self.first_answered(),
        }
    }

    fn leave(&self) {
        self.finish(self.exchange.gate.is_closed().then(gate::draining));
    }
}

#[cfg(test)]
mod tests;
