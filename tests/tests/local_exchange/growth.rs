//! Messages of a channel that are larger than its slots, inside a pod: among others, and whoever is killed meanwhile.

use std::process::Command;
use std::slice::from_ref;
use std::thread;
use std::time::Duration;

use tensorlane_client::channel::{ChannelSpec, End, Part, Read, ReadOptions, Timeout};
use tensorlane_client::{Client, Error};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Reason};
use tensorlane_tests::channels::{DROPPING, LONG, Program, message, read_all};
use tensorlane_tests::other::{Other, role};
use tensorlane_tests::sidecar::{bin_dir, session};
use tensorlane_tests::streams::{Came, Grpc};
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::{Sidecar, reason, until};

const SLOT: u64 = 4 << 10;
/// Largest message.
const MOST: u64 = 1 << 20;

fn spec(name: &str) -> ChannelSpec {
    ChannelSpec::new(name).slots(4).slot_bytes(SLOT).growth(MOST)
}

/// Bytes of message `number`: each third one is larger than a slot.
fn bytes_of(number: u64) -> Vec<u8> {
    let count = match number.is_multiple_of(3) {
        true => SLOT + 1 + number * 104_729 % (MOST - SLOT),
        false => number * 31 % SLOT,
    };
    pattern(number, count as usize)
}

/// Bytes of the one channel: of its ring, and of messages that are larger than a slot.
fn bytes(client: &Client) -> u64 {
    client.channels("").unwrap()[0].bytes
}

fn waits() -> ReadOptions {
    ReadOptions::new().wait(Duration::from_secs(60))
}

#[test]
fn messages_larger_than_a_slot_come_among_others_and_leave_nothing() {
    const MESSAGES: u64 = 300;
    let sidecar = Sidecar::start();
    let mut writer = sidecar.client().channel_writer(&spec("c").expect_readers(2)).unwrap();
    let read_all = |client: Client| {
        let mut reader = client.channel_reader("c", &ReadOptions::new()).unwrap();
        assert_eq!((reader.attached().slot_bytes, reader.attached().growth), (SLOT, MOST));
        for number in 0..MESSAGES {
            let message = message(&mut reader);
            assert_eq!(message.sequence(), number);
            assert!(message.bytes().to_vec() == bytes_of(number), "message {number} is another one");
        }
        assert!(matches!(reader.read(LONG).unwrap(), Read::End(End::Finished)));
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            let client = sidecar.client();
            scope.spawn(move || read_all(client));
        }
        for number in 0..MESSAGES {
            let written = writer.write_bytes(&bytes_of(number), LONG).unwrap();
            assert_eq!((written.sequence, written.readers), (number, 2));
        }
        writer.finish();
    });
    sidecar.assert_all_free();
}

#[test]
fn the_memory_of_a_large_message_is_free_once_its_slot_is_used_again() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("c")).unwrap();
    let mut reader = sidecar.client().channel_reader("c", &ReadOptions::new()).unwrap();
    let (ring, large) = (bytes(&client), pattern(1, MOST as usize));
    writer.write_bytes(&large, LONG).unwrap();
    assert_eq!(bytes(&client), ring + MOST);
    let held = message(&mut reader);
    for _ in 0..3 {
        writer.write_bytes(b"small", LONG).unwrap();
    }
    assert_eq!(reason(writer.write_bytes(b"small", Timeout::Now)), Reason::BlockedBy);
    assert!(held.bytes().to_vec() == large);
    drop(held);
    writer.write_bytes(b"small", LONG).unwrap();
    until("its memory is free", || bytes(&client) == ring);
    for _ in 0..4 {
        assert_eq!(message(&mut reader).bytes().to_vec(), b"small");
    }
    // Written where it is read; and one that is dropped leaves nothing.
    let descriptor = dense(DType::U8, &[MOST]);
    let mut dropped = writer.loan(from_ref(&descriptor), LONG).unwrap();
    dropped.part(0).unwrap().copy_from(0, &pattern(2, MOST as usize)).unwrap();
    drop(dropped);
    until("what was not published is free", || bytes(&client) == ring);
    let mut loan = writer.loan(from_ref(&descriptor), LONG).unwrap();
    loan.part(0).unwrap().copy_from(0, &large).unwrap();
    assert_eq!(loan.publish().unwrap().sequence, 5);
    let got = message(&mut reader);
    assert_eq!((got.sequence(), got.descriptor(0)), (5, Some(&descriptor)));
    let tensors = got.into_tensors().unwrap();
    drop((writer, reader));
    // The message is held by its tensors, and what they show stays.
    assert!(tensors[0].to_vec() == large);
    drop((tensors, client));
    sidecar.assert_all_free();
}

