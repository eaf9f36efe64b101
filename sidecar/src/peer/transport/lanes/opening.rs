//! Lanes to be opened, and when they are given up on. Plain data: the time is an argument.

use std::time::{Duration, Instant};

use tensorlane_proto::frame::LANES_MAX;

use crate::backoff::Backoff;

/// First and longest wait after a lane that could not be opened, or broke.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Time that a lane may take to come before it is asked for again.
const COMING: Duration = Duration::from_secs(1);
/// After pulls have given up on lanes, how long no pull tries them: at first, and at most. It doubles until one comes.
const COOLDOWN: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Lane {
    #[default]
    Down,
    /// Asked for, then.
    Coming(Instant),
    Up,
}

/// The lanes of one direction of one connection.
#[derive(Debug)]
pub(super) struct LaneDialer {
    lanes: Vec<Lane>,
    /// Time that pulls wait for the first lane.
    patience: Duration,
    /// Failures since a lane last came.
    failed: u32,
    not_before: Option<Instant>,
    /// Since when pulls wait and no lane is up.
    without: Option<Instant>,
    /// Time that pulls have waited before, perhaps one after the other, since a lane last brought anything.
    in_vain: Duration,
    /// A lane that is up has brought something.
    proven: bool,
    /// Time for which lanes that are up may bring nothing until they are mute.
    still: Duration,
    /// Since when a lane is up while pulls wait, and none has brought anything.
    up: Option<Instant>,
    /// Lanes were begun anew for being mute, since one last brought something.
    anew: bool,
    cooling: Option<Instant>,
    /// Number of times that pulls have given up since a lane last came.
    given_up: u32,
}

impl LaneDialer {
    pub(super) fn new(count: usize, patience: Duration, still: Duration) -> Self {
        let lanes = vec![Lane::Down; count.min(LANES_MAX)];
        Self {
            lanes,
            patience,
            failed: 0,
            not_before: None,
            without: None,
            in_vain: Duration::ZERO,
            proven: false,
            still,
            up: None,
            anew: false,
            cooling: None,
            given_up: 0,
        }
    }

    /// Returns whether pulls should come on lanes now.
    pub(super) fn can_use_lanes(&self, now: Instant) -> bool {
        !self.lanes.is_empty() && self.cooling.is_none_or(|until| now >= until)
    }

    /// The lanes to be opened now, because there is work for them. They are taken to be coming.
    pub(super) fn missing(&mut self, now: Instant) -> Vec<u8> {
        if self.not_before.is_some_and(|time| now < time) {
            return Vec::new();
        }
        let is_missing = |lane: &Lane| match lane {
            Lane::Down => true,
            Lane::Coming(since) => now.saturating_duration_since(*since) >= COMING,
            Lane::Up => false,
        };
        let mut missing = Vec::new();
        for (number, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| is_missing(lane)) {
            *lane = Lane::Coming(now);
            missing.push(number as u8);
        }
        missing
    }

    /// A lane is up. What it is good for is not known before it has brought something.
    pub(super) fn came(&mut self, lane: u8, now: Instant) {
        self.set(lane, Lane::Up);
        if self.without.is_some() {
            self.up.get_or_insert(now);
        }
    }

    /// A lane has brought something.
    pub(super) fn delivered(&mut self) {
        self.proven = true;
        self.anew = false;
        self.failed = 0;
        self.not_before = None;
        (self.without, self.up) = (None, None);
        self.in_vain = Duration::ZERO;
        self.given_up = 0;
    }

    /// A lane is gone in order, for want of work.
    pub(super) fn went(&mut self, lane: u8) {
        self.set(lane, Lane::Down);
    }

    /// A lane broke, or did not come.
    pub(super) fn failed(&mut self, lane: u8, now: Instant) {
        self.set(lane, Lane::Down);
        if !self.is_up() && self.was_up(now) < self.still {
            // It broke, or was given up by a pull in a hurry, which says nothing of packets.
            self.up = None;
        }
        self.failed = self.failed.saturating_add(1);
        let time = now + BACKOFF.wait(self.failed);
        self.not_before = Some(self.not_before.map_or(time, |before| before.max(time)));
    }

