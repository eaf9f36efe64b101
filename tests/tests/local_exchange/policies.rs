//! Channels that drop: a writer that waits for nobody, readers that are told what they missed, and what is held stays.

use std::io::{BufRead, BufReader, Write};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tensorlane_client::Client;
use tensorlane_client::channel::{
    ChannelReader, ChannelSpec, ChannelWriter, End, Message, Part, Policy, Read, ReadOptions, Timeout,
};
use tensorlane_proto::{DType, Reason};
use tensorlane_tests::channels::{self, DROPPING, LONG, Program, message};
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until};

fn spec(name: &str, policy: Policy) -> ChannelSpec {
    ChannelSpec::new(name).slots(4).slot_bytes(64 << 10).policy(policy)
}

fn reader(client: &Client, name: &str) -> ChannelReader {
    client.channel_reader(name, &ReadOptions::new().wait(Duration::from_secs(60))).unwrap()
}

/// Bytes of a message: its sequence again and again.
fn bytes(sequence: u64) -> Vec<u8> {
    sequence.to_le_bytes().repeat(sequence as usize % 500 + 1)
}

fn write(writer: &mut ChannelWriter, sequence: u64) {
    // One try: whoever reads is not waited for.
    let written = writer.write_bytes(&bytes(sequence), Timeout::Now).unwrap();
    assert_eq!((written.sequence, written.dropped), (sequence, false));
}

fn check(message: &Message) {
    let sequence = message.sequence();
    assert!(message.bytes().to_vec() == bytes(sequence), "message {sequence} is another one");
}

/// Reads to the end from where the reader was attached.
fn read_all(reader: ChannelReader) -> (u64, u64) {
    let first = reader.attached().first;
    channels::read_all(reader, first, check)
}

