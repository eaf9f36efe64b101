//! Credit between the two ends of a channel that another peer reads. Pure.
//!
//! ```text
//!   Window (owner's side): may this message begin, may these bytes go?      Arrivals (reader's side): may this frame come?
//!         given back + slots > sequence; eight layouts; 4 MiB not landed <── ChannelCredit {given back, landed}
//! ```
//! Nothing is sent that has no place: a place is promised when every reader there has given it back. In a channel that drops, no reader
//! is waited for: a place is promised when a message has landed, and sequences have gaps. With the policy `latest` one message at a
//! time is on its way, so that what arrives is one transfer old at most.
//!
//! On another connection both ends go on after the last message that came whole, and count anew from there.

use std::collections::VecDeque;

use tensorlane_memory::ring::Policy;
use tensorlane_proto::frame::CHANNEL_WINDOW;
use tensorlane_proto::generated as v1;

use crate::peer::Misuse;

/// Layouts that a ring keeps: a new one needs that every message with the one whose place it takes is given back.
const LAYOUTS: usize = 8;
/// Bytes that land before the owner is told of them, at most.
const TELL_FROM: u64 = CHANNEL_WINDOW / 4;

/// Room at the other end, as its owner knows it.
#[derive(Debug)]
pub(super) struct Window {
    places: u64,
    /// Lowest sequence that a reader there has not given back; none before the first credit. In a channel that drops, the first
    /// sequence plus the messages that have landed.
    given_back: Option<u64>,
    /// First sequence of which nothing was sent. In a channel that drops, the first sequence plus the messages that were.
    next: u64,
    /// First and last uses of the last layouts.
    layouts: VecDeque<(u64, u64)>,
    sent: u64,
    landed: u64,
    /// Sequence after the message that was begun last.
    reach: u64,
    /// Sequence below which all have arrived, by the word of the other end.
    received: u64,
}

/// Messages on their way, as the reader's side expects them.
#[derive(Debug)]
pub(super) struct Arrivals {
    drops: bool,
    places: u64,
    slot_bytes: u64,
    /// Promised: messages below this plus places have a place.
    given_back: u64,
    /// First sequence plus the messages that have landed.
    next: u64,
    /// Sequence of the message under way, or the lowest of the next one.
    sequence: u64,
    /// Bytes of the message under way, and how many have come; none between messages.
    part: Option<(u64, u64)>,
    landed: u64,
    told: u64,
    /// Value of `next` when the owner was told last.
    told_next: u64,
}

/// Place of a frame in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// Set if the frame ends its message.
    pub(super) last: bool,
    /// Set if the owner is to be told that bytes have landed.
    pub(super) tell: bool,
}

/// Messages that may be on their way.
fn places(policy: Policy, slots: u32) -> u64 {
    if policy == Policy::Latest { 1 } else { slots.into() }
}

// === impl Window ===

impl Window {
    pub(super) fn new(policy: Policy, slots: u32, first: u64) -> Self {
        let (places, layouts) = (places(policy, slots), VecDeque::new());
        let (next, reach, received) = (first, first, first);
        Self { places, given_back: None, next, layouts, sent: 0, landed: 0, reach, received }
    }

    /// Returns whether the next message has a place, with another layout than the last one or not.
    pub(super) fn may_begin(&self, new_layout: bool) -> bool {
        let Some(given_back) = self.given_back else { return false };
        let has_layout = match self.layouts.front() {
            Some((_, last)) if new_layout && self.layouts.len() == LAYOUTS => *last < given_back,
            _ => true,
        };
        has_layout && self.next < given_back.saturating_add(self.places)
    }

    /// The message of that sequence begins.
    pub(super) fn begin(&mut self, sequence: u64, has_layout: bool, new_layout: bool) {
        if new_layout {
            if self.layouts.len() == LAYOUTS {
                self.layouts.pop_front();
            }
            self.layouts.push_back((self.next, self.next));
        } else if let Some((_, last)) = self.layouts.back_mut()
            && has_layout
        {
            *last = self.next;
        }
        self.next += 1;
        self.reach = sequence + 1;
    }