    /// Since when pulls wait and no lane is up that has brought anything; since a lane came up, where it came while they waited.
    /// `work`: whether any waits now.
    pub(super) fn without(&mut self, now: Instant, work: bool) -> Option<Instant> {
        if !self.is_up() {
            self.proven = false;
        }
        if !work || self.proven {
            self.in_vain += self.waited(now);
            (self.without, self.up) = (None, None);
            return None;
        }
        let since = *self.without.get_or_insert(now);
        if self.is_up() {
            self.up.get_or_insert(now);
        }
        // Lanes that come and go put nothing off for longer.
        let came = self.up.filter(|up| up.saturating_duration_since(since) < self.patience);
        Some(came.unwrap_or(since))
    }

    /// Returns whether a lane is up.
    pub(super) fn is_up(&self) -> bool {
        self.lanes.contains(&Lane::Up)
    }

    fn was_up(&self, now: Instant) -> Duration {
        self.up.map_or(Duration::ZERO, |up| now.saturating_duration_since(up))
    }

    /// Returns whether lanes have been up for long, pulls have waited for them all the while, and not one byte came. `moved`: when one
    /// last came on any of them.
    pub(super) fn is_mute(&self, moved: Option<Instant>, now: Instant) -> bool {
        let is_long = self.up.is_some() && self.was_up(now) >= self.still;
        let has_moved = moved.zip(self.without).is_some_and(|(moved, since)| moved >= since);
        is_long && !has_moved
    }

    /// Time for which lanes that are up may bring nothing until they are mute.
    pub(super) fn still(&self) -> Duration {
        self.still
    }

    /// Lanes that are mute begin anew, once: pulls wait for them as if for the first time. False where they have already.
    pub(super) fn begins_anew(&mut self) -> bool {
        let begins = !std::mem::replace(&mut self.anew, true);
        if begins {
            (self.without, self.up, self.in_vain) = (None, None, Duration::ZERO);
        }
        begins
    }

