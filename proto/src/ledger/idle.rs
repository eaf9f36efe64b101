//! Copies that nobody leases, in the order in which they became idle.
//!
//! Time never runs backwards in a ledger, so a queue is in order of time by itself. Its links live in a vector beside
//! the slots: joining, leaving and looking at the oldest cost the same however long it is.

use super::Millis;

/// A doubly linked queue of slots.
#[derive(Default)]
pub(super) struct IdleQueue {
    links: Vec<Option<Link>>,
    oldest: Option<u32>,
    newest: Option<u32>,
}

#[derive(Clone, Copy)]
struct Link {
    since: Millis,
    older: Option<u32>,
    newer: Option<u32>,
}

impl IdleQueue {
    /// Joins at the end. A slot that is in the queue stays where it is.
    pub(super) fn push(&mut self, slot: u32, since: Millis) {
        let at = slot as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, None);
        }
        if self.links[at].is_some() {
            return;
        }
        self.links[at] = Some(Link { since, older: self.newest, newer: None });
        match self.newest {
            Some(before) => self.relink(before, |link| link.newer = Some(slot)),
            None => self.oldest = Some(slot),
        }
        self.newest = Some(slot);
    }

    /// Leaves; whether it was there.
    pub(super) fn remove(&mut self, slot: u32) -> bool {
        let Some(link) = self.links.get_mut(slot as usize).and_then(Option::take) else { return false };
        match link.older {
            Some(older) => self.relink(older, |other| other.newer = link.newer),
            None => self.oldest = link.newer,
        }
        match link.newer {
            Some(newer) => self.relink(newer, |other| other.older = link.older),
            None => self.newest = link.older,
        }
        true
    }

    /// The slot that is idle for longest, and since when.
    pub(super) fn oldest(&self) -> Option<(u32, Millis)> {
        let slot = self.oldest?;
        self.links.get(slot as usize).copied().flatten().map(|link| (slot, link.since))
    }

    fn relink(&mut self, slot: u32, change: impl FnOnce(&mut Link)) {
        if let Some(Some(link)) = self.links.get_mut(slot as usize) {
            change(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut IdleQueue) -> Vec<u32> {
        std::iter::from_fn(|| {
            let (slot, _) = queue.oldest()?;
            queue.remove(slot);
            Some(slot)
        })
        .collect()
    }

    #[test]
    fn the_queue_keeps_order_when_any_one_leaves() {
        for gone in 0..5 {
            let mut queue = IdleQueue::default();
            (0..5).for_each(|slot| queue.push(slot, Millis(slot.into())));
            queue.remove(gone);
            queue.remove(gone);
            queue.push(gone, Millis(9));
            queue.push(0, Millis(10));
            let expected: Vec<u32> = (0..5).filter(|&slot| slot != gone).chain([gone]).collect();
            assert_eq!(drain(&mut queue), expected);
            assert_eq!(queue.oldest(), None);
        }
    }

    #[test]
    fn a_slot_never_seen_can_be_removed() {
        let mut queue = IdleQueue::default();
        queue.remove(u32::MAX);
        assert_eq!(queue.oldest(), None);
    }
}
