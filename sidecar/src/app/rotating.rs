//! The change of the identity key of a running sidecar: does what `identity::rotation` decides.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::error::RunError;
use super::peering::keys;
use crate::config::IdentityConfig;
use crate::directory::{Directory, PublishedOffer};
use crate::exchange::Exchange;
use crate::identity::Keyring;
use crate::identity::rotation::{Periods, Rotation, Seen, Step};
use crate::peer::Peers;

/// Parts that have to know of a change.
pub(super) struct Rotating {
    pub(super) keyring: Keyring,
    pub(super) directory: Arc<dyn Directory>,
    pub(super) published: PublishedOffer,
    pub(super) peers: Arc<Peers>,
    pub(super) exchange: Arc<Exchange>,
}

// === impl Rotating ===

impl Rotating {
    /// Until it is dropped.
    pub(super) async fn run(mut self, config: IdentityConfig) {
        let periods = Periods { every: config.rotate_every, overlap: config.overlap }.spread(rand::random());
        // A clock that was set back makes a key young, never old.
        let age = SystemTime::now().duration_since(self.keyring.made()).unwrap_or_default();
        let announced = self.keyring.next().is_some();
        let mut rotation = Rotation::new(periods, Instant::now(), age, announced);
        let mut table = self.directory.watch();
        loop {
            let step = rotation.step(Instant::now(), self.seen());
            let Step::Wait(until) = step else {
                if let Err(error) = self.perform(step) {
                    tracing::error!(%error, ?step, "the identity key could not be changed: tried again");
                    rotation.failed(Instant::now(), self.keyring.next().is_some());
                }
                continue;
            };
            let elapsed = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = elapsed => {}
                changed = table.changed() => if changed.is_err() { return },
            }
        }
    }

    fn seen(&self) -> Seen {
        let table = Arc::clone(&self.directory.watch().borrow());
        let own = table.peer(&self.published.entry.name);
        let lists = |key| own.is_some_and(|own| own.fingerprints.contains(&key));
        Seen {
            next_listed: self.keyring.next().is_some_and(lists),
            current_listed: lists(self.keyring.current().fingerprint),
            old_connections: self.keyring.previous().map_or(0, |last| self.peers.made_with(&last)),
        }
    }

    fn perform(&mut self, step: Step) -> Result<(), RunError> {
        match step {
            Step::Wait(_) => {}
            Step::Announce => {
                self.keyring.prepare()?;
                self.publish();
                tracing::info!(
                    next = self.keyring.next().map(|key| key.to_string()),
                    "the next identity key is made known"
                );
            }
            Step::Switch => {
                self.keyring.advance()?;
                let current = self.keyring.current();
                self.peers.use_keys(&keys(current)?);
                self.exchange.rekeyed(current.fingerprint);
                tracing::info!(fingerprint = %current.fingerprint, "the identity key was changed");
            }
            Step::Retire => {
                if let Some(last) = self.keyring.previous() {
                    self.peers.end_made_with(&last);
                    tracing::info!(%last, "the last identity key is used no more");
                }
                self.keyring.retire();
                self.publish();
            }
        }
        Ok(())
    }

    fn publish(&mut self) {
        self.published.entry.fingerprints = self.keyring.fingerprints();
        self.directory.publish(self.published.clone());
    }
}
