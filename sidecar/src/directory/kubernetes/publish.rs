//! Says what this peer is, in its object: whenever the two differ, and only then.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;

use super::super::PublishedOffer;
use super::api::{Api, ApiError};
use super::object::SeenPeer;
use super::pace::Timing;
use super::status::{body, due};
use crate::metrics::Metrics;
use crate::metrics::label::Moved;

/// Object of this peer as the watcher sees it; none if it is not there.
pub(super) type Own = Option<Arc<SeenPeer>>;

pub(super) struct Publisher {
    api: Api,
    timing: Timing,
    metrics: Arc<Metrics>,
    own: watch::Receiver<Own>,
    offer: watch::Receiver<Option<Arc<PublishedOffer>>>,
    /// The object after the last write, until the watch has caught up with it.
    written: Own,
    failures: u32,
    told: Option<String>,
}

impl Publisher {
    pub(super) fn new(
        api: Api,
        timing: Timing,
        metrics: Arc<Metrics>,
        own: watch::Receiver<Own>,
        offer: watch::Receiver<Option<Arc<PublishedOffer>>>,
    ) -> Publisher {
        Publisher { api, timing, metrics, own, offer, written: None, failures: 0, told: None }
    }

    /// Until the directory is dropped.
    pub(super) async fn run(mut self) {
        while self.changed().await {
            while let Some(body) = self.next() {
                self.write(&body).await;
            }
        }
    }

    /// Waits until there may be something to say. Whether there may ever be.
    async fn changed(&mut self) -> bool {
        tokio::select! {
            own = self.own.changed() => own.is_ok(),
            offer = self.offer.changed() => offer.is_ok(),
        }
    }

    fn next(&mut self) -> Option<serde_json::Value> {
        let own = self.own.borrow_and_update().clone();
        let offer = self.offer.borrow_and_update().clone()?;
        let now = newer(own, self.written.as_ref())?;
        let status = due(&offer, &now, Timestamp::now())?;
        Some(body(self.api.own(), &status))
    }

    async fn write(&mut self, body: &serde_json::Value) {
        match self.api.write(body).await {
            Ok(seen) => {
                self.failures = 0;
                self.told = None;
                self.metrics.directory.writes.at((Moved::Done,)).inc();
                tracing::info!(
                    peer = self.api.own(),
                    version = seen.metadata.resource_version,
                    "published to this peer's object"
                );
                self.written = Some(Arc::new(seen));
                tokio::time::sleep(self.timing.write_every).await;
            }
            Err(error) => self.failed(&error).await,
        }
    }

    async fn failed(&mut self, error: &ApiError) {
        self.failures = self.failures.saturating_add(1);
        self.metrics.directory.writes.at((Moved::Failed,)).inc();
        let text = error.to_string();
        if self.told.as_ref() != Some(&text) {
            tracing::warn!(
                peer = self.api.own(),
                error = text,
                "this peer's object cannot be written: tried again"
            );
            self.told = Some(text);
        }
        let pause = self.timing.pause(self.failures, error.retry_after(), rand::random());
        // What is to be said, or where, may change meanwhile; how often it is said does not.
        tokio::time::sleep(pause).await;
    }
}

/// The newer view of the object: what the watch shows may be older than the answer to the last write.
fn newer(own: Own, written: Option<&Arc<SeenPeer>>) -> Own {
    let own = own?;
    let Some(written) = written else { return Some(own) };
    let version = |seen: &SeenPeer| seen.metadata.resource_version.parse::<u64>().ok();
    let same = own.metadata.uid == written.metadata.uid;
    match (version(&own), version(written)) {
        (Some(shown), Some(answered)) if same && shown < answered => Some(Arc::clone(written)),
        _ => Some(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::kubernetes::object::SeenMeta;

    fn object(uid: &str, version: &str) -> Arc<SeenPeer> {
        let metadata =
            SeenMeta { uid: uid.to_owned(), resource_version: version.to_owned(), ..SeenMeta::default() };
        Arc::new(SeenPeer { metadata, ..SeenPeer::default() })
    }

    fn chosen(own: Option<(&str, &str)>, written: (&str, &str)) -> Option<String> {
        let own = own.map(|(uid, version)| object(uid, version));
        newer(own, Some(&object(written.0, written.1))).map(|seen| seen.metadata.resource_version.clone())
    }

    #[test]
    fn an_answer_holds_until_the_watch_has_caught_up() {
        assert_eq!(chosen(Some(("u", "9")), ("u", "10")).as_deref(), Some("10"));
        assert_eq!(chosen(Some(("u", "11")), ("u", "10")).as_deref(), Some("11"));
    }

    #[test]
    fn another_object_of_the_name_or_none_is_never_covered_by_an_old_answer() {
        assert_eq!(chosen(Some(("v", "9")), ("u", "10")).as_deref(), Some("9"));
        assert_eq!(chosen(None, ("u", "10")), None);
        assert_eq!(chosen(Some(("u", "opaque")), ("u", "10")).as_deref(), Some("opaque"));
    }
}
