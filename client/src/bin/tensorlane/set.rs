//! `tensorlane set`: directories and archives of tensordict, and safetensors files, in and out of the exchange, as versions of a name.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tensorlane_client::set::directory::{Directory, DirectoryError, Draft, Export};
use tensorlane_client::set::{Keys, OpenedSet, PublishOptions, Set};
use tensorlane_client::{AcquireOptions, Client, PutOptions, Target, Tensor};
use tensorlane_proto::rows::SetReference;
use tensorlane_proto::set::{SET_METADATA, Tree};
use tensorlane_proto::{Layout, Reason, Reference, Selection};

use crate::archive;
use crate::args::{self, SetGet, SetLs, SetPut};
use crate::kept;
use crate::mutable;
use crate::output::{self, Output};
use crate::progress::{self, Progress};
use crate::set_file;
use crate::signals::Cleaner;

pub(crate) fn run(client: &Client, output: &Output, args: &args::Set) -> Result<()> {
    use args::Set;
    match args {
        Set::Put(put) => self::put(client, output, put),
        Set::Get(get) => self::get(client, output, get),
        Set::Ls(ls) => self::ls(client, output, ls),
        Set::Snapshot(snapshot) => mutable::snapshot(client, output, snapshot),
        // Done before there is a client.
        Set::Verify(_) => Ok(()),
        Set::Create(create) => mutable::create(client, output, create),
        Set::Stat(stat) => mutable::stat(client, output, stat),
        Set::Drop(drop) => mutable::drop(client, output, drop),
    }
}

/// Tensors that were put, leased by this session until the version has them.
pub(crate) struct StagedSet {
    pub(crate) tree: Tree<Reference>,
    pub(crate) leaves: Vec<(String, Layout)>,
    pub(crate) progress: Progress,
    /// Leases of them.
    pub(crate) _leased: Box<dyn Any>,
}

fn stage(client: &Client, output: &Output, args: &SetPut) -> Result<StagedSet> {
    if set_file::is_meant(&args.from) {
        return set_file::stage(client, output, &args.from, args.checksum);
    }
    if archive::is_meant(&args.from) {
        let (folder, cleaner) = archive::unpacked(client, &args.from)?;
        let staged = stage_directory(client, &folder, args.checksum);
        let StagedSet { tree, leaves, progress, _leased: leased } =
            staged.with_context(|| format!("what is in {}", args.from.display()))?;
        return Ok(StagedSet { tree, leaves, progress, _leased: Box::new((leased, cleaner)) });
    }
    stage_directory(client, &args.from, args.checksum)
}

fn stage_directory(client: &Client, path: &Path, checksum: bool) -> Result<StagedSet> {
    let directory = Directory::open(path)?;
    let mut progress = Progress::new(directory.bytes());
    let options = PutOptions { checksum, ..PutOptions::new() };
    let stored = directory.put(client, &options, |bytes, key| progress.advance(bytes, key))?;
    let tree = stored.try_map(&mut |stored| Ok::<_, anyhow::Error>(stored.reference().clone()))?;
    let leaves = described(directory.tree(), |leaf| leaf.layout.clone());
    Ok(StagedSet { tree, leaves, progress, _leased: Box::new(stored) })
}

fn put(client: &Client, output: &Output, args: &SetPut) -> Result<()> {
    let StagedSet { tree, leaves, progress, _leased } = stage(client, output, args)?;
    let bytes: u64 = leaves.iter().map(|(_, layout)| layout.bytes()).sum();
    let options = PublishOptions { keep: args.keep, expects: args.expects, deadline: None };
    let published = client.publish_set(&args.name, &tree, &options)?;
    let took = progress.finish();
    output.print(
        || {
            json!({
                "name": args.name,
                "version": published.version,
                "reference": published.reference.encode(),
                "tensors": leaves.iter().map(leaf_json).collect::<Vec<_>>(),
                "bytes": bytes,
                "seconds": took.as_secs_f64(),
            })
        },
        |out| {
            writeln!(out, "{}@{}  {}", args.name, published.version, published.reference.encode())?;
            writeln!(out, "{}", summary(leaves.len(), bytes, took))
        },
    )?;
    Ok(())
}

