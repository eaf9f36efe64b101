//! Sets in safetensors files: `set put FILE.safetensors` and `set get NAME --to FILE.safetensors`.
//!
//! ```text
//!   set                             file
//!     next/reward   tensor    -->     "next.reward"
//!     label         value     -->     __metadata__: {"label": JSON, or a text itself where it is no JSON as this writes it}
//! ```
//! A file has no trees: what is put from one has its names as keys, `next.reward`, and no batch shape.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;
use tensorlane_client::{Client, Tensor};
use tensorlane_proto::Layout;
use tensorlane_proto::set::{Node, Tree, beyond_64_bits};

use crate::args::Put;
use crate::file::{self, Header};
use crate::get;
use crate::kept::LeftOut;
use crate::output::Output;
use crate::progress::Progress;
use crate::put::{self, Done};
use crate::set::StagedSet;
use crate::sink::Sink;
use crate::source::Source;

/// Ending of the names of files that are of this format.
const ENDING: &str = "safetensors";

/// Returns whether a path means a file of this format, by the end of its name. A directory may be called so.
pub(crate) fn is_meant(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == ENDING) && !path.is_dir()
}

/// Puts every tensor of a file, for a set that is published next.
pub(crate) fn stage(client: &Client, output: &Output, path: &Path, checksum: bool) -> Result<StagedSet> {
    let source = Source::open(path)?;
    let header = Header::read(&source)?;
    check_keys(&header)?;
    let mut entries = Vec::with_capacity(header.entries.len() + header.metadata.len());
    let args = Put {
        file: path.to_owned(),
        name: None,
        replace: false,
        prune: false,
        keep: None,
        uses: 1,
        checksum,
        strict: false,
    };
    let (done, progress) = put::all_of(client, output, &args, &source, &header.entries)?;
    let (mut leaves, mut leases) = (Vec::with_capacity(done.len()), Vec::with_capacity(done.len()));
    for Done { entry, reference, lease, .. } in done {
        entries.push((entry.name.clone(), Node::Tensor(reference)));
        leaves.push((entry.name, entry.layout));
        leases.extend(lease);
    }
    entries.extend(header.metadata.into_iter().map(|(key, text)| (key, Node::Value(value(text)))));
    let tree = Tree { entries, ..Tree::default() };
    tree.check()?;
    Ok(StagedSet { tree, leaves, progress, _leased: Box::new(leases) })
}

/// Refuses a file whose names cannot be the keys of one set, before anything is put.
fn check_keys(header: &Header) -> Result<()> {
    let tensors = header.entries.iter().map(|entry| (entry.name.clone(), Node::Tensor(())));
    let values = header.metadata.keys().map(|key| (key.clone(), Node::Value(Value::Null)));
    Ok(Tree { entries: tensors.chain(values).collect(), ..Tree::default() }.check()?)
}

/// Begins the file of a set, before any of it has moved.
pub(crate) fn begin(to: &Path, replace: bool) -> Result<Sink> {
    if to.exists() && !replace {
        bail!("{} exists; name another file, or replace it (--replace)", to.display());
    }
    let mut sink = Sink::create(to)?;
    if !replace {
        sink.keep_others();
    }
    Ok(sink)
}

/// Writes a set into its file, which appears under its name when it is whole.
pub(crate) fn write(tree: &Tree<Tensor>, sink: &mut Sink, progress: &mut Progress) -> Result<()> {
    let (mut tensors, metadata) = flat(tree)?;
    tensors.sort_by(|(one, (_, first)), (other, (_, second))| {
        file::order(one, first).cmp(&file::order(other, second))
    });
    let described: Vec<(&str, &Layout)> =
        tensors.iter().map(|(name, (_, layout))| (name.as_str(), layout)).collect();
    let header = Header::write(&described, &metadata)?;
    sink.write(&header)?;
    for (name, (tensor, _)) in &tensors {
        get::copy(tensor, name, Some(&mut *sink), progress)?;
    }
    sink.finish()
}

/// Parts of a set that are in no file and no directory: metadata of its tensors. And those that are in no file: shapes, names
/// and classes of its trees, and trees without keys. By their paths.
pub(crate) fn left_out(tree: &Tree<Tensor>, is_file: bool) -> Vec<LeftOut> {
    let nodes = tree.nodes();
    let filled: HashSet<&[&str]> =
        nodes.iter().filter_map(|(path, _)| path.split_last()).map(|(_, above)| above).collect();
    let mut left = Vec::new();
    for (path, node) in &nodes {
        let mut lose = |what: String| left.push(LeftOut::new(&path.join("/"), what));
        match node {
            Node::Tensor(tensor) => {
                let keys: Vec<&str> = tensor.descriptor().metadata.iter().map(|(key, _)| key).collect();
                if !keys.is_empty() {
                    lose(format!("metadata of the tensor: {}", keys.join(", ")));
                }
            }
            Node::Tree(of) if is_file => {
                if !of.batch.is_empty() {
                    lose(format!("the batch shape {:?}", of.batch));
                }
                let named: Vec<&str> = of.names.iter().flatten().flatten().map(String::as_str).collect();
                if !named.is_empty() {
                    lose(format!("names of dimensions: {}", named.join(", ")));
                }
                if !of.classes.is_empty() {
                    lose("its class in tensordict".to_owned());
                }
                if !path.is_empty() && !filled.contains(path.as_slice()) {
                    lose("a tree without keys".to_owned());
                }
            }
            Node::Tree(_) | Node::Value(_) => {}
        }
    }
    left
}

