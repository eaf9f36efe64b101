//! `tensorlane check`: what is wrong with this pod, and what to do. Looks at what a workload can see: the sockets, the
//! sidecar behind them, and the peers as that sidecar sees them. The cluster's side is `kubectl tensorlane check`.

mod facts;
mod judge;
mod remedies;

use std::process::ExitCode;

use anyhow::Result;
use tensorlane_operator::findings;

use crate::args::Connection;
use crate::output::Output;

/// The exit code is 1 where something is wrong, 3 where nothing wrong was found but not everything could be looked at.
pub(crate) fn run(connection: &Connection, output: &Output) -> Result<ExitCode> {
    let all = judge::findings(&facts::read(connection));
    output.print(|| findings::json(&all), |out| out.write_all(findings::text(&all).as_bytes()))?;
    Ok(ExitCode::from(findings::exit_code(&all)))
}
