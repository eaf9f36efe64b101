//! The ledger against a naive model of it: after every one of 200,000 random steps both say the same of everything.
//!
//! `PROPTEST_CASES=10000 cargo test --release -p tensorlane-proto --test ledger_model` runs five million.

mod model;
mod steps;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use model::{Kind, Model};
use proptest::prelude::*;
use proptest::test_runner::{FileFailurePersistence, TestCaseError, TestRunner};
use steps::{Maker, all_holders, all_names, all_origins, all_retries, all_tickets};
use tensorlane_fuzz::Dice;
use tensorlane_proto::ledger::{
    Answer, Cause, Effect, Event, Ledger, Limits, Millis, Refusal, State, TensorId, Ticket, Totals,
};

const CASES: u32 = 400;
const STEPS: usize = 500;

type Checked = Result<(), TestCaseError>;

/// Number of times that each reason, cause and kind of answer was seen.
type Seen = BTreeMap<String, u64>;

fn config() -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: if asked { default.cases } else { CASES },
        max_shrink_iters: 20_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "proptest-regressions/ledger_model.txt",
        ))),
        ..default
    }
}

#[test]
fn the_ledger_and_the_naive_model_never_disagree() {
    let seen = RefCell::new(Seen::new());
    let input = (any::<u64>(), prop::collection::vec(any::<u64>(), STEPS));
    let outcome = TestRunner::new(config())
        .run(&input, |(limits, steps)| run(steps::limits(&mut Dice(limits)), &steps, &mut seen.borrow_mut()));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    let seen = seen.into_inner();
    println!("{seen:#?}");
    for expected in everything_that_must_be_seen() {
        assert!(seen.contains_key(&expected), "the random steps never came to {expected}: {seen:#?}");
    }
}

fn run(limits: Limits, steps: &[u64], seen: &mut Seen) -> Checked {
    let mut twins = Twins::new(limits);
    let mut asked = vec![];
    for &step in steps {
        let mut dice = Dice(step);
        twins.now = steps::time(&mut dice, twins.now);
        let (now, model, ever) = (twins.now, &twins.model, &twins.ever[..]);
        let event = Maker { dice, now, model, ever, asked: &asked }.event();
        if let Event::Reserve { retry: Some(_), .. }
        | Event::Seal { retry: Some(_), .. }
        | Event::Redeem { retry: Some(_), .. } = &event
        {
            asked.push(event.clone());
            asked.drain(..asked.len().saturating_sub(8));
        }
        twins.apply(&event, seen)?;
    }
    twins.wind_down(seen)
}

/// The ledger and its model, side by side.
struct Twins {
    ledger: Ledger,
    model: Model,
    now: Millis,
    /// Every id that ever was.
    ever: Vec<TensorId>,
    freed: BTreeSet<TensorId>,
}

impl Twins {
    fn new(limits: Limits) -> Self {
        Self {
            ledger: Ledger::new(limits),
            model: Model::new(limits),
            now: Millis(0),
            ever: vec![],
            freed: BTreeSet::new(),
        }
    }

    fn apply(&mut self, event: &Event, seen: &mut Seen) -> Checked {
        let mut effects = vec![];
        let answer = self.ledger.apply(self.now, event.clone(), &mut effects);
        let made = match &answer {
            Ok(Answer::Reserved { id, again: false } | Answer::CopiedIn { id }) => Some(*id),
            _ => None,
        };
        if let Some(id) = made {
            prop_assert!(!self.ever.contains(&id), "{id} was used before");
            self.ever.push(id);
        }
        let (expected, mut expected_effects) =
            self.model.apply(self.now, event.clone(), made.unwrap_or(TensorId(0)));
        note(seen, &answer, &effects);
        prop_assert_eq!(&answer, &expected, "answer to {:?}", event);
        effects.sort();
        expected_effects.sort();
        prop_assert_eq!(&effects, &expected_effects, "effects of {:?}", event);
        for Effect::Freed { id, .. } in effects {
            prop_assert!(self.freed.insert(id), "{id} was freed twice");
        }
        self.compare()
    }

