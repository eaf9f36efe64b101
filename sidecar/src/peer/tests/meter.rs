//! Counts what a proxy carries in one direction, and says where that is to stand still or to fail: to fail at a byte, and not where
//! what happened to be read with it ends.

use std::time::Duration;

use parking_lot::Mutex;

/// Direction through a proxy.
#[derive(Default)]
pub(crate) struct Wire {
    /// Over all connections, and datagrams.
    pub(crate) all: Meter,
    /// Over all connections but the first.
    pub(crate) lanes: Meter,
    /// Over datagrams.
    pub(crate) datagrams: Meter,
    stop: Mutex<Stop>,
}

/// Point at which a wire stands still. Datagrams do not.
#[derive(Default)]
struct Stop {
    at: Option<u64>,
    /// Readers that have something which must wait.
    stuck: u64,
    /// Nothing is carried any more.
    over: bool,
}

/// Counts bytes, and fails once where it is told to.
#[derive(Default)]
pub(crate) struct Meter(Mutex<Count>);

#[derive(Default)]
struct Count {
    carried: u64,
    fails_after: Option<u64>,
    failures: u64,
}

impl Wire {
    /// So many more bytes come through, and what comes behind them, or is read with the last of them, waits.
    pub(crate) fn stop_after(&self, more: u64) {
        self.stop.lock().at = Some(self.all.carried() + more);
    }

    pub(crate) fn go_on(&self) {
        self.stop.lock().at = None;
    }

    /// Returns whether something waits.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stop.lock().stuck > 0
    }

    /// Ends the wire; whatever waits is lost.
    pub(super) fn end(&self) {
        self.stop.lock().over = true;
    }

    /// Before bytes are carried: waits where the wire stands still. False: they are lost.
    pub(super) fn await_turn(&self, bytes: u64) -> bool {
        let mut waits = false;
        loop {
            let mut stop = self.stop.lock();
            let must_wait = !stop.over && stop.at.is_some_and(|at| self.all.carried() + bytes > at);
            match (waits, must_wait) {
                (false, true) => stop.stuck += 1,
                (true, false) => stop.stuck -= 1,
                _ => {}
            }
            waits = must_wait;
            if !must_wait {
                return !stop.over;
            }
            drop(stop);
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
}

impl Meter {
    /// Bytes that came, those among them that a failure kept back.
    pub(crate) fn carried(&self) -> u64 {
        self.0.lock().carried
    }

    /// Number of times that it has failed.
    pub(crate) fn failures(&self) -> u64 {
        self.0.lock().failures
    }

    /// So many more bytes come through, and then it fails.
    pub(crate) fn fail_after(&self, more: u64) {
        let mut count = self.0.lock();
        count.fails_after = Some(count.carried + more);
    }

    /// Mends the wire: it does not fail any more.
    pub(crate) fn mend(&self) {
        self.0.lock().fails_after = None;
    }

    /// Bytes come. How many came before them; and how many of them come through, if it fails in them. `for_good`: whatever comes
    /// after a failure fails, too.
    pub(super) fn take(&self, bytes: u64, for_good: bool) -> (u64, Option<u64>) {
        let mut count = self.0.lock();
        let before = count.carried;
        count.carried += bytes;
        let fails = count.fails_after.filter(|at| *at < before + bytes).map(|at| at.saturating_sub(before));
        if fails.is_some() {
            count.failures += 1;
            count.fails_after = count.fails_after.filter(|_| for_good);
        }
        (before, fails)
    }
}
