//! The ledger: which tensors there are, who keeps them, and when each is gone.
//!
//! ```text
//!            Reserve                Seal                  no lease, no name, no ticket
//!  (nothing) -------> Reserved ------------> Owned -----------------------------------> (freed)
//!      |                 |                   ^   |  Lease, Release, Name, Unname,
//!      |                 | Abort,            '---'  IssueTicket, Redeem, ticket expires
//!      |                 | holder gone
//!      |                 '-> (freed)
//!      |  CopyIn                  last lease ends
//!      '---------> Copied, leased ---------------> Copied, idle ----------------------> (freed)
//!                        ^                             |           Evict, or idle for
//!                        '-----------------------------'           `Limits::copy_idle`
//!                                    Lease
//! ```
//!
//! [`Ledger::apply`] is a pure state machine: it has no clock (`now` is an argument), no randomness (ticket ids are
//! arguments), no socket and no memory of tensors. It knows nothing of blocks, mappings and witnesses: a freed tensor is
//! gone for every caller, and when its block may be used again is another's to decide.
//!
//! What always holds:
//! - A refused event changes nothing. (What was due before it is settled all the same.)
//! - What is due is settled before the event, in the order of time and as of the time it was due, so that how often
//!   [`Event::Tick`] comes makes no difference but in when the effects are seen. At one instant tickets end first, then
//!   holders that are away, then idle copies.
//! - Every tensor that came to be is freed at most once, never while leased, named, ticketed or reserved; its id never
//!   comes back.
//! - Everything is bounded by [`Limits`]. No input makes it panic.
//!
//! Who may ask for what, beyond reservations being their holder's, is the caller's to check.

mod claims;
mod deadlines;
mod event;
mod hash;
mod holders;
mod idle;
mod ids;
mod journal;
mod keep;
mod limits;
mod name;
mod publish;
mod refusal;
mod retries;
mod settle;
mod slots;
mod tickets;
mod view;
mod weigh;
mod write;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use foldhash::quality::RandomState;

pub use event::{Answer, Cause, Effect, Event, Keep, NameSpec, Publication, TicketSpec};
pub use hash::{BuildMix, MixHasher};
pub use ids::{Holder, Millis, Origin, PeerSlot, Retry, RetryId, SessionId, TensorId, TicketId};
pub use journal::{CHANGE_BYTES, Changes, NameChange, NoRevision};
pub use limits::Limits;
pub use name::{NameError, TensorName};
pub use publish::version_name;
pub use refusal::Refusal;
pub use retries::{Recalled, RetryKind};
pub use tickets::Ticket;
pub use view::{Entry, State, Totals};
pub use weigh::{LEASE_BYTES, NAME_BYTES, RETRY_BYTES, TICKET_BYTES};

use holders::Holders;
use idle::IdleQueue;
use journal::Journal;
use retries::Retries;
use slots::Slots;
use tickets::Tickets;

/// All tensors of one incarnation of a peer.
pub struct Ledger {
    limits: Limits,
    /// The latest time that was ever given: time does not run backwards.
    now: Millis,
    slots: Slots,
    holders: Holders,
    names: BTreeMap<TensorName, TensorId>,
    journal: Journal,
    tickets: Tickets,
    retries: Retries,
    copies: HashMap<Origin, TensorId, RandomState>,
    idle: IdleQueue,
    /// Counts that cannot be asked of the parts above.
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    reserved: usize,
    leases: u64,
    /// Bytes of all names, as the limit counts them.
    name_bytes: u64,
    bytes_reserved: u64,
    bytes_sealed: u64,
    bytes_idle: u64,
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            now: Millis(0),
            slots: Slots::default(),
            holders: Holders::default(),
            names: BTreeMap::new(),
            journal: Journal::default(),
            tickets: Tickets::default(),
            retries: Retries::default(),
            copies: HashMap::default(),
            idle: IdleQueue::default(),
            counts: Counts::default(),
        }
    }

    /// Settles what is due at `now`, then does what the event asks for, if it can. Effects are added to `effects`, also
    /// when the event is refused.
    ///
    /// # Errors
    /// A [`Refusal`] that says why not; the event has then changed nothing, but that idle copies may have made room in vain.
    pub fn apply(&mut self, now: Millis, event: Event, effects: &mut Vec<Effect>) -> Result<Answer, Refusal> {
        self.settle(now, effects);
        match event {
            Event::Reserve { by, bytes, retry } => self.reserve(by, bytes, retry, effects),
            Event::Seal { by, id, keep, retry } => self.seal(by, id, keep, retry, effects),
            Event::Abort { by, id } => self.abort(by, id, effects),
            Event::CopyIn { origin, bytes, by, mapped } => self.copy_in(origin, bytes, by, mapped, effects),
            Event::Lease { by, id } => self.lease(by, id),
            Event::Release { by, id, count } => self.release(by, id, count, effects),
            Event::Name { id, name } => self.name(id, &name, effects),
            Event::NameTogether { items } => self.name_together(items, effects),
            Event::LeaseNames { by, prefix, most } => self.lease_names(by, &prefix, most),
            Event::Unname { name } => self.unname(name, effects),
            Event::Publish(publication) => self.publish(publication, effects),
            Event::IssueTicket { id, spec } => self.issue_ticket(id, spec),
            Event::Redeem { ticket, by, retry } => self.redeem(ticket, by, retry),
            Event::Evict { bytes } => Ok(self.evict(bytes, effects)),
            Event::EndCopy { id } => {
                self.end_copy(id, effects);
                Ok(Answer::Done)
            }
            Event::HolderGone { holder } => {
                self.end_holder(holder, Cause::HolderGone, effects);
                Ok(Answer::Done)
            }
            Event::HolderAway { holder, until } => {
                self.holders.away(holder, until, &self.limits).map(|()| Answer::Done)
            }
            Event::HolderBack { holder } => {
                self.holders.back(holder);
                Ok(Answer::Done)
            }
            Event::Tick => Ok(Answer::Done),
        }
    }
}
