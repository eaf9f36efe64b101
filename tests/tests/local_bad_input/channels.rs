//! Channels: sessions that speak of what is not theirs, and shapes that are none.

use tensorlane_client::channel::{ChannelSpec, Policy, Read, ReadOptions, Timeout};
use tensorlane_proto::Reason;
use tensorlane_proto::frame::{CHANNEL_GROWTH_SINCE, CHANNELS_SINCE, SessionKind};
use tensorlane_proto::generated as v1;
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::{Sidecar, until};

fn create(name: &str, slots: u32, slot_bytes: u64) -> v1::ChannelCreateRequest {
    let spec = v1::ChannelSpec { name: name.to_owned(), slots, slot_bytes, ..v1::ChannelSpec::default() };
    v1::ChannelCreateRequest { spec: Some(spec), key: 1, deadline_ms: 60_000, readers: None }
}

#[test]
fn a_session_ends_no_channel_and_no_reader_of_others() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&ChannelSpec::new("mine")).unwrap();
    let mut reader = client.channel_reader("mine", &ReadOptions::new()).unwrap();
    let mut stranger = RawSession::begin_in(&sidecar, CHANNELS_SINCE);
    for number in 0..10 {
        stranger.send(
            SessionKind::ChannelDetach,
            &v1::ChannelDetachRequest { channel: number, reader: number, ..Default::default() },
        );
        for gone in [false, true] {
            let ready = v1::ChannelReady { reader: number, gone, ..v1::ChannelReady::default() };
            stranger.send(SessionKind::ChannelReady, &ready);
            let refuses =
                v1::ChannelReady { reader: number, error: "no".into(), ..v1::ChannelReady::default() };
            stranger.send(SessionKind::ChannelReady, &refuses);
        }
    }
    // All of it has been heard when this is answered.
    let stat = v1::ChannelStatRequest::default();
    let told: v1::ChannelStatResponse = stranger.call(SessionKind::ChannelStat, &stat).unwrap();
    assert_eq!((told.channels.len(), told.channels[0].readers.len()), (1, 1));
    writer.write_bytes(b"still here", Timeout::Default).unwrap();
    let Read::Message(message) = reader.read(Timeout::Default).unwrap() else { panic!("a message is there") };
    assert_eq!(message.bytes().to_vec(), b"still here");
    drop((message, reader, writer, stranger, client));
    sidecar.assert_all_free();
}

#[test]
fn a_session_has_no_extents_of_others_and_frees_none() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer =
        client.channel_writer(&ChannelSpec::new("c").slots(2).slot_bytes(64).growth(4096)).unwrap();
    let mut reader = client.channel_reader("c", &ReadOptions::new()).unwrap();
    writer.write_bytes(&[7; 4096], Timeout::Default).unwrap();
    let mut stranger = RawSession::begin_in(&sidecar, CHANNEL_GROWTH_SINCE);
    for number in 0..10 {
        let makes = v1::ChannelExtentRequest { channel: number, bytes: 65, ..Default::default() };
        let refused = stranger.call::<v1::ChannelExtentResponse>(SessionKind::ChannelExtent, &makes);
        assert_eq!(refused.unwrap_err().reason, Reason::NotFound, "channel {number}");
        for extent in 0..10 {
            let end = v1::ChannelDetachRequest { channel: number, extent, ..Default::default() };
            stranger.send(SessionKind::ChannelDetach, &end);
            let opens =
                v1::ChannelExtentRequest { reader: number, extent, bytes: u64::MAX, ..Default::default() };
            let refused = stranger.call::<v1::ChannelExtentResponse>(SessionKind::ChannelExtent, &opens);
            assert_eq!(refused.unwrap_err().reason, Reason::NotFound, "reader {number}, extent {extent}");
        }
    }
    let Read::Message(message) = reader.read(Timeout::Default).unwrap() else { panic!("a message is there") };
    assert_eq!(message.bytes().to_vec(), [7; 4096]);
    drop((message, reader, writer, stranger, client));
    sidecar.assert_all_free();
}

#[test]
fn a_reader_that_knows_no_growth_is_refused_by_a_channel_that_grows_and_leaves_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let writer = client.channel_writer(&ChannelSpec::new("c").slots(2).slot_bytes(64).growth(4096)).unwrap();
    let mut old = RawSession::begin_in(&sidecar, CHANNEL_GROWTH_SINCE - 1);
    let attach = v1::ChannelAttachRequest { name: "c".to_owned(), ..v1::ChannelAttachRequest::default() };
    let refused = old.call::<v1::ChannelAttachResponse>(SessionKind::ChannelAttach, &attach).unwrap_err();
    assert_eq!((refused.reason, refused.detail("growth")), (Reason::Unsupported, Some("4096")));
    assert!(refused.message.contains("without growth"), "{refused}");
    drop((writer, old, client));
    sidecar.assert_all_free();
}

