//! `tensorlane set` from outside: directories in and out, versions, and what goes wrong.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::command::Desk;

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
    assert!(desk.fails("set get policy --to model.safetensors --replace").contains("is no plain directory"));
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
