//! Their pulls from us: which are open, and when one is not any more. What is closed here ends its lease; who does that is the
//! caller's business.

use super::{Carrier, OpenPull, State};

impl<L: Carrier> State<L> {
    /// Ends an open pull, of this id where one is named. One that is not known was ended before.
    pub(in crate::peer) fn close(&mut self, call: u64, id: Option<u64>) -> Option<OpenPull> {
        self.open.get(&call).filter(|open| id.is_none_or(|id| id == open.id))?;
        self.open.remove(&call)
    }

    /// Pulls that were last asked for on another connection than this: the word that they are over was lost with that one,
    /// or they would have been asked for again.
    pub(in crate::peer) fn forgotten(&self, link: u64) -> Vec<(u64, OpenPull)> {
        let before = self.open.iter().filter(|(_, open)| open.link != link);
        before.map(|(call, open)| (*call, *open)).collect()
    }

    /// Ends a forgotten pull, unless it was asked for again meanwhile.
    pub(in crate::peer) fn close_forgotten(&mut self, call: u64, forgotten: &OpenPull) -> Option<OpenPull> {
        self.open.get(&call).filter(|now| now.link == forgotten.link)?;
        self.open.remove(&call)
    }
}