#[test]
fn a_slow_reader_goes_on_at_the_newest_or_at_the_oldest_and_is_told_what_it_missed() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let client = sidecar.client();
    for policy in DROPPING {
        let name = policy.as_str();
        let mut writer = client.channel_writer(&spec(name, policy)).unwrap();
        let mut slow = reader(&client, name);
        assert_eq!(slow.attached().policy, policy);
        for sequence in 0..20 {
            write(&mut writer, sequence);
        }
        let missed = if policy == Policy::Latest { 19 } else { 16 };
        let gap = slow.read(Timeout::Now).unwrap();
        assert!(matches!(gap, Read::Gap { dropped, next } if dropped == missed && next == missed), "{gap:?}");
        for sequence in missed..20 {
            let message = message(&mut slow);
            assert_eq!(message.sequence(), sequence);
            check(&message);
        }
        assert_eq!(reason(slow.read(Timeout::Now).map(drop)), Reason::DeadlineExceeded);
        let told = client.channels(name).unwrap();
        let (channel, its) = (&told[0], &told[0].readers[0]);
        assert_eq!((channel.written, its.next, its.dropped), (20, 20, missed));
        let label = format!("policy=\"{name}\"");
        let counted = || sidecar.metric("tensorlane_channel_dropped_messages_total", &[&label]);
        assert_eq!(counted(), missed as f64);
        drop((slow, writer));
        until("the channel has ended", || client.channels(name).unwrap().is_empty());
        assert_eq!(counted(), missed as f64, "what a reader was told stays counted");
    }
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn every_message_is_read_whole_or_told_as_dropped() {
    const MESSAGES: u64 = 20_000;
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for policy in DROPPING {
        let spec = spec(policy.as_str(), policy).expect_readers(3);
        let mut writer = client.channel_writer(&spec).unwrap();
        let readers = [(); 3].map(|()| reader(&client, policy.as_str()));
        thread::scope(|scope| {
            let reading = readers.map(|reader| scope.spawn(move || read_all(reader)));
            for sequence in 0..MESSAGES {
                write(&mut writer, sequence);
            }
            writer.finish();
            for read in reading {
                let (got, missed) = read.join().unwrap();
                assert!(got > 0);
                assert_eq!(got + missed, MESSAGES);
            }
        });
    }
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_stopped_reader_does_not_hold_its_writer_and_loses_nobody_elses_messages() {
    const MESSAGES: u64 = 5_000;
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for policy in DROPPING {
        let name = policy.as_str();
        let mut writer = client.channel_writer(&spec(name, policy)).unwrap();
        let mut stopped = Program::start(&sidecar, &["-o", "json", "channel", "tail", name]);
        until("it is attached", || writer.readers() == 1);
        stop(stopped.0.id());
        // The one that reads in turn with the writer gets every message.
        let mut quick = reader(&client, name);
        for sequence in 0..MESSAGES {
            write(&mut writer, sequence);
            let message = message(&mut quick);
            assert_eq!(message.sequence(), sequence);
            check(&message);
        }
        writer.finish();
        signal(stopped.0.id(), Signal::CONT);
        let lines: Vec<Value> =
            stopped.finish().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let dropped: u64 = lines.iter().filter_map(|line| line["dropped"].as_u64()).sum();
        let got: Vec<u64> = lines.iter().filter_map(|line| line["sequence"].as_u64()).collect();
        assert_eq!(got.len() as u64 + dropped, MESSAGES);
        assert_eq!(got.last(), Some(&(MESSAGES - 1)), "the last one is never dropped");
        assert!(dropped >= MESSAGES - 6, "four slots were there for it: {dropped}");
    }
}

#[test]
fn what_a_reader_holds_stays_while_a_writer_in_a_process_of_its_own_laps_it() {
    const LINES: usize = 60_000;
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for policy in DROPPING {
        let name = policy.as_str();
        let words = ["channel", "write", name, "--policy", name, "--slots", "6", "--slot-bytes", "4KiB"];
        let mut writing = Program::start(&sidecar, &[&words[..], &["--expect-readers", "2"]].concat());
        let mut holding =
            client.channel_reader(name, &ReadOptions::new().hold(3).wait(Duration::from_secs(60))).unwrap();
        let mut following = reader(&client, name);
        let mut input = writing.0.stdin.take().unwrap();
        let line = |number: usize| format!("{number} ").repeat(number % 300 + 1);
        let held: Vec<(Message, Vec<u8>)> = (0..3)
            .map(|number| {
                writeln!(input, "{}", line(number)).unwrap();
                let message = message(&mut holding);
                let copy = message.bytes().to_vec();
                assert_eq!(copy, line(number).into_bytes());
                (message, copy)
            })
            .collect();
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in 3..LINES {
                    writeln!(input, "{}", line(number)).unwrap();
                }
            });
            // Six slots, of which three are held: 60,000 messages lap them 20,000 times.
            let mut next = 0;
            loop {
                match following.read(LONG).unwrap() {
                    Read::Message(message) => {
                        let number = message.sequence() as usize;
                        assert!(message.bytes().to_vec() == line(number).into_bytes(), "message {number}");
                        next = message.sequence() + 1;
                        for (message, copy) in &held {
                            assert!(message.bytes().to_vec() == *copy, "{} changed", message.sequence());
                        }
                    }
                    Read::Gap { next: after, .. } => next = after,
                    Read::Epoch { .. } => panic!("a reader that does not follow met another channel"),
                    Read::End(end) => {
                        assert_eq!((end, next), (End::Finished, LINES as u64));
                        break;
                    }
                }
            }
        });
        for (message, copy) in &held {
            assert!(message.bytes().to_vec() == *copy, "{} changed", message.sequence());
        }
        assert!(writing.finish().contains(&format!("{LINES} messages")));
    }
}

