//! Sealed sets: trees of tensors that are published and read as one.
//!
//! ```text
//!   publish_set   leaves are there already ── manifest is put ── one step at the sidecar: policy, policy@8
//!   get_set       manifest by its name ── all leaves ── a leaf that went meanwhile: the next version, from the start
//! ```
//!
//! A reader has all of one version or all of another, never some of each. At the manifest's own peer its lease keeps all
//! leaves. From elsewhere `keep` is how many publications a reader may be behind before it begins anew.

pub mod directory;
pub mod mutable;
mod parts;
pub mod snapshot;

use std::time::{Duration, Instant};

use tensorlane_proto::frame::{SETS_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_proto::set::{MANIFEST_BYTES_MAX, Manifest, ManifestError, SET_METADATA, Tree};
use tensorlane_proto::{DType, Descriptor, Failure, Layout, Metadata, Reason, Reference, Selection, Shape};

use crate::client::Client;
use crate::error::{Error, Result};
use crate::late::Late;
use crate::target::{AcquireOptions, Target};
use crate::tensor::Tensor;
use crate::verbs::PutOptions;
use crate::wait::later;

/// Options for publishing a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishOptions {
    /// Versions that stay, this one included; 2 by default. Each costs its tensors; 0 means 1.
    pub keep: u32,
    /// The latest version at present, 0 for none: if it is another, nothing is published. Not looked at by default.
    pub expects: Option<u64>,
    /// Deadline after which to give up; the client's deadline by default.
    pub deadline: Option<Duration>,
}

/// A set that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Version that was published.
    pub version: u64,
    /// The manifest: names this version from anywhere, also after the name went on.
    pub reference: Reference,
}

/// Keys of a set whose tensors are got; others stay where they are.
///
/// A key names a leaf, or a tree with all that is below it; `encoder.*` stands for all keys that begin so. Nested keys are joined by
/// `/` or by dots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// All keys.
    #[default]
    All,
    /// Keys each of which must be there.
    These(Vec<String>),
    /// Keys of which those are got that are there.
    IfThere(Vec<String>),
}

/// A set whose manifest is leased: what it consists of, before any of its tensors has moved.
#[derive(Debug)]
pub struct OpenedSet {
    /// The version.
    pub version: u64,
    /// The keys with their tensors.
    pub tree: Tree<Reference>,
    /// The lease on the manifest. At the manifest's own peer it keeps every leaf.
    pub manifest: Tensor,
}

/// A set of one version, all of it leased and mapped.
#[derive(Debug)]
pub struct Set<T = Tensor> {
    /// The version.
    pub version: u64,
    /// The keys with their tensors.
    pub tree: Tree<T>,
    /// The lease on the manifest.
    pub manifest: Tensor,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self { keep: 2, expects: None, deadline: None }
    }
}

