//! `tensorlane set create`, `stat`, `snapshot` and `drop`: mutable sets, whose rows programs write and read.

use anyhow::Result;
use serde_json::{Value, json};
use tensorlane_client::Client;
use tensorlane_client::set::mutable::{Durability, SetFiles, SetInfo, SetSpec};
use tensorlane_client::set::snapshot::{Snapshot, SnapshotOptions};
use tensorlane_proto::{DType, Failure, Reason};

use crate::args::{SetCreate, SetDrop, SetSnapshot, SetStat};
use crate::output::{self, Output};

pub(crate) fn create(client: &Client, output: &Output, args: &SetCreate) -> Result<()> {
    let mut spec = SetSpec::new(&args.name, args.rows.unwrap_or(0));
    for leaf in &args.leaves {
        spec = spec.leaf(&leaf.key, leaf.dtype, &leaf.row_shape);
    }
    if let Some(directory) = &args.files {
        let files = SetFiles { directory: directory.clone(), open: args.open, durability: args.durability };
        spec = spec.files(&files);
    }
    if args.contiguous {
        spec = spec.contiguous();
    }
    let writers: Vec<&str> = args.writers.iter().map(String::as_str).collect();
    let set = client.create_set(&spec.writers(&writers))?;
    output.print(
        || json(set.info()),
        |out| {
            writeln!(out, "{}", line(set.info()))?;
            writeln!(out, "{}", set.reference())
        },
    )?;
    Ok(())
}

pub(crate) fn stat(client: &Client, output: &Output, args: &SetStat) -> Result<()> {
    let mut sets = client.mutable_sets(&args.prefix)?;
    let is_elsewhere = sets.is_empty() && !args.prefix.is_empty();
    if is_elsewhere {
        sets.push(elsewhere(client, &args.prefix)?);
    }
    output.print(
        || json!({ "sets": sets.iter().map(json).collect::<Vec<Value>>() }),
        |out| {
            for set in &sets {
                writeln!(out, "{}", line(set))?;
                writeln!(out, "  {}", set.reference)?;
                if let Some((directory, durability)) = files(set) {
                    writeln!(out, "  files    {directory}, durability {durability}")?;
                } else {
                    let piece = set.spec.as_ref().is_some_and(|spec| spec.contiguous);
                    let how = if piece { ", each leaf in one piece" } else { "" };
                    writeln!(out, "  held     {}{how}", output::bytes(set.held_bytes))?;
                }
                if set.torn_rows > 0 {
                    writeln!(out, "  torn     {} rows, to be written again", set.torn_rows)?;
                }
                writeln!(out, "  next     row {}", set.cursor)?;
                let writers = set.spec.iter().flat_map(|spec| &spec.writers).cloned().collect::<Vec<_>>();
                let others = if writers.is_empty() { "none".to_owned() } else { writers.join(", ") };
                let own = if is_elsewhere { "its own pod" } else { "this pod" };
                writeln!(out, "  writers  {own}; of other peers {others}")?;
                for (key, row) in leaves(set) {
                    writeln!(out, "  {key}  {row}")?;
                }
            }
            Ok(())
        },
    )?;
    Ok(())
}

