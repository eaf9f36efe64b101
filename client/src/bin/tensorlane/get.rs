//! `tensorlane get`: tensors out of the exchange, into a safetensors file or just here.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;
use tensorlane_client::{AcquireOptions, Client, Lease, Moved, Target, Tensor};
use tensorlane_proto::checksum;
use tensorlane_proto::set::SET_METADATA;
use tensorlane_proto::{Descriptor, Failure, Metadata, Reason, Reference};

use crate::args::Get;
use crate::complaint;
use crate::kept::{self, LeftOut};
use crate::list;
use crate::output::{self, Output};
use crate::parse::{self, REFERENCE_BEGINS, TICKET_MARK};
use crate::progress::{self, Progress};
use crate::sink::{Plan, Sink, Wanted};

/// Bytes that are copied at once.
const CHUNK_BYTES: usize = 8 << 20;
/// Tensors acquired in one request, up to so many bytes: what comes from another peer takes room in this one's arena.
const BATCH_BYTES: u64 = 64 << 20;
const BATCH_ITEMS: usize = 256;

pub(crate) fn run(client: &Client, output: &Output, args: &Get) -> Result<()> {
    // What tickets and names lease must be held until it is copied.
    let mut held = Held::default();
    let mut wanted = wanted(client, output, args, &mut held)?;
    let total = wanted.iter().map(|one| one.layout.bytes()).sum();
    let (plan, mut sink) = sink(output, args, &mut wanted)?.unzip();
    redeem(client, args, &mut wanted, &mut held.tickets)?;
    // Last: nothing gets into a pipe or device where a ticket is none.
    if let (Some(sink), Some(plan)) = (&mut sink, &plan) {
        sink.begin(plan)?;
    }
    let mut progress = Progress::new(total);
    let mut got = Vec::with_capacity(wanted.len());
    let mut rest = &wanted[..];
    while !rest.is_empty() {
        let (batch, after) = rest.split_at(batch(rest));
        acquire(client, args, batch, sink.as_mut(), &mut progress, &mut got)?;
        rest = after;
    }
    if let Some(sink) = &mut sink {
        sink.finish()?;
    }
    // What is printed must not get into the file. Signals that come meanwhile are still waited for there.
    let output = if sink.as_ref().is_some_and(Sink::is_stdout) { &output.on_errors() } else { output };
    let left_out = plan.map(|plan| plan.left_out).unwrap_or_default();
    report(output, &got, progress.finish(), args.to.as_deref(), &left_out)?;
    Ok(())
}

/// The file that is written, if one is wanted, and its header. The tensors are in the order of the file then.
fn sink(output: &Output, args: &Get, wanted: &mut [Wanted]) -> Result<Option<(Plan, Sink)>> {
    let Some(path) = args.to.as_deref() else { return Ok(None) };
    let plan = Plan::new(wanted)?;
    kept::tell(output, &plan.left_out, args.strict, path)?;
    Ok(Some((plan, Sink::create(path)?)))
}

/// Leases of what is meant.
#[derive(Default)]
struct Held {
    tickets: Vec<Tensor>,
    names: Vec<Lease>,
}

/// A tensor that was got.
struct Got<'a> {
    wanted: &'a Wanted,
    moved: Moved,
    copied: bool,
    verified: bool,
}