impl Client {
    /// Makes a tree of tensors the next version of a name. All of them must be of this peer, and be kept until this
    /// returns; from then on they live as long as the version.
    ///
    /// # Errors
    /// The sidecar's refusal: VERSION_CHANGED where the latest version is not the expected one, NAME_TAKEN where the
    /// name stands for a tensor that is no set, NOT_OWNED for a leaf of another peer, ... Nothing is published then.
    pub fn publish_set(
        &self,
        name: &str,
        tree: &Tree<Reference>,
        options: &PublishOptions,
    ) -> Result<Published> {
        let until = later(options.deadline.unwrap_or(self.deadline()));
        let connection = self.connection(&self.wait(options.deadline))?;
        connection.require(SETS_SINCE, "sets need", "; use a sidecar of this release")?;
        let leaves = self.leaves(tree)?;
        let mut latest = match options.expects {
            Some(latest) => latest,
            None => self.latest_version(name)?,
        };
        loop {
            let version = latest.saturating_add(1);
            let manifest = self.put_manifest(version, tree)?;
            let request = v1::PublishSetRequest {
                manifest: manifest.reference().id(),
                leaves: leaves.clone(),
                name: name.to_owned(),
                version,
                keep: options.keep,
            };
            let wait = self.wait(Some(until.saturating_duration_since(Instant::now())));
            let connection = self.connection(&wait)?;
            let outcome: Result<v1::PublishSetResponse> =
                connection.call(SessionKind::PublishSet, &request, &wait, Late::Nothing);
            match outcome {
                Ok(v1::PublishSetResponse { version }) => {
                    return Ok(Published { version, reference: manifest.reference().clone() });
                }
                // Another writer was faster: on top of its version, while there is time.
                Err(error) if options.expects.is_none() && Instant::now() < until => {
                    latest = newer_version(&error).ok_or(error)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Leases the manifest of a set: by the set's name for the latest version, by `name@7` or a reference for one.
    ///
    /// # Errors
    /// NOT_A_SET where the target is another tensor, and as [`Client::acquire`].
    pub fn open_set(&self, target: impl Into<Target>, options: &AcquireOptions) -> Result<OpenedSet> {
        if options.selection != Selection::All {
            return Err(Error::invalid("a set is opened whole; select from its tensors"));
        }
        let target = target.into();
        let manifest = self.acquire(&target, options)?;
        if manifest.descriptor().metadata.value(SET_METADATA).is_none() {
            let what = format!(
                "{} is a tensor ({}) and no set; get it as a tensor, or publish a set under another name",
                shown(&target),
                manifest.descriptor().layout
            );
            return Err(Failure::new(Reason::NotASet, what).into());
        }
        // Its bytes become this process's own, and whoever published them chose how many.
        let bytes = manifest.descriptor().layout.bytes();
        if bytes > MANIFEST_BYTES_MAX as u64 {
            let what = format!(
                "{} says that it is a set, and its manifest would have {bytes} bytes; {MANIFEST_BYTES_MAX} are the most",
                shown(&target)
            );
            return Err(Failure::new(Reason::NotASet, what).into());
        }
        let Manifest { version, tree } =
            Manifest::decode(&manifest.to_vec()).map_err(|error| unreadable(&error))?;
        Ok(OpenedSet { version, tree, manifest })
    }

    /// Leases and maps all of a set. Where a tensor went because a newer version was published meanwhile, that version
    /// is got instead, from the start.
    ///
    /// # Errors
    /// As [`Client::open_set`], and the first error of a tensor.
    pub fn get_set(&self, target: impl Into<Target>, options: &AcquireOptions) -> Result<Set> {
        self.get_set_of(target, &Keys::All, options)
    }

    /// Leases and maps the tensors of some keys of a set, as [`Client::get_set`] does all of them.
    ///
    /// # Errors
    /// SET_MISMATCH with the first key that is not there, and as [`Client::get_set`].
    pub fn get_set_of(
        &self,
        target: impl Into<Target>,
        keys: &Keys,
        options: &AcquireOptions,
    ) -> Result<Set> {
        self.get_set_by(&target.into(), keys, options, |targets, options| self.acquire_many(targets, options))
    }

    /// Leases a set, the tensors of the keys by `acquire`.
    pub(crate) fn get_set_by<T>(
        &self,
        target: &Target,
        keys: &Keys,
        options: &AcquireOptions,
        acquire: impl Fn(&[Target], &AcquireOptions) -> Vec<Result<T>>,
    ) -> Result<Set<T>> {
        let until = later(options.deadline.unwrap_or(self.deadline()));
        let mut tried = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let options = options.clone().deadline(left);
            let opened = self.open_set(target, &options)?.only(keys)?;
            let version = opened.version;
            match whole(opened, |targets| acquire(targets, &options)) {
                Err(error) if error.reason() == Some(Reason::NotFound) && tried != Some(version) => {
                    tried = Some(version);
                }
                outcome => return outcome,
            }
        }
    }

    /// Leases and maps all tensors of an opened set.
    ///
    /// # Errors
    /// The first error of a tensor.
    pub fn acquire_set(&self, opened: OpenedSet, options: &AcquireOptions) -> Result<Set> {
        whole(opened, |targets| self.acquire_many(targets, options))
    }

    /// Ids of the leaves, which must be of this peer in this life.
    fn leaves(&self, tree: &Tree<Reference>) -> Result<Vec<u64>> {
        let (peer, incarnation) = (self.peer()?, self.incarnation()?);
        let id = |(path, leaf): (Vec<&str>, &Reference)| {
            if *leaf.peer() == peer && leaf.incarnation() == incarnation {
                return Ok(leaf.id());
            }
            let what = format!(
                "{} is {leaf}, a tensor of another peer or life; get it and put it here first, or publish there",
                path.join("/")
            );
            Err(Failure::new(Reason::NotOwned, what).into())
        };
        tree.tensors().into_iter().map(id).collect()
    }

    /// The latest version of a name at this peer; 0 where there is none.
    fn latest_version(&self, name: &str) -> Result<u64> {
        let prefix = format!("{name}@");
        let mut latest = 0;
        for listed in self.list(&prefix) {
            let listed = listed?;
            let is_set = listed.description.descriptor.metadata.value(SET_METADATA).is_some();
            let number = listed.name.strip_prefix(&prefix).and_then(|text| text.parse().ok());
            latest = latest.max(number.filter(|_| is_set).unwrap_or(0));
        }
        Ok(latest)
    }

    fn put_manifest(&self, version: u64, tree: &Tree<Reference>) -> Result<crate::verbs::Stored> {
        let bytes = Manifest::bytes_of(version, tree).map_err(|error| Error::invalid(error.to_string()))?;
        let invalid = |error: &dyn std::fmt::Display| Error::protocol(format!("a manifest: {error}"));
        let shape = Shape::new(&[bytes.len() as u64]).map_err(|error| invalid(&error))?;
        let layout = Layout::contiguous(DType::U8, shape).map_err(|error| invalid(&error))?;
        let metadata = Metadata::new([(SET_METADATA, "1")]).map_err(|error| invalid(&error))?;
        let descriptor = Descriptor { metadata, ..Descriptor::host(layout) };
        self.put(&descriptor, &bytes, &PutOptions { checksum: true, ..PutOptions::new() })
    }
}

// === impl OpenedSet ===

impl OpenedSet {
    /// The part of the set that keys name.
    ///
    /// # Errors
    /// SET_MISMATCH with the first key that must be there and is not.
    pub fn only(self, keys: &Keys) -> Result<Self> {
        let (Keys::These(named) | Keys::IfThere(named)) = keys else { return Ok(self) };
        let Self { version, tree, manifest } = self;
        let some: Vec<&str> = tree.entries.iter().take(8).map(|(key, _)| key.as_str()).collect();
        let what = format!("it begins with {some:?}");
        let (tree, missing) = tree.only(named);
        match missing.first() {
            Some(key) if matches!(keys, Keys::These(_)) => {
                let what = format!("version {version} of the set has no key {key:?}; {what}");
                Err(Failure::new(Reason::SetMismatch, what).with("key", key).into())
            }
            _ => Ok(Self { version, tree, manifest }),
        }
    }
}

/// An opened set with all its tensors.
fn whole<T>(opened: OpenedSet, acquire: impl FnOnce(&[Target]) -> Vec<Result<T>>) -> Result<Set<T>> {
    let OpenedSet { version, tree, manifest } = opened;
    let targets: Vec<Target> = tree.tensors().into_iter().map(|(_, leaf)| leaf.into()).collect();
    let mut tensors = acquire(&targets).into_iter();
    let missing = || Err(Error::protocol("fewer results than tensors"));
    let tree = tree.try_map(&mut |_| tensors.next().unwrap_or_else(missing))?;
    Ok(Set { version, tree, manifest })
}

/// The version that is there instead, where that was the refusal.
fn newer_version(error: &Error) -> Option<u64> {
    match error {
        Error::Refused(failure) if failure.reason == Reason::VersionChanged => {
            failure.detail("latest")?.parse().ok()
        }
        _ => None,
    }
}

fn unreadable(error: &ManifestError) -> Error {
    Failure::new(Reason::NotASet, error.to_string()).into()
}

fn shown(target: &Target) -> String {
    match target {
        Target::Reference(reference) => reference.to_string(),
        Target::Id(id) => format!("the tensor {id}"),
        Target::Name { peer: Some(peer), name } => format!("{peer}/{name}"),
        Target::Name { peer: None, name } => name.clone(),
    }
}
