//! Staging where it goes wrong: processes that stand still, die, lie or cannot, readers that leave, memory that is full.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tensorlane_client::{AcquireOptions, Error, Tensor};
use tensorlane_proto::Reason;
use tensorlane_tests::gpu::{GpuDriver, GpuWorkload, descriptors, maps};
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::{Sidecar, SidecarOptions, failure, reason, until, where_the_machine_runs_on};

use crate::staged::{got, pair, sight};

/// A tensor of some chunks.
const LARGE: u64 = 40 << 20;

fn with_admin() -> Sidecar {
    Sidecar::with(SidecarOptions::default().admin())
}

fn failures(sidecar: &Sidecar, reason: &str) -> f64 {
    sidecar.metric("tensorlane_gpu_staging_failures_total", &[&format!("reason=\"{reason}\"")])
}

fn moving(sidecar: &Sidecar) -> f64 {
    sidecar.metric("tensorlane_gpu_staging_tensors", &["state=\"moving\""])
}

/// The reason of a refusal where time was short: on a busy machine the client may give up before the sidecar says so.
fn late(outcome: tensorlane_client::Result<Tensor>) -> Reason {
    match outcome {
        Err(Error::DeadlineExceeded { .. }) => Reason::DeadlineExceeded,
        outcome => reason(outcome.map(drop)),
    }
}

/// A driver whose copies to the host take so long.
fn slow(milliseconds: u64) -> GpuDriver {
    GpuDriver::fake().with("FAKE_CUDA_SLOW", milliseconds)
}

#[test]
fn a_hundred_readers_wait_for_one_copy() {
    let sidecar = with_admin();
    let mut producer = GpuWorkload::start(&sidecar, &slow(100));
    producer.ask(&format!("put a {LARGE} 1"), "put");
    let client = sidecar.client();
    let wanted = pattern(1, LARGE as usize);
    std::thread::scope(|scope| {
        for _ in 0..100 {
            let (client, wanted) = (client.clone(), &wanted);
            scope.spawn(move || {
                let tensor = client.acquire("a", &AcquireOptions::new()).unwrap();
                assert!(tensor.view().unwrap().to_vec() == *wanted);
            });
        }
    });
    assert_eq!(sidecar.metric("tensorlane_gpu_staged_bytes_total", &[]), LARGE as f64, "one copy");
    assert_eq!(sidecar.metric("tensorlane_ledger_live_tensors", &["kind=\"copy\""]), 1.0);
    client.unname(&["a"]).unwrap();
    producer.ask("drop", "dropped 1");
    until("the copy is gone with its tensor", || {
        sidecar.metric("tensorlane_ledger_live_tensors", &["kind=\"copy\""]) == 0.0
    });
    drop((client, producer));
    sidecar.assert_all_free();
}

#[test]
fn a_copy_that_is_read_outlives_its_tensor_for_whoever_reads_it_and_for_nobody_else() {
    let sidecar = Sidecar::start();
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let reference: tensorlane_proto::Reference = producer.ask("put a 100 1", "put").parse().unwrap();
    let client = sidecar.client();
    let read = client.acquire("a", &AcquireOptions::new()).unwrap();
    client.unname(&["a"]).unwrap();
    producer.ask("drop", "dropped 1");
    until("the tensor is gone", || reason_of(&client, &reference) == Some(Reason::NotFound));
    assert_eq!(read.view().unwrap().to_vec(), pattern(1, 100));
    drop((read, client, producer));
    sidecar.assert_all_free();
}

fn reason_of(client: &tensorlane_client::Client, reference: &tensorlane_proto::Reference) -> Option<Reason> {
    client.describe(reference).err().and_then(|error| error.reason())
}

