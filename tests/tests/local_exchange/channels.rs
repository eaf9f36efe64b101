//! Channels inside a pod: one writer, its readers, and the end of either, by threads and by processes that are killed.

use std::io::{BufRead, BufReader};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tensorlane_client::channel::{
    ChannelReader, ChannelSpec, ChannelWriter, End, Message, Part, Placed, Read, ReadOptions, Timeout,
};
use tensorlane_client::{Client, Error, PutOptions, Result};
use tensorlane_proto::{DType, Reason};
use tensorlane_tests::channels::{LONG, Program, message};
use tensorlane_tests::other::{Other, role};
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::sidecar::session;
use tensorlane_tests::tensors::{dense, pattern, put_pattern, seeded, u8s};
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until};

/// A wait that ends in a test.
const SHORT: Timeout = Timeout::After(Duration::from_millis(50));

fn spec(name: &str) -> ChannelSpec {
    ChannelSpec::new(name).slots(4).slot_bytes(64 << 10)
}

fn reader(client: &Client, name: &str) -> ChannelReader {
    client.channel_reader(name, &ReadOptions::new()).unwrap()
}

fn end(reader: &mut ChannelReader) -> End {
    match reader.read(LONG).unwrap() {
        Read::End(end) => end,
        other => panic!("an end, not {other:?}"),
    }
}

fn write(writer: &mut ChannelWriter, text: &str) {
    writer.write_bytes(text.as_bytes(), LONG).unwrap();
}

fn text(message: &Message) -> String {
    String::from_utf8(message.bytes().to_vec()).unwrap()
}

/// The error of a read that brings nothing.
fn nothing(read: Result<Read>) -> Error {
    match read {
        Ok(read) => panic!("nothing is there, not {read:?}"),
        Err(error) => error,
    }
}

/// `tensorlane channel`, in a process of its own that ends with the test.
fn program(sidecar: &Sidecar, words: &[&str]) -> Program {
    Program::start(sidecar, &[&["channel"], words].concat())
}

#[test]
fn a_channel_brings_every_message_to_two_readers_in_order() {
    const MESSAGES: u32 = 10_000;
    let sidecar = Sidecar::start();
    let mut writer = sidecar.client().channel_writer(&spec("numbers").expect_readers(2)).unwrap();
    let read_all = |client: Client| {
        let mut reader = reader(&client, "numbers");
        assert_eq!((reader.attached().first, reader.attached().route.as_str()), (0, "local"));
        for number in 0..MESSAGES {
            let message = message(&mut reader);
            assert_eq!(message.sequence(), u64::from(number));
            assert_eq!(message.bytes().to_vec(), number.to_le_bytes());
        }
        assert_eq!(end(&mut reader), End::Finished);
        assert_eq!(end(&mut reader), End::Finished, "an end stays one");
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            let client = sidecar.client();
            scope.spawn(move || read_all(client));
        }
        for number in 0..MESSAGES {
            let written = writer.write_bytes(&number.to_le_bytes(), LONG).unwrap();
            assert_eq!((written.sequence, written.readers), (u64::from(number), 2));
        }
        writer.finish();
    });
    sidecar.assert_all_free();
}

#[test]
fn a_message_has_tensors_whose_layouts_may_change() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("batches")).unwrap();
    let mut reader = reader(&client, "batches");
    for (seen, rows) in (0..).zip([1, 2, 2, 3, 1, 1, 0]) {
        let (floats, bytes) = (dense(DType::F32, &[rows, 5]), dense(DType::U8, &[rows, 3]));
        let (a, b) = (pattern(rows, rows as usize * 20), pattern(rows + 9, rows as usize * 3));
        writer.write(&[Part::tensor(&floats, &a), Part::tensor(&bytes, &b)], LONG).unwrap();
        let message = message(&mut reader);
        assert_eq!((message.sequence(), message.parts()), (seen, 2));
        assert_eq!((message.descriptor(0), message.descriptor(1)), (Some(&floats), Some(&bytes)));
        assert_eq!((message.part(0).unwrap().to_vec(), message.part(1).unwrap().to_vec()), (a, b));
        assert!(message.part(2).is_err());
    }
    write(&mut writer, "plain");
    let plain = message(&mut reader);
    assert_eq!((plain.parts(), text(&plain).as_str()), (0, "plain"));
}

