//! Sealed sets: one step of the ledger, after which whoever waited for the name or its version is told.

use tensorlane_proto::failure::Failure;
use tensorlane_proto::ledger::{Event, Publication, TensorName, version_name};

use super::Store;
use super::refusals::refused;

impl Store {
    /// The latest version of a sealed set; 0 where there is none.
    pub fn latest_version(&self, name: &TensorName) -> u64 {
        self.state.lock().ledger.versions(name).last().map_or(0, |(version, _)| *version)
    }

    /// Number of versions of a sealed set that have a name.
    pub fn versions(&self, name: &TensorName) -> usize {
        self.state.lock().ledger.versions(name).len()
    }

    /// Makes a set the next version of its name.
    pub fn publish(&self, publication: Publication) -> Result<(), Failure> {
        let name = publication.name.clone();
        let version = publication.version;
        let woken = self.step(|state, now, freed| {
            publication.leaves.iter().try_for_each(|id| state.check_kept_by_others(*id))?;
            state.apply_into(now, Event::Publish(publication), freed).map_err(|refusal| refused(&refusal))?;
            let stamped = version_name(&name, version);
            Ok::<Vec<_>, Failure>(state.named([Some(&name), stamped.as_ref()].into_iter().flatten()))
        })?;
        woken.into_iter().for_each(|wake| wake());
        Ok(())
    }
}
