//! Room for the lanes of all peers together. Each connection has a bound of its own on its lanes; this one is on what they
//! all cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many lanes may be up, whoever's they are.
pub(in crate::peer) struct Room {
    used: Arc<AtomicUsize>,
    most: usize,
}

/// Room for one lane, for as long as this lives.
pub(super) struct Taken(Arc<AtomicUsize>);

impl Room {
    pub(in crate::peer) fn new(most: usize) -> Self {
        Self { used: Arc::default(), most }
    }

    /// Room for one more, if there is any.
    pub(super) fn take(&self) -> Option<Taken> {
        let more = |used: usize| (used < self.most).then_some(used + 1);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Taken(Arc::clone(&self.used)))
    }

    #[cfg(test)]
    pub(in crate::peer) fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// Returns whether there is none now.
    pub(super) fn is_full(&self) -> bool {
        self.used.load(Ordering::Acquire) >= self.most
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_and_for_one_more_when_one_has_gone() {
        let room = Room::new(2);
        let taken = [room.take(), room.take()];
        assert!(taken.iter().all(Option::is_some) && room.is_full());
        assert!(room.take().is_none() && room.take().is_none());
        drop(taken);
        let one = room.take();
        assert!(one.is_some() && !room.is_full());
    }
}
