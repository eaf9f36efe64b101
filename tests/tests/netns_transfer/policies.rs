//! Channels that drop, read at another peer: the writer waits for nobody there either, and what is dropped at its side is told here.

use std::thread;
use std::time::Duration;

use tensorlane_client::channel::{ChannelReader, ChannelSpec, Policy, Read, ReadOptions, Timeout};
use tensorlane_tests::channels::{self, DROPPING, LONG};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::until;

/// Bytes of a message: its sequence again and again; one in five hundred has some MiB.
fn bytes(sequence: u64) -> Vec<u8> {
    let words = if sequence % 500 == 499 { 300_000 } else { sequence as usize % 200 + 1 };
    sequence.to_le_bytes().repeat(words)
}

fn reader(peers: &Peers, host: usize, name: &str) -> ChannelReader {
    peers.client(host).channel_reader(name, &ReadOptions::new().wait(Duration::from_secs(30))).unwrap()
}

/// Reads to the end, from a sequence on.
fn read_all(reader: ChannelReader, next: u64) -> (u64, u64) {
    channels::read_all(reader, next, |message| {
        let sequence = message.sequence();
        assert!(message.bytes().to_vec() == bytes(sequence), "message {sequence} is another one");
    })
}

#[test]
fn every_message_is_read_whole_or_told_as_dropped_in_its_pod_and_in_another() {
    const MESSAGES: u64 = 5_000;
    let peers = Peers::steady();
    for policy in DROPPING {
        let name = policy.as_str();
        let spec = ChannelSpec::new(name).slots(4).slot_bytes(4 << 20).policy(policy);
        let mut writer = peers.client(0).channel_writer(&spec).unwrap();
        let there = format!("a/{name}");
        let readers = [reader(&peers, 0, name), reader(&peers, 1, &there), reader(&peers, 1, &there)];
        assert_eq!(readers[1].attached().policy, policy);
        thread::scope(|scope| {
            let reading = readers.map(|reader| scope.spawn(move || read_all(reader, 0)));
            for sequence in 0..MESSAGES {
                writer.write_bytes(&bytes(sequence), Timeout::Now).unwrap();
            }
            writer.finish();
            for read in reading {
                let (got, missed) = read.join().unwrap();
                assert!(got > 0);
                assert_eq!(got + missed, MESSAGES, "{policy}");
            }
        });
    }
    peers.assert_all_free();
}

#[test]
fn a_reader_of_another_pod_that_does_not_read_holds_nobody_and_finds_the_newest() {
    let peers = Peers::steady();
    let spec = ChannelSpec::new("c").slots(4).slot_bytes(4 << 20).policy(Policy::Latest);
    let mut writer = peers.client(0).channel_writer(&spec).unwrap();
    let mut there = reader(&peers, 1, "a/c");
    for sequence in 0..400u64 {
        writer.write_bytes(&bytes(sequence), Timeout::Now).unwrap();
    }
    // Nobody has asked for it, and it comes all the same: what it finds is the newest.
    let newest = || peers.client(1).channels("").unwrap().iter().any(|channel| channel.written == 400);
    until("the newest message has come", newest);
    let Read::Gap { dropped: 399, next: 399 } = there.read(LONG).unwrap() else { panic!("a gap is told") };
    let Read::Message(message) = there.read(LONG).unwrap() else { panic!("a message is there") };
    assert_eq!(message.bytes().to_vec(), bytes(399));
    // What it holds stays while others come.
    for sequence in 400..800u64 {
        writer.write_bytes(&bytes(sequence), Timeout::Now).unwrap();
    }
    let later = || peers.client(1).channels("").unwrap().iter().any(|channel| channel.written == 800);
    until("the newest message has come", later);
    assert_eq!(message.bytes().to_vec(), bytes(399));
    drop(message);
    writer.finish();
    assert_eq!(read_all(there, 400), (1, 399));
    peers.assert_all_free();
}
