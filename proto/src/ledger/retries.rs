//! Requests that were answered, so that a repeat gets the first answer and changes nothing.
//!
//! A bounded table: when it is full the oldest goes. An entry also goes with its tensor, which keeps a list of its own
//! entries in the order of time; so the oldest of all is always the first of its tensor's.

use std::collections::{BTreeMap, HashMap};

use super::{Holder, RetryId, TensorId, TicketId};

/// A request that is remembered, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recalled {
    /// Kind of the request.
    pub kind: RetryKind,
    /// [`Retry::asked`](super::Retry::asked) of it.
    pub asked: u64,
    /// In whose name.
    pub by: Option<Holder>,
    /// The tensor that it was answered with; it lives.
    pub id: TensorId,
}

/// Kind of request that a retry id was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryKind {
    /// [`Event::Reserve`](super::Event::Reserve).
    Reserve {
        /// Bytes asked for.
        bytes: u64,
    },
    /// [`Event::Seal`](super::Event::Seal).
    Seal {
        /// The ticket that was made.
        ticket: Option<TicketId>,
    },
    /// [`Event::Redeem`](super::Event::Redeem).
    Redeem {
        /// The ticket that was redeemed.
        ticket: TicketId,
    },
}

impl RetryKind {
    /// The kind alone, in a word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserve { .. } => "reserve",
            Self::Seal { .. } => "seal",
            Self::Redeem { .. } => "redeem",
        }
    }
}

/// All remembered requests. Clients choose the keys, hence the standard library's keyed hash.
#[derive(Default)]
pub(super) struct Retries {
    known: HashMap<RetryId, (u64, Recalled)>,
    by_age: BTreeMap<u64, RetryId>,
    next_age: u64,
}

impl Retries {
    pub(super) fn recall(&self, retry: &RetryId) -> Option<&Recalled> {
        self.known.get(retry).map(|(_, recalled)| recalled)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn remember(&mut self, retry: RetryId, recalled: Recalled) {
        self.forget(&retry);
        self.known.insert(retry, (self.next_age, recalled));
        self.by_age.insert(self.next_age, retry);
        self.next_age += 1;
    }

    pub(super) fn forget(&mut self, retry: &RetryId) {
        if let Some((age, _)) = self.known.remove(retry) {
            self.by_age.remove(&age);
        }
    }

    /// Takes the oldest out; the tensor it belongs to.
    pub(super) fn forget_oldest(&mut self) -> Option<TensorId> {
        let (_, retry) = self.by_age.pop_first()?;
        self.known.remove(&retry).map(|(_, recalled)| recalled.id)
    }
}
