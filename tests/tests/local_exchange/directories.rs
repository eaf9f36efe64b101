//! Directories of sets that somebody writes to while they are put.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tensorlane_client::set::directory::{Directory, DirectoryError, export};
use tensorlane_client::{AcquireOptions, PutOptions};
use tensorlane_proto::set::{LevelError, Node, Tree};
use tensorlane_tests::Sidecar;

/// A directory of two tensors, `a` and `b`, of so many bytes.
fn saved(bytes: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let about =
        format!(r#"{{"device": "cpu", "shape": [{bytes}], "dtype": "torch.uint8", "is_nested": false}}"#);
    let end = r#""shape": [], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>""#;
    let meta = format!(r#"{{"a": {about}, "b": {about}, {end}}}"#);
    fs::write(folder.path().join("meta.json"), meta).unwrap();
    for key in ["a", "b"] {
        fs::write(leaf(&folder, key), vec![1; bytes]).unwrap();
    }
    folder
}

fn leaf(folder: &TempDir, key: &str) -> PathBuf {
    folder.path().join(format!("{key}.memmap"))
}

/// Writes into a file, in place.
fn write(path: &Path) {
    File::options().write(true).open(path).unwrap().write_all(b"{").unwrap();
}

/// The file that is said to have changed, and how, where a directory is treated so at the first byte that is read of a key.
fn changed(bytes: usize, of: &str, treat: impl Fn(&TempDir)) -> (String, &'static str) {
    let (sidecar, folder) = (Sidecar::start(), saved(bytes));
    let client = sidecar.client();
    let directory = Directory::open(folder.path()).unwrap();
    let mut is_first = true;
    let refused = directory.put(&client, &PutOptions::new(), |_, key| {
        if key == of && std::mem::take(&mut is_first) {
            treat(&folder);
        }
    });
    let Err(DirectoryError::Changed { path, what }) = refused else { panic!("{refused:?}") };
    drop(client);
    sidecar.assert_all_free();
    (path.file_name().unwrap().to_str().unwrap().to_owned(), what)
}

#[test]
fn a_file_of_a_set_that_is_written_to_after_it_was_read_is_told_by_its_name() {
    // Small ones go in one request, large ones one by one; `a` has been read whole when the first byte of `b` is.
    for bytes in [100, 100_000] {
        assert_eq!(
            changed(bytes, "b", |folder| write(&leaf(folder, "a"))),
            ("a.memmap".into(), "was written to")
        );
        let meta = |folder: &TempDir| write(&folder.path().join("meta.json"));
        assert_eq!(changed(bytes, "b", meta), ("meta.json".into(), "was written to"));
    }
}

#[test]
fn a_file_of_a_set_that_is_written_to_before_it_is_read_is_not_that_of_the_others() {
    let (sidecar, folder) = (Sidecar::start(), saved(100));
    let directory = Directory::open(folder.path()).unwrap();
    write(&leaf(&folder, "b"));
    let refused = directory.put(&sidecar.client(), &PutOptions::new(), |_, _| {}).unwrap_err().to_string();
    assert!(refused.contains("b.memmap was written to while the set was read; nothing was"), "{refused}");
    // Opened again, it is put.
    Directory::open(folder.path()).unwrap().put(&sidecar.client(), &PutOptions::new(), |_, _| {}).unwrap();
}

#[test]
fn a_file_of_a_set_that_is_replaced_removed_or_cut_is_told_so() {
    let remove = |folder: &TempDir| fs::remove_file(leaf(folder, "b")).unwrap();
    assert_eq!(changed(100, "a", remove), ("b.memmap".into(), "was removed"));
    let replace = |folder: &TempDir| {
        fs::write(leaf(folder, "new"), [2; 100]).unwrap();
        fs::rename(leaf(folder, "new"), leaf(folder, "a")).unwrap();
    };
    assert_eq!(changed(100, "b", replace), ("a.memmap".into(), "was replaced"));
    // Of more than one chunk, so that it is cut between two.
    let cut = |folder: &TempDir| {
        File::options().write(true).open(leaf(folder, "a")).unwrap().set_len(10).unwrap();
    };
    assert_eq!(changed(9 << 20, "a", cut), ("a.memmap".into(), "became shorter"));
}

/// The files of a directory by their paths from it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn a_directory_of_a_stack_and_of_tensorclasses_comes_back_byte_for_byte() {
    let stack = r#"{"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 0}"#;
    let step = r#"{"_type": "<class 'replay.Step'>",  "label": {"b": 1e-05, "a": 2.50}, "note": null}"#;
    let tensor = r#"{"device": "cpu", "shape": [3], "dtype": "torch.uint8", "is_nested": false}"#;
    let end = r#""_type": "<class 'tensordict._td.TensorDict'>", "_format_version": 1, "_class": "tensordict:TensorDict""#;
    let tree = |fields: &str| format!(r#"{{{fields}"shape": [], "device": "cpu", {end}}}"#);
    let fields =
        r#""steps": {"type": "Step"}, "all": {"type": "LazyStackedTensorDict"}, "n": {"type": "Step"}, "#;
    let folder = tempfile::tempdir().unwrap();
    for (dir, text) in [
        ("", tree(fields)),
        ("steps", step.to_owned()),
        ("steps/_tensordict", tree(&format!(r#""x": {tensor}, "#))),
        ("all", stack.to_owned()),
        ("all/0", tree("")),
        ("all/1", step.to_owned()),
        ("all/1/_tensordict", tree(&format!(r#""x": {tensor}, "#))),
        ("n", step.to_owned()),
        ("n/_tensordict", stack.to_owned()),
        ("n/_tensordict/0", tree(&format!(r#""x": {tensor}, "#))),
    ] {
        let dir = folder.path().join(dir);
        fs::create_dir_all(&dir).unwrap();
        if text.contains("\"x\"") {
            fs::write(dir.join("x.memmap"), [1, 2, 3]).unwrap();
        }
        fs::write(dir.join("meta.json"), text).unwrap();
    }
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = Directory::open(folder.path()).unwrap().put(&client, &PutOptions::new(), |_, _| {}).unwrap();
    let got = stored.try_map(&mut |one| client.acquire(one.reference(), &AcquireOptions::new())).unwrap();
    let place = tempfile::tempdir().unwrap();
    export(&got, &place.path().join("set"), false, |_, _| ()).unwrap();
    let (due, written) = (files(folder.path()), files(&place.path().join("set")));
    assert_eq!(due.keys().collect::<Vec<_>>(), written.keys().collect::<Vec<_>>());
    for (path, bytes) in &due {
        let (due, written) = (String::from_utf8_lossy(bytes), String::from_utf8_lossy(&written[path]));
        assert_eq!(due, written, "{}", path.display());
    }
}

#[test]
fn a_lazy_stack_with_something_beside_its_parts_is_not_written() {
    let text = r#"{"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 0}"#;
    let place = tempfile::tempdir().unwrap();
    for keys in [&["1"][..], &["0", "x"]] {
        let entries = keys.iter().map(|key| ((*key).to_owned(), Node::Tree(Tree::default()))).collect();
        let tree = Tree { entries, classes: vec![text.to_owned()], ..Tree::default() };
        let refused = export(&tree, &place.path().join("set"), false, |_, _| ()).unwrap_err().to_string();
        assert!(refused.contains("parts by their numbers"), "{refused}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "{keys:?}");
    }
}

#[test]
fn keys_that_would_be_one_file_are_refused_with_both_and_no_directory_is_left() {
    let (sidecar, folder) = (Sidecar::start(), saved(100));
    let client = sidecar.client();
    let stored = Directory::open(folder.path()).unwrap().put(&client, &PutOptions::new(), |_, _| {}).unwrap();
    let Some(Node::Tensor(stored)) = stored.find(&["a"]) else { panic!("a tensor") };
    let tensor = client.acquire(stored.reference(), &AcquireOptions::new()).unwrap();
    let place = tempfile::tempdir().unwrap();
    let written = |entries: Vec<(&str, Node<_>)>| {
        let entries = entries.into_iter().map(|(key, node)| (key.to_owned(), node)).collect();
        let tree = Tree { entries, ..Tree::default() };
        let refused = export(&tree, &place.path().join("set"), false, |_, _| ()).unwrap_err();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "{refused}");
        refused
    };
    // The file of the tensor and the directory of the tree have one name.
    let refused = written(vec![("a", Node::Tensor(tensor)), ("a.memmap", Node::Tree(Tree::default()))]);
    let DirectoryError::OneFile { keys, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*keys, ["a", "a.memmap"]);
    let refused = written(vec![("meta.json", Node::Tree(Tree::default()))]);
    let is_reserved = |source: &LevelError| matches!(source, LevelError::Reserved { .. });
    assert!(matches!(&refused, DirectoryError::Level { source, .. } if is_reserved(source)), "{refused}");
}
