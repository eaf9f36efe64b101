//! GPUs that are open in this process: each is opened when it is first needed, and stays so until the process ends.

use parking_lot::Mutex;
use tensorlane_cuda::{Device, GpuUuid, Refusal, start};

/// Devices that are open.
static OPEN: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// The GPU of that index, opened once in a process: to be used where nobody knows who needs it next.
///
/// # Errors
/// As [`Device::open`]; [`Refusal::Forked`] in a child whose parent used the driver.
pub fn device(index: u32) -> Result<Device, Refusal> {
    open(|device| device.index() == index, || Device::open(index))
}

/// The GPU of that name, opened once in a process.
pub(super) fn found(uuid: GpuUuid) -> Result<Device, Refusal> {
    open(|device| device.uuid() == uuid, || Device::find(uuid))
}

/// The GPU of that name, which may be one that is open already.
pub(super) fn found_near(near: &Device, uuid: GpuUuid) -> Result<Device, Refusal> {
    if uuid == near.uuid() { Ok(near.clone()) } else { found(uuid) }
}

fn open(
    wanted: impl Fn(&Device) -> bool,
    new: impl FnOnce() -> Result<Device, Refusal>,
) -> Result<Device, Refusal> {
    // Before the lock: in a forked child it may be held by a thread that is not there.
    start()?;
    let mut open = OPEN.lock();
    if let Some(device) = open.iter().find(|device| wanted(device)) {
        return Ok(device.clone());
    }
    let device = new()?;
    open.push(device.clone());
    Ok(device)
}
