//! Plan of what is done, in which order: a function of the seed and of nothing else. It does not know how anything
//! ended.

use std::collections::{BTreeMap, VecDeque};

use super::orders::{Actor, Fault, Verb};
use crate::tensors::Numbers;

/// Hosts that know each other.
pub const MEMBERS: usize = 3;
/// The host that knows all, and that nobody lists.
pub const STRANGER: usize = MEMBERS;
/// Of the members: those that share the directory of a node.
pub const NODE: [usize; 2] = [0, 1];
/// Workloads of each member.
pub const SEATS: usize = 2;
/// A call with this deadline has no excuse but a fault, in milliseconds.
pub const PATIENT_MS: u64 = 8_000;

const SLOTS: u64 = 3;
/// Tensors that a workload keeps at a time, so that no arena is ever full of them alone.
const KEPT: usize = 5;
/// Bytes of the smallest tensor that does not come on the control connection.
pub const LARGE: u64 = 8 << 20;
/// Tensors that may still be asked for.
const KNOWN: usize = 48;

/// A single step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of the step, from 1.
    pub number: u64,
    /// Act of the step.
    pub act: Act,
}

/// Act of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// A workload is told to do something.
    Call(Actor, Verb),
    /// A workload is killed, whatever it does; then the owner is asked about a tensor that it kept.
    KillWorkload(Actor, Option<u64>),
    /// A fault begins.
    Hurt(Fault),
    /// End of a fault.
    Mend(Fault),
    /// All workloads finish what they were told, and everyone is connected again.
    Settle,
    /// Nothing new is done for so many milliseconds.
    Pause(u64),
    /// A sidecar tells its books.
    Audit(usize),
}

/// All workloads, the stranger's too.
pub fn actors() -> impl Iterator<Item = Actor> {
    let members = (0..MEMBERS).flat_map(|host| (0..SEATS).map(move |seat| Actor { host, seat }));
    members.chain([Actor { host: STRANGER, seat: 0 }])
}

#[derive(Clone, Copy)]
struct Known {
    tensor: u64,
    host: usize,
    seed: u64,
    bytes: u64,
    named: bool,
    checksum: bool,
    /// Set if it was reserved first, so that it cannot be put again.
    reserved: bool,
}

#[derive(Default)]
struct Hand {
    stored: VecDeque<u64>,
    reserved: Option<u64>,
    slots: Vec<u64>,
}

/// The steps of a seed, without end.
pub struct Plan {
    numbers: Numbers,
    number: u64,
    known: VecDeque<Known>,
    hands: BTreeMap<Actor, Hand>,
    fault: Option<Fault>,
    directory: Option<usize>,
    /// Steps until the fault ends or the next one begins.
    left: u64,
    settle: bool,
}

impl Plan {
    /// The steps of a seed.
    pub fn of(seed: u64) -> Self {
        Self {
            numbers: Numbers::of(seed),
            number: 0,
            known: VecDeque::new(),
            hands: actors().map(|actor| (actor, Hand::default())).collect(),
            fault: None,
            directory: None,
            left: 40,
            settle: false,
        }
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.numbers.below(chances) == 0
    }

    fn weather(&mut self) -> Option<Act> {
        if std::mem::take(&mut self.settle) {
            return Some(Act::Settle);
        }
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        if let Some(fault) = self.fault.take() {
            self.settle = !self.one_in(3);
            self.left = if self.settle { 40 + self.numbers.below(80) } else { self.numbers.below(20) };
            return Some(Act::Mend(fault));
        }
        if self.one_in(4) {
            return Some(self.turn_directory());
        }
        let fault = self.next_fault();
        self.fault = Some(fault);
        self.left = 5 + self.numbers.below(35);
        Some(Act::Hurt(fault))
    }

