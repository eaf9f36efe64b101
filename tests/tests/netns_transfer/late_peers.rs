//! Channels and listeners of peers that come late: a wait for `peer/name` is a wait for its peer, too.

use std::thread;
use std::time::Duration;

use tensorlane_client::Client;
use tensorlane_client::channel::{ChannelReader, ChannelSpec, ChannelWriter, Read, ReadOptions, Timeout};
use tensorlane_client::pipe::ConnectOptions;
use tensorlane_proto::Reason;
use tensorlane_tests::netns::Peers;
use tensorlane_tests::{reason, until};

/// Time in which what must happen has long happened.
const LONG: Duration = Duration::from_secs(60);

fn writer(at: &Client) -> ChannelWriter {
    at.channel_writer(&ChannelSpec::new("late").slots(4).slot_bytes(64 << 10)).unwrap()
}

fn reads(reader: &mut ChannelReader, wanted: &[u8]) -> bool {
    matches!(reader.read(Timeout::After(LONG)).unwrap(), Read::Message(message) if message.bytes().to_vec() == wanted)
}

#[test]
fn a_reader_and_a_connect_wait_for_a_peer_that_is_not_listed_yet() {
    let peers = Peers::with_stranger(1, |_, options| options.steady());
    let (near, far) = (peers.client(0), peers.client(1));
    thread::scope(|scope| {
        let reader = scope.spawn(|| near.channel_reader("b/late", &ReadOptions::new().wait(LONG)).unwrap());
        let pipe = scope.spawn(|| near.connect_pipe("b/box", &ConnectOptions::new().wait(LONG)).unwrap());
        let (mut writer, listener) = (writer(&far), far.listen("box").unwrap());
        peers.list(0, &peers.everyone());
        let mut reader = reader.join().unwrap();
        writer.write_bytes(b"first", Timeout::After(LONG)).unwrap();
        assert!(reads(&mut reader, b"first"));
        assert_eq!(reader.attached().peer, "b");
        // Kept until it is accepted: nobody is given one whose other end has closed it before.
        let pipe = pipe.join().unwrap();
        assert_eq!(pipe.remote().peer, "b");
        drop(listener.accept(Timeout::After(LONG)).unwrap());
    });
}

#[test]
fn a_reader_waits_while_the_sidecar_of_its_writer_is_started_again() {
    let mut peers = Peers::steady();
    let near = peers.client(1);
    let waiting =
        thread::spawn(move || near.channel_reader("a/late", &ReadOptions::new().wait(LONG)).unwrap());
    until("the reader waits there", || peers.metric(0, "tensorlane_sidecar_waiting_bytes", &[]) > 0.0);
    peers.sidecars[0].kill();
    peers.sidecars[0].start_again();
    let mut writer = writer(&peers.client(0));
    let mut reader = waiting.join().unwrap();
    writer.write_bytes(b"of the next life", Timeout::After(LONG)).unwrap();
    assert!(reads(&mut reader, b"of the next life"));
}

#[test]
fn a_wait_for_a_peer_that_never_comes_ends_in_time_and_says_which_peer_is_missing() {
    let peers = Peers::with_stranger(1, |_, options| options.steady());
    let near = peers.client(0);
    let wait = Duration::from_millis(1_200);
    let failed = near.channel_reader("nobody/late", &ReadOptions::new().wait(wait)).unwrap_err();
    let said = failed.to_string();
    assert!(said.contains("no other peer is called nobody") && said.contains("waited_ms=1200"), "{said}");
    assert_eq!(reason::<()>(Err(failed)), Reason::NotFound);
    let failed = near.connect_pipe("nobody/box", &ConnectOptions::new().wait(wait)).unwrap_err();
    assert!(failed.to_string().contains("no other peer is called nobody"), "{failed}");
    // Nothing of the waits is left.
    peers.sidecars[0].assert_all_free();
}
