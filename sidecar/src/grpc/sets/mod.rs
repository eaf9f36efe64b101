//! Rows of mutable sets over gRPC: the bytes of a SetRead go out, those of a SetCommit come in.
//!
//! - [`read`]: rows that this sidecar has packed or brought, as chunks.
//! - [`commit`]: chunks that become tensors of this sidecar, and one commit when all have come.

mod commit;
mod read;

use std::time::Instant;

pub(super) use self::commit::commit;
pub(super) use self::read::{RowChunks, read};

/// Milliseconds to a deadline, for a further step of the same call: 1 at least, since 0 means the sidecar's default.
fn left_ms(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1)
}