    fn turn_directory(&mut self) -> Act {
        self.left = 10 + self.numbers.below(20);
        match self.directory.take() {
            Some(host) => Act::Mend(Fault::Directory(host)),
            None => {
                let host = self.numbers.below(MEMBERS as u64) as usize;
                self.directory = Some(host);
                Act::Hurt(Fault::Directory(host))
            }
        }
    }

    fn next_fault(&mut self) -> Fault {
        let host = self.numbers.below(MEMBERS as u64) as usize;
        let other = (host + 1 + self.numbers.below(MEMBERS as u64 - 1) as usize) % MEMBERS;
        match self.numbers.below(6) {
            0 => Fault::Cut(host),
            1 => Fault::Lose(host, other),
            2 => Fault::Stop(host),
            // A sidecar that starts without its directory knows nobody: that is no fault of a running one.
            _ if self.directory == Some(host) => Fault::Cut(host),
            _ => Fault::Kill(host),
        }
    }

    fn kill_workload(&mut self) -> Act {
        let actor = self.member();
        let hand = self.hands.insert(actor, Hand::default()).unwrap_or_default();
        Act::KillWorkload(actor, hand.stored.back().copied())
    }

    fn member(&mut self) -> Actor {
        let host = self.numbers.below(MEMBERS as u64) as usize;
        Actor { host, seat: self.numbers.below(SEATS as u64) as usize }
    }

    fn call(&mut self) -> Act {
        if self.one_in(25) {
            return self.stranger();
        }
        let actor = self.member();
        let hand = self.hands.entry(actor).or_default();
        let (stored, reserved, held) = (hand.stored.len(), hand.reserved, hand.slots.clone());
        let verb = match self.numbers.below(100) {
            _ if stored > KEPT => self.release(actor),
            0..22 => self.put(actor),
            22..26 if reserved.is_none() => self.reserve(actor),
            22..30 if reserved.is_some() => self.end_reservation(actor),
            26..32 => self.again(actor),
            32..40 if stored > 0 => self.release(actor),
            40..52 if !held.is_empty() => Some(Verb::Look { slot: self.pick(&held) }),
            52..60 if !held.is_empty() => self.drop_slot(actor),
            60..72 => self.hold(actor),
            _ => self.get(actor),
        };
        // Where there is nothing yet to be asked for.
        let verb = verb.or_else(|| self.put(actor));
        verb.map_or(Act::Pause(1), |verb| Act::Call(actor, verb))
    }

    fn stranger(&mut self) -> Act {
        let actor = Actor { host: STRANGER, seat: 0 };
        let verb = if self.one_in(4) { self.put(actor) } else { self.get(actor) };
        verb.map_or(Act::Pause(1), |verb| Act::Call(actor, verb))
    }

    fn pick(&mut self, of: &[u64]) -> u64 {
        of[self.numbers.below(of.len() as u64) as usize]
    }

    fn size(&mut self) -> u64 {
        match self.numbers.below(20) {
            // So large that it comes on lanes, on QUIC, and from others that are getting it.
            0..3 => LARGE + self.numbers.below(LARGE / 2),
            3..7 => self.numbers.below(2 << 20),
            // Nothing at all, too.
            _ => self.numbers.below(60_000),
        }
    }

    fn know(&mut self, known: Known) {
        self.known.push_back(known);
        if self.known.len() > KNOWN {
            self.known.pop_front();
        }
    }

    fn put(&mut self, actor: Actor) -> Option<Verb> {
        let (tensor, host) = (self.number, actor.host);
        let (seed, bytes) = (self.numbers.draw(), self.size());
        let (named, checksum) = (self.one_in(8), self.one_in(2));
        self.know(Known { tensor, host, seed, bytes, named, checksum, reserved: false });
        self.hands.entry(actor).or_default().stored.push_back(tensor);
        Some(Verb::Put { tensor, seed, bytes, named, checksum })
    }

