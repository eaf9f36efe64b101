//! `tensorlane put`: every tensor of a safetensors file into the exchange.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use tensorlane_client::{Client, Item, Lease, Naming, PutOptions, Stored, Target};
use tensorlane_proto::frame::{INLINE_BYTES_MAX, SESSION_BODY_MAX, SESSION_ITEMS_MAX};
use tensorlane_proto::ledger::{NameError, Refusal, TensorId, TensorName};
use tensorlane_proto::{Descriptor, Failure, Metadata, Reason, Reference};

use crate::args::Put;
use crate::complaint;
use crate::file::{Entry, Header};
use crate::get;
use crate::kept::{self, LeftOut};
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::signals::{Cleaner, Undo};
use crate::source::Source;

/// Bytes that are read from the file at once, and told by the bar.
const PIECE_BYTES: u64 = 8 << 20;
/// Small tensors are put together up to so many bytes and tensors.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_ITEMS: usize = 1_024;
/// Names looked up in one request: with metadata a description may take kilobytes.
const LOOKUP_ITEMS: usize = 512;
/// Tickets made in one request: each has some 200 bytes in the answer.
const TICKET_ITEMS: usize = 4_096;
/// Most bytes of an item in the request for all names, beside its name and the reference that this replaces.
const NAME_ITEM_BYTES: usize = 24;
/// Tries to replace names that others replace at the same time.
const ATTEMPTS_MAX: u32 = 16;
/// Time for which a ticket keeps a tensor without a name, if nothing is said.
const TICKET_DEFAULT: Duration = Duration::from_secs(60);
/// Tickets with more uses are not used up if the put fails: each takes a call.
const REDEEMED_MAX: u32 = 64;
/// Time in which the tickets of a put that failed are used up, all of them. What is left of them ends by itself.
const GIVING_UP_MAX: Duration = Duration::from_secs(5);

pub(crate) fn run(client: &Client, output: &Output, args: &Put) -> Result<()> {
    let source = Source::open(&args.file)?;
    let header = Header::read(&source)?;
    if header.entries.is_empty() {
        output.warn(&format!("{} has no tensors, so nothing is put", args.file.display()));
    }
    let (metadata, left_out) = kept::of_file(header.metadata);
    kept::tell(output, "metadata", &left_out, args.strict, &args.file)?;
    let total = header.entries.iter().map(|entry| entry.layout.bytes()).sum();
    let (progress, done) = (Progress::new(total), Vec::new());
    let mut putting = Putting { client, output, args, source: &source, metadata, progress, done };
    // Half a file is of no use. So nothing has a name or ticket before all is put; what has none ends with this
    // process.
    putting.check_names(&header.entries)?;
    putting.check_free(&header.entries)?;
    putting.all(&header.entries)?;
    let tickets = Tickets::make(&mut putting)?;
    let others = putting.name_all()?;
    let (bytes, done) = (putting.progress.done(), putting.done);
    let took = putting.progress.finish();
    let told = Told { left_out: &left_out, others: &others, pruned: args.prune };
    tell_others(output, args, &others);
    tickets.tell(&done, &report(output, &done, bytes, took, &told)?)
}

/// Beside the tensors, what a put tells.
struct Told<'a> {
    left_out: &'a [LeftOut],
    /// Names below the prefix that the file does not have.
    others: &'a [String],
    /// Set if they were taken away.
    pruned: bool,
}

/// Warns of names below the prefix that a put with `--replace` has left as they were.
fn tell_others(output: &Output, args: &Put, others: &[String]) {
    if let (Some(first), Some(prefix), false) = (others.first(), &args.name, args.prune) {
        let more = others.len() - 1;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        output.warn(&format!(
            "{first}{more} below {prefix} stay, which {} does not have: `get -r` gets them too; --prune takes them away",
            args.file.display()
        ));
    }
}

/// Puts all tensors of a file, for somebody who keeps them: their leases are in what this gives, with the progress so far.
pub(crate) fn all_of(
    client: &Client,
    output: &Output,
    args: &Put,
    source: &Source,
    entries: &[Entry],
) -> Result<(Vec<Done>, Progress)> {
    let progress = Progress::new(entries.iter().map(|entry| entry.layout.bytes()).sum());
    let (metadata, done) = (Metadata::default(), Vec::new());
    let mut putting = Putting { client, output, args, source, metadata, progress, done };
    putting.all(entries)?;
    Ok((putting.done, putting.progress))
}

