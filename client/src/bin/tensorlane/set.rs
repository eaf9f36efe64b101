//! `tensorlane set`: directories of tensordict in and out of the exchange, as versions of a name.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tensorlane_client::set::directory::{Directory, DirectoryError, Draft, Export};
use tensorlane_client::set::{OpenedSet, PublishOptions};
use tensorlane_client::{Client, Target, Tensor};
use tensorlane_proto::set::{SET_METADATA, Tree};
use tensorlane_proto::{Layout, Reason};

use crate::args::{Set, SetGet, SetLs, SetPut};
use crate::mutable;
use crate::output::{self, Output};
use crate::progress::{self, Progress};
use crate::signals::Cleaner;

pub(crate) fn run(client: &Client, output: &Output, args: &Set) -> Result<()> {
    match args {
        Set::Put(put) => self::put(client, output, put),
        Set::Get(get) => self::get(client, output, get),
        Set::Ls(ls) => self::ls(client, output, ls),
        Set::Create(create) => mutable::create(client, output, create),
        Set::Stat(stat) => mutable::stat(client, output, stat),
        Set::Drop(drop) => mutable::drop(client, output, drop),
    }
}

fn put(client: &Client, output: &Output, args: &SetPut) -> Result<()> {
    let directory = Directory::open(&args.directory)?;
    let mut progress = Progress::new(directory.bytes());
    // Leased by this session until the version has them.
    let stored = directory.put(client, |bytes, key| progress.advance(bytes, key))?;
    let tree = stored.try_map(&mut |stored| Ok::<_, anyhow::Error>(stored.reference().clone()))?;
    let options = PublishOptions { keep: args.keep, expects: args.expects, deadline: None };
    let published = client.publish_set(&args.name, &tree, &options)?;
    let took = progress.finish();
    let leaves: Vec<_> = described(directory.tree(), |leaf| leaf.layout.clone());
    output.print(
        || {
            json!({
                "name": args.name,
                "version": published.version,
                "reference": published.reference.encode(),
                "tensors": leaves.iter().map(leaf_json).collect::<Vec<_>>(),
                "bytes": directory.bytes(),
                "seconds": took.as_secs_f64(),
            })
        },
        |out| {
            writeln!(out, "{}@{}  {}", args.name, published.version, published.reference.encode())?;
            writeln!(out, "{}", summary(leaves.len(), directory.bytes(), took))
        },
    )?;
    Ok(())
}

fn get(client: &Client, output: &Output, args: &SetGet) -> Result<()> {
    let target = match (&args.target, &args.peer) {
        (Target::Name { peer: None, name }, Some(peer)) => Target::name_at(peer.clone(), name),
        (target, _) => target.clone(),
    };
    let options = args.waiting.options(client);
    let set = progress::during("waiting for the set", || client.get_set(&target, &options))?;
    let leaves = described(&set.tree, |tensor: &Tensor| tensor.descriptor().layout.clone());
    let total = leaves.iter().map(|(_, layout)| layout.bytes()).sum();
    let mut progress = Progress::new(total);
    // Until the result is printed: signals that come after its end are lost.
    let cleaner = args.to.is_some().then(Cleaner::start).transpose().context("cannot wait for signals")?;
    let exported = match (&args.to, &cleaner) {
        (Some(to), Some(cleaner)) => Some(export(cleaner, &set.tree, to, args.replace, &mut progress)?),
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
                "version": set.version,
                "to": args.to.as_ref().map(|to| to.display().to_string()),
                "tensors": leaves.iter().map(leaf_json).collect::<Vec<_>>(),
                "as_bytes": as_bytes,
                "bytes": total,
                "seconds": took.as_secs_f64(),
            })
        },
        |out| {
            writeln!(out, "version {}", set.version)?;
            for (key, layout) in &leaves {
                writeln!(out, "{key}  {layout}")?;
            }
            writeln!(out, "{}", summary(leaves.len(), total, took))
        },
    )?;
    Ok(())
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
        let content = match client.open_set(target, &tensorlane_client::AcquireOptions::new()) {
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
    let rows = mutable::listed(client, &args.prefix)?;
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
                "mutable": rows.iter().map(mutable::json).collect::<Vec<Value>>(),
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
            rows.iter().try_for_each(|set| writeln!(out, "{}", mutable::line(set)))
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
