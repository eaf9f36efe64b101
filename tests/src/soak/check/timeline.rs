//! A history put in order: which call ended how, who certainly held what between which events, when what was troubled.
//!
//! All places are indices of events. What was only possible (a call without an answer) is kept apart from what is certain.

use std::cell::RefCell;
use std::collections::HashMap;
use std::str::FromStr;

use tensorlane_proto::Reference;

use crate::soak::history::{Event, What};
use crate::soak::orders::{Actor, Fault, Outcome, Verb, Who};
use crate::tensors::pattern;

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) actor: Actor,
    pub(crate) verb: Verb,
    pub(crate) reference: Option<String>,
    pub(crate) began: usize,
    /// Index of the answer; the end of the history if there was none.
    pub(crate) ended: usize,
    /// None where it was not answered.
    pub(crate) outcome: Option<Outcome>,
}

/// Claim to something that somebody held.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) reference: String,
    pub(crate) actor: Actor,
    pub(crate) by: By,
    /// Place where it may have begun, and where it certainly had.
    pub(crate) maybe_from: usize,
    pub(crate) from: usize,
    /// Place where it certainly still was, and from where on it certainly was no more. The end of the history if it
    /// never ended.
    pub(crate) to: usize,
    pub(crate) gone: usize,
}

/// Manner in which something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// As its writer, by its number.
    Writer(u64),
    /// As a reader, in a slot.
    Slot(u64),
    /// By a name, whoever gave it.
    Name,
}

/// A part of a tensor: from, to; all of it where none is named.
type Part = (u64, Option<(u64, u64)>);

/// Timeline of what a history says, in order.
pub struct Timeline<'a> {
    pub(crate) events: &'a [Event],
    pub(crate) calls: Vec<Call>,
    pub(crate) claims: Vec<Claim>,
    /// Faults: from where to where. One that troubles lasts until everyone has met again.
    pub(crate) faults: Vec<(Fault, usize, usize)>,
    /// Kills: who, where it was about to be, where it was done.
    pub(crate) kills: Vec<(Who, usize, usize)>,
    /// Beginnings of each life.
    births: Vec<(Who, usize)>,
    /// Seed and bytes of each tensor.
    pub(crate) contents: HashMap<u64, (u64, u64)>,
    pub(crate) node: Vec<usize>,
    pub(crate) stranger: usize,
    pub(crate) grace_us: u64,
    sums: RefCell<HashMap<Part, u32>>,
}

/// The host and the incarnation that a reference names.
pub(crate) fn owner(reference: &str) -> Option<(usize, u128)> {
    let reference = Reference::from_str(reference).ok()?;
    let letter = reference.peer().as_str().bytes().next()?;
    Some((usize::from(letter.checked_sub(b'a')?), reference.incarnation().0))
}

impl<'a> Timeline<'a> {
    /// Reads a history.
    pub fn of(events: &'a [Event]) -> Self {
        let mut timeline = Self {
            events,
            calls: Vec::new(),
            claims: Vec::new(),
            faults: Vec::new(),
            kills: Vec::new(),
            births: Vec::new(),
            contents: HashMap::new(),
            node: Vec::new(),
            stranger: usize::MAX,
            grace_us: 0,
            sums: RefCell::default(),
        };
        let mut open = HashMap::new();
        for (at, event) in events.iter().enumerate() {
            timeline.read(at, &event.what, &mut open);
        }
        timeline
    }