    fn waited(&self, now: Instant) -> Duration {
        self.without.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// A pull has waited too long. Where lanes had time enough to come, the next ones do not try for a while: whether that
    /// begins now.
    pub(super) fn give_up(&mut self, now: Instant) -> bool {
        let is_over = self.in_vain + self.waited(now) >= self.patience;
        if is_over {
            self.given_up = self.given_up.saturating_add(1);
            self.cooling = Some(now + COOLDOWN.wait(self.given_up));
            self.without = None;
            self.in_vain = Duration::ZERO;
        }
        is_over
    }

    fn set(&mut self, lane: u8, to: Lane) {
        if let Some(lane) = self.lanes.get_mut(usize::from(lane)) {
            *lane = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOPE: Duration = Duration::from_secs(2);

    #[test]
    fn lanes_are_asked_for_once_and_again_when_they_do_not_come() {
        let now = Instant::now();
        let mut opening = LaneDialer::new(3, HOPE, HOPE);
        assert_eq!(opening.missing(now), [0, 1, 2]);
        assert!(opening.missing(now).is_empty());
        opening.came(1, now);
        assert_eq!(opening.missing(now + COMING), [0, 2]);
        opening.went(1);
        assert_eq!(opening.missing(now + COMING), [1]);
    }

    #[test]
    fn the_wait_after_a_failure_doubles_until_a_lane_comes() {
        let mut now = Instant::now();
        let mut opening = LaneDialer::new(1, HOPE, HOPE);
        for wait in [100, 200, 400, 800, 1600, 3200, 5000, 5000].map(Duration::from_millis) {
            assert_eq!(opening.missing(now), [0]);
            opening.failed(0, now);
            assert!(opening.missing(now + wait - Duration::from_millis(1)).is_empty(), "{wait:?}");
            now += wait;
        }
        assert_eq!(opening.missing(now), [0]);
        opening.came(0, now);
        opening.failed(0, now);
        assert!(opening.missing(now + BACKOFF.first).is_empty(), "it brought nothing");
        now += BACKOFF.longest;
        assert_eq!(opening.missing(now), [0]);
        opening.came(0, now);
        opening.delivered();
        opening.failed(0, now);
        assert_eq!(opening.missing(now + BACKOFF.first), [0]);
    }

    #[test]
    fn hope_ends_where_no_lane_comes_and_returns_after_a_while() {
        let now = Instant::now();
        let mut opening = LaneDialer::new(2, HOPE, HOPE);
        assert!(opening.can_use_lanes(now));
        assert_eq!(opening.without(now, true), Some(now));
        assert_eq!(opening.without(now + HOPE / 2, true), Some(now));
        assert_eq!(opening.without(now + HOPE / 2, false), None, "nobody waits");
        let now = now + HOPE * 9;
        assert_eq!(opening.without(now, true), Some(now), "somebody waits again only now");
        opening.give_up(now + HOPE / 4);
        assert!(opening.can_use_lanes(now + HOPE / 4), "while nobody waited, nothing was waited for in vain");
        opening.give_up(now + HOPE / 2);
        assert!(!opening.can_use_lanes(now + HOPE / 2), "one after the other has waited long enough");
        let now = now + HOPE / 2 + COOLDOWN.first;
        assert!(opening.can_use_lanes(now) && opening.without(now, true) == Some(now));
        opening.give_up(now + HOPE);
        assert!(!opening.can_use_lanes(now + HOPE + COOLDOWN.first), "it takes longer each time");
        assert!(opening.can_use_lanes(now + HOPE + COOLDOWN.first * 2));
        opening.came(0, now);
        assert!(opening.without(now + HOPE * 9, true).is_some(), "it is up and has brought nothing");
        opening.delivered();
        assert_eq!(opening.without(now + HOPE * 9, true), None);
        assert!(!LaneDialer::new(0, HOPE, HOPE).can_use_lanes(now));
    }

    #[test]
    fn lanes_that_are_up_for_long_and_bring_no_byte_are_mute_and_begin_anew_once() {
        let start = Instant::now();
        let mut opening = LaneDialer::new(2, HOPE, HOPE);
        assert_eq!(opening.without(start, true), Some(start));
        assert!(!opening.is_mute(None, start + HOPE * 2), "none has come");
        let up = start + HOPE / 2;
        opening.came(0, up);
        assert_eq!(opening.without(up + HOPE / 8, true), Some(up), "a lane that comes has its own time");
        assert!(!opening.is_mute(None, start + HOPE), "it is up for less");
        let late = up + HOPE;
        assert!(opening.is_mute(None, late) && opening.is_mute(Some(start - HOPE), late));
        assert!(!opening.is_mute(Some(start + HOPE), late), "slow: a byte came");
        opening.failed(0, late);
        assert!(opening.is_mute(None, late), "its end for lack of progress takes nothing back");
        assert!(opening.begins_anew());
        assert_eq!(opening.without(late, true), Some(late), "it is waited for anew");
        assert!(!opening.is_mute(None, late + HOPE) && !opening.begins_anew(), "once");
        opening.delivered();
        assert!(opening.begins_anew(), "one has brought something in between");
    }

    #[test]
    fn lanes_that_break_early_are_not_mute_and_put_nothing_off() {
        let start = Instant::now();
        let mut opening = LaneDialer::new(1, HOPE, HOPE);
        opening.without(start, true);
        for step in 1..8 {
            let now = start + HOPE / 2 * step;
            opening.came(0, now);
            let since = opening.without(now, true).unwrap();
            assert!(since < start + HOPE, "{step}");
            assert!(!opening.is_mute(None, now));
            opening.failed(0, now + HOPE / 4);
        }
        assert!(!opening.is_mute(None, start + HOPE * 9));
    }

    #[test]
    fn time_in_which_nobody_waits_makes_no_lane_mute() {
        let start = Instant::now();
        let mut opening = LaneDialer::new(1, HOPE, HOPE);
        opening.without(start, true);
        opening.came(0, start);
        opening.without(start, true);
        opening.without(start + HOPE / 2, false);
        let now = start + HOPE * 3;
        opening.without(now, true);
        assert!(!opening.is_mute(None, now + HOPE / 2) && opening.is_mute(None, now + HOPE));
    }

    #[test]
    fn a_pull_in_a_hurry_says_nothing_of_the_lanes() {
        let now = Instant::now();
        let mut opening = LaneDialer::new(2, HOPE, HOPE);
        assert_eq!(opening.without(now, true), Some(now));
        opening.give_up(now + HOPE / 4);
        assert!(opening.can_use_lanes(now + HOPE / 4));
        opening.came(1, now);
        opening.delivered();
        opening.failed(1, now + HOPE);
        assert_eq!(opening.without(now + HOPE, true), Some(now + HOPE));
        opening.give_up(now + HOPE * 3 / 2);
        assert!(opening.can_use_lanes(now + HOPE * 3 / 2), "one brought something in between");
    }
}
