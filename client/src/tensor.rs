//! Guards: what is held while they live and given back when they are dropped.
//!
//! A drop never waits, never fails and never touches the socket (see release.rs). In a forked child it gives nothing
//! back, because the lease belongs to the parent; the child may go on reading, since it inherited map and witness.

use std::fmt;
use std::sync::Arc;

use tensorlane_memory::View;
use tensorlane_proto::generated::Location;
use tensorlane_proto::{Descriptor, Layout, Selection, Shape, Strides};

use crate::channel::Message;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::moved::Moved;
use crate::origin::Origin;
use crate::segments::{OwnView, Segment};

/// A claim on one tensor: it is not freed while this lives.
#[must_use = "dropping a lease ends it"]
pub struct Lease {
    connection: Arc<Connection>,
    id: u64,
    origin: Origin,
    /// The message of a channel that the bytes are a part of: it is held instead.
    message: Option<Arc<Message>>,
}

impl Lease {
    pub(crate) fn new(connection: &Arc<Connection>, id: u64) -> Self {
        Self { connection: Arc::clone(connection), id, origin: connection.origin().again(), message: None }
    }

    /// A claim on a part of a message, which is held with it.
    pub(crate) fn of_message(connection: &Arc<Connection>, message: Arc<Message>) -> Self {
        let origin = connection.origin().again();
        Self { connection: Arc::clone(connection), id: 0, origin, message: Some(message) }
    }

    /// The id of the tensor at this peer; 0 for a part of a channel's message.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns whether the session that holds the lease still stands. If not, the tensor may be freed already; what is
    /// mapped stays readable.
    pub fn is_live(&self) -> bool {
        !self.connection.is_lost()
    }