/// Finds out what is meant, and what it will be.
fn wanted(client: &Client, output: &Output, args: &Get, held: &mut Held) -> Result<Vec<Wanted>> {
    let mut wanted = Vec::new();
    let mut names = Vec::new();
    for text in &args.targets {
        if args.recursive {
            ensure!(
                !text.starts_with(REFERENCE_BEGINS),
                "{text} is a reference or a ticket, which stands for one tensor: get it without -r"
            );
            let before = wanted.len();
            let sets = below(client, args, text, &mut wanted, &mut held.names)?;
            match (wanted.len() > before, sets.as_slice()) {
                (false, []) => bail!("{}", list::nothing_below(client, text)),
                (false, sets) => bail!("{}", are_sets(args, sets)),
                (true, []) => {}
                (true, sets) => output.warn(&format!("{}; left out", are_sets(args, sets))),
            }
        } else if text.starts_with(REFERENCE_BEGINS)
            && let Some((reference, _)) = text.split_once(TICKET_MARK)
        {
            wanted.push(of_ticket(client, args, text, &reference.parse()?)?);
        } else if text.starts_with(REFERENCE_BEGINS) {
            let reference: Reference = text.parse().with_context(|| text.clone())?;
            let found = complaint::about(text, args.waiting.rest(client).describe(&reference))?;
            let name = found.names.first().cloned().unwrap_or_else(|| format!("tensor-{}", reference.id()));
            wanted.push(one(args, name, reference.into(), &found.descriptor)?);
        } else {
            names.push(text.as_str());
        }
    }
    if names.is_empty() {
        return Ok(wanted);
    }
    // All names in one call: they are waited for together.
    let found = progress::during("waiting for the names", || {
        args.waiting.lookup(client, &names, args.peer.as_ref())
    })?;
    for (name, found) in names.iter().zip(found) {
        let found = match args.peer {
            None => list::about(client, name, found)?,
            Some(_) => complaint::about(name, found)?,
        };
        // Not by the reference: the name may be given to another tensor until it is got.
        let target = Target::name_at(found.reference.peer().clone(), *name);
        wanted.push(one(args, name.to_string(), target, &found.descriptor)?);
    }
    Ok(wanted)
}

/// The tensor of a ticket, which is not used yet: a mistake in the rest of the command costs nothing.
fn of_ticket(client: &Client, args: &Get, ticket: &str, reference: &Reference) -> Result<Wanted> {
    let client = args.waiting.rest(client);
    let found = match client.describe(reference) {
        // The tensor has gone, and the ticket with it: redeeming says so in the words of tickets.
        Err(error) if error.reason() == Some(Reason::NotFound) => {
            Err(client.redeem(ticket, None).err().unwrap_or(error))
        }
        found => found,
    };
    let found = found.context("the ticket")?;
    let wanted = one(args, format!("tensor-{}", reference.id()), reference.into(), &found.descriptor)?;
    Ok(Wanted { ticket: Some(ticket.to_owned()), ..wanted })
}

/// Uses the tickets. What they lease is got by its id.
fn redeem(client: &Client, args: &Get, wanted: &mut [Wanted], held: &mut Vec<Tensor>) -> Result<()> {
    for one in wanted {
        if let Some(ticket) = &one.ticket {
            let tensor = args.waiting.rest(client).redeem(ticket, None).context("the ticket")?;
            one.target = Target::Id(tensor.lease().id());
            held.push(tensor);
        }
    }
    Ok(())
}

/// Tensors that all names at and below a prefix stand for at one moment. They are leased in one step, and got by what
/// was leased. So names that are replaced meanwhile make no difference. Returns the names of sets, which are no such tensors.
fn below(
    client: &Client,
    args: &Get,
    prefix: &str,
    wanted: &mut Vec<Wanted>,
    held: &mut Vec<Lease>,
) -> Result<Vec<String>> {
    let mut sets = Vec::new();
    let client = args.waiting.rest(client);
    let leased = client.lease_names(prefix).with_context(|| format!("the names below {prefix:?}"))?;
    let leased: Vec<_> = leased.into_iter().filter(|(name, _)| list::is_below(name, prefix)).collect();
    for batch in leased.chunks(BATCH_ITEMS) {
        let targets: Vec<Target> = batch.iter().map(|(_, lease)| Target::Id(lease.id())).collect();
        for ((full, _), found) in batch.iter().zip(client.describe_many(&targets)?) {
            let found = complaint::about(full, found)?;
            if is_set(&found.descriptor) {
                sets.push(full.clone());
                continue;
            }
            let name = short(full, prefix);
            // By the reference, which holds in this life of the sidecar only: an id may be another tensor's in the next.
            wanted.push(one(args, name.to_owned(), found.reference.into(), &found.descriptor)?);
        }
    }
    held.extend(leased.into_iter().map(|(_, lease)| lease));
    Ok(sets)
}

