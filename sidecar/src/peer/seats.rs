//! Seats: places for connections with other peers, `peers.max` of them. Which connection gives way to one that somebody needs,
//! and how a lack of seats is told. Pure: time and chance are arguments.
//!
//! ```text
//!   a seat is free ───────────────────────────────────> seated
//!   somebody needs it ──> one is not in use ──────────> that one gives way, of several the one that was unused for longest
//!                    └──> all are in use ─────────────> told how many there are, and when to come back
//!   dialed ahead, and needed by nobody ───────────────> told the same: nobody gives way for it
//! ```
//! The lack is told before TLS, where it is known by then ([`NoSeat::record`]), else in place of Hello. The side that dialed
//! believes either no further than that it comes back later: its calls wait meanwhile, until their deadlines.

use std::time::Duration;

use tensorlane_proto::{Failure, PeerName, Reason};

use crate::backoff::Backoff;
use crate::clock;

/// Time for the first question on a connection that came in: until then it is not known to be of no use.
const SETTLING: Duration = Duration::from_millis(250);
/// Time after which a peer may come back where nobody's first question is awaited.
const BUSY: Duration = Duration::from_millis(500);
/// Shortest and longest time to come back that are believed.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// Longest wait that follows from being told so again and again, unless a longer one is told.
const RETRY_GROWN: Duration = Duration::from_secs(4);
/// Time that a connection which gives way has to end in order. Meanwhile it has no seat. An end whose last word was not sent by then
/// is taken for lost by the other one, so it is long enough for a machine that does much else.
pub(super) const FAREWELL: Duration = Duration::from_secs(5);

/// Beginning of the record. No record of TLS begins with its first byte.
const MAGIC: &[u8; 8] = b"tl-full1";
/// Bytes of the record: `MAGIC`, how many seats there are, in how many milliseconds to come back.
pub(super) const RECORD_BYTES: usize = 16;
/// Most seats that a sidecar may have.
const SEATS_MAX: u32 = 10_000;
/// Details of the failure that tells it in place of Hello.
const DETAILS: [&str; 2] = ["peers_max", "retry_ms"];

/// Connection that has a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sitter {
    /// True if something at this end needs it.
    pub(super) in_use: bool,
    /// The other end has dialed it and said nothing on it yet.
    pub(super) is_unspoken: bool,
    /// Time since it was last used, or since it came.
    pub(super) unused: Duration,
}

/// Seats as they are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken<'a> {
    /// Number of seats.
    pub(super) most: usize,
    /// Peers that are about to be connected.
    pub(super) coming: usize,
    /// Connections that have given way and not ended.
    pub(super) leaving: usize,
    pub(super) sitters: &'a [Sitter],
}

/// Answer to whoever wants a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seating {
    /// A seat is free.
    Free,
    /// Number of the sitter that gives way.
    GivesWay(usize),
    /// No seat is to be had now.
    Full(NoSeat),
}

/// Lack of a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoSeat {
    /// Number of seats that there are; 0 where an earlier release does not say.
    pub(super) most: u32,
    /// Time after which another try is welcome.
    pub(super) retry: Duration,
}

/// Decides who gets a seat. `needed`: somebody waits for the connection.
pub(super) fn seating(taken: Taken<'_>, needed: bool) -> Seating {
    let Taken { most, coming, leaving, sitters } = taken;
    // Those that leave are bounded, too: there are never more than twice as many connections as seats.
    let may_leave = leaving < most;
    if coming + sitters.len() < most && (leaving == 0 || coming + sitters.len() + leaving < 2 * most) {
        return Seating::Free;
    }
    let is_free = |sitter: &Sitter| !(sitter.in_use || sitter.is_unspoken && sitter.unused < SETTLING);
    let free = sitters.iter().enumerate().filter(|(_, sitter)| is_free(sitter));
    match free.max_by_key(|(_, sitter)| sitter.unused) {
        // More than one too many: the bound was changed, or the table grew. One at a time all the same.
        Some((at, _)) if needed && may_leave => Seating::GivesWay(at),
        _ => {
            let settles = sitters.iter().any(|sitter| !sitter.in_use) || coming > 0;
            let retry = if settles && needed { SETTLING } else { BUSY };
            Seating::Full(NoSeat { most: u32::try_from(most).unwrap_or(SEATS_MAX).min(SEATS_MAX), retry })
        }
    }
}

