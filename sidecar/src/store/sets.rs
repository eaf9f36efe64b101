//! Sealed sets: one step of the ledger, after which whoever waited for the name is told.

use tensorlane_proto::failure::Failure;
use tensorlane_proto::ledger::{Event, Publication};

use super::Store;
use super::refusals::refused;

impl Store {
    /// Makes a set the next version of its name.
    pub fn publish(&self, publication: Publication) -> Result<(), Failure> {
        let name = publication.name.clone();
        let mut state = self.state.lock();
        let (answer, freed) = state.apply(self.clock.now(), Event::Publish(publication));
        let woken = if answer.is_ok() { state.name_appeared(&name) } else { Vec::new() };
        let wake = state.wants_keeper();
        drop(state);
        self.settle(freed, wake);
        woken.into_iter().for_each(|wake| wake());
        answer.map(|_| ()).map_err(|refusal| refused(&refusal))
    }
}
