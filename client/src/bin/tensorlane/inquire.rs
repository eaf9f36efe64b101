//! `tensorlane describe`, `status` and `peers`.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use tensorlane_client::{BudgetStatus, Client, Description, HolderStatus, Moved, PeerStatus, Status, Target};

use crate::args::Describe;
use crate::complaint;
use crate::list;
use crate::output::{self, Output};
use crate::progress;

pub(crate) fn describe(client: &Client, output: &Output, args: &Describe) -> Result<()> {
    let names = args.targets.iter().filter_map(|target| match target {
        Target::Name { name, .. } => Some(name.as_str()),
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    // All names in one call: they are waited for together.
    let looked_up = match names.is_empty() {
        true => Vec::new(),
        false => progress::during("waiting for the names", || args.waiting.lookup(client, &names, None))?,
    };
    let mut named = names.into_iter().zip(looked_up);
    let mut found = Vec::with_capacity(args.targets.len());
    for target in &args.targets {
        found.push(match target {
            Target::Name { .. } => {
                let (name, description) = named.next().context("the sidecar gave no result")?;
                list::about_anywhere(&args.waiting.rest(client), name, None, description)?
            }
            Target::Reference(reference) => {
                complaint::about(&reference.encode(), args.waiting.rest(client).describe(reference))?
            }
            other => args.waiting.rest(client).describe(other)?,
        });
    }
    output.print(
        || found.iter().map(output::description).collect(),
        |out| found.iter().try_for_each(|description| write_description(out, description)),
    )?;
    Ok(())
}

fn write_description(out: &mut dyn Write, of: &Description) -> io::Result<()> {
    writeln!(out, "{}", of.reference)?;
    let mut line = |key: &str, value: String| writeln!(out, "  {key:<10}{value}");
    line("tensor", of.descriptor.layout.to_string())?;
    line(
        "size",
        format!("{} ({} bytes)", output::bytes(of.descriptor.layout.bytes()), of.descriptor.layout.bytes()),
    )?;
    line("device", of.descriptor.device.to_string())?;
    line("names", if of.names.is_empty() { "-".into() } else { of.names.join(", ") })?;
    line("held by", format!("{} leases, {} tickets", of.leases, of.tickets))?;
    line("bytes", if of.here { "here".into() } else { "at their owner".into() })?;
    if let Some(crc) = of.crc32c {
        line("crc32c", format!("{crc:08x}"))?;
    }
    for (key, value) in of.descriptor.metadata.iter() {
        line("metadata", metadata(key, value))?;
    }
    Ok(())
}

/// Entry of the metadata in one line: a text of several could be taken for what is told besides.
fn metadata(key: &str, value: &str) -> String {
    format!("{key} = {value}").replace('\n', "\\n")
}

pub(crate) fn status(client: &Client, output: &Output) -> Result<()> {
    let status = client.status()?;
    output.print(|| status_json(&status), |out| write_status(out, &status))?;
    Ok(())
}

fn status_json(status: &Status) -> Value {
    let arena = status.arena.unwrap_or_default();
    let budgets: Map<String, Value> = status.budgets.iter().map(budget_json).collect();
    json!({
        "version": status.version,
        "exchange": status.exchange,
        "peer": status.peer,
        "incarnation": status.incarnation,
        "fingerprint": status.fingerprint,
        "uptime_seconds": status.uptime_seconds,
        "arena": {
            "total": arena.total,
            "free": arena.free,
            "reserved": arena.reserved,
            "sealed": arena.sealed,
            "held": arena.held,
            "retired": arena.retired,
            "inherited": arena.inherited,
            "populated": arena.populated,
            "largest_put": arena.largest_put,
            "largest_copied_put": arena.largest_copied_put,
        },
        "tensors": status.tensors,
        "copies": status.copies,
        "leases": status.leases,
        "names": status.names,
        "tickets": status.tickets,
        "sessions": status.sessions,
        "waiting": status.waiting,
        "tables": status.tables.map(|tables| json!({
            "metadata": tables.metadata,
            "metadata_max": tables.metadata_max,
            "ledger": tables.ledger,
            "ledger_max": tables.ledger_max,
        })),
        "budgets": budgets,
        "holders": status.holders.iter().map(holder_json).collect::<Vec<_>>(),
    })
}

fn budget_json(budget: &BudgetStatus) -> (String, Value) {
    (budget.name.clone(), json!({ "used": budget.used, "limit": budget.limit }))
}

fn holder_json(holder: &HolderStatus) -> Value {
    json!({
        "kind": holder.kind,
        "number": holder.number,
        "client": holder.client,
        "process": (holder.process != 0).then_some(holder.process),
        "address": (!holder.address.is_empty()).then_some(&holder.address),
        "seconds": holder.seconds,
        "still_seconds": matches!(holder.kind.as_str(), "put" | "get").then_some(holder.still_seconds),
        "bytes": holder.bytes,
        "leases": holder.leases,
        "reservations": holder.reservations,
        "streams": (holder.streams > 0).then_some(holder.streams),
    })
}

/// Line about who keeps bytes of the arena: `session 3: trainer, process 12, for 4s, 2 leases`.
fn holder_line(holder: &HolderStatus) -> String {
    let kind = match holder.kind.as_str() {
        "put" => "half-sent put over gRPC",
        "get" => "unread get over gRPC",
        "calls" => "gets over gRPC that gather",
        other => other,
    };
    let mut parts = Vec::new();
    if !holder.client.is_empty() {
        parts.push(holder.client.replace('\n', " "));
    }
    if holder.process != 0 {
        parts.push(format!("process {}", holder.process));
    }
    if !holder.address.is_empty() {
        parts.push(holder.address.clone());
    }
    if holder.seconds > 0.0 {
        parts.push(format!("for {}", output::span(holder.seconds)));
    }
    if holder.still_seconds >= 1.0 {
        parts.push(format!("still for {}", output::span(holder.still_seconds)));
    }
    let together = if holder.streams > 1 { holder.streams } else { 0 };
    let counts = [(together, "streams"), (holder.leases, "leases"), (holder.reservations, "reservations")];
    parts.extend(counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    let number = if holder.number == 0 { String::new() } else { format!(" {}", holder.number) };
    format!("{} by {kind}{number}: {}", output::bytes(holder.bytes), parts.join(", "))
}

fn write_status(out: &mut dyn Write, status: &Status) -> io::Result<()> {
    writeln!(out, "{} of exchange {}", status.peer, status.exchange)?;
    let mut line = |key: &str, value: String| writeln!(out, "  {key:<13}{value}");
    line("version", status.version.clone())?;
    line("incarnation", status.incarnation.clone())?;
    line("fingerprint", status.fingerprint.clone())?;
    line("up", output::span(status.uptime_seconds))?;
    if let Some(arena) = status.arena {
        let size = output::bytes;
        line("arena", format!("{} ({} populated)", size(arena.total), size(arena.populated)))?;
        let (put, copied) = (size(arena.largest_put), size(arena.largest_copied_put));
        line("  free", format!("{} (largest put: {put}; small or over gRPC: {copied})", size(arena.free)))?;
        line("  reserved", size(arena.reserved))?;
        line("  sealed", size(arena.sealed))?;
        line("  held", size(arena.held))?;
        line("  retired", format!("{} ({} inherited)", size(arena.retired), size(arena.inherited)))?;
    }
    line("tensors", format!("{} ({} copies of other peers')", status.tensors, status.copies))?;
    line("held by", format!("{} leases, {} names, {} tickets", status.leases, status.names, status.tickets))?;
    let of = |used, limit| format!("{} of {}", output::bytes(used), output::bytes(limit));
    match status.tables {
        _ if !status.budgets.is_empty() => {
            line("budgets", "bytes beside the arena".to_owned())?;
            for budget in &status.budgets {
                line(&format!("  {}", budget.name), of(budget.used, budget.limit))?;
            }
        }
        // A sidecar of an earlier release tells of two.
        Some(tables) => {
            let (metadata, ledger) =
                (of(tables.metadata, tables.metadata_max), of(tables.ledger, tables.ledger_max));
            line("tables", format!("{ledger}; metadata {metadata}"))?;
        }
        None => {}
    }
    line("sessions", format!("{} ({} requests wait for room)", status.sessions, status.waiting))?;
    status.holders.iter().try_for_each(|holder| line("kept", holder_line(holder)))
}

pub(crate) fn peers(client: &Client, output: &Output) -> Result<()> {
    let peers = client.peers()?;
    output.print(
        || peers.iter().map(peer_json).collect(),
        |out| {
            let headings = ["PEER", "STATE", "NODE", "ROUTE", "IN", "OUT", "ADDRESS", "LAST ERROR"];
            output.table(out, &headings, &peers.iter().map(peer_row).collect::<Vec<_>>())
        },
    )?;
    Ok(())
}

fn peer_row(peer: &PeerStatus) -> Vec<String> {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    vec![
        peer.name.clone(),
        peer.state.clone(),
        or_dash(&peer.node),
        route(peer).map_or_else(|| "-".into(), |route| route.to_string()),
        output::bytes(peer.bytes_in),
        output::bytes(peer.bytes_out),
        or_dash(&peer.addresses.join(" ")),
        or_dash(&peer.last_error),
    ]
}

fn route(peer: &PeerStatus) -> Option<Moved> {
    peer.route.clone().map(Moved::from)
}

fn peer_json(peer: &PeerStatus) -> Value {
    json!({
        "name": peer.name,
        "state": peer.state,
        "incarnation": peer.incarnation,
        "node": peer.node,
        "addresses": peer.addresses,
        "bytes_in": peer.bytes_in,
        "bytes_out": peer.bytes_out,
        "last_error": peer.last_error,
        "route": route(peer).map(|route| output::moved(&route)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_several_lines_are_shown_in_one() {
        assert_eq!(metadata("a\nb", "x\n  names     other"), "a\\nb = x\\n  names     other");
    }
}
