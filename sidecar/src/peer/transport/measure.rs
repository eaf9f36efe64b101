//! What `tcp` and `quic` bring between two peers, as far as it was tried, and which of them the next large pull should take.
//! Plain data: the clock is an argument, and the choice itself is `negotiate`'s.
//!
//! ```text
//!   began(transport) ──> ended(came) ──────> the rate of that transport ──> in use: whichever is clearly faster
//!                    ├─> ended(fell short) ─> its rate is that at most
//!   failed ─────────────────────────────────> not tried for a while, ever longer; the other one is in use
//! ```
//! The one that is not in use is tried now and then, because links change. A trial costs two pulls at the rate of the slower
//! one, of which the second counts: the first finds windows small and lanes closed. So each trial that shows nothing new
//! doubles the pulls until the next. Only a pull that was alone between the two peers says what a transport brings: of
//! several each has a share, and that of the one that is tried is another one.

use std::time::{Duration, Instant};

use tensorlane_proto::negotiate::{GOODPUT_ADVANTAGE_PERCENT, Measured, Transport};

/// How much a new measurement counts, of 1: a rate follows a change within some ten pulls.
const NEWEST: f64 = 0.25;
/// Pulls between two trials of the transport that is not in use: at first, and at most.
const TRIAL_EVERY: (u32, u32) = (16, 1024);
/// How long a pull that was given out as a trial may take to begin: it may wait for room, or never begin.
const BEGINS_WITHIN: Duration = Duration::from_secs(10);
/// Pulls of a trial. The last one counts.
const TRIAL_PULLS: u32 = 2;
/// How long a transport that failed is not tried: at first, and at most. It doubles until it brings something.
const COOLDOWN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// A rate that falls to this part of what it was makes the next trial come soon again.
const SLUMP: f64 = 0.5;

/// What is known of one transport.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct One {
    /// Bytes a second; none before the first pull.
    rate: Option<f64>,
    /// Failures since it last brought something.
    failed: u32,
    cooling: Option<Instant>,
}

/// `tcp` and `quic` between two peers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::peer) struct Goodput {
    tcp: One,
    quic: One,
    in_use: Transport,
    /// Pulls since the other one was tried.
    since: u32,
    /// Pulls after which it is.
    every: u32,
    /// Pulls of the present trial that are over.
    tried: u32,
    /// When a pull was given out as a trial that has not begun.
    given_out: Option<Instant>,
    /// Pulls that have begun, and those of them that are not over.
    begun: u64,
    under_way: u64,
}

/// A pull that has begun.
#[derive(Debug, Clone, Copy)]
#[must_use = "a pull that begins has an end"]
pub(in crate::peer) struct Begun {
    transport: Transport,
    /// Pulls before this one, and those of them that were under way.
    before: u64,
    beside: u64,
}

/// How a pull ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::peer) enum Outcome {
    /// So many bytes came in so many seconds, all by the transport that was chosen.
    Came(u64, f64),
    /// So many bytes did not come in so many seconds.
    FellShort(u64, f64),
    /// It says nothing of the transport.
    Unknown,
}

impl Default for Goodput {
    /// Nothing is known: `tcp` is in use.
    fn default() -> Self {
        Self {
            tcp: One::default(),
            quic: One::default(),
            in_use: Transport::Tcp,
            since: 0,
            every: TRIAL_EVERY.0,
            tried: 0,
            given_out: None,
            begun: 0,
            under_way: 0,
        }
    }
}

impl Goodput {
    /// What is known.
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

    /// What the choice for a pull goes by, that now begins. `ready`: the transport that is not in use can be tried without
    /// waiting for it.
    pub(in crate::peer) fn for_pull(&mut self, now: Instant, ready: bool) -> Measured {
        let known = self.measured(now);
        if !ready || !self.is_trial_due(now) {
            return known;
        }
        self.given_out = Some(now);
        // Without rates the one that is said to be in use is taken.
        Measured { current: Some(other(self.in_use)), tcp_goodput: None, quic_goodput: None, ..known }
    }

    /// Whether the transport that is not in use should be tried with the next pull.
    pub(in crate::peer) fn is_trial_due(&self, now: Instant) -> bool {
        let waits = self.given_out.is_some_and(|given| now.saturating_duration_since(given) < BEGINS_WITHIN);
        let alone = self.under_way == 0 && !waits;
        alone && self.since >= self.every && !self.cools(other(self.in_use), now)
    }

    /// The transport that is not in use.
    pub(in crate::peer) fn idle(&self) -> Transport {
        other(self.in_use)
    }

