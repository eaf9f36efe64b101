//! Channels over gRPC between peers: a stream writes at one and a stream reads at the other, beside those that map their rings.

use std::thread;
use std::time::Duration;

use tensorlane_client::channel::{ChannelSpec, End, Policy, Read, ReadOptions};
use tensorlane_proto::generated as v1;
use tensorlane_tests::channels::{LONG, message};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::streams::{Came, Grpc, channel};
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::{until, where_the_machine_runs_on};

/// Bytes of message `number`: one in fifty has some MiB.
fn bytes(number: u64) -> Vec<u8> {
    pattern(number, if number % 50 == 49 { 3 << 20 } else { number as usize * 31 % 2_000 })
}

#[test]
fn a_stream_writes_for_a_stream_and_a_program_of_another_peer() {
    const MESSAGES: u64 = 200;
    let peers = Peers::steady();
    let (here, there) = (Grpc::of(&peers.sidecars[0]), Grpc::of(&peers.sidecars[1]));
    let mut writer = here.writes(channel("c", 4 << 20, v1::ChannelPolicy::Block));
    let options = ReadOptions::new().wait(Duration::from_secs(30));
    let mut native = peers.client(1).channel_reader("a/c", &options).unwrap();
    let mut reader = there.reads("a/c");
    assert_eq!((reader.attached.route.as_str(), reader.attached.peer.as_str()), ("tcp", "a"));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                assert!(reader.plain() == (number, bytes(number)), "message {number}");
            }
            assert_eq!(reader.event(), Came::End(v1::ChannelOutcome::Finished));
        });
        scope.spawn(|| {
            for number in 0..MESSAGES {
                let message = message(&mut native);
                assert!(message.bytes().to_vec() == bytes(number), "message {number}");
            }
            assert!(matches!(native.read(LONG).unwrap(), Read::End(End::Finished)));
        });
        for number in 0..MESSAGES {
            assert_eq!(writer.write(&bytes(number)).sequence, number);
        }
        writer.finish();
    });
    drop((reader, native));
    drop((here, there));
    peers.assert_all_free();
}

#[test]
fn a_stream_reads_what_drops_at_another_peer_and_a_cut_link_is_told() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        let there = Grpc::of(&peers.sidecars[1]);
        let spec = ChannelSpec::new("c").slots(4).slot_bytes(64 << 10).policy(Policy::Latest);
        let mut writer = peers.client(0).channel_writer(&spec).unwrap();
        let mut reader = there.reads("a/c");
        for number in 0..200u64 {
            writer.write_bytes(&pattern(number, 60_000), LONG).unwrap();
        }
        let mut next = 0;
        while next < 200 {
            match reader.event() {
                Came::Message(sequence, parts) => {
                    assert_eq!((sequence, &parts[0]), (next, &pattern(sequence, 60_000)));
                    next += 1;
                }
                Came::Gap(dropped, after) => {
                    assert_eq!(next + dropped, after);
                    next = after;
                }
                end @ Came::End(_) => panic!("{end:?}"),
            }
        }
        peers.network.cut(1);
        assert_eq!(reader.event(), Came::End(v1::ChannelOutcome::PeerLost));
        drop(reader);
        drop(there);
        until("the writer has no reader", || writer.readers() == 0);
        drop(writer);
        peers.assert_all_free();
    });
}

#[test]
fn a_stream_that_follows_goes_on_behind_what_it_was_sent_and_counts_what_the_lost_way_made_it_miss() {
    const MESSAGES: u64 = 40;
    let peers = Peers::pair();
    let there = Grpc::of(&peers.sidecars[1]);
    let spec = ChannelSpec::new("c").slots(4).slot_bytes(64).policy(Policy::DropOldest);
    let mut writer = peers.client(0).channel_writer(&spec).unwrap();
    let mut reader = there.follows("a/c");
    for number in 0..3u64 {
        writer.write_bytes(&number.to_le_bytes(), LONG).unwrap();
        assert_eq!(reader.plain(), (number, number.to_le_bytes().to_vec()));
    }
    peers.network.cut(1);
    // Nobody comes back for what is lost for longer than the grace.
    let client = peers.client(1);
    until("the reader's side has given up", || {
        client.channels("c").unwrap().iter().all(|channel| channel.writer.is_empty())
    });
    for number in 3..MESSAGES {
        writer.write_bytes(&number.to_le_bytes(), LONG).unwrap();
    }
    peers.network.mend(1);
    let (mut next, mut missed) = (3u64, 0u64);
    while next < MESSAGES {
        match reader.event() {
            Came::Message(sequence, parts) => {
                assert_eq!((sequence, &parts[0]), (next, &next.to_le_bytes().to_vec()), "each one once");
                next += 1;
            }
            Came::Gap(dropped, after) => {
                (next, missed) = (next + dropped, missed + dropped);
                assert_eq!(next, after);
            }
            end @ Came::End(_) => panic!("{end:?}"),
        }
    }
    assert!(missed >= 30, "four slots were there, and {missed} are told as dropped");
    until("what was told is counted", || {
        let counted =
            peers.metric(1, "tensorlane_channel_dropped_messages_total", &["policy=\"drop_oldest\""]);
        counted == missed as f64
    });
}
