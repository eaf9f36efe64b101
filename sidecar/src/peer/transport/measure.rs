//! Goodput that `tcp` and `quic` bring between two peers, as far as it was tried, and which of them the next large pull
//! should take. Plain data: the clock is an argument, and the choice itself is `negotiate`'s.
//!
//! ```text
//!   began(transport) ──> ended(came) ──────> a window is over: the rate of that transport ──> in use: whichever is clearly faster
//!                    ├─> ended(fell short) ─> its rate is that at most
//!   failed ─────────────────────────────────> not tried for a while, ever longer; the other one is in use
//! ```
//! The one that is not in use is tried now and then, because links change. A trial is of all pulls that begin until a window
//! ([`busy`]) of it is over, twice: the first finds windows small and lanes closed, the second counts. Where that leaves it open
//! which of the two is the faster one, a few more count, too: on a link that loses packets one window says little. Each trial
//! that shows nothing new, or nothing at all, doubles the windows until the next; none is due before the last one is paid off, unless
//! what is in use falls to half.

use std::time::{Duration, Instant};

use tensorlane_proto::negotiate::{GOODPUT_ADVANTAGE_PERCENT, Measured, Transport};

use busy::{Busy, rate};
use one::One;

mod busy;
mod one;

pub(in crate::peer) use busy::Begun;

/// Windows between two trials of the transport that is not in use: at first, and at most.
const TRIAL_EVERY: (u32, u32) = (16, 1024);
/// Time for which pulls begin as part of a trial of which no window is over, and after which it has shown nothing: so
/// long, and so often the time of a window of the transport in use. It takes one that what is under way is over, and
/// then another one.
const TRIAL_WITHIN: (Duration, u32) = (Duration::from_secs(10), 4);
/// Windows of a trial: the first does not count, the second does, and those up to the last where it is in doubt.
const TRIAL_WINDOWS: (u32, u32) = (2, 6);
/// Factor of doubt. A window is in doubt within this factor of the transport in use, either way: what it
/// differs by from the next where one packet of a hundred is lost. The mean of several is nearer, by the root of how
/// many.
const DOUBT: f64 = 1.6;
/// Windows in use for each one that a trial took, and as many times as many as that took longer: a trial of a transport that
/// stays the slower one costs this part of the time, four parts of a hundred (more only where it is so slow that the most
/// windows between two trials do not pay for it).
const TRIAL_COST: f64 = 24.0;
/// An average that falls to this part of what it was since the last trial makes the next one come soon again.
const SLUMP: f64 = 0.5;

/// `tcp` and `quic` between two peers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::peer) struct Goodput {
    tcp: One,
    quic: One,
    in_use: Transport,
    /// The most that the one in use has brought since the other one was tried, or since it fell, on an average.
    peak: f64,
    /// Windows since the other one was tried.
    since: u32,
    /// Windows after which it is.
    every: u32,
    /// Windows of the present trial that are over.
    tried: u32,
    /// The sum of the times of a byte of those that count, in seconds.
    shown: f64,
    /// Since when a trial has pulls under way of which no window is over.
    trial: Option<Instant>,
    /// Length of the last window of the transport in use.
    lasts: Duration,
    busy: Busy,
}

/// End of a pull.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::peer) enum Outcome {
    /// All of it came by the transport that was chosen.
    Came,
    /// So many bytes did not come in so many seconds.
    FellShort(u64, f64),
    /// End that says nothing of the transport.
    Unknown,
}

impl Default for Goodput {
    /// Nothing is known: `tcp` is in use.
    fn default() -> Self {
        Self {
            tcp: One::default(),
            quic: One::default(),
            in_use: Transport::Tcp,
            peak: 0.0,
            since: 0,
            every: TRIAL_EVERY.0,
            tried: 0,
            shown: 0.0,
            trial: None,
            lasts: Duration::ZERO,
            busy: Busy::default(),
        }
    }
}

