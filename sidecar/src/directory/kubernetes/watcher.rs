//! Lists the peers of the exchange, then follows what changes.
//!
//! A list is collected whole before it replaces what is known, and a watch begins where the list (or the last watch)
//! ended, so there is no hole in between. What ends a watch decides what follows: the server's own time limit and a lost
//! connection are followed by another watch; a compacted history (410), a refusal, silence, versions that go back or several
//! failures by a list. The first list and those after a 410 or an outage come from the API server's cache, because many
//! sidecars make them at once; every other one, above all that for an unknown key, is of what is stored. First lists are
//! spread, too. An API server that was restored from a backup knows nothing of later versions: a watch from one is silent,
//! and its cache refuses a list as new as one.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::api::WatchEvent;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::StreamExt;

use super::super::PeerTable;
use super::api::{Api, ApiError, ListSource};
use super::listing::{Conflicts, Listing, Made, conflicts};
use super::object::SeenPeer;
use super::pace::Timing;
use super::publish::{Own, Shown};
use crate::metrics::Metrics;
use crate::metrics::label::{Label, LeftOut};

/// Conflicts over keys that are told one by one; the metric has the number of all.
const CONFLICTS_TOLD: usize = 8;
/// A watch that ends before this, with nothing said, has failed.
const WATCH_MIN: Duration = Duration::from_secs(1);

/// So many watches that fail in a row are followed by a list: the server may know nothing of our version any more.
const WATCH_FAILURES_MAX: u32 = 5;

pub(super) struct Watcher {
    api: Api,
    timing: Timing,
    metrics: Arc<Metrics>,
    table: watch::Sender<Arc<PeerTable>>,
    own: watch::Sender<Own>,
    /// Somebody wants the table to be read again.
    refresh: Arc<Notify>,
    listing: Listing,
    /// Version that the listing is as new as.
    version: String,
    /// The next list may be as old as that version.
    may_be_cached: bool,
    listed: Option<Instant>,
    /// Time at which the last whole list was begun: what is shown is never older.
    since: Instant,
    failures: u32,
    /// Outage that goes on.
    outage: Arc<Mutex<Option<Outage>>>,
}

/// Step that comes after a watch.
enum After {
    /// Another one.
    Watch,
    /// A list.
    List,
}

/// Times at which the watch is to be left, or the table to be made, by itself.
#[derive(Default)]
struct Due {
    /// A refresh: a list, if the watch has brought nothing until then.
    list: Option<Instant>,
    /// Changes have come.
    table: Option<Instant>,
}

/// Time for which the API server has listed no peers.
pub(super) struct Outage {
    since: Instant,
    /// Last failure.
    error: String,
}

impl Outage {
    /// Notes one more failure. Whether it is another one than before.
    fn goes_on(outage: &mut Option<Outage>, error: &str) -> bool {
        let is_news = outage.as_ref().is_none_or(|outage| outage.error != error);
        let since = outage.as_ref().map_or_else(Instant::now, |outage| outage.since);
        *outage = Some(Outage { since, error: error.to_owned() });
        is_news
    }

    /// Text for people, where it has lasted for so long.
    pub(super) fn told(&self, least: Duration) -> Option<String> {
        let lasted = self.since.elapsed();
        let told = || {
            let (lasted, error) = (crate::clock::told(Duration::from_secs(lasted.as_secs())), &self.error);
            format!("the API server has not listed peers for {lasted}, and what was known stays: {error}")
        };
        (lasted >= least).then(told)
    }
}

impl Watcher {
    pub(super) fn new(
        api: Api,
        timing: Timing,
        metrics: Arc<Metrics>,
        table: watch::Sender<Arc<PeerTable>>,
        own: watch::Sender<Own>,
        refresh: Arc<Notify>,
        outage: Arc<Mutex<Option<Outage>>>,
    ) -> Watcher {
        let listing = Listing::default();
        Watcher {
            api,
            timing,
            metrics,
            table,
            own,
            refresh,
            listing,
            version: String::new(),
            may_be_cached: true,
            listed: None,
            since: Instant::now(),
            failures: 0,
            outage,
        }
    }

    /// Until the directory is dropped.
    pub(super) async fn run(mut self) {
        tokio::select! {
            () = tokio::time::sleep(self.timing.spread.mul_f64(rand::random())) => {}
            // Somebody waits for a key that is not known, and the cache may not have it yet.
            () = self.refresh.notified() => self.may_be_cached = false,
        }
        loop {
            let may_be_cached = self.may_be_cached;
            match self.list().await {
                Ok(()) => self.follow().await,
                Err(error) => {
                    // All sidecars meet an outage and its end together.
                    self.may_be_cached = may_be_cached && error.is_outage();
                    self.failed("list", &error).await;
                }
            }
        }
    }

