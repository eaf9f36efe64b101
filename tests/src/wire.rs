//! Direction of what proxies carry between two hosts, whoever dialed: how many bytes, and what is done to some of them.
//! It knows no sockets, and nothing of what the bytes mean.

use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Harm that is done to the bytes that are carried on at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurt {
    /// Changed in a bit.
    Flipped,
    /// Carried on twice.
    Repeated,
    /// The second half goes before the first.
    Reordered,
    /// The second half comes again.
    Overlapping,
    /// Cut: those before the place come through, and then the connection ends.
    Cut,
}

/// A direction. All that it carries counts, on whatever connection.
#[derive(Debug, Default)]
pub struct Wire(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    carried: u64,
    /// After so many carried bytes.
    next: Option<(u64, Hurt)>,
    hurts: u64,
}

// === impl Hurt ===

impl Hurt {
    /// Bytes that are carried on instead of `bytes`, if it hurts them at the place `at`; and whether the connection
    /// goes on.
    fn apply(self, bytes: &[u8], at: usize) -> (Vec<u8>, ControlFlow<()>) {
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let instead = match self {
            Self::Flipped => [&bytes[..at], &[bytes[at] ^ 4], &bytes[at + 1..]].concat(),
            Self::Repeated => [bytes, bytes].concat(),
            Self::Reordered => [second, first].concat(),
            Self::Overlapping => [bytes, second].concat(),
            Self::Cut => return (bytes[..at].to_vec(), ControlFlow::Break(())),
        };
        (instead, ControlFlow::Continue(()))
    }
}

// === impl Wire ===

impl Wire {
    /// Does something to the bytes around the next one after `bytes` more, once.
    pub fn hurt_after(&self, bytes: u64, hurt: Hurt) {
        let mut state = self.state();
        state.next = Some((state.carried + bytes, hurt));
    }

    /// Carries everything as it comes.
    pub fn mend(&self) {
        self.state().next = None;
    }

    /// Bytes that came to be carried.
    pub fn carried(&self) -> u64 {
        self.state().carried
    }

    /// Number of times that something was done to some of them.
    pub fn hurts(&self) -> u64 {
        self.state().hurts
    }

    /// Counts bytes, changes them if it is their turn, and says whether their connection goes on.
    pub(crate) fn carry(&self, bytes: &mut Vec<u8>) -> ControlFlow<()> {
        let mut state = self.state();
        let before = state.carried;
        state.carried += bytes.len() as u64;
        let carried = state.carried;
        let Some((at, hurt)) = state.next.take_if(|(at, _)| *at < carried) else {
            return ControlFlow::Continue(());
        };
        state.hurts += 1;
        let (instead, goes_on) = hurt.apply(bytes, usize::try_from(at - before).expect("it is in them"));
        *bytes = instead;
        goes_on
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: [(Hurt, &[u8]); 5] = [
        (Hurt::Flipped, &[1, 2, 7, 4]),
        (Hurt::Repeated, &[1, 2, 3, 4, 1, 2, 3, 4]),
        (Hurt::Reordered, &[3, 4, 1, 2]),
        (Hurt::Overlapping, &[1, 2, 3, 4, 3, 4]),
        (Hurt::Cut, &[1, 2]),
    ];

    #[test]
    fn what_is_hurt_is_hurt_once_at_its_place_and_all_else_comes_as_it_is() {
        for (hurt, expected) in EACH {
            let wire = Wire::default();
            wire.hurt_after(6, hurt);
            let [mut before, mut hit, mut after] = [1, 2, 3].map(|_| vec![1, 2, 3, 4]);
            assert!(wire.carry(&mut before).is_continue() && before == [1, 2, 3, 4], "{hurt:?}");
            assert_eq!(wire.carry(&mut hit).is_break(), hurt == Hurt::Cut);
            assert_eq!(hit, expected, "{hurt:?}");
            assert!(wire.carry(&mut after).is_continue() && after == [1, 2, 3, 4], "{hurt:?}");
            assert_eq!((wire.carried(), wire.hurts()), (12, 1), "{hurt:?}");
        }
    }

    #[test]
    fn a_place_at_the_border_of_two_reads_is_in_the_second_one() {
        let wire = Wire::default();
        wire.hurt_after(2, Hurt::Cut);
        let [mut first, mut second] = [vec![1, 2], vec![3, 4]];
        assert!(wire.carry(&mut first).is_continue() && wire.carry(&mut second).is_break());
        assert!(first == [1, 2] && second.is_empty());
    }
}
