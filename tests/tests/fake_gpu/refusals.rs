//! Drivers, devices and requests that cannot do: each with its reason, and nothing is left.

use tensorlane_client::{AcquireOptions, Client, PutOptions};
use tensorlane_proto::device::Device;
use tensorlane_proto::{Descriptor, Reason};
use tensorlane_tests::gpu::{GpuDriver, GpuWorkload, descriptors};
use tensorlane_tests::tensors::u8s;
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until};

use crate::{GRANULE, gives_back};

#[test]
fn a_driver_that_cannot_share_says_why_and_the_process_goes_on() {
    let sidecar = Sidecar::start();
    let cases = [
        (GpuDriver::none(), "no_library"),
        (GpuDriver::old(), "missing_symbol"),
        (GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuInit:34"), "stub_library"),
        (GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuInit:999"), "no_driver"),
        // A code that no header knows: a driver newer than this.
        (GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuInit:31337"), "no_driver"),
        (GpuDriver::fake().with("FAKE_CUDA_DEVICES", "0"), "no_device"),
    ];
    for (driver, label) in cases {
        let mut workload = GpuWorkload::start(&sidecar, &driver);
        assert_eq!(workload.ask("probe", "error"), label, "{driver:?}");
        assert_eq!(workload.ask("put a 100 1", "error"), label, "{driver:?}");
        assert!(workload.finish().success());
    }
    let cases = [
        (GpuDriver::fake().with("FAKE_CUDA_NO_VMM", "1"), "not_shareable"),
        (GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuMemExportToShareableHandle:801"), "driver"),
        (GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuMemImportFromShareableHandle:801"), "not_importable"),
        (GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuMemMap:1"), "driver"),
        (GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuMemSetAccess:1"), "driver"),
        (GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuDevicePrimaryCtxRetain:2"), "driver"),
    ];
    for (driver, label) in cases {
        let mut workload = GpuWorkload::start(&sidecar, &driver.with("FAKE_CUDA_DEVICES", "2"));
        assert_eq!(workload.ask("probe", "probed 2"), format!("{label} {label}"));
        assert_eq!(descriptors(workload.pid(), "memfd:fake-gpu"), 0, "a probe leaves nothing");
        assert!(workload.finish().success());
    }
    sidecar.assert_all_free();
}

#[test]
fn memory_that_is_used_up_is_refused_and_free_again_when_it_is_given_back() {
    let sidecar = Sidecar::start();
    let driver = GpuDriver::fake().with("FAKE_CUDA_MEMORY", 2 * GRANULE);
    let mut workload = GpuWorkload::start(&sidecar, &driver);
    workload.ask(&format!("put a {GRANULE} 1"), "put");
    assert_eq!(workload.ask(&format!("put b {} 2", GRANULE + 1), "error"), "out_of_memory");
    assert_eq!(workload.ask(&format!("reserve {}", 3 * GRANULE), "error"), "out_of_memory");
    workload.ask(&format!("reserve {GRANULE}"), "reserved");
    // The sidecar lets go of what was reserved a moment later.
    until("what was reserved is free again", || {
        workload.tell(&format!("put b {GRANULE} 2"));
        workload.answer().starts_with("put")
    });
    assert_eq!(workload.ask("reserve 1", "error"), "out_of_memory");
    workload.ask("unname a", "unnamed");
    workload.ask("unname b", "unnamed");
    workload.ask("drop", "dropped 2");
    until("its memory is free again", || {
        workload.tell(&format!("reserve {}", 2 * GRANULE));
        workload.answer().starts_with("reserved")
    });
}

#[test]
fn a_sidecar_that_is_to_take_none_refuses_it_and_the_session_goes_on() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("gpu.mode", "none"));
    let mut workload = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    assert_eq!(workload.ask("put a 100 1", "error"), "UNSUPPORTED");
    gives_back(&mut workload, GRANULE);
    assert_eq!(descriptors(workload.pid(), "memfd:fake-gpu"), 0, "its memory was given back");
    until("the sidecar holds nothing", || descriptors(sidecar.pid(), "memfd:fake-gpu") == 0);
    assert_eq!(workload.ask("get a", "error"), "NOT_FOUND");
    drop(workload);
    sidecar.assert_all_free();
}

#[test]
fn addresses_that_are_none_of_the_device_are_refused() {
    let sidecar = Sidecar::start();
    let mut workload = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    assert_eq!(workload.ask("stray a", "error"), "not_device_memory");
    assert_eq!(workload.ask("beyond a", "error"), "not_device_memory");
    until("the room that was made is kept for the next put, and given back where that is asked", || {
        workload.ask("trim", "trimmed");
        descriptors(workload.pid(), "memfd:fake-gpu") == 0
    });
    drop(workload);
    sidecar.assert_all_free();
}

#[test]
fn a_name_that_is_taken_gives_the_memory_back() {
    let sidecar = Sidecar::start();
    let mut workload = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    workload.ask("put a 100 1", "put");
    assert_eq!(workload.ask("put a 100 2", "error"), "NAME_TAKEN");
    gives_back(&mut workload, GRANULE);
    assert_eq!(descriptors(workload.pid(), "memfd:fake-gpu"), 1, "the first one's");
    until("the sidecar holds it alone", || descriptors(sidecar.pid(), "memfd:fake-gpu") == 1);
}

#[test]
fn who_reaches_another_gpu_or_knows_of_none_gets_a_copy() {
    let sidecar = Sidecar::start();
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let reference = producer.ask("put a 100 1", "put");
    let mut other = GpuWorkload::start(&sidecar, &GpuDriver::fake().with("FAKE_CUDA_FIRST", 1));
    assert!(other.ask("get a", "got").ends_with("local:other_gpu"), "by the producer");
    let mut both = GpuWorkload::start(&sidecar, &GpuDriver::fake().with("FAKE_CUDA_DEVICES", 2));
    assert!(both.ask("get a", "got").ends_with("cuda_ipc"));
    other.ask("put b 100 2", "put");
    assert!(both.ask("get b", "got").ends_with("cuda_ipc"), "on the GPU that is its second one");
    assert!(other.ask("host a", "got").ends_with("local:host_reader"));
    assert!(other.ask(&format!("host {reference}"), "got").ends_with("local:host_reader"));
    assert!(producer.ask("rows a", "got").ends_with(" 2 local:host_reader"), "packed, from the host");
    sidecar.client().unname(&["a", "b"]).unwrap();
    drop((producer, other, both));
    sidecar.assert_all_free();
}

#[test]
fn bytes_of_the_host_are_not_put_as_a_gpus_and_got_as_a_copy() {
    let sidecar = Sidecar::start();
    let client: Client = sidecar.client();
    let device = Device::Cuda { index: 0, uuid: Some([7; 16]) };
    let descriptor = Descriptor { device, ..u8s(100) };
    let small = client.put(&descriptor, &[1; 100], &PutOptions::new()).map(drop);
    assert_eq!(reason(small), Reason::InvalidArgument);
    let descriptor = Descriptor { device, ..u8s(1 << 20) };
    let large = client.put(&descriptor, &vec![1; 1 << 20], &PutOptions::new()).map(drop);
    assert_eq!(reason(large), Reason::InvalidArgument);
    let stored = client.put(&u8s(100), &[1; 100], &PutOptions::named("host")).unwrap();
    let mut workload = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    assert!(workload.ask("get host", "got").ends_with("100 local"), "copied to the GPU");
    assert_eq!(client.get("host", &AcquireOptions::new()).unwrap().bytes, [1; 100]);
    client.unname(&["host"]).unwrap();
    drop((stored, client, workload));
    sidecar.assert_all_free();
}
