//! The account of the arena, in bytes: what there is, and what is lacking when a request finds no room.

/// Places of the bytes of an arena at one instant. `total = free + reserved + sealed + held + retired`, always.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// The arena.
    pub total: u64,
    /// Not given to anyone, or idle in the sidecar's own segments.
    pub free: u64,
    /// Blocks being written, and room booked for segments being made.
    pub reserved: u64,
    /// Blocks of sealed tensors.
    pub sealed: u64,
    /// Idle in sessions' segments: theirs to use again; a segment that is idle altogether can be reclaimed.
    pub held: u64,
    /// Of no use until someone lets go: freed blocks and destroyed segments that a process may still map, and what
    /// a dead incarnation left ([`Usage::inherited`]).
    pub retired: u64,
    /// The part of `retired` that is charged by segments of dead incarnations.
    pub inherited: u64,
    /// Bytes whose pages exist; may exceed `total` only while `inherited` does.
    pub populated: u64,
    /// The part of `free` that is populated and waits in the pool for its owner.
    pub ready: u64,
    /// Segments that had to be populated while a caller waited, since the start.
    pub cold_populates: u64,
    /// Attempts to populate that failed, since the start.
    pub populate_failures: u64,
}

impl Usage {
    /// Returns whether the five states make up the whole.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.free + self.reserved + self.sealed + self.held + self.retired == self.total
    }
}

/// Room for one kind of request at one instant, and why not all that is free is for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// The whole account, at the same instant.
    pub usage: Usage,
    /// The largest block to be had without anything being freed or taken back: in a segment that is there, or in a new
    /// one. Bytes lost to its alignment, less than a page, are not taken off.
    pub largest: u64,
    /// The largest block once idle segments have come back that sessions map: a request that waits takes them back.
    pub in_reach: u64,
    /// The part of `free` that lies in segments which serve other kinds of requests: free ends of those that ended
    /// sessions left serve what the sidecar itself writes, and never another session.
    pub elsewhere: u64,
    /// The part of `free` that a new segment could take for a pull, and not for this.
    pub for_pulls: u64,
}

/// Bytes that were asked for, and where everything is instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes asked for.
    pub asked: u64,
    /// As in [`Usage`]; may exceed `asked` where it is scattered, or kept for pulls.
    pub free: u64,
    /// As in [`Usage`].
    pub held: u64,
    /// As in [`Usage`].
    pub retired: u64,
    /// As in [`Usage`].
    pub reserved: u64,
    /// As in [`Usage`].
    pub sealed: u64,
}

impl Shortage {
    pub(crate) fn of(asked: u64, usage: &Usage) -> Self {
        Self {
            asked,
            free: usage.free,
            held: usage.held,
            retired: usage.retired,
            reserved: usage.reserved,
            sealed: usage.sealed,
        }
    }
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { asked, free, held, retired, reserved, sealed } = self;
        write!(
            f,
            "{asked} bytes asked; {free} free, {reserved} reserved, {sealed} sealed, {held} held, {retired} retired"
        )
    }
}
