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
                    writeln!(out, "  held     {}", output::bytes(set.held_bytes))?;
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

/// Mutable sets of this peer; none of an earlier sidecar, which has none.
pub(crate) fn listed(client: &Client, prefix: &str) -> tensorlane_client::Result<Vec<SetInfo>> {
    match client.mutable_sets(prefix) {
        // An older sidecar has none; too many for one answer are for `set stat PREFIX`.
        Err(error) if matches!(error.reason(), Some(Reason::Unsupported | Reason::TooLarge)) => {
            Ok(Vec::new())
        }
        sets => sets,
    }
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
