//! Channels that are read at another peer go on over a link that is cut and mended in time: every message once, and no gap under `block`.

use std::thread;
use std::time::Duration;

use tensorlane_client::channel::{ChannelReader, ChannelSpec, ChannelWriter, End, Policy, Read, ReadOptions};
use tensorlane_tests::channels::{LONG, message, read_all};
use tensorlane_tests::netns::Peers;
use tensorlane_tests::until;

/// Bytes of message `number`: none, few, or more than one frame has.
fn bytes(number: u64) -> Vec<u8> {
    let length = if number % 9 == 8 { 700 << 10 } else { number as usize * 31 % 2_000 };
    (0..length).map(|at| (at as u64 * 131 + number) as u8).collect()
}

/// Peers that wait for each other for longer than a test takes.
fn patient() -> Peers {
    Peers::start(2, |_, options| options.set("gc.leaseGrace", "60s"))
}

fn pair(peers: &Peers, policy: Policy) -> (ChannelWriter, ChannelReader) {
    let spec = ChannelSpec::new("c").slots(4).slot_bytes(1 << 20).policy(policy);
    let writer = peers.client(0).channel_writer(&spec).unwrap();
    let options = ReadOptions::new().wait(Duration::from_secs(30));
    (writer, peers.client(1).channel_reader("a/c", &options).unwrap())
}

/// Cuts the link, until both ends have noticed.
fn cut(peers: &Peers) {
    peers.network.cut(1);
    let here = peers.client(0);
    until("the writer's side says so", || {
        here.channels("c").unwrap().iter().flat_map(|channel| &channel.readers).any(|reader| reader.away)
    });
    let there = peers.client(1);
    until("the reader's side says so", || there.channels("c").unwrap().iter().any(|channel| channel.away));
}

fn resumed(peers: &Peers, host: usize) -> f64 {
    peers.metric(host, "tensorlane_channel_resumed_attachments_total", &[])
}

#[test]
fn a_channel_goes_on_over_a_link_that_is_cut_in_the_middle_of_messages_and_mended() {
    const MESSAGES: u64 = 400;
    let peers = patient();
    let (mut writer, mut there) = pair(&peers, Policy::Block);
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..MESSAGES {
                writer.write_bytes(&bytes(number), LONG).unwrap();
            }
            writer.finish();
        });
        for number in 0..MESSAGES {
            if number % 150 == 100 {
                cut(&peers);
                peers.network.mend(1);
            }
            let message = message(&mut there);
            assert_eq!(message.sequence(), number);
            assert!(message.bytes().to_vec() == bytes(number), "message {number} is another one");
        }
        assert!(matches!(there.read(LONG).unwrap(), Read::End(End::Finished)));
    });
    assert!(resumed(&peers, 0) >= 2.0 && resumed(&peers, 1) >= 2.0);
    drop(there);
    peers.assert_all_free();
}

#[test]
fn a_writer_that_finishes_while_a_link_is_cut_is_told_when_it_is_mended_after_its_last_message() {
    let peers = patient();
    let (mut writer, mut there) = pair(&peers, Policy::Block);
    writer.write_bytes(&bytes(0), LONG).unwrap();
    assert_eq!(message(&mut there).sequence(), 0);
    cut(&peers);
    for number in 1..4 {
        writer.write_bytes(&bytes(number), LONG).unwrap();
    }
    writer.finish();
    peers.network.mend(1);
    for number in 1..4 {
        let message = message(&mut there);
        assert_eq!((message.sequence(), message.bytes().to_vec()), (number, bytes(number)));
    }
    assert!(matches!(there.read(LONG).unwrap(), Read::End(End::Finished)));
    drop(there);
    peers.assert_all_free();
}

#[test]
fn a_reader_that_leaves_while_a_link_is_cut_is_waited_for_no_longer_when_it_is_mended() {
    let peers = patient();
    let (mut writer, there) = pair(&peers, Policy::Block);
    cut(&peers);
    drop(there);
    peers.network.mend(1);
    for number in 0..20 {
        writer.write_bytes(&bytes(number), LONG).unwrap();
    }
    until("the writer knows", || writer.readers() == 0);
    drop(writer);
    peers.assert_all_free();
}

#[test]
fn a_channel_that_drops_waits_for_nobody_while_a_link_is_cut_and_counts_what_is_gone() {
    const MESSAGES: u64 = 60;
    for policy in [Policy::DropOldest, Policy::Latest] {
        let peers = patient();
        let (mut writer, mut there) = pair(&peers, policy);
        writer.write_bytes(&bytes(0), LONG).unwrap();
        assert_eq!(message(&mut there).sequence(), 0);
        cut(&peers);
        for number in 1..MESSAGES {
            writer.write_bytes(&bytes(number), LONG).unwrap();
        }
        writer.finish();
        peers.network.mend(1);
        let check = |message: &tensorlane_client::channel::Message| {
            assert!(message.bytes().to_vec() == bytes(message.sequence()));
        };
        let (got, missed) = read_all(there, 1, check);
        assert_eq!(got + missed, MESSAGES - 1);
        assert!(got >= 1 && missed >= MESSAGES - 10, "{policy}: {got} came, {missed} were dropped");
        peers.assert_all_free();
    }
}
