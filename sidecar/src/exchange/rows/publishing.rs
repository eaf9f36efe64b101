//! Snapshots of mutable sets: all rows of one moment, published as the next version of a sealed set at the set's own peer.
//!
//! Rows lie in tensors of this sidecar until the manifest has them. So a snapshot that is refused, at whatever step, leaves nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tensorlane_memory::Purpose;
use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::layout::{Layout, Shape};
use tensorlane_proto::ledger::{Publication, TensorName};
use tensorlane_proto::reference::Reference;
use tensorlane_proto::rows::tree_of;
use tensorlane_proto::set::{Manifest, SET_METADATA, Tree};
use tensorlane_proto::{DType, Metadata};

use super::Meant;
use super::memory::{MutableSet, internal};
use super::packing::{PackedBlocks, Packing, Waits};
use crate::exchange::names::tensor_name;
use crate::exchange::{Caller, Exchange, Taken};
use crate::store::{AllocRequest, Claimant, OWN};

/// Most versions that a snapshot may keep which another peer asks for: each is a copy of the set in this arena.
const KEEP_OF_PEERS_MAX: u32 = 8;

/// Tensors that this sidecar leases until they are published. Dropped, their leases end.
struct Staged<'a> {
    exchange: &'a Exchange,
    taken: Vec<Taken>,
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        self.taken.iter().for_each(|taken| self.exchange.untake(OWN, taken));
    }
}

// === impl Exchange ===

impl Exchange {
    /// Publishes a snapshot of a set, here or at another peer.
    pub fn set_snapshot(
        self: &Arc<Self>,
        caller: &Caller,
        request: v1::SetSnapshotRequest,
        done: impl FnOnce(Result<v1::SetSnapshotResponse, Failure>) + Send + 'static,
    ) {
        let deadline = self.deadline(request.deadline_ms);
        match self.set_meant(&request.set) {
            Ok(Meant::Here(set)) => {
                let caller = caller.clone();
                let queueing = caller.queueing(Purpose::Put, deadline);
                self.on_waiter(queueing, Box::new(done), move |exchange| {
                    let waits = (&caller.claimant(), deadline, &caller.cancel);
                    exchange.publish_rows(&set, &request, waits)
                });
            }
            Ok(Meant::There(peer, life, set)) => {
                let request = v1::SetSnapshotRequest { set, ..request };
                self.snapshot_there(caller, (&peer, life), request, deadline, Box::new(done));
            }
            Err(failure) => done(Err(failure)),
        }
    }

    /// Publishes all rows as they are at one moment. Blocks: for waiters.
    pub(super) fn publish_rows(
        &self,
        set: &MutableSet,
        request: &v1::SetSnapshotRequest,
        waits: Waits<'_>,
    ) -> Result<v1::SetSnapshotResponse, Failure> {
        let name = match request.name.as_str() {
            "" => set.name.clone(),
            name => tensor_name(name)?,
        };
        let keys = tree_of(set.layout.leaves(), set.layout.rows())?;
        let leaves: Vec<usize> = (0..set.layout.leaves().len()).collect();
        let PackedBlocks { blocks, version } =
            self.pack_span(&Packing { set, leaves: &leaves, waits }, (0, set.layout.rows()))?;
        let staged = Staged { exchange: self, taken: self.lease_blocks(OWN, blocks)? };
        let mut reference_of = |leaf: &usize| {
            let taken = staged.taken.get(*leaf).ok_or_else(|| internal(&"a leaf was not packed"))?;
            Ok::<_, Failure>(taken.tensor.reference.clone())
        };
        let tree = keys.try_map(&mut reference_of)?;
        let publishing = Publishing { name, keep: request.keep, tree, waits };
        let (sealed, reference) = self.publish_next(set, publishing, &staged.taken)?;
        self.metrics.sets.snapshots.inc();
        Ok(v1::SetSnapshotResponse { version: sealed, set_version: version, reference: reference.encode() })
    }

