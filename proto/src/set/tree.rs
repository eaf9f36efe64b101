//! The tree of a set: keys in the order in which they were given, each with a tensor, a value or a tree below it.

use std::collections::HashSet;

use serde_json::Value;
use thiserror::Error;

use super::value::{VALUE_DEPTH_MAX, is_shallow};

/// Most leaves of a set. Each costs a lease at its owner and some 200 bytes of the manifest.
pub const LEAVES_MAX: usize = 65_536;
/// Most trees inside one another. A directory of that depth is walked with as many open descriptors.
pub const DEPTH_MAX: usize = 64;
/// Longest key in bytes, as a file's name has it.
pub const KEY_BYTES_MAX: usize = 255;

/// A tree of keys with a batch shape. `L` is what stands for a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree<L> {
    /// Leading dimensions that all tensors below share; empty where they share none.
    pub batch: Vec<u64>,
    /// Names of the batch dimensions, if they have any.
    pub names: Option<Vec<Option<String>>>,
    /// Texts of the `meta.json` of each class of tensordict that it is, from the outside in. Empty for a `TensorDict`.
    pub classes: Vec<String>,
    /// Keys, each once, in the order in which they were given.
    pub entries: Vec<(String, Node<L>)>,
}

/// Node of a tree, which stands under a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Node<L> {
    /// A tensor.
    Tensor(L),
    /// A value that is no tensor.
    Value(Value),
    /// A tree of its own.
    Tree(Tree<L>),
}

/// Why something is no tree of a set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TreeError {
    /// A key stands twice in one tree.
    #[error("the key {path} stands there twice; give each key once")]
    KeyTwice {
        /// The keys from the root.
        path: String,
    },
    /// A node whose tree does not stand before it.
    #[error("{path:?} stands in no tree; give each tree before what is in it, the root first")]
    Astray {
        /// The keys from the root.
        path: String,
    },
    /// More trees inside one another than are walked.
    #[error("{path} lies deeper than {DEPTH_MAX} trees; make the set flatter")]
    TooDeep {
        /// The keys from the root.
        path: String,
    },
    /// A plain value that readers cannot read.
    #[error(
        "the value {path} has more than {VALUE_DEPTH_MAX} lists and objects inside one another; make it flatter"
    )]
    ValueTooDeep {
        /// The keys from the root.
        path: String,
    },
    /// More leaves than a set may have.
    #[error("a set of {leaves} leaves; at most {LEAVES_MAX}: make several sets")]
    TooManyLeaves {
        /// Leaves, tensors and values together.
        leaves: usize,
    },
}

impl<L> Default for Tree<L> {
    fn default() -> Self {
        Self { batch: Vec::new(), names: None, classes: Vec::new(), entries: Vec::new() }
    }
}

impl<L> Tree<L> {
    /// A tree from its nodes, each after the tree that it is in; the first one is the root.
    ///
    /// # Errors
    /// [`TreeError::Astray`] for a node that stands in no tree, and as [`Tree::check`].
    pub fn from_nodes<P: AsRef<str>>(
        nodes: impl IntoIterator<Item = (Vec<P>, Node<L>)>,
    ) -> Result<Self, TreeError> {
        let mut root = None;
        for (path, node) in nodes {
            place(&mut root, &path, node).ok_or_else(|| TreeError::Astray { path: shown(&path) })?;
        }
        let root = root.ok_or_else(|| TreeError::Astray { path: String::new() })?;
        root.check()?;
        Ok(root)
    }

