//! GPU memory that tensors lie in. The sidecar holds the descriptor of each allocation for as long as its tensor lives, and hands
//! copies of it on; it never maps one, never looks into one, and knows nothing of the driver behind it.
//!
//! An allocation is one tensor's: one of a session of this sidecar, or of another peer of the node, whose lease ends with it. There is no
//! witness of its maps: whoever maps it keeps it, and the driver frees it when the last map
//! and the last descriptor are gone. The process that put it may use it again where every session that opened it
//! has given up its lease, and lives: a client unmaps first. Where such a session has ended, its process may map it still. So may
//! clients of another peer that it was ever lent to.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rustix::fs::FileType;
use smallvec::smallvec;
use tensorlane_memory::{Block, Lease};
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::device::Device;
use tensorlane_proto::encoded;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{Answer, Event, Holder, Keep, SessionId, TensorId};
use tensorlane_proto::reference::Reference;

use super::refusals::refused;
use super::sessions::OWN;
use super::tensor::{Moved, Taken};
use super::write::{Copied, on_gpu, unexpected};
use super::{Freed, Sealing, Store, Stored, Tensor};
use crate::session::SessionLink;

/// Most allocations of one session, or of one peer of the node. Each costs the sidecar a descriptor.
const EXPORTER_ALLOCATIONS_MAX: u64 = 1_024;
/// Most allocations of all together, whether who exported them lives or not.
const ALLOCATIONS_MAX: u64 = 4_096;
/// Most bytes of one of them. They cost the sidecar nothing; the bound keeps a client that lies from making the sums worthless.
const EXPORTER_BYTES_MAX: u64 = 4 << 40;

/// GpuShares of what is held, of all and of each session that lives or lived.
#[derive(Debug, Default)]
pub(super) struct GpuShares(Mutex<GpuBooks>);

#[derive(Debug, Default)]
struct GpuBooks {
    shares: HashMap<Exporter, GpuShare>,
    /// Allocations of sessions on each GPU.
    gpus: BTreeMap<[u8; 16], u64>,
}

/// Exporter for which an allocation counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Exporter {
    Session(SessionId),
    Peer(PeerName),
}

#[derive(Debug, Default, Clone)]
struct GpuShare {
    allocations: u64,
    bytes: u64,
    /// The session, of one that is no peer.
    link: Weak<SessionLink>,
}

/// GPU memory that is held, for metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct GpuHeld {
    /// Tensors, each of which has an allocation of its own.
    pub tensors: u64,
    /// Bytes of allocations of sessions that live, as those who put them said.
    pub live: u64,
    /// Bytes of allocations of sessions that have ended: this sidecar's descriptors keep them.
    pub orphaned: u64,
    /// Bytes of allocations of other peers of the node.
    pub borrowed: u64,
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

/// GPU memory as a peer of this node has lent it.
pub struct PeerMemory {
    /// The peer.
    pub peer: PeerName,
    /// Length in bytes, as the peer says.
    pub bytes: u64,
    /// Memory that the driver exported, as the peer gave it.
    pub memory: OwnedFd,
    /// Lease there, which ends with the allocation.
    pub lease: Lease,
}

/// Allocation of GPU memory. Dropped, its descriptor is closed and who exported it is told.
pub struct Allocation {
    memory: Arc<OwnedFd>,
    bytes: u64,
    uuid: [u8; 16],
    exporter: Exporter,
    home: AllocationHome,
    /// The sessions that were given the descriptor.
    openers: Mutex<HashMap<SessionId, Weak<SessionLink>>>,
    /// Set once another peer was given it.
    lent: AtomicBool,
    books: Arc<GpuShares>,
}

/// Exporter that is told when nobody here keeps an allocation any more.
enum AllocationHome {
    /// Session that exported it, and its own number of it.
    Session { link: Weak<SessionLink>, number: u64 },
    /// Peer of this node. Its lease ends with this.
    Peer { _lease: Lease },
}

// === impl GpuShares ===

impl GpuShares {
    pub(super) fn held(&self) -> GpuHeld {
        let books = self.0.lock();
        let mut held = GpuHeld::default();
        for (exporter, share) in &books.shares {
            held.tensors += share.allocations;
            let state = match exporter {
                Exporter::Peer(_) => &mut held.borrowed,
                Exporter::Session(_) if lives(&share.link) => &mut held.live,
                Exporter::Session(_) => &mut held.orphaned,
            };
            *state = state.saturating_add(share.bytes);
        }
        held
    }

    /// Enters an allocation that a session hands over.
    fn take(self: &Arc<Self>, handed: Handed, uuid: [u8; 16]) -> Result<Allocation, Failure> {
        let Handed { link, number, bytes, memory } = handed;
        let (exporter, link) = (Exporter::Session(link.id()), Arc::downgrade(&link));
        let home = AllocationHome::Session { link: Weak::clone(&link), number };
        self.enter(exporter, link, home, (uuid, bytes, memory))
    }

    /// Enters an allocation that a peer has lent.
    fn borrow(self: &Arc<Self>, lent: PeerMemory, uuid: [u8; 16]) -> Result<Allocation, Failure> {
        let PeerMemory { peer, bytes, memory, lease } = lent;
        let home = AllocationHome::Peer { _lease: lease };
        self.enter(Exporter::Peer(peer), Weak::new(), home, (uuid, bytes, memory))
    }

