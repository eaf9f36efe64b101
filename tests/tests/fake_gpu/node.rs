//! Two pods of a node: what one puts into GPU memory the other maps there, and who lies, dies or cannot is told.

use std::os::fd::AsFd;

use rustix::process::Signal;
use tensorlane_client::{AcquireOptions, Client};
use tensorlane_proto::Reason;
use tensorlane_proto::frame::GPU_SINCE;
use tensorlane_tests::gpu::{GpuDriver, GpuWorkload, descriptors, maps};
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until};

use crate::GRANULE;
use crate::hostile::{imitation, put, request};
use crate::staged::{got, pair_with, sight};

/// Name of the stand-in's allocations.
const MEMORY: &str = "memfd:fake-gpu";
/// A tensor of some pages, in three granules.
const BYTES: u64 = 5_000_003;

/// Two sidecars of one node.
fn node(set: impl Fn(SidecarOptions) -> SidecarOptions) -> ([Sidecar; 2], tempfile::TempDir) {
    pair_with(|folder, options| set(options.set("node.directory", folder.display())))
}

/// Ways in which tensors on each GPU would come from the one other peer, as `taken` or `refused:why`.
fn gpu_routes(client: &Client) -> Vec<String> {
    let peers = client.peers().unwrap();
    let other = peers.iter().find(|peer| peer.state != "self").expect("another peer");
    let shown = |gpu: &tensorlane_proto::generated::GpuRoute| match gpu.why.as_str() {
        "" => gpu.standing.clone(),
        why => format!("{}:{why}", gpu.standing),
    };
    other.gpus.iter().map(shown).collect()
}

/// A process of each pod that reaches the GPU; both sidecars know it of the other.
fn both_reach(both: &[Sidecar; 2], driver: &GpuDriver) -> [GpuWorkload; 2] {
    let mut workloads = both.each_ref().map(|sidecar| GpuWorkload::start(sidecar, driver));
    for workload in &mut workloads {
        workload.ask("put own 100 9", "put");
    }
    let clients = both.each_ref().map(Sidecar::client);
    until("each knows what the other reaches", || {
        clients.iter().all(|client| gpu_routes(client) == ["taken"])
    });
    workloads
}

fn leases(owner: &Client, name: &str) -> u64 {
    owner.describe(name).unwrap().leases
}

fn bytes_of(sidecar: &Sidecar, state: &str) -> f64 {
    sidecar.metric("tensorlane_gpu_held_bytes", &[&format!("state=\"{state}\"")])
}

/// Ends what tests leave: names of the owner and processes.
fn end(both: &[Sidecar; 2], workloads: [GpuWorkload; 2], names: &[&str]) {
    both[0].client().unname(names).unwrap();
    both.iter().for_each(|sidecar| drop(sidecar.client().unname(&["own"])));
    drop(workloads);
    for sidecar in both {
        until("the sidecar holds no memory of a GPU", || descriptors(sidecar.pid(), MEMORY) == 0);
        sidecar.assert_all_free();
    }
}

#[test]
fn a_tensor_of_another_pod_is_mapped_on_the_gpu_and_leased_for_as_long() {
    let (both, _folder) = node(|options| options);
    let [mut producer, mut reader] = both_reach(&both, &GpuDriver::fake());
    let reference = producer.ask(&format!("keep weights {BYTES} 7"), "put");
    let owner = both[0].client();
    assert_eq!(leases(&owner, "weights"), 0);
    assert_eq!(reader.ask(&format!("exact {reference}"), "got"), sight(7, BYTES, "cuda_ipc"));
    assert_eq!(reader.ask("exact weights", "got"), sight(7, BYTES, "cuda_ipc"), "by its name");
    let odd: Vec<u8> = pattern(7, 1_000).into_iter().skip(1).step_by(2).collect();
    let part = format!("{:08x} 500 cuda_ipc", crc32c::crc32c(&odd));
    assert_eq!(reader.ask("part weights 1 1000 2", "got"), part, "a view");
    assert_eq!(leases(&owner, "weights"), 1, "one for the other pod, however many read there");
    until("one of its own, one for the tensor", || descriptors(both[1].pid(), MEMORY) == 2);
    assert_eq!(maps(both[1].pid(), MEMORY) + maps(both[0].pid(), MEMORY), 0, "no sidecar maps it");
    assert_eq!(bytes_of(&both[1], "borrowed"), 3.0 * GRANULE as f64);
    assert_eq!(both[0].metric("tensorlane_peer_lent_gpu_bytes", &[]), 3.0 * GRANULE as f64);
    let moved = both[1].metric("tensorlane_peer_bytes_total", &["direction=\"in\""]);
    assert_eq!(moved, 0.0, "no byte moves");
    reader.ask("drop", "dropped 4");
    until("the lease ends with the last reader", || {
        leases(&owner, "weights") == 0 && bytes_of(&both[1], "borrowed") == 0.0
    });
    owner.unname(&["weights"]).unwrap();
    until("its owner lets go of it", || descriptors(both[0].pid(), MEMORY) == 1);
    producer.ask("put again 100 1", "put");
    assert_eq!(producer.ask("trim", "trimmed"), "0", "memory that was lent is not used again");
    end(&both, [producer, reader], &["again"]);
}

