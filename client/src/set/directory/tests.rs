//! Directories that are no sets, each by what is wrong with it. Whole ones are in the suites with a sidecar.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tempfile::TempDir;
use tensorlane_proto::rows::{Committed, Intent, JournalHead, Record, RowList, Torn};
use tensorlane_proto::set::{Node, Tree};

use super::*;

pub(super) const TENSOR: &str =
    r#""x": {"device": "cpu", "shape": [4], "dtype": "torch.float32", "is_nested": false}"#;
pub(super) const TYPE: &str =
    r#""_type": "<class 'tensordict._td.TensorDict'>", "shape": [], "device": "cpu""#;

/// A set of one tensor with four elements.
pub(super) fn set() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_meta(folder.path(), TENSOR);
    fs::write(folder.path().join("x.memmap"), [0; 16]).unwrap();
    folder
}

pub(super) fn write_meta(folder: &Path, fields: &str) {
    fs::write(folder.join(META), format!("{{{fields}, {TYPE}}}")).unwrap();
}

pub(super) fn refused(folder: &TempDir) -> DirectoryError {
    Directory::open(folder.path()).unwrap_err()
}

#[test]
fn a_tensor_is_found_with_its_file_and_a_longer_one_is_fine() {
    let folder = set();
    fs::write(folder.path().join("x.memmap"), [0; 1000]).unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    assert_eq!(directory.bytes(), 16);
    let Some(Node::Tensor(leaf)) = directory.tree().find(&["x"]) else { panic!("a tensor") };
    assert_eq!(leaf.file.as_deref(), Some(Path::new("x.memmap")));
}

#[test]
fn a_file_that_is_too_short_or_missing_is_named() {
    let folder = set();
    fs::write(folder.path().join("x.memmap"), [0; 15]).unwrap();
    let short = refused(&folder);
    assert!(matches!(short, DirectoryError::TooShort { bytes: 15, wanted: 16, .. }), "{short}");
    fs::remove_file(folder.path().join("x.memmap")).unwrap();
    let missing = refused(&folder).to_string();
    assert!(missing.contains("x.memmap: ") && missing.contains("No such file"), "{missing}");
    fs::remove_file(folder.path().join(META)).unwrap();
    assert!(refused(&folder).to_string().contains("meta.json: "));
}

