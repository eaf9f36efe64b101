//! Memory that is given back once the device has done what it was asked before: maps and leases of readers, and allocations of
//! tensors that nobody keeps.
//!
//! Kernels run behind the program that starts them. A program that drops a tensor right after it has started one, as programs
//! in Python do, would have the memory taken from under it: the driver does not wait where memory is unmapped.
//!
//! One thread of the process waits for the device, so that nobody who drops a tensor does. It ends with the process. What waits for it
//! is bounded by the leases and allocations of the sessions.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use tensorlane_cuda::{Device, DeviceSegment};

use super::idle;
use super::tensor::Held;

/// Memory that nobody needs any more, but for work that the device may still be doing.
enum Unneeded {
    /// Map and lease of a reader.
    Held(Arc<Held>),
    /// Allocation of a tensor that nobody keeps; true if nobody maps it.
    Owned(DeviceSegment, bool),
}

/// Gives up a tensor once all work that its device was given before is done.
pub(super) fn when_idle(held: &Arc<Held>) {
    send(Unneeded::Held(Arc::clone(held)));
}

/// Gives an allocation back to the driver, or keeps it for the next tensor where nobody maps it.
pub(super) fn give_back(segment: DeviceSegment, reusable: bool) {
    send(Unneeded::Owned(segment, reusable));
}

fn send(unneeded: Unneeded) {
    static QUEUE: OnceLock<Option<Sender<Unneeded>>> = OnceLock::new();
    // In a forked child there is no such thread, and all of it is the parent's.
    if unneeded.device().check_process().is_err() {
        return;
    }
    let queue = QUEUE.get_or_init(|| {
        let (sender, receiver) = channel();
        let started = thread::Builder::new().name("tl-gpu-release".into()).spawn(move || run(&receiver));
        started.ok().map(|_| sender)
    });
    let left = match queue {
        Some(queue) => queue.send(unneeded).err().map(|unsent| unsent.0),
        None => Some(unneeded),
    };
    if let Some(unneeded) = left {
        // No thread could be had: whoever gives it up waits. Work that failed on the device reads nothing any more.
        let _ = unneeded.device().synchronize();
    }
}

/// Waits once for each device, for all that came meanwhile.
fn run(queue: &Receiver<Unneeded>) {
    while let Ok(first) = queue.recv() {
        let mut unneeded = vec![first];
        unneeded.extend(queue.try_iter());
        let mut waited = Vec::new();
        for one in &unneeded {
            let device = one.device();
            if !waited.contains(&device.uuid()) {
                waited.push(device.uuid());
                // Work that failed on the device reads nothing any more.
                let _ = device.synchronize();
            }
        }
        for one in unneeded {
            if let Unneeded::Owned(segment, true) = one {
                idle::keep(segment);
            }
        }
    }
}

// === impl Unneeded ===

impl Unneeded {
    fn device(&self) -> &Device {
        match self {
            Self::Held(held) => held.device(),
            Self::Owned(segment, _) => segment.device(),
        }
    }
}