/// Returns whether a tensor is the manifest of a set: its bytes say which tensors the set has, and are of no use alone.
fn is_set(descriptor: &Descriptor) -> bool {
    descriptor.metadata.value(SET_METADATA).is_some()
}

/// `policy is a set, and get takes tensors: tensorlane set get policy`. A version is named by its set where that is there too.
fn are_sets(args: &Get, names: &[String]) -> String {
    let is_other = |name: &&String| {
        let of = name.rsplit_once('@').map(|(of, _)| of);
        of.is_none_or(|of| !names.iter().any(|other| other == of))
    };
    let shown: Vec<&str> = names.iter().filter(is_other).map(String::as_str).collect();
    let at = args.peer.as_ref().map(|peer| format!(" --peer {peer}")).unwrap_or_default();
    let are = if shown.len() == 1 { "is a set" } else { "are sets" };
    let first = shown.first().copied().unwrap_or_default();
    format!("{} {are}, and get takes tensors: `tensorlane set get {first}{at}`", shown.join(", "))
}

/// The name in the file that a tensor below a prefix came from: put has joined both with one slash.
fn short<'a>(name: &'a str, prefix: &str) -> &'a str {
    let rest = name.strip_prefix(prefix).unwrap_or(name);
    let is_whole = prefix.is_empty() || prefix.ends_with('/');
    let rest = if is_whole { rest } else { rest.strip_prefix('/').unwrap_or(rest) };
    if rest.is_empty() { name } else { rest }
}

fn one(args: &Get, name: String, target: Target, descriptor: &Descriptor) -> Result<Wanted> {
    ensure!(!is_set(descriptor), "{}", are_sets(args, &[name]));
    // In the words in which the sidecar would refuse it.
    let refused = |error| tensorlane_client::Error::from(Failure::from(error));
    let resolved =
        args.part.selection().resolve(&descriptor.layout).map_err(refused).with_context(|| name.clone())?;
    let metadata: Metadata = descriptor.metadata.clone();
    Ok(Wanted { name, target, ticket: None, layout: resolved.packed_layout(), metadata })
}

/// Number of the tensors that are acquired together; one at least.
fn batch(wanted: &[Wanted]) -> usize {
    let mut bytes = 0;
    let fits = |one: &&Wanted| {
        bytes += one.layout.bytes();
        bytes <= BATCH_BYTES
    };
    wanted.iter().take(BATCH_ITEMS).take_while(fits).count().max(1)
}

fn acquire<'a>(
    client: &Client,
    args: &Get,
    batch: &'a [Wanted],
    mut sink: Option<&mut Sink>,
    progress: &mut Progress,
    got: &mut Vec<Got<'a>>,
) -> Result<()> {
    let client = &args.waiting.rest(client);
    let options =
        AcquireOptions::new().selection(args.part.selection()).require(parse::require(&args.require));
    let targets: Vec<Target> = batch.iter().map(|one| one.target.clone()).collect();
    // Bytes that others get at the same time count too: it is a hint of how far it is.
    let arrived = || Some(args.waiting.rest(client).peers().ok()?.iter().map(|peer| peer.bytes_in).sum());
    let tensors = progress.arriving("getting", arrived, || client.acquire_many(&targets, &options));
    for (wanted, tensor) in batch.iter().zip(tensors) {
        let tensor = complaint::about(&wanted.name, tensor)?;
        let is_alike = tensor.descriptor().metadata == wanted.metadata;
        ensure!(
            tensor.descriptor().layout.packed() == wanted.layout && (is_alike || sink.is_none()),
            "{} has become another tensor meanwhile; get it again",
            wanted.name
        );
        let verified = copy(&tensor, &wanted.name, sink.as_deref_mut(), progress)?;
        got.push(Got { wanted, moved: tensor.moved().clone(), copied: tensor.copied(), verified });
    }
    Ok(())
}

