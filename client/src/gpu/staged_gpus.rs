//! GPUs whose memory a client's stager copies out of, as the client adds them and as the sidecar knows them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tensorlane_cuda::{Device, GpuUuid};

use crate::error::Result;

/// Time between two looks whether a call goes on.
const SLICE: Duration = Duration::from_millis(50);

/// The GPUs that a client uses.
#[derive(Debug, Default)]
pub(crate) struct StagedGpus {
    devices: Mutex<Vec<Device>>,
    /// Set while the stager waits for an order with fewer GPUs than there are.
    outdated: AtomicBool,
    known: Mutex<Known>,
    told: Condvar,
}

/// Knowledge of the sidecar.
#[derive(Debug, Default)]
struct Known {
    /// GPUs whose memory it can have copied out of.
    gpus: Vec<GpuUuid>,
    /// Set once somebody has waited in vain for it to know: nobody does again until it does.
    in_vain: bool,
}

impl StagedGpus {
    /// Adds a GPU, if it is new.
    pub(super) fn add(&self, device: &Device) {
        let mut devices = self.devices.lock();
        if devices.iter().all(|known| known.uuid() != device.uuid()) {
            devices.push(device.clone());
            self.outdated.store(true, Ordering::Relaxed);
        }
    }

    /// The GPUs, of which none is news any more.
    pub(super) fn devices(&self) -> Vec<Device> {
        let devices = self.devices.lock();
        self.outdated.store(false, Ordering::Relaxed);
        devices.clone()
    }

    /// Returns whether a GPU came that the stager does not know.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated.load(Ordering::Relaxed)
    }

    /// Says what the sidecar knows.
    pub(super) fn know(&self, gpus: Vec<GpuUuid>) {
        let mut known = self.known.lock();
        known.in_vain &= gpus.is_empty();
        known.gpus = gpus;
        drop(known);
        self.told.notify_all();
    }

    /// Returns whether the sidecar knows of just these.
    pub(super) fn is_known(&self, gpus: &[GpuUuid]) -> bool {
        self.known.lock().gpus == gpus
    }

    /// Waits until the sidecar knows of a GPU, until then in vain once at most. It goes on where the call's `deadline` passes before.
    ///
    /// # Errors
    /// The call was withdrawn, as `check` says.
    pub(super) fn await_known(
        &self,
        gpu: GpuUuid,
        until: Instant,
        deadline: Instant,
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let mut known = self.known.lock();
        while !known.in_vain && !known.gpus.contains(&gpu) {
            // The interrupt may be an interpreter's: no lock is held while it is asked.
            MutexGuard::unlocked(&mut known, &check)?;
            let now = Instant::now();
            if now >= deadline {
                return Ok(());
            }
            let slice = (now + SLICE).min(until).min(deadline);
            if self.told.wait_until(&mut known, slice).timed_out() {
                known.in_vain |= Instant::now() >= until && !known.gpus.contains(&gpu);
            }
        }
        Ok(())
    }
}
