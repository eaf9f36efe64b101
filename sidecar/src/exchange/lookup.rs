//! Finding names: here first, else at all connected peers; now, or when they appear.

use std::collections::{BTreeSet, HashMap};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::wire;

use super::describe::describe_result;
use super::{Caller, Exchange};
use crate::cancel::Cancel;
use crate::clock;
use crate::gate;
use crate::peer::CallHandle;
use crate::store::Own;

/// How long the peers may take to answer a question that waits for nothing. One that does not is not connected enough.
const ANSWER: Duration = Duration::from_secs(2);

/// How often a lookup that waits looks for peers that have come since, or that answered without a name that is missing.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What a name stands for.
#[derive(Debug, Clone)]
pub(super) enum Found<T> {
    /// A tensor of this peer, with what was made of it in the moment in which the name was seen.
    Here(T),
    /// Another peer's.
    There(Box<There>),
}

/// A tensor of another peer, as it describes it.
#[derive(Debug, Clone)]
pub(super) struct There {
    pub(super) reference: Reference,
    pub(super) description: v1::Description,
}

/// Something that may have changed the answer.
enum News {
    /// A name was given here, or the caller cancelled.
    Look,
    /// A peer answered about some of the names.
    Answer { peer: PeerName, names: Vec<usize>, outcome: Result<v1::Inquired, Failure> },
}

/// One lookup of several names.
struct Search<T> {
    wanted: Vec<(Option<PeerName>, TensorName)>,
    found: Vec<Option<Result<Found<T>, Failure>>>,
    remote: HashMap<usize, Vec<There>>,
    /// Who has not answered yet, and the question.
    asked: HashMap<PeerName, CallHandle>,
    /// Who did not answer a question in time, and none since: what they have is not known.
    silent: BTreeSet<PeerName>,
}

/// Results for names of this peer, in order: none for a name that it does not have.
type Looked<T> = Vec<Option<Result<T, Failure>>>;

