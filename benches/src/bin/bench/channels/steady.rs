//! Costs of a message once a channel is attached: no allocation, and no word to the sidecar, which is stopped
//! meanwhile. Bytes that somebody would have sent to it lie in its sockets then.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tensorlane_benches::pairs::Pair;
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_client::channel::{ChannelSpec, ChannelWriter};
use tensorlane_memory::heap::CountingAllocator;

use super::reader::{Far, LONG, SMALL, now};
use crate::context::Bench;
use crate::rows::{Measured, channels};

const MESSAGES: u64 = 1_000_000;
/// Messages before them, in which what stays is made.
const FIRST: u64 = 10_000;
const SLOTS: u32 = 1024;
const ARENA: u64 = 16 << 20;
/// Number of times that all of them are written.
const TIMES: usize = 3;

/// Outcome of so many messages.
struct Passed {
    allocations: u64,
    rate: f64,
}

pub(super) fn run(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("1,000,000 small messages to another process, while the sidecar is stopped");
    let scratch = Scratch::make()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("steady", ARENA), &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let spec = ChannelSpec::new("steady").slots(SLOTS).slot_bytes(SMALL as u64);
    let mut writer = client.channel_writer(&spec)?;
    let mut far = Far::start(&sidecar, None)?;
    far.attach("steady")?;
    pass(&mut writer, &mut far, FIRST)?;
    let (mut allocations, mut rates, mut unread) = (Vec::new(), Vec::new(), 0);
    for _ in 0..TIMES {
        let stopped = sidecar.process().stopped()?;
        let passed = pass(&mut writer, &mut far, MESSAGES)?;
        unread += unread_bytes(&sidecar)?;
        drop(stopped);
        allocations.push(Pair { value: passed.allocations as f64, limit: None });
        rates.push(Pair { value: passed.rate, limit: None });
    }
    drop((writer, far, client));
    sidecar.end()?;
    let said = format!("{unread} bytes came to the sidecar in {TIMES} x {MESSAGES} messages");
    let breach = (unread > 0).then(|| said.clone());
    let per_message = Measured::new(&channels::PER_MESSAGE, allocations);
    Ok(vec![Measured { note: Some(said), breach, ..per_message }, Measured::new(&channels::RATE_64B, rates)])
}

fn pass(writer: &mut ChannelWriter, far: &mut Far, count: u64) -> Result<Passed> {
    far.begin(count, true)?;
    let mut bytes = [7; SMALL];
    let before = CountingAllocator::allocations();
    let begun = now()?;
    for number in 0..count {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        writer.write_bytes(&bytes, LONG)?;
    }
    let here = CountingAllocator::allocations() - before;
    let reading = far.proven(crc32c::crc32c(&bytes))?;
    Ok(Passed { allocations: here + reading.allocations, rate: count as f64 / (reading.at - begun) })
}

/// Bytes that lie unread in the sockets of a sidecar.
fn unread_bytes(sidecar: &Sidecar) -> Result<u64> {
    let output = Command::new("ss").args(["--no-header", "--unix", "--all"]).output();
    let output = output.context("`ss` (of iproute2) cannot be started")?;
    let said = String::from_utf8_lossy(&output.stdout);
    counted(&said, sidecar.sockets())
}

/// The sum of what `ss` says of the connections to sockets of a directory, by the names with which they were made.
fn counted(said: &str, directory: &Path) -> Result<u64> {
    let mut bytes = Vec::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, "ESTAB", unread, _, local, ..] = words[..]
            && Path::new(local).starts_with(directory)
        {
            bytes.push(unread.parse::<u64>().with_context(|| format!("`ss` says {line:?}"))?);
        }
    }
    ensure!(
        bytes.len() >= 2,
        "`ss` should list both sessions at {}, and lists {}",
        directory.display(),
        bytes.len()
    );
    Ok(bytes.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_bytes_are_those_of_one_socket_and_of_connections_alone() {
        let said = "u_str LISTEN 0 128 /t/a/session.new 1 * 0\nu_str ESTAB 3 0 /t/a/session.new 2 * 3\n\
                    u_str ESTAB 4 0 /t/a/session.new 4 * 5\n\
                    u_str ESTAB 9 9 * 5 * 4\nu_str ESTAB 8 0 /t/b/session.new 6 * 7\n";
        assert_eq!(counted(said, Path::new("/t/a")).unwrap(), 7);
        assert!(counted(said, Path::new("/t/b")).is_err(), "one session is too few");
    }
}
