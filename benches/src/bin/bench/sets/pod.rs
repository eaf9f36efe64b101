//! Rows of a set of the same pod.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tensorlane_benches::limits::gather::Gather;
use tensorlane_benches::limits::memory::Memcpy;
use tensorlane_benches::limits::round_trip::UnixRoundTrip;
use tensorlane_benches::pairs::interleaved;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::{cores, machine, stats, tensors};
use tensorlane_client::set::mutable::MutableSet;

use super::table::{Picks, Table};
use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, sets};

/// The set of which rows are read.
pub(super) const GATHERED: Table = Table { rows: 65_536, row_bytes: 16 << 10 };
/// Rows of one read.
pub(super) const READ: usize = 1_000;
/// The set of which rows are committed, as large as frames of 640 x 640 in colour.
pub(super) const COMMITTED: Table = Table { rows: 64, row_bytes: 640 * 640 * 3 };
/// Rows of one commit.
pub(super) const COMMIT: usize = 5;
/// Reads or commits of one value.
pub(super) const TIMES: usize = 7;
/// Round trips of one value of the limit.
pub(super) const ROUND_TRIPS: usize = 200;

/// The smaller set of those that differ in their size, and what is committed to either.
const SMALL: Table = Table { rows: 2_560, row_bytes: 4 << 10 };
const SMALL_COMMIT: usize = 16;
const SMALL_TIMES: usize = 51;
/// Rows of the larger one, where there is memory for them.
const LARGE_ROWS: u64 = 2_621_440;
const GIB: u64 = 1 << 30;

pub(super) fn gather(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("reads of 1,000 rows: the caller and the C program on one core, the sidecar on another");
    let (scratch, far) = (Scratch::make()?, Some(bench.cores.far));
    let options = SidecarOptions { core: far, ..SidecarOptions::new("gather", 2 * GIB) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let near = Some(bench.cores.near);
    let mut copies = Gather::start(&scratch, near, GATHERED.rows, GATHERED.row_bytes)?;
    let mut raw = UnixRoundTrip::start(&scratch, far)?;
    let client = sidecar.client()?;
    let set = GATHERED.create(&client, "gather", &[])?;
    GATHERED.fill(&set)?;
    tensors::settle(&client)?;
    let pairs = cores::on(near, || {
        let mut picks = Picks::new();
        let ours = || {
            median(TIMES, || GATHERED.read_us(&set, &picks.rows(READ, GATHERED.rows), 0)).map(|us| us / 1e3)
        };
        let limit = || {
            let copied = median(TIMES, || copies.us(READ))?;
            Ok((copied + raw.median_us(ROUND_TRIPS)?) / 1e3)
        };
        interleaved(PAIRS, WARM_UP, limit, ours)
    })??;
    drop((set, client));
    sidecar.end()?;
    Ok(vec![Measured::new(&sets::GATHER_POD, pairs)])
}

pub(super) fn commit(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("commits of 5 rows of 1.2 MB: all cores, sidecar and limit alike");
    let scratch = Scratch::make()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("commit", GIB), &bench.programs, &scratch)?;
    let mut raw = UnixRoundTrip::start(&scratch, None)?;
    let bytes = COMMIT * COMMITTED.row_bytes as usize;
    let copy = Memcpy::best(&Arc::new(vec![0x5a; bytes]), bench.cores.count)?;
    let client = sidecar.client()?;
    let set = COMMITTED.create(&client, "commit", &[])?;
    COMMITTED.fill(&set)?;
    tensors::settle(&client)?;
    let mut commits = Commits::new(COMMITTED, &set, COMMIT);
    let limit = || {
        let copied = median(TIMES, || copy.seconds())? * 1e6;
        Ok((2.0 * (copied + raw.median_us(ROUND_TRIPS)?)) / 1e3)
    };
    let pairs = interleaved(PAIRS, WARM_UP, limit, || Ok(commits.us(TIMES)? / 1e3))?;
    drop((set, client));
    sidecar.end()?;
    let note = Some(format!("memcpy: {}", copy.way()));
    Ok(vec![Measured { note, ..Measured::new(&sets::COMMIT_POD, pairs) }])
}

pub(super) fn size_free(bench: &Bench) -> Result<Vec<Measured>> {
    // Half of what there is, in whole commits of the filling.
    let room = machine::available_memory()? / 2 / SMALL.row_bytes / 16_384 * 16_384;
    let large = Table { rows: LARGE_ROWS.min(room), ..SMALL };
    let gib = large.bytes() as f64 / GIB as f64;
    ensure!(large.rows > SMALL.rows, "there is no memory for a larger set than {} bytes", SMALL.bytes());
    bench.progress(&format!("commits of 64 KiB in sets of 10 MiB and {gib:.1} GiB"));
    let (scratch, far) = (Scratch::make()?, Some(bench.cores.far));
    // A tenth of an arena is for tensors of other peers.
    let arena = (large.bytes() * 5 / 4 + GIB / 2).next_multiple_of(4096);
    let options = SidecarOptions { core: far, ..SidecarOptions::new("size", arena) };
    let sidecar = Sidecar::start(&options, &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let [small_set, large_set] = [(SMALL, "small"), (large, "large")].map(|(table, name)| {
        let set = table.create(&client, name, &[])?;
        table.fill(&set)?;
        anyhow::Ok(set)
    });
    let (small_set, large_set) = (small_set?, large_set?);
    tensors::settle(&client)?;
    let pairs = cores::on(Some(bench.cores.near), || {
        let mut in_small = Commits::new(SMALL, &small_set, SMALL_COMMIT);
        let mut in_large = Commits::new(large, &large_set, SMALL_COMMIT);
        interleaved(PAIRS, WARM_UP, || in_small.us(SMALL_TIMES), || in_large.us(SMALL_TIMES))
    })??;
    drop((small_set, large_set, client));
    sidecar.end()?;
    let note = Some(format!("the larger set has {gib:.1} GiB, all of it written"));
    Ok(vec![Measured { note, ..Measured::new(&sets::SIZE_FREE, pairs) }])
}

/// Commits of random rows to a set, each of which is read again outside of the time.
pub(super) struct Commits<'a> {
    table: Table,
    set: &'a MutableSet,
    rows: usize,
    picks: Picks,
    number: u64,
}

impl<'a> Commits<'a> {
    pub(super) const fn new(table: Table, set: &'a MutableSet, rows: usize) -> Self {
        Self { table, set, rows, picks: Picks::new(), number: 0 }
    }

    /// The median of so many, in microseconds.
    pub(super) fn us(&mut self, times: usize) -> Result<f64> {
        let mut last = Vec::new();
        let took = median(times, || {
            self.number += 1;
            last = self.picks.rows(self.rows, self.table.rows);
            self.table.commit_us(self.set, &last, self.number)
        })?;
        self.table.read_us(self.set, &last, self.number)?;
        Ok(took)
    }
}

/// The median of so many values.
pub(super) fn median(times: usize, value: impl FnMut() -> Result<f64>) -> Result<f64> {
    let values = std::iter::repeat_with(value).take(times).collect::<Result<Vec<_>>>()?;
    stats::median(&values).context("nothing to measure")
}