    fn read(&mut self, at: usize, what: &What, open: &mut HashMap<u64, usize>) {
        match what {
            What::World { node, stranger, grace_ms, .. } => {
                (self.node, self.stranger, self.grace_us) = (node.clone(), *stranger, grace_ms * 1000);
            }
            What::Began { call, actor, verb, reference } => {
                open.insert(*call, self.calls.len());
                self.calls.push(Call {
                    actor: *actor,
                    verb: *verb,
                    reference: reference.clone(),
                    began: at,
                    ended: self.events.len(),
                    outcome: None,
                });
                self.let_go(*actor, *verb, at, false);
                if let Verb::Put { tensor, seed, bytes, .. } | Verb::Reserve { tensor, seed, bytes } = *verb {
                    self.contents.insert(tensor, (seed, bytes));
                }
            }
            What::Ended { call, outcome } => {
                let Some(index) = open.remove(call) else { return };
                self.calls[index].ended = at;
                self.calls[index].outcome = Some(outcome.clone());
                let (actor, verb) = (self.calls[index].actor, self.calls[index].verb);
                self.let_go(actor, verb, at, true);
                let first = self.claims.len();
                let call = self.calls[index].clone();
                self.take(&call);
                self.taken_by_the_dead(first, &call);
            }
            What::Killing { who } => {
                self.kills.push((*who, at, self.events.len()));
                self.killed(*who, at, false);
            }
            What::Gone { who } => {
                if let Some(kill) = self.kills.iter_mut().rev().find(|kill| kill.0 == *who) {
                    kill.2 = at;
                }
                self.killed(*who, at, true);
            }
            What::Born { who, .. } => self.births.push((*who, at)),
            What::Hurt { fault } => self.faults.push((*fault, at, self.events.len())),
            What::Mended { fault: fault @ Fault::Directory(_) } => {
                if let Some(ended) = self.faults.iter_mut().rev().find(|(other, ..)| other == fault) {
                    ended.2 = at;
                }
            }
            What::Settled => {
                let end = self.events.len();
                // A directory that is away at the time stays away.
                let over = |fault: &&mut (Fault, usize, usize)| {
                    fault.2 == end && !matches!(fault.0, Fault::Directory(_))
                };
                self.faults.iter_mut().filter(over).for_each(|fault| fault.2 = at);
            }
            _ => {}
        }
    }

    /// Ends what an order gives back: at its beginning it is not certain any more, at its end it is certainly gone.
    fn let_go(&mut self, actor: Actor, verb: Verb, at: usize, done: bool) {
        let goes = |claim: &Claim| match (verb, claim.by) {
            (Verb::Release { tensor }, By::Writer(held)) => claim.actor == actor && held == tensor,
            (Verb::Drop { slot }, By::Slot(held)) => claim.actor == actor && held == slot,
            (Verb::Clear, By::Name) => claim.actor.host == actor.host,
            (Verb::Clear, _) => claim.actor == actor,
            _ => false,
        };
        self.end(at, done, goes);
    }

    fn killed(&mut self, who: Who, at: usize, done: bool) {
        self.end(at, done, |claim| match who {
            Who::Workload(actor) => claim.actor == actor && claim.by != By::Name,
            Who::Sidecar(host) => claim.actor.host == host,
        });
    }

    /// An answer may be written down after the kill of whoever gave it: what it took, from `first` on, was never certain, and
    /// went with a workload.
    fn taken_by_the_dead(&mut self, first: usize, call: &Call) {
        let end = self.events.len();
        for &(who, about_to, done) in self.kills.iter().filter(|kill| kill.1 > call.began) {
            for claim in &mut self.claims[first..] {
                match who {
                    Who::Workload(actor) if actor == call.actor && claim.by != By::Name => {
                        claim.to = claim.to.min(about_to);
                        if done < end {
                            claim.gone = claim.gone.min(call.ended);
                        }
                    }
                    Who::Sidecar(host) if host == call.actor.host => claim.to = claim.to.min(about_to),
                    Who::Workload(_) | Who::Sidecar(_) => {}
                }
            }
        }
    }

    fn end(&mut self, at: usize, done: bool, goes: impl Fn(&Claim) -> bool) {
        let end = self.events.len();
        for claim in self.claims.iter_mut().filter(|claim| claim.gone == end && goes(claim)) {
            claim.to = claim.to.min(at);
            if done {
                claim.gone = at;
            }
        }
    }

