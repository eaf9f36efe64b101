//! Readers of a channel that are evicted, readers that follow a name, and layouts that are fixed, inside a pod.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tensorlane_client::channel::{
    ChannelReader, ChannelSpec, ChannelWriter, End, Part, Read, ReadOptions, Timeout,
};
use tensorlane_client::{Client, Error};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Reason, Require};
use tensorlane_tests::channels::{LONG, Program, message};
use tensorlane_tests::process::{signal, stop};
use tensorlane_tests::streams::{Grpc, channel};
use tensorlane_tests::tensors::{dense, pattern};
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until};

fn spec() -> ChannelSpec {
    ChannelSpec::new("c").slots(4).slot_bytes(64 << 10)
}

fn reader(client: &Client, options: &ReadOptions) -> ChannelReader {
    client.channel_reader("c", options).unwrap()
}

/// The reader that holds a write up, which has no more room.
fn blocker(writer: &mut ChannelWriter) -> u64 {
    let mut written = 0;
    loop {
        match writer.write_bytes(b"x", Timeout::Now) {
            Ok(_) => written += 1,
            Err(Error::Refused(failure)) => {
                assert_eq!(failure.reason, Reason::BlockedBy, "{failure}");
                return failure.detail("reader").unwrap().parse().unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        assert!(written < 100, "nobody holds the writer up");
    }
}

/// The number of readers that were evicted, as the metric says.
fn evicted(sidecar: &Sidecar) -> f64 {
    sidecar.metric("tensorlane_channel_evicted_readers_total", &[])
}

/// End of the channel before, and number of messages of the next one that are gone.
fn epoch(reader: &mut ChannelReader) -> (End, u64) {
    match reader.read(LONG).unwrap() {
        Read::Epoch { end, missed } => (end, missed),
        other => panic!("another channel, not {other:?}"),
    }
}

#[test]
fn a_reader_is_evicted_by_another_thread_than_that_of_a_write_which_waits_for_it() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec().evictable()).unwrap();
    let mut slow = reader(&sidecar.client(), &ReadOptions::new());
    let (blocker, readers) = (blocker(&mut writer), writer.attached());
    std::thread::scope(|scope| {
        let write = scope.spawn(|| writer.write_bytes(b"waits", LONG));
        readers.evict(blocker).unwrap();
        write.join().unwrap().unwrap();
    });
    assert_eq!(reason(slow.read(LONG).map(drop)), Reason::Evicted);
    let plain = client.channel_writer(&ChannelSpec::new("plain")).unwrap();
    assert!(matches!(plain.attached().evict(1), Err(Error::InvalidArgument(_))));
}

#[test]
fn a_reader_that_is_evicted_is_told_and_keeps_what_it_holds_while_the_writer_goes_on() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec().evictable()).unwrap();
    let mut slow = reader(&sidecar.client(), &ReadOptions::new());
    writer.write_bytes(b"held", LONG).unwrap();
    let held = message(&mut slow);
    let blocker = blocker(&mut writer);
    writer.evict(blocker).unwrap();
    for _ in 0..1_000 {
        writer.write_bytes(b"y", LONG).unwrap();
    }
    assert_eq!((held.bytes().to_vec(), writer.readers()), (b"held".to_vec(), 0));
    assert_eq!(reason(slow.read(LONG).map(drop)), Reason::Evicted);
    let status = client.channels("c").unwrap().remove(0);
    assert!(status.readers.iter().all(|reader| reader.evicted && reader.reader == blocker));
    assert_eq!((status.readers.len(), evicted(&sidecar)), (1, 1.0));
    let again = writer.evict(blocker).unwrap_err();
    assert_eq!(reason::<()>(Err(again)), Reason::NotFound);
    // It may come back, as another reader.
    let mut back = reader(&sidecar.client(), &ReadOptions::new());
    writer.write_bytes(b"back", LONG).unwrap();
    assert_eq!(message(&mut back).bytes().to_vec(), b"back");
    drop((held, slow, back, writer, client));
    sidecar.assert_all_free();
}