#[test]
fn who_cannot_map_it_there_gets_a_copy_and_hears_why() {
    let (both, _folder) = node(|options| options);
    let mut producer = GpuWorkload::start(&both[0], &GpuDriver::fake());
    producer.ask(&format!("put a {BYTES} 1"), "put");
    let far = both[1].client();
    // Its process may not be known yet as one that copies out.
    let mut first = None;
    until("its process copies out", || {
        first = far.get("a", &AcquireOptions::new()).ok();
        first.is_some()
    });
    let first = first.unwrap();
    let (bytes, way) = (first.bytes, first.moved.to_string());
    assert!(bytes == pattern(1, BYTES as usize));
    assert_eq!(way, "shm, staged, not cuda_ipc: no_gpu_process", "nobody there reaches a GPU");
    let mut elsewhere = GpuWorkload::start(&both[1], &GpuDriver::fake().with("FAKE_CUDA_FIRST", 1));
    elsewhere.ask("put own 100 9", "put");
    until("both are told", || gpu_routes(&far) == ["refused:other_gpu", "refused:other_gpu"]);
    producer.ask("put b 100 2", "put");
    assert_eq!(elsewhere.ask("get b", "got"), sight(2, 100, "shm:other_gpu"));
    let mut there = GpuWorkload::start(&both[1], &GpuDriver::fake());
    there.ask("put also 100 9", "put");
    until("one of its processes reaches it", || gpu_routes(&far) == ["taken", "refused:other_gpu"]);
    producer.ask(&format!("put c {BYTES} 3"), "put");
    assert_eq!(got(&far, "c").1, "shm, staged, not cuda_ipc: host_reader");
    assert_eq!(there.ask("exact c", "got"), sight(3, BYTES, "cuda_ipc"), "though a copy is here");
    assert_eq!(elsewhere.ask("get c", "got"), sight(3, BYTES, "shm:other_gpu"), "that has another GPU");
    assert_eq!(there.ask("host c", "got"), sight(3, BYTES, "shm:host_reader"));
    assert_eq!(there.ask("again", "read"), &sight(3, BYTES, "")[..8]);
    both[1].client().unname(&["also"]).unwrap();
    drop((elsewhere, far));
    end(&both, [producer, there], &["a", "b", "c"]);
}

#[test]
fn a_reader_of_the_host_and_one_of_the_gpu_that_wait_together_each_get_theirs() {
    let (both, _folder) = node(|options| options);
    let slow = GpuDriver::fake().with("FAKE_CUDA_SLOW", 300);
    let [mut producer, mut reader] = both_reach(&both, &slow);
    producer.ask(&format!("put a {BYTES} 1"), "put");
    let far = both[1].client();
    let host = std::thread::spawn(move || got(&far, "a"));
    until("a copy is under way, or over", || {
        host.is_finished() || both[0].metric("tensorlane_gpu_staging_tensors", &["state=\"moving\""]) == 1.0
    });
    assert_eq!(reader.ask("get a", "got"), sight(1, BYTES, "cuda_ipc"));
    let (bytes, way) = host.join().unwrap();
    assert!(bytes == pattern(1, BYTES as usize) && way.ends_with("host_reader"), "{way}");
    end(&both, [producer, reader], &["a"]);
}

#[test]
fn a_peer_gets_no_more_gpu_memory_at_a_time_than_it_may() {
    let (both, _folder) = node(|options| options.set("limits.gpuLentBytes", "4Mi"));
    let [mut producer, mut reader] = both_reach(&both, &GpuDriver::fake());
    for (name, seed) in [("a", 1), ("b", 2), ("c", 3)] {
        producer.ask(&format!("keep {name} 100 {seed}"), "put");
    }
    assert_eq!(reader.ask("get a", "got"), sight(1, 100, "cuda_ipc"));
    assert_eq!(reader.ask("get b", "got"), sight(2, 100, "cuda_ipc"));
    assert_eq!(reader.ask("get c", "got"), sight(3, 100, "shm:lent_full"));
    assert_eq!(reader.ask("get a", "got"), sight(1, 100, "cuda_ipc"), "what it has it has");
    reader.ask("drop", "dropped 5");
    let owner = both[0].client();
    until("it gave all back", || ["a", "b"].iter().all(|name| leases(&owner, name) == 0));
    producer.ask("put d 100 4", "put");
    assert_eq!(reader.ask("get d", "got"), sight(4, 100, "cuda_ipc"));
    end(&both, [producer, reader], &["a", "b", "c", "d"]);
}