impl Goodput {
    /// Returns what is known.
    pub(in crate::peer) fn measured(&self, now: Instant) -> Measured {
        let cooling = [Transport::Tcp, Transport::Quic].into_iter().filter(|one| self.cools(*one, now));
        Measured {
            cooling: cooling.collect(),
            current: Some(self.in_use),
            tcp_goodput: self.tcp.rate,
            quic_goodput: self.quic.rate,
            ..Measured::default()
        }
    }

    /// Measurements for the choice of a pull that now begins. `ready`: the transport that is not in use can
    /// be tried without waiting for it.
    pub(in crate::peer) fn for_pull(&self, now: Instant, ready: bool) -> Measured {
        let known = self.measured(now);
        if !ready || !self.is_trial_due(now) {
            return known;
        }
        // Without rates the one that is said to be in use is taken.
        Measured { current: Some(other(self.in_use)), tcp_goodput: None, quic_goodput: None, ..known }
    }

    /// Returns whether the transport that is not in use should be tried with the next pull: also with whatever begins
    /// while it is, for beside the other one nothing is found out.
    pub(in crate::peer) fn is_trial_due(&self, now: Instant) -> bool {
        self.is_trial() && !self.is_trial_late(now) && !self.cools(other(self.in_use), now)
    }

    fn is_trial_late(&self, now: Instant) -> bool {
        let within = TRIAL_WITHIN.0.max(self.lasts.saturating_mul(TRIAL_WITHIN.1));
        self.trial.is_some_and(|begun| now.saturating_duration_since(begun) >= within)
    }

    /// The transport that is not in use.
    pub(in crate::peer) fn idle(&self) -> Transport {
        other(self.in_use)
    }

    /// A pull of so many bytes begins.
    pub(in crate::peer) fn began(&mut self, transport: Transport, bytes: u64, now: Instant) -> Begun {
        if transport != self.in_use && self.is_trial() {
            self.trial.get_or_insert(now);
        }
        self.busy.began(transport, bytes, now)
    }

    /// A pull is over.
    pub(in crate::peer) fn ended(&mut self, pull: Begun, outcome: Outcome, now: Instant) {
        let new = self.busy.ended(pull, outcome == Outcome::Came, now);
        let quiet = self.busy.is_quiet();
        if pull.transport == self.in_use && (quiet || new.is_some()) {
            self.since = self.since.saturating_add(1);
            self.lasts = new.map_or(self.lasts, |new| new.lasted);
        }
        if let Some(new) = new {
            self.came(pull.transport, new.rate);
        }
        if let Outcome::FellShort(bytes, seconds) = outcome {
            // Those beside it had their shares, which were no larger.
            self.at_most(pull.transport, rate(bytes, seconds) * (self.busy.beside(&pull) + 1) as f64);
        }
        if self.trial.is_some() && (quiet || self.is_trial_late(now)) {
            self.showed_nothing();
        }
    }

    fn came(&mut self, transport: Transport, new: f64) {
        self.of(transport).works();
        if transport == self.in_use {
            self.went_on(new);
        } else {
            self.showed(new);
        }
    }

    /// A window of the transport in use is over.
    fn went_on(&mut self, new: f64) {
        let rate = self.of(self.in_use).went_on(new);
        self.peak = self.peak.max(rate);
        if rate < self.peak * SLUMP {
            self.slumps(rate);
        }
        self.settle(false);
    }

    /// The link is another one, for the other transport as well.
    fn slumps(&mut self, rate: f64) {
        self.peak = rate;
        self.every = TRIAL_EVERY.0;
        self.of(self.idle()).is_stale();
    }

    /// A window of a trial is over, or of pulls that somebody wished to come by the transport that is not in use.
    fn showed(&mut self, new: f64) {
        self.trial = None;
        self.tried += 1;
        if self.tried < TRIAL_WINDOWS.0 {
            return;
        }
        self.shown += new.recip();
        let count = f64::from(self.tried - TRIAL_WINDOWS.0 + 1);
        let mean = count / self.shown;
        if self.tried < TRIAL_WINDOWS.1 && self.is_in_doubt(mean, count) {
            return;
        }
        let is_trial = self.is_trial();
        if is_trial {
            self.age();
        }
        self.of(self.idle()).showed(mean, count);
        if !is_trial {
            // No trial is ended by it.
            (self.tried, self.shown) = (0, 0.0);
        }
        self.settle(is_trial);
    }