#[test]
fn what_is_larger_than_the_growth_or_has_no_room_is_refused_and_the_channel_goes_on() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    assert!(matches!(client.channel_writer(&spec("c").growth(SLOT - 1)), Err(Error::InvalidArgument(_))));
    let mut writer = client.channel_writer(&spec("c")).unwrap();
    let refused = writer.write_bytes(&vec![0; MOST as usize + 1], LONG).unwrap_err();
    let told = refused.to_string();
    assert!(told.contains("1048577") && told.contains("1048576") && told.contains("more growth"), "{told}");
    assert_eq!(reason::<()>(Err(refused)), Reason::TooLarge);
    writer.finish();
    let mut writer = client.channel_writer(&spec("huge").growth(1 << 41)).unwrap();
    let mut reader = client.channel_reader("huge", &ReadOptions::new()).unwrap();
    let (small, huge) = (dense(DType::U8, &[4]), dense(DType::U8, &[1 << 40]));
    for sequence in 0..3 {
        assert_eq!(reason(writer.loan(from_ref(&huge), LONG).map(drop)), Reason::NeverFits);
        // Its layout is not that of the next message.
        writer.write(&[Part::tensor(&small, b"well")], LONG).unwrap();
        let message = message(&mut reader);
        assert_eq!((message.sequence(), message.descriptor(0)), (sequence, Some(&small)));
        assert_eq!(message.part(0).unwrap().to_vec(), b"well");
    }
    drop((writer, reader, client));
    sidecar.assert_all_free();
}

#[test]
fn channels_that_drop_bring_large_messages_whole_or_say_that_they_were_dropped() {
    const MESSAGES: u64 = 200;
    for policy in DROPPING {
        let sidecar = Sidecar::start();
        let mut writer = sidecar.client().channel_writer(&spec("c").policy(policy)).unwrap();
        let reader = sidecar.client().channel_reader("c", &ReadOptions::new()).unwrap();
        thread::scope(|scope| {
            let read = scope.spawn(move || {
                read_all(reader, 0, |message| {
                    let number = message.sequence();
                    assert!(message.bytes().to_vec() == bytes_of(number), "message {number} is another one");
                })
            });
            for number in 0..MESSAGES {
                writer.write_bytes(&bytes_of(number), LONG).unwrap();
            }
            writer.finish();
            let (got, missed) = read.join().unwrap();
            assert_eq!(got + missed, MESSAGES);
            assert!(got > 0, "{policy}: nothing was read");
        });
        sidecar.assert_all_free();
    }
}

#[test]
fn a_reader_that_comes_late_and_one_that_drains_get_large_messages_too() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = sidecar.client().channel_writer(&spec("c")).unwrap();
    for number in 0..4 {
        writer.write_bytes(&bytes_of(number), LONG).unwrap();
    }
    let mut late = client.channel_reader("c", &ReadOptions::new().from_oldest()).unwrap();
    drop(writer);
    let first = late.attached().first;
    until("the writer is gone", || client.channels("").unwrap()[0].writer.is_empty());
    for number in first..4 {
        assert!(message(&mut late).bytes().to_vec() == bytes_of(number), "message {number} is another one");
    }
    assert!(matches!(late.read(LONG).unwrap(), Read::End(End::WriterLost)));
    drop((late, client));
    sidecar.assert_all_free();
}

/// The other process of the test that kills it: writes without end.
#[test]
fn another_process_writes() {
    let Some((sockets, name)) = role() else { return };
    let client = session(sockets).unwrap();
    let mut writer = client.channel_writer(&spec(&name).expect_readers(1)).unwrap();
    for number in 0.. {
        writer.write_bytes(&bytes_of(number), Timeout::Never).unwrap();
    }
}

