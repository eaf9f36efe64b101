//! The sidecar dies or is ended while clients map its memory, and comes back beside what is still mapped.

use std::time::{Duration, Instant};

use tensorlane_client::{Client, Error, PutOptions};
use tensorlane_proto::Reason;
use tensorlane_proto::generated::ArenaStatus;
use tensorlane_tests::cgroup::MemoryCgroup;
use tensorlane_tests::tensors::{is_intact, put_pattern};
use tensorlane_tests::{Sidecar, SidecarOptions, Workload, reason, until};

use super::all;

const MIB: u64 = 1 << 20;

fn arena(client: &Client) -> ArenaStatus {
    client.status().unwrap().arena.unwrap()
}

#[test]
fn bytes_stay_readable_when_the_sidecar_is_killed_and_the_client_finds_the_next_one() {
    let mut sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored: Vec<_> = [100, 100_000, 20 * MIB]
        .map(|bytes| put_pattern(&client, bytes, bytes, &PutOptions::new()).unwrap())
        .into_iter()
        .collect();
    let tensors: Vec<_> =
        stored.iter().map(|stored| client.acquire(stored.reference(), &all()).unwrap()).collect();
    let (reference, dead) = (stored[0].reference().clone(), client.incarnation().unwrap());
    sidecar.kill();
    assert!(tensors.iter().all(is_intact), "what is mapped is as it was");
    let began = Instant::now();
    let lost = client.status();
    assert!(matches!(lost, Err(Error::SessionLost { .. })), "{lost:?}");
    assert!(began.elapsed() < Duration::from_secs(25), "it fails at once");
    let nobody = client.with_deadline(Duration::from_millis(100)).status();
    assert!(matches!(nobody, Err(Error::SidecarUnreachable { .. })), "{nobody:?}");

    sidecar.start_again();
    assert_ne!(client.status().unwrap().incarnation, dead.to_string());
    assert!(tensors.iter().all(|tensor| is_intact(tensor) && !tensor.lease().is_live()));
    for refused in [client.acquire(&reference, &all()), client.acquire(stored[2].reference(), &all())] {
        assert_eq!(reason(refused), Reason::OwnerLost);
    }
    assert_eq!(reason(client.describe(&reference)), Reason::OwnerLost);
    assert_eq!(reason(client.name(&reference, "lost", None)), Reason::OwnerLost);
    let again = put_pattern(&client, 5, MIB, &PutOptions::new()).unwrap();
    assert!(is_intact(&client.acquire(again.reference(), &all()).unwrap()));
    assert!(tensors.iter().all(is_intact), "the new one's memory is other memory");
    drop((stored, tensors, again));
    sidecar.assert_all_free();
}

#[test]
fn a_call_that_waits_when_the_sidecar_dies_fails_at_once() {
    let mut sidecar = Sidecar::start();
    let client = sidecar.client();
    let waiter = client.clone();
    let waiting = std::thread::spawn(move || {
        let outcome = waiter.lookup(&["never"], None, Duration::from_secs(600));
        (outcome, Instant::now())
    });
    let looker = sidecar.client();
    let stored = put_pattern(&looker, 1, 64, &PutOptions::named("now")).unwrap();
    // Replies come in any order, so that this one says nothing about the other; the sockets are what matters.
    assert!(looker.lookup(&["now"], None, Duration::ZERO).unwrap()[0].is_ok());
    let killed = Instant::now();
    sidecar.kill();
    let (outcome, ended) = waiting.join().unwrap();
    assert!(matches!(outcome, Err(Error::SessionLost { .. })), "{outcome:?}");
    assert!(ended.duration_since(killed) < Duration::from_secs(100));
    drop(stored);
    sidecar.start_again();
    sidecar.assert_all_free();
}

