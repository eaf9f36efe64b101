//! Sets of tensors: a tree of keys whose leaves are tensors or values, as a manifest and as a directory of tensordict.
//!
//! ```text
//!   Tree<L> ──┬── Manifest   bytes of the one tensor that names all others (L = Reference)
//!             └── meta       `meta.json` of one level of a directory, tensordict's format version 1
//!   key       names of files, as tensordict writes them
//!   dtype     names of element types, as torch writes them
//!   class     lazy stacks and tensorclasses, by their `meta.json`
//!   own       `.tensorlane/set.json`: what tensordict has no words for
//!   part      the part of a tree that keys name
//! ```
//!
//! All of it is pure: no file and no socket is opened here.

mod class;
mod dtype;
mod key;
mod manifest;
mod meta;
mod own;
mod part;
mod tree;
mod value;

pub use class::{CLASS_PICKLE, CLASS_TENSORS, ClassMeta};
pub use dtype::{torch_dtype, torch_name};
pub use key::{LEAF_ENDING, Names, file_name, key_of_file, names_of};
pub use manifest::{MANIFEST_BYTES_MAX, Manifest, ManifestError, SET_METADATA};
pub use meta::{LEVEL_META, Level, LevelEntry, LevelError, TensorMeta, check_batch};
pub use own::{OWN_DIRECTORY, OWN_META, OwnLeaf, OwnMeta, OwnSet, TrueTypes};
pub use tree::{DEPTH_MAX, KEY_BYTES_MAX, LEAVES_MAX, Node, Tree, TreeError};
pub use value::{VALUE_DEPTH_MAX, beyond_64_bits};
