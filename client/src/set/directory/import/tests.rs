//! Directories of old releases, and those that nobody should read: each is refused by what is wrong with it.

use std::fs;

use tempfile::TempDir;
use tensorlane_proto::set::LevelError;

use super::super::tests::{TENSOR, TYPE, refused, set, write_meta};
use super::*;

#[test]
fn a_tree_of_a_version_without_escapes_is_found_with_what_is_in_it() {
    let folder = set();
    write_meta(folder.path(), r#""a b": {"type": "TensorDict"}, "c?": {"type": "NonTensorData"}"#);
    for name in ["a b", "c?"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    write_meta(&folder.path().join("a b"), &TENSOR.replace("\"x\"", "\"x:y\""));
    fs::rename(folder.path().join("x.memmap"), folder.path().join("a b/x:y.memmap")).unwrap();
    let value = r#"{"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "data": 7}"#;
    fs::write(folder.path().join("c?").join(META), value).unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    let Some(Node::Tensor(leaf)) = directory.tree().find(&["a b", "x:y"]) else { panic!("a tensor") };
    assert_eq!(leaf.file.as_deref(), Some(Path::new("a b/x:y.memmap")));
    assert_eq!(directory.tree().find(&["c?"]), Some(&Node::Value(7.into())));
    assert!(Directory::faults(folder.path()).unwrap().is_empty());
    // Of both names, the one that tensordict writes today is meant.
    fs::create_dir(folder.path().join("a%20b")).unwrap();
    write_meta(&folder.path().join("a%20b"), r#""is_memmap": true"#);
    assert_eq!(Directory::open(folder.path()).unwrap().bytes(), 0);
}

#[test]
fn a_directory_of_version_0_is_read_with_its_types_and_values_and_no_pickle_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join("nested");
    let value = below.join("string");
    // A value of that version had a tree of its own, and might have a pickle: neither is looked at.
    fs::create_dir_all(value.join("_tensordict")).unwrap();
    fs::create_dir(value.join("other.pickle")).unwrap();
    let end = r#""shape": [2, 1], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>""#;
    let tensor = |dtype: &str| {
        format!(
            r#""{dtype}": {{"device": "cpu", "shape": [2, 1], "dtype": "torch.{dtype}", "is_nested": false}}"#
        )
    };
    let nested = format!(
        r#"{{{}, "string": {{"type": "NonTensorData"}}, {}, {end}}}"#,
        tensor("int64"),
        tensor("bfloat16")
    );
    let text =
        r#"{"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "data": ["text"], "_metadata": null}"#;
    fs::write(folder.path().join(META), format!(r#"{{"nested": {{"type": "TensorDict"}}, {end}}}"#)).unwrap();
    fs::write(below.join(META), nested).unwrap();
    fs::write(value.join(META), text).unwrap();
    fs::write(below.join("int64.memmap"), [1; 16]).unwrap();
    fs::write(below.join("bfloat16.memmap"), [2; 4]).unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    let found: Vec<_> = directory
        .tree()
        .tensors()
        .iter()
        .map(|(path, leaf)| (path.join("/"), leaf.layout.dtype().name(), leaf.layout.shape().to_vec()))
        .collect();
    let due = [("nested/int64", "i64"), ("nested/bfloat16", "bf16")];
    assert_eq!(found, due.map(|(path, dtype)| (path.to_owned(), dtype, vec![2, 1])));
    let Some(Node::Value(value)) = directory.tree().find(&["nested", "string"]) else { panic!("a value") };
    assert_eq!(value.to_string(), r#"["text"]"#);
}

/// The file or directory that two keys are said to share, and the keys.
fn shared(folder: &TempDir) -> (String, [String; 2]) {
    let found = refused(folder);
    let said = found.to_string();
    let DirectoryError::OneFile { path, keys } = found else { panic!("{said}") };
    assert!(keys.iter().all(|key| said.contains(&format!("{key:?}"))), "{said}");
    let faults = Directory::faults(folder.path()).unwrap();
    assert!(faults.iter().any(|fault| fault.to_string() == said), "{faults:?}");
    (path.strip_prefix(folder.path()).unwrap().display().to_string(), keys)
}

#[test]
fn two_keys_of_one_file_or_directory_are_refused_with_both_and_none_is_read_as_the_other() {
    let folder = set();
    let both = ["a b", "a%20b"].map(ToOwned::to_owned);
    let tensor = |key: &str| TENSOR.replace("\"x\"", &format!("{key:?}"));
    write_meta(folder.path(), &both.clone().map(|key| tensor(&key)).join(", "));
    for (name, value) in [("a b.memmap", 1), ("a%20b.memmap", 2)] {
        fs::write(folder.path().join(name), [value; 16]).unwrap();
    }
    assert_eq!(shared(&folder), ("a%20b.memmap".to_owned(), both.clone()));
    // As tensordict writes them today, each has a file of its own.
    fs::write(folder.path().join("a%2520b.memmap"), [3; 16]).unwrap();
    assert_eq!(Directory::open(folder.path()).unwrap().bytes(), 32);

    let folder = set();
    let trees = both.clone().map(|key| format!(r#"{key:?}: {{"type": "TensorDict"}}"#)).join(", ");
    write_meta(folder.path(), &trees);
    for name in &both {
        fs::create_dir(folder.path().join(name)).unwrap();
        write_meta(&folder.path().join(name), r#""is_memmap": true"#);
    }
    assert_eq!(shared(&folder), ("a%20b".to_owned(), both));
}

#[test]
fn a_key_that_stands_twice_in_a_level_is_refused_by_its_name() {
    let folder = set();
    write_meta(folder.path(), &format!("{TENSOR}, {TENSOR}"));
    let found = refused(&folder);
    let is_twice = |source: &LevelError| matches!(source, LevelError::KeyTwice { key } if key == "x");
    assert!(matches!(&found, DirectoryError::Level { source, .. } if is_twice(source)), "{found}");
}

#[test]
fn a_tree_that_would_be_the_directory_that_it_is_in_is_looked_for_by_its_escaped_name_alone() {
    for (key, name) in [("", "%: "), (".", "%2E: "), ("..", "%2E%2E: "), ("../set", "..%2Fset: ")] {
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("set");
        fs::create_dir(&set).unwrap();
        for level in [folder.path(), &set] {
            write_meta(level, &format!(r#"{key:?}: {{"type": "TensorDict"}}"#));
        }
        let found = Directory::open(&set).unwrap_err().to_string();
        assert!(found.contains(name), "{found}");
    }
}

#[test]
fn a_key_that_is_too_long_for_a_file_is_refused_before_any_is_looked_for() {
    let folder = set();
    let long = "x".repeat(249);
    write_meta(folder.path(), &TENSOR.replace("\"x\"", &format!("{long:?}")));
    let found = refused(&folder);
    assert!(matches!(&found, DirectoryError::Key { key } if *key == long), "{found}");
    // A directory has no ending.
    let long = "x".repeat(255);
    write_meta(folder.path(), &format!(r#"{long:?}: {{"type": "TensorDict"}}"#));
    fs::create_dir(folder.path().join(&long)).unwrap();
    write_meta(&folder.path().join(&long), r#""is_memmap": true"#);
    assert!(Directory::open(folder.path()).is_ok());
}

#[test]
fn a_shape_that_does_not_begin_with_the_batch_shape_is_refused_with_both() {
    let folder = set();
    let meta = |folder: &Path, fields: &str, batch: &str| {
        let text = format!("{{{fields}, {TYPE}}}").replace(r#""shape": []"#, &format!(r#""shape": {batch}"#));
        fs::write(folder.join(META), text).unwrap();
    };
    meta(folder.path(), TENSOR, "[4]");
    assert!(Directory::open(folder.path()).is_ok());
    for batch in ["[5]", "[4, 1]"] {
        meta(folder.path(), TENSOR, batch);
        let found = refused(&folder).to_string();
        let due = format!("x.memmap: its shape [4] does not begin with the batch shape {batch}");
        assert!(found.contains(&due), "{found}");
        assert_eq!(Directory::faults(folder.path()).unwrap().len(), 1);
    }
    // A tree below goes on with the batch shape, or has its first dimensions alone, as tensordict lets it.
    let below = folder.path().join("below");
    fs::create_dir(&below).unwrap();
    for (above, batch, is_read) in [
        ("[4]", "[4]", true),
        ("[4]", "[4, 2]", true),
        ("[4]", "[]", true),
        ("[4, 3]", "[4]", true),
        ("[4]", "[2, 4]", false),
        ("[4, 3]", "[3]", false),
    ] {
        meta(folder.path(), r#""below": {"type": "TensorDict"}"#, above);
        meta(&below, r#""is_memmap": true"#, batch);
        let opened = Directory::open(folder.path());
        assert_eq!(opened.is_ok(), is_read, "{batch} in {above}");
        let said = opened.map_or_else(|error| error.to_string(), |_| String::new());
        let due = format!("meta.json: its shape {batch} does not begin with the batch shape {above}");
        assert_eq!(said.contains(&due), !is_read, "{said}");
    }
}

#[test]
fn metadata_of_a_set_have_16_mib_in_all_their_files_together() {
    let folder = set();
    let padded = |fields: &str| format!("{{{fields}, {TYPE}{}}}", " ".repeat(6 << 20));
    let mut level = folder.path().to_owned();
    for below in ["a", "a", "b"] {
        fs::write(level.join(META), padded(&format!(r#"{below:?}: {{"type": "TensorDict"}}"#))).unwrap();
        level = level.join(below);
        fs::create_dir(&level).unwrap();
    }
    let found = refused(&folder).to_string();
    assert!(
        found.contains("a/a/meta.json: it has more than the 4") && found.contains("several sets"),
        "{found}"
    );
    assert_eq!(Directory::faults(folder.path()).unwrap().len(), 1);
    // A file without an end is not read to it.
    let file = File::create(folder.path().join(META)).unwrap();
    file.set_len(1 << 33).unwrap();
    let found = refused(&folder).to_string();
    assert!(found.contains("meta.json: it has more than the 16777216 bytes"), "{found}");
}

#[test]
fn trees_that_lie_deeper_than_64_are_refused_by_their_path() {
    let folder = set();
    let mut level = folder.path().to_owned();
    for _ in 0..64 {
        write_meta(&level, r#""d": {"type": "TensorDict"}"#);
        level = level.join("d");
        fs::create_dir(&level).unwrap();
    }
    write_meta(&level, r#""is_memmap": true"#);
    let found = refused(&folder);
    let is_deep = |error: &TreeError| matches!(error, TreeError::TooDeep { path } if path.ends_with("d/d"));
    assert!(matches!(&found, DirectoryError::Tree(error) if is_deep(error)), "{found}");
    // Of the deepest one, which is not read then, nothing else is told.
    assert_eq!(Directory::faults(folder.path()).unwrap().len(), 1);
}

#[test]
fn a_set_of_more_than_65_536_leaves_is_refused_by_their_number() {
    let folder = set();
    let empty = r#"{"shape": [0], "dtype": "torch.uint8"}"#;
    let leaves: Vec<_> = (0..65_537).map(|at| format!(r#""{at}": {empty}"#)).collect();
    write_meta(folder.path(), &leaves[1..].join(", "));
    assert_eq!(Directory::open(folder.path()).unwrap().tree().tensors().len(), 65_536);
    write_meta(folder.path(), &leaves.join(", "));
    let found = refused(&folder);
    let is_many = |error: &TreeError| matches!(error, TreeError::TooManyLeaves { leaves: 65_537 });
    assert!(matches!(&found, DirectoryError::Tree(error) if is_many(error)), "{found}");
}

#[test]
fn pickled_values_are_refused_whatever_lies_beside_them() {
    let folder = set();
    write_meta(folder.path(), r#""v": {"type": "NonTensorData"}"#);
    let below = folder.path().join("v");
    fs::create_dir(&below).unwrap();
    // What would be run by whoever unpickled it.
    fs::write(below.join("other.pickle"), b"cos\nsystem\n(S'true'\ntR.").unwrap();
    fs::write(below.join("pickle.pkl"), b"cos\nsystem\n(S'true'\ntR.").unwrap();
    for text in [
        r#"{"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "_metadata": null}"#,
        r#"{"_type": "<class 'tensordict.tensorclass.NonTensorStack'>", "data": "pickle.pkl"}"#,
    ] {
        fs::write(below.join(META), text).unwrap();
        let found = refused(&folder);
        let is_class = |source: &LevelError| matches!(source, LevelError::Class(_));
        assert!(matches!(&found, DirectoryError::Level { source, .. } if is_class(source)), "{found}");
    }
}

const STACK: &str = r#"{"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 0}"#;
const STEP: &str = r#"{"_type": "<class 'replay.Step'>", "label": "a", "note": null}"#;

/// Makes a directory with this `meta.json`.
fn level(folder: &Path, text: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join(META), text).unwrap();
}

/// A directory of a lazy stack: a part with a tensor, and a tensorclass over a stack of one part without any.
fn stack_of_two() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (first, step) = (folder.path().join("0"), folder.path().join("1"));
    level(folder.path(), STACK);
    level(&first, "{}");
    write_meta(&first, TENSOR);
    fs::write(first.join("x.memmap"), [0; 16]).unwrap();
    level(&step, STEP);
    level(&step.join("_tensordict"), STACK);
    level(&step.join("_tensordict/0"), "{}");
    // Behind a gap, so no part.
    level(&folder.path().join("3"), "{");
    folder
}

#[test]
fn parts_of_stacks_and_fields_of_tensorclasses_are_found_with_their_values() {
    let folder = stack_of_two();
    let directory = Directory::open(folder.path()).unwrap();
    let tree = directory.tree();
    let keys = |tree: &Tree<LeafFile>| tree.entries.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    assert_eq!(
        (keys(tree), tree.classes.as_slice()),
        (vec!["stack_dim".into(), "0".into(), "1".into()], &[STACK.to_owned()][..])
    );
    let Some(Node::Tree(step)) = tree.find(&["1"]) else { panic!("a tree") };
    assert_eq!(step.classes, [STEP, STACK]);
    assert_eq!(keys(step), ["stack_dim", "0", "label", "note"]);
    assert_eq!(step.find(&["label"]), Some(&Node::Value("a".into())));
    let Some(Node::Tensor(leaf)) = tree.find(&["0", "x"]) else { panic!("a tensor") };
    assert_eq!(leaf.file.as_deref(), Some(Path::new("0/x.memmap")));
    assert!(Directory::faults(folder.path()).unwrap().is_empty());
    fs::remove_file(folder.path().join("0/x.memmap")).unwrap();
    let told = refused(&folder).to_string();
    assert!(told.contains("0/x.memmap: "), "{told}");
    assert_eq!(Directory::faults(folder.path()).unwrap().len(), 1);
}

#[test]
fn tensorclasses_with_pickled_fields_without_tensors_or_in_one_another_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    level(folder.path(), STEP);
    let told = || refused(&folder).to_string();
    assert!(told().contains("_tensordict: "), "{}", told());
    let tensors = folder.path().join("_tensordict");
    for (text, why) in [
        (STEP, "_tensordict/meta.json: it is of the class Step"),
        (r#"{"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "data": 7}"#, "it is a value"),
    ] {
        level(&tensors, text);
        assert!(told().contains(why), "{}", told());
    }
    level(&tensors, "{}");
    assert!(Directory::open(folder.path()).is_ok());
    // What would be run by whoever unpickled it.
    fs::write(folder.path().join("other.pickle"), b"cos\nsystem\n(S'true'\ntR.").unwrap();
    assert!(told().contains("other.pickle: fields of the class are pickled"), "{}", told());
    fs::remove_file(folder.path().join("other.pickle")).unwrap();
    std::os::unix::fs::symlink("elsewhere", folder.path().join("other.pickle")).unwrap();
    assert!(told().contains("other.pickle: fields of the class are pickled"), "{}", told());
}

#[test]
fn a_directory_that_a_link_replaced_before_its_file_is_read_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let tree = r#"{"below": {"type": "TensorDict"}, "shape": []}"#;
    let leaf = r#"{"x": {"shape": [4], "dtype": "torch.uint8"}, "shape": []}"#;
    let below = folder.path().join("below");
    fs::create_dir(&below).unwrap();
    fs::write(folder.path().join(META), tree).unwrap();
    fs::write(below.join(META), leaf).unwrap();
    fs::write(below.join("x.memmap"), [7; 4]).unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    fs::rename(&below, folder.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", &below).unwrap();
    let tensors = directory.tree().tensors();
    let replaced = directory.read_leaf(tensors[0].1, |_, _, _| Ok(())).unwrap_err();
    assert!(matches!(&replaced, DirectoryError::NotPlain { wanted: "directory", .. }), "{replaced}");
}

#[test]
fn a_file_that_is_cut_before_it_is_read_has_changed_and_is_named() {
    let folder = set();
    let file = folder.path().join("x.memmap");
    let directory = Directory::open(folder.path()).unwrap();
    fs::write(&file, [0; 15]).unwrap();
    let tensors = directory.tree().tensors();
    let mut bytes = [0; 16];
    let read = |file: &File, at: u64, _: u64| file.read_exact_at(&mut bytes, at);
    let cut = directory.read_leaf(tensors[0].1, read).unwrap_err();
    assert!(matches!(&cut, DirectoryError::Changed { path, .. } if *path == file), "{cut}");
}
