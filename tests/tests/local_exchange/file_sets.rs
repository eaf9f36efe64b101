//! Mutable sets on files of one sidecar: their directories, what is refused, and what a restart leaves.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tensorlane_client::set::directory::Directory;
use tensorlane_client::set::mutable::{MutableSet, Place, Rows, SetFiles, SetSpec};
use tensorlane_client::{AcquireOptions, Client};
use tensorlane_proto::{DType, Range, Reason, Selection};
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until};

const ROWS: u64 = 50;

fn spec() -> SetSpec {
    SetSpec::new("replay", ROWS).leaf("obs", DType::U8, &[30_000]).leaf("next/reward", DType::U32, &[])
}

fn at(directory: &str) -> SetFiles {
    SetFiles { directory: directory.to_owned(), ..SetFiles::default() }
}

fn opening(directory: &str) -> SetFiles {
    SetFiles { open: true, ..at(directory) }
}

fn started() -> (TempDir, Sidecar) {
    let root = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::with(SidecarOptions::default().set("sets.root", root.path().display()));
    (root, sidecar)
}

fn rows(list: &[u64]) -> Selection {
    Selection::rows(list.to_vec())
}

fn write(set: &MutableSet, place: &Place, count: u64, value: u8) -> tensorlane_client::Result<u64> {
    let count_of = |bytes: u64| usize::try_from(count * bytes).unwrap();
    let (obs, reward) = (vec![value; count_of(30_000)], vec![value; count_of(4)]);
    let leaves = BTreeMap::from([("obs", &obs[..]), ("next/reward", &reward[..])]);
    set.write(place, count, &leaves, None).map(|committed| committed.version)
}

/// The value of each row, proven to be the same in all bytes of both leaves.
fn values(set: &MutableSet, selection: &Selection) -> tensorlane_client::Result<Vec<u8>> {
    set.read(&[], selection).map(|read| values_of(&read))
}

fn values_of(read: &Rows) -> Vec<u8> {
    let (obs, reward) = (read.leaves[0].1.to_vec(), read.leaves[1].1.to_vec());
    let one = |(obs, reward): (&[u8], &[u8])| {
        assert!(obs.iter().chain(reward).all(|byte| *byte == obs[0]), "half a row");
        obs[0]
    };
    obs.chunks(30_000).zip(reward.chunks(4)).map(one).collect()
}

/// Bytes of the arena that are in use.
fn used(client: &Client) -> u64 {
    client.flush().unwrap();
    let arena = client.status().unwrap().arena.unwrap();
    arena.reserved + arena.sealed + arena.retired
}

/// Bytes of blocks of everything below a directory.
fn blocks(path: &Path) -> u64 {
    let own = fs::symlink_metadata(path).unwrap();
    let below = if own.is_dir() {
        fs::read_dir(path).unwrap().map(|entry| blocks(&entry.unwrap().path())).sum()
    } else {
        0
    };
    own.blocks() * 512 + below
}

