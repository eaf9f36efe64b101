//! Frames that are none: the session is cut, and only that.

use prost::Message;
use tensorlane_client::{Client, PutOptions};
use tensorlane_proto::frame::{self, Header, INLINE_BYTES_MAX, SESSION_ITEMS_MAX, SessionKind};
use tensorlane_proto::{Reason, generated as v1};
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::tensors::{Numbers, is_intact, put_pattern};
use tensorlane_tests::{Sidecar, SidecarOptions, until};

use super::{all, bytes_of, item};

/// A sidecar that counts bad frames, and a client whose tensor must outlive them.
struct Attacked {
    sidecar: Sidecar,
    client: Client,
    stored: tensorlane_client::Stored,
}

impl Attacked {
    fn begin() -> Self {
        let sidecar = Sidecar::with(SidecarOptions::default().admin().set("limits.sessions", 64));
        let client = sidecar.client();
        let stored = put_pattern(&client, 1, 100_000, &PutOptions::new()).unwrap();
        Self { sidecar, client, stored }
    }

    fn rejected(&self, label: &str) -> f64 {
        let label = format!("reason=\"{label}\"");
        self.sidecar.metric("tensorlane_session_rejected_frames_total", &[&label])
    }

    /// Sends bytes on a new session and waits until it is cut for that reason.
    fn is_cut(&self, bytes: &[u8], label: &str) {
        let before = self.rejected(label);
        let mut session = RawSession::begin(&self.sidecar);
        session.send_bytes(bytes);
        session.wait_until_cut();
        until("it is counted", || self.rejected(label) == before + 1.0);
    }

    fn end(self) {
        let tensor = self.client.acquire(self.stored.reference(), &all()).unwrap();
        assert!(is_intact(&tensor), "others are served as before");
        until("what others left has gone", || self.client.status().unwrap().tensors == 1);
        drop((tensor, self.stored, self.client));
        self.sidecar.assert_all_free();
    }
}

fn header(length: u32, kind: u16, flags: u16) -> Vec<u8> {
    Header { length, kind, flags, call: 1 }.encode().to_vec()
}

#[test]
fn frames_of_impossible_lengths_cut_the_session() {
    let attacked = Attacked::begin();
    let put = SessionKind::Put.into();
    for length in [u32::MAX, 1 << 31, (16 << 20) + 1] {
        attacked.is_cut(&header(length, put, 0), "too_long");
    }
    // A length of 2^63 reaches into the kind and the flags.
    attacked.is_cut(&(1u64 << 63).to_le_bytes().repeat(2), "unknown_flags");
    attacked.end();
}

#[test]
fn unknown_kinds_and_flags_and_bodies_that_are_no_message_cut_the_session() {
    let attacked = Attacked::begin();
    for kind in [0, 7, 15, 999, u16::MAX] {
        attacked.is_cut(&header(0, kind, 0), "unknown_kind");
    }
    for flags in [8, 0x8000, u16::MAX] {
        attacked.is_cut(&header(0, SessionKind::Status.into(), flags), "unknown_flags");
    }
    for kind in [SessionKind::Put, SessionKind::Acquire, SessionKind::Release, SessionKind::Status] {
        let garbled = [header(3, kind.into(), 0), vec![0xff; 3]].concat();
        attacked.is_cut(&garbled, "malformed");
    }
    attacked.end();
}

#[test]
fn frames_that_may_not_come_now_cut_the_session() {
    let attacked = Attacked::begin();
    let of_sidecars = [
        SessionKind::Segment,
        SessionKind::SegmentRetired,
        SessionKind::SegmentExchanged,
        SessionKind::ChannelReader,
        SessionKind::GpuFreed,
    ];
    for kind in [SessionKind::Hello].into_iter().chain(of_sidecars) {
        attacked.is_cut(&header(0, kind.into(), 0), "out_of_place");
    }
    // Kinds of later versions than the one that the session speaks.
    let later = [
        SessionKind::PublishSet,
        SessionKind::ChannelCreate,
        SessionKind::ChannelAttach,
        SessionKind::ChannelDetach,
        SessionKind::ChannelStat,
        SessionKind::ChannelReady,
        SessionKind::ChannelExtent,
        SessionKind::SetCreate,
        SessionKind::SetOpen,
        SessionKind::SetRead,
        SessionKind::SetCommit,
        SessionKind::SetStat,
        SessionKind::SetDrop,
        SessionKind::SetSnapshot,
        SessionKind::PipeListen,
        SessionKind::PipeConnect,
        SessionKind::PipeAccept,
        SessionKind::PipeWrite,
        SessionKind::PipeRead,
        SessionKind::PipeEnd,
        SessionKind::PutGpu,
        SessionKind::OpenGpu,
        SessionKind::Watch,
        SessionKind::Stage,
    ];
    for kind in later {
        attacked.is_cut(&header(0, kind.into(), 0), "out_of_place");
    }
    for flags in [frame::REPLY, frame::FAILED, frame::LAST] {
        attacked.is_cut(&header(0, SessionKind::Status.into(), flags), "out_of_place");
    }
    attacked.end();
}

