//! The pulls that come over the lanes of one connection, and the lanes that bring them: who brings what next.
//!
//! Lanes ask ([`PieceQueue::next`]) whenever they have room for another piece. What the queue decides is in `schedule`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::pieces::GRANULE;
use super::schedule::{LaneRate, should_take};
use super::transfer::{Reserved, Transfer};
use crate::peer::relay::RelaySession;

/// A pull that comes over the lanes of a connection.
#[derive(Clone)]
pub(in crate::peer) struct Wanted {
    /// Number of the pull on this connection.
    pub(in crate::peer) call: u64,
    pub(in crate::peer) transfer: Arc<Transfer>,
    /// Session of the relay whose pull it is, if the other end is not the owner.
    pub(in crate::peer) asker: Option<Arc<RelaySession>>,
}

impl Wanted {
    /// A pull from the owner.
    pub(in crate::peer) fn of(transfer: &Arc<Transfer>) -> Self {
        Self { call: transfer.call, transfer: Arc::clone(transfer), asker: None }
    }
}

/// A piece that a lane is to bring.
pub(super) struct Piece {
    pub(super) wanted: Wanted,
    pub(super) reserved: Reserved,
}

impl Piece {
    /// Releases a piece that will not come, and was not begun.
    pub(super) fn release(&self) {
        self.wanted.transfer.release(&self.reserved);
    }
}

/// Next work of a lane.
pub(super) enum Next {
    /// Ask for this.
    Ask(Piece),
    /// Nothing now: wait for what was asked for.
    Nothing,
    /// End for want of work: there was none for a long time.
    Idle,
    /// The connection has ended.
    Ended,
}

#[derive(Default)]
struct State {
    /// The next one to take a piece of comes first.
    transfers: VecDeque<Wanted>,
    lanes: BTreeMap<u64, LaneRate>,
    ended: bool,
}

/// Pulls and lanes of one connection.
pub(super) struct PieceQueue {
    state: Mutex<State>,
    /// Signal that there may be work for a lane that had none.
    wake: Condvar,
    idle: Duration,
}

impl PieceQueue {
    /// A lane without work for so long ends.
    pub(super) fn new(idle: Duration) -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), idle }
    }

    /// Adds a pull.
    pub(super) fn add(&self, wanted: Wanted) {
        self.state.lock().transfers.push_back(wanted);
        self.wake.notify_all();
    }

    /// A lane is there.
    pub(super) fn enter(&self, lane: u64) {
        self.state.lock().lanes.insert(lane, LaneRate::default());
    }

    /// A lane is gone; what it had was given back.
    pub(super) fn leave(&self, lane: u64) {
        self.state.lock().lanes.remove(&lane);
        self.wake.notify_all();
    }

    /// Next work of a lane. `wait`: it has nothing else to do.
    pub(super) fn next(&self, lane: u64, wait: bool) -> Next {
        let until = Instant::now() + self.idle;
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return Next::Ended;
            }
            if let Some(piece) = state.take(lane, wait) {
                return Next::Ask(piece);
            }
            if !wait {
                return Next::Nothing;
            }
            if self.wake.wait_until(&mut state, until).timed_out() {
                // A lane that others are so far ahead of may be another one when it is opened anew.
                return match state.take(lane, wait) {
                    _ if state.ended => Next::Ended,
                    Some(piece) => Next::Ask(piece),
                    None => Next::Idle,
                };
            }
        }
    }

    /// A piece that a lane has asked for is not on its way any more.
    pub(super) fn dropped(&self, lane: u64, bytes: u64) {
        if let Some(pace) = self.state.lock().lanes.get_mut(&lane) {
            pace.dropped(bytes);
        }
    }

    /// A piece came to a lane, that long after the one before or after it was asked for.
    pub(super) fn came(&self, lane: u64, bytes: u64, took: Duration) {
        if let Some(pace) = self.state.lock().lanes.get_mut(&lane) {
            pace.came(bytes, took);
        }
        self.wake.notify_all();
    }

    /// Something was given back.
    pub(super) fn stir(&self) {
        self.wake.notify_all();
    }

    /// The pull of a call, while it is not over.
    pub(super) fn find(&self, call: u64) -> Option<Wanted> {
        self.state.lock().transfers.iter().find(|wanted| wanted.call == call).cloned()
    }

    /// A pull comes another way.
    pub(super) fn remove(&self, call: u64) {
        self.state.lock().transfers.retain(|wanted| wanted.call != call);
    }

    /// The pulls that are not over.
    pub(super) fn under_way(&self) -> Vec<Wanted> {
        let mut state = self.state.lock();
        state.transfers.retain(|wanted| !wanted.transfer.is_over());
        state.transfers.iter().cloned().collect()
    }

    /// No lane gets work any more.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.transfers.clear();
        drop(state);
        self.wake.notify_all();
    }
}

impl Wanted {
    /// Returns whether whoever brings it had nothing just now: an answer would be waited for, and hold up what is asked
    /// for after it.
    fn rests(&self, now: Instant) -> bool {
        self.asker.as_ref().is_some_and(|asker| asker.rests(now))
    }
}