fn overwrite(path: PathBuf, offset: u64, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

#[test]
fn a_set_on_files_is_a_directory_of_tensordict_whose_rows_lie_where_they_should() {
    let (root, sidecar) = started();
    let client = sidecar.client();
    let set = client.create_set(&spec().files(&at("replay"))).unwrap();
    assert_eq!(values(&set, &rows(&[0, 49])).unwrap(), [0, 0]);
    assert_eq!(write(&set, &Place::Rows(rows(&[4, 49, 7])), 3, 7).unwrap(), 1);
    assert_eq!(write(&set, &Place::Extend, 2, 9).unwrap(), 2);
    assert_eq!(values(&set, &rows(&[0, 1, 2, 4, 7, 49])).unwrap(), [9, 9, 0, 7, 7, 7]);
    let folder = root.path().join("replay");
    let obs = fs::read(folder.join("obs.memmap")).unwrap();
    assert_eq!(obs.len(), 50 * 30_000);
    assert!(obs[4 * 30_000..5 * 30_000].iter().all(|byte| *byte == 7) && obs[2 * 30_000] == 0);
    assert_eq!(fs::read(folder.join("next/reward.memmap")).unwrap()[..8], [9; 8]);
    // What is written into the file is what is read: nothing is kept beside it.
    overwrite(folder.join("next/reward.memmap"), 4 * 30, &[5; 4]);
    overwrite(folder.join("obs.memmap"), 30_000 * 30, &[5; 30_000]);
    assert_eq!(values(&set, &rows(&[30])).unwrap(), [5]);
    let directory = Directory::open(&folder).unwrap();
    assert_eq!(directory.bytes(), 50 * 30_004);
    let now = set.flush().unwrap();
    assert_eq!((now.version, now.cursor, now.held_bytes, now.torn_rows), (2, 2, 0, 0));
    assert_eq!(now.spec.unwrap().files.unwrap().directory, "replay");
    client.drop_set("replay").unwrap();
    assert!(folder.join("meta.json").is_file() && !folder.join(".tensorlane").exists());
    assert_eq!(reason(set.read(&[], &rows(&[1]))), Reason::NotFound);
    drop((client, set));
    sidecar.assert_all_free();
}

#[test]
fn a_set_larger_than_memory_is_made_at_once_and_takes_no_block_by_being_read() {
    let (root, sidecar) = started();
    let client = sidecar.client();
    // The data set of the seed: 173 GB.
    let leaf = |rows| SetSpec::new("frames", rows).leaf("memmap", DType::U8, &[640, 640, 3]);
    let set = client.create_set(&leaf(140_625).files(&at("frames"))).unwrap();
    assert_eq!(set.info().bytes, 172_800_000_000);
    let taken = blocks(root.path());
    assert!(taken < 1 << 20, "{taken}");
    let read = set.read(&[], &rows(&[4, 70_000, 140_624])).unwrap();
    assert!(read.leaves[0].1.to_vec().iter().all(|byte| *byte == 0));
    assert_eq!(blocks(root.path()), taken);
    let row = vec![3u8; 640 * 640 * 3];
    set.write(&Place::Rows(rows(&[140_624])), 1, &BTreeMap::from([("memmap", &row[..])]), None).unwrap();
    assert!(blocks(root.path()) < taken + 2 * row.len() as u64);
    assert_eq!(set.read(&[], &rows(&[140_624])).unwrap().leaves[0].1.to_vec(), row);
}

#[test]
fn a_sidecar_that_starts_again_has_its_sets_by_name_and_reference_with_version_and_cursor() {
    let (root, mut sidecar) = started();
    let client = sidecar.client();
    let set = client.create_set(&spec().writers(&["a-*"]).files(&at("replay"))).unwrap();
    let reference = set.reference().to_owned();
    write(&set, &Place::Extend, 3, 4).unwrap();
    write(&set, &Place::Rows(rows(&[20])), 1, 6).unwrap();
    drop((client, set));
    sidecar.kill();
    sidecar.start_again();
    let client = sidecar.client();
    let again = client.open_mutable_set("replay").unwrap();
    assert_eq!(again.reference(), reference);
    let info = client.open_mutable_set(&reference).unwrap().now().unwrap();
    assert_eq!((info.version, info.cursor, info.torn_rows), (2, 3, 0));
    assert_eq!(info.spec.unwrap().writers, ["a-*"]);
    assert_eq!(values(&again, &rows(&[0, 1, 2, 3, 20])).unwrap(), [4, 4, 4, 0, 6]);
    assert_eq!(write(&again, &Place::Extend, 1, 8).unwrap(), 3);
    assert_eq!(values(&again, &rows(&[3])).unwrap(), [8]);
    // Made again by whoever starts again, too.
    let opened = client.create_set(&spec().files(&opening("replay"))).unwrap();
    assert_eq!(opened.reference(), reference);
    // What was dropped is not found again, and may be opened as a directory of somebody else.
    client.drop_set("replay").unwrap();
    drop((client, again, opened));
    sidecar.kill();
    sidecar.start_again();
    let client = sidecar.client();
    assert_eq!(reason(client.open_mutable_set("replay")), Reason::NotFound);
    let opened = client.create_set(&SetSpec::new("", 0).files(&opening("replay"))).unwrap();
    assert!(opened.reference() != reference && opened.rows() == ROWS);
    assert_eq!(values(&opened, &rows(&[3])).unwrap(), [8]);
    // A copy of a directory is another set.
    let (from, to) = (root.path().join("replay"), root.path().join("copy"));
    assert!(std::process::Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
    let copy = client.create_set(&SetSpec::new("", 0).files(&opening("copy"))).unwrap();
    assert!(copy.reference() != opened.reference() && copy.now().unwrap().version == 0);
    assert_eq!(values(&copy, &rows(&[3])).unwrap(), [8]);
}

#[test]
fn leaves_without_elements_and_of_small_types_are_there_again_with_their_rows() {
    let (_root, mut sidecar) = started();
    let spec = SetSpec::new("odd", 4)
        .leaf("none", DType::F32, &[0])
        .leaf("flag", DType::Bool, &[])
        .leaf("half", DType::BF16, &[2])
        .leaf("deep/eight", DType::F8E4M3, &[3]);
    let row: [(&str, &[u8]); 4] =
        [("none", b""), ("flag", b"\x01"), ("half", b"abcd"), ("deep/eight", b"efg")];
    let client = sidecar.client();
    let set = client.create_set(&spec.files(&at("odd"))).unwrap();
    set.write(&Place::Rows(rows(&[2])), 1, &BTreeMap::from(row), None).unwrap();
    drop((client, set));
    sidecar.kill();
    sidecar.start_again();
    let again = sidecar.client().open_mutable_set("odd").unwrap();
    let read = again.read(&[], &rows(&[2])).unwrap();
    let leaves: Vec<_> = read.leaves.iter().map(|(key, tensor)| (key.as_str(), tensor.to_vec())).collect();
    assert_eq!(leaves, row.map(|(key, bytes)| (key, bytes.to_vec())));
}

#[test]
fn directories_that_are_none_of_a_set_are_refused_and_stay_as_they_are() {
    let (root, sidecar) = started();
    let client = sidecar.client();
    let create = |files: &SetFiles| reason(client.create_set(&spec().files(files)));
    let open = |name: &str| reason(client.create_set(&SetSpec::new("", 0).files(&opening(name))));
    for name in ["", ".", "..", "../out", "/tmp/out", "a/b", ".hidden"] {
        assert_eq!(create(&at(name)), Reason::InvalidArgument, "{name:?}");
    }
    let inside = |name: &str| root.path().join(name);
    fs::create_dir(inside("full")).unwrap();
    fs::write(inside("full/meta.json"), "{}").unwrap();
    symlink("/etc", inside("link")).unwrap();
    fs::write(inside("file"), "x").unwrap();
    for name in ["full", "link", "file"] {
        assert_eq!(create(&at(name)), Reason::NameTaken, "{name}");
    }
    assert_eq!(open("link"), Reason::StorageFailed);
    assert_eq!(open("file"), Reason::StorageFailed);
    assert_eq!(open("none"), Reason::NotFound);
    assert_eq!(open("full"), Reason::UnsupportedFormat, "it has no rows");
    let level = |body: &str| format!(r#"{{{body}, "shape": [4], "device": "cpu", "_format_version": 1}}"#);
    let tensor = r#""x": {"device": "cpu", "shape": [4], "dtype": "torch.float32", "is_nested": false}"#;
    let meta = |text: &str| fs::write(inside("full/meta.json"), text).unwrap();
    meta(&level(tensor));
    assert_eq!(open("full"), Reason::StorageFailed, "its file is missing");
    fs::write(inside("full/x.memmap"), [0; 15]).unwrap();
    assert_eq!(open("full"), Reason::UnsupportedFormat, "its file is short");
    fs::remove_file(inside("full/x.memmap")).unwrap();
    fs::write(inside("out"), [0; 16]).unwrap();
    symlink(inside("out"), inside("full/x.memmap")).unwrap();
    assert_eq!(open("full"), Reason::StorageFailed, "its file is a link");
    fs::remove_file(inside("full/x.memmap")).unwrap();
    fs::write(inside("full/x.memmap"), [0; 16]).unwrap();
    for text in [
        level(tensor).replace("\"_format_version\": 1", "\"_format_version\": 2"),
        level(tensor)
            .replace("[4]", "[4, 3]")
            .replace("\"shape\": [4, 3], \"dtype\"", "\"shape\": [3], \"dtype\""),
        level(r#""x": {"type": "TensorDict", "_type": "pickle"}"#),
        level(tensor).replace("torch.float32", "torch.qint8"),
        level(tensor)[..40].to_owned(),
        level(&tensor.replace("\"x\"", "\"../x\"")),
    ] {
        meta(&text);
        let refused = open("full");
        assert!([Reason::UnsupportedFormat, Reason::StorageFailed].contains(&refused), "{text}: {refused}");
    }
    meta(&level(tensor));
    symlink("/tmp", inside("full/.tensorlane")).unwrap();
    assert_eq!(open("full"), Reason::StorageFailed, "its own directory is a link");
    fs::remove_file(inside("full/.tensorlane")).unwrap();
    let wrong = SetSpec::new("", 5).files(&opening("full"));
    assert_eq!(reason(client.create_set(&wrong)), Reason::SetMismatch);
    let wrong = SetSpec::new("", 4).leaf("x", DType::F64, &[]).files(&opening("full"));
    assert_eq!(reason(client.create_set(&wrong)), Reason::SetMismatch);
    assert!(!inside("full/.tensorlane").exists(), "what was refused is as it was");
    for keys in [["a", "a/b"], ["a", "shape"], ["a", "b//c"]] {
        let spec = keys.iter().fold(SetSpec::new("keys", 4), |spec, key| spec.leaf(key, DType::U8, &[]));
        assert_eq!(reason(client.create_set(&spec.files(&at("keys")))), Reason::InvalidArgument);
    }
    assert!(!inside("keys").exists());
    let opened = client.create_set(&SetSpec::new("", 0).files(&opening("full"))).unwrap();
    assert_eq!((opened.rows(), opened.leaves().len()), (4, 1));
    assert_eq!(client.mutable_sets("").unwrap().len(), 1);
    let names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn a_directory_that_is_removed_replaced_or_cut_is_an_error_of_its_set_alone() {
    let (root, sidecar) = started();
    let client = sidecar.client();
    let made = |name: &str| {
        let spec =
            SetSpec::new(name, ROWS).leaf("obs", DType::U8, &[30_000]).leaf("next/reward", DType::U32, &[]);
        let set = client.create_set(&spec.files(&at(name))).unwrap();
        write(&set, &Place::Rows(rows(&[1])), 1, 1).unwrap();
        set
    };
    let sets = ["cut", "unlinked", "removed", "replaced", "fine"].map(made);
    let inside = |name: &str| root.path().join(name);
    let cut = fs::OpenOptions::new().write(true).open(inside("cut/obs.memmap")).unwrap();
    cut.set_len(10).unwrap();
    fs::remove_file(inside("unlinked/next/reward.memmap")).unwrap();
    fs::remove_dir_all(inside("removed")).unwrap();
    fs::rename(inside("replaced"), inside("elsewhere")).unwrap();
    symlink(inside("elsewhere"), inside("replaced")).unwrap();
    let [bad @ .., fine] = &sets;
    for set in bad {
        assert_eq!(reason(values(set, &rows(&[1]))), Reason::StorageFailed, "{:?}", set.info().spec);
        assert_eq!(reason(write(set, &Place::Rows(rows(&[1])), 1, 2)), Reason::StorageFailed);
        assert_eq!(set.now().unwrap().version, 1, "nothing was committed");
    }
    assert_eq!(write(fine, &Place::Rows(rows(&[1])), 1, 2).unwrap(), 2);
    // Put back, it is what it was.
    fs::remove_file(inside("replaced")).unwrap();
    fs::rename(inside("elsewhere"), inside("replaced")).unwrap();
    assert_eq!(values(&bad[3], &rows(&[1])).unwrap(), [1]);
    for name in ["cut", "unlinked", "removed", "replaced"] {
        client.drop_set(name).unwrap();
    }
    assert_eq!(client.mutable_sets("").unwrap().len(), 1);
}

#[test]
fn a_sidecar_without_a_directory_for_sets_says_which_setting_it_wants() {
    let sidecar = Sidecar::start();
    let refused = sidecar.client().create_set(&spec().files(&at("replay"))).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::NoStorage));
    assert!(refused.to_string().contains("sets.root"), "{refused}");
}

#[test]
fn two_sidecars_never_have_one_directory_for_sets() {
    let (root, _sidecar) = started();
    let options = SidecarOptions::default().set("sets.root", root.path().display());
    let (status, log) = Sidecar::refused(options);
    assert!(!status.success() && log.contains(&root.path().display().to_string()), "{log}");
}

#[test]
fn more_files_than_may_be_open_are_opened_one_after_the_other() {
    let root = tempfile::tempdir().unwrap();
    let options =
        SidecarOptions::default().set("sets.root", root.path().display()).set("limits.setFiles", 16).admin();
    let sidecar = Sidecar::with(options);
    let client = sidecar.client();
    let keys: Vec<String> = (0..60).map(|key| format!("leaf-{key}")).collect();
    let spec = keys.iter().fold(SetSpec::new("many", 4), |spec, key| spec.leaf(key, DType::U8, &[8]));
    let set = client.create_set(&spec.files(&at("many"))).unwrap();
    for round in 1..4u8 {
        let row = [round; 8];
        let leaves = keys.iter().map(|key| (key.as_str(), &row[..])).collect();
        set.write(&Place::Rows(rows(&[2])), 1, &leaves, None).unwrap();
        let read = set.read(&[], &rows(&[2])).unwrap();
        assert!(read.leaves.iter().all(|(_, tensor)| tensor.to_vec() == row));
    }
    assert!(sidecar.metric("tensorlane_set_open_files", &[]) <= 16.0);
    assert_eq!(sidecar.metric("tensorlane_set_files_bytes", &[]), 60.0 * 32.0);
}

#[test]
fn a_map_of_rows_on_files_is_one_copy_that_no_commit_waits_for_and_no_cut_file_reaches() {
    const ROW: u64 = 1 << 20;
    const FRAMES: u64 = 24;
    let (root, sidecar) = started();
    let client = sidecar.client();
    let spec = SetSpec::new("frames", FRAMES).leaf("frame", DType::U8, &[ROW]);
    let set = client.create_set(&spec.files(&at("frames"))).unwrap();
    let fill = |value: u8| {
        let bytes = vec![value; usize::try_from(FRAMES * ROW).unwrap()];
        let leaves = BTreeMap::from([("frame", &bytes[..])]);
        set.write(&Place::Rows(Selection::All), FRAMES, &leaves, None).unwrap().version
    };
    let before = used(&client);
    assert_eq!(fill(7), 1);
    until("what was staged is gone", || used(&client) == before);
    // As few as are copied under their locks, and as many as are copied beside commits.
    let [few, all] = [Selection::Ranges(vec![Range::new(3, 5)]), Selection::All]
        .map(|rows| set.map(&["frame"], &rows).unwrap());
    assert!(!few.is_mapped() && !all.is_mapped());
    let taken = used(&client) - before;
    assert!((26 * ROW..27 * ROW).contains(&taken), "{taken} bytes for 26 rows");
    assert_eq!(fill(9), 2, "no commit waits for a copy");
    let file = fs::OpenOptions::new().write(true).open(root.path().join("frames/frame.memmap")).unwrap();
    file.set_len(0).unwrap();
    for (copy, count) in [(&few, 2), (&all, FRAMES)] {
        let bytes = copy.leaves[0].1.to_vec();
        assert_eq!((copy.version, bytes.len() as u64), (1, count * ROW));
        assert!(bytes.iter().all(|byte| *byte == 7), "it is what it was");
    }
    assert_eq!(reason(set.map(&["frame"], &Selection::All)), Reason::StorageFailed);
    client.drop_set("frames").unwrap();
    drop((few, all, set, client));
    sidecar.assert_all_free();
}

#[test]
fn rows_of_files_that_one_program_has_read_are_shown_to_others_without_another_copy() {
    let (_root, sidecar) = started();
    let client = sidecar.client();
    let set = client.create_set(&spec().files(&at("replay"))).unwrap();
    let before = used(&client);
    write(&set, &Place::Rows(Selection::All), ROWS, 7).unwrap();
    until("what was staged is gone", || used(&client) == before);
    let rows = set.map(&["obs"], &Selection::All).unwrap();
    let taken = used(&client);
    assert!(taken >= before + ROWS * 30_000, "{taken} after {before}");
    let reference = client.reference_of(&rows.leaves[0].1).unwrap().unwrap();
    let ticket = client.ticket(&reference, None, 1).unwrap();
    let [acquirer, redeemer] = [(); 2].map(|()| sidecar.client());
    let acquired = acquirer.acquire(&reference, &AcquireOptions::new()).unwrap();
    let redeemed = redeemer.redeem(&ticket, None).unwrap();
    assert_eq!(used(&client), taken, "no byte is copied again");
    drop(rows);
    assert_eq!(used(&client), taken, "it stays for those who have it");
    write(&set, &Place::Rows(Selection::All), ROWS, 9).unwrap();
    for shown in [&acquired, &redeemed] {
        let bytes = shown.to_vec();
        assert!(bytes.len() as u64 == ROWS * 30_000 && bytes.iter().all(|byte| *byte == 7));
    }
    drop((acquired, redeemed));
    until("the copy is gone", || used(&client) == before);
}

#[test]
fn maps_of_rows_on_files_beside_a_writer_never_show_half_a_commit() {
    const COMMITS: u8 = 30;
    let (_root, sidecar) = started();
    let client = sidecar.client();
    let set = client.create_set(&spec().files(&at("replay"))).unwrap();
    let everything = Place::Rows(Selection::All);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for value in 1..=COMMITS {
                assert_eq!(write(&set, &everything, ROWS, value).unwrap(), u64::from(value));
            }
        });
        while !writer.is_finished() {
            let rows = set.map(&[], &Selection::All).unwrap();
            let seen = values_of(&rows);
            let is_whole = seen.iter().all(|value| u64::from(*value) == rows.version);
            assert!(is_whole && !rows.is_mapped(), "version {} has {seen:?}", rows.version);
        }
        writer.join().unwrap();
    });
    assert_eq!(values(&set, &Selection::All).unwrap(), vec![COMMITS; usize::try_from(ROWS).unwrap()]);
}