#[test]
fn a_writer_hears_the_place_of_a_message_before_a_reader_sees_it() {
    let sidecar = Sidecar::start();
    let (client, other) = (sidecar.client(), sidecar.client());
    let mut writer = client.channel_writer(&spec("places").slots(2)).unwrap();
    let beside = client.channel_writer(&spec("beside")).unwrap();
    let mut reader = reader(&other, "places");
    assert_eq!(reader.channel(), Some(writer.channel()), "two clients of a process tell it from others");
    assert_ne!(writer.channel(), beside.channel());
    let descriptor = dense(DType::U8, &[100]);
    let bytes = pattern(1, 100);
    for sequence in 0..6u64 {
        let mut heard = None;
        let hears = |placed: Placed| {
            assert_eq!(reason(reader.read(Timeout::Now).map(drop)), Reason::DeadlineExceeded);
            heard = Some(placed);
        };
        match sequence % 2 {
            0 => writer.write_placed(&[Part::tensor(&descriptor, &bytes)], LONG, hears).unwrap(),
            _ => writer.write_bytes_placed(&bytes, LONG, hears).unwrap(),
        };
        assert_eq!(heard, Some(Placed { sequence, replaces: sequence.checked_sub(2) }));
        assert_eq!(message(&mut reader).bytes().to_vec(), bytes);
    }
    let refused = writer.write_bytes_placed(&vec![0u8; 65 << 10], LONG, |_| panic!("it was refused"));
    assert_eq!(reason(refused.map(drop)), Reason::TooLarge);
}

#[test]
fn a_loan_is_read_where_it_was_written_and_leaves_nothing_if_it_is_dropped() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("loans")).unwrap();
    let mut reader = reader(&client, "loans");
    let descriptor = dense(DType::U8, &[100]);
    {
        let mut dropped = writer.loan(std::slice::from_ref(&descriptor), LONG).unwrap();
        dropped.part(0).unwrap().copy_from(0, &pattern(1, 100)).unwrap();
    }
    let mut loan = writer.loan(std::slice::from_ref(&descriptor), LONG).unwrap();
    loan.part(0).unwrap().copy_from(0, &pattern(2, 100)).unwrap();
    assert_eq!(loan.publish().unwrap().sequence, 0);
    let message = message(&mut reader);
    assert_eq!((message.sequence(), message.part(0).unwrap().to_vec()), (0, pattern(2, 100)));
    assert_eq!(reason(reader.read(Timeout::Now).map(drop)), Reason::HoldLimit);
    drop(message);
    assert_eq!(reason(reader.read(Timeout::Now).map(drop)), Reason::DeadlineExceeded);
}

#[test]
fn a_blocked_write_names_the_reader_and_goes_on_when_it_has_read() {
    let sidecar = Sidecar::start();
    let slow = Client::options(sidecar.sockets()).name("slow-one").connect().unwrap();
    let mut writer = sidecar.client().channel_writer(&spec("full")).unwrap();
    let mut reader = reader(&slow, "full");
    for number in 0..4 {
        write(&mut writer, &number.to_string());
    }
    let held = message(&mut reader);
    for timeout in [Timeout::Now, SHORT] {
        let blocked = writer.write_bytes(b"4", timeout).unwrap_err();
        assert_eq!(blocked.reason(), Some(Reason::BlockedBy), "{blocked}");
        let told = blocked.to_string();
        assert!(told.contains("slow-one") && told.contains("message 0"), "{told}");
    }
    drop(held);
    writer.write_bytes(b"4", Timeout::Now).unwrap();
    for number in 1..5 {
        assert_eq!(text(&message(&mut reader)), number.to_string());
    }
}

#[test]
fn a_read_of_nothing_ends_at_its_timeout_and_is_woken_by_a_close() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let writer = client.channel_writer(&spec("quiet")).unwrap();
    let mut reader = reader(&client, "quiet");
    for timeout in [Timeout::Now, SHORT] {
        assert_eq!(nothing(reader.read(timeout)).reason(), Some(Reason::DeadlineExceeded));
    }
    let closer = reader.closer();
    let read = thread::spawn(move || reader.read(Timeout::Never).map(drop));
    closer.close();
    assert_eq!(reason(read.join().unwrap()), Reason::ChannelEnded);
    until("the closed reader is gone, though its closer lives", || writer.readers() == 0);
    closer.close();
}

