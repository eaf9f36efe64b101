//! Names that are watched: what there is, then each change once and in order; going on from a revision; and being cut.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tensorlane_client::channel::Timeout;
use tensorlane_client::set::PublishOptions;
use tensorlane_client::{
    Cancel, Client, Error, Naming, PutOptions, Watch, WatchEvent, WatchKind, WatchOptions,
};
use tensorlane_proto::frame::SessionKind;
use tensorlane_proto::ledger::Limits;
use tensorlane_proto::set::{Node, Tree};
use tensorlane_proto::{Reason, Reference, Revision, generated as v1};
use tensorlane_tests::pipes::LONG;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::u8s;
use tensorlane_tests::{Sidecar, SidecarOptions, failure_in_time, reason, until};

/// A wait that ends in a test.
const SHORT: Timeout = Timeout::After(Duration::from_millis(50));
/// Names that fill one request.
const MANY: usize = 65_536;

/// A named tensor that outlives its writer's session; its reference.
fn put(client: &Client, name: &str) -> Reference {
    client.put(&u8s(4), &[7; 4], &PutOptions::named(name)).unwrap().reference().clone()
}

/// Gives these names to one tensor, in one request.
fn name_all(client: &Client, target: &Reference, names: impl Iterator<Item = String>) {
    let naming = |name| Naming { target: Some(target.clone().into()), name, replaces: None };
    client.name_together(&names.map(naming).collect::<Vec<_>>()).unwrap();
}

fn unname_all(client: &Client, names: impl Iterator<Item = String>) {
    client.unname(&names.collect::<Vec<_>>()).unwrap().into_iter().for_each(|done| done.unwrap());
}

fn shard(n: usize) -> String {
    format!("shard/{n:05}")
}

fn next(watch: &mut Watch) -> WatchEvent {
    watch.next(LONG).unwrap()
}

/// An event in short: what happened to which name.
fn said(event: &WatchEvent) -> (WatchKind, String) {
    (event.kind, event.name.clone())
}

fn says(watch: &mut Watch, kind: WatchKind, name: &str) -> WatchEvent {
    let event = next(watch);
    assert_eq!(said(&event), (kind, name.to_owned()));
    event
}

/// Reads what there is until the watch has told all of it.
fn synced(watch: &mut Watch) -> (Vec<WatchEvent>, Revision) {
    let mut present = Vec::new();
    loop {
        let event = next(watch);
        match event.kind {
            WatchKind::Present => present.push(event),
            WatchKind::Synced => return (present, event.revision.unwrap()),
            _ => panic!("{event:?} before what there is"),
        }
    }
}

/// Calls that wait for something to tell.
fn waiting(sidecar: &Sidecar) -> f64 {
    sidecar.metric("tensorlane_sidecar_waiting_requests", &["for=\"name\""])
}

#[test]
fn what_there_is_comes_first_and_then_each_change_once_and_in_order() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let (one, two) = (put(&writer, "policy/1"), put(&writer, "policy/2"));
    put(&writer, "other");
    let mut watch = reader.watch("policy/", WatchOptions::new());
    assert_eq!(watch.revision(), None);
    let (present, revision) = synced(&mut watch);
    let listed: Vec<_> = present.iter().map(|e| (e.name.as_str(), e.reference.clone(), e.revision)).collect();
    assert_eq!(listed, [("policy/1", Some(one.clone()), None), ("policy/2", Some(two.clone()), None)]);
    assert_eq!((revision.sequence, watch.revision()), (3, Some(revision)));

    let three = put(&writer, "policy/3");
    writer.name(&three, "policy/1", Some(&one)).unwrap();
    writer.name(&three, "policy/1", Some(&three)).unwrap();
    writer.unname(&["policy/2", "other"]).unwrap();
    writer.name(&three, "policy", None).unwrap();
    put(&writer, "policy/2");
    let appeared = says(&mut watch, WatchKind::Appeared, "policy/3");
    assert_eq!((appeared.reference.as_ref(), appeared.revision.unwrap().sequence), (Some(&three), 4));
    assert_eq!(says(&mut watch, WatchKind::Replaced, "policy/1").reference, Some(three.clone()));
    let gone = says(&mut watch, WatchKind::Gone, "policy/2");
    assert_eq!(gone.reference, None, "a tensor without a name and a lease is gone");
    let back = says(&mut watch, WatchKind::Appeared, "policy/2");
    let numbers: Vec<_> =
        [appeared, gone, back].iter().map(|event| event.revision.unwrap().sequence).collect();
    assert_eq!(
        numbers,
        [4, 6, 9],
        "each change of a name has a number, and a name given again to its tensor is none"
    );
    assert_eq!(failure_in_time(|| watch.next(SHORT)).reason, Reason::DeadlineExceeded);
    assert_eq!(watch.revision().unwrap().sequence, 9);
}

