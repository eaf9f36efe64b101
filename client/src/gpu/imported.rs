//! Allocations of others that are mapped for one session: each is imported once, however many of its tensors there are.
//!
//! Each session asks for itself, although another of this process may map the same: the sidecar takes a session that lives and has given up its lease
//! for proof that its maps are gone.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tensorlane_cuda::ImportedSegment;

/// Segments that are mapped now, by the number of their tensor, which is never given again within a life of the sidecar.
#[derive(Debug, Default)]
pub(crate) struct Imported(Mutex<HashMap<u64, Weak<ImportedSegment>>>);

impl Imported {
    /// The segment of a tensor, if it is mapped.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<ImportedSegment>> {
        self.0.lock().get(&id)?.upgrade()
    }

    /// Notes a segment. Another thread may have been faster; two maps of one allocation do no harm.
    pub(crate) fn insert(&self, id: u64, segment: &Arc<ImportedSegment>) {
        let mut segments = self.0.lock();
        segments.retain(|_, segment| segment.strong_count() > 0);
        segments.insert(id, Arc::downgrade(segment));
    }
}