    fn compare(&self) -> Checked {
        let (ledger, model) = (&self.ledger, &self.model);
        prop_assert_eq!(ledger.totals(), model.totals());
        prop_assert_eq!(ledger.next_deadline(), model.next_deadline());
        prop_assert_eq!(ledger.largest_holders(usize::MAX), model.largest_holders());
        self.compare_tensors()?;
        self.compare_names()?;
        for holder in all_holders() {
            let leased: BTreeMap<_, _> = ledger.leases_of(holder).collect();
            let ids = model.leases.iter().filter(|(by, _)| *by == holder).map(|(_, id)| *id);
            let expected: BTreeMap<_, _> = ids.map(|id| (id, model.held(holder, id))).collect();
            prop_assert_eq!(leased, expected);
        }
        for ticket in all_tickets() {
            let expected = model.tickets.iter().find(|(id, ..)| *id == ticket);
            let expected = expected.map(|&(_, tensor, deadline, uses)| Ticket { tensor, deadline, uses });
            prop_assert_eq!(ledger.ticket(ticket), expected);
        }
        for retry in all_retries() {
            let expected = model.retries.iter().find(|(id, _)| *id == retry).map(|(_, first)| *first);
            prop_assert_eq!(ledger.recall(&retry), expected);
        }
        for origin in all_origins() {
            prop_assert_eq!(ledger.copy_of(&origin), model.copy_of(&origin));
        }
        Ok(())
    }

    fn compare_tensors(&self) -> Checked {
        let mut live: Vec<_> = self.model.tensors.iter().map(|tensor| tensor.id).collect();
        let mut ids: Vec<_> = self.ledger.ids().collect();
        live.sort();
        ids.sort();
        prop_assert_eq!(ids, live);
        for &id in &self.freed {
            prop_assert!(self.ledger.entry(id).is_none());
        }
        for tensor in &self.model.tensors {
            let Some(entry) = self.ledger.entry(tensor.id) else {
                return Err(TestCaseError::fail(format!("{} has no entry", tensor.id)));
            };
            let (state, by, origin) = match &tensor.kind {
                Kind::Reserved(by) => (State::Reserved, *by, None),
                Kind::Owned => (State::Sealed, None, None),
                Kind::Copy(origin) | Kind::Map(origin) => (State::Sealed, None, Some(origin)),
            };
            prop_assert_eq!((entry.id, entry.bytes, entry.state), (tensor.id, tensor.bytes, state));
            prop_assert_eq!((entry.reserved_by, entry.origin), (by, origin));
            prop_assert_eq!(self.ledger.state(tensor.id), Some(state));
            self.compare_keepers(tensor.id)?;
        }
        Ok(())
    }

    fn compare_keepers(&self, id: TensorId) -> Checked {
        let (ledger, model) = (&self.ledger, &self.model);
        let Some(entry) = ledger.entry(id) else { return Err(TestCaseError::fail("no entry")) };
        let holders: BTreeMap<_, _> = ledger.holders_of(id).collect();
        let leases = model.leases.iter().filter(|(_, of)| *of == id);
        let expected: BTreeMap<_, _> = leases.map(|(by, _)| (*by, model.held(*by, id))).collect();
        prop_assert_eq!(&holders, &expected);
        prop_assert_eq!(ledger.is_manifest(id), model.manifests.contains(&id));
        prop_assert_eq!(entry.holders, holders.len() as u64);
        prop_assert_eq!(entry.leases, holders.values().sum::<u64>());
        prop_assert_eq!(entry.tickets, model.tickets.iter().filter(|(_, of, ..)| *of == id).count() as u64);
        let mut names: Vec<_> =
            model.names.iter().filter(|(_, of)| *of == id).map(|(name, _)| name).collect();
        names.sort();
        prop_assert_eq!(entry.names().collect::<Vec<_>>(), names);
        Ok(())
    }