    /// Returns whether so many bytes may be on their way, too.
    pub(super) fn may_send(&self, bytes: u64) -> bool {
        self.sent - self.landed + bytes <= CHANNEL_WINDOW
    }

    /// So many bytes go.
    pub(super) fn send(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// The other end has more room. Credits may overtake each other: what an earlier one says is nothing new.
    ///
    /// # Errors
    /// It gives back or has what was not sent, or bytes have landed that were not.
    pub(super) fn credit(&mut self, credit: &v1::PeerChannelCredit) -> Result<(), Misuse> {
        if credit.next > self.next || credit.landed > self.sent || credit.received > self.reach {
            return Err(Misuse);
        }
        self.given_back = Some(self.given_back.map_or(credit.next, |before| before.max(credit.next)));
        self.landed = self.landed.max(credit.landed);
        self.received = self.received.max(credit.received);
        Ok(())
    }

    /// Returns the sequence below which all have arrived.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Goes on with a sequence on another connection, closed until the first credit there.
    ///
    /// # Errors
    /// It was not sent, or has arrived before.
    pub(super) fn resume(&mut self, next: u64) -> Result<(), Misuse> {
        if next < self.received || next > self.reach {
            return Err(Misuse);
        }
        // In a channel that drops there are none.
        self.layouts.retain(|(first, _)| *first < next);
        self.layouts.iter_mut().for_each(|(_, last)| *last = (*last).min(next - 1));
        (self.given_back, self.sent, self.landed) = (None, 0, 0);
        (self.next, self.reach, self.received) = (next, next, next);
        Ok(())
    }
}

// === impl Arrivals ===

impl Arrivals {
    pub(super) fn new(policy: Policy, slots: u32, slot_bytes: u64, first: u64) -> Self {
        let (drops, places) = (policy.drops(), places(policy, slots));
        let (given_back, next, sequence, told_next) = (first, first, first, first);
        let (part, landed, told) = (None, 0, 0);
        Self { drops, places, slot_bytes, given_back, next, sequence, part, landed, told, told_next }
    }

    /// Promises the places of what is below; the credit that says so.
    pub(super) fn grant(&mut self, given_back: u64) -> v1::PeerChannelCredit {
        self.given_back = self.given_back.max(given_back);
        (self.told, self.told_next) = (self.landed, self.next);
        v1::PeerChannelCredit { next: self.given_back, landed: self.landed, received: self.sequence }
    }

    /// The connection is lost: a message of which a part has come is to come again. Returns the sequence with which another
    /// connection goes on.
    pub(super) fn resume(&mut self) -> u64 {
        (self.part, self.landed, self.told) = (None, 0, 0);
        self.next = self.sequence;
        if self.drops {
            self.given_back = self.sequence;
        }
        self.told_next = self.next;
        self.sequence
    }

    /// Returns the sequence number below which places were promised last.
    pub(super) fn given_back(&self) -> u64 {
        self.given_back
    }

    /// Returns the first sequence plus the messages that have landed.
    pub(super) fn messages_landed(&self) -> u64 {
        self.next
    }