fn get(client: &Client, output: &Output, args: &SetGet) -> Result<()> {
    let target = match (&args.target, &args.peer) {
        (Target::Name { peer: None, name }, Some(peer)) => Target::name_at(peer.clone(), name),
        (target, _) => target.clone(),
    };
    // What is wrong with the path is told before anything moves.
    let is_archive = args.to.as_deref().is_some_and(archive::is_meant);
    let mut file = match &args.to {
        Some(to) if is_archive || set_file::is_meant(to) => Some(set_file::begin(to, args.replace)?),
        Some(to) => Draft::check(to, args.replace).map(|()| None)?,
        None => None,
    };
    let (version, tree, _manifest) = progress::during("waiting for the set", || got(client, args, &target))?;
    let mut left_out = Vec::new();
    if let Some(to) = &args.to {
        left_out = set_file::left_out(&tree, file.is_some() && !is_archive);
        kept::tell(output, "parts of the set", &left_out, args.strict, to)?;
    }
    let leaves = described(&tree, |tensor: &Tensor| tensor.descriptor().layout.clone());
    let total = leaves.iter().map(|(_, layout)| layout.bytes()).sum();
    let mut progress = Progress::new(total);
    // Until the result is printed: signals that come after its end are lost. A file has its own; of two the first one that is done ends
    // the process.
    let cleaner = (args.to.is_some() && file.is_none()).then(Cleaner::start);
    let cleaner = cleaner.transpose().context("cannot wait for signals")?;
    let exported = match (&args.to, &cleaner, &mut file) {
        (Some(to), _, Some(file)) if is_archive => Some(archive::write(&tree, file, to, &mut progress)?),
        (_, _, Some(file)) => {
            set_file::write(&tree, file, &mut progress)?;
            None
        }
        (Some(to), Some(cleaner), None) => Some(export(cleaner, &tree, to, args.replace, &mut progress)?),
        _ => None,
    };
    let took = progress.finish();
    let as_bytes = exported.map(|export| export.as_bytes).unwrap_or_default();
    for key in &as_bytes {
        output.warn(&format!(
            "tensordict has no name for the type of {key} and sees its bytes; `set put` keeps the type"
        ));
    }
    output.print(
        || {
            json!({
                "version": version,
                "to": args.to.as_ref().map(|to| to.display().to_string()),
                "tensors": leaves.iter().map(leaf_json).collect::<Vec<_>>(),
                "as_bytes": as_bytes,
                "left_out": kept::field(&left_out),
                "bytes": total,
                "seconds": took.as_secs_f64(),
            })
        },
        |out| {
            writeln!(out, "version {version}")?;
            for (key, layout) in &leaves {
                writeln!(out, "{key}  {layout}")?;
            }
            writeln!(out, "{}", summary(leaves.len(), total, took))
        },
    )?;
    Ok(())
}

/// Time for which one kind of set is waited for before the other one is looked for.
const TURN: Duration = Duration::from_millis(500);

