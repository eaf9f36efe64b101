//! Limits to what a ledger may hold. Going over a limit is a [`Refusal`](super::Refusal).

use super::Millis;

/// Limits that bound a ledger. Memory is taken as it is used, not ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Reserved and sealed tensors together. One costs [`tensor_bytes`](Self::tensor_bytes); never more than 2³².
    pub tensors: usize,
    /// Bytes that a tensor counts for: about 150 here, and what whoever keeps the ledger has for it beside.
    pub tensor_bytes: u64,
    /// Bytes of tensors, leases, names and tickets together.
    pub table_bytes: u64,
    /// Sessions and peers that hold something or are away. One costs about 150 bytes.
    pub holders: usize,
    /// Leases and reservations of one holder. The first lease of a tensor costs [`LEASE_BYTES`](super::LEASE_BYTES), a second nothing.
    pub leases_per_holder: u64,
    /// Names of all tensors. One costs its length and [`NAME_BYTES`](super::NAME_BYTES).
    pub names: usize,
    /// Changes of names that are remembered for those who watch names. When full, the oldest is forgotten.
    pub name_changes: usize,
    /// Bytes of these changes: the length of the name and [`CHANGE_BYTES`](super::CHANGE_BYTES) for each.
    pub name_change_bytes: u64,
    /// Tickets that are neither spent nor expired. One costs [`TICKET_BYTES`](super::TICKET_BYTES).
    pub tickets: usize,
    /// Remembered requests. One costs [`RETRY_BYTES`](super::RETRY_BYTES). When full, the oldest is forgotten: a repeat of it is then a
    /// new request. Twice `tensors` means that a put is never forgotten while its tensor lives.
    pub retries: usize,
    /// Time for which a copy without a lease is kept. Longer costs arena, shorter costs transfers.
    pub copy_idle: Millis,
}

impl Default for Limits {
    /// With a million tensors that are leased once, and every name, ticket and retry id in use: about 400 MB. Most pods
    /// stay below a hundredth of it. Idle copies are kept for 30 s.
    fn default() -> Self {
        Self {
            tensors: 1 << 20,
            tensor_bytes: 150,
            table_bytes: u64::MAX,
            holders: 1 << 14,
            leases_per_holder: 1 << 20,
            names: 1 << 18,
            name_changes: 1 << 17,
            name_change_bytes: 16 << 20,
            tickets: 1 << 18,
            retries: 1 << 19,
            copy_idle: Millis(30_000),
        }
    }
}
