//! The calls of the session that have a descriptor.

use std::os::fd::{BorrowedFd, OwnedFd};

use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::generated as v1;

use crate::connection::{Asked, Connection};
use crate::error::Result;
use crate::late::Late;
use crate::wait::Wait;
use crate::wire;

impl Connection {
    /// Stores a tensor in GPU memory, whose descriptor goes along.
    pub(crate) fn put_gpu(
        &self,
        request: &v1::PutGpuRequest,
        memory: BorrowedFd<'_>,
        wait: &Wait,
        late: Late,
    ) -> Result<v1::PutResponse> {
        let asked = self.ask_with(SessionKind::PutGpu, request, Some(memory), Some(wait))?;
        self.answer(&asked, wait, late)
    }

    /// The GPU memory of a tensor.
    pub(crate) fn open_gpu(&self, id: u64, wait: &Wait) -> Result<(v1::OpenGpuResponse, OwnedFd)> {
        let Asked { number, kind } =
            self.ask(SessionKind::OpenGpu, &v1::OpenGpuRequest { id }, Some(wait))?;
        self.telling(|| {
            let mut frame = self.reply(number, wait, Late::Nothing)?;
            let memory = frame.descriptor.take();
            let answer = wire::reply(kind, frame)?;
            Ok((answer, memory.ok_or_else(|| wire::missing("the descriptor of GPU memory"))?))
        })
    }
}
