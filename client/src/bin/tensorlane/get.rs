//! `tensorlane get`: tensors out of the exchange, into a safetensors file or just here.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tensorlane_client::{AcquireOptions, Client, Description, Lease, Moved, Target, Tensor, View};
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

/// Bytes that are written or verified at once, and told by the bar.
const PIECE_BYTES: usize = 8 << 20;
/// Tensors acquired in one request, up to so many bytes: what comes from another peer takes room in this one's arena.
const BATCH_BYTES: u64 = 64 << 20;
const BATCH_ITEMS: usize = 256;
/// Looks at names that are replaced between two of them.
const ATTEMPTS_MAX: u32 = 64;

pub(crate) fn run(client: &Client, output: &Output, args: &Get) -> Result<()> {
    // What tickets and names lease must be held until it is copied.
    let mut held = Held::default();
    let (mut wanted, sets) = wanted(client, output, args, &mut held)?;
    let total = wanted.iter().map(|one| one.layout.bytes()).sum();
    let (plan, mut sink) = sink(output, args, &mut wanted)?.unzip();
    redeem(client, args, &mut wanted, &mut held.tensors)?;
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
    report(output, args, &got, progress.finish(), (&left_out, &sets))?;
    Ok(())
}

/// The file that is written, if one is wanted, and its header. The tensors are in the order of the file then.
fn sink(output: &Output, args: &Get, wanted: &mut [Wanted]) -> Result<Option<(Plan, Sink)>> {
    let Some(path) = args.to.as_deref() else { return Ok(None) };
    let plan = Plan::new(wanted)?;
    kept::tell(output, "metadata", &plan.left_out, args.strict, path)?;
    Ok(Some((plan, Sink::create(path)?)))
}

/// Leases of what is meant.
#[derive(Default)]
struct Held {
    /// Tensors of names of this peer, and of tickets.
    tensors: Vec<Tensor>,
    /// Leases of all that is below a name.
    names: Vec<Lease>,
}

/// A tensor that was got.
struct Got<'a> {
    wanted: &'a Wanted,
    moved: Moved,
    copied: bool,
    verified: bool,
}

/// Finds out what is meant, and what it will be; and the sets below a prefix, which are left out.
fn wanted(
    client: &Client,
    output: &Output,
    args: &Get,
    held: &mut Held,
) -> Result<(Vec<Wanted>, Vec<String>)> {
    if args.recursive {
        return all_below(client, output, args, held);
    }
    let mut wanted = Vec::new();
    let mut names = Vec::new();
    for text in &args.targets {
        if text.starts_with(REFERENCE_BEGINS)
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
        return Ok((wanted, Vec::new()));
    }
    for (name, found) in names.iter().zip(leased(client, args, &names, &mut held.tensors)?) {
        let peer = found.reference.peer();
        let target = match *peer == client.peer()? {
            true => found.reference.into(),
            // Not by the reference: the name may be given to another tensor until it is got.
            false => Target::name_at(peer.clone(), *name),
        };
        wanted.push(one(args, name.to_string(), target, &found.descriptor)?);
    }
    Ok((wanted, Vec::new()))
}

/// Finds what names stand for. Tensors of this peer are leased: what all of these names stand for at one moment, whoever gets
/// them next. One of another peer would have to be brought for that; its name is followed when it is got.
fn leased(client: &Client, args: &Get, names: &[&str], held: &mut Vec<Tensor>) -> Result<Vec<Description>> {
    let here = client.peer()?;
    for _ in 0..ATTEMPTS_MAX {
        let found = lookup(client, args, names)?;
        let ours = || names.iter().zip(&found).filter(|(_, found)| *found.reference.peer() == here);
        let targets: Vec<Target> = ours().map(|(_, found)| found.reference.clone().into()).collect();
        let tensors = args.waiting.rest(client).acquire_many(&targets, &options(args));
        let is_gone = |tensor: &tensorlane_client::Result<Tensor>| {
            tensor.as_ref().is_err_and(|error| error.reason() == Some(Reason::NotFound))
        };
        if tensors.iter().any(is_gone) {
            continue;
        }
        let tensors = ours().zip(tensors).map(|((name, _), tensor)| complaint::about(name, tensor));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        if tensors.len() > 1 {
            // Those that still stand for what was leased did so when the last of them was.
            let again: Vec<&str> = ours().map(|(name, _)| *name).collect();
            let again = args.waiting.rest(client).lookup(&again, Some(&here), Duration::ZERO)?;
            let stands = |(now, (_, found)): (&tensorlane_client::Result<Description>, (_, &Description))| {
                now.as_ref().is_ok_and(|now| now.reference == found.reference)
            };
            if !again.iter().zip(ours()).all(stands) {
                continue;
            }
        }
        held.extend(tensors);
        return Ok(found);
    }
    bail!(
        "{} are replaced faster than they can be leased; get them again, or what is below a name in one step by -r",
        names.join(", ")
    )
}

/// Descriptions of what all names stand for. They are waited for together.
fn lookup(client: &Client, args: &Get, names: &[&str]) -> Result<Vec<Description>> {
    let found =
        progress::during("waiting for the names", || args.waiting.lookup(client, names, args.peer.as_ref()))?;
    let about = |(name, found): (&&str, tensorlane_client::Result<Description>)| {
        list::about_anywhere(&args.waiting.rest(client), name, args.peer.as_ref(), found)
    };
    names.iter().zip(found).map(about).collect()
}

