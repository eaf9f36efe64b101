//! Bytes of rows on their way out of a set: few by plain copies, many past the caches and with all cores.

use tensorlane_memory::copy::{RunSource, copy_runs};
use tensorlane_memory::{Landing, OutOfBounds};
use tensorlane_proto::failure::{Failure, Reason};

/// Bytes of all runs from which on they are written past the caches: most of what a core has for itself.
pub(super) const PAST_CACHES_FROM: u64 = 4 << 20;
/// Most runs that are copied together. Each is kept in some 100 bytes meanwhile.
pub(super) const RUNS_MAX: usize = 1_024;

/// Copies runs one behind the other, each with its length and its bytes, or zeros where it has none.
pub(super) fn copy_out<B: AsRef<[u8]>>(
    runs: impl Iterator<Item = (u64, Result<Option<B>, Failure>)>,
    to: &mut Landing,
) -> Result<(), Failure> {
    if to.len() >= PAST_CACHES_FROM {
        return copy_many(runs, to);
    }
    let mut at = 0;
    for (length, from) in runs {
        let into = to.chunk_mut(at..at + length).map_err(|error| outside(&error))?;
        match from? {
            Some(from) => into.copy_from_slice(from.as_ref()),
            None => into.fill(0),
        }
        at += length;
    }
    Ok(())
}

fn copy_many<B: AsRef<[u8]>>(
    mut runs: impl Iterator<Item = (u64, Result<Option<B>, Failure>)>,
    to: &mut Landing,
) -> Result<(), Failure> {
    let mut at = 0;
    loop {
        let (mut found, mut bytes) = (Vec::new(), 0);
        for (length, from) in runs.by_ref().take(RUNS_MAX) {
            found.push((length, from?));
            bytes += length;
        }
        if found.is_empty() {
            return Ok(());
        }
        let sources = found.iter().map(|(length, from)| match from {
            Some(from) => RunSource::Bytes(from.as_ref()),
            None => RunSource::Zeros(usize::try_from(*length).unwrap_or(usize::MAX)),
        });
        let sources: Vec<RunSource<'_>> = sources.collect();
        copy_runs(to.chunk_mut(at..at + bytes).map_err(|error| outside(&error))?, &sources);
        at += bytes;
        // The latest one first: a field finds it at once among those that are read.
        found.into_iter().rev().for_each(drop);
    }
}

fn outside(error: &OutOfBounds) -> Failure {
    Failure::new(Reason::Internal, error.to_string())
}
