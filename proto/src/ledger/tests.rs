//! Tests, one sentence for each rule. Everything together is in `tests/ledger_model`.

use std::num::NonZeroU32;

use super::*;

mod copies;
mod journal;
mod leases;
mod life;
mod limits;
mod names;
mod publish;
mod retries;
mod tickets;

const A: Holder = Holder::Session(SessionId(1));
const B: Holder = Holder::Session(SessionId(2));
const PEER: Holder = Holder::Peer(PeerSlot(1));

const LIMITS: Limits = Limits {
    tensors: 5,
    tensor_bytes: 150,
    table_bytes: 1 << 20,
    holders: 3,
    leases_per_holder: 4,
    names: 2,
    name_changes: 4,
    name_change_bytes: 1 << 20,
    tickets: 2,
    retries: 3,
    copy_idle: Millis(30_000),
};

/// A ledger, and the time.
struct Scene {
    ledger: Ledger,
    now: u64,
}

impl Scene {
    fn new() -> Self {
        Self { ledger: Ledger::new(LIMITS), now: 1000 }
    }

    /// Outcome of an event: the answer, and what was freed by which cause.
    fn try_to(&mut self, event: Event) -> (Result<Answer, Refusal>, Vec<(TensorId, Cause)>) {
        let mut effects = vec![];
        let answer = self.ledger.apply(Millis(self.now), event, &mut effects);
        (answer, effects.into_iter().map(|Effect::Freed { id, cause, .. }| (id, cause)).collect())
    }

    fn refused(&mut self, event: Event) -> Refusal {
        let before = self.ledger.totals();
        let (answer, freed) = self.try_to(event);
        assert_eq!(freed, []);
        assert_eq!(self.ledger.totals(), before);
        answer.unwrap_err()
    }

    /// An event that must work and free nothing.
    fn quietly(&mut self, event: Event) -> Answer {
        let (answer, freed) = self.try_to(event);
        assert_eq!(freed, []);
        answer.unwrap()
    }

    /// An event that must work; what it frees.
    fn freeing(&mut self, event: Event) -> Vec<(TensorId, Cause)> {
        let (answer, freed) = self.try_to(event);
        assert!(answer.is_ok(), "{answer:?}");
        freed
    }

    fn after(&mut self, ms: u64) -> Vec<(TensorId, Cause)> {
        self.now += ms;
        self.freeing(Event::Tick)
    }

    fn reserve(&mut self, by: impl Into<Option<Holder>>) -> TensorId {
        match self.quietly(Event::Reserve { by: by.into(), bytes: 10, retry: None }) {
            Answer::Reserved { id, again: false } => id,
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, by: impl Into<Option<Holder>>, keep: Keep) -> TensorId {
        let by = by.into();
        let id = self.reserve(by);
        self.quietly(seal(by, id, keep));
        id
    }

    fn copy(&mut self, n: u64, by: Holder) -> TensorId {
        match self.quietly(Event::CopyIn { origin: origin(n), bytes: 10, by, mapped: false }) {
            Answer::CopiedIn { id } => id,
            other => panic!("{other:?}"),
        }
    }
}

fn seal(by: impl Into<Option<Holder>>, id: TensorId, keep: Keep) -> Event {
    Event::Seal { by: by.into(), id, keep, retry: None }
}

fn leased() -> Keep {
    Keep { lease: true, ..Keep::default() }
}

fn named(name: &str) -> Keep {
    Keep { name: Some(spec(name, None)), ..Keep::default() }
}

fn ticketed(n: u128, uses: u32) -> Keep {
    Keep { ticket: Some(ticket(n, uses)), ..Keep::default() }
}

fn ticket(n: u128, uses: u32) -> TicketSpec {
    TicketSpec { id: TicketId(n), ttl: Millis(60_000), uses: NonZeroU32::new(uses).unwrap() }
}

fn spec(name: &str, replaces: Option<TensorId>) -> NameSpec {
    NameSpec { name: text(name), replaces }
}

fn text(name: &str) -> TensorName {
    TensorName::new(name).unwrap()
}

fn origin(id: u64) -> Origin {
    Origin { peer: "other".into(), incarnation: 9, id, on_gpu: false }
}

fn release(by: Holder, id: TensorId, count: u64) -> Event {
    Event::Release { by, id, count }
}

fn gone(holder: Holder) -> Event {
    Event::HolderGone { holder }
}

fn retry(n: u8) -> Option<Retry> {
    asking(n, 0)
}

/// A retry id, used to ask for something.
fn asking(n: u8, asked: u64) -> Option<Retry> {
    Some(Retry { id: RetryId([n; 16]), asked })
}
