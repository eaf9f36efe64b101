//! Bytes of requests that this process has: bodies that come, and those of calls that wait or run, of all sessions together.
//!
//! ```text
//!   header: so many bytes --> admitted, at once or in turn --> body read --> call --> the last part of the body dropped
//!                               |-- no room in time: the body is read over, the call is refused
//!                               '-- gives back: never refused; long ones come in turn
//!   call: what the body becomes beyond its own bytes --> admitted in the same way, before it is decoded --> answered
//! ```
//!
//! Counts of calls bound no memory: each session may be in the middle of a body of 16 MiB, and thousands of calls may wait with theirs. Nor
//! do bytes of bodies alone: an item of two bytes becomes hundreds. So the larger of the two counts: a request takes twice that at most.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::SESSION_BODY_MAX;

/// Bytes from which on a body is counted, and what it becomes. Less is bounded by the calls that wait for a worker: 8 KiB each, twice.
pub(crate) const COUNTED_FROM: usize = 8 << 10;

/// Bytes of a body above which it is long: those leave a quarter of all to the others.
const LONG: u64 = 1 << 20;

/// Longest body that gives back and is taken at once: as much as a session reads ahead anyway. Longer ones come in turn.
const AT_ONCE: u64 = 64 << 10;

/// Time that a session waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);

/// Interval at which a session that waits to give back looks whether its client is there.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The budget of all sessions; clones are the same one.
#[derive(Debug, Clone)]
pub struct Requests(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
    state: Mutex<State>,
    /// Room came about, or nobody waits any more.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    /// Bytes, of these, of long bodies that give back.
    returning: u64,
    waiting: usize,
    closed: bool,
}

/// Part of the budget that one request has; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Admitted {
    requests: Requests,
    bytes: u64,
    /// Bytes that count among those of long bodies that give back, too.
    returning: u64,
}

/// Body that is in the budget until its last part is dropped.
struct Counted {
    body: Bytes,
    _admitted: Admitted,
}

// === impl Requests ===

