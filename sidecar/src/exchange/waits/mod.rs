//! Waits for names: entries in a table, completed by the name, by their deadline or by a cancel. No thread waits for a name.
//!
//! ```text
//!   look-ups, gets and peers' questions ──enter, wait──> Table: who waits for what, until when
//!                                                          │
//!   store: a name appeared here ──┐                        v
//!   peers: an answer ─────────────┼──> news ──> the thread `waits` ──> Waiter: completes, answers its caller
//!   the next deadline ────────────┘             asks store and peers for the names that are waited for, each once
//! ```
//! The thread does what takes a moment, and never waits for anything but news and the next deadline.

mod asking;
mod table;
mod turns;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::TensorName;

pub(super) use self::asking::cost;
use self::asking::{Asking, Plan, ROUND_MAX, Wanted};
use self::table::{Bounds, Limits, Table};
pub(super) use self::table::{Key, Owner, WaitId};
use self::turns::next_turns;
use super::Exchange;
use super::lookup::{ANSWER, There, there};
use crate::gate;
use crate::metrics::label::PanicScope;
use crate::peer::{CallHandle, Question};
use crate::store::NameWait;
use crate::threads::Threads;

/// Most bytes of the waits of one kind.
const ALL_MAX: u64 = 32 << 20;

/// Limits of what waits may take, where those who look up and clients that wait may have so many bytes each. Peers ask by what the
/// protocol allows, whatever memory there is here.
fn limits(all_bytes: u64) -> Limits {
    let all_bytes = all_bytes.min(ALL_MAX);
    let bytes = all_bytes / 4;
    Limits {
        // Over after two seconds at the latest, or after a minute where peers are asked in rounds. One request of the session socket may have 65,536 names.
        asking: Bounds { count: 65_536, bytes: 3 * bytes, all_bytes },
        clients: Bounds { count: 16_384, bytes, all_bytes },
        peers: Bounds { count: 4_096, bytes: 8 << 20, all_bytes: ALL_MAX },
    }
}
/// Time for which a question waits at a peer before it is asked anew.
const QUESTION: Duration = Duration::from_secs(30);
/// Names that come within this are asked for together.
const PACE: Duration = Duration::from_millis(10);
/// Between two rounds of questions is so many times what the last one took: they take a part of one core at most.
const PACE_FACTOR: u32 = 8;
/// Interval of looks for peers that have come since, and those that are to be asked again.
const LOOK_AGAIN: Duration = asking::REST;
const STACK_BYTES: usize = 256 << 10;

/// Somebody who asks or waits. All of it takes a moment, and is called without a lock of the table.
pub(super) trait Waiter: Send + Sync {
    /// A name that it waits for may be here now. Whether it still waits for that.
    fn look(&self, name: &TensorName) -> bool;
    /// A peer has a name that it waits for, or a peer that was asked for by name cannot be asked. Whether it still waits.
    fn told(&self, key: &Key, told: &Result<There, Failure>) -> bool;
    /// Something that it asked for elsewhere has happened, as [`Waits::again`] was told.
    fn again(self: Arc<Self>) {}
    /// The deadline is over.
    fn due(&self);
    /// The caller or the sidecar ends.
    fn leave(&self);
}

/// All who ask for names and wait for them.
pub(super) struct Waits(Arc<Inner>);

struct Inner {
    exchange: Weak<Exchange>,
    threads: Threads,
    state: Mutex<State>,
    /// Taken by the thread alone, and never while it has the state: whoever looks up waits for no plan.
    under_way: Mutex<UnderWay>,
    changed: Condvar,
}

/// Questions to the store and to peers.
#[derive(Default)]
struct UnderWay {
    /// Names that the store was asked to tell of.
    here: HashMap<TensorName, NameWait>,
    asking: Asking<CallHandle>,
    /// Peers without a connection whose turn it is to be asked.
    turns: Vec<PeerName>,
}

