//! Questions to peers for those who wait here: one question for many waits. Pure; `C` is the call that asks.
//!
//! However many wait for a name, a peer is asked for it once at a time. A question waits at the peer, and is answered when
//! one of its names appears there; the others are then asked for anew.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::TensorName;

/// Most names of one question: even if a peer has all of them, the answer fits a frame.
const NAMES_MAX: usize = 512;
/// Bytes that a wait takes beside its names: the call, who waits, its places in the table.
const WAIT_BYTES: u64 = 1_024;
/// Bytes that a name takes in a wait beside its own, with the room for what is found.
const NAME_BYTES: u64 = 320;
/// Most questions that wait at one peer. When there are more, all are asked anew in as few as there can be. Names beyond
/// both bounds wait for their turn.
const QUESTIONS_MAX: usize = 64;
/// Most that the names of all questions at one peer may cost, as the peer counts them. It takes 8 MiB of us; the
/// rest is for the first questions of look-ups, which wait for nothing here.
const AT_PEER_MAX: u64 = 7 << 20;
/// Most of that where an owner has much there: the last quarter is for those who have little.
const MANY_MAX: u64 = AT_PEER_MAX / 4 * 3;
/// Most that the names of an owner cost at one peer that has little there: some 2,000 names.
const FEW_MAX: u64 = AT_PEER_MAX / 8;
/// Most that the names may cost that are asked for in one round, at all peers together: so much is written at once.
pub(super) const ROUND_MAX: u64 = 16 << 20;

/// A peer that had none of the names, or could not say, is not asked again before.
pub(super) const REST: Duration = Duration::from_millis(500);

/// All questions under way.
pub(super) struct Asking<C> {
    peers: HashMap<PeerName, AtPeer<C>>,
    last: u64,
}

struct AtPeer<C> {
    questions: HashMap<u64, Question<C>>,
    /// Cost of their names.
    bytes: u64,
    rests_until: Option<Instant>,
}

/// Question under way. The names are those of the table, and its call has the same list.
struct Question<C> {
    names: Arc<[TensorName]>,
    /// None until the call is made.
    call: Option<C>,
}

/// Names that are wanted of a peer, each with the numbers of the owners in whose shares it is waited for.
#[derive(Debug, Default)]
pub(super) struct Wanted(HashMap<TensorName, Vec<u32>>);

