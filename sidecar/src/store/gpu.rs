//! GPU memory that tensors lie in. The sidecar holds the descriptor of each allocation for as long as its tensor lives, and hands
//! copies of it on; it never maps one, never looks into one, and knows nothing of the driver behind it.
//!
//! An allocation is one tensor's. There is no witness of its maps: whoever maps it keeps it, and the driver frees it when the last map
//! and the last descriptor are gone. The process that put it may use it again where every session that opened it
//! has given up its lease, and lives: a client unmaps first. Where such a session has ended, its process may map it still.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rustix::fs::FileType;
use smallvec::smallvec;
use tensorlane_memory::Block;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::device::Device;
use tensorlane_proto::encoded;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Answer, Event, Holder, Keep, SessionId, TensorId};

use super::refusals::refused;
use super::sessions::OWN;
use super::tensor::{Moved, Taken};
use super::write::{Copied, unexpected};
use super::{Freed, Sealing, Store, Stored, Tensor};
use crate::session::SessionLink;

/// Most allocations of one session. Each costs the sidecar a descriptor.
const SESSION_ALLOCATIONS_MAX: u64 = 1_024;
/// Most allocations of all sessions together, whether these live or not.
const ALLOCATIONS_MAX: u64 = 4_096;
/// Most bytes of one session. They cost the sidecar nothing; the bound keeps a client that lies from making the sums worthless.
const SESSION_BYTES_MAX: u64 = 4 << 40;

/// GpuShares of what is held, of all and of each session that lives or lived.
#[derive(Debug, Default)]
pub(super) struct GpuShares(Mutex<HashMap<SessionId, Share>>);

#[derive(Debug, Default, Clone, Copy)]
struct Share {
    allocations: u64,
    bytes: u64,
}

/// GPU memory that is held, for metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct GpuHeld {
    /// Tensors, each of which has an allocation of its own.
    pub tensors: u64,
    /// Bytes of their allocations, as those who put them said.
    pub bytes: u64,
}

/// GPU memory as a session hands it over.
pub struct Handed {
    /// The session.
    pub link: Arc<SessionLink>,
    /// The session's own number of it.
    pub number: u64,
    /// Length in bytes, as the session says.
    pub bytes: u64,
    /// Memory that the driver exported.
    pub memory: OwnedFd,
}

/// Allocation of GPU memory. Dropped, its descriptor is closed and the session that put it is told.
pub struct Allocation {
    memory: Arc<OwnedFd>,
    bytes: u64,
    uuid: [u8; 16],
    session: SessionId,
    link: Weak<SessionLink>,
    number: u64,
    /// The sessions that were given the descriptor.
    openers: Mutex<HashMap<SessionId, Weak<SessionLink>>>,
    books: Arc<GpuShares>,
}

// === impl GpuShares ===

impl GpuShares {
    pub(super) fn held(&self) -> GpuHeld {
        let books = self.0.lock();
        let tensors = books.values().map(|share| share.allocations).sum();
        GpuHeld { tensors, bytes: books.values().map(|share| share.bytes).sum() }
    }

    /// Enters an allocation that a session hands over.
    fn take(self: &Arc<Self>, handed: Handed, uuid: [u8; 16]) -> Result<Allocation, Failure> {
        let Handed { link, number, bytes, memory } = handed;
        check_kind(&memory)?;
        let session = link.id();
        let mut books = self.0.lock();
        let all: u64 = books.values().map(|share| share.allocations).sum();
        let share = books.get(&session).copied().unwrap_or_default();
        if all >= ALLOCATIONS_MAX || share.allocations >= SESSION_ALLOCATIONS_MAX {
            let message = format!(
                "this session holds {} allocations of GPU memory and all together {all}; at most \
                 {SESSION_ALLOCATIONS_MAX} and {ALLOCATIONS_MAX}: release some, or put larger tensors",
                share.allocations
            );
            return Err(Failure::new(Reason::LimitExceeded, message));
        }
        let sum = share.bytes.checked_add(bytes).filter(|sum| *sum <= SESSION_BYTES_MAX);
        let Some(sum) = sum else {
            let message = format!(
                "this session holds {} bytes of GPU memory, and {bytes} more would pass {SESSION_BYTES_MAX}",
                share.bytes
            );
            return Err(Failure::new(Reason::LimitExceeded, message));
        };
        books.insert(session, Share { allocations: share.allocations + 1, bytes: sum });
        drop(books);
        let (memory, books, link) = (Arc::new(memory), Arc::clone(self), Arc::downgrade(&link));
        let openers = Mutex::default();
        Ok(Allocation { memory, bytes, uuid, session, link, number, openers, books })
    }
}