struct State {
    table: Table<Arc<dyn Waiter>>,
    news: Vec<News>,
    /// The table as it was when its names were last asked for.
    asked: u64,
    next_round: Instant,
    next_look: Instant,
    thread: Option<JoinHandle<()>>,
    closed: bool,
    stopping: bool,
}

/// Hold of a question at a peer.
#[derive(Clone, Copy)]
struct Held {
    /// Waits for the names to appear.
    waits: bool,
    /// True if nobody asks the peer by its name.
    yields: bool,
}

/// News, and whose deadline is over.
type Work = (Vec<News>, Vec<Arc<dyn Waiter>>);

/// Answer to a question.
struct Answered {
    peer: PeerName,
    number: u64,
    /// True if nobody asked this peer by its name: what it fails with is nobody's answer.
    yields: bool,
    outcome: Result<v1::Inquired, Failure>,
}

enum News {
    Appeared(TensorName),
    Again(Weak<dyn Waiter>),
    Answered(Answered),
}

// === impl Waits ===

impl Waits {
    /// Nobody who waits. Each kind of those of this pod may take so many bytes.
    pub(super) fn new(exchange: Weak<Exchange>, threads: Threads, bytes: u64) -> Self {
        let now = Instant::now();
        let state = State {
            table: Table::new(limits(bytes)),
            news: Vec::new(),
            asked: 0,
            next_round: now,
            next_look: now,
            thread: None,
            closed: false,
            stopping: false,
        };
        Self(Arc::new(Inner {
            exchange,
            threads,
            state: Mutex::new(state),
            under_way: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Takes in somebody who asks; it is told at the deadline.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the limit, or that there is no thread; DRAINING.
    pub(super) fn enter(
        &self,
        owner: Owner,
        bytes: u64,
        deadline: Instant,
        waiter: Arc<dyn Waiter>,
    ) -> Result<WaitId, Failure> {
        let mut state = self.0.state.lock();
        if state.closed {
            return Err(gate::draining());
        }
        self.start(&mut state)?;
        let earlier = state.table.next_deadline().is_none_or(|next| deadline < next);
        let id = state.table.enter(owner, bytes, deadline, waiter)?;
        drop(state);
        if earlier {
            self.0.changed.notify_one();
        }
        Ok(id)
    }

    /// From now on it waits for names, until another deadline.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED with the limit.
    pub(super) fn wait(&self, id: WaitId, keys: Vec<Key>, until: Instant) -> Result<(), Failure> {
        let waits = self.0.state.lock().table.wait(id, keys, until);
        self.0.changed.notify_one();
        waits
    }

    /// Tells one that waits, by the thread of the waits, and not by whoever makes it happen.
    pub(super) fn again(&self, waiter: &Arc<dyn Waiter>) {
        self.0.push(News::Again(Arc::downgrade(waiter)));
    }

    /// A wait is over.
    pub(super) fn remove(&self, id: WaitId) {
        let changed = {
            let mut state = self.0.state.lock();
            let before = state.table.changes();
            state.table.remove(id);
            state.table.changes() != before
        };
        if changed {
            self.0.changed.notify_one();
        }
    }

    /// Sends those who wait away, and takes nobody else in.
    pub(super) fn close(&self) {
        let all = {
            let mut state = self.0.state.lock();
            state.closed = true;
            state.table.all()
        };
        all.iter().for_each(|waiter| waiter.leave());
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        let thread = {
            let mut state = self.0.state.lock();
            (state.closed, state.stopping) = (true, true);
            state.thread.take()
        };
        self.0.changed.notify_one();
        if let Some(thread) = thread {
            // A panic there has been counted.
            let _ = thread.join();
        }
    }

    /// Number of those that wait for names.
    pub(super) fn waiting(&self) -> usize {
        self.0.state.lock().table.waiting()
    }

    /// Bytes of all who ask for names or wait for them.
    pub(super) fn bytes(&self) -> u64 {
        self.0.state.lock().table.bytes()
    }

    /// Most bytes that they may have.
    pub(super) fn most(&self) -> u64 {
        self.0.state.lock().table.most()
    }

    /// The thread is started for the first one.
    fn start(&self, state: &mut State) -> Result<(), Failure> {
        if state.thread.is_some() {
            return Ok(());
        }
        let inner = Arc::clone(&self.0);
        let work = move || inner.work();
        let thread = self.0.threads.start_small(STACK_BYTES, "waits", PanicScope::Process, work);
        state.thread = Some(thread.map_err(|error| {
            Failure::new(Reason::LimitExceeded, format!("no thread for waits is to be had: {error}"))
        })?);
        Ok(())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        // Not joined: it may be that thread which lets the last handle go.
        self.0.state.lock().stopping = true;
        self.0.changed.notify_one();
    }
}

// === impl Inner ===

impl Inner {
    fn work(&self) {
        while let Some((news, due)) = self.next() {
            for one in news {
                match one {
                    News::Appeared(name) => self.appeared(&name),
                    News::Again(waiter) => {
                        if let Some(waiter) = waiter.upgrade() {
                            let _ = self.threads.caught("waits", PanicScope::Call, || waiter.again());
                        }
                    }
                    News::Answered(answered) => self.answered(answered),
                }
            }
            for waiter in due {
                let _ = self.threads.caught("waits", PanicScope::Call, || waiter.due());
            }
            self.round();
        }
    }

    /// Sleeps until there is something to do.
    fn next(&self) -> Option<Work> {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return None;
            }
            let (now, wakes_at) = (Instant::now(), state.wakes_at());
            let due = state.table.due(now);
            if !state.news.is_empty() || !due.is_empty() || wakes_at.is_some_and(|at| at <= now) {
                return Some((std::mem::take(&mut state.news), due));
            }
            match wakes_at {
                Some(at) => {
                    let _ = self.changed.wait_until(&mut state, at);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn push(&self, news: News) {
        self.state.lock().news.push(news);
        self.changed.notify_one();
    }

    /// A name was given here.
    fn appeared(&self, name: &TensorName) {
        let Some(exchange) = self.exchange.upgrade() else { return };
        let me = Some(exchange.me().peer.clone());
        let over = self.under_way.lock().here.remove(name);
        drop(over);
        for at in [None, me] {
            let key = Key { at, name: name.clone() };
            self.tell(&key, |waiter| waiter.look(name));
        }
    }

    /// A peer has answered a question.
    fn answered(&self, answered: Answered) {
        let Answered { ref peer, number, yields, outcome } = answered;
        let Some(names) = self.under_way.lock().asking.answered(peer, number) else { return };
        let keys = |name: &TensorName| [None, Some(peer.clone())].map(|at| Key { at, name: name.clone() });
        let mut found = false;
        match outcome {
            Ok(inquired) => {
                for (name, result) in names.iter().zip(inquired.results) {
                    // A name of somebody else's tensor is nothing that this peer can speak for.
                    let there = match there(result) {
                        Ok(there) => there,
                        // Whoever waits for this peer hears that it is there, and has no such name yet.
                        Err(failure) if failure.reason == Reason::NotFound => {
                            let ([_, key], told) = (keys(name), Err(failure));
                            self.tell(&key, |waiter| waiter.told(&key, &told));
                            continue;
                        }
                        Err(_) => continue,
                    };
                    if there.reference.peer() != peer {
                        continue;
                    }
                    found = true;
                    let told = Ok(there);
                    keys(name).iter().for_each(|key| self.tell(key, |waiter| waiter.told(key, &told)));
                }
            }
            // It was asked for longer than it may take, and is asked again.
            Err(failure) if yields || failure.reason == Reason::DeadlineExceeded => {}
            // One of many is just absent; one that was asked for by name is the answer.
            Err(failure) => {
                let told = Err(failure);
                for [_, key] in names.iter().map(keys) {
                    self.tell(&key, |waiter| waiter.told(&key, &told));
                }
            }
        }
        if found {
            self.state.lock().asked = 0;
        } else {
            self.under_way.lock().asking.rest(peer, Instant::now());
        }
    }

    /// Tells all who wait for a name; `tell` says whether one still does.
    fn tell(&self, key: &Key, tell: impl Fn(&dyn Waiter) -> bool) {
        let waiting = self.state.lock().table.take(key);
        for (id, waiter) in waiting {
            let waits = self.threads.caught("waits", PanicScope::Call, || tell(&*waiter));
            if waits == Some(true) {
                self.state.lock().table.put_back(id, key);
            }
        }
    }

    /// Asks the store and the peers for names that are waited for and not asked for, and withdraws what nobody waits for.
    fn round(&self) {
        let began = Instant::now();
        let is_due =
            |state: &State| state.wants_round() && state.next_round <= began || state.next_look <= began;
        if !is_due(&self.state.lock()) {
            return;
        }
        let Some(exchange) = self.exchange.upgrade() else { return };
        let peers = exchange.peers.get();
        let connected = peers.map(|peers| peers.connected()).unwrap_or_default();
        let me = &exchange.me().peer;
        let (keys, is_look) = {
            let mut state = self.state.lock();
            state.asked = state.table.changes();
            (state.table.wanted(), state.next_look <= began)
        };
        let is_turn = is_look && keys.iter().any(|(key, _)| key.at.is_none());
        // All peers of the table are visited, and nobody else waits for that.
        let (resting, most) = match peers.filter(|_| is_turn) {
            Some(peers) => (peers.resting(), peers.round()),
            None => (Vec::new(), 0),
        };
        let mut room = ROUND_MAX;
        let (listen, deaf, named, plans) = {
            let mut under_way = self.under_way.lock();
            if is_look {
                under_way.turns = next_turns(&resting, under_way.turns.last(), most);
            }
            let (listen, deaf) = under_way.plan_here(&keys, me);
            let (named, plans) = under_way.plan_there(&keys, me, &connected, began, &mut room);
            (listen, deaf, named, plans)
        };
        drop(deaf);
        for name in listen {
            let (waits, appeared) = (Arc::downgrade(&exchange.waits.0), name.clone());
            let wake = move || {
                if let Some(waits) = waits.upgrade() {
                    waits.push(News::Appeared(appeared));
                }
            };
            let wait = exchange.store.await_name(name.clone(), wake);
            let before = self.under_way.lock().here.insert(name, wait);
            drop(before);
        }
        for (peer, Plan { ask, withdraw }) in plans {
            withdraw.iter().for_each(CallHandle::cancel);
            let held = Held { waits: connected.contains(&peer), yields: !named.contains(&peer) };
            ask.into_iter().for_each(|(number, names)| self.ask(&exchange, (&peer, number), names, held));
        }
        let (mut state, now) = (self.state.lock(), Instant::now());
        if room == 0 {
            // The rest is for the next round.
            state.asked = 0;
        }
        state.next_round = now + PACE.max((now - began) * PACE_FACTOR);
        state.next_look = state.next_round.max(now + LOOK_AGAIN);
    }

    fn ask(
        &self,
        exchange: &Exchange,
        (peer, number): (&PeerName, u64),
        names: Arc<[TensorName]>,
        Held { waits, yields }: Held,
    ) {
        let Some(peers) = exchange.peers.get() else { return };
        // One that is asked in its turn alone says what there is now, and is connected for that.
        let (wait, yields_seat) = if waits || !yields { (QUESTION, yields) } else { (Duration::ZERO, false) };
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let rest = v1::Inquire { wait_ms, yields: yields_seat, ..v1::Inquire::default() };
        let question = Question::of_names(names, rest);
        let (table, who) = (Arc::downgrade(&exchange.waits.0), peer.clone());
        let deadline = Instant::now() + wait + ANSWER;
        let call = peers.inquire(peer, None, question, deadline, move |outcome| {
            if let Some(table) = table.upgrade() {
                table.push(News::Answered(Answered { peer: who, number, yields, outcome }));
            }
        });
        // What was answered at once needs no handle any more; else it is over, and nobody wants an answer.
        let over = self.under_way.lock().asking.asked(peer, number, call);
        if let Some(call) = over {
            call.cancel();
        }
    }
}

// === impl State ===

impl State {
    /// True if names are waited for that are not asked for, or asked for and not waited for.
    fn wants_round(&self) -> bool {
        self.asked != self.table.changes()
    }

    fn wakes_at(&self) -> Option<Instant> {
        let round = self.wants_round().then_some(self.next_round);
        let look = (self.table.waiting() > 0).then_some(self.next_look);
        [self.table.next_deadline(), round, look].into_iter().flatten().min()
    }
}

// === impl UnderWay ===

impl UnderWay {
    /// Names that the store is to tell of from now on, and those of which it need not any more.
    fn plan_here(&mut self, keys: &[(Key, Vec<u32>)], me: &PeerName) -> (Vec<TensorName>, Vec<NameWait>) {
        let is_here = |at: &Option<PeerName>| at.as_ref().is_none_or(|peer| peer == me);
        let wanted: HashSet<&TensorName> =
            keys.iter().filter(|(key, _)| is_here(&key.at)).map(|(key, _)| &key.name).collect();
        let listen = wanted.iter().filter(|name| !self.here.contains_key(**name));
        let listen = listen.map(|name| (*name).clone()).collect();
        let deaf = self.here.extract_if(|name, _| !wanted.contains(name)).map(|(_, wait)| wait).collect();
        (listen, deaf)
    }

    /// Plan of what is to be done at the peers, and which of them are asked by their names.
    fn plan_there(
        &mut self,
        keys: &[(Key, Vec<u32>)],
        me: &PeerName,
        connected: &[PeerName],
        now: Instant,
        room: &mut u64,
    ) -> (HashSet<PeerName>, Vec<(PeerName, Plan<CallHandle>)>) {
        let (mut any, mut named) = (Wanted::default(), HashMap::<PeerName, Wanted>::new());
        for (key, owners) in keys {
            match &key.at {
                None => any.add(&key.name, owners),
                Some(peer) if peer == me => {}
                Some(peer) => named.entry(peer.clone()).or_default().add(&key.name, owners),
            }
        }
        let by_name: HashSet<PeerName> = named.keys().cloned().collect();
        let mut plans = Vec::new();
        let turns = self.turns.iter().filter(|peer| !connected.contains(peer));
        for peer in connected.iter().chain(turns).cloned() {
            let plan = match named.remove(&peer) {
                Some(names) => self.asking.plan(&peer, &names.and(&any), now, room),
                None => self.asking.plan(&peer, &any, now, room),
            };
            plans.push((peer, plan));
        }
        for (peer, names) in named {
            let plan = self.asking.plan(&peer, &names, now, room);
            plans.push((peer, plan));
        }
        let done: HashSet<&PeerName> = plans.iter().map(|(peer, _)| peer).collect();
        let others: Vec<PeerName> =
            self.asking.peers().filter(|peer| !done.contains(peer)).cloned().collect();
        for peer in others {
            // It is not connected any more, and nobody asks for it by name.
            let plan = self.asking.plan(&peer, &Wanted::default(), now, room);
            plans.push((peer, plan));
        }
        (by_name, plans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_this_pod_have_parts_of_what_there_is_and_those_of_peers_what_the_protocol_allows() {
        let of = |bounds: Bounds| (bounds.bytes >> 20, bounds.all_bytes >> 20);
        let shown = |limits: Limits| [limits.asking, limits.clients, limits.peers].map(of);
        assert_eq!(shown(limits(8 << 20)), [(6, 8), (2, 8), (8, 32)]);
        assert_eq!(shown(limits(u64::MAX)), [(24, 32), (8, 32), (8, 32)]);
    }
}
