//! Turns at the rows of a set: first come, first served, until the caller's deadline or a cancel.
//!
//! ```text
//!   turn(shards) ── nobody before wants one of them ──> held until it is dropped
//!        '── else it waits in line: whoever comes later and wants one of them waits behind it
//! ```
//! So readers that follow one another keep no commit waiting for ever. All shards of a call are taken in one step: whoever waits
//! holds none that others could have. Whoever leaves wakes those whose turn it is then, and nobody else.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorlane_proto::failure::{Failure, Reason};

use crate::cancel::Cancel;

/// Locks of a set, at most one for each bit of a [`Wish`]. Two commits whose rows share none go on beside each other.
pub(super) const SHARDS: usize = 64;
/// Time after which a call that waits looks whether its caller is there still.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// Patience of a caller: until when it waits, and the flag that says that it wants no answer any more.
pub(super) type Until<'a> = (Instant, &'a Cancel);

/// Shards that a call wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// A bit for each of them.
    shards: u64,
    /// Set for one that writes.
    alone: bool,
}

/// Calls that have their turn or wait for it, by their numbers: earlier ones have lower numbers. Pure.
#[derive(Debug, Default)]
struct Line {
    calls: BTreeMap<u64, Wish>,
    last: u64,
}

/// Turns at the shards of a set.
#[derive(Default)]
pub(super) struct RowTurns(Mutex<Waiting>);

/// The line, and the means by which those are woken that wait in it.
#[derive(Default)]
struct Waiting {
    line: Line,
    /// Condition of each call that had to wait, by its number, until it leaves the line.
    wakes: BTreeMap<u64, Arc<Condvar>>,
}

/// A call's place in the line, which it leaves when this is dropped.
pub(super) struct RowTurn<'a> {
    turns: &'a RowTurns,
    number: u64,
}

/// Shards that are locked in their turn. Unlocked first, so that whoever is next finds them free.
pub(super) struct Locked<'a, G> {
    guards: G,
    _turn: RowTurn<'a>,
}

// === impl Wish ===

impl Wish {
    /// Asks for all shards, alone or shared.
    pub(super) const fn all(alone: bool) -> Self {
        Self { shards: u64::MAX, alone }
    }

    /// Asks for some shards, alone or shared. Each may be given more than once.
    pub(super) fn of(shards: impl Iterator<Item = usize>, alone: bool) -> Self {
        Self { shards: shards.fold(0, |all, shard| all | bit(shard)), alone }
    }

    /// Returns whether it asks for a shard.
    pub(super) const fn wants(self, shard: usize) -> bool {
        self.shards & bit(shard) != 0
    }

    const fn excludes(self, other: Self) -> bool {
        (self.alone || other.alone) && self.shards & other.shards != 0
    }
}

/// Bit of a shard in a wish; none of one that no set has.
const fn bit(shard: usize) -> u64 {
    if shard < SHARDS { 1 << shard } else { 0 }
}

// === impl Line ===

impl Line {
    /// Has a call enter behind all others. Returns its number.
    fn enter(&mut self, wish: Wish) -> u64 {
        self.last += 1;
        self.calls.insert(self.last, wish);
        self.last
    }

    /// Returns whether a call has its turn: nobody before it, who has it or waits for it, wants what it wants.
    fn has_turn(&self, number: u64) -> bool {
        let Some(wish) = self.calls.get(&number) else { return false };
        !self.calls.range(..number).any(|(_, before)| before.excludes(*wish))
    }

    /// Has a call leave. Returns those who waited for it and have their turn now, in order.
    fn leave(&mut self, number: u64) -> Vec<u64> {
        let Some(gone) = self.calls.remove(&number) else { return Vec::new() };
        let behind = self.calls.range(number..).filter(|(_, later)| gone.excludes(**later));
        behind.map(|(later, _)| *later).filter(|later| self.has_turn(*later)).collect()
    }
}

// === impl RowTurns ===

