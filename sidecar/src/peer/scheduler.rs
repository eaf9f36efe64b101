//! The one thread that looks at the clock: calls whose time is over, peers to be dialed, connections that fell silent.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorlane_proto::{Failure, Reason};

use super::dial::Due;
use super::link::Ended;
use super::own_addresses;
use super::reach;
use super::remote::{Peer, State};
use super::seats::{FAREWELL, LackingSide};
use super::serving;
use super::shared::{LEFT_MAX, Shared};
use crate::clock;

/// Longest time between two looks at everything: how late a new peer of the directory is dialed at worst.
const ROUND: Duration = Duration::from_millis(500);
/// Time between two looks for a seat that somebody waits for.
const SEAT_LOOK: Duration = Duration::from_millis(50);
/// Time for which attempts to connect that nobody waits for are gathered, to be looked at together. A look visits every
/// peer of the directory: with one for each attempt, a thousand peers that cannot be reached took a tenth of a
/// processor and more.
const GATHER: Duration = Duration::from_millis(50);
/// Attempts to connect at the same time to peers that nobody waits for. Each costs a thread.
pub(super) const DIALS_MAX: usize = 64;
/// Attempts at the same time in all. Peers that do not answer and that nobody waits for leave room for those that somebody
/// waits for.
const DIALS_NEEDED_MAX: usize = 2 * DIALS_MAX;

#[derive(Default)]
struct TimerQueue {
    deadlines: BTreeMap<(Instant, u64), Arc<Peer>>,
    /// Until when the thread sleeps; `None` while it is awake.
    sleeps_until: Option<Instant>,
    /// Time to look at everything at the latest, although nobody waits for it.
    soon: Option<Instant>,
    /// Somebody waits for a peer for which there was no room in the last round.
    crowded: bool,
    woken: bool,
    stop: bool,
}

/// State that a round leaves for the next one.
struct Round {
    /// Time at which the next round is due.
    next: Instant,
    /// Somebody waits for a peer for which there was no room.
    crowded: bool,
}

/// State that the scheduler has to think of.
#[derive(Default)]
pub(super) struct Scheduler {
    agenda: Mutex<TimerQueue>,
    wake: Condvar,
    /// True if more peers were listed in the last round than there are seats.
    was_crowd: AtomicBool,
    /// Number of rounds.
    #[cfg(test)]
    rounds: std::sync::atomic::AtomicU64,
}

impl Scheduler {
    /// A call that ends by itself at its deadline.
    pub(super) fn expect(&self, deadline: Instant, call: u64, peer: &Arc<Peer>) {
        let mut agenda = self.agenda.lock();
        agenda.deadlines.insert((deadline, call), Arc::clone(peer));
        if agenda.sleeps_until.is_some_and(|until| deadline < until) {
            agenda.woken = true;
            self.wake.notify_one();
        }
    }

    /// Calls that are over.
    pub(super) fn forget(&self, calls: &[(Instant, u64)]) {
        if calls.is_empty() {
            return;
        }
        let mut agenda = self.agenda.lock();
        for call in calls {
            agenda.deadlines.remove(call);
        }
    }

    /// Something changed that may want a connection.
    pub(super) fn wake(&self) {
        self.agenda.lock().woken = true;
        self.wake.notify_one();
    }

    /// An attempt to connect is over. `needed`: somebody waits for that peer.
    pub(super) fn attempted(&self, needed: bool) {
        let mut agenda = self.agenda.lock();
        if needed || agenda.crowded {
            agenda.woken = true;
            self.wake.notify_one();
        } else if agenda.soon.is_none() {
            let soon = Instant::now() + GATHER;
            agenda.soon = Some(soon);
            if agenda.sleeps_until.is_some_and(|until| soon < until) {
                self.wake.notify_one();
            }
        }
    }

    pub(super) fn stop(&self) {
        self.agenda.lock().stop = true;
        self.wake.notify_one();
    }

    /// The thread.
    pub(super) fn run(&self, shared: &Arc<Shared>) {
        while let Some(overdue) = self.overdue() {
            for ((_, call), peer) in overdue {
                expire(shared, &peer, call);
            }
            shared.config.threads.point("clock");
            let round = round(shared);
            #[cfg(test)]
            self.rounds.fetch_add(1, Ordering::SeqCst);
            self.sleep(round);
        }
    }

    /// Number of rounds that are over.
    #[cfg(test)]
    pub(super) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::SeqCst)
    }

    /// Begins a round: calls whose time is over; `None` once it is told to stop. Whatever wakes from here on asks for one more.
    fn overdue(&self) -> Option<BTreeMap<(Instant, u64), Arc<Peer>>> {
        let mut agenda = self.agenda.lock();
        if agenda.stop {
            return None;
        }
        agenda.woken = false;
        agenda.soon = None;
        let later = agenda.deadlines.split_off(&(Instant::now(), u64::MAX));
        Some(std::mem::replace(&mut agenda.deadlines, later))
    }

    /// Sleeps until the next round is due, or until the first deadline, or until it is woken.
    fn sleep(&self, Round { next, crowded }: Round) {
        let mut agenda = self.agenda.lock();
        agenda.crowded = crowded;
        while !agenda.woken && !agenda.stop {
            let first = agenda.deadlines.first_key_value().map(|((deadline, _), _)| *deadline);
            let until = [first, agenda.soon].into_iter().flatten().fold(next, Instant::min);
            agenda.sleeps_until = Some(until);
            if self.wake.wait_until(&mut agenda, until).timed_out() {
                break;
            }
        }
        agenda.sleeps_until = None;
    }
}

