//! Maps of allocations of others, as the sidecar hands out their descriptors.

use std::sync::Arc;

use tensorlane_cuda::{Device, GpuUuid, ImportedSegment};

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::wait::Wait;

/// Maps the GPU memory of a leased tensor, unless the session maps it already. `device` opens the GPU that it is on.
pub(super) fn open(
    connection: &Connection,
    id: u64,
    device: impl FnOnce(GpuUuid) -> Result<Device>,
    wait: &Wait,
) -> Result<Arc<ImportedSegment>> {
    if let Some(known) = connection.imported().get(id) {
        return Ok(known);
    }
    let (answer, memory) = connection.open_gpu(id, wait)?;
    let uuid: [u8; 16] = answer.cuda_uuid[..]
        .try_into()
        .map_err(|_| Error::protocol("the UUID of a GPU came that has not 16 bytes"))?;
    let device = device(GpuUuid(uuid))?;
    let segment = Arc::new(ImportedSegment::import(&device, memory, answer.allocation_bytes)?);
    connection.imported().insert(id, &segment);
    Ok(segment)
}