/// A tensor that was put.
pub(crate) struct Done {
    pub(crate) entry: Entry,
    name: Option<String>,
    pub(crate) reference: Reference,
    ticket: Option<String>,
    /// Lease that keeps the tensor until it has its name or ticket, and that was told.
    pub(crate) lease: Option<Lease>,
}

/// Tensors below the prefix before a put.
struct Before {
    /// The tensor of each name of the file; none where it is free.
    present: Vec<Option<Reference>>,
    /// Names that the file does not have, in order.
    others: Vec<(String, Reference)>,
}

impl Before {
    fn nothing(names: usize) -> Self {
        Self { present: vec![None; names], others: Vec::new() }
    }
}

struct Putting<'a> {
    client: &'a Client,
    output: &'a Output,
    args: &'a Put,
    source: &'a Source<'a>,
    metadata: Metadata,
    progress: Progress,
    done: Vec<Done>,
}

impl Putting<'_> {
    /// Fails if any of the names is none, before anything is put.
    fn check_names(&self, entries: &[Entry]) -> Result<()> {
        let refused = |error: NameError| Failure::new(Reason::InvalidArgument, error.to_string());
        entries.iter().try_for_each(|entry| match self.name(entry) {
            Some(name) => TensorName::new(&name)
                .map_err(|error| tensorlane_client::Error::from(refused(error)))
                .map(drop)
                .with_context(|| {
                    format!("tensor {:?} of {} cannot be named so", entry.name, self.args.file.display())
                }),
            None => Ok(()),
        })
    }

    fn all(&mut self, entries: &[Entry]) -> Result<()> {
        let mut batch: Vec<(&Entry, Vec<u8>)> = Vec::new();
        let mut batched = 0;
        for entry in entries {
            let bytes = entry.layout.bytes();
            if bytes > INLINE_BYTES_MAX as u64 {
                self.large(entry)?;
                continue;
            }
            let mut data = vec![0; bytes as usize];
            self.source.read(&mut data, entry.offset)?;
            batched += data.len();
            batch.push((entry, data));
            if batched >= BATCH_BYTES || batch.len() == BATCH_ITEMS {
                self.small(&batch)?;
                batch.clear();
                batched = 0;
            }
        }
        self.small(&batch)
    }

    /// Puts small tensors in one request.
    fn small(&mut self, batch: &[(&Entry, Vec<u8>)]) -> Result<()> {
        self.source.check()?;
        let descriptors: Vec<Descriptor> = batch.iter().map(|(entry, _)| self.descriptor(entry)).collect();
        let mut items = Vec::with_capacity(batch.len());
        for ((_, bytes), descriptor) in batch.iter().zip(&descriptors) {
            items.push(Item { descriptor, bytes, options: self.options() });
        }
        let results = self.progress.during("waiting for room", || self.client.put_many(&items));
        for ((entry, bytes), stored) in batch.iter().zip(results) {
            let stored = self.about(entry, stored)?;
            self.note(entry, stored);
            self.progress.advance(bytes.len() as u64, &entry.name);
        }
        Ok(())
    }

    /// Reads a large tensor to its place, piece by piece.
    fn large(&mut self, entry: &Entry) -> Result<()> {
        let options = self.options();
        let reserved =
            self.progress.during("waiting for room", || self.client.reserve(&self.descriptor(entry)));
        let mut reservation = self.about(entry, reserved)?;
        let total = entry.layout.bytes();
        let mut at = 0;
        while at < total {
            let len = PIECE_BYTES.min(total - at);
            self.source.read_to(&mut reservation, at, len, entry.offset + at)?;
            at += len;
            self.progress.advance(len, &entry.name);
        }
        self.source.check()?;
        let stored = self.about(entry, reservation.seal(&options))?;
        self.note(entry, stored);
        Ok(())
    }

    fn descriptor(&self, entry: &Entry) -> Descriptor {
        Descriptor { metadata: self.metadata.clone(), ..Descriptor::host(entry.layout.clone()) }
    }

    /// The result of a call about one tensor; the error says which, by its name where it gets one.
    fn about<T>(&self, entry: &Entry, result: tensorlane_client::Result<T>) -> Result<T> {
        complaint::about(self.name(entry).as_ref().unwrap_or(&entry.name), result)
    }

    fn name(&self, entry: &Entry) -> Option<String> {
        self.args.name.as_ref().map(|prefix| format!("{}/{}", prefix.trim_end_matches('/'), entry.name))
    }

    /// Options of each put: this process keeps the tensors until all of them have a name or ticket.
    fn options(&self) -> PutOptions {
        PutOptions { checksum: self.args.checksum, ..PutOptions::default() }
    }

    /// Time for which tickets keep the tensors; none without tickets.
    fn keep(&self) -> Option<Duration> {
        self.args.keep.or_else(|| self.args.name.is_none().then_some(TICKET_DEFAULT))
    }

    /// Refuses names that are taken, or too many, before a byte is put for them; at the end it would be in vain.
    fn check_free(&self, entries: &[Entry]) -> Result<()> {
        let mut names: Vec<String> = entries.iter().filter_map(|entry| self.name(entry)).collect();
        if self.args.replace {
            return self.standing(&names).map(drop);
        }
        self.check_step(&names, &Before::nothing(names.len()))?;
        names.sort_unstable();
        for (name, present) in names.iter().zip(self.present(&names)?) {
            if let Some(reference) = present {
                let taken = Refusal::NameTaken { name: TensorName::new(name)?, by: TensorId(reference.id()) };
                let failure = Failure::new(Reason::NameTaken, taken.to_string()).with("name", name);
                return Err(tensorlane_client::Error::from(failure).into());
            }
        }
        Ok(())
    }

    /// Gives all names in one step, in which names that the file does not have end if that is asked for. Those that may be
    /// replaced are looked up again as often as others replace them in between. Returns the names that the file does not have.
    fn name_all(&mut self) -> Result<Vec<String>> {
        let names: Vec<String> = self.done.iter().filter_map(|done| done.name.clone()).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        for attempt in 1.. {
            let now = if self.args.replace { self.standing(&names)? } else { Before::nothing(names.len()) };
            let given = names.iter().zip(&self.done).zip(now.present);
            let given = given.map(|((name, done), replaces)| Naming {
                target: Some(done.reference.clone().into()),
                name: name.clone(),
                replaces,
            });
            let ended = now.others.iter().filter(|_| self.args.prune).map(|(name, reference)| Naming {
                target: None,
                name: name.clone(),
                replaces: Some(reference.clone()),
            });
            match self.client.name_together(&given.chain(ended).collect::<Vec<_>>()) {
                Err(error) if self.args.replace && attempt < ATTEMPTS_MAX && has_changed(&error) => {}
                outcome => {
                    outcome?;
                    return Ok(now.others.into_iter().map(|(name, _)| name).collect());
                }
            }
        }
        Ok(Vec::new())
    }

    /// Looks at what stands below the prefix, where names may be replaced. Fails if some would stay that may not, or if one
    /// step cannot have all names.
    fn standing(&self, names: &[String]) -> Result<Before> {
        let prefix = self.args.name.as_deref().unwrap_or_default().trim_end_matches('/');
        let mut below = HashMap::new();
        for listed in self.client.list(&format!("{prefix}/")) {
            let listed = listed?;
            below.insert(listed.name, listed.description);
        }
        let present = names.iter().map(|name| below.remove(name).map(|found| found.reference)).collect();
        // A set is none of the tensors that are got by a prefix.
        below.retain(|_, found| !get::is_set(&found.descriptor));
        let mut others: Vec<_> = below.into_iter().map(|(name, found)| (name, found.reference)).collect();
        others.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        if let Some((first, _)) = others.first().filter(|_| self.args.strict && !self.args.prune) {
            bail!(
                "{} has no tensor for {first}, which would stay below {prefix}; --prune takes such names away, and without --strict \
                 they stay",
                self.args.file.display()
            );
        }
        let now = Before { present, others };
        self.check_step(names, &now)?;
        Ok(now)
    }

    /// Fails if one step does not take so many names, with what they replace.
    fn check_step(&self, names: &[String], now: &Before) -> Result<()> {
        let given = names.iter().zip(&now.present).map(|(name, replaces)| (name, replaces.as_ref()));
        let ended =
            now.others.iter().filter(|_| self.args.prune).map(|(name, replaces)| (name, Some(replaces)));
        let (mut items, mut bytes) = (0, 0);
        for (name, replaces) in given.chain(ended) {
            items += 1;
            bytes += NAME_ITEM_BYTES + name.len() + replaces.map_or(0, |replaces| replaces.encode().len());
        }
        ensure!(
            items <= SESSION_ITEMS_MAX && bytes <= SESSION_BODY_MAX as usize,
            "{} takes {items} names in one step, of {bytes} bytes with what they replace, and a step takes {SESSION_ITEMS_MAX} in \
             16 MiB; put it without --name, with a shorter one, or in several files",
            self.args.file.display(),
        );
        Ok(())
    }

    /// References that names stand for at present, at this peer.
    fn present(&self, names: &[String]) -> Result<Vec<Option<Reference>>> {
        let peer = self.client.peer()?;
        let mut present = Vec::with_capacity(names.len());
        for batch in names.chunks(LOOKUP_ITEMS) {
            let found = self.client.lookup(batch, Some(&peer), Duration::ZERO)?;
            for (name, found) in batch.iter().zip(found) {
                present.push(match found {
                    Ok(description) => Some(description.reference),
                    Err(error) if error.reason() == Some(Reason::NotFound) => None,
                    Err(error) => return complaint::about(name, Err(error)),
                });
            }
        }
        Ok(present)
    }

    fn note(&mut self, entry: &Entry, stored: Stored) {
        self.done.push(Done {
            name: self.name(entry),
            entry: entry.clone(),
            reference: stored.reference().clone(),
            ticket: None,
            lease: stored.into_lease(),
        });
    }
}

