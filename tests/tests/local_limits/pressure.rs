//! An arena that is full: who waits and in which order, who is refused and why, what is taken back, and that no byte of
//! one tensor ever shows in another.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tensorlane_client::{AcquireOptions, Cancel, Client, Error, PutOptions, Result, Stored, Tensor};
use tensorlane_proto::Reason;
use tensorlane_proto::generated::ArenaStatus;
use tensorlane_tests::tensors::{is_intact, put_pattern, seeded, u8s};
use tensorlane_tests::{Sidecar, SidecarOptions, Workload, failure, failure_in_time, until};

const MIB: u64 = 1 << 20;
/// Each put of this size takes a segment of its own.
const SEGMENT: u64 = 16 * MIB;
/// Nine of them are for puts, a tenth is for pulls.
const ARENA: u64 = 10 * SEGMENT;
const MOST: u64 = 9;
/// Longer than any test: who waits for that has not been given what it waits for.
const FOREVER: Duration = Duration::from_secs(600);

fn sidecar() -> Sidecar {
    Sidecar::with(SidecarOptions::default().set("arena.size", ARENA).set("arena.segment", SEGMENT))
}

fn all() -> AcquireOptions {
    AcquireOptions::new()
}

/// Status of the arena, without what is populated ahead of need: that changes by itself.
fn arena(client: &Client) -> ArenaStatus {
    ArenaStatus { populated: 0, ..client.status().unwrap().arena.unwrap() }
}

fn put(client: &Client, seed: u64, bytes: u64, patience: Duration) -> Result<Stored> {
    let options = PutOptions { deadline: Some(patience), ..PutOptions::new() };
    put_pattern(client, seed, bytes, &options)
}

/// All that puts may take, a segment each.
fn fill(client: &Client) -> Vec<Stored> {
    (0..MOST).map(|seed| put(client, seed, SEGMENT, FOREVER).unwrap()).collect()
}

/// A put in a thread of its own, which waits for room by the time this returns.
fn waiting_put(
    sidecar: &Sidecar,
    watcher: &Client,
    bytes: u64,
    patience: Duration,
) -> Receiver<Result<(Client, Stored)>> {
    let (client, before) = (sidecar.client(), watcher.status().unwrap().waiting);
    let (send, outcome) = channel();
    std::thread::spawn(move || {
        let stored = put(&client, 77, bytes, patience);
        // A test that has ended does not listen.
        let _ = send.send(stored.map(|stored| (client, stored)));
    });
    until("it waits for room", || watcher.status().unwrap().waiting == before + 1);
    outcome
}

#[test]
fn who_waits_for_room_gets_it_in_the_order_of_arrival() {
    let sidecar = sidecar();
    let client = sidecar.client();
    let mut full = fill(&client);
    let waiters: Vec<_> = (0..3).map(|_| waiting_put(&sidecar, &client, SEGMENT, FOREVER)).collect();
    let mut served = Vec::new();
    for (place, waiter) in waiters.iter().enumerate() {
        assert!(waiter.try_recv().is_err(), "there is no room yet");
        drop(full.pop());
        client.flush().unwrap();
        served.push(waiter.recv_timeout(Duration::from_secs(30)).expect("its turn").unwrap());
        let still = 2 - place as u64;
        assert_eq!(client.status().unwrap().waiting, still, "only the first was served");
    }
    drop((full, served));
    sidecar.assert_all_free();
}

#[test]
fn a_small_put_does_not_overtake_a_large_one_that_came_first() {
    let sidecar = sidecar();
    let client = sidecar.client();
    let mut full = fill(&client);
    let large = waiting_put(&sidecar, &client, 2 * SEGMENT, FOREVER);
    let small = waiting_put(&sidecar, &client, MIB, FOREVER);
    drop(full.pop());
    client.flush().unwrap();
    until("a segment is given back", || arena(&client).free >= 2 * SEGMENT);
    assert!(
        large.try_recv().is_err() && small.try_recv().is_err(),
        "room for the small one, which came second"
    );
    drop(full.pop());
    client.flush().unwrap();
    let large = large.recv_timeout(Duration::from_secs(30)).expect("room for the large one").unwrap();
    assert!(small.try_recv().is_err());
    drop(full.pop());
    client.flush().unwrap();
    let small = small.recv_timeout(Duration::from_secs(30)).expect("room for the small one").unwrap();
    drop((full, large, small));
    sidecar.assert_all_free();
}

