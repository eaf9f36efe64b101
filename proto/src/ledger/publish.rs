//! Publishing sets: a manifest gets a version of a name, and its leaves live as long as it does.
//!
//! A version is a name: version 7 of `policy` is `policy@7`, and `policy` itself stands for the latest. So versions are
//! listed, found and leased like all that has a name, and nothing else has to be remembered.

use std::ops::Bound;

use super::slots::Life;
use super::weigh::{LEASE_BYTES, name_bytes};
use super::{Answer, Cause, Effect, Holder, Ledger, Publication, Refusal, TensorId, TensorName};

/// Separates a name from the number of its version.
const VERSION_MARK: char = '@';

impl Ledger {
    pub(super) fn publish(
        &mut self,
        publication: Publication,
        effects: &mut Vec<Effect>,
    ) -> Result<Answer, Refusal> {
        let Publication { manifest, leaves, name, version, keep } = publication;
        self.check_manifest(manifest, &leaves)?;
        if is_version_name(&name) {
            return Err(Refusal::NameIsVersion { name });
        }
        let stamped =
            version_name(&name, version).ok_or_else(|| Refusal::NameTooLong { name: name.clone() })?;
        let versions = self.versions(&name);
        let latest = versions.last().map_or(0, |(version, _)| *version);
        if latest.checked_add(1) != Some(version) {
            return Err(Refusal::VersionChanged { name, latest, asked: version });
        }
        self.check_set_name(&name)?;
        self.check_set_name(&stamped)?;
        let limit = self.limits.names;
        if self.names.len().saturating_add(2) > limit {
            return Err(Refusal::TooManyNames { limit });
        }
        let names = name_bytes(&stamped) + name_bytes(&name);
        self.admit_entry(names.saturating_add((leaves.len() as u64).saturating_mul(LEASE_BYTES)))?;

        let by = Holder::Manifest(manifest);
        if !leaves.is_empty() {
            self.holders.make_room(by, leaves.len());
        }
        for &leaf in &leaves {
            self.add_lease(by, leaf);
        }
        if let Some(Life::Owned { manifest, .. }) =
            self.slots.get_mut(manifest).map(|tensor| &mut tensor.life)
        {
            *manifest = true;
        }
        self.add_name(manifest, &stamped, effects);
        self.add_name(manifest, &name, effects);
        for (old, name) in versions {
            if old.saturating_add(u64::from(keep.max(1))) <= version {
                // The name was found above, and nothing took it since.
                let _ = self.unname(name, effects);
            }
        }
        Ok(Answer::Published { version })
    }

    /// Versions of a set that have a name, in the order of their numbers.
    #[must_use]
    pub fn versions(&self, name: &TensorName) -> Vec<(u64, TensorName)> {
        let prefix = format!("{name}{VERSION_MARK}");
        let numbered = |(found, id): (&TensorName, &TensorId)| {
            let version = found.as_str().strip_prefix(&prefix).and_then(version_number)?;
            self.is_manifest(*id).then(|| (version, found.clone()))
        };
        let from = self.names.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        let matching = from.take_while(|(found, _)| found.as_str().starts_with(&prefix));
        let mut versions: Vec<_> = matching.filter_map(numbered).collect();
        versions.sort_unstable();
        versions
    }

    /// Returns whether a tensor is the manifest of a set that was published.
    #[must_use]
    pub fn is_manifest(&self, id: TensorId) -> bool {
        self.slots.get(id).is_some_and(|tensor| matches!(tensor.life, Life::Owned { manifest: true, .. }))
    }

    fn check_manifest(&self, manifest: TensorId, leaves: &[TensorId]) -> Result<(), Refusal> {
        self.check_owned(manifest)?;
        if self.is_manifest(manifest) {
            return Err(Refusal::ManifestPublished { id: manifest });
        }
        for &leaf in leaves {
            self.check_owned(leaf)?;
            // A manifest that held manifests would make the end of one tensor a walk without a bound.
            if leaf == manifest || self.is_manifest(leaf) {
                return Err(Refusal::LeafIsManifest { id: leaf });
            }
        }
        let by = Holder::Manifest(manifest);
        let limit = self.limits.leases_per_holder;
        if leaves.len() as u64 > limit {
            return Err(Refusal::TooManyLeases { by, limit });
        }
        if leaves.is_empty() { Ok(()) } else { self.holders.admit(by, &self.limits) }
    }

    /// A set's name is free, or a set's already: no other tensor loses its name to a set.
    fn check_set_name(&self, name: &TensorName) -> Result<(), Refusal> {
        match self.names.get(name) {
            Some(&by) if !self.is_manifest(by) => Err(Refusal::NameTaken { name: name.clone(), by }),
            _ => Ok(()),
        }
    }

    /// The leaves of a manifest that was freed lose the lease that it had on them.
    pub(super) fn end_manifest(&mut self, id: TensorId, cause: Cause, effects: &mut Vec<Effect>) {
        self.end_holder(Holder::Manifest(id), cause, effects);
    }
}

/// Name of a version, `policy@7`; none if that is too long for a name.
#[must_use]
pub fn version_name(name: &TensorName, version: u64) -> Option<TensorName> {
    TensorName::new(&format!("{name}{VERSION_MARK}{version}")).ok()
}

/// True if a name reads as the version of a set.
fn is_version_name(name: &TensorName) -> bool {
    name.as_str().rsplit_once(VERSION_MARK).is_some_and(|(_, number)| version_number(number).is_some())
}

/// The number in `policy@7`. Leading zeros and signs are no numbers of ours.
fn version_number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain)
}