// === impl Allocation ===

impl Allocation {
    /// Memory that the driver exported.
    pub fn memory(&self) -> &Arc<OwnedFd> {
        &self.memory
    }

    /// Length in bytes, as its exporter said.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// UUID of the GPU, as its exporter said.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Notes that a session is given the descriptor.
    pub fn opened_by(&self, link: &Arc<SessionLink>) {
        self.openers.lock().insert(link.id(), Arc::downgrade(link));
    }

    /// Returns whether no process maps it, once no session leases it. A session that was cut is no proof.
    fn is_unmapped(&self) -> bool {
        let lives = |link: &Weak<SessionLink>| link.upgrade().is_some_and(|link| !link.is_cut());
        self.openers.lock().values().all(lives)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let mut books = self.books.0.lock();
        if let Some(share) = books.get_mut(&self.session) {
            share.allocations -= 1;
            share.bytes -= self.bytes;
            if share.allocations == 0 {
                books.remove(&self.session);
            }
        }
        drop(books);
        if let Some(link) = self.link.upgrade() {
            link.gpu_freed(self.number, self.is_unmapped());
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

// === impl Store ===

impl Store {
    /// Stores a tensor that lies in GPU memory, in one step. Whatever goes wrong, the memory is given back.
    pub fn put_gpu(
        &self,
        by: Holder,
        descriptor: Descriptor,
        handed: Handed,
        keep: Keep,
    ) -> Result<Stored, Failure> {
        let uuid = check_place(&descriptor, &handed)?;
        let allocation = Arc::new(self.gpu.take(handed, uuid)?);
        let described = self.metadata.keep(descriptor)?;
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        let outcome = state.check_open(Some(by)).and_then(|()| {
            // The ledger counts the arena's bytes, and these are none of them.
            let reserve = Event::Reserve { by: Some(by), bytes: 0, retry: None };
            let answer = state.apply_into(self.clock.now(), reserve, &mut freed).map_err(|r| refused(&r))?;
            let Answer::Reserved { id, .. } = answer else { return Err(unexpected(&answer)) };
            let tensor =
                Tensor { gpu: Some(allocation), ..self.tensor(id, described, Block::nothing(), None) };
            state.tensors.insert(id, Arc::new(tensor));
            let sealing = Sealing { id, keep, crc32c: None, retry: None };
            self.seal_locked(&mut state, Some(by), sealing, &mut freed).inspect_err(|_| {
                // Nobody has heard of it.
                let _ = state.apply_into(self.clock.now(), Event::Abort { by: Some(by), id }, &mut freed);
            })
        });
        let wake = state.wants_keeper();
        drop(state);
        self.settle(freed, wake);
        let (stored, woken) = outcome?;
        woken.into_iter().for_each(|wake| wake());
        Ok(stored)
    }

    /// The GPU memory of a sealed tensor of this peer, for `asker` to map.
    pub fn gpu_memory(&self, asker: Option<Holder>, id: TensorId) -> Result<Arc<Allocation>, Failure> {
        let tensor = self.state.lock().sealed(asker, id)?;
        let why = || format!("the tensor {} lies in host memory: it is mapped where Acquire says", id.0);
        tensor.gpu.clone().ok_or_else(|| Failure::new(Reason::InvalidArgument, why()))
    }

    /// Enters a copy of a tensor in GPU memory that was brought into a block here; its id. The sidecar leases it once, in its own
    /// name.
    ///
    /// # Errors
    /// NOT_FOUND where the tensor is gone meanwhile.
    pub fn stage_in(&self, id: TensorId, block: Block) -> Result<TensorId, Failure> {
        let mut freed = Freed::default();
        let mut state = self.state.lock();
        let tensor = state.sealed(None, id);
        let entered = tensor.and_then(|tensor| {
            let descriptor = Descriptor { device: Device::Host, ..tensor.descriptor.clone() };
            let plain = encoded::without_metadata(&descriptor);
            let (reference, wanted_by) = (tensor.reference.clone(), smallvec![OWN]);
            let copied = Copied { reference, descriptor, plain, block, crc32c: None, wanted_by };
            state.copy_in(self.clock.now(), copied, &self.metadata, &mut freed)
        });
        let wake = state.wants_keeper();
        drop(state);
        self.settle(freed, wake);
        entered.map(|entered| entered.tensor.id)
    }

    /// Leases the copy in host memory of a tensor in GPU memory.
    ///
    /// # Errors
    /// ARENA_FULL where it was dropped to make room, and what speaks against a lease.
    pub fn lease_staged(&self, by: Holder, tensor: &Tensor) -> Result<Taken, Failure> {
        let copy = self.lease_copy(by, &tensor.reference).unwrap_or_else(|| Err(copy_dropped()))?;
        Ok(Taken { copied: true, moved: Some(staged()), ..copy })
    }

    /// GPU memory that is held.
    pub fn gpu_held(&self) -> GpuHeld {
        self.gpu.held()
    }
}

/// Failure of a reader whose copy went before it had a lease of it.
pub fn copy_dropped() -> Failure {
    let message = "the copy out of GPU memory was dropped to make room before it could be leased; ask again";
    Failure::new(Reason::ArenaFull, message)
}

/// Failure that refuses a tensor of a GPU to who asks for its bytes.
pub fn no_gpu_process(id: TensorId) -> Failure {
    let message = format!(
        "the tensor {} lies in GPU memory, and nobody brings its bytes out: no process is attached to its sidecar that reaches \
         the GPU and copies out of it; start one, or leave the one that put it running",
        id.0
    );
    Failure::new(Reason::NoGpuProcess, message)
}

/// Way in which a tensor of a GPU comes to a process of its pod.
pub(super) fn by_cuda_ipc() -> Arc<Moved> {
    static MOVED: OnceLock<Arc<Moved>> = OnceLock::new();
    let message = || v1::Moved { transport: v1::Transport::CudaIpc.into(), ..v1::Moved::default() };
    Arc::clone(MOVED.get_or_init(|| Moved::new(message())))
}

/// Way in which a tensor of a GPU comes to who reads it in host memory.
fn staged() -> Arc<Moved> {
    static MOVED: OnceLock<Arc<Moved>> = OnceLock::new();
    let refusal = || v1::Refusal { transport: v1::Transport::CudaIpc.into(), why: "host_reader".to_owned() };
    let message = || v1::Moved {
        transport: v1::Transport::Local.into(),
        refusals: vec![refusal()],
        staged: true,
        ..v1::Moved::default()
    };
    Arc::clone(MOVED.get_or_init(|| Moved::new(message())))
}

/// The GPU of a tensor that fits its allocation.
fn check_place(descriptor: &Descriptor, handed: &Handed) -> Result<[u8; 16], Failure> {
    let invalid = |why: String| Err(Failure::new(Reason::InvalidArgument, why));
    let Device::Cuda { uuid: Some(uuid), .. } = descriptor.device else {
        return invalid(format!("a tensor in GPU memory names its GPU by UUID, not {}", descriptor.device));
    };
    let needed = descriptor.layout.bytes();
    if needed == 0 {
        return invalid(
            "a tensor without bytes has no GPU memory; put it as a tensor of the host".to_owned(),
        );
    }
    if handed.number == 0 || handed.bytes < needed {
        return invalid(format!(
            "allocation {} of {} bytes for a tensor of {needed}; it must have a number above 0, and no fewer bytes",
            handed.number, handed.bytes
        ));
    }
    Ok(uuid)
}

/// A descriptor that is certainly none of a driver's is not held: an end of a socket or a pipe would keep more alive than memory.
fn check_kind(memory: &OwnedFd) -> Result<(), Failure> {
    let stat = rustix::fs::fstat(memory.as_fd()).map_err(|error| {
        Failure::new(Reason::Internal, format!("a descriptor cannot be looked at: {error}"))
    })?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => "a socket",
        FileType::Fifo => "a pipe",
        FileType::Directory => "a directory",
        FileType::BlockDevice => "a block device",
        FileType::Symlink => "a link",
        _ => return Ok(()),
    };
    let message = format!("{kind} came where the driver's descriptor of GPU memory belongs");
    Err(Failure::new(Reason::InvalidArgument, message))
}
