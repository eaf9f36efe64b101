//! The two threads of an arena: one populates ahead of need, one unmaps what is over.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::state::Populating;
use super::{SegmentHandle, Shared};
use crate::owned_thread::{OwnedThread, StartThread};
use crate::segment::Unsealed;

/// Time that the populator rests after its first failure in a row; doubles up to the longest.
const REST_SHORTEST: Duration = Duration::from_millis(100);
/// A machine that is out of memory is asked again this often; costs one failing system call each time.
const REST_LONGEST: Duration = Duration::from_secs(10);

/// Priority of the thread that makes memory ahead of use, as `nice` counts it: a tenth of the processor where others want it.
const POPULATOR_NICE: i32 = 10;

/// Unmapping 1 GiB takes some 50 ms: not on the thread of whoever dropped the last block.
pub(super) fn reaper(start: &StartThread, handles: Receiver<Arc<SegmentHandle>>) -> io::Result<OwnedThread> {
    OwnedThread::spawn(start, "tl-reaper", move || handles.into_iter().for_each(drop))
}

/// Keeps the pool filled to its watermark until the arena stops.
pub(super) fn populator(start: &StartThread, shared: &Arc<Shared>) -> io::Result<OwnedThread> {
    let shared = Arc::clone(shared);
    OwnedThread::spawn(start, "tl-populator", move || {
        // Of this thread alone. Memory that is made ahead must not take the processor from whoever copies now.
        let _ = rustix::process::nice(POPULATOR_NICE);
        let mut serial = 0;
        let mut rest = None;
        while let Some((bytes, cancelled)) = next(&shared, &mut serial, rest) {
            let made = Unsealed::create_unless(bytes, &*shared.populate, &cancelled);
            // Whoever takes it may write through our map.
            made.iter().for_each(|made| made.fill_page_tables(&cancelled));
            rest = finish(&shared, made, rest);
        }
    })
}

/// Waits until something is to be populated, at least `rest` long; `None` when the arena stops.
fn next(shared: &Shared, serial: &mut u64, rest: Option<Duration>) -> Option<(u64, Arc<AtomicBool>)> {
    let not_before = rest.map(|rest| Instant::now() + rest);
    let mut state = shared.state.lock();
    loop {
        if state.stopped {
            return None;
        }
        let resting = not_before.filter(|instant| Instant::now() < *instant);
        match (resting, state.wanted_ready()) {
            (Some(instant), _) => {
                shared.changed.wait_until(&mut state, instant);
            }
            (None, None) => shared.changed.wait(&mut state),
            (None, Some(bytes)) => {
                *serial += 1;
                let cancelled = Arc::new(AtomicBool::new(false));
                state.populating =
                    Some(Populating { serial: *serial, bytes, cancelled: Arc::clone(&cancelled) });
                return Some((bytes, cancelled));
            }
        }
    }
}

/// Puts the new segment into the pool, unless its bytes were needed in the meantime. Returns how long to rest.
fn finish(
    shared: &Shared,
    made: Result<Unsealed, crate::SegmentError>,
    rest: Option<Duration>,
) -> Option<Duration> {
    let mut state = shared.state.lock();
    let cancelled = state
        .populating
        .as_ref()
        .is_some_and(|making| making.cancelled.load(std::sync::atomic::Ordering::Relaxed));
    let mut unwanted = None;
    let rest = match made {
        Ok(made) if cancelled || state.stopped => {
            unwanted = Some(made);
            None
        }
        Ok(made) => {
            state.pool.push(made);
            None
        }
        Err(crate::SegmentError::Cancelled { .. }) => None,
        Err(_) => {
            state.populate_failures += 1;
            Some(rest.map_or(REST_SHORTEST, |rest| (rest * 2).min(REST_LONGEST)))
        }
    };
    if unwanted.is_some() {
        // Whoever waits for these bytes waits until they are gone.
        parking_lot::MutexGuard::unlocked(&mut state, || drop(unwanted.take()));
    }
    state.populating = None;
    drop(state);
    shared.changed.notify_all();
    rest
}
