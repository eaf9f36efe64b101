//! Channels with large messages that are read at two other peers: what the writer's peer sends for it, and what one of the two costs the
//! other. Neither passes anything on to the other.

use std::thread;
use std::time::Duration;

use tensorlane_client::channel::{ChannelReader, ChannelSpec, ChannelWriter, Message, ReadOptions};
use tensorlane_tests::channels::{LONG, message, read_all};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::tensors::pattern;
use tensorlane_tests::transfer::MI;
use tensorlane_tests::until;

/// Bytes of a message: of so many on, a tensor is passed on by those who read it.
const BYTES: u64 = 32 * MI;
/// Slow enough to be in the middle of a message for half a second.
const MBIT: u32 = 400;

/// Bytes of message `number`.
fn bytes(number: u64) -> Vec<u8> {
    pattern(number, BYTES as usize)
}

fn check(message: &Message) {
    assert!(message.bytes().to_vec() == bytes(message.sequence()), "message {} differs", message.sequence());
}

/// Three peers, a writer at the first, and a reader at each other one.
fn start() -> (Peers, ChannelWriter, [ChannelReader; 2]) {
    let peers = Peers::start(3, |_, options| options.steady());
    let spec = ChannelSpec::new("c").slots(2).slot_bytes(BYTES);
    let writer = peers.client(0).channel_writer(&spec).unwrap();
    let options = ReadOptions::new().wait(Duration::from_secs(30));
    let readers = [1, 2].map(|host| peers.client(host).channel_reader("a/c", &options).unwrap());
    (peers, writer, readers)
}

/// Writes so many messages and the end, which both read.
fn write_and_read(mut writer: ChannelWriter, readers: [ChannelReader; 2], messages: u64) {
    thread::scope(|scope| {
        let reading = readers.map(|reader| scope.spawn(move || read_all(reader, 0, check)));
        for number in 0..messages {
            writer.write_bytes(&bytes(number), LONG).unwrap();
        }
        writer.finish();
        for one in reading {
            assert_eq!(one.join().unwrap(), (messages, 0));
        }
    });
}

#[test]
fn a_channel_to_two_nodes_brings_large_messages_to_both_and_is_sent_once_to_each() {
    const MESSAGES: u64 = 3;
    const WHOLE: u64 = MESSAGES * BYTES;
    let (peers, writer, readers) = start();
    let counts = || {
        let network = &peers.network;
        [network.sent(0), network.received(1), network.received(2), network.sent(1), network.sent(2)]
    };
    let before = counts();
    write_and_read(writer, readers, MESSAGES);
    let after = counts();
    let went: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    let is_about = |bytes: u64, whole: u64| (whole..whole + whole / 10).contains(&bytes);
    assert!(is_about(went[0], 2 * WHOLE), "the writer's host sends each message once to each: {went:?}");
    assert!(is_about(went[1], WHOLE) && is_about(went[2], WHOLE), "each host gets it once: {went:?}");
    assert!(went[3] < BYTES && went[4] < BYTES, "no reader's host passes one on: {went:?}");
    peers.assert_all_free();
}

#[test]
fn a_channel_to_two_nodes_needs_no_way_between_them() {
    let (peers, writer, readers) = start();
    peers.network.lose(1, 2);
    peers.network.lose(2, 1);
    write_and_read(writer, readers, 2);
    peers.assert_all_free();
}

#[test]
fn a_channel_to_two_nodes_goes_on_to_one_where_the_other_dies_in_the_middle_of_a_message() {
    const MESSAGES: u64 = 4;
    let (mut peers, mut writer, [mut dies, mut stays]) = start();
    writer.write_bytes(&bytes(0), LONG).unwrap();
    [&mut dies, &mut stays].into_iter().for_each(|reader| check(&message(reader)));
    peers.network.slow(0, MBIT);
    thread::scope(|scope| {
        let reading = scope.spawn(move || read_all(stays, 1, check));
        let before = peers.network.received(1);
        writer.write_bytes(&bytes(1), LONG).unwrap();
        until("some of it is there", || peers.network.received(1) > before + 4 * MI);
        peers.sidecars[1].kill();
        for number in 2..MESSAGES {
            writer.write_bytes(&bytes(number), LONG).unwrap();
        }
        until("nobody waits for who died", || writer.readers() == 1);
        writer.finish();
        assert_eq!(reading.join().unwrap(), (MESSAGES - 1, 0));
    });
    drop(dies);
    [0, 2].into_iter().for_each(|host| peers.assert_free(host));
}