/// Copies a tensor into the file and verifies its checksum. Without a file and a checksum there is nothing to do: it is
/// mapped. Returns whether it was verified.
pub(crate) fn copy(
    tensor: &Tensor,
    name: &str,
    mut sink: Option<&mut Sink>,
    progress: &mut Progress,
) -> Result<bool> {
    let total = tensor.packed_len();
    let Some(view) = tensor.view().filter(|_| sink.is_some() || tensor.crc32c().is_some()) else {
        progress.advance(total as u64, name);
        return Ok(false);
    };
    if !tensor.descriptor().layout.is_contiguous() {
        // A view with gaps has no checksum of its own.
        if let Some(sink) = sink {
            sink.write(&tensor.to_vec())?;
        }
        progress.advance(total as u64, name);
        return Ok(false);
    }
    let mut chunk = vec![0; CHUNK_BYTES.min(total)];
    let mut crc = 0;
    let mut at = 0;
    while at < total {
        let part = &mut chunk[..CHUNK_BYTES.min(total - at)];
        view.copy_range_to(at as u64, part)?;
        if tensor.crc32c().is_some() {
            crc = checksum::crc32c_append(crc, part);
        }
        if let Some(sink) = &mut sink {
            sink.write(part)?;
        }
        at += part.len();
        progress.advance(part.len() as u64, name);
    }
    match tensor.crc32c() {
        Some(expected) if expected != crc => Err(anyhow!(
            "{name}: its bytes have the checksum {crc:08x} and not {expected:08x}; they were damaged, put it again"
        )),
        known => Ok(known.is_some()),
    }
}

fn report(
    output: &Output,
    got: &[Got<'_>],
    took: Duration,
    to: Option<&Path>,
    left_out: &[LeftOut],
) -> io::Result<()> {
    let total: u64 = got.iter().map(|got| got.wanted.layout.bytes()).sum();
    output.print(
        || {
            let tensor = |got: &Got<'_>| {
                let mut value = output::layout(&got.wanted.layout);
                output::merge(
                    &mut value,
                    json!({
                        "tensor": got.wanted.name,
                        "moved": output::moved(&got.moved),
                        "copied": got.copied,
                        "verified": got.verified,
                    }),
                );
                value
            };
            let tensors: Vec<_> = got.iter().map(tensor).collect();
            json!({
                "tensors": tensors,
                "bytes": total,
                "seconds": took.as_secs_f64(),
                "file": to.map(|path| path.display().to_string()),
                "metadata_left_out": kept::field(left_out),
            })
        },
        |out| {
            for got in got {
                let copied = if got.copied { ", packed" } else { "" };
                let verified = if got.verified { ", checksum verified" } else { "" };
                writeln!(out, "{}  {}  {}{copied}{verified}", got.wanted.name, got.wanted.layout, got.moved)?;
            }
            let (tensors, size) = (output::tensors(got.len()), output::bytes(total));
            let span = output::span(took.as_secs_f64());
            match to {
                None => writeln!(out, "{tensors}, {size} {} in {span}", came(got, took)),
                Some(path) => {
                    let rate = output::rate(total, took);
                    writeln!(out, "{tensors}, {size} into {} in {span} ({rate})", path.display())
                }
            }
        },
    )
}

/// Way in which the tensors came to this process. Mapping takes as long for a gigabyte as for a byte, so that a rate
/// would say nothing. What came from another peer, or was packed, has one.
fn came(got: &[Got<'_>], took: Duration) -> String {
    let bytes: u64 = got.iter().map(|got| got.moved.bytes).sum();
    match bytes {
        0 if got.iter().any(|got| got.copied) => "packed and mapped".into(),
        0 => "mapped".into(),
        bytes => {
            format!("mapped, {} of it from other peers ({})", output::bytes(bytes), output::rate(bytes, took))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_below_a_prefix_is_that_of_the_file_again() {
        for (name, prefix, expected) in [
            ("p/a", "p", "a"),
            ("p/a", "p/", "a"),
            ("p//lead", "p", "/lead"),
            ("p//lead", "p/", "/lead"),
            ("p/a//b", "p", "a//b"),
            ("p", "p", "p"),
            ("p/a", "", "p/a"),
        ] {
            assert_eq!(short(name, prefix), expected, "{name} below {prefix:?}");
        }
    }
}
