//! Bounds on what one client takes of the sidecar, and on what all take together; at the end nobody is kept waiting.

use prost::Message;
use rustix::process::Signal;
use tensorlane_client::{Client, PutOptions};
use tensorlane_proto::frame::{self, FAILED, Header, SESSION_ITEMS_MAX, SessionKind};
use tensorlane_proto::{DType, Reason, generated as v1, wire};
use tensorlane_tests::process::signal;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::{is_intact, put_pattern, u8s};
use tensorlane_tests::{Sidecar, SidecarOptions, until, where_the_machine_runs_on};

/// Longer than any test: what ends sooner was ended by somebody.
const HOUR_MS: u64 = 3_600_000;

fn lookup(name: &str) -> v1::LookupRequest {
    v1::LookupRequest { names: vec![name.to_owned()], wait_ms: HOUR_MS, ..v1::LookupRequest::default() }
}

fn waiting_for_names(sidecar: &Sidecar) -> f64 {
    sidecar.metric("tensorlane_sidecar_waiting_requests", &["for=\"name\""])
}

/// Number of times that a session was closed for a reason of this metric.
fn counted(sidecar: &Sidecar, metric: &str, reason: &str) -> f64 {
    sidecar.metric(metric, &[&format!("reason=\"{reason}\"")])
}

const REJECTED: &str = "tensorlane_session_rejected_frames_total";
const CUT: &str = "tensorlane_session_cut_sessions_total";

#[test]
fn many_who_wait_for_names_hold_up_neither_puts_nor_gets() {
    // More than there are threads for everything else that waits.
    const WAITS: usize = 300;
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut waiter = RawSession::begin(&sidecar);
    for _ in 0..WAITS {
        waiter.send(SessionKind::Lookup, &lookup("later"));
    }
    until("all of them wait", || waiting_for_names(&sidecar) == WAITS as f64);
    let client = sidecar.client();
    // The first one needs a new segment, which is made by a thread that may wait.
    let stored = put_pattern(&client, 1, 1 << 20, &PutOptions::new()).unwrap();
    let all = tensorlane_client::AcquireOptions::new();
    assert!(is_intact(&client.acquire(stored.reference(), &all).unwrap()));
    client.name(stored.reference(), "later", None).unwrap();
    let answers = (0..WAITS).map(|_| waiter.next_frame().expect("an answer"));
    assert!(answers.into_iter().all(|(header, _)| header.is_reply() && header.flags & FAILED == 0));
    client.unname(&["later"]).unwrap().remove(0).unwrap();
    drop((waiter, stored));
    client.flush().unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_call_needs_a_number_of_its_own() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut session = RawSession::begin(&sidecar);
    session.send_bytes(&frame::encode(SessionKind::Status.into(), 0, 0, &v1::StatusRequest {}));
    session.wait_until_cut();
    until("it is counted", || counted(&sidecar, REJECTED, "out_of_place") == 1.0);

    let mut session = RawSession::begin(&sidecar);
    session.send_bytes(&frame::encode(SessionKind::Lookup.into(), 0, 9, &lookup("never")));
    session.send_bytes(&frame::encode(SessionKind::Status.into(), 0, 9, &v1::StatusRequest {}));
    session.wait_until_cut();
    until("it is counted", || counted(&sidecar, REJECTED, "out_of_place") == 2.0);
    until("nobody waits for the name any more", || waiting_for_names(&sidecar) == 0.0);

    // Once it is answered its number may be used again.
    let mut session = RawSession::begin(&sidecar);
    for _ in 0..3 {
        session.send_bytes(&frame::encode(SessionKind::Status.into(), 0, 9, &v1::StatusRequest {}));
        let (header, _) = session.next_frame().expect("an answer");
        assert_eq!((header.call, header.flags & FAILED), (9, 0));
    }
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn a_hello_has_64_kib_at_most() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let hello = |bytes: usize| v1::SessionHello { version: 1, client: "x".repeat(bytes) };
    // Tag and length of the name take four bytes, the version two.
    let longest = hello((64 << 10) - 6);
    assert_eq!(longest.encoded_len(), 64 << 10);
    let mut session = RawSession::connect(&sidecar);
    let _: v1::SessionWelcome = session.call(SessionKind::Hello, &longest).unwrap();
    let mut stranger = RawSession::connect(&sidecar);
    stranger.send(SessionKind::Hello, &hello((64 << 10) - 5));
    stranger.wait_until_cut();
    until("it is counted", || counted(&sidecar, REJECTED, "too_long") == 1.0);
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn strangers_make_room_for_newcomers_and_sessions_stay() {
    // Whoever says nothing for five seconds has no place any more.
    where_the_machine_runs_on(the_oldest_strangers_go_first);
}

fn the_oldest_strangers_go_first() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin().set("limits.strangers", 3));
    let mut known = RawSession::begin(&sidecar);
    let mut silent: Vec<_> = (0..5).map(|_| RawSession::connect(&sidecar)).collect();
    for oldest in &mut silent[..2] {
        oldest.wait_until_cut();
    }
    until("they are counted", || counted(&sidecar, CUT, "stranger") == 2.0);
    let hello = v1::SessionHello { version: frame::SESSION_VERSION, client: String::new() };
    let welcome: v1::SessionWelcome = silent[4].call(SessionKind::Hello, &hello).unwrap();
    assert_eq!(welcome.version, frame::SESSION_VERSION);
    let _: v1::StatusResponse = known.call(SessionKind::Status, &v1::StatusRequest {}).unwrap();
    drop((known, silent));
    sidecar.assert_all_free();
}