#[test]
fn shapes_names_and_numbers_out_of_their_bounds_are_refused_and_leave_nothing() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin_in(&sidecar, CHANNELS_SINCE);
    let wrong = [
        create("", 4, 64),
        create("/slash", 4, 64),
        create("a", 0, 64),
        create("a", 1, 64),
        create("a", 65_537, 64),
        create("a", 4, 0),
        create("a", 65_536, u64::MAX),
        create("a", 4, 1 << 60),
        v1::ChannelCreateRequest::default(),
    ];
    let unknown = |policy| {
        let mut request = create("a", 4, 64);
        request.spec.as_mut().unwrap().policy = policy;
        request
    };
    let grows = |growth| {
        let mut request = create("a", 4, 64);
        request.spec.as_mut().unwrap().growth = growth;
        request
    };
    let wrong = wrong.into_iter().chain([unknown(3), unknown(-1), unknown(i32::MAX)]);
    for request in wrong.chain([grows(1), grows(63), grows(u64::MAX)]) {
        let refused = session.call::<v1::ChannelCreateResponse>(SessionKind::ChannelCreate, &request);
        assert_eq!(refused.unwrap_err().reason, Reason::InvalidArgument, "{request:?}");
    }
    let huge =
        session.call::<v1::ChannelCreateResponse>(SessionKind::ChannelCreate, &create("a", 4, 1 << 40));
    assert_eq!(huge.unwrap_err().reason, Reason::NeverFits);
    let attach = |name: &str, peer: &str| v1::ChannelAttachRequest {
        name: name.to_owned(),
        peer: peer.to_owned(),
        ..v1::ChannelAttachRequest::default()
    };
    for (request, reason) in [
        (attach("", ""), Reason::InvalidArgument),
        (attach("absent", ""), Reason::NotFound),
        (attach("there", "another-peer"), Reason::PeerUnreachable),
    ] {
        let refused = session.call::<v1::ChannelAttachResponse>(SessionKind::ChannelAttach, &request);
        assert_eq!(refused.unwrap_err().reason, reason, "{request:?}");
    }
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn a_writer_that_expects_more_readers_than_its_channel_may_have_is_refused() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let refused = client.channel_writer(&ChannelSpec::new("c").readers_max(2).expect_readers(3)).unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::InvalidArgument), "{refused}");
    assert!(client.channels("").unwrap().is_empty());
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn a_writer_that_never_maps_or_never_answers_has_no_reader_and_leaves_nothing() {
    let sidecar = Sidecar::with(tensorlane_tests::SidecarOptions::default().set("deadlines.map", "200ms"));
    let mut writer = RawSession::begin_in(&sidecar, CHANNELS_SINCE);
    // The segment of the ring is shown to it, and it maps nothing.
    let unmapped =
        writer.call::<v1::ChannelCreateResponse>(SessionKind::ChannelCreate, &create("deaf", 4, 64));
    assert_eq!(unmapped.unwrap_err().reason, Reason::DeadlineExceeded);
    let client = sidecar.client();
    until("there is no channel", || client.channels("").unwrap().is_empty());
    drop((writer, client));
    sidecar.assert_all_free();
}

#[test]
fn a_reader_that_knows_no_gaps_is_refused_by_a_channel_that_drops_and_leaves_nothing() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let mut writer = client.channel_writer(&ChannelSpec::new("c").policy(Policy::Latest)).unwrap();
    let mut old = RawSession::begin_in(&sidecar, CHANNELS_SINCE);
    let attach = v1::ChannelAttachRequest { name: "c".to_owned(), ..v1::ChannelAttachRequest::default() };
    let refused = old.call::<v1::ChannelAttachResponse>(SessionKind::ChannelAttach, &attach).unwrap_err();
    assert_eq!((refused.reason, refused.detail("policy")), (Reason::Unsupported, Some("latest")));
    let many = v1::ChannelAttachRequest { takes_gaps: true, hold: 5, ..attach };
    let refused = old.call::<v1::ChannelAttachResponse>(SessionKind::ChannelAttach, &many).unwrap_err();
    assert_eq!((refused.reason, refused.detail("most")), (Reason::InvalidArgument, Some("3")));
    assert_eq!(writer.write_bytes(b"on", Timeout::Now).unwrap().readers, 0);
    drop((writer, old, client));
    sidecar.assert_all_free();
}
