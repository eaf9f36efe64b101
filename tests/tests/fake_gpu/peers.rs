//! Other peers: they hear of a tensor in GPU memory, and where nobody copies it out cannot have it.

use std::time::Duration;

use tensorlane_client::{AcquireOptions, Client};
use tensorlane_proto::device::Device;
use tensorlane_proto::{Reason, Reference};
use tensorlane_tests::gpu::{GpuDriver, GpuWorkload};
use tensorlane_tests::{Sidecar, reason};

use crate::staged::pair;

fn refused(client: &Client, reference: &Reference) -> Reason {
    let options = AcquireOptions { deadline: Some(Duration::from_secs(20)), ..AcquireOptions::new() };
    reason(client.acquire(reference, &options).map(drop))
}

#[test]
fn a_reader_of_another_peer_is_told_that_nobody_brings_it_small_or_large_by_reference_or_name() {
    let (both, _folder) = pair();
    let mut producer = GpuWorkload::start(&both[0], &GpuDriver::fake());
    let small: Reference = producer.ask("keep small 100 1", "put").parse().unwrap();
    let large: Reference = producer.ask("keep large 20000000 2", "put").parse().unwrap();
    assert!(producer.finish().success());
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
    drop((reader, far));
    both.iter().for_each(Sidecar::assert_all_free);
}