#[test]
fn who_waits_in_vain_is_told_how_full_it_is_and_by_whom() {
    let sidecar = sidecar();
    let client = sidecar.client();
    let full = fill(&client);
    let before = arena(&client);
    let late = sidecar.client();
    let full_now = failure_in_time(|| put(&late, 1, SEGMENT, Duration::from_millis(50)));
    assert_eq!(full_now.reason, Reason::ArenaFull, "{full_now}");
    let number = |key: &str| full_now.detail(key).and_then(|text| text.parse::<u64>().ok());
    assert_eq!(number("asked_bytes"), Some(SEGMENT));
    assert_eq!(number("sealed_bytes"), Some(MOST * SEGMENT));
    let parts = ["free_bytes", "sealed_bytes", "reserved_bytes", "held_bytes", "retired_bytes"];
    assert_eq!(parts.map(|key| number(key).unwrap()).iter().sum::<u64>(), ARENA, "{full_now}");
    let holder = full_now.detail("holder_1").expect("who has the most");
    assert!(holder.contains(&(MOST * SEGMENT).to_string()), "{holder}");
    // Small ones go through the sidecar's own segments, and are told the same.
    let small = failure_in_time(|| put(&late, 1, 1000, Duration::from_millis(50)));
    assert_eq!(small.reason, Reason::ArenaFull, "{small}");
    until("nothing is left of it", || arena(&client) == before);
    drop(full);
    sidecar.assert_all_free();
}

#[test]
fn free_bytes_that_a_put_cannot_have_are_told_apart() {
    const KEPT: u64 = 2 * MIB;
    let sidecar = sidecar();
    for seed in 0..MOST {
        // Each leaves a tensor behind that is too large for a small segment, in one of its own.
        let options = PutOptions { no_lease: true, ..PutOptions::named(format!("kept/{seed}")) };
        drop(put_pattern(&sidecar.client(), seed, KEPT, &options).unwrap());
    }
    let client = sidecar.client();
    let ends = MOST * (SEGMENT - KEPT);
    until("the sidecar has what the sessions left", || arena(&client).free == ends + ARENA - MOST * SEGMENT);
    let status = arena(&client);
    assert_eq!((status.largest_put, status.largest_copied_put), (0, SEGMENT - KEPT));
    let full = failure_in_time(|| put(&client, 1, MIB, Duration::from_millis(50)));
    assert_eq!(full.reason, Reason::ArenaFull, "{full}");
    let number = |key: &str| full.detail(key).and_then(|text| text.parse::<u64>().ok());
    assert_eq!(number("free_bytes"), Some(status.free));
    assert_eq!(number("usable_bytes"), Some(0));
    assert_eq!(number("free_elsewhere_bytes"), Some(ends));
    assert_eq!(number("free_for_pulls_bytes"), Some(ARENA - MOST * SEGMENT));
    assert!(full.detail("holder_1").is_none(), "names are no holders: {full}");
    // What the sidecar writes itself goes there.
    drop(put(&client, 1, 1000, FOREVER).unwrap());
    let names: Vec<String> = (0..MOST).map(|seed| format!("kept/{seed}")).collect();
    client.unname(&names).unwrap();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let sidecar = sidecar();
    let client = sidecar.client();
    let full = fill(&client);
    for bytes in [MOST * SEGMENT + 1, ARENA + 1, 1 << 40] {
        let patient = client.with_deadline(FOREVER);
        let never = failure(patient.reserve(&u8s(bytes)));
        assert_eq!(never.reason, Reason::NeverFits, "{never}");
        assert_eq!(never.detail("most_bytes"), Some((MOST * SEGMENT).to_string().as_str()));
    }
    drop(full);
    // One that only just fits does.
    drop(client.reserve(&u8s(MOST * SEGMENT)).unwrap());
    sidecar.assert_all_free();
}

