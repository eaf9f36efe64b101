//! Files that replace each other under the same names: whoever gets them has one of them, whole.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;
use tensorlane_tests::sidecar::{SidecarOptions, bin_dir};
use tensorlane_tests::wait::SetOnDrop;
use tensorlane_tests::{Sidecar, until};

/// Tensors of a file: enough that a step for each leaves room between two.
const TENSORS: usize = 60;
/// Bytes of each; the last is larger than what goes inside of a request.
const SMALL: usize = 512;
const LARGE: usize = 100_000;
/// Gets beside the puts.
const GETS: usize = 40;

/// A file of tensors in which every byte is `generation`.
fn write(path: &Path, generation: u8, sizes: &[usize]) {
    let mut at = 0;
    let tensors = sizes.iter().enumerate().map(|(i, bytes)| {
        let begin = at;
        at += bytes;
        format!(r#""t{i:03}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{begin},{at}]}}"#)
    });
    let header = format!("{{{}}}", tensors.collect::<Vec<_>>().join(","));
    let mut file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    file.resize(file.len() + at, generation);
    std::fs::write(path, file).unwrap();
}

/// The bytes of all tensors of a file.
fn data(path: &Path) -> Vec<u8> {
    let file = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap());
    file[8 + header as usize..].to_vec()
}

fn tensorlane(sidecar: &Sidecar, folder: &TempDir, line: &str) -> Command {
    let mut command = Command::new(bin_dir().join("tensorlane"));
    command.args(line.split(' ')).current_dir(folder.path()).env_clear();
    command.env("TENSORLANE_SOCKETS", sidecar.sockets()).stdin(Stdio::null());
    command
}

fn works(sidecar: &Sidecar, folder: &TempDir, line: &str) {
    let output = tensorlane(sidecar, folder, line).output().expect("the command's binary");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A call that works, and its result and warnings.
fn told(sidecar: &Sidecar, folder: &TempDir, line: &str) -> (Value, String) {
    let output =
        tensorlane(sidecar, folder, &format!("-o json {line}")).output().expect("the command's binary");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {errors}");
    (serde_json::from_slice(&output.stdout).unwrap(), errors)
}

/// Gets that are right, of [`GETS`], beside puts of both files in turn with these options.
fn right_beside_puts(sidecar: &Sidecar, folder: &TempDir, options: &str, get: impl Fn() -> bool) -> usize {
    works(sidecar, folder, "put 1.safetensors --name gen");
    let put = |generation: u8| {
        works(sidecar, folder, &format!("put {generation}.safetensors --name gen {options}"));
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = SetOnDrop(&over);
        let writer = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                put(2);
                put(1);
            }
        });
        let right = (0..GETS).filter(|_| get()).count();
        drop(end);
        writer.join().unwrap();
        right
    })
}

#[test]
fn a_get_of_a_prefix_beside_puts_that_prune_is_of_one_file() {
    let (sidecar, folder) = (Sidecar::start(), tempfile::tempdir().unwrap());
    let sizes = [vec![SMALL; TENSORS], vec![LARGE, SMALL]].concat();
    // The second lacks a tensor of the first.
    let of = |generation: u8| &sizes[..sizes.len() + 1 - usize::from(generation)];
    for generation in [1, 2] {
        write(&folder.path().join(format!("{generation}.safetensors")), generation, of(generation));
    }
    let whole = right_beside_puts(&sidecar, &folder, "--replace --prune", || {
        let got = tensorlane(&sidecar, &folder, "get -r gen --to out.safetensors").output().unwrap();
        let bytes = got.status.success().then(|| data(&folder.path().join("out.safetensors")));
        bytes.is_some_and(|bytes| {
            bytes.len() == of(bytes[0]).iter().sum::<usize>() && bytes.windows(2).all(|two| two[0] == two[1])
        })
    });
    assert_eq!(whole, GETS, "gets that were of one file");
    works(&sidecar, &folder, "rm -r gen");
    sidecar.assert_all_free();
}

#[test]
fn a_get_of_several_names_beside_puts_is_of_one_file_also_where_their_shapes_change() {
    let (sidecar, folder) = (Sidecar::start(), tempfile::tempdir().unwrap());
    let sizes = |generation: u8| [SMALL * usize::from(generation); 2];
    for generation in [1, 2] {
        write(&folder.path().join(format!("{generation}.safetensors")), generation, &sizes(generation));
    }
    let whole = right_beside_puts(&sidecar, &folder, "--replace", || {
        works(&sidecar, &folder, "get gen/t000 gen/t001 --to out.safetensors");
        let bytes = data(&folder.path().join("out.safetensors"));
        bytes == vec![bytes[0]; sizes(bytes[0]).iter().sum()]
    });
    assert_eq!(whole, GETS, "gets that were of one file");
    works(&sidecar, &folder, "rm -r gen");
    sidecar.assert_all_free();
}

