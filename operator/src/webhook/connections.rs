//! Connections: who is connected, and who has to go when there is no room. Plain data behind a lock: no socket, and
//! whoever asks says what time it is.
//!
//! ```text
//!   admit ──> fresh ──a call has come whole──> busy ──answered──> idle
//!               │                                │                 │
//!               '── for some seconds, then idle  │                 '── longest of all, or of its
//!                     before all that have called │                     source: told to close
//!                                                '── is never closed for another
//! ```
//!
//! A caller that has sent half a call, or nothing at all, is idle once it has had the time to call: it costs a caller
//! nothing to stay so. Before that it is most likely an API server that is about to call, and a burst of its calls must not
//! push each other out: who comes then waits for a place. Where nobody but fresh ones is there, the source that has most of
//! them makes room for another source. Only calls with the secret part of the path count as calls: a connection that
//! has had none goes before one that has.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

/// All connections of a server.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    of_one_source: usize,
    fresh: Duration,
    open: Mutex<Open>,
    /// Told whenever somebody may have become one that can go.
    changed: Notify,
    /// Callers that wait for a place.
    waiting: Semaphore,
}

#[derive(Debug, Default)]
struct Open {
    /// Counts what happens, so that it is known what happened before.
    events: u64,
    all: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    source: IpAddr,
    calls: usize,
    idle_since: u64,
    /// Until then it is about to call; none once it has called.
    fresh_until: Option<Instant>,
    close: CancellationToken,
}

/// A connection's place among them, which it gives back in the end.
#[derive(Debug)]
pub(super) struct Place {
    activity: Activity,
    /// Somebody else needs the place.
    pub(super) close: CancellationToken,
}

/// Activity of a connection.
#[derive(Clone, Debug)]
pub(super) struct Activity {
    connections: Arc<Connections>,
    id: u64,
}

/// A call that is being answered. Its connection is not closed for another.
#[derive(Debug)]
pub(super) struct Call(Activity);

impl Connections {
    /// At most so many, and so many of one source; each is fresh for so long, or until it calls.
    pub(super) fn new(most: usize, of_one_source: usize, fresh: Duration) -> Arc<Connections> {
        let (open, changed, waiting) = (Mutex::default(), Notify::new(), Semaphore::new(most));
        Arc::new(Connections { most, of_one_source, fresh, open, changed, waiting })
    }

    /// A place for a connection of this source, as soon as there is one; none where as many wait already.
    pub(super) async fn enter(self: &Arc<Connections>, source: IpAddr) -> Option<Place> {
        if let Some(place) = self.admit(source, Instant::now()) {
            return Some(place);
        }
        let _waits = self.waiting.try_acquire().ok()?;
        loop {
            // From before the look, so that nothing is missed between.
            let changed = self.changed.notified();
            if let Some(place) = self.admit(source, Instant::now()) {
                return Some(place);
            }
            // Nobody tells when a connection is fresh no longer.
            let _ = tokio::time::timeout(LOOK_EVERY, changed).await;
        }
    }

    /// A place for a connection of this source. Where there is none, the one that has been idle longest has to go: of this
    /// source where it has all that it may have, else of all. None where nobody can.
    fn admit(self: &Arc<Connections>, source: IpAddr, now: Instant) -> Option<Place> {
        let source = source.to_canonical();
        let mut open = self.lock();
        let of_source = open.all.values().filter(|one| one.source == source).count();
        let crowded = of_source >= self.of_one_source;
        if crowded || open.all.len() >= self.most {
            let goes = open.idle_longest(now, |one| !crowded || one.source == source);
            let goes = if crowded { goes } else { goes.or_else(|| open.fresh_of_the_most_crowded(source)) };
            if let Some(gone) = open.all.remove(&goes?) {
                tracing::debug!(source = %gone.source, "an idle connection is closed: another one needs its place");
                gone.close.cancel();
            }
        }
        open.events += 1;
        let (id, close) = (open.events, CancellationToken::new());
        let fresh_until = now.checked_add(self.fresh);
        let connection = Connection { source, calls: 0, idle_since: id, fresh_until, close: close.clone() };
        open.all.insert(id, connection);
        Some(Place { activity: Activity { connections: Arc::clone(self), id }, close })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        // Nobody panics with it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Interval of looks of a caller that waits for a place.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Open {
    /// The one of these that has been idle longest; of those that have never called, where there is one.
    fn idle_longest(&self, now: Instant, of: impl Fn(&Connection) -> bool) -> Option<u64> {
        let can_go = |one: &Connection| one.calls == 0 && one.fresh_until.is_none_or(|until| until <= now);
        let all = self.all.iter().filter(|(_, one)| can_go(one) && of(one));
        all.min_by_key(|(_, one)| (one.fresh_until.is_none(), one.idle_since)).map(|(id, _)| *id)
    }

    /// The oldest without a call of the source that has most of these, unless it is the one that wants a place itself.
    fn fresh_of_the_most_crowded(&self, wants: IpAddr) -> Option<u64> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for one in self.all.values().filter(|one| one.calls == 0) {
            *counts.entry(one.source).or_default() += 1;
        }
        let (most, _) =
            counts.into_iter().max_by_key(|(_, count)| *count).filter(|(most, _)| *most != wants)?;
        let all = self.all.iter().filter(|(_, one)| one.calls == 0 && one.source == most);
        all.min_by_key(|(_, one)| one.idle_since).map(|(id, _)| *id)
    }
}

