//! Jobs that run and jobs in line: each caller has a share of both. Pure; `K` is a caller, `J` a job.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Instant;

/// Jobs of one caller that run at a time.
pub(super) const AT_A_TIME: usize = 16;
/// Jobs of all callers that run at a time. Beyond it each caller has one at most.
const CROWD: usize = 512;
/// Most jobs that run at a time. Each has a thread.
pub(super) const RUNNING_MAX: usize = 1_024;
/// Jobs that each caller may have in line, whoever else is there.
const WAITING_SURE: usize = 4_096;
/// Most jobs of one caller in line: a call of the session socket may have as many items.
const WAITING_MAX: usize = 65_536;
/// Jobs of all callers in line. Beyond it each has no more than those that it may have for sure.
const WAITING_ALL: usize = 131_072;

/// Jobs that run and jobs in line.
pub(super) struct Turns<K, J> {
    callers: HashMap<K, Share<J>>,
    /// Callers with jobs in line, in the order of their turns. Some may have none any more.
    turns: VecDeque<K>,
    deadlines: BTreeMap<(Instant, u64), K>,
    running: usize,
    waiting: usize,
    last: u64,
}

struct Share<J> {
    running: usize,
    waiting: BTreeMap<u64, (Instant, J)>,
    /// Set while the caller stands among the turns.
    has_turn: bool,
}

/// Fate of a job that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry<J> {
    /// Job that is to be run now; [`Turns::leave`] follows.
    Runs(J),
    /// Job in line, by its number.
    Waits(u64),
    /// Job for which there is no place in line.
    Full(J),
}

// === impl Turns ===

impl<K, J> Default for Turns<K, J> {
    fn default() -> Self {
        Self {
            callers: HashMap::new(),
            turns: VecDeque::new(),
            deadlines: BTreeMap::new(),
            running: 0,
            waiting: 0,
            last: 0,
        }
    }
}

impl<K: Clone + Eq + Hash, J> Turns<K, J> {
    /// Takes in a job.
    pub(super) fn enter(&mut self, key: K, deadline: Instant, job: J) -> Entry<J> {
        let new = || Share { running: 0, waiting: BTreeMap::new(), has_turn: false };
        let share = self.callers.entry(key.clone()).or_insert_with(new);
        let own = share.waiting.len();
        if own == 0 && may_run(share.running, self.running) {
            share.running += 1;
            self.running += 1;
            return Entry::Runs(job);
        }
        if own >= WAITING_MAX || own >= WAITING_SURE && self.waiting >= WAITING_ALL {
            return Entry::Full(job);
        }
        self.last += 1;
        share.waiting.insert(self.last, (deadline, job));
        self.waiting += 1;
        self.deadlines.insert((deadline, self.last), key.clone());
        if !std::mem::replace(&mut share.has_turn, true) {
            self.turns.push_back(key);
        }
        Entry::Waits(self.last)
    }

    /// A job of a caller is over.
    pub(super) fn leave(&mut self, key: &K) {
        if let Some(share) = self.callers.get_mut(key) {
            share.running -= 1;
            self.running -= 1;
        }
        self.forget(key);
    }

    /// Takes the next job that has a place; [`Turns::leave`] follows.
    pub(super) fn next(&mut self) -> Option<(K, J)> {
        for _ in 0..self.turns.len() {
            let key = self.turns.pop_front()?;
            let share = self.callers.get_mut(&key)?;
            if share.waiting.is_empty() {
                share.has_turn = false;
                self.forget(&key);
                continue;
            }
            self.turns.push_back(key.clone());
            if !may_run(share.running, self.running) {
                continue;
            }
            let (number, (deadline, job)) = share.waiting.pop_first()?;
            share.running += 1;
            self.running += 1;
            self.waiting -= 1;
            self.deadlines.remove(&(deadline, number));
            return Some((key, job));
        }
        None
    }

    /// Takes a job out of the line, if it is there still.
    pub(super) fn take(&mut self, key: &K, number: u64) -> Option<J> {
        let (deadline, job) = self.callers.get_mut(key)?.waiting.remove(&number)?;
        self.waiting -= 1;
        self.deadlines.remove(&(deadline, number));
        Some(job)
    }

    /// Takes those jobs out of the line whose deadlines are over.
    pub(super) fn due(&mut self, now: Instant) -> Vec<J> {
        let mut due = Vec::new();
        while let Some((&(deadline, number), key)) = self.deadlines.first_key_value() {
            if deadline > now {
                break;
            }
            let key = key.clone();
            due.extend(self.take(&key, number));
        }
        due
    }

    /// Takes all jobs out of the line.
    pub(super) fn drain(&mut self) -> Vec<J> {
        self.deadlines.clear();
        self.waiting = 0;
        let all = self.callers.values_mut().flat_map(|share| std::mem::take(&mut share.waiting));
        all.map(|(_, (_, job))| job).collect()
    }

