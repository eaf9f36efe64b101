//! Files that replace each other under the same names: whoever gets them has one of them, whole.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use tensorlane_tests::sidecar::{SidecarOptions, bin_dir};
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

#[test]
fn a_get_of_a_prefix_beside_puts_is_of_one_file() {
    let (sidecar, folder) = (Sidecar::start(), tempfile::tempdir().unwrap());
    let sizes = [vec![SMALL; TENSORS], vec![LARGE]].concat();
    let total: usize = sizes.iter().sum();
    for generation in [1, 2] {
        write(&folder.path().join(format!("{generation}.safetensors")), generation, &sizes);
    }
    works(&sidecar, &folder, "put 1.safetensors --name gen");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                works(&sidecar, &folder, "put 2.safetensors --name gen --replace");
                works(&sidecar, &folder, "put 1.safetensors --name gen --replace");
            }
        });
        let get = |_| {
            let got = tensorlane(&sidecar, &folder, "get -r gen --to out.safetensors").output().unwrap();
            let bytes = got.status.success().then(|| data(&folder.path().join("out.safetensors")));
            bytes.is_some_and(|bytes| bytes.len() == total && bytes.windows(2).all(|two| two[0] == two[1]))
        };
        let whole = (0..GETS).map(get).filter(|whole| *whole).count();
        over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        assert_eq!(whole, GETS, "gets that were of one file");
    });
    works(&sidecar, &folder, "rm -r gen");
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
