//! The rows `local.*`: one sidecar and the processes of its pod.

mod put_copy;
mod reclaim;
mod round_trips;

use anyhow::Result;

pub(crate) use reclaim::Hold;

use crate::context::Bench;
use crate::rows::Measured;

/// Measures all of them.
pub(crate) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    let mut rows = round_trips::run(bench)?;
    // In the order of the table.
    let batch = rows.split_off(4);
    rows.extend(put_copy::run(bench)?);
    rows.extend(batch);
    rows.extend(reclaim::run(bench)?);
    Ok(rows)
}
