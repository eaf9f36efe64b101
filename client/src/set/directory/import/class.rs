//! Lazy stacks and tensorclasses of tensordict: directories whose tensors are one level further down.

use std::os::fd::OwnedFd;
use std::path::Path;

use tensorlane_proto::set::{
    CLASS_PICKLE, CLASS_TENSORS, ClassMeta, LEAVES_MAX, LevelError, Node, Tree, TreeError,
};

use super::super::{DirectoryError, META};
use super::{LeafFile, Note, Walk, open_below, open_file};

impl Walk<'_> {
    /// Reads a tree that is a lazy stack or a tensorclass: its values are of its `meta.json`, all else is in directories.
    pub(super) fn class(
        &self,
        class: ClassMeta,
        (dir, inside): (&OwnedFd, &Path),
        path: &mut Vec<String>,
        above: &[u64],
    ) -> Result<Tree<LeafFile>, DirectoryError> {
        let values = class.values.into_iter().map(|(key, value)| (key, Node::Value(value)));
        if class.is_stack {
            let mut entries: Vec<_> = values.collect();
            entries.extend(self.parts(dir, inside, path)?);
            return Ok(Tree { entries, classes: vec![class.text], ..Tree::default() });
        }
        // Without an end otherwise: a tensorclass in a tensorclass is no key deeper.
        if inside.ends_with(CLASS_TENSORS) {
            let path = self.shown(inside, META);
            return Err(DirectoryError::Level { path, source: LevelError::Class(class.name) });
        }
        let mut tree = self.fields((dir, inside), path, above)?;
        tree.classes.insert(0, class.text);
        tree.entries.extend(values);
        Ok(tree)
    }

    /// Reads the parts of a lazy stack, as far as their numbers go.
    fn parts(
        &self,
        dir: &OwnedFd,
        inside: &Path,
        path: &mut Vec<String>,
    ) -> Result<Vec<(String, Node<LeafFile>)>, DirectoryError> {
        let depth = path.len();
        let mut parts = Vec::new();
        for at in 0..=LEAVES_MAX {
            let name = at.to_string();
            let opened = match open_below(dir, &name, &self.shown(inside, &name)) {
                Err(error) if error.is_missing() => break,
                _ if at == LEAVES_MAX => return Err(TreeError::TooManyLeaves { leaves: at + 1 }.into()),
                opened => opened,
            };
            path.push(name.clone());
            let below = inside.join(&name);
            let part = opened.and_then(|opened| match self.level(&opened, path, &below, &[])? {
                Node::Tree(tree) => Ok(Node::Tree(tree)),
                _ => Err(self.no_tree(&below)),
            });
            path.truncate(depth);
            match (part, &self.note) {
                (Ok(part), _) => parts.push((name, part)),
                (Err(error), Note::Faults(faults)) => faults.borrow_mut().push(error),
                (Err(error), Note::Stamps(_)) => return Err(error),
            }
        }
        Ok(parts)
    }

    /// Reads the tensors of a tensorclass, and the trees beside them.
    fn fields(
        &self,
        (dir, inside): (&OwnedFd, &Path),
        path: &mut Vec<String>,
        above: &[u64],
    ) -> Result<Tree<LeafFile>, DirectoryError> {
        let pickle = self.shown(inside, CLASS_PICKLE);
        match open_file(dir, Path::new(CLASS_PICKLE), || pickle.clone()) {
            Err(error) if error.is_missing() => {}
            _ => {
                let what =
                    "fields of the class are pickled in it, which is never read; give them what JSON has";
                return Err(DirectoryError::Leaf { path: pickle, what: what.to_owned() });
            }
        }
        let below = inside.join(CLASS_TENSORS);
        let opened = open_below(dir, CLASS_TENSORS, &self.shown(inside, CLASS_TENSORS))?;
        match self.level(&opened, path, &below, above)? {
            Node::Tree(tree) => Ok(tree),
            _ => Err(self.no_tree(&below)),
        }
    }

    fn no_tree(&self, inside: &Path) -> DirectoryError {
        let what = "it is a value, in the place of a tree".to_owned();
        DirectoryError::Leaf { path: self.shown(inside, META), what }
    }
}
