//! `.tensorlane/` of a set: its identity, and the state that outlives the sidecar.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, Mode, OFlags};
use tensorlane_proto::failure::Failure;
pub(super) use tensorlane_proto::rows::{
    COMMITS_FILE as COMMITS, INTENT_BYTES_MAX, JOURNAL_FILE as JOURNAL, intent_file as intent_name,
};
use tensorlane_proto::rows::{
    Commits, Committed, INTENTS_MAX, Intent, NO_INTENT, RECORD_BYTES, REPEATS_MAX, Record, SetLayout,
    TORN_FILE, Torn,
};
use tensorlane_proto::set::{MANIFEST_BYTES_MAX, OWN_DIRECTORY, OWN_META, OwnMeta, OwnSet};

use super::Durability;
use super::failure::{storage, unsupported};
use super::root::{DirectoryName, Root, below, file};

/// Ending of a file that is being written anew.
const DRAFT: &str = ".new";

/// Identity of a set on files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::exchange::rows) struct Identity {
    pub(in crate::exchange::rows) id: u128,
    pub(in crate::exchange::rows) name: String,
    pub(in crate::exchange::rows) writers: Vec<String>,
    pub(in crate::exchange::rows) durability: Durability,
}

/// State of the commits of an earlier life.
pub(super) struct Kept {
    pub(super) commits: Commits,
    pub(super) torn: Torn,
}

// === impl Identity ===

impl Identity {
    /// The set that lies in a directory; none where it is a copy, or no set of ours.
    ///
    /// # Errors
    /// UNSUPPORTED_FORMAT: it is a set of another release, of which nothing is to be lost.
    pub(super) fn of(meta: &OwnMeta, directory: &DirectoryName) -> Result<Option<Self>, Failure> {
        let own = meta.mutable.as_ref().filter(|own| own.directory == directory.as_str());
        let Some(own) = own else { return Ok(None) };
        let other = |what: &str| unsupported(&shown(directory, OWN_META), what);
        let id = u128::from_str_radix(&own.id, 16).map_err(|_| other("the id is no number"))?;
        let durability = Durability::by_word(&own.durability);
        let durability = durability.ok_or_else(|| other("this release does not know the durability"))?;
        Ok(Some(Self { id, name: own.name.clone(), writers: own.writers.clone(), durability }))
    }

    pub(super) fn own(&self, directory: &DirectoryName, layout: &SetLayout) -> OwnSet {
        OwnSet {
            id: format!("{:032x}", self.id),
            name: self.name.clone(),
            directory: directory.as_str().to_owned(),
            writers: self.writers.clone(),
            durability: self.durability.as_str().to_owned(),
            layout: Some(digest(layout)),
        }
    }
}

/// Digest of a layout, as `set.json` has it.
pub(super) fn digest(layout: &SetLayout) -> String {
    format!("{:08x}", layout.digest())
}

fn shown(directory: &DirectoryName, name: &str) -> String {
    format!("{}/{OWN_DIRECTORY}/{name}", directory.as_str())
}

/// Reads `.tensorlane/set.json`; nothing where there is none.
pub(super) fn read_meta(set: &OwnedFd, directory: &DirectoryName) -> Result<OwnMeta, Failure> {
    let failed = |error: io::Error| storage(&shown(directory, OWN_META), "read", &error);
    let Some(own) = missing_is_none(below(set, OWN_DIRECTORY)).map_err(failed)? else {
        return Ok(OwnMeta::default());
    };
    let opened = missing_is_none(file(&own, OWN_META, OFlags::RDONLY)).map_err(failed)?;
    let Some(opened) = opened else { return Ok(OwnMeta::default()) };
    let bytes = read_at_most(opened, MANIFEST_BYTES_MAX as u64).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| unsupported(&shown(directory, OWN_META), error))
}