/// Version and tensors of a mutable set as it is at this moment, or of a sealed one where a version is asked for or no mutable set has
/// the name; and the lease of a manifest.
fn got(client: &Client, args: &SetGet, target: &Target) -> Result<(u64, Tree<Tensor>, Option<Tensor>)> {
    let options = args.waiting.options(client);
    let wanted = if args.keys.is_empty() { Keys::All } else { Keys::These(args.keys.clone()) };
    let sealed = |options: &AcquireOptions| {
        let got = client.get_set_of(target, &wanted, options);
        got.map(|Set { version, tree, manifest }| (version, tree, Some(manifest)))
    };
    let (keys, part) = (args.keys.iter().map(String::as_str).collect::<Vec<_>>(), args.part.selection());
    let Target::Name { peer, name } = target else {
        if part != Selection::All {
            bail!(
                "rows are those of a mutable set, and this is the reference of a sealed one; leave --rows and --part out"
            );
        }
        return Ok(sealed(&options)?);
    };
    let mutable = match peer {
        Some(peer) if !SetReference::is_meant(name) => format!("{peer}/{name}"),
        _ => name.clone(),
    };
    let now = options.clone().wait(Duration::ZERO);
    if !is_version(name) || !keys.is_empty() || part != Selection::All || SetReference::is_meant(name) {
        // A sealed set is meant where no mutable one has the name. Both are waited for, in turns.
        let may_be_sealed = part == Selection::All && !SetReference::is_meant(name);
        let until = Instant::now() + args.waiting.wait();
        let mut turn = if may_be_sealed { Duration::ZERO } else { args.waiting.wait() };
        let set = loop {
            let error = match args.waiting.rest(client).wait_for_mutable_set(&mutable, turn) {
                Ok(set) => break set,
                // An old snapshot is not given in the place of a set that there may be.
                Err(error) if !may_be_sealed || !has_none(&error) => return Err(error.into()),
                Err(error) => error,
            };
            let left = until.saturating_duration_since(Instant::now());
            match sealed(&now) {
                Err(other) if is_absent(&other) && !left.is_zero() && is_absent(&error) => {
                    turn = left.min(TURN);
                }
                // Where a mutable set cannot be waited for, the sealed one is.
                Err(other) if is_absent(&other) && !left.is_zero() => {
                    return Ok(sealed(&args.waiting.options(client))?);
                }
                Err(other) if is_absent(&other) => {
                    return Err(if keys.is_empty() { other } else { error }.into());
                }
                outcome => return Ok(outcome?),
            }
        };
        let (version, tree) = set.read_tree_of(&keys, &part)?;
        return Ok((version, tree, None));
    }
    let absent = match sealed(&now) {
        Err(error) if is_absent(&error) => error,
        outcome => return Ok(outcome?),
    };
    match args.waiting.rest(client).open_mutable_set(&mutable) {
        Ok(set) => {
            let (version, tree) = set.read_tree()?;
            Ok((version, tree, None))
        }
        // Whichever comes first would be hard to say: it is the sealed set that is waited for.
        Err(_) if args.waiting.waits() => Ok(sealed(&args.waiting.options(client))?),
        Err(_) => Err(absent.into()),
    }
}

/// Returns whether a name asks for a version of a sealed set, such as `policy@7`.
pub(crate) fn is_version(name: &str) -> bool {
    name.rsplit_once('@').is_some_and(|(_, number)| number.parse::<u64>().is_ok())
}

/// Returns whether nothing has the name, or nobody.
fn is_absent(error: &tensorlane_client::Error) -> bool {
    matches!(error.reason(), Some(Reason::NotFound | Reason::PeerUnknown))
}

/// Returns whether a look for a mutable set found none, so that a sealed one may be meant.
pub(crate) fn has_none(error: &tensorlane_client::Error) -> bool {
    is_absent(error) || matches!(error.reason(), Some(Reason::PeerUnreachable | Reason::Unsupported))
}

/// Writes a set into a directory. A signal that ends the command leaves nothing of it.
fn export(
    cleaner: &Cleaner,
    tree: &Tree<Tensor>,
    to: &Path,
    replace: bool,
    progress: &mut Progress,
) -> Result<Export> {
    let draft = cleaner.make_directory(|| Draft::create(to, replace), Draft::path)?;
    let written = draft.write(tree, |bytes, key| progress.advance(bytes, key));
    // Once a signal has come this waits for the end of the process, and says nothing of files that went meanwhile.
    let mut finished = None;
    cleaner.settle(|| {
        let written = written?;
        draft.finish()?;
        finished = Some(written);
        Ok::<_, DirectoryError>(())
    })?;
    Ok(finished.unwrap_or_default())
}