#[test]
fn connections_that_say_nothing_take_the_place_of_no_session() {
    // Whoever says nothing for five seconds is told nothing any more.
    where_the_machine_runs_on(whoever_speaks_up_late_finds_no_place);
}

fn whoever_speaks_up_late_finds_no_place() {
    let options = SidecarOptions::default().admin().set("limits.sessions", 4).set("limits.strangers", 64);
    let sidecar = Sidecar::with(options);
    let mut silent: Vec<_> = (0..12).map(|_| RawSession::connect(&sidecar)).collect();
    let known: Vec<_> = (0..4).map(|_| RawSession::begin(&sidecar)).collect();
    // Whoever speaks up late finds the places taken, and is told so.
    let hello = v1::SessionHello { version: frame::SESSION_VERSION, client: String::new() };
    let refused = silent[3].call::<v1::SessionWelcome>(SessionKind::Hello, &hello).unwrap_err();
    assert!(refused.message.contains("4 sessions are open already"), "{refused:?}");
    silent[3].wait_until_cut();
    // Now there are as many sessions as may be, and it is they who are told so.
    let mut more = RawSession::connect(&sidecar);
    let (header, body) = more.next_frame().unwrap();
    assert!(header.is_failed());
    assert!(v1::Failure::decode(&*body).unwrap().message.contains("4 sessions are open already"));
    drop((known, silent, more));
    sidecar.assert_all_free();
}

#[test]
fn a_frame_that_claims_millions_of_items_costs_no_more_than_its_bytes() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let _: v1::StatusResponse = session.call(SessionKind::Status, &v1::StatusRequest {}).unwrap();
    let before = peak_memory(&sidecar);
    // Field 1, of no bytes: two bytes an item, which would be hundreds once decoded.
    let body = [0x0a, 0].repeat(8 << 20);
    for kind in [SessionKind::Put, SessionKind::Acquire, SessionKind::Describe, SessionKind::Lookup] {
        let refused = session.call_raw(kind, &body).map(|_| ()).unwrap_err();
        assert_eq!(refused.reason, Reason::TooLarge, "{kind:?}: {refused}");
        assert!(refused.message.contains(&SESSION_ITEMS_MAX.to_string()), "{refused}");
    }
    let grown = peak_memory(&sidecar) - before;
    assert!(grown < 128 << 20, "the frame has 16 MiB, and the sidecar took {grown} bytes");
    drop(session);
    sidecar.assert_all_free();
}

/// The most bytes of memory that it ever had.
fn peak_memory(sidecar: &Sidecar) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sidecar.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A tensor whose description has about 16 KiB.
fn with_much_metadata(client: &Client) -> tensorlane_client::Stored {
    let mut descriptor = u8s(1);
    let entries = (0..4).map(|n| (n.to_string(), "m".repeat(4000)));
    descriptor.metadata = tensorlane_proto::Metadata::new(entries).unwrap();
    client.put(&descriptor, &[1], &PutOptions::new()).unwrap()
}

/// Asks for so many descriptions of 16 KiB each, and does not read the answer.
fn ask_much(session: &mut RawSession, id: u64, descriptions: usize) {
    let target = v1::Target { kind: Some(v1::target::Kind::Id(id)), peer: String::new() };
    let request = v1::DescribeRequest { targets: vec![target; descriptions], deadline_ms: 0 };
    session.send(SessionKind::Describe, &request);
}