impl RowTurns {
    /// Waits for the turn of a call. One whose shards are free has it, however late it is.
    ///
    /// # Errors
    /// DEADLINE_EXCEEDED, CANCELLED.
    pub(super) fn turn(&self, wish: Wish, until: Until<'_>) -> Result<RowTurn<'_>, Failure> {
        let number = self.0.lock().line.enter(wish);
        // Before the lock, so that a call which gives up has unlocked the line when it leaves it.
        let turn = RowTurn { turns: self, number };
        let mut waiting = self.0.lock();
        if !waiting.line.has_turn(number) {
            let wake = Arc::new(Condvar::new());
            waiting.wakes.insert(number, Arc::clone(&wake));
            while !waiting.line.has_turn(number) {
                let look = next_look(until, "other calls read or write these rows, or rows beside them")?;
                wake.wait_until(&mut waiting, look);
            }
        }
        drop(waiting);
        Ok(turn)
    }

    /// Number of calls that have their turn or wait for it.
    #[cfg(test)]
    pub(super) fn calls(&self) -> usize {
        self.0.lock().line.calls.len()
    }
}

// === impl RowTurn ===

impl<'a> RowTurn<'a> {
    /// Locks what nobody else locks now.
    pub(super) fn locked<G>(self, guards: G) -> Locked<'a, G> {
        Locked { guards, _turn: self }
    }
}

impl Drop for RowTurn<'_> {
    fn drop(&mut self) {
        let mut waiting = self.turns.0.lock();
        waiting.wakes.remove(&self.number);
        for next in waiting.line.leave(self.number) {
            if let Some(wake) = waiting.wakes.get(&next) {
                wake.notify_one();
            }
        }
    }
}

// === impl Locked ===

impl<G> Deref for Locked<'_, G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.guards
    }
}

impl<G> DerefMut for Locked<'_, G> {
    fn deref_mut(&mut self) -> &mut G {
        &mut self.guards
    }
}

/// The moment at which a call that waits looks again, because of `what`.
///
/// # Errors
/// DEADLINE_EXCEEDED, CANCELLED: it waits no longer.
pub(super) fn next_look(until: Until<'_>, what: &str) -> Result<Instant, Failure> {
    let now = check_patience(until, || format!("{what}; give the call a longer deadline"))?;
    Ok(until.0.min(now + LOOK))
}

/// Checks that a caller has patience still, and returns the moment of the look. `late` says why it waited too long.
///
/// # Errors
/// DEADLINE_EXCEEDED, CANCELLED.
pub(super) fn check_patience(
    (deadline, cancel): Until<'_>,
    late: impl FnOnce() -> String,
) -> Result<Instant, Failure> {
    if cancel.is_cancelled() {
        return Err(withdrawn());
    }
    let now = Instant::now();
    if now >= deadline { Err(Failure::new(Reason::DeadlineExceeded, late())) } else { Ok(now) }
}

