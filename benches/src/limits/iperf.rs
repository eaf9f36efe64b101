//! Capacity of a link: iperf3 between two hosts, as its receiver counts.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::hosts::TwoHosts;
use crate::process::Process;

const PROGRAM: &str = "iperf3";

/// Checks that there is an iperf3, or says why there is none.
///
/// # Errors
/// A sentence for people.
pub fn is_here() -> Result<()> {
    let output = Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output();
    let output =
        output.with_context(|| format!("{PROGRAM} cannot be started; its package is called so, too"))?;
    if !output.status.success() {
        bail!("`{PROGRAM} --version` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Bytes a second that come at host B, of so many that host A sends over one connection.
///
/// # Errors
/// It does not run, or says something else than it should.
pub fn rate(hosts: &TwoHosts, bytes: u64) -> Result<f64> {
    let address = hosts.b.free_address()?;
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    // One test, then it ends.
    let mut server = hosts.b.command(Path::new(PROGRAM));
    server.args(["-s", "-1", "-B", &ip, "-p", &port, "--forceflush"]);
    server.stdin(Stdio::null()).stdout(Stdio::piped());
    let server = Process::start(format!("`{PROGRAM} -s`"), &mut server)?;
    let said = server.with_child(|child| child.stdout.take()).context("a server without output")?;
    let mut said = BufReader::new(said);
    listening(&mut said)?;
    let mut client = hosts.a.command(Path::new(PROGRAM));
    client.args(["-c", &ip, "-p", &port, "-n", &bytes.to_string(), "-J"]).stdin(Stdio::null());
    let told = client.output().with_context(|| format!("cannot start `{PROGRAM} -c`"))?;
    let rate = received(&String::from_utf8_lossy(&told.stdout))?;
    // It ends by itself; what else it says must not stop it.
    said.read_to_end(&mut Vec::new())?;
    Ok(rate)
}

/// Waits until the server says that it listens.
fn listening(said: &mut impl BufRead) -> Result<()> {
    let mut before = String::new();
    for line in said.lines() {
        let line = line?;
        if line.contains("Server listening") {
            return Ok(());
        }
        before = line;
    }
    bail!("`{PROGRAM} -s` ended before it listened: {before}")
}

/// Bytes a second at the receiver, from what the client says as JSON.
fn received(told: &str) -> Result<f64> {
    let value: Value = serde_json::from_str(told).with_context(|| format!("{PROGRAM} said {told:?}"))?;
    if let Some(error) = value["error"].as_str() {
        bail!("{PROGRAM}: {error}");
    }
    let bits = value["end"]["sum_received"]["bits_per_second"].as_f64();
    let bits = bits.filter(|bits| *bits > 0.0);
    Ok(bits.with_context(|| format!("{PROGRAM} says nothing of what its receiver got"))? / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_receiver_got_counts_and_not_what_was_sent() {
        let told = r#"{"start": {}, "end": {"sum_sent": {"bits_per_second": 9e9},
            "sum_received": {"bytes": 16777216, "seconds": 0.14, "bits_per_second": 9.6e8}}}"#;
        assert_eq!(received(told).unwrap(), 1.2e8);
    }

    #[test]
    fn its_own_error_and_an_answer_without_a_rate_are_told() {
        let refused = received(r#"{"start": {}, "end": {}, "error": "unable to connect"}"#).unwrap_err();
        assert_eq!(refused.to_string(), "iperf3: unable to connect");
        for wrong in ["", r#"{"end": {}}"#, r#"{"end": {"sum_received": {"bits_per_second": 0}}}"#] {
            assert!(received(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_server_that_ends_before_it_listens_is_told_with_its_last_word() {
        assert!(listening(&mut "-----\nServer listening on 9421 (test #1)\n".as_bytes()).is_ok());
        let error = listening(&mut "unable to start listener\n".as_bytes()).unwrap_err();
        assert!(error.to_string().contains("unable to start listener"), "{error}");
    }
}
