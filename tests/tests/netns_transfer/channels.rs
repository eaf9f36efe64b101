//! Channels that are read at another peer: every message whole and in order, the writer held back by those who read there, and the end
//! of either side.

use std::thread;
use std::time::Duration;

use tensorlane_client::channel::{
    ChannelReader, ChannelSpec, ChannelWriter, End, Read, ReadOptions, Timeout,
};
use tensorlane_proto::Reason;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::{reason, until, where_the_machine_runs_on};

/// Time in which what must happen has long happened.
const LONG: Timeout = Timeout::After(Duration::from_secs(60));
/// A wait that ends in a test.
const SHORT: Timeout = Timeout::After(Duration::from_secs(2));

/// Bytes of message `number`: thousands are small, one in five hundred has some MiB.
fn bytes(number: u64) -> Vec<u8> {
    let length = if number % 500 == 499 { 3 << 20 } else { number as usize * 31 % 2_000 };
    (0..length).map(|at| (at as u64 * 131 + number) as u8).collect()
}

fn reader(peers: &Peers, host: usize, name: &str) -> ChannelReader {
    peers.client(host).channel_reader(name, &ReadOptions::new().wait(Duration::from_secs(30))).unwrap()
}

fn read(reader: &mut ChannelReader) -> (u64, Vec<u8>) {
    match reader.read(LONG).unwrap() {
        Read::Message(message) => (message.sequence(), message.bytes().to_vec()),
        other => panic!("a message is there, not {other:?}"),
    }
}

fn end(reader: &mut ChannelReader) -> End {
    match reader.read(LONG).unwrap() {
        Read::End(end) => end,
        other => panic!("an end, not {other:?}"),
    }
}

/// A writer at host 0 of four slots of 64 KiB, and a reader at host 1.
fn pair(peers: &Peers) -> (ChannelWriter, ChannelReader) {
    let writer =
        peers.client(0).channel_writer(&ChannelSpec::new("c").slots(4).slot_bytes(64 << 10)).unwrap();
    let there = reader(peers, 1, "a/c");
    (writer, there)
}

#[test]
fn a_channel_brings_every_message_to_its_pod_and_to_another_in_order() {
    const MESSAGES: u64 = 3_000;
    let peers = Peers::steady();
    let spec = ChannelSpec::new("numbers/of/a").slots(8).slot_bytes(4 << 20);
    let mut writer = peers.client(0).channel_writer(&spec).unwrap();
    let readers = [
        reader(&peers, 0, "numbers/of/a"),
        reader(&peers, 1, "a/numbers/of/a"),
        reader(&peers, 1, "a/numbers/of/a"),
    ];
    let routes = readers.each_ref().map(|reader| reader.attached().route.clone());
    assert_eq!(routes, ["local", "tcp", "tcp"]);
    assert_eq!(writer.readers(), 2, "those of another pod are one");
    let check = |mut reader: ChannelReader| {
        for number in 0..MESSAGES {
            let (sequence, got) = read(&mut reader);
            assert_eq!(sequence, number);
            assert!(got == bytes(number), "message {number} is another one");
        }
        assert_eq!(end(&mut reader), End::Finished);
    };
    thread::scope(|scope| {
        for reader in readers {
            scope.spawn(move || check(reader));
        }
        for number in 0..MESSAGES {
            writer.write_bytes(&bytes(number), LONG).unwrap();
        }
        writer.finish();
    });
    peers.assert_all_free();
}

#[test]
fn messages_larger_than_a_slot_come_to_another_pod_in_slots_of_the_largest() {
    const MESSAGES: u64 = 600;
    let peers = Peers::steady();
    let spec = ChannelSpec::new("c").slots(4).slot_bytes(1 << 10).growth(4 << 20);
    let mut writer = peers.client(0).channel_writer(&spec).unwrap();
    let readers = [reader(&peers, 0, "c"), reader(&peers, 1, "a/c")];
    let shapes = readers.each_ref().map(|reader| (reader.attached().slot_bytes, reader.attached().growth));
    assert_eq!(shapes, [(1 << 10, 4 << 20), (4 << 20, 0)]);
    let check = |mut reader: ChannelReader| {
        for number in 0..MESSAGES {
            let (sequence, got) = read(&mut reader);
            assert_eq!(sequence, number);
            assert!(got == bytes(number), "message {number} is another one");
        }
        assert_eq!(end(&mut reader), End::Finished);
    };
    thread::scope(|scope| {
        for reader in readers {
            scope.spawn(move || check(reader));
        }
        for number in 0..MESSAGES {
            writer.write_bytes(&bytes(number), LONG).unwrap();
        }
        writer.finish();
    });
    peers.assert_all_free();
}

