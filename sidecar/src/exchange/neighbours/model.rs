//! Sidecars of one node that want one tensor, with every question and answer under way as a message, delivered in any order that
//! connections allow. Driven are [`next`] and [`CopyStage`] themselves; what stands around them is here as `neighbours` and `lend`
//! have it. Nobody is late here: that one copy is brought then, however the messages meet, is what this shows, and no test on a
//! busy machine can.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use tensorlane_proto::Incarnation;

use super::*;

/// Between two sidecars, in order.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Message {
    Ask,
    Said(CopyStatus),
    Wait,
    Waited(bool),
}

/// State of a sidecar.
#[derive(Debug, Clone, PartialEq)]
enum At {
    Nothing,
    Asking(Vec<(PeerKey, CopyStatus)>),
    Waiting,
    Mapping(usize),
    Bringing,
    /// Has brought a copy.
    Has,
    /// Maps that of another.
    Maps,
}

struct Sidecar {
    at: At,
    round: u32,
    /// Stage of its fetch for the others, while there is one.
    stage: Option<CopyStage>,
    borrowers: Vec<usize>,
}

/// Step that can happen.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Somebody of that pod wants the tensor.
    Begin(usize),
    /// The bytes are there, or mapped.
    End(usize),
    Deliver(usize, usize),
}

struct Node {
    sidecars: Vec<Sidecar>,
    under_way: BTreeMap<(usize, usize), VecDeque<Message>>,
}

fn key(sidecar: usize) -> PeerKey {
    let name = format!("s{sidecar}");
    PeerKey { name: name.parse().expect("a name"), incarnation: Incarnation(1) }
}

impl Node {
    fn of(count: usize) -> Self {
        let one = |_| Sidecar { at: At::Nothing, round: 0, stage: None, borrowers: Vec::new() };
        Self { sidecars: (0..count).map(one).collect(), under_way: BTreeMap::new() }
    }