    /// Returns whether a connection holds the lease.
    pub(crate) fn is_of(&self, connection: &Arc<Connection>) -> bool {
        self.message.is_none() && Arc::ptr_eq(&self.connection, connection)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.message.is_none() {
            self.connection.release(self.id, &self.origin);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A leased and mapped tensor, or the selected part of one.
///
/// The bytes are shared memory: they do not change while the guard lives, unless the process that wrote them in place
/// misbehaves. So there is no safe slice; [`Tensor::view`] gives a pointer, copies, and an unsafe slice. A clone of the
/// view that outlives this guard may show another tensor's bytes.
#[must_use = "dropping a tensor releases it"]
pub struct Tensor {
    // In the order of dropping: the view, then the lease, then the map.
    view: Option<View>,
    lease: Lease,
    segment: Option<Arc<Segment>>,
    /// Location of the bytes in GPU memory; the guard of that memory is around this tensor.
    #[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "refused before without that feature"))]
    on_gpu: Option<Location>,
    descriptor: Descriptor,
    /// None for a local map.
    moved: Option<Arc<Moved>>,
    copied: bool,
    crc32c: Option<u32>,
}

/// Parts of a tensor besides its lease.
pub(crate) struct Parts {
    pub(crate) place: Option<(Arc<Segment>, View)>,
    pub(crate) on_gpu: Option<Location>,
    pub(crate) descriptor: Descriptor,
    /// Way that the bytes came; none for a local map.
    pub(crate) moved: Option<Arc<Moved>>,
    pub(crate) copied: bool,
    pub(crate) crc32c: Option<u32>,
}

impl Tensor {
    pub(crate) fn new(lease: Lease, parts: Parts) -> Self {
        let Parts { place, on_gpu, descriptor, moved, copied, crc32c } = parts;
        let (segment, view) = place.unzip();
        Self { view, lease, segment, on_gpu, descriptor, moved, copied, crc32c }
    }

    /// Location of the bytes in GPU memory, if they lie there.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_gpu(&self) -> Option<&Location> {
        self.on_gpu.as_ref()
    }

    /// Tensor that is said to lie on a device: a copy of its bytes does.
    #[cfg(feature = "gpu")]
    pub(crate) fn placed(mut self, device: tensorlane_proto::device::Device) -> Self {
        self.descriptor.device = device;
        self
    }

    /// Tensor with another reason for which it was copied out of GPU memory.
    #[cfg(feature = "gpu")]
    pub(crate) fn moved_for(mut self, why: &str) -> Self {
        self.moved = self.moved.map(|moved| Arc::new(moved.staged_for(why)));
        self
    }

    /// Meaning of the bytes. If ranges or steps were selected, it has strides, relative to the view.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Tensor without some dimensions of size 1, as an index takes them away. Dimensions of other sizes stay.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the layout that is left is none, which does not happen.
    pub fn squeezed(mut self, dims: &[usize]) -> Result<Self> {
        self.descriptor.layout = squeezed(&self.descriptor.layout, dims)?;
        Ok(self)
    }

    /// The bytes, where they are mapped. None for a tensor without bytes.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// The bytes of the view as memory that this process may write: it is mapped a second time, and pages that are written become
    /// this map's own. For libraries that know no read-only memory. None for a tensor without bytes. Keep this tensor as long.
    ///
    /// # Errors
    /// [`Error::Resources`] where the kernel refuses the map.
    pub fn own(&self) -> Result<Option<OwnView>> {
        self.segment.as_ref().zip(self.view.as_ref()).map(|(segment, view)| segment.own(view)).transpose()
    }

    /// Bytes of the view, gaps between strided elements included.
    pub fn len(&self) -> usize {
        self.view.as_ref().map_or(0, View::len)
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the elements alone: what [`Tensor::to_vec`] gives.
    pub fn packed_len(&self) -> usize {
        // What is mapped fits an address space.
        self.descriptor.layout.packed_bytes() as usize
    }

    /// The elements, copied row-major and without gaps.
    pub fn to_vec(&self) -> Vec<u8> {
        match &self.view {
            None => Vec::new(),
            Some(view) if self.descriptor.layout.is_contiguous() => view.to_vec(),
            Some(_) => {
                let mut bytes = vec![0; self.packed_len()];
                self.copy_to(&mut bytes).expect("the length is that of the elements");
                bytes
            }
        }
    }

    /// Copies the elements row-major and without gaps.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where `to` has another length than [`Tensor::packed_len`].
    pub fn copy_to(&self, to: &mut [u8]) -> Result<()> {
        if to.len() != self.packed_len() {
            return Err(Error::invalid(format!(
                "the destination has {} bytes and the tensor {}; give it exactly as many",
                to.len(),
                self.packed_len()
            )));
        }
        let Some(view) = &self.view else { return Ok(()) };
        let outside = |error: tensorlane_memory::OutOfBounds| Error::protocol(error.to_string());
        if self.descriptor.layout.is_contiguous() {
            return view.copy_to(to).map_err(outside);
        }
        let resolved = Selection::All
            .resolve(&self.descriptor.layout)
            .map_err(|error| Error::protocol(format!("a layout that cannot be walked: {error}")))?;
        let mut rest = to;
        for (offset, len) in resolved.runs() {
            let (run, after) = rest
                .split_at_mut_checked(len as usize)
                .ok_or_else(|| Error::protocol("a layout with more elements than it says"))?;
            view.copy_range_to(offset, run).map_err(outside)?;
            rest = after;
        }
        Ok(())
    }

    /// Way that the bytes came to this peer.
    pub fn moved(&self) -> &Moved {
        static LOCAL: Moved = Moved::local();
        self.moved.as_deref().unwrap_or(&LOCAL)
    }

    /// Returns whether this peer copied bytes to answer, as it does for a list of rows.
    pub fn copied(&self) -> bool {
        self.copied
    }

    /// CRC-32C of the whole tensor, where its writer gave one and all of it was acquired.
    pub fn crc32c(&self) -> Option<u32> {
        self.crc32c
    }

    /// The lease.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }
}

/// A layout without some dimensions of size 1.
pub(crate) fn squeezed(layout: &Layout, dims: &[usize]) -> Result<Layout> {
    let strides = layout.effective_strides();
    let sizes = layout.shape().iter().copied().zip(strides.iter().copied()).enumerate();
    let stays = sizes.filter(|(dim, (size, _))| *size != 1 || !dims.contains(dim)).map(|(_, both)| both);
    let (shape, strides): (Vec<u64>, Vec<i64>) = stays.unzip();
    let wrong = |error: tensorlane_proto::layout::LayoutError| Error::protocol(error.to_string());
    let shape = Shape::new(&shape).map_err(wrong)?;
    Layout::new(layout.dtype(), shape, Some(Strides::new(&strides)), None).map_err(wrong)
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("id", &self.lease.id)
            .field("layout", &format_args!("{}", self.descriptor.layout))
            .finish_non_exhaustive()
    }
}
