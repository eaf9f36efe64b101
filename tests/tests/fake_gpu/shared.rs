//! Duties of any driver, a stand-in or a real one.

use tensorlane_tests::gpu::{GpuWorkload, descriptors};
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::{Sidecar, SidecarOptions, until};

use crate::driver;

/// A tensor that is no multiple of anything.
const BYTES: u64 = 5_000_003;

/// Answer of a process that got a pattern.
fn sight(seed: u64, bytes: u64) -> String {
    format!("{:08x} {bytes} cuda_ipc", crc32c::crc32c(&pattern(seed, bytes as usize)))
}

#[test]
fn a_probe_shares_memory_on_every_device_by_doing_it() {
    let sidecar = Sidecar::start();
    let mut workload = GpuWorkload::start(&sidecar, &driver());
    let found = workload.ask("probe", "probed");
    let (count, labels) = found.split_once(' ').expect("devices");
    assert_eq!(labels.split(' ').filter(|label| *label == "shares").count().to_string(), count, "{found}");
}

#[test]
fn a_tensor_that_one_process_puts_another_gets_without_a_byte_being_moved() {
    let sidecar = Sidecar::start();
    let (mut a, mut b) = (GpuWorkload::start(&sidecar, &driver()), GpuWorkload::start(&sidecar, &driver()));
    let reference = a.ask(&format!("put weights {BYTES} 7"), "put");
    assert_eq!(b.ask("get weights", "got"), sight(7, BYTES));
    assert_eq!(b.ask(&format!("get {reference}"), "got"), sight(7, BYTES), "by its reference");
    assert_eq!(a.ask("get weights", "got"), sight(7, BYTES), "by who put it");
    let odd: Vec<u8> = pattern(7, 1_000).into_iter().skip(1).step_by(2).collect();
    let seen = format!("{:08x} 500 cuda_ipc", crc32c::crc32c(&odd));
    assert_eq!(b.ask("part weights 1 1000 2", "got"), seen, "a view of every second byte");
    a.ask(&format!("copy copied {BYTES} 8"), "put");
    assert_eq!(b.ask("get copied", "got"), sight(8, BYTES), "put by a copy on the device");
}

#[test]
fn a_tensor_outlives_the_process_that_put_it_and_the_session_that_named_it() {
    let sidecar = Sidecar::start();
    let mut reader = GpuWorkload::start(&sidecar, &driver());
    let mut ends = GpuWorkload::start(&sidecar, &driver());
    ends.ask(&format!("keep ended {BYTES} 1"), "put");
    let mut dies = GpuWorkload::start(&sidecar, &driver());
    dies.ask(&format!("keep killed {BYTES} 2"), "put");
    assert_eq!(reader.ask("get killed", "got"), sight(2, BYTES));
    assert!(ends.finish().success());
    dies.kill();
    assert_eq!(reader.ask("again", "read").split(' ').count(), 1);
    let mut late = GpuWorkload::start(&sidecar, &driver());
    assert_eq!(late.ask("get ended", "got"), sight(1, BYTES), "after its producer's exit");
    assert_eq!(late.ask("get killed", "got"), sight(2, BYTES), "after its producer was killed");
    assert_eq!(reader.ask("again", "read"), &sight(2, BYTES)[..8], "the map from before");
}

#[test]
fn a_thousand_rounds_leave_nothing_with_the_sidecar() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut workload = GpuWorkload::start(&sidecar, &driver());
    workload.ask("rounds 10 65536", "rounds");
    let before = descriptors(sidecar.pid(), "");
    workload.ask("rounds 1000 65536", "rounds");
    until("no memory of the GPU is held", || {
        sidecar.metric("tensorlane_gpu_held_tensors", &[]) == 0.0
            && sidecar.metric("tensorlane_gpu_held_bytes", &[]) == 0.0
    });
    until("the sidecar has as many descriptors as before", || descriptors(sidecar.pid(), "") <= before);
    workload.ask("reserve 1048576", "reserved");
    drop(workload);
    sidecar.assert_all_free();
}

#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    let sidecar = Sidecar::start();
    let mut workload = GpuWorkload::start(&sidecar, &driver());
    workload.ask("put a 100 1", "put");
    workload.ask("get a", "got");
    workload.tell("fork");
    let mut answers = [workload.answer(), workload.answer()];
    answers.sort();
    assert_eq!(answers, ["child forked forked forked", "forked"]);
    assert_eq!(workload.ask("again", "read"), &sight(1, 100)[..8]);
    assert_eq!(workload.ask("get a", "got"), sight(1, 100));
}