/// Answer to whoever wants none any more.
pub(super) fn withdrawn() -> Failure {
    Failure::new(Reason::Cancelled, "the caller is gone, or withdrew the call")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng};

    use super::*;
    use crate::exchange::alone::MINUTE;

    fn wish(shards: &[usize], alone: bool) -> Wish {
        Wish::of(shards.iter().copied(), alone)
    }

    #[test]
    fn a_call_has_its_turn_when_nobody_before_it_wants_what_it_wants() {
        let mut line = Line::default();
        let reader = line.enter(wish(&[0, 1, 63], false));
        let beside = line.enter(wish(&[1], false));
        let commit = line.enter(wish(&[1, 2], true));
        let other = line.enter(wish(&[3], true));
        assert!(line.has_turn(reader) && line.has_turn(beside) && line.has_turn(other));
        assert!(!line.has_turn(commit));
        let later = line.enter(wish(&[0, 2], false));
        assert!(!line.has_turn(later), "whoever comes later stands behind a commit that waits");
        assert!(line.leave(reader).is_empty());
        assert!(!line.has_turn(commit), "one that reads is left");
        assert_eq!(line.leave(beside), [commit]);
        assert!(line.has_turn(commit) && !line.has_turn(later));
        assert_eq!(line.leave(commit), [later]);
        assert!(line.has_turn(later) && !line.has_turn(commit), "whoever has left has no turn");
        assert!(line.leave(commit).is_empty());
    }

    #[test]
    fn a_commit_that_ends_wakes_the_next_one_of_many_or_all_readers_before_it() {
        let mut line = Line::default();
        let commits: Vec<u64> = (0..100).map(|_| line.enter(wish(&[7], true))).collect();
        for pair in commits.windows(2) {
            assert_eq!(line.leave(pair[0]), [pair[1]]);
        }
        let last = commits[99];
        let readers: Vec<u64> = (0..100).map(|_| line.enter(wish(&[7], false))).collect();
        let behind = line.enter(wish(&[7], true));
        assert_eq!(line.leave(last), readers);
        let (one, rest) = readers.split_first().unwrap();
        assert!(rest.iter().all(|reader| line.leave(*reader).is_empty()));
        assert_eq!(line.leave(*one), [behind]);
    }

    #[test]
    fn those_that_are_woken_are_those_that_waited_and_have_their_turn() {
        for seed in 0..200 {
            let chance = &mut StdRng::seed_from_u64(seed);
            let mut line = Line::default();
            for _ in 0..100 {
                let shards = [chance.random_range(0..4_usize), chance.random_range(0..4_usize)];
                if line.calls.is_empty() || chance.random_bool(0.55) {
                    line.enter(wish(&shards, chance.random_bool(0.5)));
                    continue;
                }
                let waits: Vec<u64> =
                    line.calls.keys().copied().filter(|number| !line.has_turn(*number)).collect();
                // Whoever waits gives up at times, too.
                let at = chance.random_range(0..line.calls.len());
                let gone = line.calls.keys().copied().nth(at).unwrap();
                let woken = line.leave(gone);
                let due: Vec<u64> = waits.into_iter().filter(|number| line.has_turn(*number)).collect();
                assert_eq!(woken, due, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_commit_has_its_turn_although_there_is_a_reader_at_every_moment() {
        let mut line = Line::default();
        let mut reader = line.enter(Wish::all(false));
        let commit = line.enter(wish(&[9], true));
        let mut readers = 0;
        while !line.has_turn(commit) {
            // The next one comes before the one at it is gone.
            let next = line.enter(Wish::all(false));
            line.leave(reader);
            reader = next;
            readers += 1;
            assert!(readers < 3, "readers that come later go first");
        }
        assert!(!line.has_turn(reader));
    }

    #[test]
    fn a_call_that_gives_up_keeps_nobody_waiting() {
        let turns = RowTurns::default();
        let cancel = Cancel::default();
        let reader = turns.turn(wish(&[5], false), (Instant::now() + MINUTE, &cancel)).unwrap();
        let late = turns.turn(wish(&[5], true), (Instant::now(), &cancel)).err().unwrap();
        let gone = Cancel::default();
        gone.cancel();
        let withdrawn = turns.turn(wish(&[5], true), (Instant::now() + MINUTE, &gone)).err().unwrap();
        assert_eq!((late.reason, withdrawn.reason), (Reason::DeadlineExceeded, Reason::Cancelled));
        assert_eq!(turns.calls(), 1);
        let beside = turns.turn(wish(&[5], false), (Instant::now(), &gone));
        assert!(beside.is_ok(), "what is free needs no patience");
        drop((reader, beside));
        assert_eq!(turns.calls(), 0);
    }

    #[test]
    fn a_call_that_waits_is_woken_when_its_shards_are_free_and_ends_when_it_is_withdrawn() {
        let (turns, cancel, gone) = (RowTurns::default(), Cancel::default(), Cancel::default());
        let held = turns.turn(Wish::all(true), (Instant::now() + MINUTE, &cancel)).unwrap();
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let ask = |shard: usize, cancel| {
                let (turns, tell) = (&turns, tell.clone());
                scope.spawn(move || {
                    let turn = turns.turn(wish(&[shard], false), (Instant::now() + MINUTE, cancel));
                    tell.send(turn.map(drop).map_err(|failure| failure.reason)).unwrap();
                });
            };
            ask(1, &gone);
            gone.cancel();
            assert_eq!(told.recv_timeout(MINUTE).unwrap(), Err(Reason::Cancelled));
            ask(2, &cancel);
            drop(held);
            assert_eq!(told.recv_timeout(MINUTE).unwrap(), Ok(()));
        });
    }
}