#[test]
fn a_tensor_outlives_its_exporter_and_is_mapped_after_its_death() {
    let (both, _folder) = node(|options| options);
    let [mut producer, mut reader] = both_reach(&both, &GpuDriver::fake());
    producer.ask(&format!("keep a {BYTES} 1"), "put");
    producer.ask("keep b 100 2", "put");
    assert_eq!(reader.ask("get a", "got"), sight(1, BYTES, "cuda_ipc"));
    producer.kill();
    assert_eq!(reader.ask("again", "read"), &sight(1, BYTES, "")[..8]);
    until("the death was noticed, and its own is an orphan, too", || {
        bytes_of(&both[0], "live") == 0.0 && bytes_of(&both[0], "orphaned") == 5.0 * GRANULE as f64
    });
    assert_eq!(reader.ask("get b", "got"), sight(2, 100, "cuda_ipc"), "no process of that pod is left");
    let replacement = GpuWorkload::start(&both[0], &GpuDriver::fake());
    end(&both, [replacement, reader], &["a", "b"]);
}

#[test]
fn a_reader_that_is_killed_gives_the_lease_back() {
    let (both, _folder) = node(|options| options);
    let [mut producer, mut reader] = both_reach(&both, &GpuDriver::fake());
    producer.ask(&format!("keep a {BYTES} 1"), "put");
    reader.ask("get a", "got");
    let owner = both[0].client();
    assert_eq!(leases(&owner, "a"), 1);
    reader.kill();
    until("its lease ended", || leases(&owner, "a") == 0);
    // In the middle, wherever that is; and while the owner does not answer.
    for owner_answers in [true, true, true, false] {
        let mut reader = GpuWorkload::start(&both[1], &GpuDriver::fake());
        reader.ask("put other 100 1", "put");
        if !owner_answers {
            stop(both[0].pid());
        }
        reader.tell("get a");
        reader.kill();
        signal(both[0].pid(), Signal::CONT);
        both[1].client().unname(&["other"]).unwrap();
        until("nothing is leased for the dead", || leases(&owner, "a") == 0);
    }
    let replacement = GpuWorkload::start(&both[1], &GpuDriver::fake());
    drop(owner);
    end(&both, [producer, replacement], &["a"]);
}

#[test]
fn a_killed_owners_sidecar_leaves_maps_that_are_read_and_no_new_ones() {
    let (mut both, _folder) = node(|options| options);
    let [mut producer, mut reader] = both_reach(&both, &GpuDriver::fake());
    let reference = producer.ask(&format!("keep a {BYTES} 1"), "put");
    assert_eq!(reader.ask("get a", "got"), sight(1, BYTES, "cuda_ipc"));
    // One more get is under way when it dies.
    let other = producer.ask("keep b 100 2", "put");
    stop(both[0].pid());
    reader.tell(&format!("get {other}"));
    both[0].kill();
    let answer = reader.answer();
    assert!(answer.starts_with("error "), "{answer}");
    assert_eq!(reader.ask("again", "read"), &sight(1, BYTES, "")[..8], "the map from before");
    both[0].start_again();
    let lost =
        || reason(both[1].client().acquire(reference_of(&reference), &AcquireOptions::new()).map(drop));
    until("its life is known to be over", || lost() == Reason::OwnerLost);
    assert_eq!(reader.ask(&format!("get {reference}"), "error"), "OWNER_LOST");
    assert_eq!(reader.ask("again", "read"), &sight(1, BYTES, "")[..8], "still");
    reader.ask("drop", "dropped 2");
    until("nothing of the dead is held", || bytes_of(&both[1], "borrowed") == 0.0);
    both[1].client().unname(&["own"]).unwrap();
    drop((producer, reader));
    both.iter().for_each(Sidecar::assert_all_free);
}

fn reference_of(text: &str) -> tensorlane_proto::Reference {
    text.parse().unwrap()
}

