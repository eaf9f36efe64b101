//! Memory of a path on which large amounts stood still: what people are told of it, and that new connections take small
//! segments for a while. Plain data: the time is an argument.
//!
//! A path that loses packets of full size without a word (another MTU on the way, and no ICMP that says so) lets every
//! handshake and small call pass, and nothing else.

use std::time::{Duration, Instant};

use super::transport::Way;
use crate::clock;

/// Time for which it is told, and taken into account.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Payload of a segment that passes every path that IPv6 passes: 1280 bytes less the longest usual headers.
const SEGMENT_BYTES: u32 = 1200;

/// Part of the way between two peers that stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stood {
    /// Lanes of a way, which had come up.
    Lanes(Way),
    /// The control connection, which was cut for it.
    Control,
}

/// Observation of a standstill.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) stood: Stood,
    /// Time for which nothing moved.
    pub(super) still: Duration,
    /// Bytes of a tensor that had come, of so many.
    pub(super) came: Option<(u64, u64)>,
    /// Small messages passed meanwhile, or large amounts were due alone.
    pub(super) is_size_suspect: bool,
}

/// Memory of the way to one peer.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    told: Option<(String, Instant)>,
    suspected: Option<Instant>,
    /// Reason for which QUIC did not come up last.
    quic: Option<(String, Instant)>,
}

impl Standstill {
    /// Notes a standstill.
    pub(super) fn note(&mut self, seen: &Seen, now: Instant) {
        let stood = match seen.stood {
            Stood::Lanes(Way::Quic) => "the lanes on QUIC",
            Stood::Lanes(_) => "the TCP lanes",
            Stood::Control => "the control connection, which was cut",
        };
        let came = seen.came.map(|(came, of)| format!(", {came} of {of} bytes had come")).unwrap_or_default();
        let suspect = if seen.is_size_suspect {
            "; small messages pass, so packets of full size may be lost on the way: compare the MTU of both ends and what \
             is between them"
        } else {
            ""
        };
        let still = clock::told(seen.still);
        self.told = Some((format!("nothing moved for {still} on {stood}{came}{suspect}"), now));
        if seen.is_size_suspect {
            self.suspect(now);
        }
    }

    /// Packets of full size may be lost: new connections take small segments.
    pub(super) fn suspect(&mut self, now: Instant) {
        self.suspected = Some(now);
    }

    /// Notes the reason for which QUIC did not come up.
    pub(super) fn quic_failed(&mut self, why: String, now: Instant) {
        self.quic = Some((why, now));
    }

    /// QUIC is up.
    pub(super) fn quic_came(&mut self) {
        self.quic = None;
    }

    /// Bytes of the segments of a new connection, where they are to be small.
    pub(super) fn segment(&self, now: Instant) -> Option<u32> {
        let is_fresh = |at: &Instant| now.saturating_duration_since(*at) < REMEMBERED;
        self.suspected.as_ref().is_some_and(is_fresh).then_some(SEGMENT_BYTES)
    }

    /// Text for people, empty where there is nothing to tell.
    pub(super) fn told(&self, now: Instant) -> String {
        let is_fresh = |(_, at): &&(String, Instant)| now.saturating_duration_since(*at) < REMEMBERED;
        let all = [&self.told, &self.quic].into_iter().flatten().filter(is_fresh);
        all.map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANES: Seen = Seen {
        stood: Stood::Lanes(Way::Lanes),
        still: Duration::from_secs(2),
        came: Some((3, 9)),
        is_size_suspect: true,
    };

    #[test]
    fn a_standstill_beside_small_messages_is_told_and_makes_segments_small_for_a_while() {
        let now = Instant::now();
        let mut path = Standstill::default();
        assert_eq!((path.told(now), path.segment(now)), (String::new(), None));
        path.note(&LANES, now);
        let told = path.told(now);
        for part in ["nothing moved for 2s on the TCP lanes", "3 of 9 bytes", "MTU"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        assert_eq!(path.segment(now), Some(SEGMENT_BYTES));
        assert_eq!((path.told(now + REMEMBERED), path.segment(now + REMEMBERED)), (String::new(), None));
    }

    #[test]
    fn a_standstill_in_which_nothing_passes_suspects_no_size() {
        let now = Instant::now();
        let mut path = Standstill::default();
        path.note(&Seen { stood: Stood::Control, came: None, is_size_suspect: false, ..LANES }, now);
        assert_eq!(path.told(now), "nothing moved for 2s on the control connection, which was cut");
        assert_eq!(path.segment(now), None);
    }

    #[test]
    fn a_reason_of_quic_is_told_until_it_comes_up() {
        let now = Instant::now();
        let mut path = Standstill::default();
        path.quic_failed("quic to [::1]:1: no".to_owned(), now);
        assert_eq!(path.told(now), "quic to [::1]:1: no");
        path.quic_came();
        assert_eq!(path.told(now), "");
    }
}