    /// A pull begins.
    pub(in crate::peer) fn began(&mut self, transport: Transport) -> Begun {
        let begun = Begun { transport, before: self.begun, beside: self.under_way };
        self.begun += 1;
        self.under_way += 1;
        self.given_out = None;
        if transport == self.in_use {
            self.since = self.since.saturating_add(1);
        }
        begun
    }

    /// A pull is over.
    pub(in crate::peer) fn ended(&mut self, pull: Begun, outcome: Outcome) {
        self.under_way = self.under_way.saturating_sub(1);
        let beside = pull.beside + (self.begun - pull.before - 1);
        match outcome {
            Outcome::Came(bytes, seconds) if beside == 0 => self.came(pull.transport, rate(bytes, seconds)),
            Outcome::FellShort(bytes, seconds) => {
                // Those beside it had their shares, which were no larger.
                self.at_most(pull.transport, rate(bytes, seconds) * (beside + 1) as f64);
            }
            Outcome::Came(..) | Outcome::Unknown => {}
        }
    }

    fn came(&mut self, transport: Transport, new: f64) {
        let tried = transport != self.in_use;
        let Some(one) = self.of(transport) else { return };
        one.failed = 0;
        one.cooling = None;
        if tried {
            self.tried += 1;
            if self.tried < TRIAL_PULLS {
                return;
            }
        }
        let Some(one) = self.of(transport) else { return };
        let before = one.rate;
        // What a trial shows is the newest there is; what was known of it may be of another day.
        one.rate = Some(before.filter(|_| !tried).map_or(new, |old| old + NEWEST * (new - old)));
        if !tried && before.is_some_and(|before| new < before * SLUMP) {
            self.every = TRIAL_EVERY.0;
        }
        self.settle(tried);
    }

    /// A transport did not bring more than that.
    fn at_most(&mut self, transport: Transport, bound: f64) {
        let tried = transport != self.in_use;
        let Some(one) = self.of(transport) else { return };
        let before = one.rate;
        one.rate = Some(before.map_or(bound, |before| before.min(bound)));
        if !tried && before.is_none_or(|before| bound < before * SLUMP) {
            self.every = TRIAL_EVERY.0;
        }
        self.settle(tried);
    }

    /// A pull could not come by this transport.
    pub(in crate::peer) fn failed(&mut self, transport: Transport, now: Instant) {
        let Some(one) = self.of(transport) else { return };
        let doubled = COOLDOWN.0.saturating_mul(1 << one.failed.min(16));
        one.cooling = Some(now + doubled.min(COOLDOWN.1));
        one.failed = one.failed.saturating_add(1);
        one.rate = None;
        if transport == self.in_use {
            self.use_instead();
        } else {
            (self.since, self.tried) = (0, 0);
        }
    }

    /// The faster one is in use from now on, if it is clearly faster.
    fn settle(&mut self, tried: bool) {
        let rate = |transport| if transport == Transport::Quic { self.quic.rate } else { self.tcp.rate };
        let (mine, its) = (rate(self.in_use), rate(other(self.in_use)));
        let advantage = 1.0 + f64::from(GOODPUT_ADVANTAGE_PERCENT) / 100.0;
        match (mine, its) {
            (Some(mine), Some(its)) if its > mine * advantage => self.use_instead(),
            _ if tried => {
                (self.since, self.tried) = (0, 0);
                self.every = self.every.saturating_mul(2).min(TRIAL_EVERY.1);
            }
            _ => {}
        }
    }

    fn use_instead(&mut self) {
        self.in_use = other(self.in_use);
        (self.since, self.tried) = (0, 0);
        self.every = TRIAL_EVERY.0;
    }

    fn cools(&self, transport: Transport, now: Instant) -> bool {
        let one = if transport == Transport::Quic { &self.quic } else { &self.tcp };
        one.cooling.is_some_and(|until| now < until)
    }

    fn of(&mut self, transport: Transport) -> Option<&mut One> {
        match transport {
            Transport::Tcp => Some(&mut self.tcp),
            Transport::Quic => Some(&mut self.quic),
            Transport::Local | Transport::Shm | Transport::CudaIpc => None,
        }
    }
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    // A clock with coarse steps may say that no time passed.
    bytes as f64 / seconds.max(1e-6)
}

fn other(transport: Transport) -> Transport {
    if transport == Transport::Quic { Transport::Tcp } else { Transport::Quic }
}

#[cfg(test)]
mod tests;