/// Tickets from when they are made until somebody was told all of them. Those that nobody was told are used up where
/// this is dropped before, or a signal ends the command: they keep nothing.
struct Tickets {
    /// None if no tickets are wanted.
    cleaner: Option<Cleaner>,
    giving_up: Arc<GivingUp>,
}

impl Tickets {
    /// Makes a ticket for each tensor that was put. Their time begins here, when there is nothing left to be read.
    fn make(putting: &mut Putting<'_>) -> Result<Self> {
        let (client, uses) = (putting.client, putting.args.uses);
        let giving_up = Arc::new(GivingUp::new(client.clone(), putting.output.clone(), uses));
        let Some(keep) = putting.keep().filter(|_| !putting.done.is_empty()) else {
            return Ok(Self { cleaner: None, giving_up });
        };
        let cleaner = Cleaner::start().context("cannot wait for signals")?;
        let mut first = 0;
        for batch in putting.done.chunks_mut(TICKET_ITEMS) {
            let targets: Vec<Target> = batch.iter().map(|done| done.reference.clone().into()).collect();
            let make = || client.ticket_many(&targets, Some(keep), uses);
            let undo = |made: &Vec<tensorlane_client::Result<String>>| -> Undo {
                let tickets: Vec<String> = made.iter().flatten().cloned().collect();
                let giving_up = Arc::clone(&giving_up);
                Box::new(move || giving_up.use_up(&tickets, first))
            };
            for (done, ticket) in batch.iter_mut().zip(cleaner.begin(make, undo)?) {
                done.ticket = Some(complaint::about(done.name.as_ref().unwrap_or(&done.entry.name), ticket)?);
            }
            first += targets.len();
        }
        Ok(Self { cleaner: Some(cleaner), giving_up })
    }