    /// Deadline that is over first, of all in line.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Number of jobs in line.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Forgets a caller that has no jobs.
    fn forget(&mut self, key: &K) {
        let is_idle = |share: &Share<J>| share.running == 0 && share.waiting.is_empty() && !share.has_turn;
        if self.callers.get(key).is_some_and(is_idle) {
            self.callers.remove(key);
        }
    }
}

/// Returns whether a caller with so many jobs that run, of so many of all, may have one more.
fn may_run(own: usize, all: usize) -> bool {
    all < RUNNING_MAX && (own == 0 || own < AT_A_TIME && all < CROWD)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn later(ms: u64) -> Instant {
        Instant::now() + Duration::from_secs(3_600) + Duration::from_millis(ms)
    }

    /// Enters so many jobs of a caller; how many of them run, and how many wait.
    fn enter(turns: &mut Turns<u32, u32>, caller: u32, jobs: u32) -> (usize, usize) {
        let (mut runs, mut waits) = (0, 0);
        for job in 0..jobs {
            match turns.enter(caller, later(0), job) {
                Entry::Runs(_) => runs += 1,
                Entry::Waits(_) => waits += 1,
                Entry::Full(_) => {}
            }
        }
        (runs, waits)
    }

    #[test]
    fn a_caller_with_thousands_of_jobs_has_its_share_and_the_others_theirs() {
        let mut turns = Turns::default();
        assert_eq!(enter(&mut turns, 1, 5_000), (AT_A_TIME, 5_000 - AT_A_TIME), "none is refused");
        assert_eq!(enter(&mut turns, 2, 1), (1, 0));
        turns.leave(&2);
        assert_eq!(turns.next(), None, "the place was the other's");
        for job in 0..5_000 - AT_A_TIME {
            turns.leave(&1);
            assert_eq!(turns.next(), Some((1, (job + AT_A_TIME) as u32)), "in their order");
            assert_eq!(turns.next(), None);
        }
        (0..AT_A_TIME).for_each(|_| turns.leave(&1));
        assert_eq!((turns.next(), turns.waiting(), turns.next_deadline()), (None, 0, None));
        assert!(turns.callers.is_empty() && turns.turns.is_empty(), "callers without jobs are forgotten");
    }

    #[test]
    fn whoever_has_none_that_runs_has_one_in_any_crowd() {
        let mut turns = Turns::default();
        let crowd = (CROWD / AT_A_TIME) as u32;
        for caller in 0..crowd {
            assert_eq!(enter(&mut turns, caller, 20), (AT_A_TIME, 4));
        }
        assert_eq!(enter(&mut turns, crowd, 2), (1, 1), "one at once, and no second one");
        turns.leave(&0);
        assert_eq!(turns.next(), None, "there are as many as before still");
        turns.leave(&1);
        let (next, _) = turns.next().expect("one has a place");
        assert!(next <= 1 || next == crowd, "{next}");
        let newcomers = (RUNNING_MAX - turns.running) as u32;
        for caller in 1_000..1_000 + newcomers {
            assert_eq!(enter(&mut turns, caller, 1), (1, 0));
        }
        assert_eq!(enter(&mut turns, 9_999, 1), (0, 1), "there are no more threads");
        turns.leave(&1_000);
        assert_eq!(turns.next(), Some((9_999, 0)), "and it is the next one");
    }

    #[test]
    fn jobs_in_line_end_at_their_deadlines_or_when_they_are_taken_out() {
        let mut turns = Turns::default();
        enter(&mut turns, 1, AT_A_TIME as u32);
        let [first, second, third] = [3, 1, 2].map(later);
        let number = |entry| match entry {
            Entry::Waits(number) => number,
            other => panic!("{other:?}"),
        };
        let taken = number(turns.enter(1, first, 70));
        number(turns.enter(1, second, 71));
        number(turns.enter(1, third, 72));
        assert_eq!(turns.next_deadline(), Some(second));
        assert!(turns.due(later(0) - Duration::from_secs(60)).is_empty());
        assert_eq!(turns.due(third), [71, 72]);
        assert_eq!((turns.take(&1, taken), turns.take(&1, taken)), (Some(70), None));
        assert_eq!((turns.waiting(), turns.next_deadline()), (0, None));
        turns.leave(&1);
        assert_eq!(turns.next(), None);
        enter(&mut turns, 1, 3);
        assert_eq!((turns.drain().len(), turns.waiting(), turns.next()), (2, 0, None));
    }

    #[test]
    fn the_line_of_a_caller_is_bounded_and_so_is_that_of_all() {
        let mut turns = Turns::default();
        assert_eq!(enter(&mut turns, 1, 70_000), (AT_A_TIME, WAITING_MAX));
        assert_eq!(enter(&mut turns, 2, 70_000).1, WAITING_MAX);
        assert_eq!(enter(&mut turns, 3, 70_000), (AT_A_TIME, WAITING_SURE), "some places are there for sure");
    }
}
