//! Allocations of others that this process maps: each imported once, however many of its tensors and clients there are.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tensorlane_cuda::{Device, GpuUuid, ImportedSegment};
use tensorlane_proto::Incarnation;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::wait::Wait;

/// Incarnation of a sidecar, and number of a tensor there.
type Key = (Incarnation, u64);

/// Segments that are mapped now. A tensor's number is never given again within a life of its sidecar.
static OPEN: Mutex<Option<HashMap<Key, Weak<ImportedSegment>>>> = Mutex::new(None);

/// Maps the GPU memory of a leased tensor, unless this process maps it already. `device` opens the GPU that it is on.
pub(super) fn open(
    connection: &Connection,
    id: u64,
    device: impl FnOnce(GpuUuid) -> Result<Device>,
    wait: &Wait,
) -> Result<Arc<ImportedSegment>> {
    let key = (connection.sidecar().incarnation, id);
    if let Some(known) = known(&key) {
        return Ok(known);
    }
    let (answer, memory) = connection.open_gpu(id, wait)?;
    let uuid: [u8; 16] = answer.cuda_uuid[..]
        .try_into()
        .map_err(|_| Error::protocol("the UUID of a GPU came that has not 16 bytes"))?;
    let device = device(GpuUuid(uuid))?;
    let segment = Arc::new(ImportedSegment::import(&device, memory, answer.allocation_bytes)?);
    let mut open = OPEN.lock();
    let open = open.get_or_insert_default();
    open.retain(|_, segment| segment.strong_count() > 0);
    // Another thread may have been faster; two maps of one allocation do no harm.
    open.insert(key, Arc::downgrade(&segment));
    Ok(segment)
}

fn known(key: &Key) -> Option<Arc<ImportedSegment>> {
    OPEN.lock().as_ref()?.get(key)?.upgrade()
}
