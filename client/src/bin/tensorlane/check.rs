//! `tensorlane check`: what is wrong with this pod, and what to do. Looks at what a workload can see: the sockets, the
//! sidecar behind them, and the peers as that sidecar sees them. The cluster's side is `kubectl tensorlane check`.

mod facts;
mod judge;
mod remedies;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use tensorlane_operator::findings;

use crate::args::Connection;
use crate::output::{Output, even_unread};

/// The exit code is 1 where something is wrong, 3 where nothing wrong was found but not everything could be looked at.
pub(crate) fn run(connection: &Connection, output: &Output) -> Result<ExitCode> {
    let all = judge::findings(&facts::read(connection));
    let code = ExitCode::from(findings::exit_code(&all));
    let text = |out: &mut dyn Write| out.write_all(findings::text(&all).as_bytes());
    even_unread(output.print(|| findings::json(&all), text))?;
    Ok(code)
}