#[test]
fn a_reader_may_wait_for_its_channel_and_is_told_when_none_comes() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let waiting = || ReadOptions::new().wait(Duration::from_secs(60));
    let late = sidecar.client();
    thread::scope(|scope| {
        let read = scope.spawn(|| late.channel_reader("later", &waiting()).unwrap().attached().first);
        until("the reader waits", || {
            sidecar.metric("tensorlane_sidecar_waiting_requests", &["for=\"name\""]) == 1.0
        });
        let _writer = sidecar.client().channel_writer(&spec("later").expect_readers(1)).unwrap();
        assert_eq!(read.join().unwrap(), 0);
    });
    let absent = late.channel_reader("never", &ReadOptions::new()).map(drop);
    assert_eq!(reason(absent), Reason::NotFound);
    let soon = ReadOptions::new().wait(Duration::from_millis(50));
    assert_eq!(reason(late.channel_reader("never", &soon).map(drop)), Reason::NotFound);
    until("nobody waits", || sidecar.metric("tensorlane_sidecar_waiting_requests", &["for=\"name\""]) == 0.0);
    sidecar.assert_all_free();
}

#[test]
fn a_reader_begins_with_the_next_message_or_with_the_oldest_that_is_there() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("history")).unwrap();
    for number in 0..10 {
        write(&mut writer, &number.to_string());
    }
    let mut next = reader(&client, "history");
    let mut oldest = client.channel_reader("history", &ReadOptions::new().from_oldest()).unwrap();
    assert_eq!((next.attached().first, next.attached().missed), (10, 0));
    let (first, missed) = (oldest.attached().first, oldest.attached().missed);
    assert_eq!(first, missed);
    assert!((7..10).contains(&first), "three of four slots are sure to be whole: {first}");
    write(&mut writer, "10");
    assert_eq!(text(&message(&mut next)), "10");
    for number in first..=10 {
        assert_eq!(text(&message(&mut oldest)), number.to_string());
    }
}

#[test]
fn processes_that_read_and_put_nothing_take_little_of_the_arena() {
    const READERS: u64 = 20;
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("read")).unwrap();
    let clients: Vec<Client> = (0..READERS).map(|_| sidecar.client()).collect();
    let mut readers: Vec<ChannelReader> = clients.iter().map(|client| reader(client, "read")).collect();
    let used = || {
        let arena = client.status().unwrap().arena.unwrap();
        arena.total - arena.free
    };
    // The ring itself is below a mebibyte.
    assert!(used() < (1 << 20) + READERS * (64 << 10), "{}", used());
    write(&mut writer, "a");
    assert!(readers.iter_mut().all(|reader| text(&message(reader)) == "a"));
    drop((readers, clients));
    until("nothing is kept of readers that have ended", || used() < 1 << 20);
}

#[test]
fn a_reader_holds_as_many_messages_as_it_asked_for_and_gives_them_back_in_any_order() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("held")).unwrap();
    let mut reader = client.channel_reader("held", &ReadOptions::new().hold(3)).unwrap();
    for number in 0..4 {
        write(&mut writer, &number.to_string());
    }
    let (zero, one, two) = (message(&mut reader), message(&mut reader), message(&mut reader));
    assert_eq!(nothing(reader.read(LONG)).reason(), Some(Reason::HoldLimit));
    drop(one);
    let three = message(&mut reader);
    assert_eq!(reason(writer.write_bytes(b"4", Timeout::Now).map(drop)), Reason::BlockedBy);
    assert_eq!((text(&zero), text(&two), text(&three)), ("0".into(), "2".into(), "3".into()));
    drop((zero, two, three));
    write(&mut writer, "4");
    let many = client.channel_reader("held", &ReadOptions::new().hold(5)).map(drop);
    assert_eq!(reason(many), Reason::InvalidArgument);
}

#[test]
fn a_channel_has_one_writer_and_its_name_is_free_after_it() {
    let sidecar = Sidecar::start();
    let (first, second) = (sidecar.client(), sidecar.client());
    let writer = first.channel_writer(&spec("one")).unwrap();
    assert_eq!(reason(second.channel_writer(&spec("one")).map(drop)), Reason::NameTaken);
    drop(writer);
    first.flush().unwrap();
    until("the name is free", || second.channel_writer(&spec("one")).is_ok());
    // A tensor's name is another thing.
    drop(put_pattern(&first, 1, 10, &PutOptions::named("one")).unwrap());
    second.unname(&["one"]).unwrap();
    drop((first, second));
    sidecar.assert_all_free();
}

