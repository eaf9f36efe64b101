//! `tensorlane put`: every tensor of a safetensors file into the exchange.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tensorlane_client::{Client, Item, PutOptions, Stored};
use tensorlane_proto::frame::INLINE_BYTES_MAX;
use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::{Descriptor, Metadata, Reason, Reference};

use crate::args::Put;
use crate::complaint;
use crate::file::{Entry, Header};
use crate::kept::{self, LeftOut};
use crate::output::{self, Output};
use crate::progress::Progress;
use crate::source::Source;

/// What is read from the file at once. Large enough for all cores to copy it.
const CHUNK_BYTES: usize = 8 << 20;
/// Small tensors are put together up to so many bytes and tensors.
const BATCH_BYTES: usize = 4 << 20;
const BATCH_ITEMS: usize = 1_024;
/// What keeps a tensor without a name, if nothing is said.
const TICKET_DEFAULT: Duration = Duration::from_secs(60);
/// Tickets with more uses are not used up if the put fails: each takes a call.
const REDEEMED_MAX: u32 = 64;

pub(crate) fn run(client: &Client, output: &Output, args: &Put) -> Result<()> {
    let source = Source::open(&args.file)?;
    let header = Header::read(&source)?;
    if header.entries.is_empty() {
        output.warn(&format!("{} has no tensors, so nothing is put", args.file.display()));
    }
    let (metadata, left_out) = kept::of_file(header.metadata);
    kept::tell(output, &left_out, args.strict, &args.file)?;
    let total = header.entries.iter().map(|entry| entry.layout.bytes()).sum();
    let (progress, done) = (Progress::new(total), Vec::new());
    let mut putting = Putting { client, output, args, source: &source, metadata, progress, done };
    putting.check_names(&header.entries)?;
    if let Err(error) = putting.all(&header.entries) {
        putting.undo();
        return Err(error);
    }
    let (bytes, done) = (putting.progress.done(), putting.done);
    let took = putting.progress.finish();
    report(output, &done, bytes, took, &left_out)?;
    Ok(())
}

/// A tensor that was put.
struct Done {
    entry: Entry,
    name: Option<String>,
    reference: Reference,
    ticket: Option<String>,
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
        entries.iter().try_for_each(|entry| match self.name(entry) {
            Some(name) => TensorName::new(&name).map(drop).with_context(|| {
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
        for ((entry, bytes), descriptor) in batch.iter().zip(&descriptors) {
            items.push(Item { descriptor, bytes, options: self.options(entry)? });
        }
        let results = self.progress.during("waiting for room", || self.client.put_many(&items));
        for ((entry, bytes), stored) in batch.iter().zip(results) {
            self.note(entry, &self.about(entry, stored)?);
            self.progress.advance(bytes.len() as u64, &entry.name);
        }
        Ok(())
    }

    /// Writes a large tensor in place, chunk by chunk.
    fn large(&mut self, entry: &Entry) -> Result<()> {
        let options = self.options(entry)?;
        let reserved =
            self.progress.during("waiting for room", || self.client.reserve(&self.descriptor(entry)));
        let mut reservation = self.about(entry, reserved)?;
        let total = entry.layout.bytes();
        let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(total).unwrap_or(CHUNK_BYTES))];
        let mut at = 0;
        while at < total {
            let len = (total - at).min(chunk.len() as u64);
            let part = &mut chunk[..len as usize];
            self.source.read(part, entry.offset + at)?;
            reservation.copy_from(at, part)?;
            at += len;
            self.progress.advance(len, &entry.name);
        }
        self.source.check()?;
        let stored = self.about(entry, reservation.seal(&options))?;
        self.note(entry, &stored);
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

    /// What keeps the tensor once this process has ended: a name, a ticket, or both.
    fn options(&self, entry: &Entry) -> Result<PutOptions> {
        let name = self.name(entry);
        let ticket = self.args.keep.or_else(|| name.is_none().then_some(TICKET_DEFAULT));
        let replaces = match &name {
            Some(name) if self.args.replace => self.present(name)?,
            _ => None,
        };
        Ok(PutOptions {
            name,
            replaces,
            ticket,
            ticket_uses: self.args.uses,
            no_lease: true,
            checksum: self.args.checksum,
            ..PutOptions::default()
        })
    }

    /// What the name stands for at present, at this peer.
    fn present(&self, name: &str) -> Result<Option<Reference>> {
        let peer = self.client.peer()?;
        let mut found = self.client.lookup(&[name], Some(&peer), Duration::ZERO)?;
        match found.pop() {
            Some(Ok(description)) => Ok(Some(description.reference)),
            Some(Err(error)) if error.reason() == Some(Reason::NotFound) => Ok(None),
            Some(Err(error)) => Err(error.into()),
            None => Ok(None),
        }
    }

    fn note(&mut self, entry: &Entry, stored: &Stored) {
        self.done.push(Done {
            name: self.name(entry),
            entry: entry.clone(),
            reference: stored.reference().clone(),
            ticket: stored.ticket().map(str::to_owned),
        });
    }

    /// Half a file is of no use: the names given so far are taken away. Names that were replaced stay as they are.
    fn undo(&self) {
        self.undo_tickets();
        let names: Vec<&str> = self.done.iter().filter_map(|done| done.name.as_deref()).collect();
        if names.is_empty() {
            return;
        }
        if self.args.replace {
            self.output.warn(&format!("{} of the names were replaced already", names.len()));
        } else if self.client.unname(&names).is_err() {
            self.output.warn(&format!("{} tensors were put already and keep their names", names.len()));
        }
    }

    /// Nobody was told the tickets: redeemed as often as they can be, they keep nothing.
    fn undo_tickets(&self) {
        let tickets = self.done.iter().filter_map(|done| done.ticket.as_deref());
        let kept = tickets.filter(|ticket| {
            let uses = self.args.uses.min(REDEEMED_MAX);
            self.args.uses > uses || (0..uses).any(|_| self.client.redeem(ticket, None).is_err())
        });
        let kept = kept.count();
        if kept > 0 {
            self.output.warn(&format!(
                "{} were put already and stay until their tickets end",
                output::tensors(kept)
            ));
        }
    }
}

fn report(
    output: &Output,
    done: &[Done],
    bytes: u64,
    took: Duration,
    left_out: &[LeftOut],
) -> std::io::Result<()> {
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
    output.print(
        || {
            let tensors: Vec<_> = done.iter().map(tensor).collect();
            json!({
                "tensors": tensors,
                "bytes": bytes,
                "seconds": took.as_secs_f64(),
                "metadata_left_out": kept::field(left_out),
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