    /// Replaces all that is known, once all of it is there.
    async fn list(&mut self) -> Result<(), ApiError> {
        let (mut listing, mut own, mut next) = (Listing::default(), None, None);
        // Where the cache fails, the next list is of what is stored.
        let is_cached = std::mem::take(&mut self.may_be_cached);
        // What is cached may be older than an answer to a write of ours.
        let since = if is_cached { self.since } else { Instant::now() };
        let version = self.version.clone();
        let source = if is_cached { ListSource::Cache(&version) } else { ListSource::Stored };
        loop {
            let page = self.api.list(source, next.take()).await?;
            for seen in page.items {
                listing.set(&seen);
                if seen.metadata.name == self.api.own() {
                    own = Some(Shown { object: Arc::new(seen), since });
                }
            }
            self.version = page.metadata.resource_version.unwrap_or_default();
            next = page.metadata.continue_.filter(|token| !token.is_empty());
            if next.is_none() {
                break;
            }
        }
        self.listing = listing;
        (self.listed, self.since) = (Some(Instant::now()), since);
        self.succeeded();
        if own.is_none() && (self.own.borrow().is_some() || self.table.borrow().is_empty()) {
            tracing::info!(
                peer = self.api.own(),
                of = self.api.what(),
                "this peer's object is not there: others refuse it until the operator has made it"
            );
        }
        self.own.send_replace(own);
        let before = self.table.borrow().len();
        if self.show() {
            let peers = self.table.borrow().len();
            tracing::info!(peers, before, "peer table read");
            if peers == 0 {
                tracing::warn!(
                    before,
                    "the API server lists no peer: nobody new is taken, connections that are up stay"
                );
            }
        } else {
            // Whoever waits for a refresh is told that there is nothing new.
            self.table.send_modify(|_| {});
        }
        Ok(())
    }

    /// Watches until a list is due.
    async fn follow(&mut self) {
        let mut failures = 0;
        loop {
            let since = Instant::now();
            match self.watch().await {
                Ok(After::List) => return,
                Ok(After::Watch) => failures = 0,
                Err(error) => {
                    failures = if since.elapsed() > self.timing.backoff.longest { 1 } else { failures + 1 };
                    self.failed("watch", &error).await;
                    // 410: our version is compacted away. Another refusal will not go away by asking the same again. Silence: our
                    // version may be one that the server has yet to come to.
                    let refused = error.code().is_some_and(|code| (400..500).contains(&code) && code != 429);
                    let silent = matches!(error, ApiError::Silent(_));
                    // All sidecars meet these at once where an API server was away or has started anew.
                    self.may_be_cached = error.code() == Some(410) || error.is_outage();
                    if refused || silent || failures >= WATCH_FAILURES_MAX {
                        return;
                    }
                }
            }
        }
    }

    /// Runs one watch.
    async fn watch(&mut self) -> Result<After, ApiError> {
        let seconds = self.timing.watch_seconds(rand::random());
        let mut events = pin!(self.api.watch(&self.version, seconds).await?);
        let began = Instant::now();
        let mut due = Due::default();
        let mut heard = false;
        let ended = loop {
            tokio::select! {
                event = timeout(self.timing.silence, events.next()) => match event {
                    Ok(Some(Ok(WatchEvent::Error(status)))) => break Err(kube::Error::Api(status).into()),
                    Ok(Some(Ok(event))) => {
                        heard = true;
                        self.succeeded();
                        if is_before(version(&event), &self.version) {
                            tracing::warn!(
                                of = self.api.what(),
                                known = self.version,
                                "the API server's versions went back, as after a restore from a backup: peers are listed anew"
                            );
                            break Ok(After::List);
                        }
                        if self.take(event) {
                            due.table.get_or_insert_with(|| Instant::now() + self.timing.gather);
                        }
                    }
                    Ok(Some(Err(error))) => break Err(error.into()),
                    Ok(None) if heard || began.elapsed() > WATCH_MIN => break Ok(After::Watch),
                    Ok(None) => break Err(ApiError::Watch("ended before anything came")),
                    Err(_) => break Err(ApiError::Silent(self.timing.silence)),
                },
                () = self.refresh.notified(), if due.list.is_none() => due.list = Some(self.refresh_at()),
                () = at(due.list) => break Ok(After::List),
                () = at(due.table) => {
                    due.table = None;
                    if self.show() {
                        // Whoever wants a refresh has it.
                        due.list = None;
                    }
                }
            }
        };
        if due.table.is_some() {
            self.show();
        }
        ended
    }