/// A version of a set, as it is listed.
struct Version {
    number: u64,
    /// Tensors and bytes, or why it cannot be read.
    content: std::result::Result<(usize, u64), String>,
    reference: String,
}

fn ls(client: &Client, output: &Output, args: &SetLs) -> Result<()> {
    let mut sets: BTreeMap<String, Vec<Version>> = BTreeMap::new();
    for listed in client.list(&args.prefix) {
        let listed = listed?;
        let Some((name, number)) = listed.name.rsplit_once('@') else { continue };
        let is_set = listed.description.descriptor.metadata.value(SET_METADATA).is_some();
        let Some(number) = number.parse().ok().filter(|_| is_set) else { continue };
        let target = listed.description.reference.clone();
        let content = match client.open_set(target, &AcquireOptions::new()) {
            Ok(OpenedSet { tree, .. }) => {
                let tensors = tree.tensors();
                Ok((tensors.len(), tensors.iter().map(|(_, leaf)| leaf.bytes()).sum()))
            }
            // It was replaced since it was listed.
            Err(error) if error.reason() == Some(Reason::NotFound) => continue,
            // Whatever somebody has put under such a name, the others are listed.
            Err(error) if error.reason() == Some(Reason::NotASet) => Err(error.to_string()),
            Err(error) => return Err(error).with_context(|| listed.name.clone()),
        };
        let reference = listed.description.reference.encode();
        sets.entry(name.to_owned()).or_default().push(Version { number, content, reference });
    }
    sets.values_mut().for_each(|versions| versions.sort_by_key(|version| version.number));
    let rows = mutable::listed(client.mutable_sets(&args.prefix))?;
    if rows.is_none() {
        output.warn(&mutable::not_listed(&args.prefix));
    }
    let rows = rows.as_deref();
    let version = |version: &Version| {
        let content = version.content.as_ref();
        json!({
            "version": version.number,
            "tensors": content.ok().map(|(tensors, _)| tensors),
            "bytes": content.ok().map(|(_, bytes)| bytes),
            "error": content.err(),
            "reference": version.reference,
        })
    };
    output.print(
        || {
            let set = |(name, versions): (&String, &Vec<Version>)| {
                json!({ "name": name, "versions": versions.iter().map(version).collect::<Vec<_>>() })
            };
            json!({
                "sets": sets.iter().map(set).collect::<Vec<Value>>(),
                "mutable": rows.map(|rows| rows.iter().map(mutable::json).collect::<Vec<Value>>()),
            })
        },
        |out| {
            for (name, versions) in &sets {
                for Version { number, content, .. } in versions {
                    let told = match content {
                        Ok((tensors, bytes)) => {
                            format!("{}, {}", output::tensors(*tensors), output::bytes(*bytes))
                        }
                        Err(why) => why.clone(),
                    };
                    writeln!(out, "{name}@{number}  {told}")?;
                }
            }
            rows.unwrap_or_default().iter().try_for_each(|set| writeln!(out, "{}", mutable::line(set)))
        },
    )?;
    Ok(())
}

fn described<L>(tree: &Tree<L>, layout: impl Fn(&L) -> Layout) -> Vec<(String, Layout)> {
    tree.tensors().into_iter().map(|(path, leaf)| (path.join("/"), layout(leaf))).collect()
}

fn leaf_json((key, layout): &(String, Layout)) -> Value {
    let mut value = output::layout(layout);
    output::merge(&mut value, json!({ "key": key }));
    value
}

fn summary(tensors: usize, bytes: u64, took: Duration) -> String {
    let (count, size) = (output::tensors(tensors), output::bytes(bytes));
    format!("{count}, {size} in {} ({})", output::span(took.as_secs_f64()), output::rate(bytes, took))
}