#[test]
fn nothing_but_hello_is_heard_at_first() {
    let attacked = Attacked::begin();
    let cut = |bytes: &[u8], label: &str| {
        let before = attacked.rejected(label);
        let mut session = RawSession::connect(&attacked.sidecar);
        session.send_bytes(bytes);
        session.wait_until_cut();
        until("it is counted", || attacked.rejected(label) == before + 1.0);
    };
    let status = frame::encode(SessionKind::Status.into(), 0, 1, &v1::StatusRequest {});
    cut(&status, "out_of_place");
    let release = v1::ReleaseRequest { ids: vec![1], still_mapped: vec![] };
    cut(&frame::encode(SessionKind::Release.into(), 0, 1, &release), "out_of_place");
    let nameless = v1::SessionHello { version: 0, client: String::new() };
    cut(&frame::encode(SessionKind::Hello.into(), 0, 1, &nameless), "malformed");
    cut(b"GET / HTTP/1.1\r\n\r\n", "too_long");
    attacked.end();
}

#[test]
fn half_a_frame_and_then_nothing_ends_the_session_and_only_that() {
    let attacked = Attacked::begin();
    let put = v1::PutRequest { items: vec![item(bytes_of(100), &[1; 100])], deadline_ms: 0 };
    let whole = frame::encode(SessionKind::Put.into(), 0, 7, &put);
    for length in [1, 15, 16, 17, whole.len() - 1] {
        let mut session = RawSession::begin(&attacked.sidecar);
        session.send_bytes(&whole[..length]);
        session.finish_sending();
        session.wait_until_cut();
        assert!(session.next_frame().is_none());
    }
    // A client that goes away without reading its answer.
    let mut session = RawSession::begin(&attacked.sidecar);
    session.send_bytes(&whole);
    drop(session);
    let only_one_left = || attacked.client.status().unwrap().sessions == 1;
    until("the other sessions have ended", only_one_left);
    attacked.end();
}

#[test]
fn ten_thousand_random_frames_harm_nobody() {
    let attacked = Attacked::begin();
    let mut numbers = Numbers::of(20_261_121);
    let mut session = RawSession::begin(&attacked.sidecar);
    for round in 0..10_000 {
        let body: Vec<u8> = (0..numbers.below(40)).map(|_| numbers.draw() as u8).collect();
        let bytes = match numbers.below(4) {
            // Anything at all.
            0 => body,
            // A frame of a real kind with a random body.
            1 | 2 => {
                let kind = [1, 3, 5].into_iter().chain(16..=30).nth(numbers.below(18) as usize).unwrap();
                [header(body.len() as u32, kind, 0), body].concat()
            }
            // A real request with one bit flipped.
            _ => {
                let target =
                    v1::Target { kind: Some(v1::target::Kind::Id(numbers.draw())), peer: String::new() };
                let item = v1::GetItem { target: Some(target), selection: None };
                let request = v1::AcquireRequest { items: vec![item], ..v1::AcquireRequest::default() };
                let mut bytes = frame::encode(SessionKind::Acquire.into(), 0, round, &request);
                let bit = numbers.below(bytes.len() as u64 * 8);
                bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
                bytes
            }
        };
        session.send_bytes(&bytes);
        if round % 5 == 0 {
            session = RawSession::begin(&attacked.sidecar);
        }
    }
    drop(session);
    until("the other sessions have ended", || attacked.client.status().unwrap().sessions == 1);
    attacked.end();
}

#[test]
fn a_hello_that_never_comes_gives_its_place_back() {
    let sidecar = Sidecar::start();
    let mut silent = RawSession::connect(&sidecar);
    silent.wait_until_cut();
    sidecar.assert_all_free();
}

#[test]
fn a_future_version_is_answered_with_the_one_to_use() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::connect(&sidecar);
    let hello = v1::SessionHello { version: 1000, client: "x".repeat(5000) };
    let welcome: v1::SessionWelcome = session.call(SessionKind::Hello, &hello).unwrap();
    assert_eq!(welcome.version, frame::SESSION_VERSION);
    assert!(welcome.encoded_len() > 0 && welcome.inline_bytes_max == INLINE_BYTES_MAX as u64);
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn more_items_than_a_request_may_have_are_refused_whole() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin(&sidecar);
    let too_many = SESSION_ITEMS_MAX + 1;
    let requests: [(SessionKind, Vec<u8>); 5] = [
        (
            SessionKind::Describe,
            v1::DescribeRequest { targets: vec![v1::Target::default(); too_many], deadline_ms: 0 }
                .encode_to_vec(),
        ),
        (
            SessionKind::Name,
            v1::NameRequest { items: vec![v1::NameItem::default(); too_many], together: false }
                .encode_to_vec(),
        ),
        (SessionKind::Unname, v1::UnnameRequest { names: vec!["a".to_owned(); too_many] }.encode_to_vec()),
        (
            SessionKind::Ticket,
            v1::TicketRequest { items: vec![v1::TicketItem::default(); too_many] }.encode_to_vec(),
        ),
        (SessionKind::Abort, v1::AbortRequest { ids: vec![1; too_many] }.encode_to_vec()),
    ];
    for (kind, body) in requests {
        let refused = session.call_raw(kind, &body).map(|_| ()).unwrap_err();
        assert_eq!(refused.reason, Reason::TooLarge, "{kind:?}: {refused}");
    }
    let status: v1::StatusResponse = session.call(SessionKind::Status, &v1::StatusRequest {}).unwrap();
    assert_eq!(status.tensors, 0);
    drop(session);
    sidecar.assert_all_free();
}