    /// Time at which a refresh that is asked for now becomes a list.
    fn refresh_at(&self) -> Instant {
        let lag = Instant::now() + self.timing.refresh_lag;
        self.listed.map_or(lag, |listed| lag.max(listed + self.timing.refresh_every))
    }

    /// Takes in what changed. Whether the table may be another one.
    fn take(&mut self, event: WatchEvent<SeenPeer>) -> bool {
        match event {
            WatchEvent::Added(seen) | WatchEvent::Modified(seen) => {
                self.version.clone_from(&seen.metadata.resource_version);
                let changed = self.listing.set(&seen);
                if seen.metadata.name == self.api.own() {
                    let since = self.since;
                    self.own.send_replace(Some(Shown { object: Arc::new(seen), since }));
                }
                changed
            }
            WatchEvent::Deleted(seen) => {
                self.version.clone_from(&seen.metadata.resource_version);
                if seen.metadata.name == self.api.own() {
                    self.own.send_replace(None);
                }
                self.listing.remove(&seen.metadata.name)
            }
            WatchEvent::Bookmark(mark) => {
                self.version = mark.metadata.resource_version;
                false
            }
            WatchEvent::Error(_) => false,
        }
    }

    /// Makes the table of what is listed. Whether it is another one.
    fn show(&self) -> bool {
        let before = Arc::clone(&self.table.borrow());
        let Made { table, left_out, foreign } = self.listing.table(&before);
        let metrics = &self.metrics.directory;
        metrics.peers.set(i64::try_from(table.len()).unwrap_or(i64::MAX));
        LeftOut::ALL.iter().for_each(|why| metrics.left_out.at((*why,)).set(left_out[why.index()]));
        metrics.foreign_addresses.set(i64::try_from(foreign).unwrap_or(i64::MAX));
        let contested = conflicts(&table);
        metrics.contested.set(i64::try_from(contested.len()).unwrap_or(i64::MAX));
        if contested != conflicts(&before) {
            tell_conflicts(&contested);
        }
        let changed = table != *before;
        if changed {
            tracing::debug!(peers = table.len(), before = before.len(), "peer table changed");
            self.table.send_replace(Arc::new(table));
        }
        changed
    }

    fn succeeded(&mut self) {
        self.failures = 0;
        self.metrics.directory.confirmed();
        if self.outage.lock().take().is_some() {
            tracing::info!(of = self.api.what(), "the API server lists peers again");
        }
    }

    /// Counts, tells what is news, and waits. Whoever asks for a refresh meanwhile learns that there is none to be had.
    async fn failed(&mut self, action: &str, error: &ApiError) {
        self.failures = self.failures.saturating_add(1);
        self.metrics.directory.failed_reads.inc();
        let text = error.to_string();
        if Outage::goes_on(&mut self.outage.lock(), &text) {
            let peers = self.table.borrow().len();
            tracing::warn!(
                action,
                of = self.api.what(),
                error = text,
                peers,
                "the API server does not list peers: the last good table stays"
            );
        }
        let until = Instant::now() + self.timing.pause(self.failures, error.retry_after(), rand::random());
        loop {
            tokio::select! {
                () = sleep_until(until) => return,
                () = self.refresh.notified() => self.table.send_modify(|_| {}),
            }
        }
    }
}

/// Says who claims whose key; that nobody does any more, too.
fn tell_conflicts(conflicts: &Conflicts) {
    for (key, peers) in conflicts.iter().take(CONFLICTS_TOLD) {
        let peers: Vec<_> = peers.iter().map(tensorlane_proto::PeerName::as_str).collect();
        tracing::warn!(%key, peers = peers.join(", "), "several peers claim one key: it is the one's who proves it");
    }
    if conflicts.is_empty() {
        tracing::info!("no key is claimed by several peers any more");
    }
}

/// Version that an event is as new as.
fn version(event: &WatchEvent<SeenPeer>) -> &str {
    match event {
        WatchEvent::Added(seen) | WatchEvent::Modified(seen) | WatchEvent::Deleted(seen) => {
            &seen.metadata.resource_version
        }
        WatchEvent::Bookmark(mark) => &mark.metadata.resource_version,
        WatchEvent::Error(_) => "",
    }
}

/// Returns whether a version is of an earlier time than another: both are numbers where they are Kubernetes' own.
fn is_before(version: &str, other: &str) -> bool {
    matches!((version.parse::<u64>(), other.parse::<u64>()), (Ok(version), Ok(other)) if version < other)
}

/// Never, where there is no time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