#[test]
fn a_change_wakes_whoever_waits_for_it_and_nobody_else() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let (writer, reader) = (sidecar.client(), sidecar.client());
    thread::scope(|scope| {
        let mut watch = reader.watch("policy", WatchOptions::new());
        synced(&mut watch);
        let told = scope.spawn(move || says(&mut watch, WatchKind::Appeared, "policy"));
        until("the watch waits", || waiting(&sidecar) == 1.0);
        put(&writer, "polic");
        put(&writer, "shard");
        assert!(!told.is_finished());
        let policy = put(&writer, "policy");
        let event = told.join().unwrap();
        assert_eq!((event.reference, event.revision.unwrap().sequence), (Some(policy), 3));
    });
    until("nothing waits", || waiting(&sidecar) == 0.0);
}

#[test]
fn versions_of_a_set_come_with_their_name_in_one_step() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let mut watch = reader.watch("policy", WatchOptions::new());
    synced(&mut watch);
    let leaf = put(&writer, "leaf");
    let entries = vec![("leaf".to_owned(), Node::Tensor(leaf))];
    let tree = Tree { entries, ..Tree::default() };
    for _ in 0..2 {
        let options = PublishOptions { keep: 1, ..PublishOptions::default() };
        writer.publish_set("policy", &tree, &options).unwrap();
    }
    says(&mut watch, WatchKind::Appeared, "policy@1");
    says(&mut watch, WatchKind::Appeared, "policy");
    says(&mut watch, WatchKind::Appeared, "policy@2");
    says(&mut watch, WatchKind::Replaced, "policy");
    says(&mut watch, WatchKind::Gone, "policy@1");
}

#[test]
fn another_client_goes_on_from_a_revision_without_a_gap() {
    let sidecar = Sidecar::start();
    let (writer, first) = (sidecar.client(), sidecar.client());
    let mut watch = first.watch("", WatchOptions::new());
    synced(&mut watch);
    let target = put(&writer, "a");
    name_all(&writer, &target, (0..3_000).map(shard));
    says(&mut watch, WatchKind::Appeared, "a");
    for n in 0..1_500 {
        says(&mut watch, WatchKind::Appeared, &shard(n));
    }
    let revision = watch.revision().unwrap();
    drop((watch, first));
    unname_all(&writer, (0..10).map(shard));
    let second = sidecar.client();
    let mut watch = second.watch("shard/", WatchOptions::new().from(revision));
    for n in 1_500..3_000 {
        says(&mut watch, WatchKind::Appeared, &shard(n));
    }
    for n in 0..10 {
        says(&mut watch, WatchKind::Gone, &shard(n));
    }
    assert_eq!(failure_in_time(|| watch.next(SHORT)).reason, Reason::DeadlineExceeded);
}

#[test]
fn a_listing_of_many_pages_is_of_one_moment_while_names_change() {
    let sidecar = Sidecar::start();
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let target = put(&writer, "target");
    name_all(&writer, &target, (0..20_000).map(shard));
    let mut watch = reader.watch("shard/", WatchOptions::new());
    let mut names = BTreeMap::new();
    let first = next(&mut watch);
    names.insert(first.name, first.reference);
    // The listing is under way: names behind and before it go, and others come.
    unname_all(&writer, (0..20_000).step_by(2).map(shard));
    let later = put(&writer, "shard/19999x");
    let (present, _) = synced(&mut watch);
    names.extend(present.into_iter().map(|event| (event.name, event.reference)));
    let then: Vec<_> = (0..20_000).map(shard).collect();
    assert_eq!(names.keys().cloned().collect::<Vec<_>>(), then);
    for n in (0..20_000).step_by(2) {
        says(&mut watch, WatchKind::Gone, &shard(n));
        names.remove(&shard(n));
    }
    let event = says(&mut watch, WatchKind::Appeared, "shard/19999x");
    names.insert(event.name, event.reference);
    let now: BTreeMap<_, _> = writer
        .list("shard/")
        .map(|listed| listed.map(|listed| (listed.name, Some(listed.description.reference))).unwrap())
        .collect();
    assert_eq!(names, now);
    assert_eq!(names["shard/19999x"], Some(later));
}