    /// A put again, by the other workload of the host.
    fn again(&mut self, actor: Actor) -> Option<Verb> {
        let keeps = |tensor| self.hands.get(&actor).is_some_and(|hand| hand.stored.contains(&tensor));
        let fits = |known: &&Known| known.host == actor.host && !known.reserved && !keeps(known.tensor);
        let Known { tensor, seed, bytes, named, checksum, .. } = *self.known.iter().rev().find(fits)?;
        self.hands.entry(actor).or_default().stored.push_back(tensor);
        Some(Verb::Put { tensor, seed, bytes, named, checksum })
    }

    fn reserve(&mut self, actor: Actor) -> Option<Verb> {
        let (tensor, host) = (self.number, actor.host);
        let (seed, bytes) = (self.numbers.draw(), 1 + self.size());
        self.know(Known { tensor, host, seed, bytes, named: false, checksum: false, reserved: true });
        self.hands.entry(actor).or_default().reserved = Some(tensor);
        Some(Verb::Reserve { tensor, seed, bytes })
    }

    fn end_reservation(&mut self, actor: Actor) -> Option<Verb> {
        let abort = self.one_in(4);
        let hand = self.hands.entry(actor).or_default();
        let tensor = hand.reserved.take()?;
        if abort {
            return Some(Verb::Abort { tensor });
        }
        hand.stored.push_back(tensor);
        Some(Verb::Seal { tensor })
    }

    fn release(&mut self, actor: Actor) -> Option<Verb> {
        let tensor = self.hands.entry(actor).or_default().stored.pop_front()?;
        Some(Verb::Release { tensor })
    }

    fn drop_slot(&mut self, actor: Actor) -> Option<Verb> {
        let held = &self.hands[&actor].slots.clone();
        let slot = self.pick(held);
        self.hands.entry(actor).or_default().slots.retain(|other| *other != slot);
        Some(Verb::Drop { slot })
    }

    fn some_tensor(&mut self) -> Option<Known> {
        if self.known.is_empty() {
            return None;
        }
        // Late ones more often: most early ones are gone.
        let far = self.numbers.below(self.known.len() as u64);
        let near = self.numbers.below(far + 1) as usize;
        self.known.get(self.known.len() - 1 - near).copied()
    }

    fn deadline(&mut self) -> u64 {
        // During a fault all would wait for those who wait for it.
        let patient = if self.fault.is_some() { self.one_in(40) } else { self.one_in(2) };
        if patient { PATIENT_MS } else { 200 + self.numbers.below(800) }
    }

    fn hold(&mut self, actor: Actor) -> Option<Verb> {
        let Known { tensor, .. } = self.some_tensor()?;
        let deadline_ms = self.deadline();
        let hand = self.hands.entry(actor).or_default();
        let slot = (0..SLOTS).find(|slot| !hand.slots.contains(slot))?;
        hand.slots.push(slot);
        Some(Verb::Hold { tensor, slot, deadline_ms })
    }

    fn get(&mut self, _: Actor) -> Option<Verb> {
        let Known { tensor, bytes, named, .. } = self.some_tensor()?;
        let part = (self.one_in(4) && bytes > 1).then(|| {
            let from = self.numbers.below(bytes - 1);
            (from, from + 1 + self.numbers.below(bytes - from))
        });
        let by_name = named && self.one_in(2);
        Some(Verb::Get { tensor, part, by_name, deadline_ms: self.deadline() })
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.number += 1;
        let act = self.weather().unwrap_or_else(|| match self.numbers.below(1000) {
            0..25 => self.kill_workload(),
            25..40 => Act::Audit(self.numbers.below(MEMBERS as u64) as usize),
            40..60 => Act::Pause(1 + self.numbers.below(50)),
            // Longer than the grace of a lost peer, now and then.
            60..63 if self.fault.is_some() => Act::Pause(1000 + self.numbers.below(3000)),
            _ => self.call(),
        });
        Some(Step { number: self.number, act })
    }
}

#[cfg(test)]
mod tests;