#[test]
fn without_a_process_that_reaches_the_gpu_nobody_waits() {
    let sidecar = Sidecar::start();
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    producer.ask("keep a 100 1", "put");
    let mut other = GpuWorkload::start(&sidecar, &GpuDriver::fake().with("FAKE_CUDA_FIRST", 1));
    other.ask("put b 100 2", "put");
    assert_eq!(other.ask("get a", "got"), sight(1, 100, "local:other_gpu"), "the producer copies");
    other.ask("drop", "dropped 2");
    let began = Instant::now();
    let client = sidecar.client();
    producer.kill();
    // Its copy is there still, until room is needed.
    assert_eq!(got(&client, "a").0, pattern(1, 100));
    let mut again = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    again.ask("keep c 100 3", "put");
    assert!(again.finish().success());
    assert_eq!(other.ask("host c", "error"), "NO_GPU_PROCESS", "it reaches another GPU");
    let refused = failure(client.acquire("c", &AcquireOptions::new()).map(drop));
    assert_eq!(refused.reason, Reason::NoGpuProcess);
    assert!(began.elapsed() < Duration::from_secs(25), "at once");
    client.unname(&["a", "b", "c"]).unwrap();
    drop((client, other));
    sidecar.assert_all_free();
}

#[test]
fn a_process_that_stands_still_is_left_for_the_next_one() {
    where_the_machine_runs_on(|| {
        let sidecar = with_admin();
        let hang = sidecar.folder().join("hang");
        std::fs::write(&hang, "").unwrap();
        let stuck = GpuDriver::fake().with("FAKE_CUDA_HANG", hang.display());
        let mut first = GpuWorkload::start(&sidecar, &stuck);
        first.ask(&format!("put a {LARGE} 1"), "put");
        let client = sidecar.client();
        let reading = std::thread::spawn({
            let client = client.clone();
            move || got(&client, "a").0
        });
        until("it was asked", || moving(&sidecar) == 1.0);
        let mut second = GpuWorkload::start(&sidecar, &GpuDriver::fake());
        second.ask("put b 100 2", "put");
        assert!(reading.join().unwrap() == pattern(1, LARGE as usize), "by the second");
        assert_eq!(failures(&sidecar, "stalled"), 1.0);
        // The first goes on, and harms nobody: what it wrote is nobody's.
        std::fs::remove_file(&hang).unwrap();
        assert_eq!(first.ask("host b", "got"), sight(2, 100, "local:host_reader"));
        client.unname(&["a", "b"]).unwrap();
        drop((client, first, second));
        sidecar.assert_all_free();
    });
}

#[test]
fn the_only_process_that_stands_still_is_named_to_the_reader() {
    where_the_machine_runs_on(|| {
        let sidecar = with_admin();
        let mut producer = GpuWorkload::start(&sidecar, &slow(50));
        producer.ask(&format!("put a {LARGE} 1"), "put");
        // So that its segment is mapped.
        assert_eq!(got(&sidecar.client(), "a").0.len() as u64, LARGE);
        producer.ask("put b 100 2", "put");
        let client = sidecar.client();
        stop(producer.pid());
        assert_eq!(reason(client.acquire("b", &AcquireOptions::new()).map(drop)), Reason::StagerStalled);
        signal(producer.pid(), Signal::CONT);
        until("it goes on", || client.get("b", &AcquireOptions::new()).is_ok());
        assert_eq!(got(&client, "b").0, pattern(2, 100));
        client.unname(&["a", "b"]).unwrap();
        drop((client, producer));
        sidecar.assert_all_free();
    });
}