#[test]
fn a_watch_that_is_too_slow_is_told_that_it_was_cut_and_begins_anew() {
    let sidecar = Sidecar::start();
    let (writer, slow) = (sidecar.client(), sidecar.client());
    let mut watch = slow.watch("shard/", WatchOptions::new());
    let (_, revision) = synced(&mut watch);
    let target = put(&writer, "target");
    // More changes than are remembered, in requests of as many as there may be.
    let rounds = Limits::default().name_changes / (2 * MANY) + 1;
    for _ in 0..rounds {
        name_all(&writer, &target, (0..MANY).map(shard));
        unname_all(&writer, (0..MANY).map(shard));
    }
    put(&writer, "shard/new");
    let failure = match watch.next(LONG).unwrap_err() {
        Error::Refused(failure) => failure,
        other => panic!("{other}"),
    };
    assert_eq!(failure.reason, Reason::WatchCut, "{failure}");
    assert_eq!(failure.detail("after"), Some(revision.to_string().as_str()));
    let oldest: Revision = failure.detail("oldest").unwrap().parse().unwrap();
    assert_eq!(watch.revision(), None);
    says(&mut watch, WatchKind::Present, "shard/new");
    let synced = next(&mut watch).revision.unwrap();
    assert_eq!(synced.sequence - oldest.sequence, Limits::default().name_changes as u64);
    // From the oldest revision that it was told another watch goes on.
    let mut other = slow.watch("shard/new", WatchOptions::new().from(oldest));
    says(&mut other, WatchKind::Appeared, "shard/new");
}

#[test]
fn a_watch_that_waits_is_not_cut_by_changes_of_other_names() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let (writer, reader) = (sidecar.client(), sidecar.client());
    let target = put(&writer, "target");
    let mut watch = reader.watch("policy", WatchOptions::new());
    synced(&mut watch);
    thread::scope(|scope| {
        let told = scope.spawn(move || says(&mut watch, WatchKind::Appeared, "policy"));
        until("the watch waits", || waiting(&sidecar) == 1.0);
        for _ in 0..=Limits::default().name_changes / (2 * MANY) {
            name_all(&writer, &target, (0..MANY).map(shard));
            unname_all(&writer, (0..MANY).map(shard));
        }
        put(&writer, "policy");
        told.join().unwrap();
    });
}

#[test]
fn a_sidecar_that_is_killed_ends_a_wait_and_its_next_life_cuts_the_watch() {
    let mut sidecar = Sidecar::with(SidecarOptions::default().admin());
    let reader = sidecar.client();
    put(&reader, "policy");
    let mut watch = reader.watch("policy", WatchOptions::new());
    synced(&mut watch);
    thread::scope(|scope| {
        let waits = scope.spawn(|| watch.next(LONG));
        until("the watch waits", || waiting(&sidecar) == 1.0);
        sidecar.kill();
        let lost = waits.join().unwrap();
        assert!(matches!(lost, Err(Error::SessionLost { .. })), "{lost:?}");
    });
    sidecar.start_again();
    assert_eq!(reason(watch.next(LONG)), Reason::WatchCut);
    says(&mut watch, WatchKind::Synced, "");
    put(&reader, "policy");
    says(&mut watch, WatchKind::Appeared, "policy");
}

#[test]
fn two_hundred_watches_of_one_prefix_are_all_told_and_leave_nothing() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let (writer, reader) = (sidecar.client(), sidecar.client());
    thread::scope(|scope| {
        let watches: Vec<_> = (0..200)
            .map(|_| {
                let mut watch = reader.watch("policy", WatchOptions::new());
                scope.spawn(move || {
                    synced(&mut watch);
                    for n in 0..3 {
                        says(&mut watch, WatchKind::Appeared, &format!("policy/{n}"));
                    }
                })
            })
            .collect();
        until("all wait", || waiting(&sidecar) == 200.0);
        (0..3).for_each(|n| drop(put(&writer, &format!("policy/{n}"))));
        watches.into_iter().for_each(|watch| watch.join().unwrap());
    });
    until("nothing waits", || waiting(&sidecar) == 0.0);
    unname_all(&writer, (0..3).map(|n| format!("policy/{n}")));
    drop((writer, reader));
    sidecar.assert_all_free();
}

#[test]
fn a_watch_that_is_withdrawn_or_whose_session_ends_leaves_nothing() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let (client, cancel) = (sidecar.client(), Cancel::new());
    let mut watch = client.watch("policy", WatchOptions::new()).with_cancel(cancel.clone());
    synced(&mut watch);
    thread::scope(|scope| {
        let waits = scope.spawn(|| watch.next(Timeout::Never));
        until("the watch waits", || waiting(&sidecar) == 1.0);
        cancel.cancel();
        assert!(matches!(waits.join().unwrap(), Err(Error::Withdrawn)));
    });
    until("nothing waits", || waiting(&sidecar) == 0.0);
    // A client that goes away in the middle of a wait.
    let mut session = RawSession::begin_in(&sidecar, 7);
    let first = v1::WatchRequest { prefix: "policy".to_owned(), ..Default::default() };
    let after = session.call::<v1::WatchResponse>(SessionKind::Watch, &first).unwrap().revision;
    session.send(SessionKind::Watch, &v1::WatchRequest { after, deadline_ms: 3_600_000, ..first });
    until("the watch waits", || waiting(&sidecar) == 1.0);
    drop(session);
    until("nothing waits", || waiting(&sidecar) == 0.0);
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_sidecar_that_ends_tells_those_that_wait() {
    let mut sidecar = Sidecar::with(SidecarOptions::default().admin());
    let client = sidecar.client();
    let mut watch = client.watch("policy", WatchOptions::new());
    synced(&mut watch);
    thread::scope(|scope| {
        let waits = scope.spawn(|| watch.next(LONG));
        until("the watch waits", || waiting(&sidecar) == 1.0);
        sidecar.terminate();
        assert_eq!(reason(waits.join().unwrap()), Reason::Draining);
    });
}

