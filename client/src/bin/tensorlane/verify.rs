//! `tensorlane set verify`: whether a directory, or a set of the exchange, is whole.
//!
//! Of a directory every `meta.json` is read, and the length of every file is looked at. Of a set of the exchange every tensor is
//! got: its layout is compared with what the manifest says, and its bytes with the checksum, where its writer gave one.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};
use tensorlane_client::set::OpenedSet;
use tensorlane_client::set::directory::{Directory, DirectoryError};
use tensorlane_client::{AcquireOptions, Client, Target, Tensor};
use tensorlane_proto::rows::SetReference;
use tensorlane_proto::{Layout, Reason, Reference};

use crate::args::SetVerify;
use crate::get;
use crate::output::{self, Output, even_unread};
use crate::parse;
use crate::progress::Progress;
use crate::set::{has_none, is_version};

/// Something that is wrong: its kind, where, and in words.
struct Flaw {
    kind: &'static str,
    at: String,
    message: String,
}

/// Result of the looks at everything.
#[derive(Default)]
struct Looked {
    tensors: usize,
    bytes: u64,
    /// Tensors whose bytes were compared with a checksum.
    checksums: usize,
    flaws: Vec<Flaw>,
}

/// Verifies. A directory needs no sidecar; what is none is a set of the exchange.
pub(crate) fn run(
    connect: impl FnOnce() -> tensorlane_client::Result<Client>,
    output: &Output,
    args: &SetVerify,
) -> Result<ExitCode> {
    let looked = match Path::new(&args.what) {
        path if path.is_dir() => directory(path)?,
        _ => exchange(&connect()?, &args.what)?,
    };
    let code = if looked.flaws.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    even_unread(output.print(|| looked.json(&args.what), |out| looked.write(out, &args.what)))?;
    Ok(code)
}

fn directory(path: &Path) -> Result<Looked> {
    let flaws = Directory::faults(path)?.iter().map(flaw).collect();
    let mut looked = Looked { flaws, ..Looked::default() };
    if let Ok(whole) = Directory::open(path) {
        (looked.tensors, looked.bytes) = (whole.tree().tensors().len(), whole.bytes());
    }
    Ok(looked)
}

fn flaw(error: &DirectoryError) -> Flaw {
    let (kind, path) = match error {
        DirectoryError::Io { path, source } if source.kind() == ErrorKind::NotFound => ("missing", path),
        DirectoryError::Io { path, .. } | DirectoryError::Level { path, .. } => ("unreadable", path),
        DirectoryError::TooShort { path, .. } => ("too_short", path),
        DirectoryError::TooLong { path, .. } => ("too_long", path),
        DirectoryError::Torn { path, .. } | DirectoryError::Unfinished { path, .. } => ("torn", path),
        DirectoryError::Journaled { path, .. } => ("journal", path),
        DirectoryError::NotPlain { path, .. } => ("not_plain", path),
        DirectoryError::OneFile { path, .. } => ("layout", path),
        other => return Flaw { kind: "layout", at: String::new(), message: other.to_string() },
    };
    Flaw { kind, at: path.display().to_string(), message: error.to_string() }
}

/// Verifies what `set get` gets: by a name the mutable set that is called so, if there is one, and by NAME@VERSION a snapshot.
fn exchange(client: &Client, what: &str) -> Result<Looked> {
    let target = parse::target(what).map_err(anyhow::Error::msg)?;
    let is_reference = SetReference::is_meant(what);
    if is_reference || matches!(target, Target::Name { .. }) && !is_version(what) {
        match mutable(client, what) {
            Err(error) if !is_reference && has_none(&error) => {}
            looked => return Ok(looked?),
        }
        return sealed(client, client.open_set(target, &AcquireOptions::new())?);
    }
    match client.open_set(target, &AcquireOptions::new()) {
        Ok(opened) => sealed(client, opened),
        // A mutable set may be called as a version is.
        Err(error) if error.reason() == Some(Reason::NotFound) => Ok(mutable(client, what).or(Err(error))?),
        Err(error) => Err(error.into()),
    }
}

fn mutable(client: &Client, what: &str) -> tensorlane_client::Result<Looked> {
    let set = client.open_mutable_set(what)?;
    let info = set.info();
    let mut looked = Looked { tensors: set.leaves().len(), bytes: info.bytes, ..Looked::default() };
    if info.torn_rows > 0 {
        let message = format!("{} rows of it are torn; write them again", info.torn_rows);
        looked.flaws.push(Flaw { kind: "torn", at: what.to_owned(), message });
    }
    Ok(looked)
}

fn sealed(client: &Client, opened: OpenedSet) -> Result<Looked> {
    // Leased meanwhile, and with it every tensor of this peer's.
    let OpenedSet { tree, manifest: _manifest, .. } = opened;
    let tensors = tree.tensors();
    let bytes = tensors.iter().map(|(_, reference)| reference.bytes()).sum();
    let mut looked = Looked { tensors: tensors.len(), bytes, ..Looked::default() };
    let mut progress = Progress::new(bytes);
    for (path, reference) in tensors {
        let key = path.join("/");
        match client.acquire(reference, &AcquireOptions::new()) {
            Ok(tensor) => looked.tensor(&tensor, &key, reference, &mut progress),
            Err(error) => {
                let kind = if error.reason() == Some(Reason::NotFound) { "missing" } else { "unreadable" };
                looked.flaws.push(Flaw { kind, at: key, message: error.to_string() });
            }
        }
    }
    progress.finish();
    Ok(looked)
}

impl Looked {
    fn tensor(&mut self, tensor: &Tensor, key: &str, reference: &Reference, progress: &mut Progress) {
        let layout: &Layout = &tensor.descriptor().layout;
        let at = || key.to_owned();
        if !reference.describes(layout) {
            let message = format!("the manifest says {reference}, and it is {layout}");
            self.flaws.push(Flaw { kind: "layout", at: at(), message });
        }
        match get::copy(tensor, key, None, progress) {
            Ok(is_compared) => self.checksums += usize::from(is_compared),
            Err(error) => {
                self.flaws.push(Flaw { kind: "checksum", at: at(), message: format!("{error:#}") });
            }
        }
    }

    fn json(&self, what: &str) -> Value {
        let flaw = |flaw: &Flaw| json!({ "kind": flaw.kind, "at": flaw.at, "message": flaw.message });
        json!({
            "verified": what,
            "whole": self.flaws.is_empty(),
            "tensors": self.tensors,
            "bytes": self.bytes,
            "checksums": self.checksums,
            "faults": self.flaws.iter().map(flaw).collect::<Vec<_>>(),
        })
    }

    fn write(&self, out: &mut dyn std::io::Write, what: &str) -> std::io::Result<()> {
        for Flaw { kind, message, .. } in &self.flaws {
            writeln!(out, "{kind}  {message}")?;
        }
        let (tensors, size) = (output::tensors(self.tensors), output::bytes(self.bytes));
        match self.flaws.len() {
            0 => writeln!(out, "{what} is whole: {tensors}, {size}, {} with a checksum", self.checksums),
            1 => writeln!(out, "{what} has 1 fault"),
            faults => writeln!(out, "{what} has {faults} faults"),
        }
    }
}