    /// Tells the tickets, in what is printed.
    fn tell(self, done: &[Done], printed: &[u8]) -> Result<()> {
        let ends = ends(printed, done.iter().filter_map(|done| done.ticket.as_deref()));
        let told = |at: usize| ends.partition_point(|end| *end <= at);
        let count = |at: usize| self.giving_up.told.store(told(at), Ordering::Relaxed);
        // Counted before they go out, and none goes out once a signal gives them up: a reader's ticket is never used up.
        let going = |at: usize| match &self.cleaner {
            Some(cleaner) => cleaner.before(|| count(at)),
            None => count(at),
        };
        let Err((taken, error)) = Output::write(printed, going) else {
            return self.cleaner.as_ref().map_or(Ok(()), |cleaner| cleaner.settle(|| Ok(())));
        };
        going(taken);
        let (told, all) = (told(taken), done.len());
        // Without names nothing stays of what nobody was told: no end that somebody wished for.
        if self.cleaner.is_some() && told < all && done.iter().all(|done| done.name.is_none()) {
            match told {
                0 => bail!("cannot tell the tickets, so what was put is given up: {error}"),
                _ => bail!(
                    "cannot tell {} of {all} tickets, so their tensors are given up: {error}",
                    all - told
                ),
            }
        }
        Err(error.into())
    }
}

/// Ends of the tickets in what is printed, which has them in their order.
fn ends<'a>(printed: &[u8], tickets: impl Iterator<Item = &'a str>) -> Vec<usize> {
    let printed = std::str::from_utf8(printed).unwrap_or_default();
    let mut at = 0;
    let end = |ticket: &str| {
        at += printed[at..].find(ticket)? + ticket.len();
        Some(at)
    };
    tickets.map_while(end).collect()
}