    /// Nodes in the order in which [`Tree::from_nodes`] takes them, the root first. Trees come without their entries.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Vec<&str>, Node<&L>)> {
        let mut all = Vec::new();
        self.flatten(&mut Vec::new(), &mut all);
        all
    }

    fn flatten<'a>(&'a self, path: &mut Vec<&'a str>, all: &mut Vec<(Vec<&'a str>, Node<&'a L>)>) {
        all.push((path.clone(), Node::Tree(self.bare(Vec::new()))));
        for (key, node) in &self.entries {
            path.push(key);
            match node {
                Node::Tree(below) => below.flatten(path, all),
                Node::Tensor(leaf) => all.push((path.clone(), Node::Tensor(leaf))),
                Node::Value(value) => all.push((path.clone(), Node::Value(value.clone()))),
            }
            path.pop();
        }
    }

    /// Nodes in the order of [`Tree::nodes`], with the leaves themselves.
    #[must_use]
    pub fn into_nodes(self) -> Vec<(Vec<String>, Node<L>)> {
        let mut all = Vec::new();
        self.unfold(&mut Vec::new(), &mut all);
        all
    }

    fn unfold(self, path: &mut Vec<String>, all: &mut Vec<(Vec<String>, Node<L>)>) {
        let Self { batch, names, classes, entries } = self;
        all.push((path.clone(), Node::Tree(Tree { batch, names, classes, entries: Vec::new() })));
        for (key, node) in entries {
            path.push(key);
            match node {
                Node::Tree(below) => below.unfold(path, all),
                leaf => all.push((path.clone(), leaf)),
            }
            path.pop();
        }
    }

    /// The node at a path of keys; none where there is no such key.
    #[must_use]
    pub fn find(&self, path: &[&str]) -> Option<&Node<L>> {
        let (first, rest) = path.split_first()?;
        let (_, node) = self.entries.iter().find(|(key, _)| key == first)?;
        match node {
            node if rest.is_empty() => Some(node),
            Node::Tree(below) => below.find(rest),
            Node::Tensor(_) | Node::Value(_) => None,
        }
    }

    /// Every tensor with its keys from the root, in order.
    #[must_use]
    pub fn tensors(&self) -> Vec<(Vec<&str>, &L)> {
        let mut all = Vec::new();
        self.collect(&mut Vec::new(), &mut all);
        all
    }

    fn collect<'a>(&'a self, path: &mut Vec<&'a str>, all: &mut Vec<(Vec<&'a str>, &'a L)>) {
        for (key, node) in &self.entries {
            path.push(key);
            match node {
                Node::Tensor(leaf) => all.push((path.clone(), leaf)),
                Node::Tree(below) => below.collect(path, all),
                Node::Value(_) => {}
            }
            path.pop();
        }
    }

    /// Tree of this shape with other leaves, made in the order of [`Tree::tensors`].
    ///
    /// # Errors
    /// The first error of `leaf`.
    pub fn try_map<M, E>(&self, leaf: &mut impl FnMut(&L) -> Result<M, E>) -> Result<Tree<M>, E> {
        let mut entries = Vec::with_capacity(self.entries.len());
        for (key, node) in &self.entries {
            let node = match node {
                Node::Tensor(found) => Node::Tensor(leaf(found)?),
                Node::Value(value) => Node::Value(value.clone()),
                Node::Tree(below) => Node::Tree(below.try_map(leaf)?),
            };
            entries.push((key.clone(), node));
        }
        Ok(self.bare(entries))
    }

    /// Tree with other entries.
    fn bare<M>(&self, entries: Vec<(String, Node<M>)>) -> Tree<M> {
        let (names, classes) = (self.names.clone(), self.classes.clone());
        Tree { batch: self.batch.clone(), names, classes, entries }
    }

    /// Checks what holds for every set, whatever its leaves are.
    ///
    /// # Errors
    /// [`TreeError`], with the keys of the culprit.
    pub fn check(&self) -> Result<(), TreeError> {
        let leaves = self.check_below(&mut Vec::new())?;
        if leaves > LEAVES_MAX { Err(TreeError::TooManyLeaves { leaves }) } else { Ok(()) }
    }

    fn check_below<'a>(&'a self, path: &mut Vec<&'a str>) -> Result<usize, TreeError> {
        if path.len() >= DEPTH_MAX {
            return Err(TreeError::TooDeep { path: shown(path) });
        }
        let mut seen = HashSet::with_capacity(self.entries.len());
        let mut leaves = 0;
        for (key, node) in &self.entries {
            path.push(key);
            if !seen.insert(key) {
                return Err(TreeError::KeyTwice { path: shown(path) });
            }
            leaves += match node {
                Node::Value(value) if !is_shallow(value) => {
                    return Err(TreeError::ValueTooDeep { path: shown(path) });
                }
                Node::Tensor(_) | Node::Value(_) => 1,
                Node::Tree(below) => below.check_below(path)?,
            };
            path.pop();
        }
        Ok(leaves)
    }
}

/// Puts a node where its path says: the tree that it is in is the last one there, for all nodes stand in order.
fn place<L, P: AsRef<str>>(root: &mut Option<Tree<L>>, path: &[P], node: Node<L>) -> Option<()> {
    let Some((key, parents)) = path.split_last() else {
        let Node::Tree(tree) = node else { return None };
        return root.replace(tree).is_none().then_some(());
    };
    let mut tree = root.as_mut()?;
    for parent in parents {
        match tree.entries.last_mut() {
            Some((found, Node::Tree(below))) if found == parent.as_ref() => tree = below,
            _ => return None,
        }
    }
    tree.entries.push((key.as_ref().to_owned(), node));
    Some(())
}

/// Keys from the root, as people read them: `next/obs`.
pub(super) fn shown(path: &[impl AsRef<str>]) -> String {
    path.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(entries: Vec<(&str, Node<u32>)>) -> Tree<u32> {
        let entries = entries.into_iter().map(|(key, node)| (key.to_owned(), node)).collect();
        Tree { entries, ..Tree::default() }
    }

    #[test]
    fn tensors_come_in_the_order_of_the_keys_with_their_paths() {
        let below = tree(vec![("z", Node::Tensor(1)), ("a", Node::Value(Value::Null))]);
        let set = tree(vec![("next", Node::Tree(below)), ("obs", Node::Tensor(2))]);
        assert_eq!(set.tensors(), [(vec!["next", "z"], &1), (vec!["obs"], &2)]);
        assert_eq!(set.find(&["next", "z"]), Some(&Node::Tensor(1)));
        assert_eq!(set.find(&["obs", "z"]), None);
        assert!(set.check().is_ok());
        let doubled = set.try_map(&mut |leaf| Ok::<_, ()>(leaf * 2)).unwrap();
        assert_eq!(doubled.tensors(), [(vec!["next", "z"], &2), (vec!["obs"], &4)]);
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_by_its_path() {
        let below = tree(vec![("a", Node::Tensor(1)), ("a", Node::Tensor(2))]);
        let set = tree(vec![("next", Node::Tree(below))]);
        assert_eq!(set.check(), Err(TreeError::KeyTwice { path: "next/a".into() }));
    }

    #[test]
    fn trees_are_at_most_64_deep() {
        let deep = |depth: usize| {
            (0..depth)
                .fold(tree(vec![("leaf", Node::Tensor(1))]), |below, _| tree(vec![("d", Node::Tree(below))]))
        };
        assert!(deep(DEPTH_MAX - 1).check().is_ok());
        assert!(matches!(deep(DEPTH_MAX).check(), Err(TreeError::TooDeep { .. })));
    }
}