    fn others(&self, sidecar: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.sidecars.len()).filter(move |other| *other != sidecar)
    }

    fn possible(&self) -> Vec<Step> {
        let own = self.sidecars.iter().enumerate().filter_map(|(at, sidecar)| match sidecar.at {
            At::Nothing => Some(Step::Begin(at)),
            At::Mapping(_) | At::Bringing => Some(Step::End(at)),
            At::Asking(_) | At::Waiting | At::Has | At::Maps => None,
        });
        let full = self.under_way.iter().filter(|(_, messages)| !messages.is_empty());
        own.chain(full.map(|((from, to), _)| Step::Deliver(*from, *to))).collect()
    }

    fn happen(&mut self, step: Step) {
        match step {
            Step::Begin(sidecar) => self.ask(sidecar),
            Step::End(sidecar) => self.end(sidecar),
            Step::Deliver(from, to) => {
                let message = self.under_way.get_mut(&(from, to)).and_then(VecDeque::pop_front);
                self.hear(from, to, message.expect("it was under way"));
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        self.under_way.entry((from, to)).or_default().push_back(message);
    }

    /// `ask_neighbours`.
    fn ask(&mut self, sidecar: usize) {
        let one = &mut self.sidecars[sidecar];
        if one.round >= ROUNDS_MAX {
            (one.at, one.stage) = (At::Bringing, Some(CopyStage::Coming));
            return;
        }
        (one.at, one.stage) = (At::Asking(Vec::new()), Some(CopyStage::Asking(Vec::new())));
        self.others(sidecar).for_each(|other| self.send(sidecar, other, Message::Ask));
    }

    /// `told`.
    fn decide(&mut self, sidecar: usize, said: &[(PeerKey, CopyStatus)]) {
        let ahead = self.sidecars[sidecar].stage.as_ref().map_or(Vec::new(), |stage| stage.ahead().to_vec());
        let next = next(said, &ahead);
        let to = |key: &PeerKey| key.name.to_string()[1..].parse::<usize>().expect("a number");
        let one = &mut self.sidecars[sidecar];
        if next == Next::Bring {
            (one.at, one.stage) = (At::Bringing, Some(CopyStage::Coming));
            return;
        }
        one.stage = Some(CopyStage::Alone);
        let left = std::mem::take(&mut one.borrowers);
        match next {
            Next::Map(holder) => one.at = At::Mapping(to(&holder)),
            Next::Wait(holder) => {
                one.at = At::Waiting;
                self.send(sidecar, to(&holder), Message::Wait);
            }
            Next::Bring => {}
        }
        left.into_iter().for_each(|borrower| self.send(sidecar, borrower, Message::Waited(false)));
    }

    /// `whole_arrived`.
    fn end(&mut self, sidecar: usize) {
        let one = &mut self.sidecars[sidecar];
        let is_ours = one.at == At::Bringing;
        one.at = if is_ours { At::Has } else { At::Maps };
        one.stage = None;
        let waiting = std::mem::take(&mut one.borrowers);
        waiting.into_iter().for_each(|borrower| self.send(sidecar, borrower, Message::Waited(is_ours)));
    }

    /// `word_on`.
    fn word_on(&mut self, sidecar: usize, from: usize) -> CopyStatus {
        let one = &mut self.sidecars[sidecar];
        if one.at == At::Has {
            return CopyStatus::Here;
        }
        let me = key(sidecar).name;
        one.stage.as_mut().map_or(CopyStatus::No, |stage| stage.word(&me, &key(from)))
    }

    fn hear(&mut self, from: usize, sidecar: usize, message: Message) {
        match message {
            Message::Ask => {
                let word = self.word_on(sidecar, from);
                self.send(sidecar, from, Message::Said(word));
            }
            Message::Said(word) => {
                let all = self.sidecars.len() - 1;
                let At::Asking(said) = &mut self.sidecars[sidecar].at else { panic!("nobody asked") };
                said.push((key(from), word));
                if said.len() == all {
                    let mut said = said.clone();
                    // In the order of those that were asked.
                    said.sort_by(|a, b| a.0.name.cmp(&b.0.name));
                    self.decide(sidecar, &said);
                }
            }
            // `wait_here`.
            Message::Wait => match self.word_on(sidecar, from) {
                CopyStatus::Coming | CopyStatus::Asking => self.sidecars[sidecar].borrowers.push(from),
                word => self.send(sidecar, from, Message::Waited(word == CopyStatus::Here)),
            },
            Message::Waited(true) => self.sidecars[sidecar].at = At::Mapping(from),
            Message::Waited(false) => {
                self.sidecars[sidecar].round += 1;
                self.ask(sidecar);
            }
        }
    }

    /// Lets things happen in the order that `choices` say until nothing more can; gives how many copies were brought.
    fn copies(&mut self, choices: &[u16]) -> usize {
        let mut choices = choices.iter().cycle();
        for _ in 0..10_000 {
            let possible = self.possible();
            if possible.is_empty() {
                let done = |one: &Sidecar| matches!(one.at, At::Has | At::Maps);
                assert!(self.sidecars.iter().all(done), "somebody waits for ever");
                return self.sidecars.iter().filter(|one| one.at == At::Has).count();
            }
            let choice = usize::from(*choices.next().expect("some choices")) % possible.len();
            self.happen(possible[choice]);
        }
        panic!("it does not come to an end");
    }
}

/// Orders that are equal in every run: what holds in all of them holds for good, or fails for good.
fn in_many_orders(counts: std::ops::RangeInclusive<usize>, holds: impl Fn(usize, usize) -> bool) {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(ProptestConfig::with_cases(1_500), rng);
    let orders = (counts, prop::collection::vec(any::<u16>(), 300));
    let outcome = runner.run(&orders, |(count, choices)| {
        let copies = Node::of(count).copies(&choices);
        prop_assert!(holds(count, copies), "{} copies for {}", copies, count);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Waiting sidecars ask again if the one that they waited for waits itself. As often as it may ask, so many can come
/// before it.
#[test]
fn those_that_come_together_bring_one_copy_however_their_questions_meet() {
    in_many_orders(2..=1 + ROUNDS_MAX as usize, |_, copies| copies == 1);
}

#[test]
fn however_many_come_together_each_gets_it_and_most_map_it() {
    in_many_orders(5..=12, |count, copies| (1..=count - ROUNDS_MAX as usize).contains(&copies));
}
