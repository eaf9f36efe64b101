//! Allocations of this process that no tensor lies in any more, kept for the next ones.
//!
//! The driver takes longer to make, map and export memory than the device takes to fill it: a millisecond for each tensor, of which
//! most is the export. An allocation that is used again costs nothing of it.
//!
//! Kept is what the sidecar says that nobody maps, with its descriptor, up to a part of the device's memory. The oldest goes first.
//! All of it goes where the device has no more memory for us; what others in this process want
//! ([`Gpu::release_idle`](super::Gpu::release_idle)) they say.

use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use tensorlane_cuda::{Device, DeviceSegment, GpuUuid, Refusal};

use crate::error::Result;

/// Part of a device's memory that is kept at most: one in so many bytes. Costs others in this process that memory.
const PART: u64 = 64;
/// Most allocations that are kept. Each costs a descriptor.
const COUNT_MAX: usize = 64;
/// A tensor may leave so much of an allocation empty: one in so many bytes.
const WASTE: u64 = 8;

/// Memory for one tensor.
#[derive(Debug)]
pub(super) struct Room {
    /// Allocation, mapped for writing.
    pub(super) segment: DeviceSegment,
    /// Descriptor of it, where it has been exported already.
    pub(super) memory: Option<OwnedFd>,
}

static IDLE: Mutex<Shelf<Room>> = Mutex::new(Shelf(Vec::new()));

/// Allocations that are kept, the oldest first.
#[derive(Debug)]
struct Shelf<T>(Vec<Item<T>>);

#[derive(Debug)]
struct Item<T> {
    device: GpuUuid,
    bytes: u64,
    what: T,
}

/// Memory on the device for so many bytes, whatever is in it.
///
/// # Errors
/// The device has none, also without what is kept.
pub(super) fn take_or_make(device: &Device, bytes: u64) -> Result<Room> {
    // An allocation is a multiple of it.
    let needed = bytes.checked_next_multiple_of(device.granularity()?);
    let kept = needed.and_then(|needed| IDLE.lock().take(device.uuid(), needed));
    if let Some(room) = kept {
        return Ok(room);
    }
    let made = match DeviceSegment::create(device, bytes) {
        Err(Refusal::OutOfMemory { .. }) if release(device) > 0 => DeviceSegment::create(device, bytes),
        made => made,
    };
    Ok(Room { segment: made?, memory: None })
}

/// Keeps room that nobody maps, exported, or gives it back to the driver.
pub(super) fn keep(mut room: Room) {
    let device = room.segment.device().clone();
    let most = device.memory().map_or(0, |all| all / PART);
    let bytes = room.segment.bytes();
    if bytes > most {
        return;
    }
    if room.memory.is_none() {
        let Ok(memory) = room.segment.export() else { return };
        room.memory = Some(memory);
    }
    let given_up = IDLE.lock().put(device.uuid(), bytes, room, most);
    // Outside of the lock: the driver takes its time.
    drop(given_up);
}

/// Gives all that is kept of a device's memory back to the driver: how many bytes.
pub(super) fn release(device: &Device) -> u64 {
    let given_up = IDLE.lock().clear(device.uuid());
    given_up.iter().map(|item| item.bytes).sum()
}

// === impl Shelf ===

impl<T> Shelf<T> {
    /// The smallest that has room and would not stay empty for the most part, the newest of its size.
    fn take(&mut self, device: GpuUuid, bytes: u64) -> Option<T> {
        let fits = |item: &Item<T>| {
            item.device == device && item.bytes >= bytes && item.bytes - bytes <= item.bytes / WASTE
        };
        let indices = (0..self.0.len()).rev().filter(|index| fits(&self.0[*index]));
        let index = indices.min_by_key(|index| self.0[*index].bytes)?;
        Some(self.0.remove(index).what)
    }

    /// Keeps one more; returns what had to go for it, so that no more than `most` bytes of the device are kept.
    fn put(&mut self, device: GpuUuid, bytes: u64, what: T, most: u64) -> Vec<Item<T>> {
        self.0.push(Item { device, bytes, what });
        let mut given_up = Vec::new();
        loop {
            let of_device = self.0.iter().filter(|item| item.device == device);
            let too_many = of_device.clone().map(|item| item.bytes).sum::<u64>() > most;
            let oldest = self.0.iter().position(|item| item.device == device || self.0.len() > COUNT_MAX);
            match oldest {
                Some(oldest) if too_many || self.0.len() > COUNT_MAX => given_up.push(self.0.remove(oldest)),
                _ => return given_up,
            }
        }
    }

    fn clear(&mut self, device: GpuUuid) -> Vec<Item<T>> {
        self.0.extract_if(.., |item| item.device == device).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: GpuUuid = GpuUuid([1; 16]);
    const B: GpuUuid = GpuUuid([2; 16]);
    const MOST: u64 = 1_000;

    fn shelf(items: &[(GpuUuid, u64)]) -> Shelf<usize> {
        let mut shelf = Shelf(Vec::new());
        for (number, (device, bytes)) in items.iter().enumerate() {
            assert!(shelf.put(*device, *bytes, number, MOST).is_empty());
        }
        shelf
    }

    fn numbers(items: Vec<Item<usize>>) -> Vec<usize> {
        items.into_iter().map(|item| item.what).collect()
    }

    #[test]
    fn the_smallest_that_fits_is_used_again_and_no_other_device_s() {
        let mut shelf = shelf(&[(A, 400), (A, 160), (B, 150), (A, 160)]);
        assert_eq!(shelf.take(A, 161), None, "400 would be empty for the most part");
        assert_eq!(shelf.take(A, 150), Some(3), "the newest of two");
        assert_eq!(shelf.take(A, 140), Some(1));
        assert_eq!(shelf.take(A, 140), None);
        assert_eq!(shelf.take(A, 350), Some(0));
        assert_eq!(shelf.take(B, 150), Some(2));
        assert!(shelf.0.is_empty());
    }

    #[test]
    fn the_oldest_go_where_there_is_too_much_of_a_device() {
        let mut shelf = shelf(&[(A, 400), (B, 900), (A, 400)]);
        assert_eq!(numbers(shelf.put(A, 300, 3, MOST)), [0]);
        assert_eq!(numbers(shelf.put(A, 1_000, 4, MOST)), [2, 3]);
        assert_eq!(numbers(shelf.clear(A)), [4]);
        assert!(shelf.clear(A).is_empty());
        assert_eq!(numbers(shelf.clear(B)), [1]);
    }

    #[test]
    fn the_oldest_go_where_there_are_too_many() {
        let mut shelf = shelf(&vec![(A, 1); COUNT_MAX]);
        assert_eq!(numbers(shelf.put(B, 1, COUNT_MAX, MOST)), [0]);
        assert_eq!(shelf.0.len(), COUNT_MAX);
    }
}
