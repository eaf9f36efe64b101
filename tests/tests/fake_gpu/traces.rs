//! Traces that processes hold of the stand-in's memory, seen in their descriptors and maps: nothing that they should
//! not.

use tensorlane_tests::gpu::{GpuDriver, GpuWorkload, descriptors, maps};
use tensorlane_tests::{Sidecar, SidecarOptions, until};

use crate::{GRANULE, gives_back};

/// Name of the stand-in's allocations.
const MEMORY: &str = "memfd:fake-gpu";

fn held(sidecar: &Sidecar) -> [f64; 2] {
    ["tensorlane_gpu_held_tensors", "tensorlane_gpu_held_bytes"].map(|name| sidecar.metric(name, &[]))
}

#[test]
fn the_sidecar_holds_one_descriptor_for_a_tensor_and_maps_none() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let mut reader = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    producer.ask("put a 100 1", "put");
    producer.ask(&format!("put b {} 2", GRANULE + 1), "put");
    for _ in 0..3 {
        reader.ask("get a", "got");
        reader.ask("get b", "got");
    }
    until("there is one for each", || descriptors(sidecar.pid(), MEMORY) == 2);
    assert_eq!(maps(sidecar.pid(), MEMORY), 0);
    assert_eq!(held(&sidecar), [2.0, 3.0 * GRANULE as f64]);
    let by_ipc = |name| sidecar.metric(name, &["transport=\"cuda_ipc\""]);
    assert_eq!(by_ipc("tensorlane_put_bytes_total"), 100.0 + GRANULE as f64 + 1.0);
    assert_eq!(by_ipc("tensorlane_get_bytes_total"), 3.0 * (100.0 + GRANULE as f64 + 1.0));
    assert_eq!(maps(reader.pid(), MEMORY), 2, "each is imported once");
    assert_eq!(maps(sidecar.pid(), "libcuda"), 0, "the sidecar has no driver");
    reader.ask("drop", "dropped 6");
    until("the reader has unmapped both", || {
        maps(reader.pid(), MEMORY) == 0 && descriptors(reader.pid(), MEMORY) == 0
    });
    producer.ask("unname a", "unnamed");
    producer.ask("unname b", "unnamed");
    producer.ask("drop", "dropped 2");
    until("the sidecar holds nothing", || {
        descriptors(sidecar.pid(), MEMORY) == 0 && held(&sidecar) == [0.0, 0.0]
    });
    gives_back(&mut producer, 3 * GRANULE);
    assert_eq!((maps(producer.pid(), MEMORY), descriptors(producer.pid(), MEMORY)), (0, 0));
    drop((producer, reader));
    sidecar.assert_all_free();
}

#[test]
fn a_tensor_that_is_freed_while_it_is_mapped_stays_readable_and_is_nobodys_afterwards() {
    let sidecar = Sidecar::start();
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let mut reader = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    producer.ask("put a 100 1", "put");
    let seen = reader.ask("get a", "got");
    producer.ask("unname a", "unnamed");
    producer.ask("drop", "dropped 1");
    until("the reader's lease keeps it", || descriptors(sidecar.pid(), MEMORY) == 1);
    assert_eq!(reader.ask("again", "read"), &seen[..8]);
    reader.kill();
    until("the sidecar holds nothing after the reader's death", || descriptors(sidecar.pid(), MEMORY) == 0);
    until("the producer was told", || maps(producer.pid(), MEMORY) == 0);
}

#[test]
fn a_killed_producer_leaves_what_is_named_and_nothing_else() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    producer.ask("keep named 100 1", "put");
    producer.ask("put leased 100 2", "put");
    producer.ask("unname leased", "unnamed");
    until("there is one for each", || descriptors(sidecar.pid(), MEMORY) == 2);
    producer.kill();
    until("what only its session kept is gone", || {
        descriptors(sidecar.pid(), MEMORY) == 1 && held(&sidecar) == [1.0, GRANULE as f64]
    });
    let mut reader = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    reader.ask("get named", "got");
    reader.ask("unname named", "unnamed");
    reader.ask("drop", "dropped 1");
    until("nothing is left", || descriptors(sidecar.pid(), MEMORY) == 0);
    drop(reader);
    sidecar.assert_all_free();
}

