//! Memory of the path to a peer on which large amounts stood still: what people are told of it, and that new connections take
//! small segments for a while. Plain data: the time is an argument.
//!
//! A path that loses packets of full size without a word (another MTU on the way, and no ICMP that says so) lets every
//! handshake and small call pass, and nothing else. Who concludes that is `lanes`; here it is kept.

use std::time::{Duration, Instant};

use crate::clock;

/// Time for which an observation is told that nothing follows from.
const TOLD_FOR: Duration = Duration::from_secs(600);
/// Time for which new connections take small segments. Then lanes of full size find out whether the path is mended: where it is
/// not, that costs one pull two seconds.
const SMALL_FOR: Duration = Duration::from_secs(3600);
/// Bytes that come in one packet of any path, beside what is around them. Where large amounts have stood still, more come on lanes.
pub(crate) const FEW_BYTES: u64 = 1 << 10;
/// Payload of a segment that passes every path that IPv6 passes: 1280 bytes less the longest usual headers.
const SEGMENT_BYTES: u32 = 1200;

/// Text for people, and when it was true.
type Told = (String, Instant);

/// Memory of the way to one peer.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    /// Packets of full size may be lost.
    suspected: Option<Told>,
    /// The control connection was cut for lack of progress, or nothing came on QUIC.
    stood: Option<Told>,
    /// The control connection was cut while bytes of a tensor were due on it.
    cut_beside: Option<Instant>,
    /// The control connection was cut, whatever was due on it.
    cut: Option<Instant>,
    /// The control connection was cut once more soon after.
    cut_again: Option<Instant>,
    /// Reason for which QUIC did not come up last.
    quic: Option<Told>,
}

impl Standstill {
    /// Lanes were up for so long, small messages passed, and no byte came of a tensor. `came`: bytes of it that had come before, of
    /// so many.
    pub(super) fn lanes_were_mute(&mut self, on_quic: bool, still: Duration, came: (u64, u64), now: Instant) {
        let (still, (came, of)) = (clock::told(still), came);
        let told = |lanes| format!("nothing moved for {still} on {lanes}, {came} of {of} bytes had come");
        if on_quic {
            self.stood = Some((told("the lanes on QUIC"), now));
            return;
        }
        if self.segment(now).is_some() {
            // Then it is not their size alone.
            self.stood = Some((told("the TCP lanes, also with small segments"), now));
            return;
        }
        let suspect = "small messages pass, so packets of full size may be lost on the way: compare the MTU of both ends and what \
                       is between them";
        self.suspected = Some((format!("{}; {suspect}", told("the TCP lanes")), now));
    }

    /// The peer asks for small segments, because it concluded the same of packets from here.
    pub(super) fn peer_asks_for_small(&mut self, now: Instant) {
        if self.segment(now).is_none() {
            let told = "large amounts from here stood still on the TCP lanes while small messages passed, says the peer: packets of \
                        full size may be lost on the way: compare the MTU of both ends and what is between them";
            self.suspected = Some((told.to_owned(), now));
        }
    }

    /// The control connection was cut because nothing moved on it for so long. `due`: bytes that had come of a tensor on it, of so
    /// many.
    pub(super) fn control_was_cut(&mut self, still: Duration, due: Option<(u64, u64)>, now: Instant) {
        let came =
            due.map(|(came, of)| format!(", {came} of {of} bytes of a tensor had come")).unwrap_or_default();
        let still = clock::told(still);
        self.stood =
            Some((format!("nothing moved for {still} on the control connection, which was cut{came}"), now));
        self.cut_beside = due.map(|_| now).or(self.cut_beside);
        self.cut_again = self.cut.filter(|at| is_recent(*at, now)).map(|_| now).or(self.cut_again);
        self.cut = Some(now);
    }

    /// Lanes brought a tensor. Those of full size show that the way is well.
    pub(super) fn lanes_came(&mut self, now: Instant) {
        if self.segment(now).is_none() {
            self.cut_beside = None;
        }
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
        fresh(self.suspected.as_ref(), SMALL_FOR, now).map(|_| SEGMENT_BYTES)
    }

    /// Bytes of the segments of a control connection. Where two were cut one soon after the other it costs little to try: messages of channels, names
    /// and descriptors come on it alone, and they accuse no path.
    pub(super) fn segment_of_control(&self, now: Instant) -> Option<u32> {
        let is_cut = self.cut_again.is_some_and(|at| is_recent(at, now));
        self.segment(now).or(is_cut.then_some(SEGMENT_BYTES))
    }

    /// Bytes of the segments of a lane. Beside others that are up it is as they are: those of full size would be found
    /// mute only where no other brings anything. Once it is tried, what was suspected is over.
    pub(super) fn segment_of_lane(&mut self, now: Instant, is_beside: bool) -> Option<u32> {
        let segment =
            self.segment(now).or(self.suspected.as_ref().filter(|_| is_beside).map(|_| SEGMENT_BYTES));
        if segment.is_none() {
            self.suspected = None;
        }
        segment
    }

    /// Returns whether also pulls of medium size are to stay off the control connection.
    pub(super) fn is_wary(&self, now: Instant) -> bool {
        self.segment(now).is_some() || self.cut_beside.is_some_and(|at| is_recent(at, now))
    }

    /// Text for people, empty where there is nothing to tell.
    pub(super) fn told(&self, now: Instant) -> String {
        let all = [(&self.suspected, SMALL_FOR), (&self.stood, TOLD_FOR), (&self.quic, TOLD_FOR)];
        join(all.into_iter().filter_map(|(told, most)| fresh(told.as_ref(), most, now)))
    }