#[test]
fn of_those_who_do_not_read_the_one_with_the_most_goes_first() {
    let options = SidecarOptions::default().admin().set("limits.unreadBytes", "16Mi");
    let sidecar = Sidecar::with(options);
    let client = sidecar.client();
    let stored = with_much_metadata(&client);
    let id = stored.reference().id();
    let (mut greedy, mut modest) = (RawSession::begin(&sidecar), RawSession::begin(&sidecar));
    ask_much(&mut greedy, id, 600);
    until("much waits", || sidecar.metric("tensorlane_sidecar_unread_bytes", &[]) > 8e6);
    ask_much(&mut modest, id, 500);
    until("the greedy one was cut", || counted(&sidecar, CUT, "unread") == 1.0);
    let answer: v1::DescribeResponse = modest.reply().unwrap();
    assert_eq!(answer.results.len(), 500, "whoever has less is answered");
    until("nothing waits any more", || sidecar.metric("tensorlane_sidecar_unread_bytes", &[]) == 0.0);
    greedy.wait_until_cut();
    assert_eq!(client.status().unwrap().tensors, 1, "others are served as before");
    drop((greedy, modest, stored));
    client.flush().unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_sidecar_ends_at_once_whatever_its_clients_owe_it() {
    let mut sidecar = Sidecar::with(SidecarOptions::default().set("deadlines.map", "1h"));
    let mut hello = RawSession::connect(&sidecar);
    hello.send_bytes(&[1, 2, 3]);
    let mut body = RawSession::connect(&sidecar);
    body.send_bytes(&Header { length: 100, kind: SessionKind::Hello.into(), flags: 0, call: 1 }.encode());
    // A segment whose writer never says that it has mapped it.
    let mut writer = RawSession::begin(&sidecar);
    let descriptor =
        v1::Descriptor { dtype: DType::U8 as u32, shape: vec![1 << 20], ..v1::Descriptor::default() };
    let item = v1::ReserveItem { descriptor: Some(descriptor), ..v1::ReserveItem::default() };
    writer.send(SessionKind::Reserve, &v1::ReserveRequest { items: vec![item], deadline_ms: HOUR_MS });
    let (header, _) = writer.next_frame().expect("the announcement of the segment");
    assert_eq!(header.kind, u16::from(SessionKind::Segment));
    assert!(sidecar.terminate().success());
}

#[test]
fn who_waits_when_the_sidecar_ends_is_told_so() {
    let mut sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut session = RawSession::begin(&sidecar);
    session.send(SessionKind::Lookup, &lookup("never"));
    until("it waits", || waiting_for_names(&sidecar) == 1.0);
    signal(sidecar.pid(), Signal::TERM);
    let (header, body) = session.next_frame().expect("an answer before the end");
    assert!(header.is_reply() && header.flags & FAILED != 0);
    let failure = wire::failure(v1::Failure::decode(&*body).unwrap());
    assert_eq!(failure.reason, Reason::Draining, "{failure}");
    assert!(session.next_frame().is_none());
    assert!(sidecar.terminate().success());
}

#[test]
fn two_sidecars_do_not_share_a_directory() {
    let first = Sidecar::start();
    for (variable, directory) in
        [("TENSORLANE_STATE_DIRECTORY", first.state()), ("TENSORLANE_SOCKETS_DIRECTORY", first.sockets())]
    {
        let words = ["env".to_owned(), format!("{variable}={}", directory.display())];
        let (status, log) = Sidecar::refused(SidecarOptions::default().prefix(words));
        assert_eq!(status.code(), Some(1), "{log}");
        let said = directory.display().to_string();
        assert!(log.lines().any(|line| line.contains(&said) && line.contains("another sidecar")), "{log}");
    }
    // The first one has noticed nothing.
    let client = first.client();
    let stored = put_pattern(&client, 1, 100_000, &PutOptions::new()).unwrap();
    drop(stored);
    client.flush().unwrap();
    first.assert_all_free();
    // What a dead one held is free.
    let state = first.state();
    let kept = tempfile::tempdir().unwrap();
    std::fs::rename(state, kept.path().join("state")).unwrap();
    drop(first);
    let words =
        ["env".to_owned(), format!("TENSORLANE_STATE_DIRECTORY={}", kept.path().join("state").display())];
    let second = Sidecar::with(SidecarOptions::default().prefix(words));
    second.assert_all_free();
}
