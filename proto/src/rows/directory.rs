//! The directory of a mutable set on files, as tensordict's `memmap` lays it out: each `/` of a key is a directory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::layout::{Leaf, SetLayout};
use crate::failure::{Failure, Reason};
use crate::generated as v1;
use crate::layout::Layout;
use crate::set::{
    KEY_BYTES_MAX, LEAF_ENDING, Level, LevelEntry, Names, Node, OwnMeta, Tree, TreeError, file_name,
};

/// Directories, files and levels of a set that is to be made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Directories below the root, each after the one that it is in.
    pub directories: Vec<Vec<String>>,
    /// A file for each leaf, in the order of the layout.
    pub files: Vec<PlannedFile>,
    /// `meta.json` of each directory, the deepest first and the root's last.
    pub levels: Vec<(Vec<String>, Level)>,
    /// True types of leaves that tensordict sees as bytes.
    pub own: OwnMeta,
}

/// The file of a leaf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedFile {
    /// Names of directories from the root, and of the file.
    pub path: Vec<String>,
    /// Length in bytes; 0 for a leaf that has no file.
    pub bytes: u64,
}

/// Leaves that were found in the levels of a directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// Leaves, in order.
    pub leaves: Vec<v1::SetLeaf>,
    /// Number of rows; none before the root was read.
    pub rows: Option<u64>,
    /// Files, in the order of the leaves.
    pub files: Vec<PlannedFile>,
}

// === impl Plan ===

impl Plan {
    /// Plans the directory of a layout.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the key that no file can have.
    pub fn new(layout: &SetLayout) -> Result<Self, Failure> {
        let root = tree_of(layout.leaves(), layout.rows())?;
        let mut plan = Self { files: vec![PlannedFile::default(); layout.leaves().len()], ..Self::default() };
        plan.walk(layout, &root, &mut Vec::new(), &mut Vec::new())?;
        Ok(plan)
    }

    fn walk(
        &mut self,
        layout: &SetLayout,
        tree: &Tree<usize>,
        keys: &mut Vec<String>,
        names: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let mut entries = Vec::with_capacity(tree.entries.len());
        let mut taken = Names::default();
        for (key, node) in &tree.entries {
            let (ending, is_written) = match node {
                // A leaf without elements has no file.
                Node::Tensor(at) => {
                    (LEAF_ENDING, layout.leaves().get(*at).is_some_and(|leaf| leaf.row_bytes > 0))
                }
                Node::Tree(_) | Node::Value(_) => ("", true),
            };
            let name =
                file_name(key).filter(|name| !is_written || name.len() + ending.len() <= KEY_BYTES_MAX);
            let name = name.ok_or_else(|| {
                invalid(key, format!("the key {key:?} is too long for the name of a file; shorten it"))
            })?;
            let file = format!("{name}{ending}");
            taken.take(&file, key).map_err(|other| {
                let what = format!(
                    "the keys {other:?} and {key:?} would both be {file:?} in one directory; rename one"
                );
                invalid(key, what)
            })?;
            keys.push(key.clone());
            let entry = match node {
                Node::Tensor(at) => {
                    let leaf = layout.leaves().get(*at);
                    let leaf = leaf.ok_or_else(|| Failure::new(Reason::Internal, "no such leaf"))?;
                    let packed = leaf.packed(layout.rows())?.layout;
                    if let Some(planned) = self.files.get_mut(*at) {
                        planned.path = names.iter().cloned().chain([file]).collect();
                        planned.bytes = packed.bytes();
                    }
                    let bytes_shape = vec![layout.rows(), leaf.row_bytes];
                    LevelEntry::Tensor(self.own.described(keys, &packed, bytes_shape))
                }
                Node::Tree(below) => {
                    names.push(name);
                    self.directories.push(names.clone());
                    self.walk(layout, below, keys, names)?;
                    names.pop();
                    LevelEntry::Below { class: "TensorDict".to_owned() }
                }
                Node::Value(_) => continue,
            };
            keys.pop();
            entries.push((key.clone(), entry));
        }
        let level = Level::Tree { batch: tree.batch.clone(), names: None, entries };
        // Proven now, so that nothing is made for a key that tensordict would lose.
        level.write().map_err(|error| invalid(&keys.join("/"), error.to_string()))?;
        self.levels.push((names.clone(), level));
        Ok(())
    }
}

