//! Random events, drawn from so few names, holders, tickets and retry ids that they meet all the time, and mostly about
//! what is there. A step is one number: what it means depends on what the model holds when its turn comes.

use std::num::NonZeroU32;

use tensorlane_fuzz::Dice;
use tensorlane_proto::ledger::{
    Event, Holder, Keep, Limits, Millis, NameSpec, Origin, PeerSlot, Publication, Retry, RetryId, SessionId,
    TensorId, TensorName, TicketId, TicketSpec,
};

use crate::model::{Kind, Model};

pub(crate) fn all_holders() -> Vec<Holder> {
    let sessions = (0..3).map(|n| Holder::Session(SessionId(n)));
    sessions.chain((0..3).map(|n| Holder::Peer(PeerSlot(n)))).collect()
}

pub(crate) fn all_names() -> Vec<TensorName> {
    ["a", "a/b", "a/c", "b", "b/a", "c", "s", "s@1", "s@2"]
        .map(|text| TensorName::new(text).expect("these are names"))
        .into()
}

pub(crate) fn all_tickets() -> Vec<TicketId> {
    (0..7).map(TicketId).collect()
}

pub(crate) fn all_retries() -> Vec<RetryId> {
    (0..12).map(|n| RetryId([n; 16])).collect()
}

pub(crate) fn all_origins() -> Vec<Origin> {
    let origin = |n: usize| Origin {
        peer: ["p", "q"][n % 2].into(),
        incarnation: 7,
        id: n as u64 / 4,
        on_gpu: n / 2 % 2 == 1,
    };
    (0..4).map(origin).collect()
}

/// Tight, so that each limit is met; or loose, so that more can happen.
pub(crate) fn limits(dice: &mut Dice) -> Limits {
    if dice.percent(50) {
        return Limits {
            tensors: 25,
            tensor_bytes: 150,
            table_bytes: u64::MAX,
            holders: 10,
            leases_per_holder: 40,
            names: 10,
            name_changes: 50,
            name_change_bytes: 4_000,
            tickets: 10,
            retries: 20,
            copy_idle: Millis(20),
        };
    }
    Limits {
        tensors: 4 + dice.roll(8) as usize,
        tensor_bytes: 150,
        table_bytes: u64::MAX,
        holders: 2 + dice.roll(5) as usize,
        leases_per_holder: 1 + dice.roll(6),
        names: 1 + dice.roll(4) as usize,
        name_changes: dice.roll(9) as usize,
        name_change_bytes: dice.roll(900),
        tickets: 1 + dice.roll(4) as usize,
        retries: dice.roll(6) as usize,
        copy_idle: Millis(dice.roll(30)),
    }
}

/// The time of the next event. Once in a while it is earlier, as if two threads read the clock out of order.
pub(crate) fn time(dice: &mut Dice, now: Millis) -> Millis {
    Millis(match dice.roll(20) {
        0..9 => now.0,
        9..18 => now.0 + dice.roll(4),
        18 => now.0 + dice.roll(40),
        _ => now.0.saturating_sub(dice.roll(6)),
    })
}

/// All that an event is made from.
pub(crate) struct Maker<'a> {
    pub(crate) dice: Dice,
    pub(crate) now: Millis,
    pub(crate) model: &'a Model,
    /// Every id that ever was.
    pub(crate) ever: &'a [TensorId],
    /// Events that were asked with a retry id, and may be asked again.
    pub(crate) asked: &'a [Event],
}