    fn compare_names(&self) -> Checked {
        for name in all_names() {
            prop_assert_eq!(self.ledger.find(name.as_str()), self.model.find(&name));
        }
        for prefix in ["", "a", "a/", "b/a", "x"] {
            let mut expected = self.model.names.clone();
            expected.retain(|(name, _)| name.as_str().starts_with(prefix));
            expected.sort();
            prop_assert_eq!(&self.ledger.list(prefix, None, usize::MAX), &expected);
        }
        // Page by page it is the same.
        for prefix in ["", "a"] {
            let expected = self.ledger.list(prefix, None, usize::MAX);
            let mut paged = vec![];
            while let [next] = &self.ledger.list(prefix, paged.last().map(|(name, _)| name), 1)[..] {
                paged.push(next.clone());
            }
            prop_assert_eq!(paged, expected);
        }
        Ok(())
    }

    /// When all holders are gone, all names ended and all deadlines passed, nothing is left, and each tensor that ever
    /// was has been freed once.
    fn wind_down(mut self, seen: &mut Seen) -> Checked {
        for holder in all_holders() {
            self.apply(&Event::HolderGone { holder }, seen)?;
        }
        for (name, _) in self.model.names.clone() {
            self.apply(&Event::Unname { name }, seen)?;
        }
        for id in self.ever.clone() {
            // Reservations without a holder end by being aborted only.
            self.apply(&Event::Abort { by: None, id }, seen)?;
        }
        while let Some(at) = self.ledger.next_deadline() {
            self.now = self.now.max(at);
            self.apply(&Event::Tick, seen)?;
        }
        prop_assert_eq!(self.ledger.totals(), Totals::default());
        prop_assert_eq!(self.freed.len(), self.ever.len());
        Ok(())
    }
}

fn note(seen: &mut Seen, answer: &Result<Answer, Refusal>, effects: &[Effect]) {
    let what = match answer {
        Ok(answer) => {
            let text = format!("{answer:?}");
            let kind = text.split([' ', '{']).next().unwrap_or_default().to_owned();
            if text.contains("again: true") { format!("{kind} again") } else { kind }
        }
        Err(refusal) => refusal.reason().to_owned(),
    };
    *seen.entry(what).or_default() += 1;
    for Effect::Freed { cause, .. } in effects {
        *seen.entry(cause.as_str().to_owned()).or_default() += 1;
    }
}

fn everything_that_must_be_seen() -> Vec<String> {
    let answers = "Reserved/Reserved again/Sealed/Sealed again/Aborted/Leased/Released/Named/NamedTogether/NamesLeased/Unnamed/Published/TicketIssued/\
                   Redeemed/Redeemed again/CopiedIn/Evicted/Done";
    let refusals = "NOT_FOUND NOT_SEALED ALREADY_SEALED NOT_YOURS NOT_OWNED WOULD_VANISH NO_HOLDER NOT_HELD \
                    NAME_TAKEN NAME_CHANGED NAME_UNKNOWN TICKET_WITHOUT_TIME TICKET_TAKEN TICKET_UNKNOWN COPY_EXISTS \
                    RETRY_MISMATCH RETRY_LAPSED TOO_MANY_TENSORS TOO_MANY_BYTES TOO_MANY_HOLDERS TOO_MANY_LEASES \
                    TOO_MANY_NAMES NAME_TWICE VERSION_CHANGED NAME_IS_VERSION MANIFEST_PUBLISHED LEAF_IS_MANIFEST TOO_MANY_BELOW TOO_MANY_TICKETS";
    let causes = Cause::ALL.iter().map(|cause| cause.as_str());
    answers.split('/').chain(refusals.split_whitespace()).chain(causes).map(str::to_owned).collect()
}
