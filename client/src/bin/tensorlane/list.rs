//! `tensorlane ls` and `tensorlane rm`: the names of this peer.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use tensorlane_client::channel::Timeout;
use tensorlane_client::{Client, Error, Listed, WatchKind, WatchOptions};
use tensorlane_proto::set::SET_METADATA;
use tensorlane_proto::{PeerName, Reason};

use crate::args::{Ls, Rm};
use crate::complaint;
use crate::output::{self, Output, even_unread};

/// Names taken away in one call.
const BATCH_ITEMS: usize = 4_096;

/// The most peers that are asked for what is below a name that nobody has, and the time for all of them: it is for a better message
/// alone.
const GLANCES_MAX: usize = 8;
const GLANCE: Duration = Duration::from_secs(2);

/// The names at and below a prefix, as a path is meant: `a` has `a` and `a/b` below it, and not `ab`.
pub(crate) fn below(
    client: &Client,
    prefix: &str,
) -> impl Iterator<Item = tensorlane_client::Result<Listed>> {
    let owned = prefix.to_owned();
    client.list(prefix).filter(move |listed| {
        let Ok(listed) = listed else { return true };
        is_below(&listed.name, &owned)
    })
}

/// Returns whether a name is at or below a prefix, as a path is meant.
pub(crate) fn is_below(name: &str, prefix: &str) -> bool {
    let rest = name.strip_prefix(prefix);
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.starts_with('/') || prefix.is_empty() || prefix.ends_with('/')
    })
}

/// Text for the case that no name is at or below a prefix: names of other peers are not listed here.
pub(crate) fn nothing_below(client: &Client, prefix: &str) -> String {
    let peer = client.peer().map_or_else(|_| "this peer".to_owned(), |peer| format!("this peer ({peer})"));
    format!(
        "no name of {peer} is below {prefix:?}, and -r knows the names of this peer only; `tensorlane ls` shows them; \
         for those of another peer run it there, with --sockets"
    )
}

/// The result of a call about a name of this peer; where nothing is named so, with a name below it if there is one.
pub(crate) fn about<T>(client: &Client, name: &str, result: tensorlane_client::Result<T>) -> Result<T> {
    complaint::about(name, told(result, || below_here(client, name)))
}

/// The result of a call about a name of `peer`, or of any peer; where nothing is named so, with a name below it if there is one.
pub(crate) fn about_anywhere<T>(
    client: &Client,
    name: &str,
    peer: Option<&PeerName>,
    result: tensorlane_client::Result<T>,
) -> Result<T> {
    let below = || match peer {
        Some(peer) => below_at(client, name, peer, GLANCE.min(client.deadline())),
        None => below_here(client, name).or_else(|| below_elsewhere(client, name)),
    };
    complaint::about(name, told(result, below))
}

/// The result, with this message where nothing is named so.
fn told<T>(
    result: tensorlane_client::Result<T>,
    message: impl FnOnce() -> Option<String>,
) -> tensorlane_client::Result<T> {
    match result {
        Err(Error::Refused(mut failure)) if failure.reason == Reason::NotFound => {
            if let Some(message) = message() {
                failure.message = message;
            }
            Err(Error::Refused(failure))
        }
        other => other,
    }
}

/// Message with a name of this peer that is below one which is none.
fn below_here(client: &Client, name: &str) -> Option<String> {
    let listed = client.list(&format!("{name}/")).next()?.ok()?;
    let below = listed.name;
    Some(format!("nothing is named {name}, but {below} is; get and rm take all that is below {name} with -r"))
}

/// Message with a name of a peer that is below one which is none there.
fn below_at(client: &Client, name: &str, peer: &PeerName, time: Duration) -> Option<String> {
    let mut watch = client.watch(&format!("{name}/"), WatchOptions::new().peer(peer.clone()));
    let event = watch.next(Timeout::After(time)).ok()?;
    let below = (event.kind == WatchKind::Present).then_some(event.name)?;
    Some(format!(
        "nothing is named {name}, but {below} is at {peer}: get --peer {peer} {below} gets it, and get -r beside {peer}, with \
         --sockets, all that is below {name}"
    ))
}

/// Message with a name of a connected peer that is below one which nobody has. Some are asked, one after the other.
fn below_elsewhere(client: &Client, name: &str) -> Option<String> {
    let until = Instant::now() + GLANCE.min(client.deadline());
    let peers = client.peers().ok()?;
    let connected = peers.iter().filter(|peer| peer.state == "connected");
    let names = connected.filter_map(|peer| peer.name.parse::<PeerName>().ok());
    names.take(GLANCES_MAX).find_map(|peer| {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { None } else { below_at(client, name, &peer, left) }
    })
}

pub(crate) fn ls(client: &Client, output: &Output, args: &Ls) -> Result<()> {
    let listed = client.list(&args.prefix).collect::<tensorlane_client::Result<Vec<Listed>>>()?;
    output.print(
        || {
            let entry = |listed: &Listed| {
                let mut value = output::description(&listed.description);
                output::merge(&mut value, json!({ "name": listed.name }));
                value
            };
            listed.iter().map(entry).collect()
        },
        |out| {
            let mut headings = vec!["NAME", "TENSOR", "SIZE", "LEASES"];
            if args.long {
                headings.push("REFERENCE");
            }
            let row = |listed: &Listed| {
                let description = &listed.description;
                let layout = &description.descriptor.layout;
                let is_set = description.descriptor.metadata.value(SET_METADATA).is_some();
                let mut row = vec![
                    listed.name.clone(),
                    if is_set { "set".to_owned() } else { layout.to_string() },
                    output::bytes(layout.bytes()),
                    description.leases.to_string(),
                ];
                if args.long {
                    row.push(description.reference.encode());
                }
                row
            };
            output.table(out, &headings, &listed.iter().map(row).collect::<Vec<_>>())
        },
    )?;
    Ok(())
}

pub(crate) fn rm(client: &Client, output: &Output, args: &Rm) -> Result<()> {
    let mut names = Vec::new();
    if args.all {
        for listed in client.list("") {
            names.push(listed?.name);
        }
    }
    for name in &args.names {
        if !args.recursive {
            names.push(name.clone());
            continue;
        }
        let before = names.len();
        for listed in below(client, name) {
            names.push(listed?.name);
        }
        ensure!(names.len() > before, "{}; nothing was removed", nothing_below(client, name));
    }
    let mut removed = Vec::new();
    let mut failed = Ok(());
    for batch in names.chunks(BATCH_ITEMS) {
        let results = match client.unname(batch) {
            Ok(results) => results,
            // What the calls before have removed is told first.
            Err(error) => {
                failed = failed.and(Err(error.into()));
                break;
            }
        };
        for (name, result) in batch.iter().zip(results) {
            match result {
                Ok(()) => removed.push(name),
                // Somebody else took it away since it was listed: it is gone, as it was asked for.
                Err(error) if args.recursive && error.reason() == Some(Reason::NotFound) => {}
                // The others are done all the same; the first failure is told.
                Err(error) if failed.is_ok() => failed = about(client, name, Err(error)),
                Err(_) => {}
            }
        }
    }
    even_unread(output.print(
        || json!({ "removed": removed }),
        |out| removed.iter().try_for_each(|name| writeln!(out, "{name} removed")),
    ))?;
    failed
}