#[test]
fn a_killed_readers_sidecar_leaves_its_clients_reading_and_its_lease_ends() {
    let (mut both, _folder) = node(|options| options.set("gc.leaseGrace", "1s"));
    let [mut producer, mut reader] = both_reach(&both, &GpuDriver::fake());
    producer.ask(&format!("keep a {BYTES} 1"), "put");
    assert_eq!(reader.ask("get a", "got"), sight(1, BYTES, "cuda_ipc"));
    both[1].kill();
    assert_eq!(reader.ask("again", "read"), &sight(1, BYTES, "")[..8]);
    let owner = both[0].client();
    until("its lease ended with its grace", || leases(&owner, "a") == 0);
    owner.unname(&["a"]).unwrap();
    until("the owner let go of it", || descriptors(both[0].pid(), MEMORY) == 1);
    assert_eq!(reader.ask("again", "read"), &sight(1, BYTES, "")[..8], "its map keeps the memory");
    both[1].start_again();
    drop(owner);
    both[0].client().unname(&["own"]).unwrap();
    drop((producer, reader));
    both.iter().for_each(Sidecar::assert_all_free);
}

#[test]
fn who_lies_about_size_or_gpu_is_found_out_in_the_other_pod_before_anything_is_read() {
    let (both, _folder) = node(|options| options);
    let two = GpuDriver::fake().with("FAKE_CUDA_DEVICES", 2);
    let [producer, mut reader] = both_reach(&both, &GpuDriver::fake());
    let mut liar = RawSession::begin_in(&both[0], GPU_SINCE);
    let (small, plain) =
        (imitation(0, GRANULE), rustix::fs::memfd_create("any", rustix::fs::MemfdFlags::CLOEXEC));
    let plain = plain.unwrap();
    put(&mut liar, &request("long", 2 * GRANULE, 0), small.as_fd()).unwrap();
    put(&mut liar, &request("elsewhere", GRANULE, 0), imitation(1, GRANULE).as_fd()).unwrap();
    put(&mut liar, &request("memfd", GRANULE, 0), plain.as_fd()).unwrap();
    put(&mut liar, &request("honest", GRANULE, 0), small.as_fd()).unwrap();
    let mut sees_both = GpuWorkload::start(&both[1], &two);
    for (name, label) in [("long", "wrong_size"), ("elsewhere", "wrong_device"), ("memfd", "not_importable")]
    {
        assert_eq!(sees_both.ask(&format!("get {name}"), "error"), label, "{name}");
    }
    assert!(sees_both.ask("get honest", "got").ends_with("cuda_ipc"));
    assert!(reader.ask("get honest", "got").ends_with("cuda_ipc"));
    assert_eq!(descriptors(sees_both.pid(), MEMORY), 1, "nothing of what was refused is left");
    let owner = both[0].client();
    until("nor leased", || ["long", "elsewhere", "memfd"].iter().all(|name| leases(&owner, name) == 0));
    drop((liar, sees_both, owner));
    end(&both, [producer, reader], &["long", "elsewhere", "memfd", "honest"]);
}

#[test]
fn slices_of_a_gpu_are_gpus_of_their_own() {
    let (both, _folder) = node(|options| options);
    let slice = |number: u32| GpuDriver::fake().with("FAKE_CUDA_SLICE", number);
    let [mut producer, mut same] = both_reach(&both, &slice(1));
    producer.ask(&format!("put a {BYTES} 1"), "put");
    assert_eq!(same.ask("exact a", "got"), sight(1, BYTES, "cuda_ipc"));
    let mut other = GpuWorkload::start(&both[1], &slice(2));
    other.ask("put also 100 9", "put");
    assert_eq!(other.ask("get a", "got"), sight(1, BYTES, "shm:other_gpu"), "the same GPU, another slice");
    let mut near = GpuWorkload::start(&both[0], &slice(2));
    assert_eq!(near.ask("get a", "got"), sight(1, BYTES, "local:other_gpu"), "in its own pod, too");
    // Who says that memory of another slice is its own is not believed.
    let mut liar = RawSession::begin_in(&both[0], GPU_SINCE);
    let device = |slice: u8| tensorlane_proto::generated::Device {
        cuda_index: Some(0),
        cuda_uuid: [b"fake-gpu-slice-".as_slice(), &[slice]].concat().into(),
    };
    let mut lie = request("lie", GRANULE, 0);
    if let Some(descriptor) = &mut lie.descriptor {
        descriptor.device = Some(device(129));
    }
    put(&mut liar, &lie, imitation(130, GRANULE).as_fd()).unwrap();
    assert_eq!(same.ask("get lie", "error"), "not_importable");
    both[1].client().unname(&["also"]).unwrap();
    drop((other, near, liar));
    end(&both, [producer, same], &["a", "lie"]);
}