    fn take(&mut self, call: &Call) {
        let end = self.events.len();
        let claim = |reference: &str, by| Claim {
            reference: reference.to_owned(),
            actor: call.actor,
            by,
            maybe_from: call.began,
            from: call.ended,
            to: end,
            gone: end,
        };
        match (&call.outcome, call.verb) {
            (Some(Outcome::Stored { reference }), Verb::Put { tensor, named, .. }) => {
                self.claims.push(claim(reference, By::Writer(tensor)));
                if named {
                    self.claims.push(claim(reference, By::Name));
                }
            }
            (Some(Outcome::Stored { reference }), Verb::Seal { tensor }) => {
                self.claims.push(claim(reference, By::Writer(tensor)));
            }
            (Some(Outcome::Got { .. }), Verb::Hold { slot, .. }) => {
                if let Some(reference) = &call.reference {
                    self.claims.push(claim(reference, By::Slot(slot)));
                }
            }
            _ => {}
        }
    }

    /// Length and checksum of (a part of) a tensor, as it was put.
    pub(crate) fn content(&self, tensor: u64, part: Option<(u64, u64)>) -> Option<(u64, u32)> {
        let (seed, bytes) = *self.contents.get(&tensor)?;
        let length = part.map_or(bytes, |(from, to)| to - from);
        if let Some(sum) = self.sums.borrow().get(&(tensor, part)) {
            return Some((length, *sum));
        }
        let whole = pattern(seed, bytes as usize);
        let range = part.map_or(0..whole.len(), |(from, to)| from as usize..to as usize);
        let sum = crc32c::crc32c(whole.get(range)?);
        self.sums.borrow_mut().insert((tensor, part), sum);
        Some((length, sum))
    }

    /// Returns whether a fault may have kept two hosts from each other, or one from its work, at some time in between.
    pub(crate) fn troubled(&self, hosts: [usize; 2], from: usize, to: usize) -> bool {
        self.faults.iter().any(|&(fault, began, ended)| {
            hosts.iter().any(|host| fault.troubles(*host)) && began <= to && ended >= from
        })
    }

    /// Returns whether a sidecar may have died in between.
    pub(crate) fn sidecar_died(&self, host: usize, from: usize, to: usize) -> bool {
        self.kills
            .iter()
            .any(|(who, began, ended)| *who == Who::Sidecar(host) && *began <= to && *ended >= from)
    }

    /// Returns whether a sidecar may have been dead at some time in between.
    pub(crate) fn sidecar_was_down(&self, host: usize, from: usize, to: usize) -> bool {
        let who = Who::Sidecar(host);
        let up_again = |died: usize| self.births.iter().find(|(other, at)| *other == who && *at > died);
        self.kills.iter().any(|&(other, began, ended)| {
            let until = up_again(ended).map_or(self.events.len(), |(_, at)| *at);
            other == who && began <= to && until >= from
        })
    }

    /// True if somebody, for all this time, certainly held what a reader at `host` asks for: beside its owner, or as a
    /// whole copy beside the reader.
    pub(crate) fn was_held(&self, reference: &str, host: usize, from: usize, to: usize) -> Option<&Claim> {
        let (owner, _) = owner(reference)?;
        self.claims.iter().find(|claim| {
            let all_the_time = claim.reference == reference && claim.from <= from && claim.to >= to;
            let beside_owner = claim.actor.host == owner;
            let beside_reader = claim.actor.host == host
                && !self.sidecar_died(owner, claim.maybe_from, to)
                && !self.troubled([host, owner], claim.maybe_from, to);
            all_the_time && (beside_owner || beside_reader)
        })
    }

    /// Time of an event, in microseconds.
    pub(crate) fn at(&self, index: usize) -> u64 {
        self.events.get(index).or(self.events.last()).map_or(0, |event| event.at)
    }
}
