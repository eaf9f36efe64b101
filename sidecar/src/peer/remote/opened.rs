//! Pulls of theirs from us: those that are open, and when one is not any more. What is closed here ends its lease; who does that
//! is the caller's business.

use tensorlane_proto::Incarnation;

use super::{Carrier, InboundPull, State};

/// Pulls that were over before they were known here that are remembered: each end of a node's socket leaves a few. One that is
/// forgotten too early costs its lease until the connection ends. Each costs 16 bytes.
const DONE_EARLY_MAX: usize = 256;

impl<L: Carrier> State<L> {
    /// Ends an open pull, of this id where one is named. One that is not known was ended before.
    pub(in crate::peer) fn close(
        &mut self,
        life: Incarnation,
        call: u64,
        id: Option<u64>,
    ) -> Option<InboundPull> {
        // Each life counts its calls from the start, and one that is over may still have words on their way.
        if self.incarnation != Some(life) {
            return None;
        }
        self.open.get(&call).filter(|open| id.is_none_or(|id| id == open.id))?;
        self.open.remove(&call)
    }

    /// Ends an open pull of which they say that it is over. One that is not known here may be on its way: it is not opened when it
    /// comes.
    pub(in crate::peer) fn done(
        &mut self,
        life: Incarnation,
        call: u64,
        id: u64,
        link: u64,
    ) -> Option<InboundPull> {
        let open = self.close(life, call, Some(id));
        if open.is_none() {
            if self.done_early.len() >= DONE_EARLY_MAX {
                self.done_early.pop_front();
            }
            self.done_early.push_back((link, call));
        }
        open
    }

    #[cfg(test)]
    pub(in crate::peer) fn is_done_early(&self, call: u64) -> bool {
        self.done_early.iter().any(|(_, done)| *done == call)
    }

    /// Enters a pull, and gives back the one of the same call.
    ///
    /// # Errors
    /// The connection that it came on is not the present one any more. It is asked for again on that one, unless it is of a life
    /// that is over; then nobody would end it.
    pub(in crate::peer) fn open_here(
        &mut self,
        call: u64,
        pull: InboundPull,
    ) -> Result<Option<InboundPull>, ()> {
        if !self.is_present(pull.link) {
            return Err(());
        }
        Ok(self.open.insert(call, pull))
    }

    /// Returns whether it gets this tensor now, and may get it from others.
    pub(in crate::peer) fn pulls(&self, id: u64) -> bool {
        self.open.values().any(|open| open.id == id && open.spreads)
    }

    /// Enters a pull that was asked for at the node's socket, and gives back the one of the same call; false where it is over
    /// already, or its connection is.
    pub(in crate::peer) fn open_at_node(
        &mut self,
        call: u64,
        pull: InboundPull,
    ) -> Result<Option<InboundPull>, ()> {
        if self.done_early.contains(&(pull.link, call)) {
            return Err(());
        }
        self.open_here(call, pull)
    }

    /// Pulls that were last asked for on another connection than this: the word that they are over was lost with that one,
    /// or they would have been asked for again.
    pub(in crate::peer) fn forgotten(&self, link: u64) -> Vec<(u64, InboundPull)> {
        let before = self.open.iter().filter(|(_, open)| open.link != link);
        before.map(|(call, open)| (*call, *open)).collect()
    }

    /// Ends a forgotten pull, unless it was asked for again meanwhile.
    pub(in crate::peer) fn close_forgotten(
        &mut self,
        call: u64,
        forgotten: &InboundPull,
    ) -> Option<InboundPull> {
        self.open.get(&call).filter(|now| now.link == forgotten.link)?;
        self.open.remove(&call)
    }
}
