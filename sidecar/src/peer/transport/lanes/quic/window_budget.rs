//! Memory beyond the floor of windows, of all connections together: a peer far away may have more of it than others, and
//! all of them no more than there is.

use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes that nobody has.
pub(super) struct WindowBudget(Mutex<u64>);

/// Part that one connection has of it, until this is dropped.
pub(super) struct Taken {
    spare: Arc<WindowBudget>,
    bytes: u64,
}

impl WindowBudget {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes)))
    }

    /// None of it yet.
    pub(super) fn nothing(self: &Arc<Self>) -> Taken {
        Taken { spare: Arc::clone(self), bytes: 0 }
    }
}

impl Taken {
    /// Takes more, as far as there is, or gives back. How much it has now.
    pub(super) fn resize(&mut self, want: u64) -> u64 {
        let mut left = self.spare.0.lock();
        let all = *left + self.bytes;
        self.bytes = want.min(all);
        *left = all - self.bytes;
        self.bytes
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        *self.spare.0.lock() += self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_comes_late_gets_what_is_left_and_more_when_another_has_gone() {
        let spare = WindowBudget::new(10);
        let (mut first, mut second) = (spare.nothing(), spare.nothing());
        assert_eq!((first.resize(7), second.resize(7)), (7, 3));
        assert_eq!((first.resize(5), second.resize(7)), (5, 5));
        drop(first);
        assert_eq!(second.resize(7), 7);
    }

    proptest! {
        #[test]
        fn nobody_has_what_another_has(
            all in 0u64..100,
            steps in prop::collection::vec((0usize..4, 0u64..200), 0..100),
        ) {
            let spare = WindowBudget::new(all);
            let mut taken: Vec<_> = (0..4).map(|_| spare.nothing()).collect();
            for (who, want) in steps {
                let has = taken[who].resize(want);
                let others: u64 = taken.iter().map(|taken| taken.bytes).sum::<u64>() - has;
                prop_assert_eq!(has, want.min(all - others));
            }
            drop(taken);
            prop_assert_eq!(*spare.0.lock(), all);
        }
    }
}