/// The tree that the keys of leaves are, each by its index, of so many rows.
///
/// # Errors
/// INVALID_ARGUMENT with the key that has no place in it.
pub fn tree_of<'a>(leaves: impl IntoIterator<Item = &'a Leaf>, rows: u64) -> Result<Tree<usize>, Failure> {
    let mut root = Tree { batch: vec![rows], ..Tree::default() };
    let mut places = HashMap::new();
    for (at, leaf) in leaves.into_iter().enumerate() {
        place(&mut root, &mut places, &leaf.key, at).ok_or_else(|| {
            let what = format!(
                "the key {:?} has an empty part, or lies below another leaf; in directories and snapshots each / is a level: rename it",
                leaf.key
            );
            invalid(&leaf.key, what)
        })?;
    }
    root.check().map_err(|error: TreeError| Failure::new(Reason::InvalidArgument, error.to_string()))?;
    Ok(root)
}

/// Puts a leaf into a tree, making the trees above it. `places` has the place of each key and of each beginning of one among those of its
/// tree. None where that cannot be.
fn place<'a>(
    root: &mut Tree<usize>,
    places: &mut HashMap<&'a str, usize>,
    key: &'a str,
    leaf: usize,
) -> Option<()> {
    let batch = root.batch.clone();
    let (mut tree, mut begin) = (root, 0);
    for (end, _) in key.match_indices('/') {
        let part = Some(&key[begin..end]).filter(|part| !part.is_empty())?;
        let at = *places.entry(&key[..end]).or_insert(tree.entries.len());
        if at == tree.entries.len() {
            let below = Tree { batch: batch.clone(), ..Tree::default() };
            tree.entries.push((part.to_owned(), Node::Tree(below)));
        }
        match tree.entries.get_mut(at) {
            Some((_, Node::Tree(below))) => tree = below,
            _ => return None,
        }
        begin = end + 1;
    }
    let last = Some(&key[begin..]).filter(|last| !last.is_empty())?;
    // Two leaves of one key are refused by the layout: here it is a tree.
    let Entry::Vacant(free) = places.entry(key) else { return None };
    free.insert(tree.entries.len());
    tree.entries.push((last.to_owned(), Node::Tensor(leaf)));
    Some(())
}

fn invalid(key: &str, what: String) -> Failure {
    Failure::new(Reason::InvalidArgument, what).with("key", key)
}

// === impl Found ===

impl Found {
    /// Takes the shape of the root.
    ///
    /// # Errors
    /// UNSUPPORTED_FORMAT where it has no rows.
    pub fn root(&mut self, batch: &[u64]) -> Result<(), Failure> {
        let rows = batch.first().ok_or_else(|| {
            unsupported(
                "the batch shape is [], so it has no rows; save it with a batch_size of one dimension",
            )
        })?;
        self.rows = Some(*rows);
        Ok(())
    }

    /// Takes a leaf: its keys from the root, the names of its directories and its file, and its layout.
    ///
    /// # Errors
    /// UNSUPPORTED_FORMAT with the leaf that does not fit.
    pub fn leaf(&mut self, keys: &[String], path: Vec<String>, layout: &Layout) -> Result<(), Failure> {
        let key = keys.join("/");
        if keys.iter().any(|key| key.is_empty() || key.contains('/')) {
            return Err(unsupported(format!(
                "the keys {keys:?} have an empty one, or one with a /, which mutable sets do not tell from nested ones; rename it"
            )));
        }
        let (Some((first, row_shape)), Some(rows)) = (layout.shape().split_first(), self.rows) else {
            return Err(unsupported(format!("{key} has no dimensions, and so no rows")));
        };
        if *first != rows {
            return Err(unsupported(format!("{key} has {first} rows, and the set {rows}")));
        }
        self.leaves.push(v1::SetLeaf {
            key,
            dtype: layout.dtype().code().into(),
            row_shape: row_shape.to_vec(),
        });
        self.files.push(PlannedFile { path, bytes: layout.bytes() });
        Ok(())
    }
}