#[test]
fn a_process_that_is_killed_in_the_middle_is_left_for_the_next_one_or_nobody() {
    where_the_machine_runs_on(|| {
        let sidecar = with_admin();
        let mut dies = GpuWorkload::start(&sidecar, &slow(300));
        dies.ask(&format!("keep a {LARGE} 1"), "put");
        let client = sidecar.client();
        let read = |client: tensorlane_client::Client| {
            std::thread::spawn(move || client.get("a", &AcquireOptions::new()))
        };
        let alone = read(client.clone());
        until("it was asked", || moving(&sidecar) == 1.0);
        dies.kill();
        assert_eq!(reason(alone.join().unwrap().map(drop)), Reason::NoGpuProcess);
        let mut dies = GpuWorkload::start(&sidecar, &slow(300));
        dies.ask("put b 100 1", "put");
        let both = read(client.clone());
        until("it was asked", || moving(&sidecar) == 1.0);
        let mut lives = GpuWorkload::start(&sidecar, &GpuDriver::fake());
        lives.ask("put c 100 1", "put");
        dies.kill();
        assert!(both.join().unwrap().unwrap().bytes == pattern(1, LARGE as usize), "by the one that lives");
        client.unname(&["a", "b", "c"]).unwrap();
        drop((client, lives));
        until("the sidecar holds nothing", || descriptors(sidecar.pid(), "memfd:fake-gpu") == 0);
        sidecar.assert_all_free();
    });
}

#[test]
fn a_reader_that_leaves_or_is_late_takes_nothing_from_the_others() {
    where_the_machine_runs_on(|| {
        let sidecar = with_admin();
        let mut producer = GpuWorkload::start(&sidecar, &slow(200));
        producer.ask(&format!("put a {LARGE} 1"), "put");
        let client = sidecar.client();
        let patient = std::thread::spawn({
            let client = client.clone();
            move || got(&client, "a").0
        });
        until("it was asked", || moving(&sidecar) == 1.0);
        let short = AcquireOptions { deadline: Some(Duration::from_millis(100)), ..AcquireOptions::new() };
        assert_eq!(late(client.acquire("a", &short)), Reason::DeadlineExceeded);
        assert!(patient.join().unwrap() == pattern(1, LARGE as usize));
        // Nobody waits any more: it is given up.
        producer.ask(&format!("put b {LARGE} 2"), "put");
        assert_eq!(late(client.acquire("b", &short)), Reason::DeadlineExceeded);
        until("nothing is under way", || moving(&sidecar) == 0.0);
        assert_eq!(got(&client, "b").0, pattern(2, LARGE as usize), "and is made when it is wanted");
        let mut dies = GpuWorkload::start(&sidecar, &GpuDriver::fake());
        producer.ask(&format!("put c {LARGE} 3"), "put");
        dies.tell("host c");
        until("it was asked", || moving(&sidecar) == 1.0);
        dies.kill();
        until("nothing is under way for a dead reader", || moving(&sidecar) == 0.0);
        client.unname(&["a", "b", "c"]).unwrap();
        drop((client, producer));
        sidecar.assert_all_free();
    });
}

#[test]
fn a_driver_that_refuses_is_named_to_the_reader() {
    let sidecar = with_admin();
    let broken = GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuMemcpyDtoHAsync_v2:700");
    let mut producer = GpuWorkload::start(&sidecar, &broken);
    producer.ask("put a 100 1", "put");
    let client = sidecar.client();
    let refused = failure(client.acquire("a", &AcquireOptions::new()).map(drop));
    assert_eq!(refused.reason, Reason::StagingFailed);
    assert!(refused.message.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{refused}");
    assert_eq!(failures(&sidecar, "failed"), 1.0);
    // A driver that does not know the host's memory copies all the same.
    let plain = GpuDriver::fake().with("FAKE_CUDA_FAIL", "cuMemHostRegister_v2:801");
    let mut other = GpuWorkload::start(&sidecar, &plain);
    other.ask(&format!("put b {LARGE} 2"), "put");
    assert!(got(&client, "b").0 == pattern(2, LARGE as usize));
    client.unname(&["a", "b"]).unwrap();
    drop((client, producer, other));
    sidecar.assert_all_free();
}

#[test]
fn a_full_arena_is_told_and_idle_copies_make_room() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("arena.size", "64Mi").admin());
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    let client = sidecar.client();
    for (name, seed) in [("a", 1), ("b", 2), ("c", 3)] {
        producer.ask(&format!("put {name} {} {seed}", 24 << 20), "put");
        assert!(got(&client, name).0 == pattern(seed, 24 << 20), "{name}: the copy before makes room");
    }
    producer.ask(&format!("put large {} 4", 80 << 20), "put");
    let refused = reason(client.acquire("large", &AcquireOptions::new()).map(drop));
    assert!(matches!(refused, Reason::NeverFits | Reason::ArenaFull), "{refused}");
    let held = client.acquire("a", &AcquireOptions::new()).unwrap();
    let short = AcquireOptions { deadline: Some(Duration::from_millis(500)), ..AcquireOptions::new() };
    producer.ask(&format!("put d {} 5", 40 << 20), "put");
    let refused = late(client.acquire("d", &short));
    assert!(matches!(refused, Reason::ArenaFull | Reason::DeadlineExceeded), "{refused}");
    drop(held);
    assert!(got(&client, "d").0 == pattern(5, 40 << 20));
    client.unname(&["a", "b", "c", "d", "large"]).unwrap();
    drop((client, producer));
    sidecar.assert_all_free();
}

