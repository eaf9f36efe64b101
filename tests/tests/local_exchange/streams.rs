//! Channels over gRPC beside those that map their ring: the same messages, the same policies, and the end of a process either way.

use std::thread;
use std::time::Duration;

use tensorlane_client::Error;
use tensorlane_client::channel::{ChannelSpec, End, Part, Policy, Read, ReadOptions, Timeout};
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::channel_write_response::Event as Wrote;
use tensorlane_proto::{DType, Reason};
use tensorlane_tests::channels::{LONG, message, read_all};
use tensorlane_tests::streams::{self, Came, Grpc, channel, other_stream};
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::{Sidecar, until};

/// A wait that ends in a test.
const SHORT: Timeout = Timeout::After(Duration::from_millis(50));

#[test]
fn another_process_has_a_stream() {
    streams::play_role();
}

#[test]
fn a_stream_writes_for_readers_that_map_the_ring_and_for_streams() {
    const MESSAGES: u64 = 300;
    let sidecar = Sidecar::start();
    let grpc = Grpc::of(&sidecar);
    let open = v1::ChannelOpen { expect_readers: 2, ..channel("c", 1 << 20, v1::ChannelPolicy::Block) };
    let mut writer = grpc.writes(open);
    let bytes = |number: u64| pattern(number, if number % 50 == 49 { 700_000 } else { number as usize * 31 });
    let mut native = sidecar.client().channel_reader("c", &ReadOptions::new()).unwrap();
    assert_eq!(native.attached().route, "local");
    assert!(native.attached().writer.starts_with("streams"), "{}", native.attached().writer);
    thread::scope(|scope| {
        scope.spawn(|| {
            let grpc = Grpc::of(&sidecar);
            let mut reader = grpc.reads("c");
            assert_eq!((reader.attached.first, reader.attached.route.as_str()), (0, "local"));
            for number in 0..MESSAGES {
                assert_eq!(reader.plain(), (number, bytes(number)));
            }
            assert_eq!(reader.event(), Came::End(v1::ChannelOutcome::Finished));
        });
        scope.spawn(move || {
            for number in 0..MESSAGES {
                let message = message(&mut native);
                assert_eq!((message.sequence(), message.bytes().to_vec()), (number, bytes(number)));
            }
            assert!(matches!(native.read(LONG).unwrap(), Read::End(End::Finished)));
        });
        for number in 0..MESSAGES {
            let written = writer.write(&bytes(number));
            assert_eq!((written.message, written.sequence, written.readers), (number, number, 2));
        }
        writer.finish();
    });
    drop(grpc);
    sidecar.assert_all_free();
}

#[test]
fn tensors_that_a_program_writes_are_read_by_a_stream_and_those_of_a_stream_by_a_program() {
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    let (floats, odd) = (dense(DType::F32, &[700, 100]), dense(DType::U8, &[3]));
    let (a, b) = (pattern(1, 280_000), pattern(2, 3));
    let mut native = client.channel_writer(&ChannelSpec::new("native")).unwrap();
    let mut reader = grpc.reads("native");
    native.write(&[Part::tensor(&odd, &b), Part::tensor(&floats, &a)], LONG).unwrap();
    assert_eq!(reader.event(), Came::Message(0, vec![b.clone(), a.clone()]));
    let mut writer = grpc.writes(channel("stream", 1 << 20, v1::ChannelPolicy::Block));
    let mut read = client.channel_reader("stream", &ReadOptions::new()).unwrap();
    for _ in 0..2 {
        writer.begin(&[(Some((&odd).into()), &b), (Some((&floats).into()), &a)], None);
        assert!(matches!(writer.answer(), Wrote::Written(_)));
        let message = message(&mut read);
        assert_eq!((message.descriptor(0), message.descriptor(1)), (Some(&odd), Some(&floats)));
        assert_eq!(
            (message.part(0).unwrap().to_vec(), message.part(1).unwrap().to_vec()),
            (b.clone(), a.clone())
        );
    }
    writer.finish();
    native.finish();
    assert_eq!(reader.event(), Came::End(v1::ChannelOutcome::Finished));
    drop((reader, read));
    drop(grpc);
    sidecar.assert_all_free();
}

