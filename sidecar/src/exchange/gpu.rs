//! Tensors in GPU memory: put by the process that has the GPU, and opened by others of its pod and of its node. The sidecar passes
//! descriptors on, and tells the others which GPUs its side reaches.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorlane_proto::device::Device;
use tensorlane_proto::failure::Failure;
use tensorlane_proto::frame::{GPUS_MAX, STAGE_SINCE};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::{Incarnation, PeerName};
use tensorlane_proto::ledger::{SessionId, TensorId};
use tensorlane_proto::negotiate::{Standing, Transport, What, Why};
use tensorlane_proto::selection::Selection;
use tensorlane_proto::wire;

use super::fetch::Fetch;
use super::put::{stored, stored_result};
use super::{Caller, Exchange, session_required};
use crate::metrics::label::Moved;
use crate::peer::{GpuId, LentMemory, PeerKey, ReachableGpu, ServedOnGpu};
use crate::store::{Allocation, Handed};

/// Reason for which a tensor that could be mapped on its GPU is copied out: its reader takes tensors of the host.
const HOST_READER: &str = "host_reader";

/// GPUs that this side reaches: those of its sessions, and those in whose memory it has tensors.
#[derive(Default)]
pub(super) struct GpuReach(Mutex<Reached>);

#[derive(Default)]
struct Reached {
    sessions: HashMap<SessionId, Vec<ReachableGpu>>,
    /// GPUs of all together, as other peers were told: at most as many as may be named.
    told: Vec<ReachableGpu>,
}

// === impl GpuReach ===

impl GpuReach {
    /// GPUs as other peers were told.
    pub(super) fn told(&self) -> Vec<ReachableGpu> {
        self.0.lock().told.clone()
    }

    /// UUIDs of these.
    pub(super) fn uuids(&self) -> Vec<GpuId> {
        self.0.lock().told.iter().map(|gpu| gpu.uuid).collect()
    }

    fn tells(&self, gpu: &GpuId) -> bool {
        self.0.lock().told.iter().any(|told| told.uuid == *gpu)
    }

