//! Room that could be given now, and why free bytes are not for everyone: for reports, never for decisions.

use super::{Owner, PAGE, Purpose, Record, Shelf, Stage, State};
use crate::accounting::Room;

impl State {
    /// Room that a request of this kind could have at this instant.
    pub(in crate::arena) fn room(&self, owner: Owner, purpose: Purpose) -> Room {
        let purpose = if matches!(owner, Owner::Session(_)) { Purpose::Put } else { purpose };
        let shelf = Shelf::of(owner, purpose);
        let idle = |of: &dyn Fn(&Record) -> bool| {
            let records = self.records.values().filter(|record| record.stage == Stage::Live && of(record));
            records.map(|record| record.extents.free()).sum::<u64>()
        };
        // A new segment, if need be in the place of idle ones.
        let any = self.unassigned() + idle(&Record::is_droppable);
        let puts = self.limits.for_puts().saturating_sub(self.assigned_to_puts())
            + idle(&|record| record.is_droppable() && record.purpose == Purpose::Put);
        let fresh = if purpose == Purpose::Put { any.min(puts) } else { any };
        let here = self.records.values().filter(|record| record.serves(shelf));
        let here = here.map(|record| record.extents.largest()).max().unwrap_or(0);
        let empty = |of: &dyn Fn(&Record) -> bool| {
            let records = self.records.values();
            let empty =
                records.filter(|record| record.stage == Stage::Live && record.is_empty() && of(record));
            empty.map(|record| record.bytes).sum::<u64>()
        };
        let of_puts = self.limits.for_puts() + empty(&|record| record.purpose == Purpose::Put);
        let all_back = self.unassigned() + empty(&|_| true);
        let back = match purpose {
            Purpose::Put => all_back.min(of_puts.saturating_sub(self.assigned_to_puts())),
            Purpose::Pull => all_back,
        };
        let elsewhere =
            idle(&|record| record.owner == Owner::Sidecar && !record.serves(shelf) && !record.is_droppable());
        Room {
            usage: self.usage(),
            largest: here.max(fresh / PAGE * PAGE),
            in_reach: here.max(fresh.max(back) / PAGE * PAGE),
            elsewhere,
            for_pulls: any - fresh,
        }
    }
}

impl Record {
    /// Returns whether blocks of a shelf are cut from this segment.
    fn serves(&self, shelf: Shelf) -> bool {
        self.stage == Stage::Live && Shelf::of(self.owner, self.purpose) == shelf
    }
}
