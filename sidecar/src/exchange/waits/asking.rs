//! Questions to peers for those who wait here: one question for many waits. Pure; `C` is the call that asks.
//!
//! However many wait for a name, a peer is asked for it once at a time. A question waits at the peer, and is answered when
//! one of its names appears there; the others are then asked for anew.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::TensorName;

/// Most names of one question: even if a peer has all of them, the answer fits a frame.
const NAMES_MAX: usize = 512;
/// Most questions that wait at one peer. When there are more, all are asked anew in as few as there can be. Names beyond
/// both bounds wait for their turn.
const QUESTIONS_MAX: usize = 64;

/// A peer that had none of the names, or could not say, is not asked again before.
pub(super) const REST: Duration = Duration::from_millis(500);

/// All questions under way.
pub(super) struct Asking<C> {
    peers: HashMap<PeerName, AtPeer<C>>,
    last: u64,
}

struct AtPeer<C> {
    questions: HashMap<u64, Question<C>>,
    rests_until: Option<Instant>,
}

struct Question<C> {
    names: Vec<TensorName>,
    /// None until the call is made.
    call: Option<C>,
}

/// Plan of what is to be done at one peer.
#[derive(Debug)]
pub(super) struct Plan<C> {
    pub(super) ask: Vec<(u64, Vec<TensorName>)>,
    /// Questions to which nobody wants an answer any more.
    pub(super) withdraw: Vec<C>,
}

// === impl Asking ===

impl<C> Default for Asking<C> {
    fn default() -> Self {
        Self { peers: HashMap::new(), last: 0 }
    }
}

impl<C> Asking<C> {
    /// Decides what a peer is asked for now, where these names are wanted of it.
    pub(super) fn plan(&mut self, peer: &PeerName, wanted: &HashSet<TensorName>, now: Instant) -> Plan<C> {
        let mut plan = Plan { ask: Vec::new(), withdraw: Vec::new() };
        if wanted.is_empty() && !self.peers.contains_key(peer) {
            return plan;
        }
        let new = || AtPeer { questions: HashMap::new(), rests_until: None };
        let at = self.peers.entry(peer.clone()).or_insert_with(new);
        let useless = |question: &Question<C>| !question.names.iter().any(|name| wanted.contains(name));
        plan.withdraw = take_calls(at.questions.extract_if(|_, question| useless(question)));
        if wanted.is_empty() {
            self.peers.remove(peer);
            return plan;
        }
        if at.rests_until.is_some_and(|until| now < until) {
            return plan;
        }
        let mut missing: Vec<TensorName> = {
            let asked: HashSet<_> = at.questions.values().flat_map(|question| &question.names).collect();
            wanted.iter().filter(|name| !asked.contains(name)).cloned().collect()
        };
        if missing.is_empty() {
            return plan;
        }
        if at.questions.len() + missing.len().div_ceil(NAMES_MAX) > QUESTIONS_MAX {
            plan.withdraw.extend(take_calls(at.questions.drain()));
            missing = wanted.iter().cloned().collect();
        }
        for names in missing.chunks(NAMES_MAX).take(QUESTIONS_MAX) {
            self.last += 1;
            at.questions.insert(self.last, Question { names: names.to_vec(), call: None });
            plan.ask.push((self.last, names.to_vec()));
        }
        plan
    }

    /// The call of a question was made; given back if the question is over already.
    pub(super) fn asked(&mut self, peer: &PeerName, number: u64, call: C) -> Option<C> {
        let at = self.peers.get_mut(peer);
        match at.and_then(|at| at.questions.get_mut(&number)) {
            Some(question) => {
                question.call = Some(call);
                None
            }
            None => Some(call),
        }
    }

    /// A question was answered: its names, if anybody waits for the answer.
    pub(super) fn answered(&mut self, peer: &PeerName, number: u64) -> Option<Vec<TensorName>> {
        let at = self.peers.get_mut(peer)?;
        at.questions.remove(&number).map(|question| question.names)
    }

    /// A peer is not to be asked for a while.
    pub(super) fn rest(&mut self, peer: &PeerName, now: Instant) {
        if let Some(at) = self.peers.get_mut(peer) {
            at.rests_until = Some(now + REST);
        }
    }

    /// Peers that were asked and not forgotten.
    pub(super) fn peers(&self) -> impl Iterator<Item = &PeerName> {
        self.peers.keys()
    }
}

fn take_calls<C>(questions: impl Iterator<Item = (u64, Question<C>)>) -> Vec<C> {
    questions.filter_map(|(_, question)| question.call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(range: std::ops::Range<usize>) -> HashSet<TensorName> {
        range.map(|n| TensorName::new(&format!("n/{n}")).unwrap()).collect()
    }

    fn peer() -> PeerName {
        "there".parse().unwrap()
    }

    fn asked(asking: &mut Asking<u64>, plan: &Plan<u64>) -> usize {
        plan.ask.iter().for_each(|(number, _)| assert_eq!(asking.asked(&peer(), *number, *number), None));
        plan.ask.iter().map(|(_, names)| names.len()).sum()
    }

    #[test]
    fn a_name_is_asked_for_once_at_a_time_and_withdrawn_when_nobody_wants_it() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        let plan = asking.plan(&peer(), &names(0..1), now);
        assert_eq!(asked(&mut asking, &plan), 1);
        let plan = asking.plan(&peer(), &names(0..3), now);
        assert_eq!((asked(&mut asking, &plan), plan.withdraw.len()), (2, 0), "what is new, and that alone");
        let plan = asking.plan(&peer(), &names(1..2), now);
        assert_eq!((plan.ask.len(), plan.withdraw), (0, vec![1]));
        let plan = asking.plan(&peer(), &names(0..0), now);
        assert_eq!((plan.ask.len(), plan.withdraw), (0, vec![2]));
        assert_eq!(asking.peers().count(), 0);
        assert_eq!(asking.asked(&peer(), 2, 2), Some(2), "one that is over already is withdrawn");
    }

    #[test]
    fn an_answer_has_its_names_asked_for_anew_and_one_without_names_not_at_once() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        let plan = asking.plan(&peer(), &names(0..2), now);
        let answered =
            |asking: &mut Asking<u64>, number| asking.answered(&peer(), number).map(|all| all.len());
        assert_eq!(answered(&mut asking, plan.ask[0].0), Some(2));
        assert_eq!(answered(&mut asking, plan.ask[0].0), None, "answered once");
        let plan = asking.plan(&peer(), &names(1..2), now);
        assert_eq!(asked(&mut asking, &plan), 1);
        assert_eq!(answered(&mut asking, plan.ask[0].0), Some(1));
        asking.rest(&peer(), now);
        assert!(asking.plan(&peer(), &names(1..2), now).ask.is_empty());
        assert_eq!(asking.plan(&peer(), &names(1..2), now + REST).ask.len(), 1);
    }

    #[test]
    fn a_peer_has_a_bounded_number_of_questions_however_names_come() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        let mut under_way = 0;
        for most in 1..=QUESTIONS_MAX + 10 {
            let plan = asking.plan(&peer(), &names(0..most), now);
            asked(&mut asking, &plan);
            under_way = under_way + plan.ask.len() - plan.withdraw.len();
            assert!(under_way <= QUESTIONS_MAX);
        }
        assert!(under_way < QUESTIONS_MAX, "they were put together");
        let plan = asking.plan(&peer(), &names(0..NAMES_MAX * QUESTIONS_MAX + 1), now);
        assert_eq!(plan.ask.len(), QUESTIONS_MAX);
    }
}