    /// Returns whether another window could say something else of which one is the faster.
    fn is_in_doubt(&self, mean: f64, count: f64) -> bool {
        let doubt = DOUBT.powf(count.sqrt().recip());
        self.known_of(self.in_use).rate.is_some_and(|rate| (rate / doubt..rate * doubt).contains(&mean))
    }

    /// A transport did not bring more than that.
    fn at_most(&mut self, transport: Transport, bound: f64) {
        let tried = transport != self.in_use && self.is_trial();
        let one = self.of(transport);
        let before = one.known();
        one.at_most(bound);
        if transport == self.in_use && before.is_none_or(|before| bound < before * SLUMP) {
            self.every = TRIAL_EVERY.0;
        }
        self.settle(tried);
    }

    /// A pull could not come by this transport.
    pub(in crate::peer) fn failed(&mut self, transport: Transport, now: Instant) {
        self.of(transport).fails(now);
        if transport == self.in_use {
            self.use_instead();
        } else {
            self.begin_anew();
        }
    }

    /// The faster one is in use from now on, if it is clearly faster.
    fn settle(&mut self, tried: bool) {
        let (mine, its) = (self.known_of(self.in_use), self.known_of(self.idle()));
        // A bound is held against what was measured; against nothing but another bound where neither has brought anything.
        let its = its.rate.or(its.bound.filter(|_| mine.rate.is_none() && mine.bound.is_some()));
        let mine = mine.known();
        let advantage = 1.0 + f64::from(GOODPUT_ADVANTAGE_PERCENT) / 100.0;
        match (mine, its) {
            (Some(mine), Some(its)) if its > mine * advantage => self.use_instead(),
            _ if tried => self.showed_nothing(),
            _ => {}
        }
    }

    /// A trial is over, and what is in use stays.
    fn showed_nothing(&mut self) {
        self.every = self.every.saturating_mul(2).max(self.paid_off()).min(TRIAL_EVERY.1);
        self.begin_anew();
    }

    fn use_instead(&mut self) {
        self.age();
        self.in_use = other(self.in_use);
        self.of(self.in_use).comes_into_use();
        self.every = self.paid_off().clamp(TRIAL_EVERY.0, TRIAL_EVERY.1);
        self.begin_anew();
    }

    /// Windows of the transport in use after which a trial like the present one is paid off, of one window at least.
    fn paid_off(&self) -> u32 {
        let (mine, its) = (self.known_of(self.in_use).measured(), self.known_of(self.idle()).measured());
        let longer = mine.zip(its).map_or(1.0, |(mine, its)| (mine / its.max(1.0)).max(1.0));
        (f64::from(self.tried.max(1)) * longer * TRIAL_COST) as u32
    }

    /// Notes that what is known of the other one is of so many windows ago.
    fn age(&mut self) {
        let ago = std::mem::take(&mut self.since);
        self.of(self.idle()).ages(ago);
    }

    /// No trial is under way, and the windows until the next one are counted from here.
    fn begin_anew(&mut self) {
        self.age();
        (self.peak, self.tried, self.shown, self.trial) = (0.0, 0, 0.0, None);
    }

    /// Returns whether one is due or under way.
    fn is_trial(&self) -> bool {
        self.since >= self.every
    }

    fn cools(&self, transport: Transport, now: Instant) -> bool {
        self.known_of(transport).cools(now)
    }

    fn known_of(&self, transport: Transport) -> &One {
        if transport == Transport::Quic { &self.quic } else { &self.tcp }
    }

    fn of(&mut self, transport: Transport) -> &mut One {
        if transport == Transport::Quic { &mut self.quic } else { &mut self.tcp }
    }
}

fn other(transport: Transport) -> Transport {
    if transport == Transport::Quic { Transport::Tcp } else { Transport::Quic }
}

#[cfg(test)]
mod tests;
