//! Directories that other programs saved, and those that nobody should open.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::super::root::RootLimits;
use super::*;

const LEAF: &str = r#"{"shape": [4], "dtype": "torch.uint8"}"#;
const TREE: &str = r#"{"type": "TensorDict"}"#;

/// A root, and a directory in it that is made by whoever tests.
fn root() -> (TempDir, Root, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::open(folder.path(), RootLimits { files: 8, journal_bytes: 64 << 10 }).unwrap();
    let set = folder.path().join("old");
    (folder, root, set)
}

fn level(directory: &Path, entries: &[(&str, &str)]) {
    fs::create_dir_all(directory).unwrap();
    let entries: Vec<_> = entries.iter().map(|(key, about)| format!("{key:?}: {about}")).collect();
    let text = format!(r#"{{{}, "shape": [4]}}"#, entries.join(", "));
    fs::write(directory.join(LEVEL_META), text).unwrap();
}

fn read(root: &Root) -> Result<Found, Failure> {
    Directory::read(root, &DirectoryName::new("old").unwrap()).map(|directory| directory.found)
}

#[test]
fn a_directory_of_a_version_without_escapes_is_read_with_its_trees() {
    let (_folder, root, set) = root();
    level(&set, &[("a b", TREE), ("c d", LEAF)]);
    level(&set.join("a b"), &[("x:y", LEAF)]);
    fs::write(set.join("c d.memmap"), [0; 4]).unwrap();
    fs::write(set.join("a b/x:y.memmap"), [0; 4]).unwrap();
    let found = read(&root).unwrap();
    let keys: Vec<_> = found.leaves.iter().map(|leaf| leaf.key.as_str()).collect();
    let files: Vec<_> = found.files.iter().map(|file| file.path.join("|")).collect();
    assert_eq!((keys, files.join(" ")), (vec!["a b/x:y", "c d"], "a b|x:y.memmap c d.memmap".to_owned()));
}

#[test]
fn two_keys_of_one_file_or_directory_are_refused_with_both() {
    for (about, ending) in [(LEAF, LEAF_ENDING), (TREE, "")] {
        let (_folder, root, set) = root();
        level(&set, &[("a b", about), ("a%20b", about)]);
        for key in ["a b", "a%20b"] {
            let place = set.join(format!("{key}{ending}"));
            match ending {
                "" => {
                    level(&place, &[("x", LEAF)]);
                    fs::write(place.join("x.memmap"), [0; 4]).unwrap();
                }
                _ => fs::write(place, [0; 4]).unwrap(),
            }
        }
        let refused = read(&root).unwrap_err();
        assert_eq!(refused.reason, Reason::UnsupportedFormat, "{refused}");
        let due = format!(
            "old/a%20b{ending} below sets.root: it is that of the key \"a b\" and of the key \"a%20b\""
        );
        assert!(refused.message.contains(&due), "{refused}");
    }
}

#[test]
fn a_tree_that_would_be_the_directory_that_it_is_in_is_not_read_as_it() {
    for key in ["", ".", "..", "../old"] {
        let (_folder, root, set) = root();
        level(&set, &[(key, TREE)]);
        let refused = read(&root).unwrap_err();
        assert_eq!(refused.reason, Reason::StorageFailed, "{refused}");
    }
}

#[test]
fn metadata_of_a_set_have_16_mib_in_all_their_files_together() {
    let (_folder, root, set) = root();
    let padded = format!("{TREE}{}", " ".repeat(9 << 20));
    level(&set, &[("a", &padded)]);
    level(&set.join("a"), &[("b", &padded)]);
    let refused = read(&root).unwrap_err();
    assert_eq!(refused.reason, Reason::UnsupportedFormat, "{refused}");
    assert!(
        refused.message.contains("old/a/meta.json") && refused.message.contains("several sets"),
        "{refused}"
    );
}

#[test]
fn trees_that_lie_deeper_than_64_are_refused() {
    let (_folder, root, set) = root();
    let mut directory = set;
    for _ in 0..64 {
        level(&directory, &[("d", TREE)]);
        directory.push("d");
    }
    level(&directory, &[("x", LEAF)]);
    let refused = read(&root).unwrap_err();
    assert_eq!(refused.reason, Reason::UnsupportedFormat, "{refused}");
    assert!(refused.message.contains("deeper than 64"), "{refused}");
}

#[test]
fn what_is_no_plain_file_is_told_so_whatever_it_is() {
    for (kind, name) in [("directory", "x.memmap"), ("link", "x.memmap"), ("pipe", "x.memmap"), ("link", "a")]
    {
        let (_folder, root, set) = root();
        level(&set, &[if name == "a" { ("a", TREE) } else { ("x", LEAF) }]);
        let place = set.join(name);
        match kind {
            "directory" => fs::create_dir(&place).unwrap(),
            "link" => std::os::unix::fs::symlink("/dev", &place).unwrap(),
            _ => rustix::fs::mkfifoat(rustix::fs::CWD, &place, rustix::fs::Mode::RWXU).unwrap(),
        }
        let refused = read(&root).unwrap_err();
        assert_eq!(refused.reason, Reason::StorageFailed, "{refused}");
        let due =
            format!("cannot open old/{name} below sets.root: it is gone, or is a link or no plain file");
        assert!(refused.message.contains(&due), "{kind}: {refused}");
    }
}

#[test]
fn a_directory_of_more_leaves_or_rows_than_a_mutable_set_may_have_is_refused() {
    let empty = LEAF.replace("[4]", "[4, 0]");
    let keys: Vec<String> = (0..4_097).map(|at| at.to_string()).collect();
    let entries: Vec<_> = keys.iter().map(|key| (key.as_str(), empty.as_str())).collect();
    let (_folder, root, set) = root();
    level(&set, &entries[1..]);
    assert_eq!(read(&root).unwrap().leaves.len(), 4_096);
    level(&set, &entries);
    let refused = read(&root).unwrap_err();
    assert_eq!(refused.reason, Reason::UnsupportedFormat, "{refused}");
    assert!(refused.message.contains("1 to 4096 leaves, not 4097"), "{refused}");
    let rows = (1_u64 << 41).to_string();
    level(&set, &[("x", &empty.replace("[4, 0]", &format!("[{rows}, 0]")))]);
    let meta = set.join(LEVEL_META);
    let text = fs::read_to_string(&meta).unwrap().replace("\"shape\": [4]", &format!("\"shape\": [{rows}]"));
    fs::write(meta, text).unwrap();
    let refused = read(&root).unwrap_err();
    assert_eq!(refused.reason, Reason::UnsupportedFormat, "{refused}");
    assert!(refused.message.contains("1 to 1099511627776 rows, not 2199023255552"), "{refused}");
}

#[test]
fn a_shape_that_does_not_begin_with_the_batch_shape_of_its_tree_is_refused_with_both() {
    let (_folder, root, set) = root();
    let batch_of = |directory: &Path, batch: &str| {
        let path = directory.join(LEVEL_META);
        let text = fs::read_to_string(&path).unwrap();
        let end = text.rfind("\"shape\"").unwrap();
        fs::write(path, format!("{}\"shape\": {batch}}}", &text[..end])).unwrap();
    };
    level(&set, &[("x", &LEAF.replace("[4]", "[4, 2, 3]")), ("a", TREE)]);
    level(&set.join("a"), &[("y", &LEAF.replace("[4]", "[4, 2]"))]);
    fs::write(set.join("x.memmap"), [0; 24]).unwrap();
    fs::write(set.join("a/y.memmap"), [0; 8]).unwrap();
    // A tree below goes on with the batch shape, or has a part of it, or none.
    for (outer, inner) in [("[4]", "[4]"), ("[4, 2]", "[4, 2]"), ("[4, 2]", "[4]"), ("[4, 2]", "[]")] {
        batch_of(&set, outer);
        batch_of(&set.join("a"), inner);
        let rows: Vec<_> = read(&root).unwrap().leaves.iter().map(|leaf| leaf.row_shape.clone()).collect();
        assert_eq!(rows, [vec![2, 3], vec![2]]);
    }
    for (outer, inner, due) in [
        (
            "[4, 3]",
            "[]",
            "old/x.memmap below sets.root: its shape [4, 2, 3] does not begin with the batch shape [4, 3]",
        ),
        (
            "[4, 2]",
            "[4, 3]",
            "old/a/meta.json below sets.root: its shape [4, 3] does not begin with the batch shape [4, 2]",
        ),
        (
            "[4]",
            "[4, 3]",
            "old/a/y.memmap below sets.root: its shape [4, 2] does not begin with the batch shape [4, 3]",
        ),
    ] {
        batch_of(&set, outer);
        batch_of(&set.join("a"), inner);
        let refused = read(&root).unwrap_err();
        assert_eq!(refused.reason, Reason::UnsupportedFormat, "{refused}");
        assert!(refused.message.contains(due), "{refused}");
    }
}

#[test]
fn two_leaves_that_are_one_file_by_a_hard_link_are_refused_with_both_and_other_links_are_fine() {
    let (folder, root, set) = root();
    level(&set, &[("x", LEAF), ("a", TREE)]);
    level(&set.join("a"), &[("y", LEAF)]);
    let [one, other] = [set.join("x.memmap"), set.join("a/y.memmap")];
    fs::write(&one, [0; 4]).unwrap();
    fs::hard_link(&one, &other).unwrap();
    let refused = read(&root).unwrap_err();
    assert_eq!(refused.reason, Reason::UnsupportedFormat, "{refused}");
    assert!(
        refused.message.contains("old/a/y.memmap below sets.root: it is the same file as old/x.memmap"),
        "{refused}"
    );
    fs::remove_file(&other).unwrap();
    fs::write(&other, [0; 4]).unwrap();
    // As backups have them.
    fs::hard_link(&one, folder.path().join("copy")).unwrap();
    assert_eq!(read(&root).unwrap().leaves.len(), 2);
}

#[test]
fn a_leaf_without_elements_has_no_file_and_a_key_that_a_directory_may_have() {
    let long = "x".repeat(255);
    let (_folder, root, set) = root();
    level(&set, &[(&long, &LEAF.replace("[4]", "[4, 0]"))]);
    let found = read(&root).unwrap();
    assert_eq!((found.leaves[0].key.as_str(), found.files[0].bytes), (long.as_str(), 0));
    level(&set, &[(&long[..249], LEAF)]);
    let refused = read(&root).unwrap_err();
    assert!(refused.message.contains("too long for the name of a file"), "{refused}");
}
