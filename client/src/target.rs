//! Targets of calls: the tensor that is meant, and the part of it.

use std::time::Duration;

use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::Require;
use tensorlane_proto::{PeerName, Reference, Selection};

use crate::connection::Sidecar;
use crate::error::Error;
use crate::tensor::Tensor;

/// A tensor, by reference, by id or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A tensor anywhere in the exchange.
    Reference(Reference),
    /// A tensor of this peer in its present incarnation.
    Id(u64),
    /// Tensor that a name stands for.
    Name {
        /// The peer that the name belongs to; none asks this peer and then all connected ones.
        peer: Option<PeerName>,
        /// The name.
        name: String,
    },
}

impl Target {
    /// Target that a name stands for, at this peer or any connected one.
    pub fn name(name: impl Into<String>) -> Self {
        Self::Name { peer: None, name: name.into() }
    }

    /// Target that a name of that peer stands for.
    pub fn name_at(peer: PeerName, name: impl Into<String>) -> Self {
        Self::Name { peer: Some(peer), name: name.into() }
    }

    /// The message. A reference to a tensor of this very sidecar goes as its id, which is smaller and faster, and says nothing of what
    /// the tensor is.
    pub(crate) fn to_message(&self, sidecar: &Sidecar) -> v1::Target {
        match self {
            Self::Reference(reference) if is_here(reference, sidecar) => Self::Id(reference.id()).in_full(),
            _ => self.in_full(),
        }
    }

    /// The message with all that is said of the tensor.
    pub(crate) fn in_full(&self) -> v1::Target {
        use v1::target::Kind;
        let (kind, peer) = match self {
            Self::Id(id) => (Kind::Id(*id), None),
            Self::Reference(reference) => (Kind::Reference(reference.encode()), None),
            Self::Name { peer, name } => (Kind::Name(name.clone()), peer.as_ref()),
        };
        v1::Target { kind: Some(kind), peer: peer.map(PeerName::to_string).unwrap_or_default() }
    }
}

/// Error if what the sidecar gave for a target that was wanted whole is not what is meant. Of what went as an id it
/// could not see whether the tensor is what the reference says: that is seen here. (A copy of another peer's tensor may
/// lie in another way than the reference says.)
pub(crate) fn not_as_said(target: &Target, sidecar: &Sidecar, tensor: &Tensor) -> Option<Error> {
    let Target::Reference(reference) = target else { return None };
    let layout = &tensor.descriptor().layout;
    let is_other = is_here(reference, sidecar) && !reference.describes(layout);
    is_other.then(|| reference.mismatch(layout).into())
}

fn is_here(reference: &Reference, sidecar: &Sidecar) -> bool {
    reference.incarnation() == sidecar.incarnation
        && *reference.peer() == sidecar.peer
        && *reference.exchange() == sidecar.exchange
}

impl From<&Reference> for Target {
    fn from(reference: &Reference) -> Self {
        Self::Reference(reference.clone())
    }
}

impl From<Reference> for Target {
    fn from(reference: Reference) -> Self {
        Self::Reference(reference)
    }
}

impl From<&str> for Target {
    fn from(name: &str) -> Self {
        Self::name(name)
    }
}

impl From<String> for Target {
    fn from(name: String) -> Self {
        Self::name(name)
    }
}

impl From<&Self> for Target {
    fn from(target: &Self) -> Self {
        target.clone()
    }
}

/// Options: what is wanted of a tensor, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcquireOptions {
    /// Part that is wanted; all of the tensor by default.
    pub selection: Selection,
    /// Requirements of the route; if it cannot be had, nothing is moved and the call fails with the reasons.
    pub require: Require,
    /// Deadline after which to give up; the client's deadline by default.
    pub deadline: Option<Duration>,
    /// Time to wait for names that do not exist yet; at most the deadline. Not at all by default.
    pub wait: Duration,
}

impl AcquireOptions {
    /// All of the tensor, by any route.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only this part.
    #[must_use]
    pub fn selection(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    /// Only by such a route.
    #[must_use]
    pub fn require(mut self, require: Require) -> Self {
        self.require = require;
        self
    }

    /// Give up after that long.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Wait that long for names that do not exist yet.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::{DType, Incarnation, Layout, Shape};

    use super::*;

    fn sidecar() -> Sidecar {
        Sidecar {
            exchange: "ml".parse().unwrap(),
            peer: "trainer-0".parse().unwrap(),
            incarnation: Incarnation(7),
            session: 1,
            version: 1,
            inline_bytes_max: 65_536,
        }
    }

    fn reference(peer: &str, incarnation: u128) -> Reference {
        let layout = Layout::contiguous(DType::F32, Shape::new(&[2]).unwrap()).unwrap();
        Reference::new("ml".parse().unwrap(), peer.parse().unwrap(), Incarnation(incarnation), 42, &layout)
    }

    #[test]
    fn only_a_reference_to_this_incarnation_of_this_peer_goes_as_an_id() {
        use v1::target::Kind;
        let kind = |reference: Reference| Target::from(reference).to_message(&sidecar()).kind.unwrap();
        assert_eq!(kind(reference("trainer-0", 7)), Kind::Id(42));
        for other in [reference("trainer-0", 8), reference("trainer-1", 7)] {
            assert_eq!(kind(other.clone()), Kind::Reference(other.encode()));
        }
        let here = reference("trainer-0", 7);
        assert_eq!(
            Target::from(&here).in_full().kind,
            Some(Kind::Reference(here.encode())),
            "where all is said"
        );
    }
}