fn expire(shared: &Arc<Shared>, peer: &Arc<Peer>, call: u64) {
    let effects = {
        let mut state = peer.state.lock();
        let Some(over) = state.calls.get(&call) else { return };
        // The caller may have more time than this question has, or has spent some of it already.
        let limit = clock::told(over.deadline.saturating_duration_since(over.begun));
        let failure = if state.link.is_some() {
            let mut message = match over.came_of() {
                Some((came, of)) => format!(
                    "{came} of {of} bytes of a tensor of {} had come after {limit}: let the call have a longer deadline",
                    peer.name
                ),
                None => format!("{} did not answer within {limit}", peer.name),
            };
            let stood = peer.standstill.lock().told_since(over.begun);
            if over.is_pull() && !stood.is_empty() {
                message.push_str(&format!("; meanwhile {stood}"));
            }
            Failure::new(Reason::DeadlineExceeded, message)
        } else {
            state.unreached(&peer.name, over.deadline.saturating_duration_since(over.begun))
        };
        state.withdraw(call, failure)
    };
    shared.perform(effects);
}

/// A peer whose time to be dialed has come.
struct Waiting {
    peer: Arc<Peer>,
    /// Somebody waits for it.
    needed: bool,
    /// Time at which it was dialed last.
    last: Option<Instant>,
}

/// Returns whether one more attempt may begin beside so many.
fn is_room(dials: usize, needed: bool) -> bool {
    dials < if needed { DIALS_NEEDED_MAX } else { DIALS_MAX }
}

/// Looks at every peer.
fn round(shared: &Arc<Shared>) -> Round {
    let now = Instant::now();
    let mut next = now + ROUND.min(shared.config.progress / 4);
    let known = shared.known.all();
    // As the others read it of us: both ends of a pair must come to the same answer while a key is changed.
    let listed = known.iter().find(|entry| entry.name == shared.me.peer);
    let ours = listed.and_then(|entry| entry.fingerprints.iter().min().copied());
    let ours = ours.unwrap_or_else(|| shared.keys().fingerprint);
    for entry in &known {
        if entry.name != shared.me.peer && entry.fingerprints.iter().min() > Some(&ours) {
            shared.peer(&entry.name).set_eager();
        }
    }
    own_addresses::tend(shared, listed.map(|entry| &entry.addresses[..]), now);
    let is_mesh = shared.is_mesh();
    let is_mesh_again = shared.scheduler.was_crowd.swap(!is_mesh, Ordering::Relaxed) && is_mesh;
    let by_name: HashMap<_, _> = known.iter().map(|entry| (&entry.name, entry)).collect();
    if let Some(node) = &shared.node {
        node.tend(shared);
    }
    let (mut dials, mut waiting) = (0, Vec::new());
    for peer in shared.peers() {
        let listed = by_name.get(&peer.name);
        let mut state = peer.state.lock();
        dials += usize::from(state.dial.running);
        if is_mesh_again {
            state.dial.rest_no_more();
        }
        if let Some(link) = state.link.clone() {
            drop(state);
            if link.gives_way() {
                link.hurry_away();
                next = next.min(now + FAREWELL);
                continue;
            }
            // A directory that lists nobody is one that is not well, not one that everyone has left.
            if !known.is_empty()
                && !listed.is_some_and(|entry| entry.fingerprints.contains(&link.fingerprint))
            {
                link.end(Ended::Revoked);
            }
            if shared.is_retired(&link.ours) {
                link.end_in_order(Ended::Rotated);
            }
            listen_for(shared, &link);
            if let Some(at) = link.ways.tend() {
                next = next.min(at);
            }
            if link.since.elapsed() >= shared.config.grace {
                serving::end_forgotten(shared, &link);
            }
            continue;
        }
        let (progress, grace) = (shared.config.progress, shared.config.grace);
        let elsewhere = state.turn_to_spares(progress.min(grace), now);
        let over = elsewhere.and(state.give_up_lost(grace, now));
        let awaits_ip = listed.is_some_and(|entry| entry.awaits_ip);
        state.awaits_ip = awaits_ip;
        let needed =
            state.needs_link() || !is_mesh && state.must_return(peer.is_held(), shared.config.grace, now);
        let eager = is_mesh && listed.is_some() && peer.is_eager();
        let (due, last) = (state.dial.due(eager, needed, now, shared.config.backoff.first), state.dial.last);
        drop(state);
        match due {
            // Whoever waits for it goes on waiting: it is looked at again with each round.
            _ if awaits_ip => {}
            Due::Now => waiting.push(Waiting { peer, needed, last }),
            Due::At(at) if needed => next = next.min(at),
            Due::At(at) => next = next.min(at.max(now + GATHER)),
            Due::Never => {}
        }
        shared.perform(over);
    }
    if !known.is_empty() {
        shared.forget_left(LEFT_MAX, |peer| by_name.contains_key(peer));
    }
    let seated = seat(shared, &mut waiting);
    if !seated {
        next = next.min(now + SEAT_LOOK);
    }
    Round { next, crowded: dial(shared, waiting, dials, now) }
}