#[test]
fn a_writer_that_is_dropped_is_lost_to_its_readers_after_they_have_drained_it() {
    let sidecar = Sidecar::start();
    let mut writer = sidecar.client().channel_writer(&spec("dropped")).unwrap();
    let client = sidecar.client();
    let mut reader = reader(&client, "dropped");
    write(&mut writer, "last");
    drop(writer);
    assert_eq!(text(&message(&mut reader)), "last");
    assert_eq!(end(&mut reader), End::WriterLost);
}

#[test]
fn a_killed_writer_ends_its_channel_for_readers_that_sleep() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = program(&sidecar, &["write", "lines", "--expect-readers", "1"]);
    let mut reader =
        client.channel_reader("lines", &ReadOptions::new().wait(Duration::from_secs(60))).unwrap();
    writer.say("one\ntwo\n");
    assert_eq!(text(&message(&mut reader)), "one");
    assert_eq!(text(&message(&mut reader)), "two");
    thread::scope(|scope| {
        let sleeps = scope.spawn(|| end(&mut reader));
        until("the reader sleeps", || client.channels("lines").unwrap()[0].readers[0].waits);
        writer.kill();
        assert_eq!(sleeps.join().unwrap(), End::WriterLost);
    });
    drop(reader);
    drop(client);
    sidecar.assert_all_free();
}

/// Bytes of the tensor of message `number` of the writer that is killed: some make many pages, some a few bytes.
fn written_by_another(number: u64) -> Vec<u8> {
    pattern(number, 1 + (number * 7_919 % 60_000) as usize)
}

/// The other process of the test that kills it, which starts it with a sidecar to talk to: writes without end.
#[test]
fn another_process_writes() {
    let Some((sockets, name)) = role() else { return };
    let client = session(sockets).unwrap();
    let mut writer = client.channel_writer(&spec(&name).expect_readers(1)).unwrap();
    for number in 0.. {
        let bytes = written_by_another(number);
        let descriptor = dense(DType::U8, &[bytes.len() as u64]);
        writer.write(&[Part::tensor(&descriptor, &bytes)], Timeout::Never).unwrap();
    }
}

