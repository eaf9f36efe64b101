//! Duties of any driver towards those who cannot map: tensors in GPU memory are copied out for them, and others into it.

use tensorlane_client::{AcquireOptions, Client};
use tensorlane_proto::Reason;
use tensorlane_proto::selection::{Range, Selection};
use tensorlane_tests::gpu::GpuWorkload;
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until};

use crate::driver;

/// Two sidecars of one exchange, which are connected.
pub(crate) fn pair() -> ([Sidecar; 2], tempfile::TempDir) {
    pair_with(|_, options| options)
}

/// Pair with further settings of each: the first is `a`, the second `b`. The folder is for both.
pub(crate) fn pair_with(
    set: impl Fn(&std::path::Path, SidecarOptions) -> SidecarOptions,
) -> ([Sidecar; 2], tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.yaml");
    // An address of the loopback network and a port that no other test of these processes has.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    static PORTS: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(9_433);
    let start = |peer: &str| {
        let port = PORTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let options = SidecarOptions::default().set("peer", peer).set("peers.file", file.display()).admin();
        let options = options.set("peers.listen", format!("127.{high}.{low}.10:{port}"));
        Sidecar::with(set(folder.path(), options))
    };
    let both = [start("a"), start("b")];
    let line = |sidecar: &Sidecar| {
        let mut command = std::process::Command::new(bin_dir().join("tensorlane-sidecar"));
        command.args(["--print-peer", "--config"]).arg(sidecar.folder().join("config.yaml"));
        String::from_utf8(command.output().expect("the sidecar's binary").stdout).expect("text")
    };
    let whole = format!("peers:\n{}{}", line(&both[0]), line(&both[1]));
    std::fs::write(folder.path().join("new"), whole).unwrap();
    std::fs::rename(folder.path().join("new"), &file).unwrap();
    let client = both[1].client();
    until("they are connected", || client.peers().unwrap().iter().any(|peer| peer.state == "connected"));
    (both, folder)
}

/// Answer of a process that got a pattern in such a way.
pub(crate) fn sight(seed: u64, bytes: u64, way: &str) -> String {
    format!("{:08x} {bytes} {way}", crc32c::crc32c(&pattern(seed, bytes as usize)))
}

/// Bytes of a tensor for a client of the host, and how they came.
pub(crate) fn got(client: &Client, name: &str) -> (Vec<u8>, String) {
    let got = client.get(name, &AcquireOptions::new()).unwrap();
    (got.bytes, got.moved.to_string())
}

#[test]
fn a_reader_of_the_host_gets_what_lies_on_a_gpu_and_sees_how() {
    let sidecar = Sidecar::start();
    let mut producer = GpuWorkload::start(&sidecar, &driver());
    let client = sidecar.client();
    for (seed, bytes) in [(1, 1), (2, 100), (3, 65_537), (4, 5_000_003), (5, 40 << 20)] {
        let name = format!("of-{bytes}");
        producer.ask(&format!("put {name} {bytes} {seed}"), "put");
        let way = "local, staged, not cuda_ipc: host_reader".to_owned();
        assert_eq!(got(&client, &name), (pattern(seed, bytes as usize), way.clone()), "{name}");
        assert_eq!(got(&client, &name).1, way, "once more: the copy is there");
    }
    let wanted = Range { start: Some(10), stop: Some(1_000), step: 3 };
    let selection = Selection::Ranges(vec![wanted]);
    let part = client.get("of-65537", &AcquireOptions { selection, ..AcquireOptions::new() }).unwrap();
    let expected: Vec<u8> = pattern(3, 1_000).into_iter().skip(10).step_by(3).collect();
    assert_eq!(part.bytes, expected, "a part");
    let selection = Selection::Rows(vec![7, 0, 7].into());
    let rows = client.get("of-100", &AcquireOptions { selection, ..AcquireOptions::new() }).unwrap();
    let whole = pattern(2, 100);
    assert_eq!(rows.bytes, [whole[7], whole[0], whole[7]], "rows");
    let mut strict = AcquireOptions::new();
    strict.require.zero_copy = true;
    assert_eq!(reason(client.acquire("of-100", &strict).map(drop)), Reason::RequirementNotMet);
}

#[test]
fn any_process_that_reaches_the_gpu_copies_out_of_it() {
    let sidecar = Sidecar::start();
    let mut gone = GpuWorkload::start(&sidecar, &driver());
    gone.ask("keep left 5000003 7", "put");
    assert!(gone.finish().success());
    let client = sidecar.client();
    assert_eq!(reason(client.acquire("left", &AcquireOptions::new()).map(drop)), Reason::NoGpuProcess);
    let mut other = GpuWorkload::start(&sidecar, &driver());
    other.ask("put another 100 1", "put");
    until("the other one copies", || client.get("left", &AcquireOptions::new()).is_ok());
    assert_eq!(got(&client, "left").0, pattern(7, 5_000_003));
    assert!(other.ask("host another", "got").ends_with("local:host_reader"), "also to itself");
}

#[test]
fn a_peer_gets_what_lies_on_a_gpu_of_another_and_into_its_own() {
    let (both, _folder) = pair();
    let mut producer = GpuWorkload::start(&both[0], &driver());
    let far = both[1].client();
    for (seed, bytes) in [(1, 100), (2, 65_536), (3, 20_000_000)] {
        producer.ask(&format!("put of-{bytes} {bytes} {seed}"), "put");
        let (seen, way) = got(&far, &format!("of-{bytes}"));
        assert!(seen == pattern(seed, bytes), "{bytes} bytes by {way}");
        assert!(way.contains("staged") && way.ends_with("not cuda_ipc: no_socket_dir"), "{way}");
    }
    producer.ask("put straight 5000003 9", "put");
    let mut reader = GpuWorkload::start(&both[1], &driver());
    let seen = reader.ask("get straight", "got");
    assert!(seen.starts_with(&sight(9, 5_000_003, "")) && seen.ends_with(":no_socket_dir"), "{seen}");
    assert_eq!(reader.ask("again", "read"), &seen[..8]);
    reader.ask("drop", "dropped");
}

#[test]
fn a_tensor_of_the_host_comes_into_gpu_memory() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let bytes = pattern(3, 5_000_003);
    let layout = tensorlane_tests::tensors::u8s(bytes.len() as u64);
    client.put(&layout, &bytes, &tensorlane_client::PutOptions::named("host")).map(drop).unwrap();
    let mut reader = GpuWorkload::start(&sidecar, &driver());
    assert_eq!(reader.ask("get host", "got"), sight(3, 5_000_003, "local"));
    client.unname(&["host"]).unwrap();
    let odd: Vec<u8> = pattern(3, 1_000).into_iter().skip(1).step_by(2).collect();
    assert_eq!(reader.ask("again", "read"), &sight(3, 5_000_003, "")[..8], "its own copy");
    client.put(&layout, &bytes, &tensorlane_client::PutOptions::named("again")).map(drop).unwrap();
    assert_eq!(reader.ask("part again 1 1000 2", "got"), format!("{:08x} 500 local", crc32c::crc32c(&odd)));
    reader.ask("drop", "dropped 2");
}