#[test]
fn a_killed_sidecar_takes_no_memory_away_from_those_who_map_it() {
    let mut sidecar = Sidecar::start();
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let mut reader = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    producer.ask("put a 100 1", "put");
    let seen = reader.ask("get a", "got");
    sidecar.kill();
    assert_eq!(reader.ask("again", "read"), &seen[..8]);
    until("the producer gave back what nobody would tell it of", || maps(producer.pid(), MEMORY) == 0);
}

#[test]
fn a_tensor_that_is_dropped_stays_mapped_and_leased_until_the_device_has_done_its_work() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let folder = tempfile::tempdir().unwrap();
    let busy = folder.path().join("busy");
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let driver = GpuDriver::fake().with("FAKE_CUDA_BUSY", busy.display());
    let mut reader = GpuWorkload::start(&sidecar, &driver);
    producer.ask("put a 100 1", "put");
    let seen = reader.ask("get a", "got");
    std::fs::write(&busy, "").unwrap();
    reader.ask("drop", "dropped 1");
    producer.ask("unname a", "unnamed");
    producer.ask("drop", "dropped 1");
    // Whoever drops it does not wait: the process goes on, with other tensors too.
    producer.ask("put b 100 2", "put");
    assert_ne!(reader.ask("get b", "got"), seen);
    assert_eq!(maps(reader.pid(), MEMORY), 2);
    assert_eq!(held(&sidecar)[0], 2.0, "the reader's lease keeps the first");
    std::fs::remove_file(&busy).unwrap();
    until("the first is unmapped and free", || maps(reader.pid(), MEMORY) == 1 && held(&sidecar)[0] == 1.0);
    producer.ask("unname b", "unnamed");
    drop((producer, reader));
    sidecar.assert_all_free();
}

#[test]
fn an_allocation_that_nobody_maps_any_more_is_used_for_the_next_tensor() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let mut reader = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let first = producer.ask("put a 100 1", "put");
    let old = reader.ask("get a", "got");
    reader.ask("drop", "dropped 1");
    producer.ask("unname a", "unnamed");
    producer.ask("drop", "dropped 1");
    until("it is kept, with a descriptor", || {
        descriptors(producer.pid(), MEMORY) == 2 && held(&sidecar) == [0.0, 0.0]
    });
    let second = producer.ask("put b 90 2", "put");
    assert_ne!(first, second, "a tensor of its own");
    assert_eq!(maps(producer.pid(), MEMORY), 1, "in the same memory");
    let new = reader.ask("get b", "got");
    assert_ne!(old, new);
    assert_eq!(reader.ask(&format!("get {first}"), "error"), "NOT_FOUND");
    assert_eq!(reader.ask("again", "read"), &new[..8]);
    producer.ask("unname b", "unnamed");
    drop((producer, reader));
    sidecar.assert_all_free();
}

#[test]
fn an_allocation_whose_reader_was_killed_is_never_used_again() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let mut reader = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    producer.ask("put a 100 1", "put");
    reader.ask("get a", "got");
    reader.kill();
    producer.ask("unname a", "unnamed");
    producer.ask("drop", "dropped 1");
    until("it is given back", || maps(producer.pid(), MEMORY) == 0 && held(&sidecar) == [0.0, 0.0]);
    assert_eq!(producer.ask("trim", "trimmed"), "0", "nothing of it is kept");
    drop(producer);
    sidecar.assert_all_free();
}

#[test]
fn memory_that_is_kept_is_given_back_where_the_device_has_no_more() {
    let sidecar = Sidecar::start();
    let driver = GpuDriver::fake().with("FAKE_CUDA_MEMORY", 64 * GRANULE);
    let mut producer = GpuWorkload::start(&sidecar, &driver);
    producer.ask("put a 100 1", "put");
    producer.ask("unname a", "unnamed");
    producer.ask("drop", "dropped 1");
    until("it is kept", || descriptors(producer.pid(), MEMORY) == 2);
    producer.ask(&format!("reserve {}", 64 * GRANULE), "reserved");
    assert_eq!(producer.ask("trim", "trimmed"), "0");
    drop(producer);
    sidecar.assert_all_free();
}