    /// Text for people about what stood still since then.
    pub(super) fn told_since(&self, begun: Instant) -> String {
        join([&self.suspected, &self.stood].into_iter().flatten().filter(|(_, at)| *at >= begun))
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < TOLD_FOR
}

fn fresh(told: Option<&Told>, most: Duration, now: Instant) -> Option<&Told> {
    told.filter(|(_, at)| now.saturating_duration_since(*at) < most)
}

fn join<'a>(all: impl Iterator<Item = &'a Told>) -> String {
    all.map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STILL: Duration = Duration::from_secs(2);

    #[test]
    fn mute_lanes_are_told_of_and_make_segments_small_for_a_while() {
        let now = Instant::now();
        let mut path = Standstill::default();
        assert_eq!((path.told(now), path.segment(now), path.is_wary(now)), (String::new(), None, false));
        path.lanes_were_mute(false, STILL, (3, 9), now);
        let told = path.told(now);
        for part in ["nothing moved for 2s on the TCP lanes", "3 of 9 bytes", "packets of full size", "MTU"] {
            assert!(told.contains(part), "{part} is not in {told}");
        }
        assert_eq!((path.segment(now), path.is_wary(now)), (Some(SEGMENT_BYTES), true));
        let later = now + SMALL_FOR;
        assert_eq!(
            (path.told(later), path.segment(later), path.is_wary(later)),
            (String::new(), None, false)
        );
    }

    #[test]
    fn lanes_are_of_full_size_again_when_the_time_is_over_and_no_small_one_is_left() {
        let now = Instant::now();
        let mut path = Standstill::default();
        assert_eq!(path.segment_of_lane(now, true), None);
        path.lanes_were_mute(false, STILL, (3, 9), now);
        path.lanes_were_mute(false, STILL, (3, 9), now + SMALL_FOR / 2);
        assert!(path.told(now).contains("also with small segments"));
        let later = now + SMALL_FOR;
        assert_eq!(path.segment_of_lane(later, true), Some(SEGMENT_BYTES), "a small one is up");
        assert_eq!(
            path.segment_of_lane(later, false),
            None,
            "small ones that were mute have prolonged nothing"
        );
        assert_eq!(path.segment_of_lane(later, true), None, "those that are up are of full size");
    }

    #[test]
    fn a_peer_that_asks_for_small_segments_gets_them_and_its_word_is_told() {
        let now = Instant::now();
        let mut path = Standstill::default();
        path.peer_asks_for_small(now);
        assert!(path.told(now).contains("says the peer") && path.segment(now).is_some());
        path.peer_asks_for_small(now + SMALL_FOR / 2);
        assert_eq!(path.segment(now + SMALL_FOR), None, "asking again prolongs nothing");
    }

    #[test]
    fn a_cut_control_connection_and_silence_on_quic_are_told_and_suspect_no_size() {
        let now = Instant::now();
        let mut path = Standstill::default();
        path.control_was_cut(STILL, None, now);
        assert_eq!(path.told(now), "nothing moved for 2s on the control connection, which was cut");
        assert_eq!((path.segment(now), path.is_wary(now)), (None, false));
        path.control_was_cut(STILL, Some((1, 2)), now);
        assert!(path.told(now).ends_with("1 of 2 bytes of a tensor had come"));
        assert_eq!((path.segment(now), path.is_wary(now)), (None, true), "lanes are asked what it is");
        path.lanes_were_mute(true, STILL, (0, 9), now);
        assert_eq!((path.told(now).contains("the lanes on QUIC"), path.segment(now)), (true, None));
        assert_eq!((path.told(now + TOLD_FOR), path.is_wary(now + TOLD_FOR)), (String::new(), false));
    }

    #[test]
    fn a_cut_beside_a_tensor_is_forgotten_once_lanes_of_full_size_brought_one_and_not_by_another_cut() {
        let now = Instant::now();
        let mut path = Standstill::default();
        path.control_was_cut(STILL, Some((0, 2)), now);
        path.control_was_cut(STILL, None, now);
        assert!(path.is_wary(now), "an idle connection that was cut says nothing of the way");
        path.lanes_came(now);
        assert!(!path.is_wary(now));
        path.lanes_were_mute(false, STILL, (0, 2), now);
        path.lanes_came(now);
        assert!(path.is_wary(now), "those of small segments pass in any case");
    }

    #[test]
    fn a_control_connection_has_small_segments_for_a_while_once_two_were_cut_and_no_path_is_accused() {
        let now = Instant::now();
        let mut path = Standstill::default();
        path.control_was_cut(STILL, None, now);
        assert_eq!(path.segment_of_control(now), None);
        path.control_was_cut(STILL, None, now + TOLD_FOR);
        assert_eq!(path.segment_of_control(now + TOLD_FOR), None, "the first one was long ago");
        let second = now + TOLD_FOR + STILL;
        path.control_was_cut(STILL, None, second);
        assert_eq!((path.segment_of_control(second), path.segment(second)), (Some(SEGMENT_BYTES), None));
        assert!(!path.is_wary(second) && !path.told(second).contains("MTU"));
        assert_eq!(path.segment_of_control(second + TOLD_FOR), None);
    }

    #[test]
    fn a_call_is_told_what_stood_still_since_it_began() {
        let now = Instant::now();
        let mut path = Standstill::default();
        path.control_was_cut(STILL, None, now);
        path.quic_failed("quic to [::1]:1: no".to_owned(), now);
        assert_eq!(path.told_since(now + STILL), "");
        assert_eq!(path.told_since(now), "nothing moved for 2s on the control connection, which was cut");
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