    /// Takes in a frame.
    ///
    /// # Errors
    /// It is not the next one, or has no place.
    pub(super) fn take(&mut self, message: &v1::PeerChannelMessage) -> Result<Step, Misuse> {
        let length = message.data.len() as u64;
        let at = match self.part {
            None if self.next >= self.given_back.saturating_add(self.places) => return Err(Misuse),
            None => 0,
            Some((bytes, _)) if bytes != message.bytes => return Err(Misuse),
            Some((_, at)) => at,
        };
        let begins_again = at > 0 && (message.same_layout || message.layout.is_some());
        let end = at.checked_add(length).ok_or(Misuse)?;
        // Only a message of a channel that drops may be a later one than is expected. The last number of all has no next one.
        let later = self.drops && at == 0 && message.sequence > self.sequence;
        let wrong = (message.sequence != self.sequence && !later)
            || message.sequence == u64::MAX
            || message.offset != at
            || message.bytes > self.slot_bytes
            || end > message.bytes
            || (length == 0 && message.bytes > 0)
            || (message.same_layout && message.layout.is_some())
            || begins_again;
        if wrong {
            return Err(Misuse);
        }
        let last = end == message.bytes;
        self.part = (!last).then_some((message.bytes, end));
        self.next += u64::from(last);
        self.sequence = message.sequence + u64::from(last);
        self.landed += length;
        // Before the places are used up that were promised, and when they are: at the owner each has one until it is told.
        let is_full = self.next >= self.given_back.saturating_add(self.places);
        let makes_room = last && (is_full || self.next - self.told_next >= self.places.div_ceil(2));
        Ok(Step { last, tell: makes_room || self.landed - self.told >= TELL_FROM })
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::frame::CHANNEL_PIECE_MAX;

    use super::*;

    fn credit(next: u64, landed: u64) -> v1::PeerChannelCredit {
        v1::PeerChannelCredit { next, landed, received: 0 }
    }

    /// A credit without what was received.
    fn room(credit: v1::PeerChannelCredit) -> v1::PeerChannelCredit {
        v1::PeerChannelCredit { received: 0, ..credit }
    }

    fn frame(sequence: u64, bytes: u64, offset: u64, data: usize) -> v1::PeerChannelMessage {
        v1::PeerChannelMessage { sequence, bytes, offset, data: vec![7; data].into(), ..Default::default() }
    }

    #[test]
    fn a_window_is_closed_until_the_first_credit_and_then_has_the_slots() {
        let mut window = Window::new(Policy::Block, 2, 5);
        assert!(!window.may_begin(false));
        window.credit(&credit(5, 0)).unwrap();
        for sequence in 5..7 {
            assert!(window.may_begin(false));
            window.begin(sequence, false, false);
        }
        assert!(!window.may_begin(false));
        window.credit(&credit(6, 0)).unwrap();
        assert!(window.may_begin(false));
    }

    #[test]
    fn bytes_on_their_way_are_bounded_until_they_land() {
        let mut window = Window::new(Policy::Block, 2, 0);
        while window.may_send(CHANNEL_PIECE_MAX as u64) {
            window.send(CHANNEL_PIECE_MAX as u64);
        }
        assert_eq!(window.sent, CHANNEL_WINDOW);
        window.credit(&credit(0, CHANNEL_PIECE_MAX as u64)).unwrap();
        assert!(window.may_send(CHANNEL_PIECE_MAX as u64));
    }

    #[test]
    fn a_ninth_layout_waits_for_the_messages_of_the_first() {
        let mut window = Window::new(Policy::Block, 64, 0);
        window.credit(&credit(0, 0)).unwrap();
        for sequence in 0..LAYOUTS as u64 {
            window.begin(sequence, true, true);
        }
        assert!(!window.may_begin(true) && window.may_begin(false));
        window.credit(&credit(1, 0)).unwrap();
        assert!(window.may_begin(true));
    }

    #[test]
    fn a_credit_for_what_was_not_sent_is_misuse() {
        let mut window = Window::new(Policy::Block, 2, 0);
        assert_eq!(window.credit(&credit(1, 0)), Err(Misuse));
        assert_eq!(window.credit(&credit(0, 1)), Err(Misuse));
        let received = v1::PeerChannelCredit { received: 1, ..credit(0, 0) };
        assert_eq!(window.credit(&received), Err(Misuse));
        assert_eq!(window.credit(&credit(0, 0)), Ok(()));
    }

    #[test]
    fn pieces_of_a_message_arrive_in_order_and_end_it_once() {
        let mut arrivals = Arrivals::new(Policy::Block, 3, 100, 3);
        assert_eq!(arrivals.take(&frame(3, 100, 0, 60)), Ok(Step { last: false, tell: false }));
        assert_eq!(arrivals.take(&frame(3, 100, 60, 40)), Ok(Step { last: true, tell: false }));
        assert_eq!(
            arrivals.take(&frame(4, 0, 0, 0)),
            Ok(Step { last: true, tell: true }),
            "half of the places"
        );
        assert_eq!(arrivals.grant(3), v1::PeerChannelCredit { received: 5, ..credit(3, 100) });
        assert_eq!(arrivals.take(&frame(5, 0, 0, 0)), Ok(Step { last: true, tell: true }), "the last place");
        assert_eq!(arrivals.take(&frame(6, 1, 0, 1)), Err(Misuse), "it has no place");
        assert_eq!(room(arrivals.grant(4)), credit(4, 100));
        assert_eq!(arrivals.take(&frame(6, 1, 0, 1)), Ok(Step { last: true, tell: true }));
    }

    #[test]
    fn frames_that_cannot_be_are_misuse() {
        let arrivals = || {
            let mut arrivals = Arrivals::new(Policy::Block, 4, 100, 0);
            arrivals.take(&frame(0, 50, 0, 20)).unwrap();
            arrivals
        };
        for wrong in [
            frame(1, 50, 20, 30),
            frame(0, 51, 20, 30),
            frame(0, 50, 19, 30),
            frame(0, 50, 20, 31),
            frame(0, 50, 20, 0),
            v1::PeerChannelMessage { same_layout: true, ..frame(0, 50, 20, 30) },
        ] {
            assert_eq!(arrivals().take(&wrong), Err(Misuse), "{wrong:?}");
        }
        let mut fresh = Arrivals::new(Policy::Block, 4, 100, 0);
        assert_eq!(fresh.take(&frame(0, 101, 0, 20)), Err(Misuse), "larger than a slot");
        assert_eq!(fresh.take(&frame(0, u64::MAX, u64::MAX, 20)), Err(Misuse));
    }

    #[test]
    fn whatever_a_window_lets_go_arrivals_take() {
        let (mut window, mut arrivals) =
            (Window::new(Policy::Block, 3, 9), Arrivals::new(Policy::Block, 3, 1 << 20, 9));
        let mut given_back = 9;
        window.credit(&arrivals.grant(given_back)).unwrap();
        for sequence in 9..500u64 {
            let bytes = sequence * 7919 % (1 << 20);
            while !window.may_begin(false) {
                given_back += 1;
                window.credit(&arrivals.grant(given_back)).unwrap();
            }
            window.begin(sequence, false, false);
            let mut at = 0;
            loop {
                let length = (bytes - at).min(CHANNEL_PIECE_MAX as u64);
                assert!(window.may_send(length));
                window.send(length);
                let step = arrivals.take(&frame(sequence, bytes, at, length as usize)).unwrap();
                if step.tell {
                    window.credit(&arrivals.grant(given_back)).unwrap();
                }
                at += length;
                assert_eq!(step.last, at == bytes);
                if step.last {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_message_of_a_channel_that_drops_may_skip_and_never_go_back() {
        let mut arrivals = Arrivals::new(Policy::DropOldest, 4, 100, 3);
        assert_eq!(arrivals.take(&frame(7, 100, 0, 60)), Ok(Step { last: false, tell: false }));
        assert_eq!(arrivals.take(&frame(8, 100, 60, 40)), Err(Misuse), "in the middle of another one");
        assert_eq!(arrivals.take(&frame(7, 100, 60, 40)), Ok(Step { last: true, tell: false }));
        assert_eq!(arrivals.take(&frame(7, 1, 0, 1)), Err(Misuse));
        assert_eq!(arrivals.take(&frame(u64::MAX, 1, 0, 1)), Err(Misuse));
        assert_eq!(arrivals.take(&frame(9, 1, 0, 1)), Ok(Step { last: true, tell: true }));
        assert_eq!(arrivals.messages_landed(), 5);
        let mut blocks = Arrivals::new(Policy::Block, 4, 100, 3);
        assert_eq!(blocks.take(&frame(4, 1, 0, 1)), Err(Misuse));
    }

    #[test]
    fn one_message_of_latest_is_on_its_way_at_a_time() {
        let (mut window, mut arrivals) =
            (Window::new(Policy::Latest, 8, 5), Arrivals::new(Policy::Latest, 8, 64, 5));
        window.credit(&arrivals.grant(5)).unwrap();
        for sequence in [5, 100, 101, 7_000] {
            assert!(window.may_begin(false));
            window.begin(sequence, false, false);
            window.send(1);
            assert!(!window.may_begin(false));
            assert_eq!(arrivals.take(&frame(sequence, 1, 0, 1)), Ok(Step { last: true, tell: true }));
            let landed = arrivals.messages_landed();
            window.credit(&arrivals.grant(landed)).unwrap();
        }
        assert_eq!(arrivals.take(&frame(7_001, 1, 0, 1)), Ok(Step { last: true, tell: true }));
        assert_eq!(arrivals.take(&frame(7_002, 1, 0, 1)), Err(Misuse), "it was not promised");
    }

    #[test]
    fn a_window_goes_on_where_the_other_end_says_and_is_closed_until_it_has_credit() {
        let mut window = Window::new(Policy::Block, 4, 5);
        window.credit(&credit(5, 0)).unwrap();
        (5..9).for_each(|sequence| window.begin(sequence, false, false));
        window.send(100);
        window.credit(&v1::PeerChannelCredit { received: 7, ..credit(6, 40) }).unwrap();
        assert_eq!(window.resume(6), Err(Misuse), "it has arrived");
        assert_eq!(window.resume(10), Err(Misuse), "it was not sent");
        window.resume(8).unwrap();
        assert!(!window.may_begin(false));
        assert_eq!(window.credit(&credit(8, 1)), Err(Misuse), "bytes are counted anew");
        window.credit(&v1::PeerChannelCredit { received: 8, ..credit(6, 0) }).unwrap();
        for sequence in 8..10 {
            assert!(window.may_begin(false));
            window.begin(sequence, false, false);
        }
        assert!(!window.may_begin(false), "the other end has given back what is below 6");
    }

    #[test]
    fn layouts_that_did_not_arrive_take_no_place() {
        let mut window = Window::new(Policy::Block, 64, 0);
        window.credit(&credit(0, 0)).unwrap();
        (0..LAYOUTS as u64).for_each(|sequence| window.begin(sequence, true, true));
        window.begin(8, true, false);
        window.resume(0).unwrap();
        window.credit(&credit(0, 0)).unwrap();
        for sequence in 0..LAYOUTS as u64 {
            assert!(window.may_begin(true));
            window.begin(sequence, true, true);
        }
        assert!(!window.may_begin(true));
        window.resume(8).unwrap();
        window.credit(&credit(0, 0)).unwrap();
        assert!(!window.may_begin(true), "they have arrived");
        window.credit(&credit(1, 0)).unwrap();
        assert!(window.may_begin(true));
    }

    #[test]
    fn whatever_is_lost_with_a_connection_comes_again_once() {
        for policy in [Policy::Block, Policy::DropOldest, Policy::Latest] {
            let (mut window, mut arrivals) = (Window::new(policy, 4, 3), Arrivals::new(policy, 4, 64, 3));
            let (mut next, mut landed) = (3, Vec::new());
            window.credit(&arrivals.grant(3)).unwrap();
            for round in 0..200u64 {
                // Some arrive, one arrives in part, the rest is lost.
                let mut come = round % 3;
                while window.may_begin(false) {
                    window.begin(next, false, false);
                    window.send(2);
                    if come > 0 {
                        arrivals.take(&frame(next, 2, 0, 1)).unwrap();
                        arrivals.take(&frame(next, 2, 1, 1)).unwrap();
                        landed.push(next);
                        come -= 1;
                    } else if round % 2 == 0 {
                        let _ = arrivals.take(&frame(next, 2, 0, 1));
                    }
                    next += 1;
                }
                next = arrivals.resume();
                window.resume(next).unwrap();
                // A reader at the other end gives everything back.
                let given_back = if policy.drops() { arrivals.messages_landed() } else { next };
                window.credit(&arrivals.grant(given_back)).unwrap();
            }
            assert!(landed.len() > 60, "{landed:?}");
            assert!(landed.iter().copied().eq(3..3 + landed.len() as u64), "{policy}: {landed:?}");
        }
    }
}