#[test]
fn a_writer_waits_for_a_reader_of_another_pod_and_names_its_peer() {
    let peers = Peers::steady();
    let (mut writer, mut there) = pair(&peers);
    let (mut written, mut blocked) = (0u64, None);
    until("both rings are full, and a write waits", || {
        blocked = writer.write_bytes(&written.to_le_bytes(), SHORT).err();
        written += u64::from(blocked.is_none());
        assert!(written <= 9, "nobody has read anything");
        written >= 8 && blocked.is_some()
    });
    let blocked = blocked.unwrap();
    assert!(blocked.to_string().contains("peer b"), "{blocked}");
    assert_eq!(reason::<()>(Err(blocked)), Reason::BlockedBy);
    for number in 0..written {
        assert_eq!(read(&mut there), (number, number.to_le_bytes().to_vec()));
    }
    writer.write_bytes(b"on", LONG).unwrap();
    assert_eq!(read(&mut there).1, b"on");
    // A reader that leaves is waited for no more.
    drop(there);
    for _ in 0..20 {
        writer.write_bytes(b"alone", LONG).unwrap();
    }
    until("the writer knows", || writer.readers() == 0);
    drop(writer);
    peers.assert_all_free();
}

#[test]
fn a_writer_that_goes_is_told_to_readers_of_another_pod_after_its_last_message() {
    let peers = Peers::steady();
    let (mut writer, mut there) = pair(&peers);
    writer.write_bytes(b"last", LONG).unwrap();
    drop(writer);
    assert_eq!(read(&mut there).1, b"last");
    assert_eq!(end(&mut there), End::WriterLost);
    drop(there);
    let none = peers.client(1).channel_reader("a/c", &ReadOptions::new());
    assert_eq!(reason(none), Reason::NotFound);
    peers.assert_all_free();
}

#[test]
fn a_link_that_is_cut_ends_the_readers_of_the_other_pod_and_frees_the_writer() {
    where_the_machine_runs_on(|| {
        let peers = Peers::pair();
        let (mut writer, mut there) = pair(&peers);
        writer.write_bytes(b"before", LONG).unwrap();
        assert_eq!(read(&mut there).1, b"before");
        peers.network.cut(1);
        assert_eq!(end(&mut there), End::PeerLost);
        for _ in 0..20 {
            writer.write_bytes(b"alone", LONG).unwrap();
        }
        drop((writer, there));
        peers.network.mend(1);
        peers.await_connected();
        peers.assert_all_free();
    });
}

#[test]
fn a_channel_brings_every_message_over_a_link_that_drops_one_packet_of_a_hundred() {
    const MESSAGES: u64 = 600;
    let peers = Peers::steady();
    let spec = ChannelSpec::new("c").slots(8).slot_bytes(4 << 20);
    let mut writer = peers.client(0).channel_writer(&spec).unwrap();
    let mut there = reader(&peers, 1, "a/c");
    (0..2).for_each(|host| peers.network.lossy(host, 1));
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..MESSAGES {
                let (sequence, got) = read(&mut there);
                assert_eq!(sequence, number);
                assert!(got == bytes(number), "message {number} is another one");
            }
            assert_eq!(end(&mut there), End::Finished);
        });
        for number in 0..MESSAGES {
            writer.write_bytes(&bytes(number), LONG).unwrap();
        }
        writer.finish();
    });
    peers.assert_all_free();
}

#[test]
fn a_sidecar_of_the_writer_that_is_killed_ends_the_readers_of_the_other_pod() {
    let mut peers = Peers::steady();
    let (writer, mut there) = pair(&peers);
    peers.sidecars[0].kill();
    assert_eq!(end(&mut there), End::PeerLost);
    drop((writer, there));
    peers.assert_free(1);
}
