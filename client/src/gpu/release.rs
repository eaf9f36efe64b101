//! Maps and leases that are given back once the device has done what it was asked before.
//!
//! Kernels run behind the program that starts them. A program that drops a tensor right after it has started one, as programs
//! in Python do, would have the memory taken from under it: the driver does not wait where memory is unmapped.
//!
//! One thread of the process waits for the device, so that nobody who drops a tensor does. It ends with the process. What waits for it
//! is bounded by the leases of the sessions.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use super::tensor::Held;

/// Gives up a tensor once all work that its device was given before is done.
pub(super) fn when_idle(held: &Arc<Held>) {
    static QUEUE: OnceLock<Option<Sender<Arc<Held>>>> = OnceLock::new();
    // In a forked child there is no such thread, and all of it is the parent's.
    if held.device().check_process().is_err() {
        return;
    }
    let queue = QUEUE.get_or_init(|| {
        let (sender, receiver) = channel();
        let started = thread::Builder::new().name("tl-gpu-release".into()).spawn(move || run(&receiver));
        started.ok().map(|_| sender)
    });
    let sent = queue.as_ref().is_some_and(|queue| queue.send(Arc::clone(held)).is_ok());
    if !sent {
        // No thread could be had: whoever drops it waits. Work that failed on the device reads nothing any more.
        let _ = held.device().synchronize();
    }
}

/// Waits once for each device, for all tensors that came meanwhile.
fn run(queue: &Receiver<Arc<Held>>) {
    while let Ok(first) = queue.recv() {
        let mut dropped = vec![first];
        dropped.extend(queue.try_iter());
        let mut waited = Vec::new();
        for held in &dropped {
            let device = held.device();
            if !waited.contains(&device.uuid()) {
                waited.push(device.uuid());
                // Work that failed on the device reads nothing any more.
                let _ = device.synchronize();
            }
        }
    }
}