/// A tensor by its name in the file, with its layout there.
type Named<'a> = (String, (&'a Tensor, Layout));

/// Tensors and values of a tree by their dotted paths, of which no two are the same.
fn flat(tree: &Tree<Tensor>) -> Result<(Vec<Named<'_>>, BTreeMap<String, String>)> {
    let mut paths: BTreeMap<String, String> = BTreeMap::new();
    let (mut tensors, mut metadata) = (Vec::new(), BTreeMap::new());
    for (path, node) in tree.nodes() {
        let name = path.join(".");
        if matches!(node, Node::Tree(_)) {
            continue;
        }
        if let Some(other) = paths.insert(name.clone(), path.join("/")) {
            bail!(
                "{other} and {} would both be {name:?} in the file, which has no trees; write a directory, or rename one",
                path.join("/")
            );
        }
        match node {
            Node::Tensor(tensor) => {
                let layout = tensor.descriptor().layout.clone();
                tensors.push((name, (tensor, layout.packed())));
            }
            Node::Value(value) => drop(metadata.insert(name, text(&value))),
            Node::Tree(_) => {}
        }
    }
    Ok((tensors, metadata))
}

/// Text of a value in a file: JSON, but for a string that is none, which other programs read as it is.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) if self::value(text.clone()) == *value => text.clone(),
        value => value.to_string(),
    }
}

/// The value that a text of a file is: what it says as JSON, if that is written so again, byte for byte; else the text.
fn value(text: String) -> Value {
    match serde_json::from_str::<Value>(&text) {
        Ok(value)
            if beyond_64_bits(&text).is_none()
                && serde_json::to_string(&value).is_ok_and(|again| again == text) =>
        {
            value
        }
        _ => Value::String(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tensorlane_proto::{DType, Shape};

    use super::*;

    #[test]
    fn a_value_comes_back_from_its_text_and_plain_text_stays_what_others_read() {
        for one in [json!("pt"), json!("7"), json!("null"), json!(7), json!([1, {"a": null}]), json!("")] {
            assert_eq!(value(text(&one)), one, "{one}");
        }
        assert_eq!((text(&json!("pt")), text(&json!("7"))), ("pt".to_owned(), "\"7\"".to_owned()));
        assert_eq!(value("18446744073709551616".to_owned()), json!("18446744073709551616"));
    }

    #[test]
    fn a_text_of_a_file_comes_back_byte_for_byte_whatever_it_says() {
        for one in [
            "1.10",
            "1e3",
            r#"{"b":1, "a":2}"#,
            "[1, 2]",
            " 7",
            "\"a\\u0041\"",
            "1.5",
            "[1,2]",
            "1e300",
            "NaN",
        ] {
            assert_eq!(text(&value(one.to_owned())), one);
        }
    }

    #[test]
    fn a_file_whose_metadata_has_a_key_that_is_a_tensor_too_is_no_set() {
        let header = |metadata: &str| Header {
            entries: vec![file::Entry {
                name: "x".into(),
                layout: Layout::contiguous(DType::U8, Shape::new(&[1]).unwrap()).unwrap(),
                offset: 0,
            }],
            metadata: [(metadata.to_owned(), String::new())].into(),
        };
        assert!(check_keys(&header("y")).is_ok());
        let refused = check_keys(&header("x")).unwrap_err().to_string();
        assert!(refused.contains('x'), "{refused}");
    }

    #[test]
    fn a_file_that_is_there_is_refused_before_anything_moves_and_replaced_where_that_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        std::fs::write(&path, "theirs").unwrap();
        assert!(begin(&path, false).is_err());
        let mut sink = begin(&path, true).unwrap();
        write(&Tree::default(), &mut sink, &mut Progress::new(0)).unwrap();
        assert!(Header::read(&Source::open(&path).unwrap()).unwrap().entries.is_empty());
    }

    #[test]
    fn a_path_means_a_file_by_its_end_unless_it_is_a_directory() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_meant(&folder.path().join("m.safetensors")));
        assert!(!is_meant(&folder.path().join("m")) && !is_meant(Path::new("safetensors")));
        std::fs::create_dir(folder.path().join("d.safetensors")).unwrap();
        assert!(!is_meant(&folder.path().join("d.safetensors")));
    }
}