#[test]
fn a_writer_that_is_killed_among_large_messages_leaves_whole_ones_and_no_memory() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for turn in 0..10 {
        let name = format!("killed-{turn}");
        let mut other = Some(Other::start("growth::another_process_writes", &sidecar, &name));
        let mut reader = client.channel_reader(&name, &waits()).unwrap();
        let mut number = 0;
        let end = loop {
            match reader.read(LONG).unwrap() {
                Read::Message(message) => {
                    assert_eq!(message.sequence(), number);
                    assert!(message.bytes().to_vec() == bytes_of(number), "message {number} is another one");
                    number += 1;
                    // It writes on meanwhile, up to a whole ring ahead.
                    if number > 3 * turn {
                        other.take().into_iter().for_each(Other::kill);
                    }
                }
                Read::End(end) => break end,
                none => panic!("a message or the end, not {none:?}"),
            }
        };
        assert_eq!(end, End::WriterLost, "turn {turn}");
    }
    drop(client);
    sidecar.assert_all_free();
}

/// The other process of the test that kills it: holds the first message.
#[test]
fn another_process_holds_what_it_reads() {
    let Some((sockets, name)) = role() else { return };
    let client = session(sockets).unwrap();
    let mut reader = client.channel_reader(&name, &waits()).unwrap();
    let held = message(&mut reader);
    println!("holds {}", held.bytes().len());
    loop {
        thread::park();
    }
}

#[test]
fn a_reader_that_is_killed_with_a_large_message_leaves_no_memory() {
    let sidecar = Sidecar::start();
    let mut writer = sidecar.client().channel_writer(&spec("c").expect_readers(1)).unwrap();
    let mut other = Other::start("growth::another_process_holds_what_it_reads", &sidecar, "c");
    let large = pattern(1, MOST as usize);
    writer.write_bytes(&large, LONG).unwrap();
    other.says(&format!("holds {MOST}"));
    for _ in 0..3 {
        writer.write_bytes(&large, LONG).unwrap();
    }
    thread::scope(|scope| {
        let blocked = scope.spawn(|| writer.write_bytes(&large, LONG).unwrap().readers);
        other.kill();
        assert_eq!(blocked.join().unwrap(), 0);
    });
    drop(writer);
    sidecar.assert_all_free();
}

#[test]
fn a_stream_reads_large_messages_as_any_others() {
    let sidecar = Sidecar::start();
    let mut writer = sidecar.client().channel_writer(&spec("c").expect_readers(1)).unwrap();
    let grpc = Grpc::of(&sidecar);
    let mut reader = grpc.reads("c");
    assert_eq!(reader.attached.spec.as_ref().unwrap().growth, MOST);
    for number in 0..12 {
        writer.write_bytes(&bytes_of(number), LONG).unwrap();
        assert!(reader.plain() == (number, bytes_of(number)), "message {number} is another one");
    }
    writer.finish();
    assert_eq!(reader.event(), Came::End(v1::ChannelOutcome::Finished));
    drop(reader);
    drop(grpc);
    sidecar.assert_all_free();
}

#[test]
fn the_command_writes_files_larger_than_a_slot_and_none_larger_than_the_growth() {
    const FILES: u64 = 7;
    let sidecar = Sidecar::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let files: Vec<String> = (0..FILES).map(|number| file(&number.to_string(), &bytes_of(number))).collect();
    let words = ["channel", "write", "c", "--slot-bytes", "4KiB", "--growth", "1MiB"];
    let files = files.iter().map(String::as_str);
    let all: Vec<&str> = words.into_iter().chain(["--expect-readers", "1"]).chain(files).collect();
    let mut writing = Program::start(&sidecar, &all);
    let mut reader = sidecar.client().channel_reader("c", &waits()).unwrap();
    for number in 0..FILES {
        assert!(message(&mut reader).bytes().to_vec() == bytes_of(number), "message {number} is another one");
    }
    assert!(matches!(reader.read(LONG).unwrap(), Read::End(End::Finished)));
    assert!(writing.finish().starts_with("7 messages"));

    let large = file("large", &vec![1; MOST as usize + 1]);
    let refused = Command::new(bin_dir().join("tensorlane"))
        .arg("--sockets")
        .arg(sidecar.sockets())
        .args(words)
        .arg(large)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("more than the 1048576 bytes of a message"), "{told}");
}
