//! Tensors by slot: an id is found by an index, without hashing, and a freed id never fits again.

use std::collections::{BTreeSet, VecDeque};

use super::{Holder, Origin, RetryId, TensorId, TensorName};

/// A live tensor.
pub(super) struct Tensor {
    pub(super) bytes: u64,
    /// Leases of all holders together.
    pub(super) leases: u64,
    /// Holders with at least one lease.
    pub(super) holders: u64,
    pub(super) life: Life,
    /// Remembered requests that end with it, oldest first.
    pub(super) retries: VecDeque<RetryId>,
}

/// State of a tensor in its life.
pub(super) enum Life {
    /// Being written.
    Reserved { by: Option<Holder> },
    /// Put here: kept by leases, names and tickets. A manifest that was published holds leases of its own.
    Owned { names: BTreeSet<TensorName>, tickets: u64, manifest: bool },
    /// Pulled from another peer: kept by leases, then for a while; only mapped from there: by leases alone.
    Copied { origin: Origin, mapped: bool },
}

impl Tensor {
    pub(super) const fn new(bytes: u64, life: Life) -> Self {
        Self { bytes, leases: 0, holders: 0, life, retries: VecDeque::new() }
    }
}

/// All live tensors.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Slots to use next, the last freed first: it is warm in the cache.
    vacant: Vec<u32>,
    live: usize,
}

struct Slot {
    generation: u32,
    tensor: Option<Tensor>,
}

impl Slots {
    pub(super) const fn live(&self) -> usize {
        self.live
    }

    pub(super) fn get(&self, id: TensorId) -> Option<&Tensor> {
        let slot = self.slots.get(id.slot() as usize)?;
        if slot.generation == id.generation() { slot.tensor.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, id: TensorId) -> Option<&mut Tensor> {
        let slot = self.slots.get_mut(id.slot() as usize)?;
        if slot.generation == id.generation() { slot.tensor.as_mut() } else { None }
    }

    /// The live tensor of a slot.
    pub(super) fn id_at(&self, slot: u32) -> Option<TensorId> {
        let found = self.slots.get(slot as usize)?;
        found.tensor.as_ref().map(|_| TensorId::new(found.generation, slot))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = TensorId> + '_ {
        (0u32..)
            .zip(&self.slots)
            .filter(|(_, slot)| slot.tensor.is_some())
            .map(|(at, slot)| TensorId::new(slot.generation, at))
    }

    /// The new tensor's id; none if there is no room.
    pub(super) fn insert(&mut self, tensor: Tensor) -> Option<TensorId> {
        let at = match self.vacant.pop() {
            Some(at) => at,
            None => {
                let at = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { generation: 1, tensor: None });
                at
            }
        };
        let slot = self.slots.get_mut(at as usize)?;
        slot.tensor = Some(tensor);
        self.live += 1;
        Some(TensorId::new(slot.generation, at))
    }

    pub(super) fn remove(&mut self, id: TensorId) -> Option<Tensor> {
        let slot =
            self.slots.get_mut(id.slot() as usize).filter(|slot| slot.generation == id.generation())?;
        let tensor = slot.tensor.take()?;
        self.live -= 1;
        // A slot out of generations is retired: it stays empty for ever, at the cost of its memory.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.vacant.push(id.slot());
        }
        Some(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor() -> Tensor {
        Tensor::new(1, Life::Reserved { by: None })
    }

    #[test]
    fn a_slot_is_used_again_under_another_id() {
        let mut slots = Slots::default();
        let first = slots.insert(tensor()).unwrap();
        assert!(slots.remove(first).is_some());
        let second = slots.insert(tensor()).unwrap();
        assert_eq!(first.slot(), second.slot());
        assert_ne!(first, second);
        assert!(
            slots.get(first).is_none() && slots.remove(first).is_none() && slots.get_mut(first).is_none()
        );
        assert_eq!(slots.live(), 1);
    }

    #[test]
    fn a_slot_out_of_generations_is_retired() {
        let mut slots = Slots::default();
        slots.insert(tensor());
        slots.slots[0].generation = u32::MAX;
        let last = TensorId::new(u32::MAX, 0);
        assert!(slots.remove(last).is_some());
        assert!(slots.get(last).is_none());
        let next = slots.insert(tensor()).unwrap();
        assert_eq!(next.slot(), 1);
        assert_eq!(slots.ids().collect::<Vec<_>>(), [next]);
    }
}
