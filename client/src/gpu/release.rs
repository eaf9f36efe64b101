//! Memory that is given back once the device has done what it was asked before: maps and leases of readers, and allocations of
//! tensors that nobody keeps.
//!
//! Kernels run behind the program that starts them. A program that drops a tensor right after it has started one, as programs
//! in Python do, would have the memory taken from under it: the driver does not wait where memory is unmapped.
//!
//! One thread of the process waits for the device, so that nobody who drops a tensor does. It ends with the process. What waits for it
//! is bounded by the leases and allocations of the sessions.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tensorlane_cuda::Device;

/// Time after which a device whose work is being captured is asked again.
const AGAIN: Duration = Duration::from_millis(50);

/// Step that gives memory back.
struct Step {
    device: Device,
    /// Set if the device must have come to rest before.
    rests: bool,
    gives_back: Box<dyn FnOnce() + Send>,
}

/// Gives memory back by `gives_back` once all work that the device was given before is done.
///
/// That cannot be waited for while work of this process is captured as a graph, and trying it ends the capture.
pub(super) fn when_idle(device: &Device, gives_back: impl FnOnce() + Send + 'static) {
    send(Step { device: device.clone(), rests: true, gives_back: Box::new(gives_back) });
}

/// Gives memory back by `gives_back`, on which no work of this process is left. The device is not waited for.
pub(super) fn soon(device: &Device, gives_back: impl FnOnce() + Send + 'static) {
    send(Step { device: device.clone(), rests: false, gives_back: Box::new(gives_back) });
}

fn send(step: Step) {
    static QUEUE: OnceLock<Option<Sender<Step>>> = OnceLock::new();
    // In a forked child there is no such thread, and all of it is the parent's.
    if step.device.check_process().is_err() {
        return;
    }
    let queue = QUEUE.get_or_init(|| {
        let (sender, receiver) = channel();
        let started = thread::Builder::new().name("tl-gpu-release".into()).spawn(move || run(&receiver));
        started.ok().map(|_| sender)
    });
    let left = match queue {
        Some(queue) => queue.send(step).err().map(|unsent| unsent.0),
        None => Some(step),
    };
    if let Some(Step { device, rests, gives_back }) = left {
        // No thread could be had: whoever gives it up waits.
        if rests {
            rest(&device);
        }
        gives_back();
    }
}

/// Waits until the device has done what it was given before. While a graph is captured it cannot be waited for, and is asked again.
fn rest(device: &Device) {
    while device.synchronize().is_err_and(|refusal| refusal.is_of_capture()) {
        thread::sleep(AGAIN);
    }
    // Any other failure is of the context: nothing runs there any more.
}

/// Waits once for each device, for all steps that came meanwhile.
fn run(queue: &Receiver<Step>) {
    while let Ok(first) = queue.recv() {
        let mut steps = vec![first];
        steps.extend(queue.try_iter());
        let mut waited = Vec::new();
        for Step { device, rests, .. } in &steps {
            if *rests && !waited.contains(&device.uuid()) {
                waited.push(device.uuid());
                rest(device);
            }
        }
        steps.into_iter().for_each(|step| (step.gives_back)());
    }
}