/// The set of another peer, by all of its name.
fn elsewhere(client: &Client, name: &str) -> tensorlane_client::Result<SetInfo> {
    match client.open_mutable_set(name) {
        Ok(set) => Ok(SetInfo::clone(set.info())),
        Err(error) if error.reason() == Some(Reason::NotFound) => {
            let message = format!(
                "no mutable set of this peer begins with {name:?}, and none of another peer is called so (PEER/NAME); \
                 `tensorlane set ls` shows those of this peer"
            );
            Err(Failure::new(Reason::NotFound, message).into())
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn snapshot(client: &Client, output: &Output, args: &SetSnapshot) -> Result<()> {
    let set = client.wait_for_mutable_set(&args.set, args.wait)?;
    let options = SnapshotOptions { name: args.name.clone(), keep: args.keep, deadline: None };
    let Snapshot { name, version, set_version, reference } = set.snapshot(&options)?;
    output.print(
        || {
            json!({
                "name": name,
                "version": version,
                "set_version": set_version,
                "reference": reference.encode(),
            })
        },
        |out| writeln!(out, "{name}@{version}  {}  of version {set_version}", reference.encode()),
    )?;
    Ok(())
}

pub(crate) fn drop(client: &Client, output: &Output, args: &SetDrop) -> Result<()> {
    client.drop_set(&args.set)?;
    output.print(|| json!({ "dropped": args.set }), |out| writeln!(out, "{} dropped", args.set))?;
    Ok(())
}

/// Mutable sets of this peer, by the sidecar's answer: those of an earlier one, which has none, are none. Nothing where they are too
/// many for one answer.
pub(crate) fn listed(
    answer: tensorlane_client::Result<Vec<SetInfo>>,
) -> tensorlane_client::Result<Option<Vec<SetInfo>>> {
    match answer {
        Err(error) if error.reason() == Some(Reason::Unsupported) => Ok(Some(Vec::new())),
        Err(error) if error.reason() == Some(Reason::TooLarge) => Ok(None),
        sets => sets.map(Some),
    }
}

/// Warning for mutable sets that are not listed.
pub(crate) fn not_listed(prefix: &str) -> String {
    format!(
        "the mutable sets that begin with {prefix:?} are not listed: their layouts are too large for one answer; give a longer beginning"
    )
}

/// `replay  50000 rows of 2 leaves, 10.7 GiB, at version 7`.
pub(crate) fn line(set: &SetInfo) -> String {
    let (name, rows, leaves) =
        set.spec.as_ref().map_or(("", 0, 0), |spec| (spec.name.as_str(), spec.rows, spec.leaves.len()));
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let of = if leaves == 1 { "1 leaf".to_owned() } else { format!("{leaves} leaves") };
    let size = output::bytes(set.bytes);
    format!("{name}  {rows} row{} of {of}, {size}, at version {}", plural(rows), set.version)
}

pub(crate) fn json(set: &SetInfo) -> Value {
    let spec = set.spec.clone().unwrap_or_default();
    let leaf = |leaf: &tensorlane_proto::generated::SetLeaf| json!({ "key": leaf.key, "dtype": dtype(leaf.dtype), "row_shape": leaf.row_shape });
    json!({
        "name": spec.name,
        "reference": set.reference,
        "rows": spec.rows,
        "leaves": spec.leaves.iter().map(leaf).collect::<Vec<_>>(),
        "writers": spec.writers,
        "version": set.version,
        "cursor": set.cursor,
        "bytes": set.bytes,
        "held_bytes": set.held_bytes,
        "contiguous": spec.contiguous,
        "torn_rows": set.torn_rows,
        "files": files(set).map(|(directory, durability)| json!({ "directory": directory, "durability": durability })),
    })
}

/// Directory and durability of a set on files.
fn files(set: &SetInfo) -> Option<(&str, &'static str)> {
    let files = set.spec.as_ref()?.files.as_ref()?;
    Some((&files.directory, Durability::of(files).map_or("unknown", Durability::as_str)))
}

/// Each leaf with the type and shape of a row: `u8[480, 480, 3]`.
fn leaves(set: &SetInfo) -> impl Iterator<Item = (&str, String)> {
    let leaves = set.spec.iter().flat_map(|spec| &spec.leaves);
    leaves.map(|leaf| (leaf.key.as_str(), format!("{}{:?}", dtype(leaf.dtype), leaf.row_shape)))
}

fn dtype(code: u32) -> String {
    let known = u16::try_from(code).ok().and_then(DType::from_code);
    known.map_or_else(|| format!("dtype {code}"), |dtype| dtype.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutable_sets_that_are_too_many_for_an_answer_are_not_said_to_be_none() {
        let refused =
            |reason| listed(Err(Failure::new(reason, "").into())).map(|sets| sets.map(|sets| sets.len()));
        assert_eq!(refused(Reason::Unsupported).unwrap(), Some(0));
        assert_eq!(refused(Reason::TooLarge).unwrap(), None);
        assert!(refused(Reason::Internal).is_err());
        assert_eq!(listed(Ok(vec![SetInfo::default()])).unwrap().map(|sets| sets.len()), Some(1));
    }
}
