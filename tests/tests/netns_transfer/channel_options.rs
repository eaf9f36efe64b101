//! Lists of peers that may read a channel and connect a pipe, readers there that are evicted, and readers there that follow a name.

use std::time::Duration;

use tensorlane_client::channel::{ChannelReader, ChannelSpec, End, Policy, Read, ReadOptions, Timeout};
use tensorlane_client::pipe::{ConnectOptions, ListenOptions};
use tensorlane_client::{Error, Result};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Reason, Require};
use tensorlane_tests::channels::{DROPPING, LONG};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::streams::{Grpc, channel};
use tensorlane_tests::{failure_in_time, reason, until};

fn spec() -> ChannelSpec {
    ChannelSpec::new("c").slots(4).slot_bytes(64 << 10)
}

fn waits() -> ReadOptions {
    ReadOptions::new().wait(Duration::from_secs(30))
}

fn read(reader: &mut ChannelReader) -> Vec<u8> {
    match reader.read(LONG).unwrap() {
        Read::Message(message) => message.bytes().to_vec(),
        other => panic!("a message is there, not {other:?}"),
    }
}

fn denied<T>(result: Result<T>) {
    let Err(Error::Refused(failure)) = result else { panic!("it was let in") };
    assert_eq!((failure.reason, failure.detail("peer")), (Reason::PermissionDenied, Some("b")), "{failure}");
}

#[test]
fn a_channel_is_read_by_the_peers_that_its_writer_names_and_by_its_own_pod() {
    let peers = Peers::steady();
    let [here, there] = [0, 1].map(|host| peers.client(host));
    for (readers, allows) in [(&["c", "x*"][..], false), (&[][..], false), (&["nobody", "b*"][..], true)] {
        let mut writer = here.channel_writer(&spec().readers(readers)).unwrap();
        let mut own = here.channel_reader("c", &waits()).unwrap();
        let other = there.channel_reader("a/c", &waits());
        if allows {
            writer.write_bytes(b"x", LONG).unwrap();
            assert_eq!(read(&mut other.unwrap()), b"x");
        } else {
            denied(other);
            writer.write_bytes(b"x", LONG).unwrap();
        }
        assert_eq!(read(&mut own), b"x");
        let told = here.channels("c").unwrap().remove(0).allowed.unwrap();
        assert_eq!(told.patterns, readers);
    }
    // One that waits for the channel is refused when it comes; and so it is by a stream that writes.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| there.channel_reader("a/d", &waits()));
        let grpc = Grpc::of(&peers.sidecars[0]);
        let readers = Some(v1::PeerPatterns { patterns: vec!["c".to_owned()] });
        let open = v1::ChannelOpen { readers, ..channel("d", 1 << 10, v1::ChannelPolicy::Block) };
        let stream = grpc.writes(open);
        denied(waiting.join().unwrap());
        stream.finish();
    });
    drop((here, there));
    peers.assert_all_free();
}

#[test]
fn a_listener_takes_pipes_of_the_peers_that_it_allows_and_of_its_own_pod() {
    let peers = Peers::steady();
    let [here, there] = [0, 1].map(|host| peers.client(host));
    let connect = ConnectOptions::new().wait(Duration::from_secs(30));
    let listener = here.listen_with("in", &ListenOptions::new().allow(&["c"])).unwrap();
    denied(there.connect_pipe("a/in", &connect));
    let _own = here.connect_pipe("in", &connect).unwrap();
    listener.accept(LONG).unwrap();
    drop(listener);
    let listener = here.listen_with("in", &ListenOptions::new().allow(&["c", "b"])).unwrap();
    let _other = there.connect_pipe("a/in", &connect).unwrap();
    assert_eq!(listener.accept(LONG).unwrap().remote().peer, "b");
}

#[test]
fn too_many_patterns_are_refused_and_leave_nothing() {
    let peers = Peers::steady();
    let here = peers.client(0);
    let many = vec!["p"; 65];
    assert_eq!(reason(here.channel_writer(&spec().readers(&many))), Reason::TooLarge);
    assert_eq!(reason(here.listen_with("in", &ListenOptions::new().allow(&many))), Reason::TooLarge);
    assert!(here.channel_writer(&spec()).is_ok() && here.listen("in").is_ok());
}

#[test]
fn readers_of_another_pod_are_evicted_together_and_told() {
    let peers = Peers::steady();
    let here = peers.client(0);
    let mut writer = here.channel_writer(&spec().evict_after(Duration::from_millis(300))).unwrap();
    let mut slow = [(); 2].map(|()| peers.client(1).channel_reader("a/c", &waits()).unwrap());
    assert_eq!(writer.readers(), 1, "those of another pod are one");
    for _ in 0..100 {
        writer.write_bytes(b"x", LONG).unwrap();
    }
    until("it is waited for no longer", || writer.readers() == 0);
    for reader in &mut slow {
        let told = loop {
            match reader.read(LONG) {
                // What came before.
                Ok(Read::Message(_)) => {}
                told => break told,
            }
        };
        assert_eq!(reason(told.map(drop)), Reason::Evicted);
    }
    until("it was counted", || peers.metric(0, "tensorlane_channel_evicted_readers_total", &[]) > 0.0);
    let mut back = peers.client(1).channel_reader("a/c", &waits()).unwrap();
    writer.write_bytes(b"back", LONG).unwrap();
    assert_eq!(read(&mut back), b"back");
    drop((slow, back, writer, here));
    peers.assert_all_free();
}