/// Options of all that is acquired, but for the part.
fn options(args: &Get) -> AcquireOptions {
    AcquireOptions::new().require(parse::require(&args.require))
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

/// Finds what all names at and below the prefixes stand for; and the sets there, which are left out.
fn all_below(
    client: &Client,
    output: &Output,
    args: &Get,
    held: &mut Held,
) -> Result<(Vec<Wanted>, Vec<String>)> {
    let (mut wanted, mut left_out) = (Vec::new(), Vec::new());
    if let Some(text) = args.targets.iter().find(|text| text.starts_with(REFERENCE_BEGINS)) {
        bail!("{text} is a reference or a ticket, which stands for one tensor: get it without -r");
    }
    for (prefix, leased) in args.targets.iter().zip(leased_below(client, args)?) {
        let before = wanted.len();
        let sets = below(client, args, prefix, leased, &mut wanted, &mut held.names)?;
        match (wanted.len() > before, sets.as_slice()) {
            (false, []) => bail!("{}", list::nothing_below(client, prefix)),
            (false, sets) => bail!("{}", are_sets(args, sets)),
            (true, []) => {}
            (true, sets) if args.strict => {
                bail!("{}; without --strict they are left out", are_sets(args, sets))
            }
            (true, sets) => output.warn(&format!("{}; left out", are_sets(args, sets))),
        }
        left_out.extend(sets);
    }
    Ok((wanted, left_out))
}

/// Names, each with the lease of what it stands for.
type Leased = Vec<(String, Lease)>;

/// Leases what all names at and below each prefix stand for at one moment: those of a prefix in one step. Prefixes whose
/// names still stand for the same tensors after the last one was leased had them then.
fn leased_below(client: &Client, args: &Get) -> Result<Vec<Leased>> {
    let lease = |prefix: &String| -> Result<Leased> {
        let leased = args.waiting.rest(client).lease_names(prefix);
        let leased = leased.with_context(|| format!("the names below {prefix:?}"))?;
        Ok(leased.into_iter().filter(|(name, _)| list::is_below(name, prefix)).collect())
    };
    let is_same = |one: &Leased, other: &Leased| {
        let tensor = |(name, lease): &(String, Lease)| (name.clone(), lease.id());
        one.iter().map(tensor).eq(other.iter().map(tensor))
    };
    for _ in 0..ATTEMPTS_MAX {
        let all = args.targets.iter().map(lease).collect::<Result<Vec<Leased>>>()?;
        let before_the_last = args.targets.iter().zip(&all).take(all.len().saturating_sub(1));
        let mut stand = true;
        for (prefix, leased) in before_the_last {
            stand = stand && is_same(leased, &lease(prefix)?);
        }
        if stand {
            return Ok(all);
        }
    }
    bail!(
        "what is below {} is replaced faster than it can be leased; get it again, or what is below one name alone",
        args.targets.join(", ")
    )
}

/// Tensors that the names of a prefix stand for. They are got by what was leased, so names that are replaced meanwhile make
/// no difference. Returns the names of sets, which are no such tensors.
fn below(
    client: &Client,
    args: &Get,
    prefix: &str,
    leased: Leased,
    wanted: &mut Vec<Wanted>,
    held: &mut Vec<Lease>,
) -> Result<Vec<String>> {
    let mut sets = Vec::new();
    let client = args.waiting.rest(client);
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
pub(crate) fn is_set(descriptor: &Descriptor) -> bool {
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
    let options = options(args).selection(args.part.selection());
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

/// Writes a tensor into the file and verifies its checksum. Without a file and a checksum there is nothing to do: it is
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
    if let Some(expected) = tensor.crc32c() {
        return verify(view, expected, name, sink, progress).map(|()| true);
    }
    let mut at = 0;
    while at < total {
        let len = PIECE_BYTES.min(total - at);
        if let Some(sink) = &mut sink {
            sink.write_from(view, at as u64, len as u64)?;
        }
        at += len;
        progress.advance(len as u64, name);
    }
    Ok(false)
}

/// Verifies the checksum of a tensor, and writes the very bytes that were verified: those that are mapped could change between.
fn verify(
    view: &View,
    expected: u32,
    name: &str,
    mut sink: Option<&mut Sink>,
    progress: &mut Progress,
) -> Result<()> {
    let total = view.len();
    let mut chunk = vec![0; PIECE_BYTES.min(total)];
    let (mut crc, mut at) = (0, 0);
    while at < total {
        let part = &mut chunk[..PIECE_BYTES.min(total - at)];
        view.copy_range_to(at as u64, part)?;
        crc = checksum::crc32c_append(crc, part);
        if let Some(sink) = &mut sink {
            sink.write(part)?;
        }
        at += part.len();
        progress.advance(part.len() as u64, name);
    }
    ensure!(
        crc == expected,
        "{name}: its bytes have the checksum {crc:08x} and not {expected:08x}; they were damaged, put it again"
    );
    Ok(())
}

fn report(
    output: &Output,
    args: &Get,
    got: &[Got<'_>],
    took: Duration,
    (left_out, sets): (&[LeftOut], &[String]),
) -> io::Result<()> {
    let to = args.to.as_deref();
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
                "sets_left_out": sets,
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