    fn enter(
        self: &Arc<Self>,
        exporter: Exporter,
        link: Weak<SessionLink>,
        home: AllocationHome,
        (uuid, bytes, memory): ([u8; 16], u64, OwnedFd),
    ) -> Result<Allocation, Failure> {
        check_kind(&memory)?;
        let mut books = self.0.lock();
        let all: u64 = books.shares.values().map(|share| share.allocations).sum();
        let GpuShare { allocations, bytes: before, .. } =
            books.shares.get(&exporter).cloned().unwrap_or_default();
        let full = |why: String| Err(Failure::new(Reason::LimitExceeded, why));
        if all >= ALLOCATIONS_MAX || allocations >= EXPORTER_ALLOCATIONS_MAX {
            return full(format!(
                "{exporter} has {allocations} allocations of GPU memory here and all together {all}; at most \
                 {EXPORTER_ALLOCATIONS_MAX} and {ALLOCATIONS_MAX}: release some, or put larger tensors"
            ));
        }
        let sum = before.checked_add(bytes).filter(|sum| *sum <= EXPORTER_BYTES_MAX);
        let Some(sum) = sum else {
            return full(format!(
                "{exporter} has {before} bytes of GPU memory here, and {bytes} more would pass {EXPORTER_BYTES_MAX}"
            ));
        };
        if let Exporter::Session(_) = &exporter {
            *books.gpus.entry(uuid).or_default() += 1;
        }
        books.shares.insert(exporter.clone(), GpuShare { allocations: allocations + 1, bytes: sum, link });
        drop(books);
        let (memory, books, openers) = (Arc::new(memory), Arc::clone(self), Mutex::default());
        let lent = AtomicBool::new(false);
        Ok(Allocation { memory, bytes, uuid, exporter, home, openers, lent, books })
    }
}

impl GpuBooks {
    /// An allocation is gone.
    fn leave(&mut self, exporter: &Exporter, uuid: &[u8; 16], bytes: u64) {
        if let Some(share) = self.shares.get_mut(exporter) {
            share.allocations -= 1;
            share.bytes -= bytes;
            if share.allocations == 0 {
                self.shares.remove(exporter);
            }
        }
        if let Exporter::Session(_) = exporter
            && let Some(count) = self.gpus.get_mut(uuid)
        {
            *count -= 1;
            if *count == 0 {
                self.gpus.remove(uuid);
            }
        }
    }
}

impl fmt::Display for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(_) => f.write_str("this session"),
            Self::Peer(peer) => write!(f, "the peer {peer}"),
        }
    }
}

/// Returns whether a session lives, and was not cut.
fn lives(link: &Weak<SessionLink>) -> bool {
    link.upgrade().is_some_and(|link| !link.is_cut())
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

    /// Returns whether a session of this sidecar exported it, and not another peer.
    pub fn is_own(&self) -> bool {
        matches!(self.exporter, Exporter::Session(_))
    }

    /// Notes that a session is given the descriptor.
    pub fn opened_by(&self, link: &Arc<SessionLink>) {
        self.openers.lock().insert(link.id(), Arc::downgrade(link));
    }

    /// Notes that another peer is given the descriptor. What its clients map, and until when, nobody here knows.
    pub fn mark_lent(&self) {
        self.lent.store(true, Ordering::Release);
    }

    /// Returns whether no process maps it, once no session leases it. A session that was cut is no proof, and a peer gives none.
    fn is_unmapped(&self) -> bool {
        !self.lent.load(Ordering::Acquire) && self.openers.lock().values().all(lives)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.books.0.lock().leave(&self.exporter, &self.uuid, self.bytes);
        if let AllocationHome::Session { link, number } = &self.home
            && let Some(link) = link.upgrade()
        {
            link.gpu_freed(*number, self.is_unmapped());
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

    /// The GPU memory of a sealed tensor; none where it lies in host memory, or is not there.
    pub fn allocation_of(&self, id: TensorId) -> Option<Arc<Allocation>> {
        self.state.lock().sealed(None, id).ok()?.gpu.clone()
    }

    /// Takes GPU memory that a peer of this node has lent, of a tensor of that meaning. Refused, it is given back.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED, and INVALID_ARGUMENT for a descriptor that is none of a driver's.
    pub fn borrow_gpu(&self, descriptor: &Descriptor, lent: PeerMemory) -> Result<Arc<Allocation>, Failure> {
        let Device::Cuda { uuid: Some(uuid), .. } = descriptor.device else {
            let why = format!("{} lends GPU memory of a tensor on {}", lent.peer, descriptor.device);
            return Err(Failure::new(Reason::InvalidArgument, why));
        };
        self.gpu.borrow(lent, uuid).map(Arc::new)
    }

    /// Leases another peer's tensor that is here as GPU memory, if it is.
    pub fn lease_on_gpu(&self, by: Holder, reference: &Reference) -> Option<Result<Taken, Failure>> {
        self.lease_copied(by, &on_gpu(reference))
    }

    /// GPUs on which there is memory that sessions of this sidecar put, whether these live or not.
    pub fn gpus_held(&self) -> Vec<[u8; 16]> {
        self.gpu.0.lock().gpus.keys().copied().collect()
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
            let (gpu, staged, crc32c) = (None, true, None);
            let copied = Copied { reference, descriptor, plain, block, gpu, staged, crc32c, wanted_by };
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