/// Plan of what is to be done at one peer.
#[derive(Debug)]
pub(super) struct Plan<C> {
    pub(super) ask: Vec<(u64, Arc<[TensorName]>)>,
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
    /// Decides what a peer is asked for now, where these names are wanted of it. `room` is what the questions of this round may yet cost;
    /// what finds none is for the next round.
    pub(super) fn plan(&mut self, peer: &PeerName, wanted: &Wanted, now: Instant, room: &mut u64) -> Plan<C> {
        let mut plan = Plan { ask: Vec::new(), withdraw: Vec::new() };
        if wanted.0.is_empty() && !self.peers.contains_key(peer) {
            return plan;
        }
        let new = || AtPeer { questions: HashMap::new(), bytes: 0, rests_until: None };
        let at = self.peers.entry(peer.clone()).or_insert_with(new);
        let useless = |question: &Question<C>| !question.names.iter().any(|name| wanted.0.contains_key(name));
        plan.withdraw = at.take(useless);
        if wanted.0.is_empty() {
            self.peers.remove(peer);
            return plan;
        }
        if at.rests_until.is_some_and(|until| now < until) || at.bytes >= AT_PEER_MAX {
            return plan;
        }
        let mut next = wanted.in_turns(&at.asked(), at.bytes);
        if at.questions.len() + next.len().div_ceil(NAMES_MAX) > QUESTIONS_MAX {
            plan.withdraw.extend(at.take(|_| true));
            next = wanted.in_turns(&HashSet::new(), at.bytes);
        }
        for names in next.chunks(NAMES_MAX).take(QUESTIONS_MAX) {
            let bytes = cost(names.iter());
            if *room == 0 || at.bytes >= AT_PEER_MAX {
                break;
            }
            *room = room.saturating_sub(bytes);
            self.last += 1;
            let names: Arc<[TensorName]> = names.into();
            at.bytes += bytes;
            at.questions.insert(self.last, Question { names: Arc::clone(&names), call: None });
            plan.ask.push((self.last, names));
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
    pub(super) fn answered(&mut self, peer: &PeerName, number: u64) -> Option<Arc<[TensorName]>> {
        let at = self.peers.get_mut(peer)?;
        let question = at.questions.remove(&number)?;
        at.bytes -= cost(question.names.iter());
        Some(question.names)
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

impl<C> AtPeer<C> {
    /// Names of all questions.
    fn asked(&self) -> HashSet<&TensorName> {
        self.questions.values().flat_map(|question| &*question.names).collect()
    }

    /// Takes questions out: their calls.
    fn take(&mut self, is_taken: impl Fn(&Question<C>) -> bool) -> Vec<C> {
        let Self { questions, bytes, .. } = self;
        let taken = questions.extract_if(|_, question| is_taken(question));
        taken
            .filter_map(|(_, question)| {
                *bytes -= cost(question.names.iter());
                question.call
            })
            .collect()
    }
}

// === impl Wanted ===

impl Wanted {
    /// Adds a name that these owners wait for.
    pub(super) fn add(&mut self, name: &TensorName, owners: &[u32]) {
        let all = self.0.entry(name.clone()).or_default();
        all.extend_from_slice(owners);
        all.sort_unstable();
        all.dedup();
    }

    /// Joins what else is wanted.
    pub(super) fn and(mut self, other: &Self) -> Self {
        other.0.iter().for_each(|(name, owners)| self.add(name, owners));
        self
    }

    /// Names to be asked for beside those that are, whose questions cost so much. Owners have turns, so that the names of whoever
    /// wants many come last; and of those with much at the peer none is asked for in the last quarter of what that takes.
    fn in_turns(&self, asked: &HashSet<&TensorName>, mut bytes: u64) -> Vec<TensorName> {
        let mut shares = HashMap::<u32, u64>::new();
        for (name, owners) in asked.iter().filter_map(|name| self.0.get_key_value(*name)) {
            owners.iter().for_each(|owner| *shares.entry(*owner).or_default() += name_cost(name));
        }
        // Each with what its owner has there up to it.
        let mut turns = Vec::new();
        for (name, owners) in self.0.iter().filter(|(name, _)| !asked.contains(name)) {
            for owner in owners {
                let share = shares.entry(*owner).or_default();
                *share += name_cost(name);
                if bytes < most(*share) {
                    turns.push((*share, name));
                }
            }
        }
        turns.sort_unstable_by_key(|(share, _)| *share);
        let (mut taken, mut next) = (HashSet::new(), Vec::new());
        for (share, name) in turns {
            if bytes >= most(share) {
                break;
            }
            if taken.insert(name) {
                bytes += name_cost(name);
                next.push(name.clone());
            }
        }
        next
    }
}

/// Most that all names at a peer may cost for one to be asked for of an owner with such a share there.
fn most(share: u64) -> u64 {
    if share > FEW_MAX { MANY_MAX } else { AT_PEER_MAX }
}

/// Cost of a wait for these names.
pub(crate) fn cost<'a>(names: impl Iterator<Item = &'a TensorName>) -> u64 {
    names.fold(WAIT_BYTES, |bytes, name| bytes + name_cost(name))
}

fn name_cost(name: &TensorName) -> u64 {
    NAME_BYTES + name.as_str().len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that one owner waits for.
    fn names(range: std::ops::Range<usize>) -> Wanted {
        of(1, range.map(|n| format!("n/{n}")))
    }

    fn of(owner: u32, names: impl Iterator<Item = String>) -> Wanted {
        Wanted(names.map(|name| (TensorName::new(&name).unwrap(), vec![owner])).collect())
    }

    /// Plan of one peer, where there is room in the round.
    fn planned(asking: &mut Asking<u64>, wanted: &Wanted, now: Instant) -> Plan<u64> {
        asking.plan(&peer(), wanted, now, &mut { ROUND_MAX })
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
        let plan = planned(&mut asking, &names(0..1), now);
        assert_eq!(asked(&mut asking, &plan), 1);
        let plan = planned(&mut asking, &names(0..3), now);
        assert_eq!((asked(&mut asking, &plan), plan.withdraw.len()), (2, 0), "what is new, and that alone");
        let plan = planned(&mut asking, &names(1..2), now);
        assert_eq!((plan.ask.len(), plan.withdraw), (0, vec![1]));
        let plan = planned(&mut asking, &names(0..0), now);
        assert_eq!((plan.ask.len(), plan.withdraw), (0, vec![2]));
        assert_eq!(asking.peers().count(), 0);
        assert_eq!(asking.asked(&peer(), 2, 2), Some(2), "one that is over already is withdrawn");
    }

    #[test]
    fn an_answer_has_its_names_asked_for_anew_and_one_without_names_not_at_once() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        let plan = planned(&mut asking, &names(0..2), now);
        let answered =
            |asking: &mut Asking<u64>, number| asking.answered(&peer(), number).map(|all| all.len());
        assert_eq!(answered(&mut asking, plan.ask[0].0), Some(2));
        assert_eq!(answered(&mut asking, plan.ask[0].0), None, "answered once");
        let plan = planned(&mut asking, &names(1..2), now);
        assert_eq!(asked(&mut asking, &plan), 1);
        assert_eq!(answered(&mut asking, plan.ask[0].0), Some(1));
        asking.rest(&peer(), now);
        assert!(planned(&mut asking, &names(1..2), now).ask.is_empty());
        assert_eq!(planned(&mut asking, &names(1..2), now + REST).ask.len(), 1);
    }

    #[test]
    fn a_peer_has_a_bounded_number_of_questions_however_names_come() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        let mut under_way = 0;
        for most in 1..=QUESTIONS_MAX + 10 {
            let plan = planned(&mut asking, &names(0..most), now);
            asked(&mut asking, &plan);
            under_way = under_way + plan.ask.len() - plan.withdraw.len();
            assert!(under_way <= QUESTIONS_MAX);
        }
        assert!(under_way < QUESTIONS_MAX, "they were put together");
        let plan = planned(&mut asking, &names(0..NAMES_MAX * QUESTIONS_MAX + 1), now);
        let bytes: u64 = plan.ask.iter().map(|(_, names)| cost(names.iter())).sum();
        assert!(plan.ask.len() <= QUESTIONS_MAX && bytes >= MANY_MAX - (1 << 20), "{bytes}");
    }

    /// Names of the greatest length.
    fn long_names(count: usize) -> Wanted {
        of(1, (0..count).map(|n| format!("{n:0512}")))
    }

    #[test]
    fn names_beyond_what_a_peer_takes_wait_until_others_were_answered() {
        let (mut asking, now, wanted) = (Asking::default(), Instant::now(), long_names(10_000));
        let first = planned(&mut asking, &wanted, now);
        let at_once = asked(&mut asking, &first);
        let bytes: u64 = first.ask.iter().map(|(_, names)| cost(names.iter())).sum();
        assert!((MANY_MAX..AT_PEER_MAX).contains(&bytes), "{at_once} names, {bytes} bytes");
        assert!(planned(&mut asking, &wanted, now).ask.is_empty());
        assert!(asking.answered(&peer(), first.ask[0].0).is_some());
        let next = planned(&mut asking, &wanted, now);
        assert_eq!(next.ask.len(), 1, "one was answered, and one is asked");
        let none = planned(&mut asking, &names(0..0), now);
        assert_eq!((none.ask.len(), asking.peers().count()), (0, 0));
    }

    #[test]
    fn whoever_waits_for_many_names_keeps_nobody_from_asking_for_a_few() {
        let (mut asking, now) = (Asking::default(), Instant::now());
        let many = long_names(10_000);
        let first = planned(&mut asking, &many, now);
        asked(&mut asking, &first);
        // One that the other waits for as well, and some of its own.
        let few = of(2, (0..100).map(|n| format!("few/{n}")).chain([format!("{:0512}", 9_999)]));
        let plan = planned(&mut asking, &few.and(&many), now);
        let second: HashSet<_> = plan.ask.iter().flat_map(|(_, names)| names.iter()).cloned().collect();
        let both: HashSet<_> =
            first.ask.iter().chain(&plan.ask).flat_map(|(_, names)| names.iter()).cloned().collect();
        assert!(plan.withdraw.is_empty() && (100..=101).contains(&second.len()), "{} names", second.len());
        let own = of(2, (0..100).map(|n| format!("few/{n}")));
        assert!(own.0.keys().all(|name| second.contains(name)));
        assert!(both.contains(&TensorName::new(&format!("{:0512}", 9_999)).unwrap()));
    }

    #[test]
    fn owners_have_turns_where_their_names_do_not_fit_together() {
        let wanted = of(1, (0..20_000).map(|n| format!("a/{n:0500}")));
        let wanted = of(2, (0..20_000).map(|n| format!("b/{n:0500}"))).and(&wanted);
        let next = wanted.in_turns(&HashSet::new(), 0);
        let of_first = next.iter().filter(|name| name.as_str().starts_with('a')).count();
        assert!(of_first.abs_diff(next.len() - of_first) <= 1, "{of_first} of {}", next.len());
    }

    #[test]
    fn many_peers_are_asked_in_rounds_and_keep_each_name_once() {
        let (mut asking, now, wanted) = (Asking::default(), Instant::now(), long_names(2_000));
        let texts: HashSet<*const u8> = wanted.0.keys().map(|name| name.as_str().as_ptr()).collect();
        let peers: Vec<PeerName> = (0..64).map(|n| format!("p{n}").parse().unwrap()).collect();
        let (mut rounds, mut names_asked) = (0, 0);
        while names_asked < peers.len() * wanted.0.len() {
            let mut room = ROUND_MAX;
            for peer in &peers {
                for (number, names) in asking.plan(peer, &wanted, now, &mut room).ask {
                    assert!(names.iter().all(|name| texts.contains(&name.as_str().as_ptr())));
                    assert_eq!(asking.asked(peer, number, number), None);
                    names_asked += names.len();
                }
            }
            rounds += 1;
            assert!(rounds < 100, "each round asks for some");
        }
        assert!(rounds > 5, "{rounds} rounds");
    }
}