impl Requests {
    /// A budget of so many bytes, and of one long request at least.
    pub fn new(limit: u64) -> Self {
        let limit = limit.max(2 * u64::from(SESSION_BODY_MAX));
        Self(Arc::new(Shared { limit, state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Bytes of all requests now, and the most that they may have.
    pub fn bytes(&self) -> (u64, u64) {
        (self.0.state.lock().bytes, self.0.limit)
    }

    /// Takes so many bytes, and waits for room if there is none.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED where none came in time; DRAINING where the sidecar ends.
    pub(super) fn admit(&self, bytes: u64) -> Result<Admitted, Failure> {
        self.admit_more(0, bytes)
    }

    /// Takes so many bytes more for a request of which `body` bytes are admitted already, and waits for room if there is none.
    ///
    /// # Errors
    /// TOO_LARGE, at once, where the request has no room even while it is the only one; those of [`admit`](Self::admit).
    pub(super) fn admit_more(&self, body: u64, bytes: u64) -> Result<Admitted, Failure> {
        self.admit_within(body, bytes, PATIENCE)
    }

    /// Takes so many bytes if there is room for them now: for calls over gRPC, whose threads wait for nobody.
    ///
    /// # Errors
    /// TOO_LARGE where the request has no room even while it is the only one; LIMIT_EXCEEDED where it has none now.
    pub(crate) fn admit_now(&self, bytes: u64) -> Result<Admitted, Failure> {
        self.admit_within(0, bytes, Duration::ZERO)
    }

    /// Takes so many bytes whatever room there is: for what gives back, which nobody may refuse.
    pub(super) fn take(&self, bytes: u64) -> Admitted {
        let mut state = self.0.state.lock();
        state.bytes = state.bytes.saturating_add(bytes);
        drop(state);
        Admitted { requests: self.clone(), bytes, returning: 0 }
    }

    /// Takes so many bytes for a body that gives back, whatever room requests leave. Long ones wait for each other: a quarter of the budget
    /// is theirs at a time. Each of them has to come whole in time, so every wait has an end. None where the client is gone meanwhile.
    pub(super) fn take_in_turn(&self, bytes: u64, is_gone: impl Fn() -> bool) -> Option<Admitted> {
        if bytes <= AT_ONCE {
            return Some(self.take(bytes));
        }
        let Shared { limit, state, changed } = &*self.0;
        let mut state = state.lock();
        state.waiting += 1;
        let mut gone = false;
        while !gone && !state.closed && state.returning > 0 && state.returning + bytes > *limit / 4 {
            gone = is_gone();
            if !gone {
                let _ = changed.wait_for(&mut state, LOOK_AGAIN);
            }
        }
        state.waiting -= 1;
        if gone {
            return None;
        }
        state.bytes = state.bytes.saturating_add(bytes);
        state.returning += bytes;
        drop(state);
        Some(Admitted { requests: self.clone(), bytes, returning: bytes })
    }

    fn admit_within(&self, body: u64, bytes: u64, patience: Duration) -> Result<Admitted, Failure> {
        let Shared { limit, state, changed } = &*self.0;
        let most = if bytes > LONG && bytes < *limit { limit / 4 * 3 } else { *limit };
        if body.saturating_add(bytes) > most {
            return Err(too_large(body.saturating_add(bytes), most));
        }
        let mut state = state.lock();
        if state.bytes.saturating_add(bytes) > most {
            let deadline = Instant::now() + patience;
            state.waiting += 1;
            let mut is_late = false;
            while state.bytes.saturating_add(bytes) > most && !state.closed && !is_late {
                is_late = changed.wait_until(&mut state, deadline).timed_out();
            }
            state.waiting -= 1;
            if state.closed {
                return Err(Failure::new(Reason::Draining, "the sidecar is ending"));
            }
            if state.bytes.saturating_add(bytes) > most {
                return Err(no_room(bytes, state.bytes, *limit, patience));
            }
        }
        state.bytes += bytes;
        drop(state);
        Ok(Admitted { requests: self.clone(), bytes, returning: 0 })
    }

    /// From now on nobody waits.
    pub(super) fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_all();
    }
}

// === impl Admitted ===

impl Admitted {
    /// The body, which has this part of the budget for as long as any part of it lives.
    pub(super) fn counts(self, body: Bytes) -> Bytes {
        Bytes::from_owner(Counted { body, _admitted: self })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.requests.0.state.lock();
        state.bytes -= self.bytes;
        state.returning -= self.returning;
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.requests.0.changed.notify_all();
        }
    }
}

// === impl Counted ===

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

fn too_large(bytes: u64, most: u64) -> Failure {
    let message = format!(
        "a request that takes {bytes} bytes once it is decoded; at most {most} are allowed (three quarters of an eighth of \
         arena.base): send fewer items at a time, or raise arena.base"
    );
    Failure::new(Reason::TooLarge, message).with("limit_bytes", most)
}

fn no_room(bytes: u64, there: u64, limit: u64, patience: Duration) -> Failure {
    let message = format!(
        "a request that takes {bytes} bytes found no room within {patience:?}: requests that come, wait or run have {there} bytes, and \
         may have {limit} (an eighth of arena.base; long ones three quarters of that): send less at a time, or raise arena.base"
    );
    Failure::new(Reason::LimitExceeded, message).with("limit_bytes", limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn a_request_without_room_is_refused_and_long_ones_leave_some_to_others() {
        let requests = Requests::new(64 * MIB);
        let long: Vec<_> = (0..3).map(|_| requests.admit(16 * MIB).unwrap()).collect();
        let refused = requests.admit_within(0, 2 * MIB, SOON).unwrap_err();
        assert_eq!(
            (refused.reason, refused.detail("limit_bytes")),
            (Reason::LimitExceeded, Some("67108864"))
        );
        let short: Vec<_> = (0..16).map(|_| requests.admit(MIB).unwrap()).collect();
        assert!(requests.admit_within(0, 1, SOON).is_err());
        assert_eq!(requests.bytes(), (64 * MIB, 64 * MIB));
        drop((long, short));
        assert_eq!(requests.bytes().0, 0);
    }

    #[test]
    fn a_request_that_never_fits_is_too_large_at_once() {
        let requests = Requests::new(64 * MIB);
        let body = requests.admit(16 * MIB).unwrap();
        assert!(requests.admit_within(16 * MIB, 32 * MIB, SOON).is_ok());
        let refused = requests.admit_within(16 * MIB, 32 * MIB + 1, Duration::from_secs(3600)).unwrap_err();
        assert_eq!((refused.reason, refused.detail("limit_bytes")), (Reason::TooLarge, Some("50331648")));
        drop(body);
    }

    #[test]
    fn what_gives_back_has_room_always_and_counts() {
        let requests = Requests::new(0);
        let all = requests.admit(24 * MIB).unwrap();
        let more = requests.take(16 * MIB);
        assert_eq!(requests.bytes().0, 40 * MIB);
        drop((all, more));
        assert_eq!(requests.bytes().0, 0);
    }

    #[test]
    fn long_bodies_that_give_back_come_in_turn_and_keep_no_short_one() {
        let requests = Requests::new(0);
        let all = requests.admit(requests.bytes().1).unwrap();
        let never = || false;
        let mut long: Vec<_> = (0..8).map(|_| requests.take_in_turn(MIB, never).unwrap()).collect();
        assert_eq!(requests.bytes().0, 40 * MIB);
        assert!(
            requests.take_in_turn(MIB, || true).is_none(),
            "a quarter of 32 MiB is taken, and it is gone"
        );
        let short = requests.take_in_turn(AT_ONCE, || true).unwrap();
        let waits = requests.clone();
        let waiting = std::thread::spawn(move || waits.take_in_turn(MIB, never));
        while requests.0.state.lock().waiting == 0 {
            std::thread::yield_now();
        }
        assert_eq!(requests.bytes().0, 40 * MIB + AT_ONCE);
        drop(long.pop());
        long.push(waiting.join().unwrap().unwrap());
        drop((all, short));
        assert_eq!(requests.bytes().0, 8 * MIB);
        requests.close();
        long.push(requests.take_in_turn(MIB, never).unwrap());
        drop(long);
        let state = requests.0.state.lock();
        assert_eq!((state.bytes, state.returning, state.waiting), (0, 0, 0));
    }

    #[test]
    fn a_body_counts_until_its_last_part_is_dropped() {
        let requests = Requests::new(0);
        let body = requests.admit(9).unwrap().counts(Bytes::from_static(b"123456789"));
        let part = body.slice(3..5);
        drop(body);
        assert_eq!((requests.bytes().0, &part[..]), (9, &b"45"[..]));
        drop(part);
        assert_eq!(requests.bytes().0, 0);
    }

    #[test]
    fn who_waits_goes_on_when_there_is_room_and_when_the_sidecar_ends() {
        let requests = Requests::new(32 * MIB);
        let first = requests.admit(16 * MIB).unwrap();
        let waits = |requests: Requests| move || requests.admit_within(0, 13 * MIB, Duration::from_secs(60));
        let waiting = std::thread::spawn(waits(requests.clone()));
        while requests.0.state.lock().waiting == 0 {
            std::thread::yield_now();
        }
        drop(first);
        let second = waiting.join().unwrap().unwrap();
        let waiting = std::thread::spawn(waits(requests.clone()));
        while requests.0.state.lock().waiting == 0 {
            std::thread::yield_now();
        }
        requests.close();
        assert_eq!(waiting.join().unwrap().unwrap_err().reason, Reason::Draining);
        drop(second);
    }
}