#[test]
fn wrong_requests_are_refused_with_what_is_wrong() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut too_long = client.watch(&"x".repeat(513), WatchOptions::new());
    assert_eq!(reason(too_long.next(LONG)), Reason::InvalidArgument);
    let there = WatchOptions::new().peer("elsewhere".parse().unwrap());
    assert_eq!(reason(client.watch("policy", there).next(LONG)), Reason::PeerUnreachable);
    let (_, revision) = synced(&mut client.watch("", WatchOptions::new()));
    let future = Revision { sequence: revision.sequence + 1, ..revision };
    assert_eq!(
        reason(client.watch("", WatchOptions::new().from(future)).next(LONG)),
        Reason::InvalidArgument
    );
    let mut session = RawSession::begin_in(&sidecar, 7);
    let wrong = [
        v1::WatchRequest { after: "yesterday".to_owned(), ..Default::default() },
        v1::WatchRequest { page_token: "a".to_owned(), ..Default::default() },
        v1::WatchRequest { after: revision.to_string(), page_token: "a/".to_owned(), ..Default::default() },
        v1::WatchRequest { peer: "no peer".to_owned(), ..Default::default() },
    ];
    for request in wrong {
        let refused = session.call::<v1::WatchResponse>(SessionKind::Watch, &request).unwrap_err();
        assert_eq!(refused.reason, Reason::InvalidArgument, "{refused}");
    }
    drop((client, session, too_long));
    sidecar.assert_all_free();
}

#[test]
fn the_command_shows_each_event_as_it_comes_until_a_signal_ends_it() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let reference = put(&client, "policy");
    let command = |words: &[&str]| {
        let mut command = Command::new(bin_dir().join("tensorlane"));
        command.arg("--sockets").arg(sidecar.sockets()).arg("watch").args(words);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut watching = command(&["policy", "-o", "json"]);
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    let present = next();
    assert_eq!((&present["event"], &present["name"]), (&"present".into(), &"policy".into()));
    assert_eq!((&present["reference"], &present["revision"]), (&reference.encode().into(), &().into()));
    let synced = next();
    assert_eq!(synced["event"], "synced");
    unname_all(&client, std::iter::once("policy".to_owned()));
    let gone = next();
    assert_eq!((&gone["event"], &gone["reference"]), (&"gone".into(), &().into()));
    kill_process(Pid::from_child(&watching), Signal::INT).unwrap();
    assert_eq!(watching.wait().unwrap().signal(), Some(Signal::INT.as_raw()));

    let from = synced["revision"].as_str().unwrap();
    let again = command(&["policy", "--from", from, "-n", "1"]).wait_with_output().unwrap();
    assert!(again.status.success());
    assert_eq!(String::from_utf8(again.stdout).unwrap(), "gone      policy\n");
    let over = command(&["policy", "--timeout", "10ms", "-n", "1"]).wait_with_output().unwrap();
    assert_eq!(over.status.code(), Some(1));
}

#[test]
fn nothing_is_lost_or_told_twice_while_many_change_names_as_fast_as_they_can() {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 200;
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let target = put(&client, "target");
    let (_, begun) = synced(&mut client.watch("", WatchOptions::new()));
    // Each name comes and goes in every round.
    let last = begun.sequence + (2 * WRITERS * ROUNDS) as u64;
    thread::scope(|scope| {
        for _ in 0..8 {
            let mut watch = client.watch("", WatchOptions::new().from(begun));
            scope.spawn(move || {
                for sequence in begun.sequence + 1..=last {
                    assert_eq!(next(&mut watch).revision.unwrap(), Revision { sequence, ..begun });
                }
            });
        }
        for writer in 0..WRITERS {
            let (client, target) = (sidecar.client(), target.clone());
            scope.spawn(move || {
                let name = shard(writer);
                for _ in 0..ROUNDS {
                    client.name(&target, &name, None).unwrap();
                    unname_all(&client, std::iter::once(name.clone()));
                }
            });
        }
    });
}
