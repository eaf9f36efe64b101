//! Sets that go into directories and come out of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tensorlane_benches::pairs::{Pair, interleaved, seconds};
use tensorlane_benches::scratch::Scratch;
use tensorlane_benches::sidecar::{Sidecar, SidecarOptions};
use tensorlane_benches::tensors;
use tensorlane_client::set::directory::{Directory, export};
use tensorlane_client::{AcquireOptions, Client, Item, PutOptions, Stored, Target, Tensor};
use tensorlane_proto::set::{Node, Tree};

use crate::context::{Bench, PAIRS, WARM_UP};
use crate::rows::{Measured, Row, sets};

const LEAF: usize = 64 << 20;
const LEAVES: usize = 16;
const BYTES: usize = LEAVES * LEAF;
/// The set, and another one while it is imported.
const ARENA: u64 = 5 << 29;
/// Trees of the set of many leaves, and leaves of each.
const TREES: usize = 100;
const SMALL_LEAVES: usize = 100;
const SMALL_ARENA: u64 = 256 << 20;

pub(super) fn copies(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("1 GiB into directories of tmpfs and out of them, as `cp -r`");
    let scratch = Scratch::make()?;
    let memory = Scratch::in_memory()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("export", ARENA), &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let contents: Vec<Vec<u8>> = (0..LEAVES).map(leaf).collect();
    let descriptor = tensors::bytes(LEAF as u64)?;
    let put = |bytes: &Vec<u8>| client.put(&descriptor, bytes, &PutOptions::new());
    let stored = contents.iter().map(put).collect::<Result<Vec<_>, _>>()?;
    let tree = Tree { entries: acquired(&client, &stored)?, ..Tree::default() };
    let place = |name: &str| memory.path().join(name);
    let source = place("source");
    export(&tree, &source, false, |_, _| ())?;
    for (number, bytes) in contents.iter().enumerate() {
        let file = source.join(format!("{number}.memmap"));
        ensure!(fs::read(&file)? == *bytes, "{} has other bytes than were put", file.display());
    }
    drop(contents);

    let exported = beside_cp(bench, &sets::EXPORT_1G, [&source, &place("copy")], || {
        let to = place("export");
        let took = seconds(|| {
            export(&tree, &to, false, |_, _| ())?;
            Ok(())
        })?;
        fs::remove_dir_all(to)?;
        Ok(took)
    })?;
    let mut last = None;
    let imported = beside_cp(bench, &sets::IMPORT_1G, [&source, &place("copy")], || {
        drop(last.take());
        client.flush()?;
        seconds(|| {
            last = Some(Directory::open(&source)?.put(&client, &PutOptions::new(), |_, _| ())?);
            Ok(())
        })
    })?;
    prove(&client, &last.context("nothing was imported")?)?;
    drop((tree, stored, client));
    sidecar.end()?;
    Ok([exported, imported].into_iter().flatten().collect())
}

/// Rates of `ours`, which takes so many seconds, beside copies of a directory. None where the row is not asked for.
fn beside_cp(
    bench: &Bench,
    row: &'static Row,
    [from, to]: [&Path; 2],
    mut ours: impl FnMut() -> Result<f64>,
) -> Result<Option<Measured>> {
    if !bench.wants(&[row]) {
        ours()?;
        return Ok(None);
    }
    let rate = |seconds: f64| BYTES as f64 / seconds / 1e9;
    let copy = || {
        let took = seconds(|| {
            let status = Command::new("cp").arg("-r").args([from, to]).stdin(Stdio::null()).status();
            ensure!(status.context("`cp` cannot be started")?.success(), "`cp -r` failed");
            Ok(())
        })?;
        fs::remove_dir_all(to)?;
        Ok(rate(took))
    };
    let pairs: Vec<Pair> = interleaved(PAIRS, WARM_UP, copy, || Ok(rate(ours()?)))?;
    Ok(Some(Measured::new(row, pairs)))
}

/// The bytes of a leaf, which no other one has.
fn leaf(number: usize) -> Vec<u8> {
    let mut bytes = tensors::content(LEAF);
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    bytes
}

/// Fails unless the imported tree is what was exported.
fn prove(client: &Client, tree: &Tree<Stored>) -> Result<()> {
    for (path, stored) in tree.tensors() {
        let number: usize = path.concat().parse()?;
        let tensor = client.acquire(stored.reference(), &AcquireOptions::new())?;
        ensure!(tensor.to_vec() == leaf(number), "leaf {number} is not what was put");
    }
    Ok(())
}

/// Entries of a tree: tensors under their numbers.
fn acquired(client: &Client, stored: &[Stored]) -> Result<Vec<(String, Node<Tensor>)>> {
    let targets: Vec<Target> = stored.iter().map(|stored| Target::from(stored.reference())).collect();
    let tensors = client.acquire_many(&targets, &AcquireOptions::new()).into_iter();
    tensors.enumerate().map(|(number, tensor)| Ok((number.to_string(), Node::Tensor(tensor?)))).collect()
}

pub(super) fn open(bench: &Bench) -> Result<Vec<Measured>> {
    bench.progress("directories of 10,000 leaves");
    let scratch = Scratch::make()?;
    let memory = Scratch::in_memory()?;
    let sidecar = Sidecar::start(&SidecarOptions::new("open", SMALL_ARENA), &bench.programs, &scratch)?;
    let client = sidecar.client()?;
    let (descriptor, bytes) = (tensors::bytes(8)?, [7; 8]);
    let item = Item { descriptor: &descriptor, bytes: &bytes, options: PutOptions::new() };
    let stored = client.put_many(&vec![item; TREES * SMALL_LEAVES]);
    let stored = stored.into_iter().collect::<Result<Vec<_>, _>>()?;
    let below = stored.chunks(SMALL_LEAVES).enumerate().map(|(number, stored)| {
        let tree = Tree { entries: acquired(&client, stored)?, ..Tree::default() };
        anyhow::Ok((format!("tree-{number}"), Node::Tree(tree)))
    });
    let tree = Tree { entries: below.collect::<Result<_>>()?, ..Tree::default() };
    let directory = memory.path().join("set");
    export(&tree, &directory, false, |_, _| ())?;
    drop((tree, stored, client));
    sidecar.end()?;

    let mut files = [Vec::new(), Vec::new()];
    find(&directory, &mut files)?;
    let [levels, leaves] = &files;
    let limit = || {
        let mut bytes = 0;
        let took = seconds(|| {
            for level in levels {
                bytes += fs::read(level)?.len() as u64;
            }
            for leaf in leaves {
                bytes += fs::metadata(leaf)?.len();
            }
            Ok(())
        })?;
        ensure!(bytes > 0, "nothing was read");
        Ok(took * 1e3)
    };
    let ours = || {
        let mut opened = None;
        let took = seconds(|| {
            opened = Some(Directory::open(&directory)?);
            Ok(())
        })?;
        match opened {
            Some(opened) if opened.tree().tensors().len() == leaves.len() => Ok(took * 1e3),
            other => bail!("{} leaves should have been found: {other:?}", leaves.len()),
        }
    };
    Ok(vec![Measured::new(&sets::OPEN_10K, interleaved(PAIRS, WARM_UP, limit, ours)?)])
}

/// Files of levels and of leaves below a directory.
fn find(directory: &Path, files: &mut [Vec<PathBuf>; 2]) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else {
            let is_leaf = path.extension().is_some_and(|extension| extension == "memmap");
            files[usize::from(is_leaf)].push(path);
        }
    }
    Ok(())
}
