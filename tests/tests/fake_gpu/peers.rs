//! Other peers: they hear of a tensor in GPU memory, and cannot have it.

use std::time::Duration;

use tensorlane_client::{AcquireOptions, Client};
use tensorlane_proto::device::Device;
use tensorlane_proto::{Reason, Reference};
use tensorlane_tests::gpu::{GpuDriver, GpuWorkload};
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until};

/// Two sidecars of one exchange, which are connected.
fn pair() -> ([Sidecar; 2], tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.yaml");
    // An address of the loopback network that no other process of these tests has.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let start = |peer: &str, port: u16| {
        let options = SidecarOptions::default().set("peer", peer).set("peers.file", file.display());
        Sidecar::with(options.set("peers.listen", format!("127.{high}.{low}.10:{port}")))
    };
    let both = [start("a", 9433), start("b", 9434)];
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

fn refused(client: &Client, reference: &Reference) -> Reason {
    let options = AcquireOptions { deadline: Some(Duration::from_secs(20)), ..AcquireOptions::new() };
    reason(client.acquire(reference, &options).map(drop))
}

#[test]
fn a_reader_of_another_peer_is_told_that_nobody_brings_it_small_or_large_by_reference_or_name() {
    let (both, _folder) = pair();
    let mut producer = GpuWorkload::start(&both[0], &GpuDriver::fake());
    let small: Reference = producer.ask("put small 100 1", "put").parse().unwrap();
    let large: Reference = producer.ask("put large 20000000 2", "put").parse().unwrap();
    let far = both[1].client();
    let known = far.describe(&small).unwrap();
    assert!(matches!(known.descriptor.device, Device::Cuda { uuid: Some(_), .. }), "it is described");
    for reference in [&small, &large, &small, &large] {
        assert_eq!(refused(&far, reference), Reason::NoGpuProcess, "{reference}");
    }
    for name in ["small", "large"] {
        assert_eq!(reason(far.acquire(name, &AcquireOptions::new()).map(drop)), Reason::NoGpuProcess);
    }
    let mut reader = GpuWorkload::start(&both[1], &GpuDriver::fake());
    assert_eq!(reader.ask(&format!("get {small}"), "error"), "NO_GPU_PROCESS", "though it reaches the GPU");
    both[0].client().unname(&["small", "large"]).unwrap();
    drop((producer, reader, far));
    both.iter().for_each(Sidecar::assert_all_free);
}