#[test]
fn a_reader_of_another_pod_follows_a_writer_that_comes_back_and_one_whose_sidecar_does() {
    let mut peers = Peers::steady();
    let early = peers.client(1).channel_reader("a/c", &ReadOptions::new().follow());
    assert_eq!(reason(early), Reason::NotFound, "it follows what there was");
    // One session: its second channel comes behind the end of the first.
    let here = peers.client(0);
    let mut writer = here.channel_writer(&spec()).unwrap();
    let mut follows = peers.client(1).channel_reader("a/c", &waits().follow()).unwrap();
    writer.write_bytes(b"first", LONG).unwrap();
    assert_eq!(read(&mut follows), b"first");
    drop(writer);
    let late = failure_in_time(|| follows.read(Timeout::After(Duration::from_millis(300))).map(drop));
    assert_eq!(late.reason, Reason::DeadlineExceeded);
    let mut writer = here.channel_writer(&spec()).unwrap();
    writer.write_bytes(b"second", LONG).unwrap();
    assert!(matches!(follows.read(LONG).unwrap(), Read::Epoch { end: End::WriterLost, missed: 0 }));
    assert_eq!(read(&mut follows), b"second");
    peers.sidecars[0].kill();
    drop((writer, here));
    peers.sidecars[0].start_again();
    let mut writer = peers.client(0).channel_writer(&spec().expect_readers(1)).unwrap();
    std::thread::scope(|scope| {
        let told = scope.spawn(|| {
            let told = follows.read(LONG).unwrap();
            assert!(matches!(told, Read::Epoch { end: End::PeerLost, missed: 0 }), "{told:?}");
        });
        writer.write_bytes(b"third", LONG).unwrap();
        told.join().unwrap();
    });
    assert_eq!(read(&mut follows), b"third");
}

#[test]
fn a_reader_that_follows_goes_on_behind_what_it_has_read_when_a_link_is_there_again() {
    let peers = Peers::pair();
    let mut writer = peers.client(0).channel_writer(&spec()).unwrap();
    let mut follows = peers.client(1).channel_reader("a/c", &waits().follow()).unwrap();
    for number in 0..3u8 {
        writer.write_bytes(&[number], LONG).unwrap();
        assert_eq!(read(&mut follows), [number]);
    }
    peers.network.cut(1);
    // The writer goes on once its sidecar has noticed.
    for number in 3..10u8 {
        writer.write_bytes(&[number], LONG).unwrap();
    }
    peers.network.mend(1);
    let missed = read_to(&mut follows, 3, 10);
    assert_eq!(
        (follows.attached().first, follows.attached().missed),
        (0, 0),
        "it began before the link was cut"
    );
    until("what was missed is counted", || dropped(&peers, Policy::Block) == missed as f64);
}

#[test]
fn a_reader_that_follows_a_channel_that_drops_counts_each_message_that_it_was_told_of_once() {
    for policy in DROPPING {
        let peers = Peers::pair();
        let mut writer = peers.client(0).channel_writer(&spec().policy(policy)).unwrap();
        let mut follows = peers.client(1).channel_reader("a/c", &waits().follow()).unwrap();
        for number in 0..3u8 {
            writer.write_bytes(&[number], LONG).unwrap();
            assert_eq!(read(&mut follows), [number]);
        }
        peers.network.cut(1);
        // Nobody comes back for what is lost for longer than the grace.
        let there = peers.client(1);
        until("the reader's side has given up", || {
            there.channels("c").unwrap().iter().all(|channel| channel.writer.is_empty())
        });
        for number in 3..40u8 {
            writer.write_bytes(&[number], LONG).unwrap();
        }
        peers.network.mend(1);
        let missed = read_to(&mut follows, 3, 40);
        assert!(missed >= 30, "{policy}: four slots were there, and {missed} are told as dropped");
        assert_eq!((follows.attached().first, follows.attached().missed), (0, 0));
        until("what was told is counted", || dropped(&peers, policy) == missed as f64);
    }
}

/// Reads messages of one byte, their sequence, up to one; how many were told as dropped.
fn read_to(reader: &mut ChannelReader, mut next: u64, end: u64) -> u64 {
    let mut missed = 0;
    while next < end {
        match reader.read(LONG).unwrap() {
            Read::Gap { dropped, next: after } => {
                (next, missed) = (next + dropped, missed + dropped);
                assert_eq!(next, after);
            }
            Read::Message(message) => {
                assert_eq!(
                    (message.sequence(), message.bytes().to_vec()),
                    (next, vec![next as u8]),
                    "each one once"
                );
                next += 1;
            }
            other => panic!("it is the same channel, and not {other:?}"),
        }
    }
    missed
}

/// Messages that readers of the second peer were told of as dropped.
fn dropped(peers: &Peers, policy: Policy) -> f64 {
    let label = format!("policy=\"{policy}\"");
    peers.metric(1, "tensorlane_channel_dropped_messages_total", &[&label])
}

#[test]
fn a_map_that_is_insisted_on_is_refused_to_a_reader_of_another_pod() {
    let peers = Peers::steady();
    let _writer = peers.client(0).channel_writer(&spec()).unwrap();
    let there = peers.client(1);
    for require in [Require::ZERO_COPY, Require::SAME_NODE] {
        let refused = there.channel_reader("a/c", &waits().require(require));
        let Err(Error::Refused(failure)) = refused else { panic!("it was attached") };
        assert_eq!(failure.reason, Reason::RequirementNotMet);
        assert!(failure.message.contains("tcp"), "{failure}");
    }
    assert!(there.channel_reader("a/c", &waits().require(Require::ENCRYPTED)).is_ok());
}