fn unsupported(what: impl Into<String>) -> Failure {
    Failure::new(Reason::UnsupportedFormat, what.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn layout(leaves: &[(&str, DType, &[u64])]) -> SetLayout {
        let leaf = |(key, dtype, shape): &(&str, DType, &[u64])| v1::SetLeaf {
            key: (*key).to_owned(),
            dtype: dtype.code().into(),
            row_shape: shape.to_vec(),
        };
        SetLayout::new(&leaves.iter().map(leaf).collect::<Vec<_>>(), 4).unwrap()
    }

    #[test]
    fn each_slash_of_a_key_is_a_directory_and_levels_come_deepest_first() {
        let plan = Plan::new(&layout(&[
            ("obs", DType::F32, &[6]),
            ("next/reward", DType::F32, &[]),
            ("next/a b/x", DType::F8E4M3, &[2]),
            ("bits", DType::U8, &[0]),
        ]))
        .unwrap();
        let paths: Vec<_> = plan.files.iter().map(|file| (file.path.join("|"), file.bytes)).collect();
        let due =
            [("obs.memmap", 96), ("next|reward.memmap", 16), ("next|a%20b|x.memmap", 8), ("bits.memmap", 0)];
        assert_eq!(paths, due.map(|(path, bytes)| (path.to_owned(), bytes)));
        assert_eq!(plan.directories, [vec!["next".to_owned()], vec!["next".to_owned(), "a%20b".to_owned()]]);
        let levels: Vec<_> = plan.levels.iter().map(|(names, _)| names.join("|")).collect();
        assert_eq!(levels, ["next|a%20b", "next", ""]);
        assert_eq!(plan.own.leaves[0].path, ["next", "a b", "x"]);
        let text = String::from_utf8(plan.levels[2].1.write().unwrap()).unwrap();
        assert!(
            text.contains(r#""next": {"type": "TensorDict"}"#) && text.contains(r#""shape": [4]"#),
            "{text}"
        );
    }

    #[test]
    fn keys_that_no_file_can_have_are_refused_by_name() {
        let long = "x".repeat(250);
        for keys in
            [&["a", "a/b"][..], &["a/b", "a"], &["a//b"], &["/a"], &["a/"], &["shape"], &[long.as_str()]]
        {
            let leaves: Vec<_> = keys.iter().map(|key| (*key, DType::U8, &[][..])).collect();
            let refused = Plan::new(&layout(&leaves)).unwrap_err();
            assert_eq!(refused.reason, Reason::InvalidArgument, "{keys:?}");
        }
    }

    #[test]
    fn keys_may_be_as_long_as_the_name_of_what_they_have() {
        let key = |bytes| "x".repeat(bytes);
        let is_planned = |key: &str, shape: &[u64]| Plan::new(&layout(&[(key, DType::U8, shape)])).is_ok();
        assert!(is_planned(&key(248), &[]) && !is_planned(&key(249), &[]), "a file has an ending");
        assert!(is_planned(&key(255), &[0]), "a leaf without elements has no file");
        assert!(is_planned(&format!("{}/a", key(253)), &[]), "a directory has no ending");
    }

    #[test]
    fn keys_that_would_be_one_file_or_directory_are_refused_with_both() {
        let plan = |keys: [&str; 2]| Plan::new(&layout(&keys.map(|key| (key, DType::U8, &[][..]))));
        assert!(plan(["a b", "a%20b.memmap/c"]).is_ok(), "a percent sign is escaped itself");
        for keys in [["a", "a.memmap/b"], ["a.memmap/b", "a"]] {
            let refused = plan(keys).unwrap_err();
            assert_eq!(refused.reason, Reason::InvalidArgument);
            for part in ["\"a\"", "\"a.memmap\" in one directory", "rename one"] {
                assert!(refused.message.contains(part), "{refused}");
            }
        }
        let refused = Plan::new(&layout(&[("meta.json/a", DType::U8, &[])])).unwrap_err();
        assert!(refused.message.contains("\"meta.json\""), "{refused}");
    }

    #[test]
    fn a_tree_of_many_keys_has_each_in_the_order_in_which_it_was_given() {
        let keys: Vec<String> = (0..4_000).map(|at| format!("{}/{}/{at}", at % 7, at % 100)).collect();
        let leaves: Vec<_> = keys.iter().map(|key| (key.as_str(), DType::U8, &[][..])).collect();
        let layout = layout(&leaves);
        let tree = tree_of(layout.leaves(), 4).unwrap();
        let outer: Vec<_> = tree.entries.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(outer, ["0", "1", "2", "3", "4", "5", "6"]);
        let found = tree.tensors();
        assert_eq!(found.len(), keys.len());
        assert!(found.iter().all(|(path, leaf)| path.join("/") == keys[**leaf]));
        let Some(Node::Tree(below)) = tree.find(&["3", "45"]) else { panic!("a tree") };
        let last: Vec<_> = below.entries.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!((below.batch.as_slice(), &last[..2]), (&[4][..], &["45", "745"][..]));
    }

    #[test]
    fn leaves_without_the_rows_of_the_set_are_refused() {
        let tensor =
            |shape: &[u64]| Layout::contiguous(DType::U8, crate::Shape::new(shape).unwrap()).unwrap();
        let mut found = Found::default();
        assert_eq!(found.root(&[]).unwrap_err().reason, Reason::UnsupportedFormat);
        found.root(&[4, 2]).unwrap();
        let mut leaf = |key: &str, shape: &[u64]| {
            found
                .leaf(&[key.to_owned()], vec![key.to_owned()], &tensor(shape))
                .map_err(|failure| failure.reason)
        };
        assert_eq!(leaf("a", &[4, 2]), Ok(()));
        for (key, shape) in [("b", &[][..]), ("b", &[3]), ("b/c", &[4]), ("", &[4])] {
            assert_eq!(leaf(key, shape), Err(Reason::UnsupportedFormat), "{key}");
        }
        assert_eq!(found.leaves.len(), 1);
    }
}
