//! Processes die at the worst moments: what they held goes, what others see stays, and no byte is reused too early.

use rustix::process::Signal;
use tensorlane_client::{Client, Item, PutOptions, Stored, Target};
use tensorlane_proto::Reason;
use tensorlane_tests::tensors::{is_intact, pattern, put_pattern, seeded};
use tensorlane_tests::{Sidecar, SidecarOptions, Workload, reason, until};

use super::all;

/// So many small tensors under `PREFIX0000` and on, which names alone keep.
fn put_named(client: &Client, prefix: &str, count: u64) -> Vec<String> {
    let tensors: Vec<_> = (0..count).map(|i| (seeded(i, 100 + i), pattern(i, 100 + i as usize))).collect();
    let names: Vec<String> = (0..count).map(|i| format!("{prefix}{i:04}")).collect();
    let items: Vec<Item<'_>> = tensors
        .iter()
        .zip(&names)
        .map(|((descriptor, bytes), name)| {
            let options = PutOptions { no_lease: true, ..PutOptions::named(name) };
            Item { descriptor, bytes, options }
        })
        .collect();
    client.put_many(&items).into_iter().for_each(|stored| assert!(stored.is_ok()));
    names
}

fn retired(client: &Client) -> u64 {
    client.status().unwrap().arena.unwrap().retired
}

#[test]
fn a_thousand_leases_go_when_their_holder_is_killed() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let names = put_named(&client, "many/", 1000);
    let mut holder = Workload::start(&sidecar);
    holder.ask("hold many/", "held 1000");
    assert_eq!(client.status().unwrap().leases, 1000);
    // Only the dead process keeps them now.
    client.unname(&names).unwrap();
    assert_eq!(client.status().unwrap().tensors, 1000);
    holder.ask("verify", "intact 1000");
    holder.kill();
    until("its leases are gone, and what they kept", || {
        let status = client.status().unwrap();
        (status.leases, status.tensors) == (0, 0)
    });
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_killed_writers_reservation_was_never_there() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for bytes in [4096, 1 << 20, 40 << 20] {
        let mut writer = Workload::start(&sidecar);
        let id = writer.ask(&format!("reserve {bytes}"), "reserved").parse().unwrap();
        assert_eq!(reason(client.acquire(Target::Id(id), &all())), Reason::NotFound);
        writer.kill();
        until("the reservation is gone", || client.status().unwrap().tensors == 0);
        assert_eq!(reason(client.acquire(Target::Id(id), &all())), Reason::NotFound);
    }
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn readers_keep_the_bytes_of_a_killed_writer() {
    let sidecar = Sidecar::start();
    let mut writer = Workload::start(&sidecar);
    let mut reader = Workload::start(&sidecar);
    // One in a segment of the sidecar, two in the writer's own.
    for (name, bytes) in [("small", 1000), ("medium", 1 << 20), ("large", 30 << 20)] {
        writer.ask(&format!("put {name} {bytes} {bytes}"), "put");
    }
    reader.ask("acquire small medium large", "acquired 3");
    writer.kill();
    let client = sidecar.client();
    until("the writer's leases are gone", || client.status().unwrap().leases == 3);
    reader.ask("verify", "intact 3");
    // Its segments are read-only now; whoever comes later reads them all the same.
    for name in ["small", "medium", "large"] {
        assert!(is_intact(&client.acquire(name, &all()).unwrap()));
    }
    client.unname(&["small", "medium", "large"]).unwrap();
    reader.ask("verify", "intact 3");
    reader.kill();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn clients_killed_in_the_middle_of_everything_leave_others_their_bytes_and_nothing_else() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let names = put_named(&client, "shared/", 100);
    let mut reader = Workload::start(&sidecar);
    reader.ask("acquire-loop shared/", "looping");
    for round in 0..6 {
        let mut getter = Workload::start(&sidecar);
        let mut putter = Workload::start(&sidecar);
        getter.ask("acquire-loop shared/", "looping");
        // Large ones in place, small ones inside the request.
        let bytes = if round % 2 == 0 { 300_000 } else { 3_000 };
        putter.ask(&format!("put-loop {bytes} {}", round * 1_000_000), "looping");
        putter.expect("round 100");
        getter.expect("round 100");
        putter.kill();
        getter.kill();
    }
    reader.expect("round 100");
    reader.kill();
    until("only the shared ones are left", || client.status().unwrap().tensors == 100);
    for tensor in client.acquire_many(&names.iter().map(Target::name).collect::<Vec<_>>(), &all()) {
        assert!(is_intact(&tensor.unwrap()));
    }
    client.unname(&names).unwrap();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_block_waits_for_the_child_that_still_maps_it() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 7, 8 << 20, &PutOptions::named("mapped")).unwrap();
    let mut parent = Workload::start(&sidecar);
    parent.ask("acquire mapped", "acquired 1");
    let child = parent.fork();
    parent.kill();
    until("the parent's lease is gone", || client.status().unwrap().leases == 1);
    client.unname(&["mapped"]).unwrap();
    drop(stored);
    client.flush().unwrap();
    let status = client.status().unwrap();
    assert_eq!((status.tensors, status.leases), (0, 0), "nobody can get the tensor any more");
    assert_eq!(status.arena.unwrap().retired, 8 << 20, "and yet its block is nobody else's");
    // The writer writes into its other room as much as it likes.
    for seed in 0..40 {
        let other = put_pattern(&client, seed, 4 << 20, &PutOptions::new()).unwrap();
        assert!(is_intact(&client.acquire(other.reference(), &all()).unwrap()));
    }
    assert!(child.runs());
    assert_eq!(retired(&client), 8 << 20);
    child.kill();
    until("the block comes back", || retired(&client) == 0);
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn the_child_that_still_maps_sees_the_bytes_that_it_mapped() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 7, 1 << 20, &PutOptions::named("mapped")).unwrap();
    let mut parent = Workload::start(&sidecar);
    parent.ask("acquire mapped", "acquired 1");
    let watcher = parent.fork_watching();
    parent.kill_alone();
    client.unname(&["mapped"]).unwrap();
    drop(stored);
    until("the tensor is gone", || client.status().unwrap().tensors == 0);
    // Everything that can be written is written again and again, beside the child's block.
    for seed in 100..300 {
        drop(put_pattern(&client, seed, 1 << 20, &PutOptions::new()).unwrap());
        drop(put_pattern(&client, seed, 60_000, &PutOptions::new()).unwrap());
    }
    watcher.wait_until_stopped();
    watcher.signal(Signal::CONT);
    parent.expect("intact");
    until("the child is gone", || !watcher.runs());
    drop((parent, client));
    sidecar.assert_all_free();
}

