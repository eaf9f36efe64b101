//! The manifest of a sealed set: the bytes of one small tensor that names all others.
//!
//! ```text
//! {"tensorlane_set": 1, "version": 7, "nodes": [
//!   {"path": [], "tree": {"batch": [4]}},
//!   {"path": ["obs"], "tensor": "tl1:ml/trainer-0/…"},
//!   {"path": ["label"], "value": "hello"},
//!   {"path": ["next"], "tree": {"batch": [4]}}, …]}
//! ```
//!
//! Nodes stand in a flat list, each after the tree that it is in, so that no depth of a set is a depth of the reader.

use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use thiserror::Error;

use super::meta::{Level, LevelError};
use super::tree::{Node, Tree, TreeError, shown};
use crate::reference::{Reference, ReferenceError};

/// Most bytes of a manifest: what a process holds twice while it reads one. 65,536 leaves with short keys fit.
pub const MANIFEST_BYTES_MAX: usize = 16 << 20;
/// The key of a tensor's metadata that says it is a manifest; its value is the version of the form.
pub const SET_METADATA: &str = "tensorlane.set";

const FORM: u32 = 1;
/// Bytes that most nodes have at most. Room for them is made at once.
const NODE_BYTES: usize = 160;

/// Content of one version of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The number of the version, from 1.
    pub version: u64,
    /// The keys with their tensors.
    pub tree: Tree<Reference>,
}

/// Why bytes are no manifest, or a tree cannot be one.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// No JSON of this form.
    #[error("the manifest cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A form that came after this release.
    #[error("the manifest has form {0}; this release reads form {FORM}")]
    Form(u32),
    /// A leaf's reference is none.
    #[error("{path} of the manifest: {error}")]
    Reference {
        /// The keys from the root.
        path: String,
        /// Reason for which the reference is none.
        error: ReferenceError,
    },
    /// A tree that is said to be of a class that none is.
    #[error("{path:?} of the manifest: {error}")]
    Class {
        /// The keys from the root.
        path: String,
        /// Reason for which it is no class.
        error: LevelError,
    },
    /// A tree that no set has.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// More than a reader takes.
    #[error("a manifest of {bytes} bytes; at most {MANIFEST_BYTES_MAX}: use fewer leaves or smaller values")]
    TooLarge {
        /// Size of the manifest, in bytes.
        bytes: usize,
    },
}

/// A manifest that is being written, straight from the tree: there may be 65,536 nodes.
#[derive(Serialize)]
struct Writing<'a> {
    tensorlane_set: u32,
    version: u64,
    nodes: WritingNodes<'a>,
}

/// Nodes of a tree, each after the tree that it is in.
struct WritingNodes<'a>(&'a Tree<Reference>);

#[derive(Serialize)]
#[serde(untagged)]
enum WritingNode<'a> {
    Tree { path: &'a [&'a str], tree: WritingTree<'a> },
    Tensor { path: &'a [&'a str], tensor: String },
    Value { path: &'a [&'a str], value: &'a Value },
}

#[derive(Serialize)]
struct WritingTree<'a> {
    batch: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<&'a [Option<String>]>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    classes: &'a [String],
}

impl Serialize for WritingNodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut nodes = serializer.serialize_seq(None)?;
        write_tree(self.0, &mut Vec::new(), &mut nodes)?;
        nodes.end()
    }
}

/// Writes a tree, which stands at a path, and all that is below it.
fn write_tree<'a, S: SerializeSeq>(
    tree: &'a Tree<Reference>,
    path: &mut Vec<&'a str>,
    nodes: &mut S,
) -> Result<(), S::Error> {
    let bare = WritingTree { batch: &tree.batch, names: tree.names.as_deref(), classes: &tree.classes };
    nodes.serialize_element(&WritingNode::Tree { path: path.as_slice(), tree: bare })?;
    for (key, node) in &tree.entries {
        path.push(key);
        match node {
            Node::Tree(below) => write_tree(below, path, nodes)?,
            Node::Tensor(reference) => {
                let (path, tensor) = (path.as_slice(), reference.encode());
                nodes.serialize_element(&WritingNode::Tensor { path, tensor })?;
            }
            Node::Value(value) => {
                nodes.serialize_element(&WritingNode::Value { path: path.as_slice(), value })?;
            }
        }
        path.pop();
    }
    Ok(())
}

#[derive(Deserialize)]
struct Written {
    tensorlane_set: u32,
    version: u64,
    nodes: Vec<WrittenNode>,
}