/// Makes `.tensorlane/` what it is for a set that is open: `set.json`, and room for its commits.
pub(super) fn write_meta(set: &OwnedFd, directory: &DirectoryName, meta: &OwnMeta) -> Result<(), Failure> {
    let failed = |name: &'static str| {
        let path = shown(directory, name);
        move |error: io::Error| storage(&path, "write", &error)
    };
    match rustix::fs::mkdirat(set, OWN_DIRECTORY, Mode::from_raw_mode(0o755)) {
        Err(error) if error != rustix::io::Errno::EXIST => return Err(failed("")(error.into())),
        _ => {}
    }
    let own = below(set, OWN_DIRECTORY).map_err(failed(""))?;
    let commits = file(&own, COMMITS, OFlags::RDWR | OFlags::CREATE).map_err(failed(COMMITS))?;
    let bytes = (RECORD_BYTES * REPEATS_MAX) as u64;
    // A commit that is made can be noted then, also on a disk that is full.
    match rustix::fs::fallocate(&commits, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => {}
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            commits.set_len(bytes).map_err(failed(COMMITS))?;
        }
        Err(error) => return Err(failed(COMMITS)(error.into())),
    }
    commits.sync_all().map_err(failed(COMMITS))?;
    let json = serde_json::to_vec_pretty(meta).map_err(|error| failed(OWN_META)(error.into()))?;
    replace(&own, OWN_META, &json).map_err(failed(OWN_META))?;
    rustix::fs::fsync(set).map_err(|error| failed("")(error.into()))
}

/// Takes a directory as no set of ours any more: true types and the note of torn rows stay. Needs no room where there are no such types.
pub(super) fn forget(root: &Root, directory: &DirectoryName) -> Result<(), Failure> {
    let (set, _) = root.set(directory)?;
    let meta = OwnMeta { mutable: None, ..read_meta(&set, directory)? };
    let failed = |error: io::Error| storage(&shown(directory, ""), "tidy", &error);
    // An earlier call may have come this far.
    let Some(own) = missing_is_none(below(&set, OWN_DIRECTORY)).map_err(failed)? else {
        return rustix::fs::fsync(&set).map_err(|error| failed(error.into()));
    };
    let unlink = |name: &str| {
        let unlinked = rustix::fs::unlinkat(&own, name, AtFlags::empty()).map_err(io::Error::from);
        missing_is_none(unlinked).map(drop)
    };
    // First what makes it a set; on a full disk with true types, what is unlinked makes the room for them.
    if meta.leaves.is_empty() {
        unlink(OWN_META).map_err(failed)?;
    }
    let drafts = [OWN_META, TORN_FILE].map(|name| format!("{name}{DRAFT}"));
    // Torn rows are torn until somebody writes them again, whose set they ever are.
    let is_torn = !noted_torn(&own).map_err(failed)?.is_empty();
    let settled = (!is_torn).then(|| TORN_FILE.to_owned());
    let named = [COMMITS, JOURNAL].map(str::to_owned);
    for name in named.into_iter().chain(settled).chain(drafts).chain((0..INTENTS_MAX).map(intent_name)) {
        unlink(&name).map_err(failed)?;
    }
    // After a loss of power no journal comes back, to be done again over what tensordict has written since.
    let synced = |directory: &OwnedFd| rustix::fs::fsync(directory).map_err(|error| failed(error.into()));
    synced(&own)?;
    if meta.leaves.is_empty() {
        if !is_torn {
            rustix::fs::unlinkat(&set, OWN_DIRECTORY, AtFlags::REMOVEDIR)
                .map_err(|error| failed(error.into()))?;
        }
        return synced(&set);
    }
    let json = serde_json::to_vec_pretty(&meta).map_err(|error| failed(error.into()))?;
    replace(&own, OWN_META, &json).map_err(failed)
}

/// Makes the journal of a set, or removes it, so that it is there or not also after a loss of power.
pub(super) fn keep_journal(set: &OwnedFd, directory: &DirectoryName, is_kept: bool) -> Result<(), Failure> {
    let failed = |error: io::Error| storage(&shown(directory, JOURNAL), "make", &error);
    let own = below(set, OWN_DIRECTORY).map_err(failed)?;
    if is_kept {
        let journal = file(&own, JOURNAL, OFlags::RDWR | OFlags::CREATE).map_err(failed)?;
        journal.sync_all().map_err(failed)?;
    } else {
        let unlinked = rustix::fs::unlinkat(&own, JOURNAL, AtFlags::empty()).map_err(io::Error::from);
        if missing_is_none(unlinked).map_err(failed)?.is_none() {
            return Ok(());
        }
    }
    rustix::fs::fsync(&own).map_err(|error| failed(error.into()))
}