#[test]
fn a_process_that_is_stopped_is_evicted_when_its_time_is_over_and_no_sooner() {
    const AFTER: Duration = Duration::from_millis(300);
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut writer = sidecar.client().channel_writer(&spec().evict_after(AFTER)).unwrap();
    let mut stopped = Program::start(&sidecar, &["channel", "tail", "c", "--raw"]);
    until("it reads", || writer.readers() == 1);
    stop(stopped.0.id());
    for _ in 0..4 {
        writer.write_bytes(b"x", LONG).unwrap();
    }
    let begun = Instant::now();
    writer.write_bytes(b"on", LONG).unwrap();
    assert!(begun.elapsed() >= AFTER / 2, "it had {:?}", begun.elapsed());
    until("nobody is waited for", || writer.readers() == 0);
    until("it is counted", || evicted(&sidecar) == 1.0);
    signal(stopped.0.id(), Signal::CONT);
    assert!(!stopped.0.wait().unwrap().success(), "it was told");
    drop(writer);
    sidecar.assert_all_free();
}

#[test]
fn an_evicted_reader_that_dies_lets_go_of_what_it_held() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let mut writer = sidecar.client().channel_writer(&spec().slots(2).evictable()).unwrap();
    let mut other = Program::start(&sidecar, &["channel", "tail", "c", "--raw"]);
    until("it reads", || writer.readers() == 1);
    stop(other.0.id());
    let number = blocker(&mut writer);
    writer.evict(number).unwrap();
    for _ in 0..20 {
        writer.write_bytes(b"x", LONG).unwrap();
    }
    other.kill();
    drop(writer);
    sidecar.assert_all_free();
}

#[test]
fn eviction_is_for_channels_that_block_and_were_made_for_it() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let client = sidecar.client();
    let mut plain = client.channel_writer(&spec()).unwrap();
    assert!(matches!(plain.evict(1), Err(Error::InvalidArgument(why)) if why.contains("evictable")));
    let drops = ChannelSpec::new("d").policy(tensorlane_client::channel::Policy::Latest).evictable();
    assert!(
        matches!(client.channel_writer(&drops), Err(Error::InvalidArgument(why)) if why.contains("block"))
    );
    let mut writer = client.channel_writer(&ChannelSpec::new("e").slots(3).evictable()).unwrap();
    assert_eq!(reason(writer.evict(7)), Reason::NotFound);
    let many = client.channel_reader("e", &ReadOptions::new().hold(3));
    assert_eq!(reason(many), Reason::InvalidArgument, "the writer has no slot left");
    assert!(client.channel_reader("e", &ReadOptions::new().hold(2)).is_ok());
}

#[test]
fn a_stream_that_does_not_read_is_evicted_and_a_stream_evicts() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let grpc = Grpc::of(&sidecar);
    let mut writer = sidecar.client().channel_writer(&spec().evictable()).unwrap();
    let slow = grpc.reads("c");
    let bytes = pattern(1, 60_000);
    let number = loop {
        match writer.write_bytes(&bytes, Timeout::After(Duration::from_millis(200))) {
            Ok(_) => {}
            Err(Error::Refused(failure)) => break failure.detail("reader").unwrap().parse().unwrap(),
            Err(error) => panic!("{error}"),
        }
    };
    writer.evict(number).unwrap();
    for _ in 0..20 {
        writer.write_bytes(&bytes, LONG).unwrap();
    }
    assert_eq!(slow.failure(), "EVICTED");
    drop(writer);
    let mut open = channel("d", 64 << 10, v1::ChannelPolicy::Block);
    open.spec.as_mut().unwrap().evicts = true;
    let mut stream = grpc.writes(v1::ChannelOpen { evict_after_ms: 100, ..open });
    let mut native = sidecar.client().channel_reader("d", &ReadOptions::new()).unwrap();
    for _ in 0..20 {
        stream.write(b"x");
    }
    assert_eq!(reason(native.read(LONG).map(drop)), Reason::Evicted);
    until("it is counted", || evicted(&sidecar) == 2.0);
    stream.finish();
    drop((native, grpc));
    sidecar.assert_all_free();
}