/// Time to wait before the next try of a peer that had no seat, as it was told for so many times in a row. `chance` is 0 to 1: those
/// that were sent away together do not come back together.
pub(super) fn wait(told: NoSeat, times: u32, chance: f64) -> Duration {
    let first = told.retry.clamp(RETRY.0, RETRY.1);
    Backoff::new(first, RETRY_GROWN.max(first)).jittered(times, chance)
}

// === impl NoSeat ===

impl NoSeat {
    /// Record that tells it before TLS.
    pub(super) fn record(self) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        let retry = u32::try_from(self.retry.as_millis()).unwrap_or(u32::MAX);
        record[..8].copy_from_slice(MAGIC);
        record[8..12].copy_from_slice(&self.most.to_be_bytes());
        record[12..].copy_from_slice(&retry.to_be_bytes());
        record
    }

    /// Returns whether bytes that came instead of a record of TLS may be the record.
    pub(super) fn begins(bytes: &[u8]) -> bool {
        let length = bytes.len().min(MAGIC.len());
        !bytes.is_empty() && bytes[..length] == MAGIC[..length]
    }

    /// Reads the record. Nobody has proven who sent it.
    pub(super) fn of_record(record: &[u8]) -> Option<Self> {
        let (magic, numbers) = record.split_first_chunk::<8>()?;
        let numbers: [u8; 8] = numbers.try_into().ok()?;
        let number =
            |at: usize| numbers[at..at + 4].iter().fold(0u32, |all, byte| all << 8 | u32::from(*byte));
        let (most, retry) = (number(0), Duration::from_millis(number(4).into()));
        (magic == MAGIC && (1..=SEATS_MAX).contains(&most)).then_some(Self { most, retry }.bounded())
    }

    /// Failure that tells it in place of Hello.
    pub(super) fn refusal(self) -> Failure {
        let retry = self.retry.as_millis();
        Failure::new(Reason::LimitExceeded, self.to_string())
            .with(DETAILS[0], self.most)
            .with(DETAILS[1], retry)
    }

    /// Reads a refusal in place of Hello. There it has no other reason of this kind.
    pub(super) fn of_refusal(failure: &Failure) -> Option<Self> {
        if failure.reason != Reason::LimitExceeded {
            return None;
        }
        let number = |detail| failure.detail(detail).and_then(|text| text.parse::<u32>().ok());
        let most = number(DETAILS[0]).filter(|most| *most <= SEATS_MAX).unwrap_or(0);
        let retry = number(DETAILS[1]).map_or(BUSY, |retry| Duration::from_millis(retry.into()));
        Some(Self { most, retry }.bounded())
    }

    fn bounded(self) -> Self {
        Self { retry: self.retry.clamp(RETRY.0, RETRY.1), ..self }
    }
}

impl std::fmt::Display for NoSeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.most {
            0 => f.write_str("it has as many peers connected as its peers.max says, and all are in use"),
            most => write!(f, "all its {most} seats for peers are in use (its peers.max is {most})"),
        }
    }
}

/// Side at which there is no seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LackingSide {
    Ours,
    Theirs,
}

impl LackingSide {
    /// Label in metrics: one of `SeatSide`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Ours => "here",
            Self::Theirs => "there",
        }
    }
}

/// Failure of a call that waited for a seat until its deadline.
pub(super) fn failure(peer: &PeerName, (side, told): (LackingSide, NoSeat), limit: Duration) -> Failure {
    let limit = clock::told(limit);
    let remedy = "wait longer, use fewer peers at a time, or raise peers.max";
    let message = match side {
        LackingSide::Theirs => format!("no seat at {peer} within {limit}: {told}; {remedy}"),
        LackingSide::Ours => format!(
            "no seat here for {peer} within {limit}: all {0} seats for peers of this sidecar are in use (peers.max is {0}); {remedy}",
            told.most
        ),
    };
    Failure::new(Reason::LimitExceeded, message).with("peer", peer).with(DETAILS[0], told.most)
}

#[cfg(test)]
mod tests;