/// Returns whether earlier lives left notes of rows: torn ones, intents or a journal.
pub(super) fn has_notes(set: &OwnedFd, directory: &DirectoryName) -> Result<bool, Failure> {
    let failed = |error: io::Error| storage(&shown(directory, ""), "read", &error);
    let Some(own) = missing_is_none(below(set, OWN_DIRECTORY)).map_err(failed)? else { return Ok(false) };
    let named = [TORN_FILE, JOURNAL].map(str::to_owned);
    for name in named.into_iter().chain((0..INTENTS_MAX).map(intent_name)) {
        let opened = missing_is_none(file(&own, &name, OFlags::RDONLY)).map_err(failed)?;
        let Some(opened) = opened else { continue };
        // Each of them begins with a checksum and a length, and with zeros where it has nothing.
        let mut head = Vec::new();
        opened.take(NO_INTENT.len() as u64).read_to_end(&mut head).map_err(failed)?;
        if head.iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads what earlier lives left, and notes rows that they were writing as torn.
pub(super) fn recover(set: &OwnedFd, directory: &DirectoryName, layout: &SetLayout) -> Result<Kept, Failure> {
    let failed = |error: io::Error| storage(&shown(directory, ""), "read", &error);
    let own = below(set, OWN_DIRECTORY).map_err(failed)?;
    let small = |name: &str, most: u64| bytes_of(&own, name, most);
    let records = Record::decode_all(&small(COMMITS, (RECORD_BYTES * REPEATS_MAX) as u64).map_err(failed)?);
    let mut torn = noted_torn(&own).map_err(failed)?.within(layout.leaves().len(), layout.rows());
    let last = records.last();
    let mut version = last.map_or(0, |record| record.committed.version);
    let mut cursor = last.map_or(0, |record| record.cursor) % layout.rows();
    let mut intents = Vec::new();
    for lock in 0..INTENTS_MAX {
        let bytes = small(&intent_name(lock), INTENT_BYTES_MAX).map_err(failed)?;
        let Some(intent) = Intent::decode(&bytes) else { continue };
        intents.push(lock);
        version = version.max(intent.version);
        // One that was written, and whose intent was not taken back any more, is whole.
        if records.iter().any(|record| record.committed.version == intent.version) {
            continue;
        }
        if intent.extends {
            cursor = intent.pieces.first().map_or(0, |(first, _)| *first) % layout.rows();
        }
        let leaves: Vec<usize> =
            intent.leaves.into_iter().filter(|leaf| *leaf < layout.leaves().len()).collect();
        torn.add_commit(&leaves, &intent.pieces);
    }
    if !intents.is_empty() {
        write_torn(set, directory, &torn)?;
        if last.is_none_or(|record| record.committed.version < version) {
            // Readers of this life see the version: a later life gives it to no other commit, also if nothing is written until then.
            let seen = Record { committed: Committed { version, first: 0 }, cursor, retry: None };
            let commits = file(&own, COMMITS, OFlags::RDWR | OFlags::CREATE).map_err(failed)?;
            commits.write_all_at(&seen.encode(), Record::offset(version)).map_err(failed)?;
        }
        for lock in intents {
            let name = intent_name(lock);
            rustix::fs::unlinkat(&own, &name, AtFlags::empty()).map_err(|error| failed(error.into()))?;
        }
    }
    let repeats = records.iter().filter_map(|record| Some((record.retry?, record.committed)));
    Ok(Kept { commits: Commits::restored(version, cursor, repeats), torn })
}

/// Torn rows that are noted in `.tensorlane/`; none where there is no note.
fn noted_torn(own: &OwnedFd) -> io::Result<Torn> {
    Ok(Torn::decode(&bytes_of(own, TORN_FILE, INTENT_BYTES_MAX)?).unwrap_or_default())
}

/// Reads all of a small file; nothing where there is none.
fn bytes_of(own: &OwnedFd, name: &str, most: u64) -> io::Result<Vec<u8>> {
    match missing_is_none(file(own, name, OFlags::RDONLY))? {
        Some(opened) => read_at_most(opened, most),
        None => Ok(Vec::new()),
    }
}

/// Notes torn rows, in one step.
pub(super) fn write_torn(set: &OwnedFd, directory: &DirectoryName, torn: &Torn) -> Result<(), Failure> {
    let failed = |error: io::Error| storage(&shown(directory, TORN_FILE), "write", &error);
    let own = below(set, OWN_DIRECTORY).map_err(failed)?;
    replace(&own, TORN_FILE, &torn.encode()).map_err(failed)
}

/// Writes a file under another name, synced, and gives it its own.
pub(super) fn replace(directory: &impl AsFd, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = format!("{name}{DRAFT}");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mut written = file(directory, &draft, flags)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    rustix::fs::renameat(directory, &draft, directory, name)?;
    Ok(rustix::fs::fsync(directory)?)
}

pub(super) fn read_at_most(opened: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    opened.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

pub(super) fn missing_is_none<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}
