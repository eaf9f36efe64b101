//! Knowledge of tensors: of one moment, and by names that may be replaced at any other.
//!
//! A name and the tensor it stands for are looked at under one lock. Whoever asked for the tensor in a second step would miss
//! it where the name was replaced between the two, though the name stood all the time.

use std::sync::Arc;

use tensorlane_proto::failure::Failure;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, Refusal, TensorId, TensorName};

use super::refusals::refused;
use super::{State, Store, Tensor};

/// Names that a description has at most. A tensor may have thousands, and a list of them would repeat all with each.
const DESCRIBED_NAMES_MAX: usize = 16;

/// A tensor of this peer, as it is asked for.
#[derive(Debug, Clone, Copy)]
pub enum Own<'a> {
    /// By its id.
    Id(TensorId),
    /// By a name: the tensor that it stands for in the moment of the deed.
    Named(&'a TensorName),
}

/// Knowledge of a sealed tensor at one moment.
pub struct Known {
    tensor: Arc<Tensor>,
    names: Vec<TensorName>,
    leases: u64,
    tickets: u64,
}

// === impl Known ===

impl From<Known> for v1::Description {
    fn from(known: Known) -> Self {
        let Known { tensor, names, leases, tickets } = known;
        Self {
            reference: tensor.reference.encode(),
            descriptor: Some((&tensor.descriptor).into()),
            sealed: true,
            names: names.iter().map(ToString::to_string).collect(),
            leases,
            tickets: u32::try_from(tickets).unwrap_or(u32::MAX),
            crc32c: tensor.crc32c,
            here: true,
        }
    }
}

// === impl Store ===

impl Store {
    /// Description of a sealed tensor that is here, for `asker`.
    pub fn description(&self, asker: Option<Holder>, own: Own<'_>) -> Result<v1::Description, Failure> {
        let known = self.state.lock().known(asker, own)?;
        Ok(known.into())
    }

    /// Descriptions of many tensors at one moment; one result for each, in order.
    pub fn descriptions<'a>(
        &self,
        asker: Option<Holder>,
        all: impl Iterator<Item = Own<'a>>,
    ) -> Vec<Result<v1::Description, Failure>> {
        let known: Vec<_> = {
            let state = self.state.lock();
            all.map(|own| state.known(asker, own)).collect()
        };
        known.into_iter().map(|known| known.map(v1::Description::from)).collect()
    }

    /// Names in order, after `after`, that begin with `prefix`, with their tensors, at one moment; at most `limit`.
    pub fn list(&self, prefix: &str, after: Option<&TensorName>, limit: usize) -> Vec<(TensorName, Known)> {
        let state = self.state.lock();
        let names = state.ledger.list(prefix, after, limit);
        let known = |(name, id)| Some((name, state.known(None, Own::Id(id)).ok()?));
        names.into_iter().filter_map(known).collect()
    }
}

// === impl State ===

impl State {
    /// The id of a tensor. Holds for as long as the lock.
    pub(super) fn id_of(&self, own: Own<'_>) -> Result<TensorId, Failure> {
        match own {
            Own::Id(id) => Ok(id),
            Own::Named(name) => self
                .ledger
                .find(name.as_str())
                .ok_or_else(|| refused(&Refusal::NameUnknown { name: name.clone() })),
        }
    }

    fn known(&self, asker: Option<Holder>, own: Own<'_>) -> Result<Known, Failure> {
        let id = self.id_of(own)?;
        let tensor = self.sealed(asker, id)?;
        let entry = self.ledger.entry(id).ok_or_else(|| refused(&Refusal::NotFound { id }))?;
        let names = entry.names().take(DESCRIBED_NAMES_MAX).cloned().collect();
        Ok(Known { tensor, names, leases: entry.leases, tickets: entry.tickets })
    }
}