    /// Changes what sessions reach, and calls `tell` under the lock if all together is something else then. `held`: GPUs in whose
    /// memory there are tensors of this side.
    fn change(
        &self,
        held: &[GpuId],
        change: impl FnOnce(&mut HashMap<SessionId, Vec<ReachableGpu>>),
        tell: impl FnOnce(&[ReachableGpu]),
    ) {
        let mut reach = self.0.lock();
        change(&mut reach.sessions);
        let mut all: BTreeMap<GpuId, u32> = held.iter().map(|uuid| (*uuid, 0)).collect();
        for gpu in reach.sessions.values().flatten() {
            let driver = all.entry(gpu.uuid).or_default();
            *driver = gpu.driver.max(*driver);
        }
        let of = |(uuid, driver)| ReachableGpu { uuid, driver };
        let all: Vec<ReachableGpu> = all.into_iter().take(GPUS_MAX).map(of).collect();
        if all != reach.told {
            tell(&all);
            reach.told = all;
        }
    }
}

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
        let device = descriptor.device;
        // Also to who does not wait for the answer any more: nobody has it. One that was the store's has said so already.
        let refused = |_: &Failure| link.gpu_freed(number, true);
        let sealed = self.store.put_gpu(by, descriptor, handed, keep).inspect_err(refused)?;
        if let Device::Cuda { uuid: Some(gpu), .. } = device
            && !self.reach.tells(&gpu)
        {
            self.change_reach(|_| {});
        }
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

    /// A session says which GPUs it reaches, and with which driver.
    pub(super) fn session_reaches(&self, session: SessionId, gpus: &[GpuId], driver: u32) {
        let of = |uuid: &GpuId| ReachableGpu { uuid: *uuid, driver };
        let gpus: Vec<ReachableGpu> = gpus.iter().map(of).collect();
        self.change_reach(|sessions| drop(sessions.insert(session, gpus)));
    }

    /// A session is over.
    pub(super) fn session_reaches_nothing(&self, session: SessionId) {
        self.change_reach(|sessions| drop(sessions.remove(&session)));
    }

    fn change_reach(&self, change: impl FnOnce(&mut HashMap<SessionId, Vec<ReachableGpu>>)) {
        let tell = |gpus: &[ReachableGpu]| {
            if let Some(peers) = self.peers.get() {
                peers.tell_gpus(gpus.to_vec());
            }
        };
        self.reach.change(&self.store.gpus_held(), change, tell);
    }

    /// Leases a tensor that lies on one of these GPUs for a peer of this node; none where it lies elsewhere.
    pub(super) fn lend_on_gpu(
        &self,
        from: &PeerKey,
        id: u64,
        gpus: &[GpuId],
    ) -> Result<Option<ServedOnGpu>, Failure> {
        let id = TensorId(id);
        let lies_there = |gpu: &Arc<Allocation>| gpu.is_own() && gpus.contains(&gpu.uuid());
        let Some(gpu) = self.store.allocation_of(id).filter(lies_there) else { return Ok(None) };
        self.may_leave(from, false)?;
        if !self.settings.routes.may_share_gpus() {
            return Ok(None);
        }
        let (_, taken) = self.lease_for(from, |holder| self.store.lease(holder, None, id))?;
        // From now on its exporter writes there never again.
        gpu.mark_lent();
        let memory = LentMemory { memory: Arc::clone(gpu.memory()), bytes: gpu.bytes() };
        Ok(Some(ServedOnGpu { descriptor: taken.tensor.descriptor.clone(), memory }))
    }

    /// GPUs by whose memory a tensor of a peer may come, as far as the two have told each other: none where its reader does not map
    /// it, or it cannot cross the node's socket.
    pub(super) fn gpus_for(&self, fetch: &Fetch) -> Vec<GpuId> {
        if !fetch.maps_gpus() {
            return Vec::new();
        }
        let ours = self.reach.uuids();
        if ours.is_empty() {
            return Vec::new();
        }
        let what = on_some_gpu(fetch);
        let evidence = self.evidence(fetch.reference.peer(), fetch.reference.incarnation(), &what, false);
        let fits = evidence.route(&what).is_ok_and(|route| route.transport == Transport::CudaIpc);
        let theirs = &evidence.theirs.gpus;
        if fits { ours.into_iter().filter(|uuid| theirs.contains(uuid)).collect() } else { Vec::new() }
    }

    /// Reason for which a tensor of a peer that lies in GPU memory is copied out, and not mapped there.
    pub(super) fn not_on_gpu(&self, fetch: &Fetch) -> &'static str {
        let what = on_some_gpu(fetch);
        let evidence = self.evidence(fetch.reference.peer(), fetch.reference.incarnation(), &what, false);
        let refusals = match evidence.route(&what) {
            Ok(route) => route.refusals,
            Err(none) => none.refusals,
        };
        let ours = &evidence.ours.gpus;
        match refusals.iter().find(|refusal| refusal.transport == Transport::CudaIpc) {
            Some(refusal) => refusal.why.as_str(),
            None if !fetch.maps_gpus() => HOST_READER,
            // Its owner lends this peer no more.
            None if evidence.theirs.gpus.iter().all(|uuid| ours.contains(uuid)) => Why::LentFull.as_str(),
            None => Why::OtherGpu.as_str(),
        }
    }
}

// === impl Exchange: what is shown ===

impl Exchange {
    /// GPUs that this side reaches.
    pub(super) fn own_gpus(&self) -> Vec<v1::GpuRoute> {
        let taken = |gpu: &ReachableGpu| v1::GpuRoute {
            cuda_uuid: gpu.uuid.to_vec().into(),
            standing: Standing::Taken.as_str().to_owned(),
            why: String::new(),
            cuda_driver: gpu.driver,
        };
        self.reach.told().iter().map(taken).collect()
    }

