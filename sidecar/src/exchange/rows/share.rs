//! The share that each peer has of the calls about sets of this sidecar: so many at a time, the next ones in line.
//!
//! What is asked for is kept while it waits, so the line of each peer is bounded in bytes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::identity::PeerName;

use crate::exchange::Exchange;

/// Calls of one peer that are made at a time: as many as it has waiters.
pub(super) const AT_A_TIME: usize = 16;
/// Most calls of one peer that stand in line.
pub(super) const WAITING_MAX: usize = 1_024;
/// Most bytes of them: lists of rows are long.
const WAITING_BYTES_MAX: u64 = 16 << 20;

/// A call that gets its place, or the reason why there is none.
pub(super) type Job = Box<dyn FnOnce(&Arc<Exchange>, Result<Place, Failure>) + Send>;

/// Calls of all peers. Pure; `J` is a call.
pub(super) struct Shares<J>(HashMap<PeerName, Share<J>>);

struct Share<J> {
    /// Calls that have a place.
    running: usize,
    /// Somebody begins calls of this peer: one that is thrown away at once begins no other inside itself.
    beginning: bool,
    waiting: VecDeque<(u64, J)>,
    bytes: u64,
}

/// A place of a peer, for one call. Dropped, the next one in line has it.
pub(super) struct Place {
    exchange: Arc<Exchange>,
    peer: PeerName,
}

// === impl Shares ===

impl<J> Default for Shares<J> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<J> Shares<J> {
    /// Puts a call of so many bytes in line.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED, and the call.
    fn enter(&mut self, peer: &PeerName, bytes: u64, call: J) -> Result<(), (J, Failure)> {
        let share = self.0.entry(peer.clone()).or_insert_with(|| Share {
            running: 0,
            beginning: false,
            waiting: VecDeque::new(),
            bytes: 0,
        });
        let (count, total) = (share.waiting.len(), share.bytes.saturating_add(bytes));
        let limit = match () {
            () if count >= WAITING_MAX => WAITING_MAX as u64,
            () if count > 0 && total > WAITING_BYTES_MAX => WAITING_BYTES_MAX,
            () => {
                share.bytes = total;
                share.waiting.push_back((bytes, call));
                return Ok(());
            }
        };
        let what = format!(
            "{count} calls of {peer} about sets of this peer wait already, of {} bytes, and {AT_A_TIME} are made at a time; at \
             most {WAITING_MAX} of {WAITING_BYTES_MAX} bytes may wait: retry later",
            share.bytes
        );
        Err((call, Failure::new(Reason::LimitExceeded, what).with("limit", limit)))
    }

    /// Takes the next call of a peer, if one has a place and nobody else is beginning one. [`Shares::begun`] follows.
    fn next(&mut self, peer: &PeerName) -> Option<J> {
        let share = self.0.get_mut(peer).filter(|share| !share.beginning && share.running < AT_A_TIME)?;
        let (bytes, call) = share.waiting.pop_front()?;
        share.bytes -= bytes;
        share.running += 1;
        share.beginning = true;
        Some(call)
    }

    /// The call that was taken last has begun.
    fn begun(&mut self, peer: &PeerName) {
        if let Some(share) = self.0.get_mut(peer) {
            share.beginning = false;
        }
        self.forget(peer);
    }

    /// A call is over.
    fn leave(&mut self, peer: &PeerName) {
        if let Some(share) = self.0.get_mut(peer) {
            share.running -= 1;
        }
        self.forget(peer);
    }

    /// Forgets a peer that has no calls.
    fn forget(&mut self, peer: &PeerName) {
        let is_idle = |share: &Share<J>| share.running == 0 && !share.beginning && share.waiting.is_empty();
        if self.0.get(peer).is_some_and(is_idle) {
            self.0.remove(peer);
        }
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        self.exchange.mutable_sets.shares.lock().leave(&self.peer);
        self.exchange.begin_calls(&self.peer);
    }
}

// === impl Exchange ===

impl Exchange {
    /// Makes a call of a peer when it has a place for it. The call must not block.
    pub(super) fn in_share(self: &Arc<Self>, peer: &PeerName, bytes: u64, call: Job) {
        let entered = self.mutable_sets.shares.lock().enter(peer, bytes, call);
        match entered {
            Ok(()) => self.begin_calls(peer),
            Err((call, failure)) => call(self, Err(failure)),
        }
    }

    fn begin_calls(self: &Arc<Self>, peer: &PeerName) {
        loop {
            let next = self.mutable_sets.shares.lock().next(peer);
            let Some(call) = next else { return };
            call(self, Ok(Place { exchange: Arc::clone(self), peer: peer.clone() }));
            self.mutable_sets.shares.lock().begun(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_share_and_the_next_calls_wait_in_their_order() {
        let (one, other): (PeerName, PeerName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let mut shares = Shares::default();
        let mut begun = Vec::new();
        for call in 0..AT_A_TIME + 3 {
            shares.enter(&one, 1, call).unwrap();
            if let Some(call) = shares.next(&one) {
                assert_eq!(shares.next(&one), None, "one begins at a time");
                shares.begun(&one);
                begun.push(call);
            }
        }
        assert_eq!(begun, (0..AT_A_TIME).collect::<Vec<_>>());
        shares.enter(&other, 1, 99).unwrap();
        assert_eq!(shares.next(&other), Some(99), "another peer has its own");
        shares.begun(&other);
        shares.leave(&one);
        assert_eq!(shares.next(&one), Some(AT_A_TIME));
        shares.begun(&one);
        shares.leave(&other);
        for _ in 0..AT_A_TIME {
            shares.leave(&one);
            if shares.next(&one).is_some() {
                shares.begun(&one);
            }
        }
        for _ in 0..2 {
            shares.leave(&one);
        }
        assert!(shares.0.is_empty(), "peers without calls are forgotten");
    }

    #[test]
    fn calls_beyond_the_line_are_refused_by_number_and_by_bytes() {
        let peer: PeerName = "a".parse().unwrap();
        let mut shares = Shares::default();
        for call in 0..WAITING_MAX {
            shares.enter(&peer, 1, call).unwrap();
        }
        let (call, refused) = shares.enter(&peer, 1, 7_777).unwrap_err();
        assert_eq!(
            (call, refused.reason, refused.detail("limit")),
            (7_777, Reason::LimitExceeded, Some("1024"))
        );
        let mut shares = Shares::default();
        shares.enter(&peer, WAITING_BYTES_MAX + 1, 1).unwrap();
        let (_, refused) = shares.enter(&peer, 1, 2).unwrap_err();
        assert_eq!(refused.detail("limit"), Some("16777216"));
        assert_eq!(shares.next(&peer), Some(1), "one of any size waits alone");
    }
}
