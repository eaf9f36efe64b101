//! Counts what a proxy carries in one direction, and says where that is to fail: at a byte, and not where what happened to be
//! read with it ends.

use parking_lot::Mutex;

/// One direction through a proxy.
#[derive(Default)]
pub(crate) struct Wire {
    /// Over all connections, and datagrams.
    pub(crate) all: Meter,
    /// Over all connections but the first.
    pub(crate) lanes: Meter,
    /// Over datagrams.
    pub(crate) datagrams: Meter,
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

impl Meter {
    /// Bytes that came, those among them that a failure kept back.
    pub(crate) fn carried(&self) -> u64 {
        self.0.lock().carried
    }

    /// How often it has failed.
    pub(crate) fn failures(&self) -> u64 {
        self.0.lock().failures
    }

    /// So many more bytes come through, and then it fails.
    pub(crate) fn fail_after(&self, more: u64) {
        let mut count = self.0.lock();
        count.fails_after = Some(count.carried + more);
    }

    /// It does not fail any more.
    pub(crate) fn mend(&self) {
        self.0.lock().fails_after = None;
    }

    /// Bytes come. How many came before them; and how many of them come through, if it fails in them.
    pub(super) fn take(&self, bytes: u64) -> (u64, Option<u64>) {
        let mut count = self.0.lock();
        let before = count.carried;
        count.carried += bytes;
        let fails = count.fails_after.take_if(|at| *at < before + bytes).map(|at| at - before);
        count.failures += u64::from(fails.is_some());
        (before, fails)
    }
}