#[test]
fn a_killed_sidecar_leaves_stagers_that_serve_the_next_one() {
    let mut sidecar = Sidecar::start();
    let mut producer = GpuWorkload::start(&sidecar, &slow(200));
    producer.ask(&format!("put a {LARGE} 1"), "put");
    let mut reader = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    reader.tell("host a");
    sidecar.kill();
    assert_eq!(reader.answer(), "error lost");
    sidecar.start_again();
    until("it connects anew", || {
        producer.tell("put b 100 2");
        producer.answer().starts_with("put")
    });
    let client = sidecar.client();
    until("its stager, too", || client.get("b", &AcquireOptions::new()).is_ok());
    assert_eq!(got(&client, "b").0, pattern(2, 100));
    client.unname(&["b"]).unwrap();
    drop((client, producer, reader));
    sidecar.assert_all_free();
}

#[test]
fn a_stager_ends_with_its_client_and_leaves_nothing() {
    let sidecar = Sidecar::start();
    let mut producer = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    producer.ask("put a 5000000 1", "put");
    assert_eq!(got(&sidecar.client(), "a").0.len(), 5_000_000);
    sidecar.client().unname(&["a"]).unwrap();
    producer.ask("drop", "dropped 1");
    until("it maps no memory of a GPU but what it keeps for the next put", || {
        producer.ask("trim", "trimmed");
        maps(producer.pid(), "memfd:fake-gpu") == 0
    });
    drop(producer);
    sidecar.assert_all_free();
}

#[test]
fn a_far_reader_hears_why_and_leaves_nothing_at_the_owner() {
    where_the_machine_runs_on(|| {
        let (both, _folder) = pair();
        let mut producer = GpuWorkload::start(&both[0], &slow(300));
        let large = producer.ask(&format!("put large {LARGE} 1"), "put");
        let far = both[1].client();
        let short = AcquireOptions { deadline: Some(Duration::from_millis(300)), ..AcquireOptions::new() };
        assert_eq!(late(far.acquire("large", &short)), Reason::DeadlineExceeded);
        until("the owner does nothing for it", || moving(&both[0]) == 0.0);
        let mut strict = AcquireOptions::new();
        strict.require.zero_copy = true;
        assert_eq!(reason(far.acquire("large", &strict).map(drop)), Reason::RequirementNotMet);
        producer.ask(&format!("keep small {} 2", 100), "put");
        producer.kill();
        for name in ["small", "large"] {
            let refused = far.acquire(name, &AcquireOptions::new()).map(drop);
            let refused = reason(refused);
            assert!(matches!(refused, Reason::NoGpuProcess | Reason::NotFound), "{name}: {refused}");
        }
        drop(large);
        both[0].client().unname(&["small", "large"]).unwrap();
        drop(far);
        both.iter().for_each(Sidecar::assert_all_free);
    });
}