#[test]
fn what_a_dead_incarnation_left_mapped_is_charged_until_it_is_let_go() {
    let mut sidecar = Sidecar::start();
    let writer = sidecar.client();
    let stored = put_pattern(&writer, 1, 40 * MIB, &PutOptions::named("large")).unwrap();
    let mut reader = Workload::start(&sidecar);
    reader.ask("acquire large", "acquired 1");
    let kept = writer.acquire("large", &all()).unwrap();
    sidecar.kill();
    sidecar.start_again();
    let client = sidecar.client();
    let inherited = arena(&client).inherited;
    assert!((40 * MIB..56 * MIB).contains(&inherited), "{inherited} bytes, once for two that map them");
    assert_eq!(arena(&client).retired, inherited);
    // One of the two lets go, which changes nothing; then the other dies.
    drop((kept, stored));
    drop(writer);
    reader.ask("verify", "intact 1");
    assert!(arena(&client).inherited > 0);
    reader.kill();
    until("all is regained", || arena(&client).inherited == 0);
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_client_that_reattaches_and_drops_gives_the_inherited_bytes_back() {
    let mut sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 40 * MIB, &PutOptions::new()).unwrap();
    let tensor = client.acquire(stored.reference(), &all()).unwrap();
    for _ in 0..3 {
        sidecar.kill();
        sidecar.start_again();
        assert!(matches!(client.status(), Err(Error::SessionLost { .. })));
        assert!(arena(&client).inherited >= 40 * MIB, "however often it dies");
        assert!(is_intact(&tensor));
    }
    drop((stored, tensor));
    until("all is regained", || arena(&client).inherited == 0);
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_sidecar_that_is_asked_to_end_ends_in_order() {
    let mut sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 10 * MIB, &PutOptions::new()).unwrap();
    let tensor = client.acquire(stored.reference(), &all()).unwrap();
    let reservation = client.reserve(&tensorlane_tests::tensors::u8s(MIB)).unwrap();
    let waiter = client.clone();
    let waiting = std::thread::spawn(move || waiter.lookup(&["never"], None, Duration::from_secs(600)));
    let began = Instant::now();
    assert_eq!(sidecar.terminate().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    assert!(waiting.join().unwrap().is_err());
    let sockets: Vec<_> = std::fs::read_dir(sidecar.sockets()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(sockets.is_empty(), "{sockets:?}");
    assert!(is_intact(&tensor));
    sidecar.start_again();
    drop((stored, tensor, reservation, client));
    sidecar.assert_all_free();
}

#[test]
fn a_socket_that_a_dead_sidecar_left_is_replaced() {
    let mut sidecar = Sidecar::start();
    sidecar.kill();
    let left = sidecar.sockets().join("session.sock");
    assert!(left.exists());
    let dead = Client::connect(sidecar.sockets());
    assert!(matches!(dead, Err(Error::SidecarUnreachable { .. })), "{dead:?}");
    sidecar.start_again();
    sidecar.assert_all_free();
}

/// A pod with a limit: arena, what the sidecar needs beside it, and what two workloads need for themselves. An arena that
/// is populated beside an old one overflows it by far.
const ARENA: u64 = 128 * MIB;
const BASE: u64 = 48 * MIB;
const WORKLOADS: u64 = 32 * MIB;
const POD: u64 = ARENA + BASE + WORKLOADS;
const SEGMENT: u64 = 16 * MIB;
const TENSOR: u64 = 2 * MIB;

fn in_a_pod(pod: &MemoryCgroup) -> SidecarOptions {
    SidecarOptions::default()
        .set("arena.size", ARENA)
        .set("arena.base", BASE)
        .set("arena.segment", SEGMENT)
        .prefix(pod.prefix())
}

#[test]
fn an_arena_above_the_containers_limit_is_refused_with_both_numbers() {
    let Some(pod) = MemoryCgroup::limited(ARENA) else { return };
    let (status, log) = Sidecar::refused(in_a_pod(&pod));
    assert_eq!(status.code(), Some(1), "{log}");
    for number in [(ARENA + BASE).to_string(), ARENA.to_string()] {
        assert!(log.contains(&number), "{number} is not in {log}");
    }
    assert_eq!(pod.kills(), 0);
    // What it says would fit does fit.
    let fits = Sidecar::with(in_a_pod(&pod).set("arena.size", ARENA - BASE));
    fits.assert_all_free();
}

/// Puts until the arena is full; how many tensors the workload has then.
fn fill(workload: &mut Workload, seed: u64) -> u64 {
    workload.ask(&format!("fill {TENSOR} {seed}"), "filled").parse().unwrap()
}

#[test]
fn a_sidecar_that_is_killed_beside_a_full_arena_gets_nobody_killed_when_it_comes_back() {
    let Some(pod) = MemoryCgroup::limited(POD) else { return };
    let mut sidecar = Sidecar::with(in_a_pod(&pod));
    // As much as puts may take: the rest is for pulls.
    let most = ARENA / 10 * 9 / TENSOR;
    // Segments need not come out in the same sizes each time, and waste a little at their ends.
    let all_but_one = most - 1;
    let mut first = Workload::start_in(&sidecar, pod.prefix());
    assert_eq!(fill(&mut first, 1000), most);
    sidecar.kill();
    sidecar.start_again();
    let client = sidecar.client();
    let inherited = arena(&client).inherited;
    assert!(inherited >= most * TENSOR && inherited <= ARENA, "{inherited}");
    let mut second = Workload::start_in(&sidecar, pod.prefix());
    assert_eq!(fill(&mut second, 2000), 0, "there is no room beside what is still mapped");
    first.ask("verify", &format!("intact {most}"));
    assert_eq!(pod.kills(), 0);
    first.ask("status", "error lost");
    first.kill();
    until("all is regained", || arena(&client).inherited == 0);
    let most = fill(&mut second, 3000);
    assert!(most >= all_but_one, "the whole arena is usable again: {most}");
    second.ask("verify", &format!("intact {most}"));
    for round in 0..3 {
        sidecar.kill();
        sidecar.start_again();
        second.ask("status", "error lost");
        assert_eq!(fill(&mut second, 4000 + round), most, "it holds what it held and gets no more");
        second.ask("verify", &format!("intact {most}"));
    }
    second.ask("drop", "dropped");
    let client = sidecar.client();
    until("all is regained", || arena(&client).inherited == 0);
    assert!(fill(&mut second, 5000) >= all_but_one);
    assert_eq!(pod.kills(), 0, "nobody was killed");
    second.kill();
    drop(client);
    sidecar.assert_all_free();
    drop(sidecar);
}

#[test]
fn writing_and_killing_at_random_in_a_pod_with_a_limit_kills_nobody() {
    let Some(pod) = MemoryCgroup::limited(POD) else { return };
    let mut sidecar = Sidecar::with(in_a_pod(&pod));
    for round in 0..4 {
        let mut holder = Workload::start_in(&sidecar, pod.prefix());
        let held = holder.ask(&format!("fill {} {}", 5 * MIB / 2, round * 1000), "filled");
        let mut writer = Workload::start_in(&sidecar, pod.prefix());
        writer.tell(&format!("put-loop {} {}", 3 * MIB / 2, round * 1_000_000));
        sidecar.kill();
        sidecar.start_again();
        holder.ask("verify", &format!("intact {held}"));
        let client = sidecar.client();
        let room = arena(&client);
        assert_eq!(room.total, ARENA);
        // Whatever fits beside the old is put and read.
        let options = PutOptions { deadline: Some(Duration::from_millis(200)), ..PutOptions::new() };
        if let Ok(stored) = put_pattern(&client, round, MIB, &options) {
            assert!(is_intact(&client.acquire(stored.reference(), &all()).unwrap()));
        }
        holder.ask("verify", &format!("intact {held}"));
        holder.kill();
        writer.kill();
        until("all is regained", || arena(&client).inherited == 0);
    }
    assert_eq!(pod.kills(), 0, "nobody was killed");
    sidecar.assert_all_free();
    drop(sidecar);
}
