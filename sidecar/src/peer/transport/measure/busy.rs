//! Bytes that a transport brings while it has something to bring: the bytes of all pulls that ended in a window, by the
//! time from its first moment to its last. Plain data; knows neither what is in use nor what is tried.
//!
//! ```text
//!   one pull            |=====|                   from the first begun to the last ended, however many there are
//!   several together    |=====|
//!                       |=========|
//!   always some         |=====|=======|====|      from the end of one to the end of a later one: what was begun before the
//!                       |===|====|======|==|      window and what is cut off at its end are small beside the rest
//! ```
//! Of two transports at once each has a share, so nothing is measured until one of them has nothing under way.

use std::time::{Duration, Instant};

use tensorlane_proto::negotiate::Transport;

/// Bytes that a window whose edges cut through pulls must have, for each byte that was under way at once. An edge is wrong by
/// what is under way: an eighth at most, which is less than what one must be faster by.
const ENOUGH: u64 = 8;

/// A pull that has begun.
#[derive(Debug, Clone, Copy)]
#[must_use = "a pull that begins has an end"]
pub(in crate::peer) struct Begun {
    pub(super) transport: Transport,
    bytes: u64,
    /// Pulls before this one, and those of them that were under way.
    before: u64,
    beside: u64,
}

/// Pulls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Load {
    pulls: u64,
    bytes: u64,
}

/// A stretch of time in which one transport alone had pulls under way.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    transport: Transport,
    from: Instant,
    /// Nothing was under way before it.
    is_whole: bool,
    bytes: u64,
    /// Bytes of the pulls that were under way at once.
    most: u64,
}

/// Result of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measurement {
    /// Bytes a second.
    pub(super) rate: f64,
    pub(super) lasted: Duration,
}

/// Record of what is under way between two peers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Busy {
    begun: u64,
    tcp: Load,
    quic: Load,
    window: Option<Window>,
}

impl Busy {
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way() == 0
    }

    fn under_way(&self) -> u64 {
        self.tcp.pulls + self.quic.pulls
    }

    /// Pulls that were under way at any time of this one's, which is over or about to be.
    pub(super) fn beside(&self, pull: &Begun) -> u64 {
        pull.beside + (self.begun - pull.before - 1)
    }

    pub(super) fn began(&mut self, transport: Transport, bytes: u64, now: Instant) -> Begun {
        let begun = Begun { transport, bytes, before: self.begun, beside: self.under_way() };
        self.begun += 1;
        if begun.beside == 0 {
            self.window = Some(Window::new(transport, now, true, 0));
        }
        let load = self.of(transport);
        load.pulls += 1;
        load.bytes = load.bytes.saturating_add(bytes);
        let most = load.bytes;
        let window = self.window.filter(|window| window.transport == transport);
        self.window = window.map(|window| Window { most: window.most.max(most), ..window });
        begun
    }

    /// A pull is over. `came`: all by its transport, and by nothing else. Gives the window that is over with it.
    pub(super) fn ended(&mut self, pull: Begun, came: bool, now: Instant) -> Option<Measurement> {
        let load = self.of(pull.transport);
        load.pulls = load.pulls.saturating_sub(1);
        load.bytes = load.bytes.saturating_sub(pull.bytes);
        let window = self.window.take().filter(|_| came);
        let window = window.map(|window| Window { bytes: window.bytes.saturating_add(pull.bytes), ..window });
        let over = window.filter(|window| window.is_over(self.is_quiet()));
        if !self.is_quiet() {
            self.window = window.filter(|_| over.is_none()).or_else(|| self.from(now));
        }
        over.map(|window| {
            let lasted = now.saturating_duration_since(window.from);
            Measurement { rate: rate(window.bytes, lasted.as_secs_f64()), lasted }
        })
    }

    /// A window that begins amid what is under way, if that is all of one transport.
    fn from(&self, now: Instant) -> Option<Window> {
        match (self.tcp, self.quic) {
            (load, Load { pulls: 0, .. }) => Some(Window::new(Transport::Tcp, now, false, load.bytes)),
            (Load { pulls: 0, .. }, load) => Some(Window::new(Transport::Quic, now, false, load.bytes)),
            _ => None,
        }
    }

    fn of(&mut self, transport: Transport) -> &mut Load {
        if transport == Transport::Quic { &mut self.quic } else { &mut self.tcp }
    }
}

impl Window {
    fn new(transport: Transport, from: Instant, is_whole: bool, most: u64) -> Self {
        Self { transport, from, is_whole, bytes: 0, most }
    }

    /// Returns whether its bytes and its time belong together.
    fn is_over(&self, is_quiet: bool) -> bool {
        (is_quiet && self.is_whole) || self.bytes >= self.most.saturating_mul(ENOUGH)
    }
}

/// Bytes a second.
pub(super) fn rate(bytes: u64, seconds: f64) -> f64 {
    // A clock with coarse steps may say that no time passed.
    bytes as f64 / seconds.max(1e-6)
}
