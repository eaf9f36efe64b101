//! A tensor of another peer on its way here, as those see it who are served from it meanwhile: which bytes are there, and how
//! they are read. It knows neither who brings them nor who wants them.
//!
//! ```text
//!   nowhere ──begins──> coming ──────whole──────> whole: a sealed block
//!      │                  │ (each piece that lands wakes those who wait)
//!      └──────gone────────┴──────────gone───────> gone
//! ```
//! What is coming is not proven yet: whoever is served from it proves all of it at its own end, by the owner's checksum.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tensorlane_memory::Block;

use super::transport::lanes::Transfer;

/// Secret that the owner of a tensor gives to its readers and to nobody else: whoever shows it was let in by the owner.
pub type RelayToken = [u8; 16];

/// Time that a read waits when the last byte has come and the block is not sealed yet.
const SEALING: Duration = Duration::from_secs(2);

/// A tensor on its way here.
#[derive(Default)]
pub struct PartialTensor {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    bytes: Bytes,
    pass: Option<RelayToken>,
}

#[derive(Default)]
enum Bytes {
    #[default]
    Nowhere,
    Coming(Weak<Transfer>),
    Whole(Block),
    Gone,
}

/// Availability of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// Present bytes.
    Now,
    /// Not yet.
    Later,
    /// Never, or not for this asker.
    Gone,
}

impl PartialTensor {
    /// Of which nothing is here yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// All bytes are in a sealed block, proven or not.
    pub fn whole(&self, block: Block) {
        self.set(Bytes::Whole(block));
    }

    /// Told that the rest does not come, or is not what it should be.
    pub fn gone(&self) {
        self.set(Bytes::Gone);
    }

    /// The pass that its readers show, once the owner has said it.
    pub fn pass(&self) -> Option<RelayToken> {
        self.state.lock().pass
    }

    /// The owner has said what its readers show.
    pub(super) fn admit(&self, pass: RelayToken) {
        self.state.lock().pass = Some(pass);
        self.news.notify_all();
    }

    /// Several writers bring it.
    pub(super) fn begins(&self, transfer: &Arc<Transfer>) {
        self.set(Bytes::Coming(Arc::downgrade(transfer)));
    }

    /// Something has landed.
    pub(super) fn stir(&self) {
        // Behind the lock, so that nobody looks, finds nothing and then misses this.
        drop(self.state.lock());
        self.news.notify_all();
    }

    fn set(&self, bytes: Bytes) {
        let before = {
            let mut state = self.state.lock();
            match state.bytes {
                Bytes::Gone => None,
                _ => Some(std::mem::replace(&mut state.bytes, bytes)),
            }
        };
        drop(before);
        self.news.notify_all();
    }

    /// Waits for bytes, until then at most.
    pub(super) fn wait(&self, range: &Range<u64>, shown: &RelayToken, until: Instant) -> Ready {
        let mut state = self.state.lock();
        loop {
            match state.ready(range, shown) {
                Ready::Later if self.news.wait_until(&mut state, until).timed_out() => {
                    return state.ready(range, shown);
                }
                Ready::Later => {}
                ready => return ready,
            }
        }
    }

    /// Reads bytes that were waited for. False where they are gone since.
    pub(super) fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let until = Instant::now() + SEALING;
        let mut state = self.state.lock();
        loop {
            let transfer = match &state.bytes {
                Bytes::Coming(transfer) => transfer.upgrade(),
                Bytes::Whole(block) => {
                    let block = block.clone();
                    drop(state);
                    let Ok(from) = block.chunk(at..at + to.len() as u64) else { return false };
                    to.copy_from_slice(from);
                    return true;
                }
                Bytes::Nowhere | Bytes::Gone => return false,
            };
            // Copied without this lock: whoever lands a piece needs it.
            let read = parking_lot::MutexGuard::unlocked(&mut state, || {
                transfer.is_some_and(|transfer| transfer.copy(at, to))
            });
            if read {
                return true;
            }
            // It is whole, and not sealed yet.
            if matches!(state.bytes, Bytes::Coming(_)) && self.news.wait_until(&mut state, until).timed_out()
            {
                return false;
            }
        }
    }
}

impl State {
    fn ready(&self, range: &Range<u64>, shown: &RelayToken) -> Ready {
        match self.pass {
            Some(pass) if pass != *shown => return Ready::Gone,
            Some(_) => {}
            None if matches!(self.bytes, Bytes::Gone) => return Ready::Gone,
            // Its asker was quicker than the owner's answer to us.
            None => return Ready::Later,
        }
        match &self.bytes {
            Bytes::Coming(transfer) if transfer.upgrade().is_some_and(|transfer| transfer.has(range)) => {
                Ready::Now
            }
            Bytes::Whole(_) => Ready::Now,
            Bytes::Nowhere | Bytes::Coming(_) => Ready::Later,
            Bytes::Gone => Ready::Gone,
        }
    }
}

impl std::fmt::Debug for PartialTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        let bytes = match state.bytes {
            Bytes::Nowhere => "nowhere",
            Bytes::Coming(_) => "coming",
            Bytes::Whole(_) => "whole",
            Bytes::Gone => "gone",
        };
        f.debug_struct("PartialTensor").field("bytes", &bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::world::{arena, block, sealed};
    use super::*;
    use crate::peer::transport::lanes::GRANULE;

    const PASS: RelayToken = [7; 16];

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[test]
    fn bytes_are_had_as_they_land_and_after_they_are_sealed() {
        let arena = arena(16 << 20);
        let block = block(&arena, 2 * GRANULE);
        let growth = PartialTensor::new();
        assert_eq!(growth.wait(&(0..GRANULE), &PASS, soon()), Ready::Later, "nobody was let in yet");
        growth.admit(PASS);
        assert_eq!(growth.wait(&(0..GRANULE), &PASS, soon()), Ready::Later);
        let deadline = Instant::now() + Duration::from_secs(60);
        let transfer = Transfer::growing(1, block.landing().unwrap(), 0, deadline, Some(Arc::clone(&growth)));
        let waiting = Arc::clone(&growth);
        let waits = std::thread::spawn(move || waiting.wait(&(0..GRANULE), &PASS, deadline));
        transfer.write_for_test(1, 3);
        assert_eq!(waits.join().unwrap(), Ready::Now, "a piece that lands wakes who waits");
        assert_eq!(growth.wait(&(0..GRANULE), &[8; 16], soon()), Ready::Gone, "it shows another pass");
        assert_eq!(growth.wait(&(0..2 * GRANULE), &PASS, soon()), Ready::Later);
        let mut read = [0; 5];
        assert!(growth.read(GRANULE - 5, &mut read));
        assert_eq!(read, [3; 5]);
        let landing = transfer.write_for_test(1, 4).unwrap();
        drop((landing, transfer));
        block.mark_sealed().unwrap();
        growth.whole(block.clone());
        assert!(growth.read(GRANULE - 2, &mut read));
        assert_eq!(read, [3, 3, 4, 4, 4]);
        growth.gone();
        assert!(!growth.read(0, &mut read));
        growth.whole(sealed(&arena, 5, 1));
        assert_eq!(growth.wait(&(0..1), &PASS, soon()), Ready::Gone, "what was found wrong stays so");
    }
}
