//! Lives of a peer: the one that lives, and those that are over. A process that starts again is another one.
//! An incarnation says nothing of its order; that follows from when connections were begun.

use std::time::Instant;

use tensorlane_proto::Incarnation;

use super::{Carrier, Effects, PAST_MAX, State};

impl<L: Carrier> State<L> {
    /// The connected incarnation lives: the one that this call is for does not.
    pub(in crate::peer) fn lives(&mut self, number: u64, link: u64) -> Effects<L> {
        let present = self.is_present(link);
        let Some(place) = self.in_doubt.iter().position(|n| *n == number).filter(|_| present) else {
            return Effects::default();
        };
        self.in_doubt.swap_remove(place);
        if let Some(expected) = self.calls.get(&number).and_then(|call| call.expected) {
            self.is_over(expected);
        }
        self.waiting.push_front(number);
        self.pump()
    }

    /// Remembers an incarnation that will not come back.
    fn is_over(&mut self, incarnation: Incarnation) {
        if self.past.contains(&incarnation) {
            return;
        }
        if self.past.len() >= PAST_MAX {
            self.past.pop_front();
        }
        self.past.push_back(incarnation);
    }

    /// Returns whether an incarnation is known to be over.
    pub(in crate::peer) fn was(&self, incarnation: Incarnation) -> bool {
        self.past.contains(&incarnation)
    }

    /// Leaves what was in doubt to the next connection.
    pub(super) fn doubt_again(&mut self) {
        let mut in_doubt = std::mem::take(&mut self.in_doubt);
        in_doubt.sort_unstable();
        in_doubt.into_iter().rev().for_each(|number| self.waiting.push_front(number));
    }

    /// Returns whether a connection comes too late: it leads to another life of the peer than the last one, and was
    /// begun before that.
    ///
    /// Lives follow one another. Each was there when its connection was begun (its own SYN, or its kernel's answer to ours, came before),
    /// and after it (the handshake is fresh). The other one began its connection later, so this life came first, and is over, whichever
    /// of the two had its place first. A relay that answers before it has connected may turn the order round; a life that is refused in
    /// error comes again with a connection that is begun later.
    pub(in crate::peer) fn is_late(&self, incarnation: Incarnation, begun: Instant) -> bool {
        self.incarnation != Some(incarnation) && self.begun.is_some_and(|last| begun < last)
    }

    /// A connection leads to this life. Another life that was there before is over, and its leases end with it.
    pub(super) fn lives_now(&mut self, incarnation: Incarnation, begun: Instant) {
        if self.incarnation != Some(incarnation) {
            self.open.clear();
            self.owed.clear();
            self.redeemed.clear();
            if let Some(old) = self.incarnation {
                self.is_over(old);
            }
        }
        self.past.retain(|past| *past != incarnation);
        self.incarnation = Some(incarnation);
        self.begun = self.begun.max(Some(begun));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::link::Link;
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_connection_of_another_life_is_late_where_it_was_begun_before_the_last_one_and_no_other_is() {
        let (began, old, new, next) = (Instant::now(), Incarnation(1), Incarnation(2), Incarnation(3));
        let mut state = State::<Link>::default();
        assert!(!state.is_late(old, began), "nobody was there");
        state.lives_now(new, began + S);
        assert!(state.is_late(old, began));
        assert!(!state.is_late(new, began), "a second connection of the same life");
        assert!(!state.is_late(next, began + S) && !state.is_late(next, began + 2 * S));
        // The second connection of a life, which was begun before its first, makes no earlier life less late.
        state.lives_now(new, began);
        assert!(state.is_late(old, began + S / 2));
        state.lives_now(next, began + 2 * S);
        assert!(state.was(new) && !state.was(next) && state.is_late(new, began + S));
    }
}