/// Sends those away that somebody waits for where there is no seat for them now. Returns whether there was one, or nobody waits.
fn seat(shared: &Arc<Shared>, waiting: &mut Vec<Waiting>) -> bool {
    if !waiting.iter().any(|one| one.needed) {
        return true;
    }
    let Some(told) = shared.lacks_seat() else { return true };
    for one in waiting.iter().filter(|one| one.needed) {
        one.peer.state.lock().no_seat = Some((LackingSide::Ours, told));
    }
    waiting.retain(|one| !one.needed);
    false
}

/// Dials those for whom there is room beside so many others: first those that somebody waits for, and of these, and of the rest,
/// whoever was not dialed for longest. Whether somebody waits for one that found no room.
fn dial(shared: &Arc<Shared>, mut waiting: Vec<Waiting>, mut dials: usize, now: Instant) -> bool {
    waiting.sort_by_key(|one| (!one.needed, one.last));
    let mut crowded = false;
    for Waiting { peer, needed, .. } in waiting {
        if !is_room(dials, needed) {
            crowded |= needed;
            continue;
        }
        let mut state = peer.state.lock();
        // It may have come by itself meanwhile.
        if state.link.is_none() && !state.dial.running {
            dials += 1;
            begin(shared, &peer, &mut state, now);
        }
    }
    crowded
}

fn begin(shared: &Arc<Shared>, peer: &Arc<Peer>, state: &mut State, now: Instant) {
    let attempt = state.dial.begin(now);
    state.no_seat.take_if(|(side, _)| *side == LackingSide::Ours);
    let (on_thread, dialed) = (Arc::clone(shared), Arc::clone(peer));
    let dial = move || match on_thread.caught("dial", || reach::dial(&on_thread, &dialed, attempt)) {
        // Whatever becomes of it, the attempt has not failed.
        Some(Some(up)) => up.run(),
        Some(None) => {}
        None => on_thread.dial_failed(&dialed, attempt, "a mistake of this sidecar"),
    };
    if !shared.spawn("tl-peer-dial", dial) {
        state.dial.fail(attempt, now, shared.config.backoff, 1.0);
    }
}

/// Asks a connection that was silent for a while whether it lives; ends it when it stayed silent. If it was we who stood still,
/// nobody has been asked yet.
fn listen_for(shared: &Arc<Shared>, link: &Arc<super::link::Link>) {
    let (silent, progress) = (link.silent(), shared.config.progress);
    if silent >= progress / 2 && link.ask() >= progress / 2 && silent >= progress {
        link.end(Ended::Progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn long(crowded: bool) -> Round {
        Round { next: Instant::now() + LONG, crowded }
    }

    #[test]
    fn attempts_that_nobody_waits_for_are_looked_at_together_and_soon() {
        let scheduler = Scheduler::default();
        let began = Instant::now();
        scheduler.attempted(false);
        let soon = scheduler.agenda.lock().soon;
        (0..1000).for_each(|_| scheduler.attempted(false));
        assert_eq!(scheduler.agenda.lock().soon, soon, "those that come later put nothing off");
        scheduler.sleep(long(false));
        assert!((GATHER..LONG).contains(&began.elapsed()));
        assert!(scheduler.overdue().is_some());
        assert_eq!(scheduler.agenda.lock().soon, None, "a thousand of them are one");
    }

    #[test]
    fn an_attempt_that_ends_shortens_a_sleep_that_has_begun() {
        let scheduler = Scheduler::default();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| scheduler.sleep(long(false)));
            while scheduler.agenda.lock().sleeps_until.is_none() && !sleeper.is_finished() {
                std::thread::yield_now();
            }
            scheduler.attempted(false);
            sleeper.join().unwrap();
        });
        assert!((GATHER..LONG).contains(&began.elapsed()));
    }

    #[test]
    fn an_attempt_that_somebody_waits_for_or_makes_room_for_is_looked_at_at_once() {
        for (needed, crowded, woken) in
            [(false, false, false), (true, false, true), (false, true, true), (true, true, true)]
        {
            let scheduler = Scheduler::default();
            scheduler.agenda.lock().crowded = crowded;
            scheduler.attempted(needed);
            assert_eq!(scheduler.agenda.lock().woken, woken, "needed {needed}, crowded {crowded}");
        }
    }

    #[test]
    fn peers_that_somebody_waits_for_have_room_that_others_have_not() {
        let room = |dials| [is_room(dials, false), is_room(dials, true)];
        assert_eq!(
            [0, 63, 64, 127, 128].map(room),
            [[true, true], [true, true], [false, true], [false, true], [false, false]]
        );
    }
}