#[test]
fn a_withdrawn_wait_leaves_no_trace() {
    let sidecar = sidecar();
    let client = sidecar.client();
    let full = fill(&client);
    let before = arena(&client);
    let other = sidecar.client();
    let cancel = Cancel::new();
    let waiter = other.with_deadline(FOREVER).with_cancel(cancel.clone());
    let waiting = std::thread::spawn(move || waiter.reserve(&u8s(SEGMENT)).map(|_| ()));
    until("it waits", || client.status().unwrap().waiting == 1);
    cancel.cancel();
    let withdrawn = waiting.join().unwrap();
    assert!(matches!(withdrawn, Err(Error::Withdrawn)), "{withdrawn:?}");
    until("nobody waits", || client.status().unwrap().waiting == 0);
    assert_eq!((arena(&client), client.status().unwrap().tensors), (before, MOST));
    // Its session goes on.
    assert_eq!(other.status().unwrap().waiting, 0);
    drop(full);
    sidecar.assert_all_free();
}

#[test]
fn a_client_that_dies_while_it_waits_leaves_no_trace_and_the_next_one_is_served() {
    let sidecar = sidecar();
    let client = sidecar.client();
    let mut full = fill(&client);
    let mut doomed = Workload::start(&sidecar);
    doomed.tell(&format!("put doomed {SEGMENT} 1"));
    until("it waits", || client.status().unwrap().waiting == 1);
    let next = waiting_put(&sidecar, &client, SEGMENT, FOREVER);
    doomed.kill();
    until("one waits", || client.status().unwrap().waiting == 1);
    drop(full.pop());
    client.flush().unwrap();
    let next = next.recv_timeout(Duration::from_secs(30)).expect("its turn").unwrap();
    assert_eq!(client.status().unwrap().names, 0);
    drop((full, next));
    sidecar.assert_all_free();
}

#[test]
fn idle_segments_of_a_live_session_are_taken_back_and_its_tensors_stay() {
    let sidecar = sidecar();
    let (idle, busy) = (sidecar.client(), sidecar.client());
    let kept = put(&idle, 1000, SEGMENT, FOREVER).unwrap();
    let tensor = busy.acquire(kept.reference(), &all()).unwrap();
    drop((1..MOST).map(|seed| put(&idle, seed, SEGMENT, FOREVER).unwrap()).collect::<Vec<_>>());
    idle.flush().unwrap();
    assert_eq!(arena(&idle).held, (MOST - 1) * SEGMENT, "its to use again");
    let theirs: Vec<_> = (1..MOST).map(|seed| put(&busy, seed, SEGMENT, FOREVER).unwrap()).collect();
    assert_eq!(arena(&busy).held, 0, "another needed it more");
    let read = |stored: &Stored| is_intact(&busy.acquire(stored.reference(), &all()).unwrap());
    assert!(theirs.iter().all(read) && is_intact(&tensor));
    drop(theirs);
    busy.flush().unwrap();
    // And back again.
    let again: Vec<_> = (1..MOST).map(|seed| put(&idle, seed, SEGMENT, FOREVER).unwrap()).collect();
    assert!(again.iter().all(read) && is_intact(&tensor));
    drop((kept, tensor, again));
    sidecar.assert_all_free();
}

#[test]
fn a_segment_is_not_taken_back_before_every_process_has_unmapped_it() {
    let sidecar = sidecar();
    let client = sidecar.client();
    let full = fill(&client);
    // A process that maps everything and then does not react any more.
    let mut stuck = Workload::start(&sidecar);
    for stored in &full {
        stuck.ask(&format!("acquire {}", stored.reference()), "acquired 1");
    }
    stuck.stop();
    drop(full);
    client.flush().unwrap();
    let other = sidecar.client();
    let refused = failure_in_time(|| put(&other, 1, SEGMENT, Duration::from_millis(300)));
    assert_eq!(refused.reason, Reason::ArenaFull, "{refused}");
    stuck.signal(rustix::process::Signal::CONT);
    stuck.ask("verify", &format!("intact {MOST}"));
    stuck.ask("drop", "dropped");
    drop(put(&other, 1, SEGMENT, FOREVER).unwrap());
    assert!(stuck.finish().success());
    drop((client, other));
    sidecar.assert_all_free();
}