#[test]
fn a_stream_that_does_not_read_holds_a_writer_up_which_hears_its_name_and_one_that_is_killed_does_not() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&ChannelSpec::new("c").slots(4).slot_bytes(64 << 10)).unwrap();
    let grpc = Grpc::of(&sidecar);
    let slow = grpc.reads("c");
    let bytes = pattern(1, 60_000);
    let mut written = 0;
    let failure = loop {
        match writer.write_bytes(&bytes, SHORT) {
            Ok(_) => written += 1,
            Err(Error::Refused(failure)) => break failure,
            Err(error) => panic!("{error}"),
        }
        assert!(written < 100, "nobody holds the writer up");
    };
    assert_eq!(failure.reason, Reason::BlockedBy);
    assert!(failure.detail("client").unwrap().starts_with("streams"), "{failure}");
    drop(slow);
    writer.write_bytes(&bytes, LONG).unwrap();
    // In a process of its own, which is killed.
    let mut other = other_stream(&sidecar, "reads");
    other.says("attached");
    until("the reader is there", || writer.readers() == 1);
    other.kill();
    until("the writer waits for nobody", || writer.readers() == 0);
    writer.finish();
    drop(grpc);
    sidecar.assert_all_free();
}

#[test]
fn a_writer_whose_process_is_killed_is_lost_with_what_it_had_not_written_whole() {
    let sidecar = Sidecar::start();
    let grpc = Grpc::of(&sidecar);
    let mut other = other_stream(&sidecar, "writes");
    other.says("written");
    let from_oldest = ReadOptions::new().from_oldest();
    let mut native = sidecar.client().channel_reader("c", &from_oldest).unwrap();
    let mut reader = grpc.reads("c");
    assert_eq!(message(&mut native).bytes().to_vec(), b"written");
    other.kill();
    assert!(matches!(native.read(LONG).unwrap(), Read::End(End::WriterLost)));
    assert_eq!(reader.event(), Came::End(v1::ChannelOutcome::WriterLost));
    drop((native, reader));
    // The name is free.
    grpc.writes(channel("c", 64, v1::ChannelPolicy::Latest)).finish();
    drop(grpc);
    sidecar.assert_all_free();
}

#[test]
fn a_stream_that_drops_waits_for_nobody_and_every_reader_is_told() {
    let sidecar = Sidecar::start();
    let (grpc, client) = (Grpc::of(&sidecar), sidecar.client());
    for (policy, wanted) in
        [(v1::ChannelPolicy::DropOldest, Policy::DropOldest), (v1::ChannelPolicy::Latest, Policy::Latest)]
    {
        let mut writer = grpc.writes(channel("c", 64 << 10, policy));
        let native = client.channel_reader("c", &ReadOptions::new()).unwrap();
        assert_eq!(native.attached().policy, wanted);
        let mut reader = grpc.reads("c");
        for number in 0..50 {
            assert_eq!(writer.write(&pattern(number, 60_000)).sequence, number);
        }
        writer.finish();
        let check = |message: &tensorlane_client::channel::Message| {
            assert_eq!(message.bytes().to_vec(), pattern(message.sequence(), 60_000));
        };
        let (got, missed) = read_all(native, 0, check);
        assert!(got + missed == 50 && missed > 0, "{got} {missed}");
        let (mut next, mut dropped) = (0, 0);
        loop {
            match reader.event() {
                Came::Message(sequence, parts) => {
                    assert_eq!((sequence, &parts[0]), (next, &pattern(sequence, 60_000)));
                    next += 1;
                }
                Came::Gap(missed, after) => (next, dropped) = (after, dropped + missed),
                Came::End(end) => {
                    assert_eq!((next, end), (50, v1::ChannelOutcome::Finished));
                    break;
                }
            }
        }
        assert!(dropped > 0);
    }
    drop(grpc);
    sidecar.assert_all_free();
}

#[test]
fn a_stream_waits_for_a_channel_that_does_not_exist_yet() {
    let sidecar = Sidecar::start();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let grpc = Grpc::of(&sidecar);
            let mut reader = grpc.reads("later");
            reader.plain()
        });
        let grpc = Grpc::of(&sidecar);
        let open = v1::ChannelOpen { expect_readers: 1, ..channel("later", 64, v1::ChannelPolicy::Block) };
        let mut writer = grpc.writes(open);
        writer.write(b"for one");
        assert_eq!(waits.join().unwrap(), (0, b"for one".to_vec()));
        drop(writer);
    });
    sidecar.assert_all_free();
}
