//! Meaning of a target: a tensor here, a tensor elsewhere, or a name to look up.

use std::str::FromStr;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::{TensorId, TensorName};
use tensorlane_proto::reference::{Reference, SharedParts};

use super::Exchange;

/// A target, proven.
#[derive(Debug, Clone)]
pub(super) enum Meant {
    /// A tensor of this peer's present incarnation; and what is said of it, where a reference says that.
    Here(TensorId, Option<Reference>),
    /// A tensor that another peer owns.
    There(Reference),
    /// A name: of one peer, or of whichever has it.
    Named(Option<PeerName>, TensorName),
}

/// The target that a reference is.
pub(super) fn target_of(reference: &Reference) -> v1::Target {
    v1::Target { kind: Some(v1::target::Kind::Reference(reference.encode())), peer: String::new() }
}

impl Exchange {
    /// Reads a target. A reference of this peer's earlier life is OWNER_LOST at once.
    pub(super) fn meant(&self, target: v1::Target) -> Result<Meant, Failure> {
        self.meant_sharing(target, &mut SharedParts::default())
    }

    /// Reads a target of many: parts that are spelled as those of the one before are shared with it.
    pub(super) fn meant_sharing(
        &self,
        target: v1::Target,
        shared: &mut SharedParts,
    ) -> Result<Meant, Failure> {
        use v1::target::Kind;
        match target.kind {
            None => Err(Failure::new(Reason::InvalidArgument, "a target needs a reference, an id or a name")),
            Some(Kind::Id(id)) => Ok(Meant::Here(TensorId(id), None)),
            Some(Kind::Name(name)) => {
                let name = TensorName::new(&name)
                    .map_err(|e| Failure::new(Reason::InvalidArgument, e.to_string()).with("name", &name))?;
                Ok(Meant::Named(self.named_peer(&target.peer)?, name))
            }
            Some(Kind::Reference(text)) => {
                let reference = Reference::from_bytes_sharing(text.as_bytes(), shared)?;
                self.check_exchange(&reference)?;
                if self.store.is_ours(&reference) {
                    self.check_incarnation(&reference)?;
                    return Ok(Meant::Here(TensorId(reference.id()), Some(reference)));
                }
                Ok(Meant::There(reference))
            }
        }
    }

    /// The peer that a name is asked of; none for all.
    pub(super) fn named_peer(&self, peer: &str) -> Result<Option<PeerName>, Failure> {
        if peer.is_empty() {
            return Ok(None);
        }
        Ok(Some(PeerName::from_str(peer)?))
    }
}