#[test]
fn a_reused_block_shows_nothing_to_anyone_before_it_is_sealed() {
    let sidecar = sidecar();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let place = |tensor: &Tensor| tensor.view().unwrap().as_ptr() as usize;
    let first = put(&writer, 1, MIB, FOREVER).unwrap();
    let tensor = reader.acquire(first.reference(), &all()).unwrap();
    let (old, at) = (first.reference().clone(), place(&tensor));
    drop((first, tensor));
    for client in [&writer, &reader] {
        client.flush().unwrap();
        client.status().unwrap();
    }
    let reservation = writer.reserve(&seeded(2, MIB)).unwrap();
    for unsealed in [old.id(), reservation.id()] {
        let target = tensorlane_client::Target::Id(unsealed);
        let refused = failure(reader.acquire(target, &all()));
        assert!(matches!(refused.reason, Reason::NotFound | Reason::NotSealed), "{refused}");
    }
    drop(reservation);
    let second = put(&writer, 3, MIB, FOREVER).unwrap();
    let tensor = reader.acquire(second.reference(), &all()).unwrap();
    assert_eq!(place(&tensor), at, "the same block again, or this test shows nothing");
    assert!(is_intact(&tensor));
    drop((second, tensor));
    sidecar.assert_all_free();
}

#[test]
fn populating_that_fails_is_told_and_leaves_nothing() {
    // Files of this sidecar may have a segment, and not much more: the kernel refuses to make larger ones.
    let limit = format!("--fsize={}", SEGMENT + MIB);
    let enter = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\"", "prlimit", &limit];
    let options = SidecarOptions::default().admin().set("arena.segment", SEGMENT).prefix(enter);
    let sidecar = Sidecar::with(options);
    let client = sidecar.client();
    let fits = put(&client, 1, MIB, FOREVER).unwrap();
    let before = arena(&client);
    for _ in 0..3 {
        let refused = failure(put(&client, 2, 3 * SEGMENT, FOREVER));
        assert_eq!(refused.reason, Reason::ArenaFull, "{refused}");
        assert!(refused.message.contains("File too large"), "what the kernel said: {refused}");
    }
    assert_eq!((arena(&client), client.status().unwrap().tensors), (before, 1));
    assert!(sidecar.metric("tensorlane_arena_populate_failures_total", &[]) >= 3.0);
    assert!(is_intact(&client.acquire(fits.reference(), &all()).unwrap()));
    let after = put(&client, 3, MIB, FOREVER).unwrap();
    drop((fits, after));
    sidecar.assert_all_free();
}

/// Processes that put, name, read and drop at random in an arena that is always nearly full.
fn churn(processes: u64, rounds: u64, arena: &str) {
    let options = SidecarOptions::default()
        .set("arena.size", arena)
        .set("arena.segment", "4Mi")
        .set("arena.ready", "4Mi");
    let sidecar = Sidecar::with(options);
    let mut workloads: Vec<_> = (0..processes).map(|_| Workload::start(&sidecar)).collect();
    for (seed, workload) in workloads.iter_mut().enumerate() {
        workload.tell(&format!("churn {} {rounds}", seed + 1));
    }
    for workload in &mut workloads {
        let checked: u64 = workload.expect_within("churned", Duration::from_secs(120)).parse().unwrap();
        assert!(checked > rounds / 4, "only {checked} tensors were looked at");
    }
    let client = sidecar.client();
    let names: Vec<_> = client.list("churn/").map(|listed| listed.unwrap().name).collect();
    client.unname(&names).unwrap();
    drop((workloads, client));
    sidecar.assert_all_free();
}

#[test]
fn a_tensor_shows_its_own_bytes_however_often_its_block_was_reused() {
    churn(3, 700, "48Mi");
}

mod slow {
    #[test]
    fn a_tensor_shows_its_own_bytes_after_ten_thousand_rounds_of_many_processes() {
        super::churn(5, 2000, "80Mi");
    }
}
