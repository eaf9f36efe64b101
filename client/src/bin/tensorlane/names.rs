//! `tensorlane watch`: the names that there are, then each that comes, is replaced or goes.

use std::io::{self, Write};

use anyhow::Result;
use serde_json::json;
use tensorlane_client::channel::Timeout;
use tensorlane_client::{Client, WatchEvent, WatchKind, WatchOptions};

use crate::args::Watch;
use crate::output::Output;
use crate::watch::while_read;

/// Writes an event a line, and flushes when nothing else is known. Ends with as many events as were asked for, an
/// error, or its reader.
pub(crate) fn watch(client: &Client, output: &Output, args: &Watch) -> Result<()> {
    while_read(client, |client| events(client, output, args))
}

fn events(client: &Client, output: &Output, args: &Watch) -> Result<()> {
    let options = args.from.map_or_else(WatchOptions::new, |revision| WatchOptions::new().from(revision));
    let options = args.peer.clone().map_or(options.clone(), |peer| options.peer(peer));
    let mut watch = client.watch(&args.prefix, options);
    let timeout = args.timeout.map_or(Timeout::Never, Timeout::After);
    let mut stdout = io::stdout().lock();
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let event = watch.next(timeout)?;
        stdout.write_all(&output.state(|| event_json(&event), |out| told(out, &event))?)?;
        stdout.flush()?;
        left -= u64::from(event.kind != WatchKind::Synced);
    }
    Ok(())
}

fn event_json(event: &WatchEvent) -> serde_json::Value {
    json!({
        "event": event.kind.as_str(),
        "name": event.name,
        "reference": event.reference.as_ref().map(ToString::to_string),
        "revision": event.revision.map(|revision| revision.to_string()),
    })
}

fn told(out: &mut dyn Write, event: &WatchEvent) -> io::Result<()> {
    if let (WatchKind::Synced, Some(revision)) = (event.kind, event.revision) {
        return writeln!(out, "{:<8}  revision {revision}", event.kind.as_str());
    }
    let reference = event.reference.as_ref().map(ToString::to_string).unwrap_or_default();
    let line = format!("{:<8}  {}  {reference}", event.kind.as_str(), event.name);
    writeln!(out, "{}", line.trim_end())
}