#[test]
fn a_get_of_several_prefixes_beside_puts_is_of_one_file() {
    let (sidecar, folder) = (Sidecar::start(), tempfile::tempdir().unwrap());
    for generation in [1, 2] {
        write(&folder.path().join(format!("{generation}.safetensors")), generation, &[SMALL; 3]);
    }
    let right = right_beside_puts(&sidecar, &folder, "--replace", || {
        let line = "get -r gen/t000 gen/t001 gen/t002 --to out.safetensors";
        let got = tensorlane(&sidecar, &folder, line).output().unwrap();
        if !got.status.success() {
            // Where the machine lets it have no turn between two puts, it says so.
            return String::from_utf8_lossy(&got.stderr).contains("is replaced faster than it can be leased");
        }
        let bytes = data(&folder.path().join("out.safetensors"));
        bytes == vec![bytes[0]; 3 * SMALL]
    });
    assert_eq!(right, GETS, "gets that were of one file, or said that they could not be");
    works(&sidecar, &folder, "rm -r gen");
    sidecar.assert_all_free();
}

#[test]
fn a_put_tells_which_names_of_an_older_file_stay_and_takes_them_away_where_it_is_asked() {
    let (sidecar, folder) = (Sidecar::start(), tempfile::tempdir().unwrap());
    let sizes = [SMALL; 4];
    for (generation, tensors) in [(1, 4), (2, 2)] {
        write(&folder.path().join(format!("{generation}.safetensors")), generation, &sizes[..tensors]);
    }
    works(&sidecar, &folder, "put 1.safetensors --name gen");
    works(&sidecar, &folder, "set put 1.safetensors --name gen/policy");
    let names = || {
        let (listed, _) = told(&sidecar, &folder, "ls gen/t");
        listed.as_array().unwrap().iter().map(|one| one["name"].clone()).collect::<Vec<_>>()
    };
    let stale = json!(["gen/t002", "gen/t003"]);
    let line = "put 2.safetensors --name gen --replace";
    let strict = tensorlane(&sidecar, &folder, &format!("{line} --strict")).output().unwrap();
    let refused = String::from_utf8_lossy(&strict.stderr).into_owned();
    assert!(!strict.status.success() && refused.contains("has no tensor for gen/t002"), "{refused}");
    works(&sidecar, &folder, "get -r gen --to out.safetensors");
    assert_eq!(data(&folder.path().join("out.safetensors")), vec![1; 4 * SMALL]);
    let (put, warned) = told(&sidecar, &folder, line);
    assert_eq!((&put["others_below"], &put["pruned"]), (&stale, &json!([])));
    assert!(warned.contains("gen/t002 and 1 more below gen stay"), "{warned}");
    assert_eq!(names().len(), 4);
    let (put, warned) = told(&sidecar, &folder, &format!("{line} --prune --strict"));
    assert_eq!((&put["others_below"], &put["pruned"]), (&json!([]), &stale));
    assert_eq!((names(), warned.as_str()), (vec![json!("gen/t000"), json!("gen/t001")], ""));
    // A set is got as a whole, and not by a prefix.
    works(&sidecar, &folder, "set get gen/policy");
    works(&sidecar, &folder, "rm -r gen");
    sidecar.assert_all_free();
}

#[test]
fn a_put_of_more_names_than_one_step_takes_puts_nothing() {
    let (sidecar, folder) = (Sidecar::start(), tempfile::tempdir().unwrap());
    write(&folder.path().join("1.safetensors"), 1, &vec![1; 33_000]);
    let line = format!("put 1.safetensors --name {}", "x".repeat(500));
    let refused = tensorlane(&sidecar, &folder, &line).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("takes 33000 names in one step"), "{said}");
    sidecar.assert_all_free();
}

#[test]
fn a_put_that_is_killed_between_its_tensors_leaves_no_name_and_no_tensor() {
    const SEGMENT: usize = 16 << 20;
    let options = SidecarOptions::default().set("arena.size", 4 * SEGMENT).set("arena.segment", SEGMENT);
    let (sidecar, folder) = (Sidecar::with(options), tempfile::tempdir().unwrap());
    write(&folder.path().join("1.safetensors"), 1, &[LARGE, LARGE]);
    works(&sidecar, &folder, "put 1.safetensors --name gen");
    // The first has room, also in a segment of its own; one of the others waits for room that does not come.
    write(&folder.path().join("2.safetensors"), 2, &[LARGE, SEGMENT, SEGMENT, SEGMENT, SEGMENT]);
    let line = "put 2.safetensors --name gen --replace";
    let mut put = tensorlane(&sidecar, &folder, line).stderr(Stdio::null()).spawn().unwrap();
    let client = sidecar.client();
    until("the put waits for room", || client.status().unwrap().waiting > 0);
    put.kill().unwrap();
    put.wait().unwrap();
    works(&sidecar, &folder, "get -r gen --to out.safetensors");
    assert_eq!(data(&folder.path().join("out.safetensors")), vec![1; 2 * LARGE]);
    works(&sidecar, &folder, "rm -r gen");
    drop(client);
    sidecar.assert_all_free();
}