    /// Every GPU that either side of a pair reaches, and whether tensors there are mapped.
    pub(super) fn gpu_routes(&self, peer: &PeerName, incarnation: Option<Incarnation>) -> Vec<v1::GpuRoute> {
        let theirs = self.peers.get().map(|peers| peers.gpus_of(peer)).unwrap_or_default();
        let ours = self.reach.uuids();
        let mut all: BTreeMap<GpuId, u32> = ours.into_iter().map(|uuid| (uuid, 0)).collect();
        all.extend(theirs.iter().map(|gpu| (gpu.uuid, gpu.driver)));
        let one = |(uuid, cuda_driver): (GpuId, u32)| {
            let what = What { device: Device::Cuda { index: 0, uuid: Some(uuid) }, ..What::default() };
            let evidence = self.evidence(peer, incarnation.unwrap_or(Incarnation(0)), &what, false);
            let candidates = evidence.candidates(&what);
            let mapped = candidates.iter().find(|one| one.transport == Transport::CudaIpc);
            let standing = mapped.map_or(Standing::Refused(Why::NotOffered), |one| one.standing);
            let (standing, why) = (standing.as_str().to_owned(), standing.why().to_owned());
            v1::GpuRoute { cuda_uuid: uuid.to_vec().into(), standing, why, cuda_driver }
        };
        all.into_iter().map(one).collect()
    }
}

/// A tensor of which is known that it lies on a GPU, and not on which.
fn on_some_gpu(fetch: &Fetch) -> What {
    let (bytes, selection) = (fetch.reference.bytes(), fetch.selection.kind());
    What { bytes, device: Device::Cuda { index: 0, uuid: None }, selection, ..What::default() }
}

// === impl Fetch ===

impl Fetch {
    /// Returns whether its caller maps what lies on a GPU: it knows of such memory, wants no bytes of the host, and no list of rows,
    /// which is packed.
    pub(super) fn maps_gpus(&self) -> bool {
        // Clients before staging cannot say that they want bytes of the host.
        let knows = self.terms.caller.link.as_ref().is_some_and(|link| link.version() >= STAGE_SINCE);
        knows && !self.terms.host && !matches!(self.selection, Selection::Rows(_))
    }

    /// Returns whether another caller, who does not map what lies on a GPU, has asked for the tensor in its place.
    pub(super) fn was_not_asked_on_gpu(&self) -> bool {
        !self.gpus.is_empty() && !self.gpu_asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_sessions_reach_and_what_is_held_is_told_once_and_bounded() {
        let reach = GpuReach::default();
        let of = |uuid: u8, driver| ReachableGpu { uuid: [uuid; 16], driver };
        let changed = |held: &[GpuId], session: u64, gpus: Option<Vec<ReachableGpu>>| {
            let mut told = None;
            let change = |sessions: &mut HashMap<SessionId, Vec<ReachableGpu>>| match gpus {
                Some(gpus) => drop(sessions.insert(SessionId(session), gpus)),
                None => drop(sessions.remove(&SessionId(session))),
            };
            reach.change(held, change, |all| told = Some(all.to_vec()));
            told
        };
        assert_eq!(changed(&[], 1, Some(vec![of(1, 12_080)])), Some(vec![of(1, 12_080)]));
        assert_eq!(changed(&[], 2, Some(vec![of(1, 12_040)])), None, "nothing new");
        assert_eq!(changed(&[[2; 16]], 2, None), Some(vec![of(1, 12_080), of(2, 0)]));
        assert!(reach.tells(&[2; 16]) && !reach.tells(&[3; 16]));
        assert_eq!(
            changed(&[[2; 16]], 1, None),
            Some(vec![of(2, 0)]),
            "memory is held though nobody reaches it"
        );
        let many: Vec<ReachableGpu> = (0..200).map(|uuid| of(uuid, 1)).collect();
        assert_eq!(changed(&[], 3, Some(many)).map(|told| told.len()), Some(GPUS_MAX));
    }
}