/// State of giving tickets up that all steps share.
struct GivingUp {
    client: Client,
    output: Output,
    uses: u32,
    /// Number of the first tickets that were told, or are just written.
    told: AtomicUsize,
    until: OnceLock<Instant>,
    /// Set once the sidecar did not answer.
    is_lost: AtomicBool,
}

impl GivingUp {
    fn new(client: Client, output: Output, uses: u32) -> Self {
        let (told, until, is_lost) = (AtomicUsize::new(0), OnceLock::new(), AtomicBool::new(false));
        Self { client, output, uses, told, until, is_lost }
    }

    /// Redeems those tickets of a batch that were not told, as often as they can be, so that they keep nothing. The
    /// batch begins behind the first ones of all.
    fn use_up(&self, tickets: &[String], first: usize) {
        let told = self.told.load(Ordering::Relaxed).saturating_sub(first).min(tickets.len());
        let once = self.uses.min(REDEEMED_MAX);
        let is_kept = |ticket: &&String| self.uses > once || !(0..once).all(|_| self.redeem(ticket));
        let kept = tickets[told..].iter().filter(is_kept).count();
        if kept > 0 {
            let tensors = output::tensors(kept);
            self.output.warn(&format!("{tensors} were put already and stay until their tickets end"));
        }
    }

    /// Returns whether a ticket was redeemed. Where there is no time left, or no sidecar, nothing is asked.
    fn redeem(&self, ticket: &str) -> bool {
        let until = self.until.get_or_init(|| Instant::now() + GIVING_UP_MAX);
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || self.is_lost.load(Ordering::Relaxed) {
            return false;
        }
        let client = self.client.with_deadline(left.min(self.client.deadline()));
        let redeemed = client.redeem(ticket, None);
        let is_lost = redeemed.as_ref().is_err_and(|error| error.reason().is_none());
        self.is_lost.store(is_lost, Ordering::Relaxed);
        redeemed.is_ok()
    }
}

/// Returns whether a name stood for something else than was looked up a moment before.
fn has_changed(error: &tensorlane_client::Error) -> bool {
    matches!(error.reason(), Some(Reason::NameChanged | Reason::NameTaken))
}

fn report(
    output: &Output,
    done: &[Done],
    bytes: u64,
    took: Duration,
    told: &Told<'_>,
) -> std::io::Result<Vec<u8>> {
    let tensor = |done: &Done| {
        let mut value = output::layout(&done.entry.layout);
        output::merge(
            &mut value,
            json!({
                "tensor": done.entry.name,
                "name": done.name,
                "reference": done.reference.encode(),
                "ticket": done.ticket,
            }),
        );
        value
    };
    output.printed(
        || {
            let tensors: Vec<_> = done.iter().map(tensor).collect();
            let none: &[String] = &[];
            let (pruned, stay) = if told.pruned { (told.others, none) } else { (none, told.others) };
            json!({
                "tensors": tensors,
                "bytes": bytes,
                "seconds": took.as_secs_f64(),
                "metadata_left_out": kept::field(told.left_out),
                "pruned": pruned,
                "others_below": stay,
            })
        },
        |out| {
            for done in done {
                // With a name, that is what one goes on with; without, the ticket.
                let first = done.name.as_deref().or(done.ticket.as_deref()).unwrap_or_default();
                write!(out, "{first}  {}  {}", done.entry.layout, done.reference.encode())?;
                match done.ticket.as_deref().filter(|_| done.name.is_some()) {
                    Some(ticket) => writeln!(out, "  ticket {ticket}")?,
                    None => writeln!(out)?,
                }
            }
            writeln!(
                out,
                "{}, {} in {} ({})",
                output::tensors(done.len()),
                output::bytes(bytes),
                output::span(took.as_secs_f64()),
                output::rate(bytes, took)
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_end_where_they_are_written_whole() {
        let printed = b"tl1:a#11  u8[1]  tl1:a\ntl1:b#22  u8[1]  tl1:b\ntl1:c#33  u8[1]  tl1:c\n";
        let ends = |tickets: &[&'static str]| ends(printed, tickets.iter().copied());
        assert_eq!(ends(&["tl1:a#11", "tl1:b#22", "tl1:c#33"]), [8, 31, 54]);
        assert_eq!(ends(&["tl1:a#11", "tl1:d#44", "tl1:c#33"]), [8]);
    }
}