    /// Notes that this pod keeps all versions that there are of the name of a new set.
    pub(super) fn keep_versions(&self, set: &MutableSet) {
        let there = self.store.versions(&set.name);
        set.kept.store(u32::try_from(there).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Notes how many versions of a name this pod keeps, where a mutable set is called so.
    pub(in crate::exchange) fn versions_kept(&self, name: &TensorName, keep: u32) {
        if let Some(set) = self.mutable_sets.table.lock().named(name.as_str()) {
            set.kept.store(keep, Ordering::Relaxed);
        }
    }

    /// Publishes leaves on top of the latest version, whichever that is. Another peer keeps no fewer versions than this pod.
    fn publish_next(
        &self,
        set: &MutableSet,
        publishing: Publishing<'_>,
        leaves: &[Taken],
    ) -> Result<(u64, Reference), Failure> {
        let Publishing { name, keep, tree, waits } = publishing;
        let (claimant, deadline, cancel) = waits;
        let is_of_peer = matches!(claimant, Claimant::Peer(_));
        let mut manifest = Manifest { version: 0, tree };
        loop {
            manifest.version = self.store.latest_version(&name).saturating_add(1);
            let stored = self.put_manifest(&manifest, waits)?;
            let (id, reference) = (stored.id, stored.tensor.reference.clone());
            // The name has it from then on, or nobody does.
            let _staged = Staged { exchange: self, taken: vec![stored] };
            let publication = Publication {
                manifest: id,
                leaves: leaves.iter().map(|leaf| leaf.id).collect(),
                name: name.clone(),
                version: manifest.version,
                keep: if is_of_peer { keep.max(set.kept.load(Ordering::Relaxed)) } else { keep },
            };
            match self.store.publish(publication) {
                Ok(()) => {
                    if !is_of_peer {
                        self.versions_kept(&name, keep);
                    }
                    return Ok((manifest.version, reference));
                }
                // Another writer was faster: on top of its version, while there is time.
                Err(failure)
                    if failure.reason == Reason::VersionChanged
                        && Instant::now() < deadline
                        && !cancel.is_cancelled() => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    fn put_manifest(
        &self,
        manifest: &Manifest,
        (claimant, deadline, cancel): Waits<'_>,
    ) -> Result<Taken, Failure> {
        let bytes = manifest.encode().map_err(|error| Failure::new(Reason::TooLarge, error.to_string()))?;
        let length = bytes.len() as u64;
        let layout = Shape::new(&[length]).and_then(|shape| Layout::contiguous(DType::U8, shape));
        let layout = layout.map_err(|error| internal(&error))?;
        let metadata = Metadata::new([(SET_METADATA, "1")]).map_err(|error| internal(&error))?;
        let purpose = Purpose::Put;
        let alloc = AllocRequest { writer: None, claimant, purpose, bytes: length, deadline, cancel };
        let block = self.store.allocate(&alloc)?;
        let mut landing = block.landing().ok_or_else(|| internal(&"a fresh block cannot be written"))?;
        landing.write(0, &bytes).map_err(|error| internal(&error))?;
        drop(landing);
        self.store.pack_in(OWN, Descriptor { metadata, ..Descriptor::host(layout) }, block)
    }
}

/// A sealed set that is to be the next version of its name.
struct Publishing<'a> {
    name: TensorName,
    keep: u32,
    tree: Tree<Reference>,
    waits: Waits<'a>,
}

/// Checks a snapshot that another peer asks for. It lies in the arena of this one, so it is the set's own name that it gets, and
/// a few versions that it keeps: at least those that this pod keeps, whatever it asks for.
pub(super) fn may_publish(set: &MutableSet, request: &v1::SetSnapshotRequest) -> Result<(), Failure> {
    if !request.name.is_empty() && request.name != set.name.as_str() {
        let what = format!(
            "a snapshot that another peer asks for is named as the set, {}, not {}; leave the name out, or take it in the pod of {}",
            set.name, request.name, set.reference.peer
        );
        return Err(Failure::new(Reason::PermissionDenied, what).with("name", &set.name));
    }
    if request.keep > KEEP_OF_PEERS_MAX {
        let what = format!(
            "a snapshot that another peer asks for keeps at most {KEEP_OF_PEERS_MAX} versions, not {}",
            request.keep
        );
        return Err(Failure::new(Reason::LimitExceeded, what).with("limit", KEEP_OF_PEERS_MAX));
    }
    Ok(())
}
