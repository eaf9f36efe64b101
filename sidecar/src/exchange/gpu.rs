//! Tensors in GPU memory: put by the process that has the GPU, and opened by others of its pod. The sidecar passes descriptors on.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::TensorId;
use tensorlane_proto::negotiate::Transport;
use tensorlane_proto::wire;

use super::put::{stored, stored_result};
use super::{Caller, Exchange, session_required};
use crate::metrics::label::Moved;
use crate::store::{Allocation, Handed};

// === impl Exchange ===

impl Exchange {
    /// Stores a tensor in GPU memory that a session hands over. Refused, the memory is given back at once.
    pub fn put_gpu(&self, caller: &Caller, request: v1::PutGpuRequest, memory: OwnedFd) -> v1::PutResponse {
        v1::PutResponse { results: vec![stored_result(self.put_gpu_one(caller, request, memory))] }
    }

    fn put_gpu_one(
        &self,
        caller: &Caller,
        request: v1::PutGpuRequest,
        memory: OwnedFd,
    ) -> Result<v1::Stored, Failure> {
        let (Some(by), Some(link)) = (caller.holder, &caller.link) else {
            return Err(session_required("PutGpu"));
        };
        let v1::PutGpuRequest { descriptor, keep, allocation: number, allocation_bytes: bytes } = request;
        let descriptor = wire::descriptor(descriptor.unwrap_or_default())?;
        let keep = self.keep(caller.holder, keep)?;
        let handed = Handed { link: Arc::clone(link), number, bytes, memory };
        // Also to who does not wait for the answer any more: nobody has it. One that was the store's has said so already.
        let refused = |_: &Failure| link.gpu_freed(number, true);
        let sealed = self.store.put_gpu(by, descriptor, handed, keep).inspect_err(refused)?;
        let put = self.metrics.moves.put_bytes.at((Transport::CudaIpc, Moved::Done));
        put.inc_by(sealed.reference.bytes());
        Ok(stored(&sealed))
    }

    /// The GPU memory of a tensor, for a session to map.
    pub fn open_gpu(
        &self,
        caller: &Caller,
        request: &v1::OpenGpuRequest,
    ) -> Result<Arc<Allocation>, Failure> {
        let allocation = self.store.gpu_memory(caller.holder, TensorId(request.id))?;
        if let Some(link) = &caller.link {
            allocation.opened_by(link);
        }
        Ok(allocation)
    }
}