#[test]
fn a_writer_whose_slots_are_all_held_drops_its_message_and_says_so() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("held", Policy::Latest)).unwrap();
    let mut holding = client.channel_reader("held", &ReadOptions::new().hold(3)).unwrap();
    let mut also = client.channel_reader("held", &ReadOptions::new().hold(1)).unwrap();
    let mut held: Vec<Message> = (0..3)
        .map(|sequence| {
            write(&mut writer, sequence);
            drop(message(&mut also));
            message(&mut holding)
        })
        .collect();
    write(&mut writer, 3);
    held.push(message(&mut also));
    let written = writer.write_bytes(b"lost", LONG).unwrap();
    assert_eq!((written.sequence, written.readers, written.dropped), (4, 2, true));
    held.iter().for_each(check);
    drop(held);
    write(&mut writer, 5);
    assert!(matches!(also.read(LONG).unwrap(), Read::Gap { dropped: 1, next: 5 }));
    check(&message(&mut also));
    assert!(matches!(holding.read(LONG).unwrap(), Read::Gap { dropped: 2, next: 5 }));
    check(&message(&mut holding));
    // Nobody holds every slot: the writer has one left, whoever reads.
    let many = client.channel_reader("held", &ReadOptions::new().hold(4)).map(drop);
    assert_eq!(reason(many), Reason::InvalidArgument);
}

#[test]
fn a_message_of_tensors_is_one_of_its_layout_however_often_that_changes() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("layouts", Policy::Latest)).unwrap();
    let mut reader = reader(&client, "layouts");
    let mut seen = 0;
    for rows in 0..200 {
        let (descriptor, bytes) = (dense(DType::F32, &[rows, 5]), pattern(rows, rows as usize * 20));
        writer.write(&[Part::tensor(&descriptor, &bytes)], Timeout::Now).unwrap();
        if rows % 7 == 6 {
            assert!(matches!(reader.read(LONG).unwrap(), Read::Gap { dropped: 6, .. }));
            let message = message(&mut reader);
            assert_eq!((message.sequence(), message.descriptor(0)), (rows, Some(&descriptor)));
            assert_eq!(message.part(0).unwrap().to_vec(), bytes);
            seen += 1;
        }
    }
    assert_eq!(seen, 28);
}

#[test]
fn a_message_larger_than_a_slot_is_refused_and_the_channel_goes_on() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for policy in DROPPING {
        let mut writer = client.channel_writer(&spec(policy.as_str(), policy)).unwrap();
        let mut reader = reader(&client, policy.as_str());
        let refused = writer.write_bytes(&vec![0; (64 << 10) + 1], LONG).map(drop);
        assert_eq!(reason(refused), Reason::TooLarge);
        write(&mut writer, 0);
        assert_eq!(message(&mut reader).sequence(), 0);
    }
}

#[test]
fn commands_show_a_policy_what_was_dropped_and_where() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writing = Program::start(&sidecar, &["channel", "write", "c", "--policy", "latest"]);
    until("the channel is there", || !client.channels("c").unwrap().is_empty());
    let mut tail = Program::start(&sidecar, &["channel", "tail", "c"]);
    let mut printed = BufReader::new(tail.0.stdout.take().unwrap()).lines();
    until("it is attached", || client.channels("c").unwrap()[0].readers.len() == 1);
    stop(tail.0.id());
    let input = writing.0.stdin.as_mut().unwrap();
    for _ in 0..9 {
        input.write_all(b"line\n").unwrap();
    }
    until("all is written", || client.channels("c").unwrap()[0].written == 9);
    signal(tail.0.id(), Signal::CONT);
    assert_eq!(printed.next().unwrap().unwrap(), "8 dropped before 8");
    assert_eq!(printed.next().unwrap().unwrap(), "8  4 B");
    // A line is printed before its message is given back.
    until("it waits for the next one", || client.channels("c").unwrap()[0].readers[0].waits);
    let stat = Program::start(&sidecar, &["-o", "json", "channel", "stat", "c"]).finish();
    let stat: Value = serde_json::from_str(&stat).unwrap();
    assert_eq!((&stat["policy"], &stat["written"]), (&Value::from("latest"), &Value::from(9)));
    assert_eq!((&stat["readers"][0]["dropped"], &stat["readers"][0]["behind"]), (&8.into(), &0.into()));
    writing.finish();
    assert!(printed.next().is_none());
    assert!(tail.0.wait().unwrap().success());
}