impl State {
    /// The next piece for a lane. `idle`: it has nothing else to do, so that nothing is held up by what may take its time.
    fn take(&mut self, lane: u64, idle: bool) -> Option<Piece> {
        let is_forger = |wanted: &Wanted| wanted.asker.as_ref().is_some_and(|asker| asker.is_forger());
        self.transfers.retain(|wanted| !wanted.transfer.is_over() && !is_forger(wanted));
        let now = Instant::now();
        let (resting, ready): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.transfers).into_iter().partition(|wanted| wanted.rests(now));
        self.transfers = ready;
        let mut piece = self.take_ready(lane);
        let ready = std::mem::replace(&mut self.transfers, resting);
        if piece.is_none() && idle {
            piece = self.take_ready(lane);
        }
        self.transfers.extend(ready);
        piece
    }

    fn take_ready(&mut self, lane: u64) -> Option<Piece> {
        let untaken: u64 = self.transfers.iter().map(|wanted| wanted.transfer.untaken()).sum();
        let pace = *self.lanes.get(&lane)?;
        let granules = pace.granules();
        let others = self.lanes.iter().filter(|(other, _)| **other != lane).map(|(_, pace)| pace);
        if untaken == 0 || !should_take(&pace, others, granules * GRANULE, untaken) {
            return None;
        }
        for _ in 0..self.transfers.len() {
            let wanted = self.transfers.pop_front()?;
            let is_behind = wanted.asker.as_ref().is_some_and(|asker| asker.is_behind());
            let reserved = wanted.transfer.reserve(if is_behind { 1 } else { granules });
            // The others come before it is asked again.
            self.transfers.push_back(wanted.clone());
            let Some(reserved) = reserved else { continue };
            let range = reserved.range();
            self.lanes.get_mut(&lane)?.asked(range.end - range.start);
            return Some(Piece { wanted, reserved });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::Incarnation;

    use super::*;
    use crate::peer::api::PeerKey;
    use crate::peer::remote::Peer;
    use crate::peer::tests::world::{arena, block, name};

    fn pool(pulls: &[u64]) -> (Arc<tensorlane_memory::Arena>, PieceQueue) {
        let arena = arena(64 << 20);
        let pool = PieceQueue::new(Duration::ZERO);
        for (call, granules) in pulls.iter().enumerate() {
            let landing = block(&arena, granules * GRANULE).landing().unwrap();
            let until = Instant::now() + Duration::from_secs(60);
            pool.add(Wanted::of(&Transfer::new(call as u64, landing, 0, until)));
        }
        pool.enter(0);
        (arena, pool)
    }

    fn ask(pool: &PieceQueue) -> Piece {
        match pool.next(0, false) {
            Next::Ask(piece) => piece,
            _ => panic!("there is work"),
        }
    }

    #[test]
    fn pulls_take_turns() {
        let (_arena, pool) = pool(&[3, 3]);
        let pieces: Vec<Piece> = (0..6).map(|_| ask(&pool)).collect();
        assert_eq!(pieces.iter().map(|piece| piece.wanted.call).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1]);
        assert!(matches!(pool.next(0, false), Next::Nothing));
        for piece in pieces {
            piece.release();
        }
    }

    #[test]
    fn a_lane_without_work_goes_after_a_while_and_at_the_end_at_once() {
        let (_arena, pool) = pool(&[]);
        assert!(matches!(pool.next(0, true), Next::Idle));
        let (_arena, pool) = self::pool(&[1]);
        pool.end();
        assert!(matches!(pool.next(0, true), Next::Ended));
    }

    #[test]
    fn a_lane_that_the_others_leave_nothing_for_goes_after_a_while_too() {
        let (_arena, pool) = pool(&[1]);
        let piece = ask(&pool);
        pool.enter(1);
        assert!(matches!(pool.next(1, true), Next::Idle), "all there is to bring is on its way");
        piece.release();
    }

    #[test]
    fn a_pull_that_is_to_leave_is_not_asked_for_while_a_lane_still_writes_it() {
        let (_arena, pool) = pool(&[2]);
        let piece = ask(&pool);
        let transfer = Arc::clone(&piece.wanted.transfer);
        let part = transfer.begin(&piece.reserved).unwrap();
        transfer.leave(true);
        assert!(transfer.reclaim().is_none() && matches!(pool.next(0, false), Next::Nothing));
        assert!(transfer.give_back(part).is_none());
        transfer.leave(false);
        let piece = ask(&pool);
        piece.release();
        transfer.leave(true);
        assert!(transfer.reclaim().is_some());
    }

    #[test]
    fn what_a_lane_gives_back_another_one_takes() {
        let (_arena, pool) = pool(&[1]);
        let piece = ask(&pool);
        piece.release();
        pool.leave(0);
        pool.enter(1);
        let Next::Ask(piece) = pool.next(1, true) else { panic!("it was given back") };
        piece.release();
    }

    #[test]
    fn what_a_holder_has_not_got_yet_holds_up_nothing_else_and_is_asked_for_when_there_is_nothing_else() {
        let (_arena, pool) = pool(&[3, 3]);
        let key = PeerKey { name: name("b"), incarnation: Incarnation(1) };
        let asker = RelaySession::new(&Arc::new(Peer::new(name("a"))), 9, 1, key);
        // It rests for all of the test, however long that takes.
        asker.falls_behind(Instant::now() + Duration::from_secs(3600));
        pool.state.lock().transfers[0].asker = Some(Arc::clone(&asker));
        let pieces: Vec<Piece> = (0..3).map(|_| ask(&pool)).collect();
        assert!(pieces.iter().all(|piece| piece.wanted.call == 1));
        assert!(matches!(pool.next(0, false), Next::Nothing), "others are on their way");
        let Next::Ask(last) = pool.next(0, true) else { panic!("it is all that is left") };
        assert_eq!(last.wanted.call, 0);
        // It has something again.
        asker.fed(1);
        let fed = ask(&pool);
        assert_eq!(fed.wanted.call, 0);
        pieces.into_iter().chain([last, fed]).for_each(|piece| piece.release());
    }
}