/// Work on names of this peer, done where they are seen.
type Look<'a, T> = dyn Fn(&[&TensorName]) -> Looked<T> + 'a;

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
        self.on_waiter(Box::new(done), move |exchange| {
            let names: Vec<_> = request.names.iter().map(|n| TensorName::new(n)).collect();
            let wanted = names.iter().flatten().map(|n| (peer.clone(), n.clone())).collect();
            let within = wait + ANSWER;
            let deadline = Instant::now()
                + match request.deadline_ms {
                    0 => within,
                    ms => within.min(Duration::from_millis(ms)),
                };
            let look = |names: &[&TensorName]| exchange.stood_for(names);
            let mut found = exchange.find(wanted, wait, deadline, &caller.cancel, look).into_iter();
            if exchange.gate.is_closed() {
                return Err(gate::draining());
            }
            let result = |name: Result<TensorName, _>| match name {
                Ok(_) => found.next().unwrap_or_else(|| Err(Failure::new(Reason::Internal, "no answer"))),
                Err(error) => {
                    let error: tensorlane_proto::ledger::NameError = error;
                    Err(Failure::new(Reason::InvalidArgument, error.to_string()))
                }
            };
            let found: Vec<_> = names.into_iter().map(result).collect();
            let described = |found: Result<_, _>| found.map(|found| exchange.described(found));
            let results = found.into_iter().map(|found| describe_result(described(found))).collect();
            Ok(v1::LookupResponse { results })
        });
    }

    /// Blocks until every name is found, or `wait` is over, or the caller cancels. `look` does with names of this peer what they
    /// are wanted for, in one step each: what is done in a later one may find that a name was replaced.
    pub(super) fn find<T>(
        self: &Arc<Self>,
        wanted: Vec<(Option<PeerName>, TensorName)>,
        wait: Duration,
        deadline: Instant,
        cancel: &Cancel,
        look: impl Fn(&[&TensorName]) -> Looked<T>,
    ) -> Vec<Result<Found<T>, Failure>> {
        let started = Instant::now();
        let (news, hear) = channel();
        let mut search = Search::new(wanted);
        search.look_here(&self.me().peer, &look);
        self.ask_peers(&mut search, Duration::ZERO, &news);
        self.hear(&mut search, &hear, deadline.min(started + ANSWER), cancel, None);
        search.silent.extend(search.asked.keys().cloned());
        search.settle_remote();
        if !search.is_complete() && !wait.is_zero() && !cancel.is_cancelled() {
            let until = deadline.min(started + wait);
            let waker = news.clone();
            let at_end = news.clone();
            let _ending = self.gate.ending().while_waiting(Arc::new(move || drop(at_end.send(News::Look))));
            let _woken = cancel.while_waiting(Arc::new(move || drop(waker.send(News::Look))));
            let _waits: Vec<_> = search
                .missing_here(&self.me().peer)
                .map(|name| {
                    let wake = news.clone();
                    self.store.await_name(name, move || drop(wake.send(News::Look)))
                })
                .collect();
            loop {
                let now = Instant::now();
                if search.is_complete() || cancel.is_cancelled() || self.gate.is_closed() || now >= until {
                    break;
                }
                self.ask_peers(&mut search, until - now, &news);
                self.hear(&mut search, &hear, until.min(now + ASK_AGAIN), cancel, Some(&look));
            }
        }
        search.withdraw();
        let unasked = self.peers.get().map_or(0, |peers| peers.unconnected());
        let limit = deadline.min(started + wait.max(ANSWER)).saturating_duration_since(started);
        search.finish(unasked, limit, cancel)
    }

    /// Asks every peer that may have a missing name and has no question to answer already.
    fn ask_peers<T>(&self, search: &mut Search<T>, wait: Duration, news: &Sender<News>) {
        let Some(peers) = self.peers.get() else { return };
        let deadline = Instant::now() + wait + ANSWER;
        let mut asked: HashMap<PeerName, Vec<usize>> = HashMap::new();
        let connected = peers.connected();
        for (index, (peer, _)) in search.wanted.iter().enumerate() {
            if search.found[index].is_some() {
                continue;
            }
            match peer {
                Some(peer) if *peer != self.me().peer => asked.entry(peer.clone()).or_default().push(index),
                Some(_) => {}
                None => connected.iter().for_each(|p| asked.entry(p.clone()).or_default().push(index)),
            }
        }
        asked.retain(|peer, _| !search.asked.contains_key(peer));
        for (peer, names) in asked {
            let target = |index: &usize| v1::Target {
                kind: Some(v1::target::Kind::Name(search.wanted[*index].1.to_string())),
                peer: String::new(),
            };
            let targets = names.iter().map(target).collect();
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            let (news, who) = (news.clone(), peer.clone());
            let asked = peer.clone();
            let call = peers.inquire(
                &peer,
                None,
                v1::Inquire { targets, wait_ms, copies: false },
                deadline,
                move |outcome| {
                    // A lookup that has ended does not listen any more.
                    let _ = news.send(News::Answer { peer: who, names, outcome });
                },
            );
            search.asked.insert(asked, call);
        }
    }

    /// Takes news until there is nothing more to hear, or everything is found. While names are waited for, by `look`, until a peer
    /// had some of those that it was asked for: it answers once, and has to be asked again for the others.
    fn hear<T>(
        &self,
        search: &mut Search<T>,
        hear: &Receiver<News>,
        until: Instant,
        cancel: &Cancel,
        waiting: Option<&Look<'_, T>>,
    ) {
        while !search.is_complete()
            && !cancel.is_cancelled()
            && !self.gate.is_closed()
            && (waiting.is_some() || !search.asked.is_empty())
        {
            match hear.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(News::Look) => waiting.iter().for_each(|look| search.look_here(&self.me().peer, look)),
                Ok(News::Answer { peer, names, outcome }) => {
                    search.asked.remove(&peer);
                    search.answered(&peer, &names, outcome);
                    if waiting.is_some() && search.settle_remote() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// What names of this peer stand for, at one moment; none for those that it does not have.
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

// === impl Search ===

impl<T> Search<T> {
    fn new(wanted: Vec<(Option<PeerName>, TensorName)>) -> Self {
        let found = wanted.iter().map(|_| None).collect();
        Self { wanted, found, remote: HashMap::new(), asked: HashMap::new(), silent: BTreeSet::new() }
    }

    fn is_complete(&self) -> bool {
        self.found.iter().all(Option::is_some)
    }

    /// Names that this peer has.
    fn look_here(&mut self, me: &PeerName, look: impl Fn(&[&TensorName]) -> Looked<T>) {
        let missing = self
            .wanted
            .iter()
            .zip(&mut self.found)
            .filter(|((peer, _), found)| found.is_none() && peer.as_ref().is_none_or(|p| p == me));
        let (names, places): (Vec<_>, Vec<_>) = missing.map(|((_, name), found)| (name, found)).unzip();
        for (place, seen) in places.into_iter().zip(look(&names)) {
            *place = seen.map(|seen| seen.map(Found::Here));
        }
    }

    fn missing_here<'a>(&'a self, me: &'a PeerName) -> impl Iterator<Item = TensorName> + 'a {
        let missing = self.wanted.iter().zip(&self.found).filter(|(_, found)| found.is_none());
        missing
            .filter(move |((peer, _), _)| peer.as_ref().is_none_or(|p| p == me))
            .map(|((_, name), _)| name.clone())
    }

    /// What a peer said of the names it was asked for.
    fn answered(&mut self, peer: &PeerName, names: &[usize], outcome: Result<v1::Inquired, Failure>) {
        let results = match outcome {
            Ok(inquired) => {
                self.silent.remove(peer);
                inquired.results
            }
            // A peer that was asked for by name and cannot be is the answer, one that is late is told of at the end; one of many
            // is just absent.
            Err(failure) => {
                self.silent.insert(peer.clone());
                if failure.reason == Reason::DeadlineExceeded {
                    return;
                }
                for index in names {
                    if self.wanted[*index].0.is_some() && self.found[*index].is_none() {
                        self.found[*index] = Some(Err(failure.clone()));
                    }
                }
                return;
            }
        };
        for (index, result) in names.iter().zip(results) {
            match there(result) {
                Ok(there) if there.reference.peer() == peer => {
                    let all = self.remote.entry(*index).or_default();
                    all.retain(|t| t.reference.peer() != peer);
                    all.push(there);
                }
                // A name of a copy, or of somebody else's tensor, is nothing that this peer can speak for.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// One owner is the answer; two are an error that names both. Whether there was anything to settle.
    fn settle_remote(&mut self) -> bool {
        let any = !self.remote.is_empty();
        for (index, theirs) in self.remote.drain() {
            if self.found[index].is_some() {
                continue;
            }
            self.found[index] = match theirs.as_slice() {
                [] => None,
                [one] => Some(Ok(Found::There(Box::new(one.clone())))),
                several => Some(Err(ambiguous(&self.wanted[index].1, several))),
            };
        }
        any
    }

    /// Every question ends with its lookup: else the other side would wait for a name that nobody here wants any more.
    fn withdraw(&mut self) {
        self.asked.drain().for_each(|(_, call)| call.cancel());
    }

    /// `unasked`: peers that are listed and not connected; `limit`: how long the others had.
    fn finish(self, unasked: usize, limit: Duration, cancel: &Cancel) -> Vec<Result<Found<T>, Failure>> {
        let Self { wanted, found, silent, .. } = self;
        let missing = |(peer, name): (Option<PeerName>, TensorName)| match peer {
            _ if cancel.is_cancelled() => Failure::new(Reason::Cancelled, "the caller gave up the lookup"),
            Some(peer) if silent.contains(&peer) => not_told(&peer, &name, limit),
            Some(peer) => not_found(&name, &format!("at {peer}")),
            None if silent.is_empty() => {
                not_found(&name, &format!("here or at any connected peer{}", not_asked(unasked)))
            }
            None => {
                let silent: Vec<&str> = silent.iter().map(PeerName::as_str).collect();
                let scope = format!("here or at any peer that answered, which {} did not", silent.join(", "));
                not_found(&name, &scope).with("silent", silent.join(","))
            }
        };
        found
            .into_iter()
            .zip(wanted)
            .map(|(found, wanted)| found.unwrap_or_else(|| Err(missing(wanted))))
            .collect()
    }
}

fn not_found(name: &TensorName, scope: &str) -> Failure {
    let why =
        format!("nothing is named {name} {scope}; List (`tensorlane ls`) tells names, a wait lasts for one");
    Failure::new(Reason::NotFound, why).with("name", name)
}

/// ` (1 peer is listed and not connected, so it was not asked; name it to ask it)`, or nothing.
fn not_asked(unasked: usize) -> String {
    match unasked {
        0 => String::new(),
        1 => " (1 peer is listed and not connected, so it was not asked; name it to ask it)".to_owned(),
        more => format!(
            " ({more} peers are listed and not connected, so they were not asked; name one to ask it)"
        ),
    }
}

/// Of a peer that did not answer it is not known what it has.
fn not_told(peer: &PeerName, name: &TensorName, limit: Duration) -> Failure {
    let why = format!(
        "{peer} did not say within {} whether it has {name}; `tensorlane routes` tells how it is reached, a wait gives it longer",
        clock::told(limit)
    );
    Failure::new(Reason::PeerUnreachable, why).with("name", name)
}

/// A peer's description, with its reference proven.
pub(super) fn there(result: v1::DescribeResult) -> Result<There, Failure> {
    use v1::describe_result::Outcome;
    match result.outcome {
        Some(Outcome::Description(description)) => {
            let reference = Reference::from_str(&description.reference)?;
            Ok(There { reference, description })
        }
        Some(Outcome::Failure(failure)) => Err(wire::failure(failure)),
        None => Err(Failure::new(Reason::Internal, "the peer gave no answer for this item")),
    }
}

fn ambiguous(name: &TensorName, owners: &[There]) -> Failure {
    let peers: Vec<&str> = owners.iter().map(|o| o.reference.peer().as_str()).collect();
    Failure::new(
        Reason::AmbiguousName,
        format!("{name} is the name of tensors of {}; say which peer's is meant", peers.join(" and ")),
    )
    .with("peers", peers.join(","))
}
