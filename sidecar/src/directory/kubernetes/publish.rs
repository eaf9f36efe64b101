//! Says what this peer is, in its object: whenever the two differ, and only then.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::PublishedOffer;
use super::api::{Api, ApiError};
use super::object::SeenPeer;
use super::pace::Timing;
use super::status::{body, due};
use crate::metrics::Metrics;
use crate::metrics::label::Moved;

/// Object of this peer as the watcher sees it; none if it is not there.
pub(super) type Own = Option<Shown>;

/// An object that the watcher shows.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) object: Arc<SeenPeer>,
    /// Time at which the list was begun that shows it, or that the watch which shows it goes on from.
    pub(super) since: Instant,
}

/// The object after a write.
struct Written {
    object: Arc<SeenPeer>,
    answered: Instant,
}

pub(super) struct Publisher {
    api: Api,
    timing: Timing,
    metrics: Arc<Metrics>,
    own: watch::Receiver<Own>,
    offer: watch::Receiver<Option<Arc<PublishedOffer>>>,
    /// The last write, until what is shown stands on a list that was made after it.
    written: Option<Written>,
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
        let now = newer(&own?, &mut self.written);
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
                self.written = Some(Written { object: Arc::new(seen), answered: Instant::now() });
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

/// The newer view of the object: what the watch shows may be older than the answer to the last write. A list that was begun after
/// the answer is never older, whatever its version: that of an API server which was restored from a backup is a lower one.
fn newer(shown: &Shown, written: &mut Option<Written>) -> Arc<SeenPeer> {
    written.take_if(|written| shown.since > written.answered);
    let Some(written) = written else { return Arc::clone(&shown.object) };
    let version = |seen: &SeenPeer| seen.metadata.resource_version.parse::<u64>().ok();
    let same = shown.object.metadata.uid == written.object.metadata.uid;
    match (version(&shown.object), version(&written.object)) {
        (Some(shown), Some(answered)) if same && shown < answered => Arc::clone(&written.object),
        _ => Arc::clone(&shown.object),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::directory::kubernetes::object::SeenMeta;

    fn object(uid: &str, version: &str) -> Arc<SeenPeer> {
        let metadata =
            SeenMeta { uid: uid.to_owned(), resource_version: version.to_owned(), ..SeenMeta::default() };
        Arc::new(SeenPeer { metadata, ..SeenPeer::default() })
    }

    fn chosen((uid, version): (&str, &str), is_listed_anew: bool, written: &mut Option<Written>) -> String {
        let start = Instant::now();
        let since =
            if is_listed_anew { start + Duration::from_secs(60) } else { start - Duration::from_secs(60) };
        let shown = Shown { object: object(uid, version), since };
        newer(&shown, written).metadata.resource_version.clone()
    }

    fn written(uid: &str, version: &str) -> Option<Written> {
        Some(Written { object: object(uid, version), answered: Instant::now() })
    }

    #[test]
    fn an_answer_holds_until_the_watch_has_caught_up() {
        assert_eq!(chosen(("u", "9"), false, &mut written("u", "10")), "10");
        assert_eq!(chosen(("u", "11"), false, &mut written("u", "10")), "11");
        assert_eq!(chosen(("u", "9"), false, &mut None), "9");
    }

    #[test]
    fn another_object_of_the_name_is_never_covered_by_an_old_answer() {
        assert_eq!(chosen(("v", "9"), false, &mut written("u", "10")), "9");
        assert_eq!(chosen(("u", "opaque"), false, &mut written("u", "10")), "opaque");
    }

    #[test]
    fn an_answer_from_before_a_list_covers_nothing_any_more() {
        let mut written = written("u", "10");
        assert_eq!(chosen(("u", "5"), true, &mut written), "5", "the API server was restored");
        assert!(written.is_none(), "what changes after that is seen too");
        assert_eq!(chosen(("u", "6"), false, &mut written), "6");
    }
}
