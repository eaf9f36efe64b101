//! Fingerprint of what a request with a retry id asked for, in one number: a repeat asks for the same thing.
//!
//! The number never leaves the process. It is not keyed: whoever finds two requests of one number fools nobody but
//! itself, since it chose the retry id as well.

use std::hash::{DefaultHasher, Hash, Hasher};

use tensorlane_proto::descriptor::Descriptor;
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Retry, RetryId};

/// Room for a tensor.
pub(super) fn reserving(id: RetryId, descriptor: &Descriptor) -> Retry {
    Retry { id, asked: digest(descriptor) }
}

/// A tensor that is stored, by a Put or by a Seal: a large put that is made anew comes with another reservation, so what
/// that one means is compared and not its number.
pub(super) fn storing(
    id: RetryId,
    descriptor: Option<&Descriptor>,
    keep: Option<&v1::Keep>,
    crc32c: Option<u32>,
) -> Retry {
    let default = v1::Keep::default();
    Retry { id, asked: digest((descriptor, keep.unwrap_or(&default), crc32c)) }
}

/// A ticket that is redeemed.
pub(super) fn redeeming(id: RetryId, ticket: &str) -> Retry {
    Retry { id, asked: digest(ticket) }
}

fn digest(asked: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    asked.hash(&mut hasher);
    hasher.finish()
}
