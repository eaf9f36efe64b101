//! Snapshots of mutable sets: what one holds at a moment, as the next version of a sealed set at its own peer.

use std::time::Duration;

use tensorlane_proto::frame::{SET_SNAPSHOTS_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::rows::{SetLayout, tree_of};
use tensorlane_proto::set::Tree;
use tensorlane_proto::{Reference, Selection};

use super::mutable::MutableSet;
use crate::error::Result;
use crate::late::Late;
use crate::tensor::Tensor;
use crate::wire;

/// Options for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// Name of the sealed set; that of the mutable set by default. From another peer it can be no other.
    pub name: Option<String>,
    /// Versions of the sealed set that stay, this one included; 2 by default. Each is a copy of all rows.
    pub keep: u32,
    /// Deadline after which to give up; the client's deadline by default.
    pub deadline: Option<Duration>,
}

/// A snapshot that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the sealed set at the peer of the mutable set.
    pub name: String,
    /// Version of the sealed set.
    pub version: u64,
    /// Version of the mutable set: the number of its commits that the snapshot has, all of each.
    pub set_version: u64,
    /// The manifest, for [`Client::get_set`](crate::Client::get_set) from anywhere.
    pub reference: Reference,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self { name: None, keep: 2, deadline: None }
    }
}

impl MutableSet {
    /// Reads all rows as a tree of keys, each `/` of which is a level: all of one version, which is returned. Of a large set commits
    /// go on meanwhile.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where a key has no place in a tree, and as [`MutableSet::read`].
    pub fn read_tree(&self) -> Result<(u64, Tree<Tensor>)> {
        self.read_tree_of(&[], &Selection::All)
    }

    /// Reads rows of leaves, or of all leaves where no key is given, as a tree of keys.
    ///
    /// # Errors
    /// As [`MutableSet::read_tree`] and [`MutableSet::read`].
    pub fn read_tree_of(&self, keys: &[&str], rows: &Selection) -> Result<(u64, Tree<Tensor>)> {
        let layout = SetLayout::new(self.leaves(), self.rows())?;
        let read = self.read(keys, rows)?;
        let count = |(_, tensor): &(String, Tensor)| tensor.descriptor().layout.shape().first().copied();
        let leaves = read.leaves.iter().map(|(key, _)| layout.leaf(key));
        let leaves = leaves.collect::<std::result::Result<Vec<_>, _>>()?;
        let leaves = leaves.into_iter().filter_map(|leaf| layout.leaves().get(leaf));
        let tree = tree_of(leaves, read.leaves.first().and_then(count).unwrap_or(0))?;
        let mut tensors: Vec<Option<Tensor>> =
            read.leaves.into_iter().map(|(_, tensor)| Some(tensor)).collect();
        let mut taken = |leaf: &usize| {
            tensors.get_mut(*leaf).and_then(Option::take).ok_or_else(|| wire::missing("a leaf"))
        };
        Ok((read.version, tree.try_map(&mut taken)?))
    }

    /// Publishes all rows as they are at one moment. Commits go on meanwhile: each copies what it changes, if that was not copied
    /// yet.
    ///
    /// # Errors
    /// PERMISSION_DENIED for those who may not write the set, or for another name from another peer; TOO_LARGE for more than half of
    /// the owner's arena, ARENA_FULL, NAME_TAKEN, TORN_ROWS, UNSUPPORTED of an earlier sidecar, or what ended the call. Nothing is
    /// published then. A call whose answer is lost may have published it.
    pub fn snapshot(&self, options: &SnapshotOptions) -> Result<Snapshot> {
        let client = match options.deadline {
            Some(deadline) => self.client().with_deadline(deadline),
            None => self.client().clone(),
        };
        let (connection, wait) = client.with_mutable_sets()?;
        connection.require(
            SET_SNAPSHOTS_SINCE,
            "snapshots of sets need",
            "; use a sidecar of this release",
        )?;
        let request = v1::SetSnapshotRequest {
            set: self.reference().to_owned(),
            name: options.name.clone().unwrap_or_default(),
            keep: options.keep,
            deadline_ms: wait.deadline_ms(),
        };
        let reply: v1::SetSnapshotResponse =
            connection.call(SessionKind::SetSnapshot, &request, &wait, Late::Nothing)?;
        let own = || self.info().spec.as_ref().map_or_else(String::new, |spec| spec.name.clone());
        Ok(Snapshot {
            name: options.name.clone().unwrap_or_else(own),
            version: reply.version,
            set_version: reply.set_version,
            reference: wire::reference(&reply.reference)?,
        })
    }
}