#[test]
fn a_reader_that_follows_goes_on_with_the_next_channel_of_the_name() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec()).unwrap();
    let mut follows = reader(&client, &ReadOptions::new().follow());
    writer.write_bytes(b"first", LONG).unwrap();
    writer.finish();
    let held = message(&mut follows);
    assert_eq!(held.bytes().to_vec(), b"first");
    // Within its timeout.
    for timeout in [Timeout::Now, Timeout::After(Duration::from_millis(50))] {
        assert_eq!(reason(follows.read(timeout).map(drop)), Reason::DeadlineExceeded);
    }
    let mut second = client.channel_writer(&spec().slots(2)).unwrap();
    second.write_bytes(b"second", LONG).unwrap();
    assert_eq!(epoch(&mut follows), (End::Finished, 0));
    assert_eq!((follows.attached().slots, follows.attached().first), (2, 0));
    let message_of_second = message(&mut follows);
    assert_eq!((message_of_second.sequence(), message_of_second.bytes().to_vec()), (0, b"second".to_vec()));
    drop(message_of_second);
    assert_eq!(held.bytes().to_vec(), b"first", "what is held of the one before stays");
    // Its process died, and another one comes while the reader waits.
    drop(second);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| epoch(&mut follows));
        let mut third = client.channel_writer(&spec().expect_readers(1)).unwrap();
        third.write_bytes(b"third", LONG).unwrap();
        assert_eq!(waits.join().unwrap(), (End::WriterLost, 0));
        third.finish();
    });
    assert_eq!(message(&mut follows).bytes().to_vec(), b"third");
    drop((held, follows, client));
    sidecar.assert_all_free();
}

#[test]
fn a_reader_that_waits_for_the_next_channel_is_closed_at_once() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let client = sidecar.client();
    let writer = client.channel_writer(&spec()).unwrap();
    let mut follows = reader(&client, &ReadOptions::new().follow());
    let closer = follows.closer();
    writer.finish();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| follows.read(Timeout::Never).map(drop));
        until("the reader waits", || {
            sidecar.metric("tensorlane_sidecar_waiting_requests", &["for=\"name\""]) > 0.0
        });
        closer.close();
        assert_eq!(reason(waits.join().unwrap()), Reason::ChannelEnded);
    });
}

#[test]
fn a_layout_that_is_fixed_is_that_of_the_first_message() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec().fixed()).unwrap();
    let mut reader = reader(&client, &ReadOptions::new());
    let (two, three) = (dense(DType::F32, &[2, 2]), dense(DType::F32, &[3, 2]));
    for _ in 0..3 {
        writer.write(&[Part::tensor(&two, &pattern(1, 16))], LONG).unwrap();
        drop(message(&mut reader));
        let refused = writer.write(&[Part::tensor(&three, &pattern(1, 24))], LONG).unwrap_err();
        let Error::Refused(failure) = &refused else { panic!("{refused}") };
        assert_eq!(failure.reason, Reason::LayoutMismatch);
        assert!(failure.detail("expected").is_some() && failure.detail("found").is_some(), "{failure}");
        assert_eq!(reason(writer.write_bytes(b"plain", LONG)), Reason::LayoutMismatch);
        assert_eq!(reason(writer.loan(std::slice::from_ref(&three), LONG).map(drop)), Reason::LayoutMismatch);
    }
    let mut plain = client.channel_writer(&ChannelSpec::new("d").fixed()).unwrap();
    plain.write_bytes(b"plain", LONG).unwrap();
    assert_eq!(reason(plain.write(&[Part::tensor(&two, &pattern(1, 16))], LONG)), Reason::LayoutMismatch);
    plain.write_bytes(b"another length", LONG).unwrap();
}

#[test]
fn a_map_is_what_is_insisted_on_inside_a_pod() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let client = sidecar.client();
    let mut writer = client.channel_writer(&spec()).unwrap();
    let all = Require::ZERO_COPY.and(Require::SAME_NODE).and(Require::ENCRYPTED);
    let mut reader = reader(&client, &ReadOptions::new().require(all));
    writer.write_bytes(b"mapped", LONG).unwrap();
    assert_eq!(message(&mut reader).bytes().to_vec(), b"mapped");
}
