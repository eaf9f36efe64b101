//! The part of a set that some keys name, so that only its tensors are got.

use std::collections::HashMap;

use super::tree::{Node, Tree};

/// Keys that are asked for, and which of them were found.
struct Asked<'a> {
    /// Keys as they are compared, with their places.
    exact: HashMap<String, Vec<usize>>,
    /// Beginnings of keys, with their places.
    beginnings: Vec<(String, usize)>,
    keys: &'a [String],
    is_found: Vec<bool>,
}

impl<'a> Asked<'a> {
    fn new(keys: &'a [String]) -> Self {
        let mut asked =
            Self { exact: HashMap::new(), beginnings: Vec::new(), keys, is_found: vec![false; keys.len()] };
        for (at, key) in keys.iter().enumerate() {
            if let Some(beginning) = key.strip_suffix('*') {
                asked.beginnings.push((compared(beginning), at));
            }
            asked.exact.entry(compared(key)).or_default().push(at);
        }
        asked
    }

    /// Returns whether a key of the set is meant, and notes that it is there.
    fn means(&mut self, key: &str) -> bool {
        let Self { exact, beginnings, is_found, .. } = self;
        let begun = beginnings.iter().filter(|(beginning, _)| key.starts_with(beginning)).map(|(_, at)| at);
        let mut is_meant = false;
        for at in exact.get(key).into_iter().flatten().chain(begun) {
            is_meant = true;
            if let Some(found) = is_found.get_mut(*at) {
                *found = true;
            }
        }
        is_meant
    }
}

impl<L> Tree<L> {
    /// The part of the tree that keys name, and those of them that name nothing.
    ///
    /// A key names a leaf, or a tree with all that is below it; `encoder.*` stands for all keys that begin so. Nested keys are joined
    /// by `/` or by dots, as in files of safetensors. A tree of which something is left out is of no class.
    #[must_use]
    pub fn only(self, keys: &[String]) -> (Self, Vec<&str>) {
        let mut asked = Asked::new(keys);
        let part = self.cut(None, false, &mut asked);
        let missing = asked.keys.iter().zip(asked.is_found).filter(|(_, found)| !found);
        (part, missing.map(|(key, _)| key.as_str()).collect())
    }

    /// Part of a tree below a key that is asked for; all of it, if it `is_meant` itself.
    fn cut(self, below: Option<&str>, is_meant: bool, asked: &mut Asked<'_>) -> Self {
        let due = self.entries.len();
        let mut entries = Vec::new();
        for (key, node) in self.entries {
            let compared = compared(&key);
            let here = below.map_or(compared.clone(), |below| format!("{below}.{compared}"));
            let is_meant = asked.means(&here) || is_meant;
            let node = match node {
                Node::Tree(tree) => Node::Tree(tree.cut(Some(&here), is_meant, asked)),
                leaf => leaf,
            };
            let has_some = matches!(&node, Node::Tree(tree) if !tree.entries.is_empty());
            if is_meant || has_some {
                entries.push((key, node));
            }
        }
        let classes = if entries.len() == due { self.classes } else { Vec::new() };
        Self { batch: self.batch, names: self.names, classes, entries }
    }
}

/// A key as it is compared: one that is nested is the same with dots.
fn compared(key: &str) -> String {
    key.replace('/', ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree<u32> {
        let node = |path: &[&str], node| (path.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>(), node);
        Tree::from_nodes([
            node(&[], Node::Tree(Tree { batch: vec![4], ..Tree::default() })),
            node(&["encoder.0.weight"], Node::Tensor(0)),
            node(&["encoder.0.bias"], Node::Tensor(1)),
            node(&["encoder.10.bias"], Node::Tensor(2)),
            node(&["lr"], Node::Value(0.5.into())),
            node(&["next"], Node::Tree(Tree { batch: vec![4], ..Tree::default() })),
            node(&["next", "reward"], Node::Tensor(3)),
            node(&["next", "obs"], Node::Tensor(4)),
            node(&["empty"], Node::Tree(Tree::default())),
        ])
        .unwrap()
    }

    fn only(keys: &[&str]) -> (Vec<String>, Vec<String>) {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let (part, missing) = tree().only(&keys);
        assert_eq!(part.batch, [4]);
        let nodes = part.nodes().into_iter().skip(1).map(|(path, _)| path.join("/"));
        (nodes.collect(), missing.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn keys_name_leaves_values_trees_and_all_that_begin_so() {
        let nothing = Vec::<String>::new();
        assert_eq!(only(&["lr", "encoder.0.bias"]).0, ["encoder.0.bias", "lr"], "in the order of the set");
        assert_eq!(only(&["encoder.0.*"]).0, ["encoder.0.weight", "encoder.0.bias"]);
        assert_eq!(only(&["encoder*"]).0, ["encoder.0.weight", "encoder.0.bias", "encoder.10.bias"]);
        assert_eq!(
            only(&["next", "next/obs"]),
            (["next", "next/reward", "next/obs"].map(str::to_owned).to_vec(), nothing.clone())
        );
        for key in ["next/reward", "next.reward", "next/rew*"] {
            assert_eq!(only(&[key]).0, ["next", "next/reward"], "{key}");
        }
        assert_eq!(only(&["*"]), (only(&["encoder*", "lr", "next", "empty"]).0, nothing.clone()));
        assert_eq!(only(&[]), (nothing.clone(), nothing));
    }

    #[test]
    fn a_tree_is_of_its_class_while_nothing_of_it_is_left_out() {
        let text = r#"{"_type": "<class 'replay.Step'>", "lr": 0.5}"#.to_owned();
        let classes = |keys: &[&str]| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            Tree { classes: vec![text.clone()], ..tree() }.only(&keys).0.classes
        };
        assert_eq!(classes(&["*"]), std::slice::from_ref(&text));
        assert_eq!(
            classes(&["encoder*", "lr", "next/obs", "empty"]),
            std::slice::from_ref(&text),
            "only a tree below has less"
        );
        assert!(classes(&["encoder*", "next", "empty"]).is_empty());
    }

    #[test]
    fn keys_that_name_nothing_are_told() {
        assert_eq!(only(&["encoder", "lr", "no*", "next/"]).1, ["encoder", "no*", "next/"]);
    }
}