impl Place {
    /// For whoever answers its calls.
    pub(super) fn activity(&self) -> Activity {
        self.activity.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.activity.connections.lock().all.remove(&self.activity.id);
        self.activity.connections.changed.notify_waiters();
    }
}

impl Activity {
    /// A call has come whole, and is answered until the result is dropped.
    pub(super) fn begins(self) -> Call {
        if let Some(connection) = self.connections.lock().all.get_mut(&self.id) {
            connection.calls += 1;
            connection.fresh_until = None;
        }
        Call(self)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut open = self.0.connections.lock();
        open.events += 1;
        let now = open.events;
        if let Some(connection) = open.all.get_mut(&self.0.id) {
            connection.calls = connection.calls.saturating_sub(1);
            connection.idle_since = now;
        }
        drop(open);
        self.0.connections.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    fn connections(most: usize, of_one_source: usize) -> Arc<Connections> {
        Connections::new(most, of_one_source, Duration::ZERO)
    }

    impl Connections {
        fn one(self: &Arc<Connections>, last: u8) -> Option<Place> {
            self.admit(source(last), Instant::now())
        }
    }

    fn closed(places: &[&Place]) -> Vec<bool> {
        places.iter().map(|place| place.close.is_cancelled()).collect()
    }

    #[test]
    fn the_one_that_has_been_idle_longest_goes() {
        let all = connections(3, 3);
        let [a, b, c] = [1, 2, 3].map(|last| all.one(last).unwrap());
        drop(a.activity().begins());
        let d = all.one(4).unwrap();
        assert_eq!(closed(&[&a, &b, &c]), [false, true, false], "a has answered since b came");
        drop(d.activity().begins());
        let _busy = c.activity().begins();
        let _e = all.one(5).unwrap();
        assert_eq!(closed(&[&a, &c]), [true, false], "c is busy");
    }

    #[test]
    fn whoever_has_never_called_goes_before_those_who_have() {
        let all = connections(2, 2);
        let a = all.one(1).unwrap();
        drop(a.activity().begins());
        let mut silent = all.one(2).unwrap();
        for source in [2, 3, 2] {
            let next = all.one(source).unwrap();
            assert_eq!(closed(&[&a, &silent]), [false, true]);
            silent = next;
        }
    }

    #[test]
    fn a_source_that_has_all_it_may_have_takes_its_own_places() {
        let all = connections(3, 2);
        let other = all.one(9).unwrap();
        let own = [all.one(1).unwrap(), all.one(1).unwrap()];
        // The same address, as a socket of IPv6 says it.
        let mapped = IpAddr::V6(std::net::Ipv4Addr::new(127, 0, 0, 1).to_ipv6_mapped());
        let _next = all.admit(mapped, Instant::now()).unwrap();
        assert_eq!(closed(&[&other, &own[0], &own[1]]), [false, true, false]);
    }

    #[test]
    fn where_all_are_busy_nobody_goes_and_nobody_comes() {
        let all = connections(2, 1);
        let [a, b] = [1, 2].map(|last| all.one(last).unwrap());
        let calls = [a.activity().begins(), b.activity().begins()];
        assert!(all.one(3).is_none() && all.one(1).is_none());
        drop(calls);
        assert!(all.one(3).is_some());
        assert_eq!(closed(&[&a, &b]), [true, false]);
    }

    #[test]
    fn a_place_that_is_given_back_is_free_whoever_was_told_to_go() {
        let all = connections(1, 1);
        let a = all.one(1).unwrap();
        let call = a.activity().begins();
        drop(a);
        let b = all.one(2).unwrap();
        drop(call);
        let c = all.one(3).unwrap();
        drop(b);
        assert!(all.one(4).is_some() && c.close.is_cancelled());
    }

    #[test]
    fn whoever_has_just_come_is_not_pushed_out_by_its_like_before_it_has_had_the_time_to_call() {
        let now = Instant::now();
        let all = Connections::new(4, 2, Duration::from_secs(5));
        let at = |last, seconds| all.admit(source(last), now + Duration::from_secs(seconds));
        let [a, b] = [0, 1].map(|seconds| at(1, seconds).unwrap());
        assert!(at(1, 2).is_none(), "it waits");
        drop(b.activity().begins());
        let _c = at(1, 2).unwrap();
        assert_eq!(closed(&[&a, &b]), [false, true], "b has called, and is idle");
        let _d = at(1, 5).unwrap();
        assert_eq!(closed(&[&a]), [true], "a has had its time");
        // A source that fills what is left with fresh ones makes room for another one, not for itself.
        let _others = [2, 2].map(|last| at(last, 5).unwrap());
        assert!(at(2, 6).is_none());
        assert!(at(3, 6).is_some());
    }

    #[tokio::test]
    async fn who_waits_comes_in_when_somebody_goes_and_no_more_wait_than_there_are_places() {
        let all = Connections::new(1, 1, Duration::from_secs(3600));
        let first = all.enter(source(1)).await.unwrap();
        let waiting = tokio::spawn({
            let all = Arc::clone(&all);
            async move { all.enter(source(1)).await }
        });
        while all.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(all.enter(source(1)).await.is_none(), "too many wait");
        drop(first);
        assert!(waiting.await.unwrap().is_some());
    }
}