#[test]
fn a_writer_that_is_killed_thirty_times_at_any_point_leaves_whole_messages() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for turn in 0..30 {
        let name = format!("killed-{turn}");
        let mut other = Some(Other::start("channels::another_process_writes", &sidecar, &name));
        let options = ReadOptions::new().wait(Duration::from_secs(60));
        let mut reader = client.channel_reader(&name, &options).unwrap();
        let mut number = 0;
        let end = loop {
            match reader.read(LONG).unwrap() {
                Read::Message(message) => {
                    assert_eq!(message.sequence(), number);
                    let bytes = message.part(0).unwrap().to_vec();
                    assert!(bytes == written_by_another(number), "message {number} is another one");
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

#[test]
fn a_killed_reader_is_waited_for_no_longer() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("raw").expect_readers(1)).unwrap();
    let mut reader = program(&sidecar, &["tail", "raw", "--wait", "60s"]);
    writer.write_bytes(b"first", LONG).unwrap();
    let mut line = String::new();
    BufReader::new(reader.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "0  5 B\n");
    // A line is printed before its message is given back.
    until("the reader waits for the next one", || client.channels("raw").unwrap()[0].readers[0].waits);
    stop(reader.0.id());
    for _ in 0..4 {
        writer.write_bytes(b"more", LONG).unwrap();
    }
    let blocked = writer.write_bytes(b"too much", SHORT).unwrap_err();
    assert_eq!(blocked.reason(), Some(Reason::BlockedBy), "whoever is stopped lives: {blocked}");
    thread::scope(|scope| {
        let blocked = scope.spawn(|| writer.write_bytes(b"goes on", LONG).unwrap().readers);
        reader.kill();
        assert_eq!(blocked.join().unwrap(), 0);
    });
    drop(writer);
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_stopped_writer_does_not_answer_and_nobody_is_attached() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("deadlines.map", "2s"));
    let client = sidecar.client();
    let mut writer = program(&sidecar, &["write", "stopped"]);
    until("the channel is there", || {
        // Its own map came too late.
        if writer.0.try_wait().unwrap().is_some() {
            writer = program(&sidecar, &["write", "stopped"]);
        }
        !client.channels("stopped").unwrap().is_empty()
    });
    stop(writer.0.id());
    let refused = client.channel_reader("stopped", &ReadOptions::new()).map(drop);
    assert_eq!(reason(refused), Reason::WriterNotAnswering);
    assert!(client.channels("stopped").unwrap()[0].readers.is_empty());
    signal(writer.0.id(), Signal::CONT);
    let mut reader = None;
    until("the writer answers again", || {
        reader = client.channel_reader("stopped", &ReadOptions::new()).ok();
        reader.is_some()
    });
    let mut reader = reader.unwrap();
    writer.say("awake\n");
    assert_eq!(text(&message(&mut reader)), "awake");
    drop(writer);
    drop((reader, client));
    sidecar.assert_all_free();
}

#[test]
fn a_sidecar_that_is_killed_ends_its_channels_after_they_have_drained() {
    let mut sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = sidecar.client().channel_writer(&spec("orphan")).unwrap();
    let mut reader = reader(&client, "orphan");
    write(&mut writer, "kept");
    sidecar.kill();
    assert_eq!(text(&message(&mut reader)), "kept");
    assert!(matches!(nothing(reader.read(LONG)), Error::SessionLost { .. }));
    let lost = (0..100).find_map(|_| writer.write_bytes(b"lost", LONG).err()).unwrap();
    assert!(matches!(lost, Error::SessionLost { .. }), "{lost}");
}

#[test]
fn a_reader_that_sleeps_while_its_sidecar_ends_in_order_is_told_that_its_session_is_lost() {
    let mut sidecar = Sidecar::start();
    let client = sidecar.client();
    let writer = sidecar.client().channel_writer(&spec("ending")).unwrap();
    let mut reader = reader(&client, "ending");
    thread::scope(|scope| {
        let sleeps = scope.spawn(|| nothing(reader.read(LONG)));
        until("the reader sleeps", || client.channels("ending").unwrap()[0].readers[0].waits);
        sidecar.terminate();
        let told = sleeps.join().unwrap();
        assert!(matches!(told, Error::SessionLost { .. }), "{told}");
    });
    drop(writer);
}

#[test]
fn a_reader_that_tries_once_at_a_time_is_told_that_its_sidecar_is_gone() {
    let mut sidecar = Sidecar::start();
    let client = sidecar.client();
    let _writer = client.channel_writer(&spec("polled")).unwrap();
    let mut reader = reader(&client, "polled");
    assert_eq!(nothing(reader.read(Timeout::Now)).reason(), Some(Reason::DeadlineExceeded));
    sidecar.kill();
    until("it is told", || matches!(nothing(reader.read(Timeout::Now)), Error::SessionLost { .. }));
}

#[test]
fn a_sidecar_that_ends_in_order_leaves_messages_that_are_held_as_they_are() {
    let mut sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = sidecar.client().channel_writer(&spec("held")).unwrap();
    let mut reader = reader(&client, "held");
    for number in 0..4 {
        write(&mut writer, &number.to_string());
    }
    let held = message(&mut reader);
    thread::scope(|scope| {
        let blocked = scope.spawn(|| writer.write_bytes(b"over it", LONG).unwrap_err());
        sidecar.terminate();
        assert!(matches!(blocked.join().unwrap(), Error::SessionLost { .. }));
    });
    assert_eq!(text(&held), "0");
    drop(held);
    for number in 1..4 {
        assert_eq!(text(&message(&mut reader)), number.to_string());
    }
}

#[test]
fn a_reader_that_came_twice_is_one_of_those_that_are_expected() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec("two").expect_readers(2)).unwrap();
    drop(reader(&client, "two"));
    client.flush().unwrap();
    until("the first one is gone", || writer.readers() == 0);
    let _back = reader(&client, "two");
    let expired = writer.write_bytes(b"too early", SHORT).unwrap_err();
    assert!(expired.to_string().contains("1 of the 2 readers"), "{expired}");
    let _second = reader(&client, "two");
    assert_eq!(writer.write_bytes(b"now", LONG).unwrap().readers, 2);
}