impl Maker<'_> {
    pub(crate) fn event(&mut self) -> Event {
        match self.dice.roll(100) {
            0..14 => Event::Reserve { by: self.writer(), bytes: self.bytes(), retry: self.retry() },
            14..28 => {
                let (by, id) = self.reservation();
                Event::Seal { by, id, keep: self.keep(), retry: self.retry() }
            }
            28..30 => {
                let (by, id) = self.reservation();
                Event::Abort { by, id }
            }
            30..32 => {
                let prefix = self.name().as_str()[..self.dice.roll(2) as usize].to_owned();
                Event::LeaseNames { by: self.holder(), prefix, most: self.dice.roll(8) as usize }
            }
            32..39 => Event::Lease { by: self.holder(), id: self.tensor() },
            39..50 => {
                let (by, id) = self.leased();
                let count = if self.dice.percent(3) { u64::MAX } else { self.dice.roll(3) };
                Event::Release { by, id, count }
            }
            50..53 => {
                let count = self.dice.roll(4);
                let mut item = || ((!self.dice.percent(25)).then(|| self.tensor()), self.name_spec());
                let items = (0..count).map(|_| item()).collect();
                Event::NameTogether { items }
            }
            53..56 => {
                let id = self.tensor();
                Event::Name { id, name: self.name_spec() }
            }
            56..60 => Event::Unname { name: self.name() },
            60..65 => Event::IssueTicket { id: self.tensor(), spec: self.ticket_spec() },
            65..73 => Event::Redeem { ticket: self.ticket(), by: self.holder(), retry: self.retry() },
            73..79 => {
                let (origin, bytes, by) = (self.origin(), self.bytes(), self.holder());
                Event::CopyIn { origin, bytes, by, mapped: self.dice.percent(30) }
            }
            79..81 => Event::Evict { bytes: self.dice.roll(300) },
            81..82 => Event::HolderGone { holder: self.holder() },
            82..84 => {
                // Sometimes it is past already.
                let until = Millis((self.now.0 + self.dice.roll(60)).saturating_sub(10));
                Event::HolderAway { holder: self.holder(), until }
            }
            84..86 => Event::HolderBack { holder: self.holder() },
            86 => match self.dice.percent(50) {
                true => Event::EndCopy { id: self.tensor() },
                false => Event::Tick,
            },
            87..91 => Event::Publish(self.publication()),
            _ => self.dice.pick(self.asked).unwrap_or(Event::Tick),
        }
    }

    /// Mostly the next version of the one name that is there for sets.
    fn publication(&mut self) -> Publication {
        let set = TensorName::new("s").expect("it is a name");
        let name = if self.dice.percent(80) { set } else { self.name() };
        let next = self.model.latest(&name) + 1;
        let version = if self.dice.percent(85) { next } else { self.dice.roll(4) };
        let leaves = (0..self.dice.roll(3)).map(|_| self.owned()).collect();
        let keep = self.dice.roll(4) as u32;
        Publication { manifest: self.owned(), leaves, name, version, keep }
    }

    /// Mostly a tensor of this peer.
    fn owned(&mut self) -> TensorId {
        let owned = self.model.tensors.iter().filter(|tensor| tensor.kind == Kind::Owned);
        let owned: Vec<_> = owned.map(|tensor| tensor.id).collect();
        let any = self.tensor();
        if self.dice.percent(90) { self.dice.pick(&owned).unwrap_or(any) } else { any }
    }

    fn holder(&mut self) -> Holder {
        self.dice.pick(&all_holders()).expect("there are some")
    }

    fn writer(&mut self) -> Option<Holder> {
        if self.dice.percent(80) { Some(self.holder()) } else { None }
    }

    /// Mostly one that lives, sometimes one that is gone, seldom one that never was.
    fn tensor(&mut self) -> TensorId {
        let live: Vec<_> = self.model.tensors.iter().map(|tensor| tensor.id).collect();
        let bogus = TensorId(self.dice.roll(4) << self.dice.roll(64));
        match self.dice.roll(20) {
            0..17 => self.dice.pick(&live).unwrap_or(bogus),
            17..19 => self.dice.pick(self.ever).unwrap_or(bogus),
            _ => bogus,
        }
    }

    /// Mostly a reservation with its holder.
    fn reservation(&mut self) -> (Option<Holder>, TensorId) {
        let reserved = self.model.tensors.iter().filter_map(|tensor| match tensor.kind {
            Kind::Reserved(by) => Some((by, tensor.id)),
            _ => None,
        });
        let reserved: Vec<_> = reserved.collect();
        let any = (self.writer(), self.tensor());
        if self.dice.percent(80) { self.dice.pick(&reserved).unwrap_or(any) } else { any }
    }

    /// Mostly a holder and what it leases.
    fn leased(&mut self) -> (Holder, TensorId) {
        let any = (self.holder(), self.tensor());
        if self.dice.percent(80) { self.dice.pick(&self.model.leases).unwrap_or(any) } else { any }
    }

    /// Few values, so that two requests are often alike; two of the largest cannot be counted together.
    fn bytes(&mut self) -> u64 {
        if self.dice.percent(2) { u64::MAX - 1 } else { [0, 1, 64, 100][self.dice.roll(4) as usize] }
    }

    /// Mostly for the same thing, as far as its digest says.
    fn retry(&mut self) -> Option<Retry> {
        let id = if self.dice.percent(50) { self.dice.pick(&all_retries()) } else { None };
        let asked = u64::from(self.dice.percent(20));
        id.map(|id| Retry { id, asked })
    }

    fn origin(&mut self) -> Origin {
        self.dice.pick(&all_origins()).expect("there are some")
    }

    fn name(&mut self) -> TensorName {
        self.dice.pick(&all_names()).expect("there are some")
    }

    fn name_spec(&mut self) -> NameSpec {
        let name = self.name();
        let replaces = match self.dice.roll(10) {
            0..4 => None,
            4..8 => self.model.find(&name),
            _ => Some(self.tensor()),
        };
        NameSpec { name, replaces }
    }

    /// Mostly one that is good.
    fn ticket(&mut self) -> TicketId {
        let live: Vec<_> = self.model.tickets.iter().map(|(id, ..)| *id).collect();
        let any = self.dice.pick(&all_tickets()).expect("there are some");
        if self.dice.percent(80) { self.dice.pick(&live).unwrap_or(any) } else { any }
    }

    fn ticket_spec(&mut self) -> TicketSpec {
        let ttl = match self.dice.roll(20) {
            0 => 0,
            1 => u64::MAX,
            _ => 1 + self.dice.roll(40),
        };
        let uses = NonZeroU32::new(1 + self.dice.roll(3) as u32).expect("at least one");
        TicketSpec { id: TicketId(self.dice.roll(7).into()), ttl: Millis(ttl), uses }
    }

    fn keep(&mut self) -> Keep {
        Keep {
            lease: self.dice.percent(60),
            name: if self.dice.percent(30) { Some(self.name_spec()) } else { None },
            ticket: if self.dice.percent(40) { Some(self.ticket_spec()) } else { None },
        }
    }
}