#[test]
fn links_and_pipes_are_no_files_of_a_set() {
    let folder = set();
    let file = folder.path().join("x.memmap");
    for kind in ["link", "directory", "pipe"] {
        let _ = fs::remove_file(&file);
        match kind {
            "link" => symlink("/dev/zero", &file).unwrap(),
            "directory" => fs::create_dir(&file).unwrap(),
            _ => {
                fs::remove_dir(&file).unwrap();
                rustix::fs::mkfifoat(CWD, &file, rustix::fs::Mode::RUSR).unwrap();
            }
        }
        let found = refused(&folder);
        assert!(matches!(found, DirectoryError::NotPlain { wanted: "file", .. }), "{kind}: {found}");
    }
    let folder = set();
    write_meta(folder.path(), &format!(r#"{TENSOR}, "below": {{"type": "TensorDict"}}"#));
    symlink(set().path(), folder.path().join("below")).unwrap();
    let found = refused(&folder);
    assert!(matches!(found, DirectoryError::NotPlain { wanted: "directory", .. }), "{found}");
}

#[test]
fn keys_lead_to_no_file_outside_of_the_directory() {
    let folder = set();
    let below = folder.path().join("set");
    fs::create_dir(&below).unwrap();
    write_meta(&below, &TENSOR.replace("\"x\"", "\"../x\""));
    let found = Directory::open(&below).unwrap_err().to_string();
    assert!(found.contains("..%2Fx.memmap"), "{found}");
    write_meta(&below, r#""..": {"type": "TensorDict"}"#);
    let found = Directory::open(&below).unwrap_err().to_string();
    assert!(found.contains("%2E%2E"), "{found}");
}

#[test]
fn types_and_shapes_that_no_tensor_has_are_named() {
    for (from, to, said) in [
        ("torch.float32", "torch.qint8", "\"torch.qint8\" is no type"),
        ("torch.float32", "torch.float8_e4m3fn", "\"torch.float8_e4m3fn\" is no type"),
        ("[4]", "[9223372036854775807, 9223372036854775807]", "x.memmap: "),
        ("[4]", "[-4]", "x.shape is [-4]"),
    ] {
        let folder = set();
        write_meta(folder.path(), &TENSOR.replace(from, to));
        let found = refused(&folder).to_string();
        assert!(found.contains(said), "{to}: {found}");
    }
}

#[test]
fn a_tensor_without_elements_needs_no_file() {
    let folder = set();
    write_meta(folder.path(), &TENSOR.replace("[4]", "[4, 0]"));
    fs::remove_file(folder.path().join("x.memmap")).unwrap();
    let directory = Directory::open(folder.path()).unwrap();
    assert_eq!(directory.bytes(), 0);
}

#[test]
fn a_key_of_a_version_without_escapes_is_found() {
    let folder = set();
    write_meta(folder.path(), &TENSOR.replace("\"x\"", "\"a b\""));
    fs::rename(folder.path().join("x.memmap"), folder.path().join("a b.memmap")).unwrap();
    assert_eq!(Directory::open(folder.path()).unwrap().bytes(), 16);
}

#[test]
fn a_true_type_is_taken_only_where_the_bytes_are_still_those() {
    let folder = set();
    fs::create_dir(folder.path().join(OWN)).unwrap();
    let own = r#"{"leaves": [{"path": ["x"], "dtype": "f8_e4m3", "shape": [4]}]}"#;
    fs::write(folder.path().join(OWN).join(OWN_META), own).unwrap();
    let dtype = || {
        let directory = Directory::open(folder.path()).unwrap();
        let Some(Node::Tensor(leaf)) = directory.tree().find(&["x"]) else { panic!("a tensor") };
        leaf.layout.dtype().name()
    };
    assert_eq!(dtype(), "f32", "somebody wrote floats there since");
    write_meta(folder.path(), &TENSOR.replace("torch.float32", "torch.uint8"));
    assert_eq!(dtype(), "f8_e4m3");
    write_meta(folder.path(), &TENSOR.replace("torch.float32", "torch.uint8").replace("[4]", "[5]"));
    assert_eq!(dtype(), "u8");
}

#[test]
fn a_set_whose_name_is_as_long_as_can_be_is_made_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("x".repeat(255));
    for replace in [false, true] {
        let draft = Draft::create(&to, replace).unwrap();
        draft.write(&Tree::default(), |_, _| {}).unwrap();
        draft.finish().unwrap();
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(to.join(META).is_file());
}

/// Returns whether the file system of a directory swaps two names in one step.
fn is_swapped_in_one_step(folder: &Path) -> bool {
    let [one, other] = ["one", "other"].map(|name| folder.join(name));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&other).unwrap();
    renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).is_ok()
}

#[test]
fn a_set_that_is_replaced_is_at_no_moment_missing_and_whoever_opens_it_has_one_of_its_versions() {
    let folder = tempfile::tempdir().unwrap();
    if !is_swapped_in_one_step(folder.path()) {
        println!("the file system of {} cannot swap two names: nothing was tried", folder.path().display());
        return;
    }
    let to = folder.path().join("set");
    let replace = |version: u64| {
        let entries = vec![("version".to_owned(), Node::Value(version.into()))];
        let draft = Draft::create(&to, true).unwrap();
        draft.write(&Tree { entries, ..Tree::default() }, |_, _| {}).unwrap();
        draft.finish().unwrap();
    };
    replace(0);
    let looks = AtomicU64::new(0);
    // Ends by itself, whatever becomes of the writer.
    let look = || {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut seen = BTreeSet::new();
        while seen.len() < 20 || looks.load(Ordering::Relaxed) < 1_000 {
            assert!(Instant::now() < deadline, "{looks:?} looks saw the versions {seen:?} alone");
            looks.fetch_add(1, Ordering::Relaxed);
            assert!(fs::symlink_metadata(&to).unwrap().is_dir());
            match Directory::open(&to) {
                Ok(opened) => {
                    let version = opened.tree().find(&["version"]);
                    let Some(Node::Value(version)) = version else { panic!("{version:?}") };
                    seen.insert(version.to_string());
                }
                // A version that was opened and replaced is removed: its files go, and never its name.
                Err(DirectoryError::Io { path, source }) if path != to => {
                    assert_eq!(source.kind(), io::ErrorKind::NotFound, "{}", path.display());
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    thread::scope(|scope| {
        let looker = scope.spawn(look);
        for version in 1.. {
            replace(version);
            // Every other version stays until one look at it is over, however slow that is.
            let before = looks.load(Ordering::Relaxed);
            while version % 2 == 0 && looks.load(Ordering::Relaxed) < before + 2 && !looker.is_finished() {
                thread::yield_now();
            }
            if looker.is_finished() {
                break;
            }
        }
    });
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing is left beside it");
}

#[test]
fn a_directory_that_has_no_sync_fails_nothing_and_one_that_is_not_there_does() {
    assert!(sync_parent(Path::new("/proc/set")).is_ok());
    assert!(sync_parent(Path::new("set")).is_ok());
    assert!(sync_parent(Path::new("/nowhere/set")).is_err());
}

#[test]
fn a_directory_whose_mutable_set_was_cut_off_is_not_put_and_says_what_to_do() {
    let folder = set();
    let own = folder.path().join(OWN);
    fs::create_dir(&own).unwrap();
    let record = Record { committed: Committed { version: 7, first: 1 }, cursor: 0, retry: None };
    let intent = Intent::new(7, vec![0], &RowList::Range { first: 1, count: 2, step: 1 }).encode();
    let head = JournalHead { run: 5, record, plan_bytes: 4, data_bytes: 4, sum: 9 }.encode();
    let mut torn = Torn::default();
    torn.add(0, 2, 2);
    let said = || {
        let faults = Directory::faults(folder.path()).unwrap();
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let put = Directory::open(folder.path()).unwrap().check_cut_off();
        assert_eq!(put.err().map(|error| error.to_string()), faults.first().cloned());
        faults
    };
    assert!(said().is_empty());
    for (name, bytes, part) in [
        ("torn", torn.encode(), "torn: 2 rows from 2 on of leaf 0 "),
        ("intent-03", intent.clone(), "intent-03: a commit to 2 rows from 1 on "),
        ("journal", head, "journal: commits from version 7 on "),
    ] {
        fs::write(own.join(name), bytes).unwrap();
        let faults = said();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains(part) && faults[0].contains("open the set in its sidecar"), "{faults:?}");
        fs::remove_file(own.join(name)).unwrap();
    }
    // A commit that was noted is whole, and so is a set whose torn rows were written again and whose journal was emptied.
    fs::write(own.join("intent-03"), intent).unwrap();
    fs::write(own.join("commits"), record.encode()).unwrap();
    fs::write(own.join("torn"), Torn::default().encode()).unwrap();
    fs::write(own.join("journal"), [0; 88]).unwrap();
    assert!(said().is_empty());
}