#[test]
fn a_thousand_readers_come_and_go_beside_traffic_and_leave_nothing() {
    const COMING: usize = 500;
    let sidecar = Sidecar::start();
    let mut writer = sidecar.client().channel_writer(&spec("busy")).unwrap();
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let client = sidecar.client();
                scope.spawn(move || {
                    for _ in 0..COMING {
                        let mut reader = reader(&client, "busy");
                        let first = reader.attached().first;
                        assert_eq!(message(&mut reader).sequence(), first);
                    }
                })
            })
            .collect();
        while readers.iter().any(|reader| !reader.is_finished()) {
            writer.write_bytes(b"beat", LONG).unwrap();
        }
    });
    until("no reader is left", || writer.readers() == 0);
    drop(writer);
    sidecar.assert_all_free();
}

#[test]
fn bad_specifications_and_messages_are_refused_and_leave_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    for wrong in [
        ChannelSpec::new("a").slots(1),
        ChannelSpec::new("a").slots(65_537),
        ChannelSpec::new("a").slot_bytes(0),
        ChannelSpec::new("a").slot_bytes(u64::MAX),
    ] {
        assert!(matches!(client.channel_writer(&wrong), Err(Error::InvalidArgument(_))), "{wrong:?}");
    }
    assert_eq!(reason(client.channel_writer(&ChannelSpec::new("")).map(drop)), Reason::InvalidArgument);
    let huge = ChannelSpec::new("huge").slots(1_000).slot_bytes(1 << 20);
    assert_eq!(reason(client.channel_writer(&huge).map(drop)), Reason::NeverFits);
    let mut writer = client.channel_writer(&spec("small")).unwrap();
    let mut reader = reader(&client, "small");
    let large = vec![0; (64 << 10) + 1];
    assert_eq!(reason(writer.write_bytes(&large, LONG).map(drop)), Reason::TooLarge);
    let part = dense(DType::F32, &[2]);
    assert_eq!(reason(writer.write(&[Part::tensor(&part, &[0; 7])], LONG).map(drop)), Reason::LayoutMismatch);
    for (part, count, bound) in [(u8s(1), 1_025, "1024 parts"), (seeded(u64::MAX, 1), 1_000, "16384 fit")] {
        let parts: Vec<Part<'_>> = (0..count).map(|_| Part::tensor(&part, &[0])).collect();
        let refused = writer.write(&parts, LONG).map(drop).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::TooLarge), "{refused}");
        assert!(refused.to_string().contains(bound), "{refused}");
    }
    write(&mut writer, "well");
    assert_eq!(text(&message(&mut reader)), "well");
    drop((writer, reader, client));
    sidecar.assert_all_free();
}

#[test]
fn the_command_writes_reads_and_lists_a_channel() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut tail = program(&sidecar, &["tail", "lines", "--wait", "60s", "--raw"]);
    let mut copy = program(&sidecar, &["tail", "lines", "--wait", "60s", "--lines"]);
    let mut counted = program(&sidecar, &["tail", "lines", "--wait", "60s", "-n", "1"]);
    let mut writer = program(&sidecar, &["write", "lines", "--expect-readers", "3"]);
    writer.say("one\n\nthree");
    assert_eq!(counted.finish(), "0  3 B\n");
    until("the channel is listed with the readers that are left", || {
        let channels = client.channels("").unwrap();
        channels.len() == 1 && channels[0].readers.len() == 2 && channels[0].written == 2
    });
    let listed = program(&sidecar, &["ls"]).finish();
    assert!(listed.starts_with("NAME") && listed.contains("lines  tensorlane"), "{listed}");
    let stat = program(&sidecar, &["stat", "lines", "-o", "json"]).finish();
    let stat: serde_json::Value = serde_json::from_str(&stat).unwrap();
    assert_eq!((&stat["written"], &stat["readers"][0]["route"]), (&2.into(), &"local".into()));
    assert_eq!((&stat["readers_left_out"], &stat["allowed_left_out"]), (&0.into(), &0.into()));
    assert_eq!(writer.finish(), "3 messages, 8 B\n");
    assert_eq!(tail.finish(), "onethree");
    assert_eq!(copy.finish(), "one\n\nthree\n");
}
