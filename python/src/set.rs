//! Sets: published and got as flat lists of nodes, which `tensorlane.sets` makes of mappings and the reverse.

use pyo3::prelude::*;
use pyo3::types::PyList;
use tensorlane_client::gpu::AnyTensor;
use tensorlane_client::set::{Keys, PublishOptions, Set};
use tensorlane_proto::set::{Level, Node, Tree, beyond_64_bits};

use crate::errors;
use crate::held::Acquired;
use crate::reference::Reference;

/// Entry under a path of keys: a tensor, the JSON of a value, or the batch shape of a tree, with the texts of its classes.
#[derive(FromPyObject)]
pub(crate) enum Entry {
    Tensor(Reference),
    Value(String),
    Tree(Vec<u64>),
    Class(Vec<u64>, Vec<String>),
}

/// A path of keys with what stands there.
pub(crate) type Given = (Vec<String>, Entry);

/// A tree of nodes that Python made, each after the tree that it is in.
pub(crate) fn tree(py: Python<'_>, nodes: Vec<Given>) -> PyResult<Tree<tensorlane_proto::Reference>> {
    let invalid = |what: &dyn std::fmt::Display| errors::refuse(py, "INVALID_ARGUMENT", &what.to_string());
    let mut placed = Vec::with_capacity(nodes.len());
    for (path, entry) in nodes {
        let node = match entry {
            Entry::Tensor(Reference(reference)) => Node::Tensor(reference),
            Entry::Tree(batch) => Node::Tree(Tree { batch, ..Tree::default() }),
            Entry::Class(batch, classes) => {
                // A class that no directory of tensordict has is none of a set: its tree stays.
                let classes = if Level::classes(&classes).is_ok() { classes } else { Vec::new() };
                Node::Tree(Tree { batch, classes, ..Tree::default() })
            }
            Entry::Value(text) => {
                let at = path.join("/");
                if let Some(number) = beyond_64_bits(&text) {
                    let what = format!("{at}: the number {number} has more than 64 bits; give it as text");
                    return Err(invalid(&what));
                }
                Node::Value(serde_json::from_str(&text).map_err(|error| invalid(&format!("{at}: {error}")))?)
            }
        };
        placed.push((path, node));
    }
    Tree::from_nodes(placed).map_err(|error| invalid(&error))
}

/// Options of a publication.
pub(crate) fn options(keep: u32, expects: Option<u64>) -> PublishOptions {
    PublishOptions { keep, expects, ..PublishOptions::default() }
}

/// Keys that are got, and whether each must be there.
pub(crate) fn keys(given: Option<(Vec<String>, bool)>) -> Keys {
    match given {
        None => Keys::All,
        Some((keys, true)) => Keys::These(keys),
        Some((keys, false)) => Keys::IfThere(keys),
    }
}

/// Nodes of a set that was got, for Python.
pub(crate) fn nodes<'py>(py: Python<'py>, set: Set<AnyTensor>) -> PyResult<(u64, Bound<'py, PyList>)> {
    let nodes = PyList::empty(py);
    let Set { version, tree, manifest: _ } = set;
    for (path, node) in tree.into_nodes() {
        let shown = match node {
            Node::Tensor(tensor) => Bound::new(py, Acquired::new(tensor))?.into_any(),
            Node::Value(value) => value.to_string().into_pyobject(py)?.into_any(),
            Node::Tree(below) if below.classes.is_empty() => below.batch.into_pyobject(py)?.into_any(),
            Node::Tree(below) => (below.batch, below.classes).into_pyobject(py)?.into_any(),
        };
        nodes.append((path, shown))?;
    }
    Ok((version, nodes))
}