#[derive(Deserialize)]
struct WrittenNode {
    path: Vec<String>,
    #[serde(flatten)]
    node: WrittenKind,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenKind {
    Tree(WrittenTree),
    Tensor(String),
    Value(Value),
}

#[derive(Deserialize)]
struct WrittenTree {
    batch: Vec<u64>,
    #[serde(default)]
    names: Option<Vec<Option<String>>>,
    #[serde(default)]
    classes: Vec<String>,
}

impl Manifest {
    /// The bytes of the manifest.
    ///
    /// # Errors
    /// [`ManifestError::Tree`], [`ManifestError::TooLarge`].
    pub fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        Self::bytes_of(self.version, &self.tree)
    }

    /// The bytes of the manifest of a version, of a tree that stays whose it is.
    ///
    /// # Errors
    /// As [`Manifest::encode`].
    pub fn bytes_of(version: u64, tree: &Tree<Reference>) -> Result<Vec<u8>, ManifestError> {
        tree.check()?;
        let mut bytes = Vec::with_capacity(NODE_BYTES * (1 + tree.entries.len()));
        let nodes = WritingNodes(tree);
        serde_json::to_writer(&mut bytes, &Writing { tensorlane_set: FORM, version, nodes })?;
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLarge { bytes: bytes.len() });
        }
        Ok(bytes)
    }

    /// Reads the bytes of a manifest, which may be anybody's.
    ///
    /// # Errors
    /// [`ManifestError`], with the keys of the culprit.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLarge { bytes: bytes.len() });
        }
        let written: Written = serde_json::from_slice(bytes)?;
        if written.tensorlane_set != FORM {
            return Err(ManifestError::Form(written.tensorlane_set));
        }
        let mut nodes = Vec::with_capacity(written.nodes.len());
        for WrittenNode { path, node } in written.nodes {
            let node = match node {
                WrittenKind::Value(value) => Node::Value(value),
                WrittenKind::Tree(WrittenTree { batch, names, classes }) => {
                    Level::classes(&classes)
                        .map_err(|error| ManifestError::Class { path: shown(&path), error })?;
                    Node::Tree(Tree { batch, names, classes, entries: Vec::new() })
                }
                WrittenKind::Tensor(text) => Node::Tensor(
                    text.parse().map_err(|error| ManifestError::Reference { path: shown(&path), error })?,
                ),
            };
            nodes.push((path, node));
        }
        let tree = Tree::from_nodes(nodes)?;
        Ok(Self { version: written.version, tree })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dtype::DType;
    use crate::identity::Incarnation;
    use crate::layout::{Layout, Shape};

    fn reference(id: u64) -> Reference {
        let layout = Layout::contiguous(DType::F32, Shape::new(&[4, 6]).unwrap()).unwrap();
        Reference::new("ml".parse().unwrap(), "trainer-0".parse().unwrap(), Incarnation(7), id, &layout)
    }

    fn set() -> Tree<Reference> {
        let next = Tree {
            batch: vec![4],
            names: Some(vec![Some("time".into())]),
            entries: vec![("reward".into(), Node::Tensor(reference(2)))],
            ..Tree::default()
        };
        let entries = vec![
            ("obs".into(), Node::Tensor(reference(1))),
            ("a/b".into(), Node::Value(json!({"tree": [1, null]}))),
            ("next".into(), Node::Tree(next)),
            (String::new(), Node::Tree(Tree::default())),
        ];
        Tree { batch: vec![4], entries, ..Tree::default() }
    }

    #[test]
    fn a_manifest_survives_its_bytes_with_the_order_of_its_keys() {
        let manifest = Manifest { version: 7, tree: set() };
        assert_eq!(Manifest::decode(&manifest.encode().unwrap()).unwrap(), manifest);
    }

    #[test]
    fn a_manifest_is_written_in_its_form_with_each_path_before_what_is_there() {
        let bytes = Manifest { version: 7, tree: set() }.encode().unwrap();
        let due = format!(
            r#"{{"tensorlane_set":1,"version":7,"nodes":[{{"path":[],"tree":{{"batch":[4]}}}},{{"path":["obs"],"tensor":"{}"}},{{"path":["a/b"],"value":{{"tree":[1,null]}}}},{{"path":["next"],"tree":{{"batch":[4],"names":["time"]}}}},{{"path":["next","reward"],"tensor":"{}"}},{{"path":[""],"tree":{{"batch":[]}}}}]}}"#,
            reference(1),
            reference(2)
        );
        assert_eq!(String::from_utf8(bytes).unwrap(), due);
    }

    #[test]
    fn classes_of_trees_survive_a_manifest_and_those_that_are_none_are_refused_by_their_path() {
        let class = r#"{"_type": "<class 'replay.Step'>", "label": {"b": 1, "a": 2.50}}"#;
        let stack = r#"{"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 0}"#;
        let of = |classes: &[&str]| {
            let classes = classes.iter().map(|text| (*text).to_owned()).collect();
            let steps = Tree { classes, ..Tree::default() };
            let entries = vec![("steps".to_owned(), Node::Tree(steps))];
            Manifest { version: 1, tree: Tree { entries, ..Tree::default() } }
        };
        for classes in [&[class][..], &[stack], &[class, stack]] {
            let manifest = of(classes);
            assert_eq!(Manifest::decode(&manifest.encode().unwrap()).unwrap(), manifest);
        }
        let plain = r#"{"_type": "<class 'tensordict._td.TensorDict'>", "shape": []}"#;
        for classes in
            [&[plain][..], &["{"], &[stack, class], &[stack, stack], &[class, class], &[class, stack, stack]]
        {
            let refused = Manifest::decode(&of(classes).encode().unwrap()).unwrap_err();
            assert!(matches!(&refused, ManifestError::Class { path, .. } if path == "steps"), "{refused}");
        }
    }

    #[test]
    fn a_manifest_of_64_trees_inside_one_another_is_read() {
        let deep = (0..super::super::DEPTH_MAX - 1).fold(set(), |below, _| Tree {
            entries: vec![("d".into(), Node::Tree(below))],
            ..Tree::default()
        });
        // The set has a tree of its own below its root.
        let Node::Tree(deep) = &deep.entries[0].1 else { panic!("a tree") };
        let manifest = Manifest { version: 1, tree: deep.clone() };
        assert_eq!(Manifest::decode(&manifest.encode().unwrap()).unwrap(), manifest);
    }

    #[test]
    fn a_manifest_of_more_than_16_mib_is_neither_written_nor_read() {
        let tree = |bytes: usize| Tree {
            entries: vec![("a".into(), Node::Value("x".repeat(bytes).into()))],
            ..Tree::default()
        };
        let refused = Manifest::bytes_of(1, &tree(MANIFEST_BYTES_MAX)).unwrap_err();
        assert!(
            matches!(refused, ManifestError::TooLarge { bytes } if bytes > MANIFEST_BYTES_MAX),
            "{refused}"
        );
        let mut whole = Manifest::bytes_of(1, &tree(MANIFEST_BYTES_MAX - 200)).unwrap();
        assert!(Manifest::decode(&whole).is_ok());
        whole.resize(MANIFEST_BYTES_MAX + 1, b' ');
        assert!(matches!(Manifest::decode(&whole), Err(ManifestError::TooLarge { .. })));
    }

    #[test]
    fn bytes_that_are_no_manifest_are_refused_by_what_is_wrong() {
        let said = |text: &str| Manifest::decode(text.as_bytes()).unwrap_err().to_string();
        let of = |nodes: &str| said(&format!(r#"{{"tensorlane_set": 1, "version": 1, "nodes": [{nodes}]}}"#));
        assert!(said("{").starts_with("the manifest cannot be read:"));
        assert!(said(r#"{"tensorlane_set": 2, "version": 1, "nodes": []}"#).contains("has form 2"));
        assert!(of("").starts_with("\"\" stands in no tree"));
        let root = r#"{"path": [], "tree": {"batch": []}}"#;
        assert!(of(&format!("{root}, {root}")).starts_with("\"\" stands in no tree"));
        let lost = r#"{"path": ["a", "b"], "value": 1}"#;
        assert!(of(&format!("{root}, {lost}")).starts_with("\"a/b\" stands in no tree"));
        let twice = r#"{"path": ["a"], "value": 1}"#;
        assert!(of(&format!("{root}, {twice}, {twice}")).starts_with("the key a stands there twice"));
        let bad = r#"{"path": ["a"], "tensor": "tl9:x"}"#;
        assert!(of(&format!("{root}, {bad}")).starts_with("a of the manifest: "), "{}", of(bad));
        for cut in 0..60 {
            let whole = Manifest { version: 7, tree: set() }.encode().unwrap();
            assert!(Manifest::decode(&whole[..whole.len() - 1 - cut]).is_err());
        }
    }
}
