//! `tensorlane set` from outside: directories in and out, versions, and what goes wrong.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use tensorlane_client::set::mutable::Place;
use tensorlane_proto::Selection;
use tensorlane_tests::process::signal;
use tensorlane_tests::{SidecarOptions, until};

use super::command::{Desk, tensors};
use super::files::{file, header, start};

const ROOT: &str = r#"{"obs": {"device": "cpu", "shape": [4, 25000], "dtype": "torch.float32", "is_nested": false}, "a b": {"device": "cpu", "shape": [4], "dtype": "torch.uint8", "is_nested": false}, "next": {"type": "TensorDict"}, "label": {"type": "NonTensorData"}, "shape": [4], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>", "_format_version": 1, "_class": "tensordict:TensorDict"}"#;
const NEXT: &str = r#"{"none": {"device": "cpu", "shape": [4, 0], "dtype": "torch.int64", "is_nested": false}, "shape": [4], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>", "_format_version": 1, "_class": "tensordict:TensorDict"}"#;
const LABEL: &str = r#"{"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "data": "Gr\u00f6\u00dfe", "_metadata": null, "_is_non_tensor": true}"#;

/// A directory as tensordict 0.15.3 saves it.
fn save(folder: &Path) {
    let obs: Vec<u8> = (0..400_000_u32).map(|at| (at % 251) as u8).collect();
    for below in ["next", "label"] {
        fs::create_dir_all(folder.join(below)).unwrap();
    }
    let files: [(&str, &[u8]); 5] = [
        ("meta.json", ROOT.as_bytes()),
        ("next/meta.json", NEXT.as_bytes()),
        ("label/meta.json", LABEL.as_bytes()),
        ("obs.memmap", &obs),
        ("a%20b.memmap", &[1, 2, 3, 4]),
    ];
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

/// Every file below a directory with its bytes.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else {
            found.push((name, fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

fn desk() -> Desk {
    let desk = Desk::new();
    save(&desk.path("saved"));
    desk
}

/// The result of a call that gets a set into a file, which has no batch shapes and says so.
fn flat(desk: &Desk, line: &str) -> Value {
    let called = desk.call(&format!("-o json {line}"));
    assert!(called.code == 0 && called.errors.contains("parts of the set are left out"), "{}", called.errors);
    serde_json::from_str(&called.out).unwrap()
}

#[test]
fn a_directory_goes_through_the_exchange_byte_for_byte() {
    let desk = desk();
    let put = desk.json("set put saved --name policy");
    assert_eq!((&put["version"], &put["bytes"]), (&json!(1), &json!(400_004)));
    let keys: Vec<&Value> = put["tensors"].as_array().unwrap().iter().map(|tensor| &tensor["key"]).collect();
    assert_eq!(keys, ["obs", "a b", "next/none"]);
    let got = desk.json("set get policy --to got");
    assert_eq!((&got["version"], &got["as_bytes"], &got["to"]), (&json!(1), &json!([]), &json!("got")));
    assert_eq!(files(&desk.path("got")), files(&desk.path("saved")));
    let left = fs::read_dir(desk.path("."))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains(".tl-"));
    assert_eq!(left.count(), 0, "nothing is left of the directory in the making");
}

#[test]
fn a_leaf_without_elements_goes_through_the_exchange_by_a_key_that_is_too_long_for_a_file() {
    let desk = desk();
    let (next, long) = (desk.path("saved/next/meta.json"), "n".repeat(255));
    fs::write(&next, NEXT.replace("\"none\"", &format!("{long:?}"))).unwrap();
    let put = desk.json("set put saved --name policy");
    assert_eq!(put["tensors"][2]["key"], format!("next/{long}"));
    desk.works("set get policy --to got");
    assert_eq!(files(&desk.path("got")), files(&desk.path("saved")));
    // One with elements would have a file.
    fs::write(&next, NEXT.replace("\"none\"", &format!("{:?}", &long[..249])).replace("[4, 0]", "[4]"))
        .unwrap();
    assert!(desk.fails("set put saved --name policy").contains("too long for the name of a file"));
}

#[test]
fn versions_are_listed_kept_and_expected() {
    let desk = desk();
    for _ in 0..3 {
        desk.works("set put saved --name policy");
    }
    assert_eq!(desk.works("set ls"), "policy@2  3 tensors, 390.6 KiB\npolicy@3  3 tensors, 390.6 KiB\n");
    let listed = desk.json("set ls pol");
    assert_eq!(listed["sets"][0]["versions"][1]["version"], 3);
    let refused = desk.fails("set put saved --name policy --expects 2");
    assert!(
        refused.contains("VERSION_CHANGED: version 3 of policy cannot be published: the latest is 3"),
        "{refused}"
    );
    assert_eq!(desk.json("set put saved --name policy --expects 3 --keep 1")["version"], 4);
    assert_eq!(desk.works("ls").lines().count(), 3, "a head, policy and policy@4");
    assert!(desk.fails("set get policy@3").contains("NOT_FOUND"));
    assert_eq!(desk.json("set ls other")["sets"], json!([]));
}

#[test]
fn a_directory_that_is_there_is_replaced_only_where_that_is_said_and_it_is_a_set() {
    let desk = desk();
    desk.works("set put saved --name policy");
    desk.works("set get policy --to got");
    assert!(desk.fails("set get policy --to got").contains("got exists; name another directory"));
    fs::write(desk.path("got/obs.memmap"), b"old").unwrap();
    desk.works("set get policy --to got --replace");
    assert_eq!(files(&desk.path("got")), files(&desk.path("saved")));
    fs::create_dir(desk.path("mine")).unwrap();
    fs::write(desk.path("mine/letter"), b"x").unwrap();
    assert!(desk.fails("set get policy --to mine --replace").contains("is no set"));
    assert!(desk.fails("set get policy --to mine/letter --replace").contains("is no plain directory"));
    assert_eq!(fs::read(desk.path("mine/letter")).unwrap(), b"x");
}

#[test]
fn a_directory_that_is_not_whole_publishes_nothing() {
    let desk = desk();
    fs::write(desk.path("saved/obs.memmap"), b"short").unwrap();
    let refused = desk.fails("set put saved --name policy");
    assert!(refused.contains("saved/obs.memmap has 5 bytes and its tensor 400000"), "{refused}");
    assert!(desk.fails("set put nowhere --name policy").contains("nowhere: No such file"));
    assert_eq!(desk.json("ls"), json!([]));
}

#[test]
fn a_tensor_is_no_set() {
    let desk = desk();
    desk.works("put model.safetensors --name m");
    let refused = desk.fails("set get m/w");
    assert!(refused.contains("NOT_A_SET: m/w is a tensor (f32[2, 3]) and no set"), "{refused}");
    assert!(desk.fails("set put saved --name m/w").contains("NAME_TAKEN"));
}

#[test]
fn a_set_is_no_tensor_to_get_and_is_left_out_of_what_is_below_a_name() {
    let desk = desk();
    desk.works("set put saved --name p/policy");
    let refused = "error: p/policy is a set, and get takes tensors: `tensorlane set get p/policy`\n";
    for line in ["get p/policy", "get p/policy --to x.safetensors", "get -r p --to x.safetensors"] {
        assert_eq!(desk.fails(line), refused, "{line}");
    }
    assert!(!desk.path("x.safetensors").exists());
    let listed = desk.works("ls");
    assert!(listed.lines().any(|line| line.split_whitespace().take(2).eq(["p/policy", "set"])), "{listed}");
    desk.works("put model.safetensors --name p/m");
    let called = desk.call("get -r p --to x.safetensors");
    assert_eq!(called.code, 0, "{}", called.errors);
    assert!(
        called.errors.starts_with("warning: p/policy is a set") && called.errors.ends_with("; left out\n"),
        "{}",
        called.errors
    );
    assert_eq!(tensors(&desk.path("x.safetensors")).len(), 2);
    let called = desk.call("-o json get -r p");
    let got: Value = serde_json::from_str(&called.out).unwrap();
    assert_eq!(got["sets_left_out"], json!(["p/policy", "p/policy@1"]));
    assert!(
        desk.fails("get -r p --to y.safetensors --strict").contains("without --strict they are left out")
    );
    assert!(!desk.path("y.safetensors").exists());
}

#[test]
fn a_mutable_set_is_made_shown_and_dropped() {
    let desk = Desk::new();
    let made = desk.works(
        "set create replay --rows 100 --leaf obs:u8:48,48,3 --leaf next/reward:f32 --writers rollout-*",
    );
    let mut lines = made.lines();
    let line = "replay  100 rows of 2 leaves, 675.4 KiB, at version 0";
    assert_eq!(lines.next(), Some(line), "{made}");
    assert!(lines.next().unwrap().starts_with("ts1:"));
    assert_eq!(desk.works("set ls"), format!("{line}\n"));
    let shown = desk.works("set stat rep");
    for part in [
        line,
        "  held     0 B",
        "  next     row 0",
        "of other peers rollout-*",
        "  obs  u8[48, 48, 3]",
        "  next/reward  f32[]",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let json = &desk.json("set stat")["sets"][0];
    let leaf = json!({ "key": "obs", "dtype": "u8", "row_shape": [48, 48, 3] });
    assert_eq!((&json["leaves"][0], &json["version"], &json["rows"]), (&leaf, &json!(0), &json!(100)));
    assert_eq!(&desk.json("set ls")["mutable"][0], json);
    // As the set of a peer is called.
    let peer = desk.json("status")["peer"].as_str().unwrap().to_owned();
    assert_eq!(&desk.json(&format!("set stat {peer}/replay"))["sets"][0], json);
    let none = desk.fails("set stat other");
    assert!(none.contains("begins with \"other\", and none of another peer is called so"), "{none}");
    let refused = desk.fails("set create replay --rows 1 --leaf a:u8");
    assert!(refused.contains("NAME_TAKEN: a mutable set replay is here already"), "{refused}");
    assert_eq!(desk.json("set drop replay")["dropped"], "replay");
    assert_eq!(desk.json("set stat")["sets"], json!([]));
    assert!(desk.fails("set drop replay").contains("NOT_FOUND"));
    let misuse = desk.call("set create replay --rows 1 --leaf a:u7");
    assert!(misuse.code == 2 && misuse.errors.contains("u7"), "{}", misuse.errors);
    desk.sidecar.assert_all_free();
}

#[test]
fn a_set_on_files_is_made_and_shown_and_its_directory_stays_and_is_opened() {
    let root = tempfile::tempdir().unwrap();
    let desk = Desk::with(SidecarOptions::default().set("sets.root", root.path().display()));
    desk.works("set create replay --files data --rows 100 --leaf next/reward:f32");
    let shown = desk.works("set stat");
    assert!(shown.contains("  files    data, durability process") && !shown.contains("held"), "{shown}");
    let json = &desk.json("set stat")["sets"][0];
    assert_eq!((&json["files"]["directory"], &json["torn_rows"]), (&json!("data"), &json!(0)));
    assert!(
        desk.fails("set create b --files data --rows 1 --leaf a:u8")
            .contains("NAME_TAKEN: the directory data")
    );
    desk.works("set drop replay");
    assert_eq!(fs::metadata(root.path().join("data/next/reward.memmap")).unwrap().len(), 400);
    let opened = desk.works("set create again --files data --open");
    assert!(opened.starts_with("again  100 rows of 1 leaf, 400 B, at version 0"), "{opened}");
    desk.works("set create c --files c --rows 1 --leaf a:u8 --durability disk");
    assert!(desk.works("set stat c").contains("  files    c, durability disk"));
    assert!(root.path().join("c/.tensorlane/journal").is_file());
    let misuse = desk.call("set create c --rows 1 --open");
    assert!(misuse.code == 2 && misuse.errors.contains("--files"), "{}", misuse.errors);
}

#[test]
fn a_get_of_a_set_that_is_ended_by_a_signal_leaves_no_directory() {
    let desk = desk();
    let (obs, bytes) = (desk.path("saved/obs.memmap"), 64_u64 << 20);
    fs::File::create(&obs).unwrap().set_len(bytes).unwrap();
    fs::write(desk.path("saved/meta.json"), ROOT.replace("25000", &(bytes / 16).to_string())).unwrap();
    desk.works("set put saved --name policy");
    let in_making = || {
        let entries = fs::read_dir(desk.path(".")).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.to_string_lossy().contains(".tl-")).collect::<Vec<_>>()
    };
    for which in [Signal::INT, Signal::TERM] {
        // A get may be done before it is noticed; where disks are busy each takes its time.
        let is_ended = (0..100).any(|_| {
            let mut get = start(&desk, "set get policy --to got");
            until("a directory is in the making, or the get is over", || {
                !in_making().is_empty() || get.try_wait().unwrap().is_some()
            });
            if get.try_wait().unwrap().is_none() {
                signal(get.id(), which);
            }
            let ended = get.wait().unwrap().signal();
            assert!(in_making().is_empty(), "{which:?}: {:?}", in_making());
            let is_whole = fs::remove_dir_all(desk.path("got")).is_ok();
            !is_whole && ended == Some(which.as_raw())
        });
        assert!(is_ended, "no get was ended by {which:?} while it wrote");
    }
    desk.works("set get policy --to got");
    assert_eq!(fs::metadata(desk.path("got/obs.memmap")).unwrap().len(), bytes);
}

#[test]
fn small_tensors_of_sets_share_a_segment() {
    let desk = Desk::with(SidecarOptions::default().set("arena.size", "256Mi"));
    let root = r#"{"a": {"device": "cpu", "shape": [4], "dtype": "torch.uint8", "is_nested": false}, "shape": [4], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}"#;
    fs::create_dir(desk.path("small")).unwrap();
    fs::write(desk.path("small/meta.json"), root).unwrap();
    fs::write(desk.path("small/a.memmap"), [1, 2, 3, 4]).unwrap();
    // A segment each would be more than there are.
    for at in 0..8 {
        desk.works(&format!("set put small --name s{at} --deadline 10s"));
    }
    desk.works("set get s7 --to got");
    assert_eq!(fs::read(desk.path("got/a.memmap")).unwrap(), [1, 2, 3, 4]);
    desk.works("rm -r --all");
    desk.sidecar.assert_all_free();
}

#[test]
fn a_set_that_takes_the_place_of_another_has_its_mode() {
    let desk = desk();
    desk.works("set put saved --name s");
    desk.works("set get s --to got");
    fs::set_permissions(desk.path("got"), fs::Permissions::from_mode(0o700)).unwrap();
    desk.works("set get s --to got --replace");
    assert_eq!(fs::metadata(desk.path("got")).unwrap().permissions().mode() & 0o7777, 0o700);
    desk.works("rm -r --all");
    desk.sidecar.assert_all_free();
}

#[test]
fn a_safetensors_file_is_a_set_and_a_set_is_a_safetensors_file() {
    let desk = desk();
    desk.works("set put model.safetensors --name model --checksum");
    let got = desk.json("set get model --to copy.safetensors");
    assert_eq!((&got["version"], got["tensors"].as_array().unwrap().len()), (&json!(1), 2));
    assert_eq!(tensors(&desk.path("copy.safetensors")), tensors(&desk.path("model.safetensors")));
    // Trees are dotted names, and values are metadata.
    desk.works("set put saved --name policy");
    flat(&desk, "set get policy --to policy.safetensors");
    let refused = desk.fails("set get policy --to policy.safetensors");
    assert!(refused.contains("policy.safetensors exists; name another file"), "{refused}");
    flat(&desk, "set get policy --to policy.safetensors --replace");
    let put = desk.json("set put policy.safetensors --name again");
    let mut keys: Vec<&str> =
        put["tensors"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a b", "next.none", "obs"]);
    desk.works("set get again --to again");
    for name in ["obs.memmap", "a%20b.memmap"] {
        let read = |folder: &str| fs::read(desk.path(folder).join(name)).unwrap();
        assert_eq!(read("again"), read("saved"), "{name}");
    }
    let label = |folder: &str| {
        let meta = fs::read(desk.path(folder).join("label/meta.json")).unwrap();
        serde_json::from_slice::<Value>(&meta).unwrap()["data"].clone()
    };
    assert_eq!(label("again"), label("saved"));
    fs::write(desk.path("cut.safetensors"), b"1234567").unwrap();
    assert!(desk.fails("set put cut.safetensors --name cut").contains("is not a safetensors file"));
    desk.works("rm -r --all");
    desk.sidecar.assert_all_free();
}

#[test]
fn an_archive_goes_through_the_exchange_with_the_files_of_its_directory() {
    let desk = desk();
    desk.works("set put saved --name policy");
    let got = desk.json("set get policy --to got.tdz --strict");
    assert_eq!((&got["version"], &got["left_out"], &got["bytes"]), (&json!(1), &json!([]), &json!(400_004)));
    let refused = desk.fails("set get policy --to got.tdz");
    assert!(refused.contains("got.tdz exists; name another file"), "{refused}");
    fs::set_permissions(desk.path("got.tdz"), fs::Permissions::from_mode(0o600)).unwrap();
    desk.works("set get policy --to got.tdz --replace");
    assert_eq!(fs::metadata(desk.path("got.tdz")).unwrap().permissions().mode() & 0o7777, 0o600);
    fs::create_dir(desk.path("temporary")).unwrap();
    let mut put = desk.command("set put got.tdz --name again --checksum".split(' '));
    let put = put.env("TMPDIR", desk.path("temporary")).output().unwrap();
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    assert_eq!(fs::read_dir(desk.path("temporary")).unwrap().count(), 0, "nothing is left there");
    desk.works("set get again --to got");
    assert_eq!(files(&desk.path("got")), files(&desk.path("saved")));
    let left = fs::read_dir(desk.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains(".part")).collect();
    assert!(left.is_empty(), "{left:?}");
    // Rows of a mutable set, too.
    desk.works("set create replay --rows 4 --leaf obs:u8:2");
    assert_eq!(desk.json("set get replay --rows 0,2 --to rows.tdz")["bytes"], 4);
    desk.works("set put rows.tdz --name rows");
    desk.works("set drop replay");
    desk.works("rm -r --all");
    desk.sidecar.assert_all_free();
}

#[test]
fn an_archive_that_is_damaged_or_not_whole_publishes_nothing() {
    let desk = desk();
    desk.works("set put saved --name policy");
    desk.works("set get policy --to got.tdz");
    desk.works("rm -r --all");
    let whole = fs::read(desk.path("got.tdz")).unwrap();
    fs::write(desk.path("cut.tdz"), &whole[..whole.len() - 1]).unwrap();
    let refused = desk.fails("set put cut.tdz --name policy");
    assert!(refused.contains("cut.tdz is damaged, or no archive of tensordict"), "{refused}");
    // The shape that a `meta.json` says, in as many bytes.
    let shape = whole.windows(10).position(|ten| ten == b"[4, 25000]").unwrap();
    let mut changed = whole.clone();
    changed[shape + 1] = b'5';
    fs::write(desk.path("changed.tdz"), changed).unwrap();
    let refused = desk.fails("set put changed.tdz --name policy");
    assert!(refused.contains("the checksum of \"meta.json\" is another one"), "{refused}");
    assert!(desk.fails("set put none.tdz --name policy").contains("none.tdz: No such file"));
    assert_eq!(desk.json("ls"), json!([]));
    desk.sidecar.assert_all_free();
}

#[test]
fn texts_of_a_file_go_through_a_set_byte_for_byte() {
    let desk = Desk::new();
    let metadata =
        json!({"version": "1.10", "x": "1e3", "cfg": r#"{"b":1, "a":2}"#, "n": "7", "format": "pt"});
    fs::write(desk.path("one.safetensors"), file(&[("t", "U8", &[1], b"1")], &metadata)).unwrap();
    desk.works("set put one.safetensors --name one");
    let got = desk.json("set get one --to two.safetensors --strict");
    assert_eq!(got["left_out"], json!([]));
    let (written, _) = header(&fs::read(desk.path("two.safetensors")).unwrap());
    assert_eq!(written["__metadata__"], metadata);
}

#[test]
fn parts_of_a_set_that_a_file_cannot_hold_are_told_and_refused_if_asked() {
    let desk = desk();
    desk.works("set put saved --name policy");
    let refused = desk.fails("set get policy --to policy.safetensors --strict");
    assert!(
        refused.contains(r#"parts of the set are left out: "" (the batch shape [4]), "next" (the"#),
        "{refused}"
    );
    assert!(!desk.path("policy.safetensors").exists());
    let got = flat(&desk, "set get policy --to policy.safetensors");
    let why = "the batch shape [4]";
    assert_eq!(got["left_out"], json!([{"key": "", "why": why}, {"key": "next", "why": why}]));
    // A directory has all of it.
    assert_eq!(desk.json("set get policy --to copy --strict")["left_out"], json!([]));
}

#[test]
fn two_keys_that_are_one_in_a_file_are_refused_and_no_file_is_left() {
    let desk = desk();
    let leaf = r#"{"device": "cpu", "shape": [1], "dtype": "torch.uint8", "is_nested": false}"#;
    let end = r#""shape": [1], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}"#;
    fs::create_dir_all(desk.path("two/a")).unwrap();
    let root = format!(r#"{{"a.b": {leaf}, "a": {{"type": "TensorDict"}}, {end}"#);
    fs::write(desk.path("two/meta.json"), root).unwrap();
    fs::write(desk.path("two/a/meta.json"), format!(r#"{{"b": {leaf}, {end}"#)).unwrap();
    fs::write(desk.path("two/a.b.memmap"), [1]).unwrap();
    fs::write(desk.path("two/a/b.memmap"), [2]).unwrap();
    desk.works("set put two --name two");
    let refused = desk.fails("set get two --to two.safetensors");
    assert!(refused.contains(r#"a.b and a/b would both be "a.b" in the file"#), "{refused}");
    assert!(!desk.path("two.safetensors").exists());
}

#[test]
fn what_is_wrong_with_a_directory_is_listed_and_a_whole_one_is_whole() {
    let desk = desk();
    let whole = desk.works("set verify saved");
    assert!(whole.starts_with("saved is whole: 3 tensors, 390.6 KiB"), "{whole}");
    desk.works("set put saved --name policy --checksum");
    let named = desk.json("set verify policy");
    assert_eq!(
        (&named["whole"], &named["tensors"], &named["checksums"]),
        (&json!(true), &json!(3), &json!(2))
    );
    fs::write(desk.path("saved/obs.memmap"), b"short").unwrap();
    fs::write(desk.path("saved/a%20b.memmap"), b"12345").unwrap();
    fs::remove_file(desk.path("saved/next/meta.json")).unwrap();
    let called = desk.call("-o json set verify saved");
    assert_eq!(called.code, 1, "{}", called.errors);
    let told: Value = serde_json::from_str(&called.out).unwrap();
    let word = |fault: &Value, key: &str| fault[key].as_str().unwrap().to_owned();
    let mut faults: Vec<(String, String)> = told["faults"]
        .as_array()
        .unwrap()
        .iter()
        .map(|fault| (word(fault, "kind"), word(fault, "at")))
        .collect();
    faults.sort_unstable();
    let all = [
        ("missing", "saved/next/meta.json"),
        ("too_long", "saved/a%20b.memmap"),
        ("too_short", "saved/obs.memmap"),
    ];
    assert_eq!(faults, all.map(|(kind, at)| (kind.to_owned(), at.to_owned())));
    let called = desk.call("set verify saved");
    assert!(called.code == 1 && called.out.ends_with("saved has 3 faults\n"), "{}", called.out);
    assert!(desk.fails("set verify nothing").contains("NOT_FOUND"));
}

#[test]
fn some_rows_and_leaves_of_a_mutable_set_are_got_into_a_file_and_a_directory() {
    let desk = Desk::new();
    let made = desk.json("set create replay --rows 100 --leaf obs:u8:48,48,3 --leaf next/reward:f32");
    let client = desk.sidecar.client();
    let set = client.open_mutable_set("replay").unwrap();
    let rewards: Vec<u8> = (0..100_u32).flat_map(|row| (row as f32).to_le_bytes()).collect();
    let leaves = BTreeMap::from([("next/reward", &rewards[..])]);
    set.write(&Place::Rows(Selection::All), 100, &leaves, None).unwrap();
    // A sealed set has the name, too, and no rows to choose.
    desk.works("set snapshot replay");
    let got = flat(&desk, "set get replay --rows 7,3,10-11 --key next/reward --to rows.safetensors");
    assert_eq!((&got["version"], &got["tensors"][0]["shape"]), (&json!(1), &json!([4])));
    let file = fs::read(desk.path("rows.safetensors")).unwrap();
    let rows = [7_f32, 3.0, 10.0, 11.0].map(f32::to_le_bytes).concat();
    assert!(file.ends_with(&rows));
    desk.works("set get replay --part 90:100:3 --to rows");
    let reward = fs::read(desk.path("rows/next/reward.memmap")).unwrap();
    assert_eq!(reward, [90_f32, 93.0, 96.0, 99.0].map(f32::to_le_bytes).concat());
    assert_eq!(fs::metadata(desk.path("rows/obs.memmap")).unwrap().len(), 4 * 48 * 48 * 3);
    assert_eq!(desk.json("set verify rows")["whole"], json!(true));
    let reference = made["reference"].as_str().unwrap();
    assert_eq!(desk.json(&format!("set get {reference} --key obs --rows 1"))["bytes"], 48 * 48 * 3);
    for (words, reason) in [
        ("set get replay --rows 100", "SELECTION_OUT_OF_RANGE"),
        ("set get replay --part 0:1,0:1", "SELECTION_OUT_OF_RANGE"),
        ("set get replay --key action", "SET_MISMATCH"),
        ("set get replay --key obs --key obs", "INVALID_ARGUMENT"),
        ("set get none --rows 1", "NOT_FOUND"),
    ] {
        assert!(desk.fails(words).contains(reason), "{words}");
    }
    let sealed = desk.json("set ls")["sets"][0]["versions"][0]["reference"].as_str().unwrap().to_owned();
    assert!(desk.fails(&format!("set get {sealed} --rows 1")).contains("a sealed one"));
    let some = desk.json(&format!("set get {sealed} --key next"));
    assert_eq!((&some["tensors"][0]["key"], &some["bytes"]), (&json!("next/reward"), &json!(400)));
}

#[test]
fn some_keys_of_a_sealed_set_are_got_into_a_directory() {
    let desk = desk();
    desk.works("set put saved --name data");
    let got = desk.json("set get data --key a* --key next --key label --to some");
    assert_eq!(got["bytes"], json!(4));
    let names: Vec<_> = files(&desk.path("some")).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a%20b.memmap", "label/meta.json", "meta.json", "next/meta.json"]);
    assert!(desk.fails("set get data --key none").contains("SET_MISMATCH"));
    assert!(desk.fails("set get other --key obs").contains("NOT_FOUND"));
}

#[test]
fn a_mutable_set_is_got_into_a_directory_and_its_snapshot_is_a_version() {
    let desk = Desk::new();
    desk.works("set create replay --rows 100 --leaf obs:u8:48,48,3 --leaf next/reward:f32");
    assert_eq!(desk.json("set get replay --to rows")["version"], 0);
    assert_eq!(fs::metadata(desk.path("rows/next/reward.memmap")).unwrap().len(), 400);
    assert_eq!(desk.json("set verify rows")["whole"], json!(true));
    let published = desk.json("set snapshot replay frozen --keep 1");
    assert_eq!(
        (&published["name"], &published["version"], &published["set_version"]),
        (&json!("frozen"), &json!(1), &json!(0))
    );
    desk.works("set get frozen --to frozen");
    assert_eq!(files(&desk.path("frozen")), files(&desk.path("rows")));
    assert_eq!(desk.json("set snapshot replay")["name"], "replay");
    assert!(desk.fails("set snapshot none --wait 10ms").contains("NOT_FOUND"));
    assert_eq!(desk.json("set verify replay@1")["tensors"], 2);
    desk.works("rm -r --all");
    desk.works("set drop replay");
    desk.sidecar.assert_all_free();
}

#[test]
fn a_name_is_the_live_set_and_a_version_of_it_is_a_snapshot() {
    let desk = Desk::new();
    desk.works("set create replay --rows 2 --leaf x:u8");
    desk.works("set snapshot replay");
    let client = desk.sidecar.client();
    let set = client.open_mutable_set("replay").unwrap();
    set.write(&Place::Rows(Selection::All), 2, &BTreeMap::from([("x", &[7, 7][..])]), None).unwrap();
    set.write(&Place::Rows(Selection::All), 2, &BTreeMap::from([("x", &[8, 8][..])]), None).unwrap();
    let got = |what: &str, to: &str| {
        let version = desk.json(&format!("set get {what} --to {to}"))["version"].clone();
        (version, fs::read(desk.path(&format!("{to}/x.memmap"))).unwrap())
    };
    assert_eq!(got("replay", "live"), (json!(2), vec![8, 8]));
    assert_eq!(got("replay@1", "frozen"), (json!(1), vec![0, 0]));
    desk.works("set drop replay");
    // Another one of the name has more rows than the snapshot.
    let made = desk.json("set create replay --rows 3 --leaf x:u8");
    let bytes = |what: &str| desk.json(&format!("set verify {what}"))["bytes"].clone();
    assert_eq!([bytes("replay"), bytes("replay@1")], [json!(3), json!(2)]);
    let reference = made["reference"].as_str().unwrap();
    assert_eq!(bytes(reference), json!(3));
    desk.works("set drop replay");
    assert_eq!(bytes("replay"), json!(2), "the latest version, as there is no mutable set");
    assert!(desk.fails(&format!("set verify {reference}")).contains("NOT_FOUND"));
    assert_eq!(got("replay", "left"), (json!(1), vec![0, 0]));
}