#[test]
fn a_session_ends_with_its_process_though_a_child_holds_the_socket() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    put_named(&client, "held/", 10);
    let mut parent = Workload::start(&sidecar);
    parent.ask("hold held/", "held 10");
    let child = parent.fork();
    assert_eq!(client.status().unwrap().sessions, 2);
    parent.kill();
    until("the session has ended, with its leases", || {
        let status = client.status().unwrap();
        (status.sessions, status.leases) == (1, 0)
    });
    assert!(child.runs(), "it is the child that has the socket open");
    client.unname(&(0..10).map(|i| format!("held/{i:04}")).collect::<Vec<_>>()).unwrap();
    child.kill();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_forked_child_gives_nothing_back_and_may_call_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let names = put_named(&client, "held/", 10);
    let mut parent = Workload::start(&sidecar);
    parent.ask("hold held/", "held 10");
    parent.tell("fork-drop");
    let mut answers = [parent.answer(), parent.answer()];
    answers.sort();
    let [child, saw] = answers;
    assert_eq!(saw, "saw 10 and forked", "it reads what it inherited and calls nothing");
    let child =
        tensorlane_tests::process::Orphan::adopt(child.strip_prefix("child ").unwrap().parse().unwrap());
    client.unname(&names).unwrap();
    // Whatever the child did, the parent's leases stand.
    parent.ask("verify", "intact 10");
    assert_eq!((client.status().unwrap().leases, client.status().unwrap().tensors), (10, 10));
    child.kill();
    parent.ask("status", "ok");
    parent.ask("verify", "intact 10");
    assert_eq!(client.status().unwrap().leases, 10);
    parent.ask("drop", "dropped 10");
    until("the sidecar has read that they are given back", || client.status().unwrap().tensors == 0);
    assert!(parent.finish().success());
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn what_a_parent_gives_back_waits_for_a_child_that_may_map_it() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 3, 2 << 20, &PutOptions::named("mapped")).unwrap();
    let mut parent = Workload::start(&sidecar);
    parent.ask("acquire mapped", "acquired 1");
    let child = parent.fork();
    client.unname(&["mapped"]).unwrap();
    drop(stored);
    client.flush().unwrap();
    parent.ask("drop", "dropped 1");
    until("the sidecar has read that it is given back", || client.status().unwrap().tensors == 0);
    assert_eq!(retired(&client), 2 << 20, "the child maps it still");
    child.kill();
    parent.kill();
    until("the block comes back", || retired(&client) == 0);
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_stopped_client_keeps_its_leases_and_goes_on_where_it_was() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let names = put_named(&client, "held/", 10);
    let mut holder = Workload::start(&sidecar);
    holder.ask("hold held/", "held 10");
    client.unname(&names).unwrap();
    holder.stop();
    // A great deal happens meanwhile.
    for seed in 0..300 {
        let stored = put_pattern(&client, seed, 500_000, &PutOptions::new()).unwrap();
        assert!(is_intact(&client.acquire(stored.reference(), &all()).unwrap()));
    }
    let status = client.status().unwrap();
    assert_eq!((status.leases, status.tensors), (10, 10));
    holder.signal(Signal::CONT);
    holder.ask("verify", "intact 10");
    holder.ask("status", "ok");
    assert!(holder.finish().success());
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_client_that_reads_nothing_is_cut_and_does_not_hold_up_the_rest() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let stored = put_pattern(&client, 1, 64, &PutOptions::named("one")).unwrap();
    let mut deaf = tensorlane_tests::raw::RawSession::begin(&sidecar);
    let target = tensorlane_proto::generated::Target {
        kind: Some(tensorlane_proto::generated::target::Kind::Name("one".into())),
        peer: String::new(),
    };
    let request =
        tensorlane_proto::generated::DescribeRequest { targets: vec![target; 10_000], deadline_ms: 0 };
    // It asks, and never listens.
    let asking = std::thread::spawn(move || {
        for _ in 0..400 {
            deaf.send(tensorlane_proto::frame::SessionKind::Describe, &request);
        }
        deaf
    });
    while client.status().unwrap().sessions > 1 {
        assert!(is_intact(&client.acquire("one", &all()).unwrap()));
    }
    drop(asking.join().unwrap());
    drop::<Stored>(stored);
    client.unname(&["one"]).unwrap();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn sessions_that_come_and_go_leave_no_descriptor_and_no_thread() {
    let sidecar = Sidecar::with(SidecarOptions::default());
    let count = |what: &str| std::fs::read_dir(format!("/proc/{}/{what}", sidecar.pid())).unwrap().count();
    let round = |seed: u64| {
        let client = sidecar.client();
        let small = put_pattern(&client, seed, 1000, &PutOptions::new()).unwrap();
        let large = put_pattern(&client, seed, 3 << 20, &PutOptions::new()).unwrap();
        assert!(is_intact(&client.acquire(small.reference(), &all()).unwrap()));
        assert!(is_intact(&client.acquire(large.reference(), &all()).unwrap()));
    };
    (0..5).for_each(round);
    sidecar.assert_all_free();
    let (descriptors, threads) = (count("fd"), count("task"));
    (5..105).for_each(round);
    sidecar.assert_all_free();
    // The arena of 16 segments may keep all of them warm, with two descriptors each; one a session would be a hundred.
    until("descriptors are given back", || count("fd") <= descriptors + 2 * 16 + 10);
    until("threads have ended", || count("task") <= threads + 10);
}
