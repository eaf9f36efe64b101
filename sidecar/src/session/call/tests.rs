//! Tests that each call is counted once, whatever becomes of its answer.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tensorlane_memory::{SegmentHandle, passing};
use tensorlane_proto::dtype::DType;
use tensorlane_proto::frame::SESSION_VERSION;
use tensorlane_proto::ledger::SessionId;

use super::*;
use crate::exchange::alone::{MINUTE, alone};
use crate::metrics::label::Outcome;
use crate::output_budget::OutputBudget;
use crate::session::link::Around;

const TENSOR: u64 = 4096;

/// A process without descriptors to spare.
struct NoDescriptors;

impl Segments for NoDescriptors {
    fn open(&self, _: &SegmentHandle, _: SessionId) -> io::Result<(OwnedFd, OwnedFd)> {
        Err(io::Error::from_raw_os_error(24))
    }
}

/// Session with both of its ends.
struct Scene {
    exchange: Arc<Exchange>,
    link: Arc<SessionLink>,
    pending: Pending,
    _client: (UnixStream, OwnedFd),
}

impl Scene {
    fn new() -> Self {
        let (exchange, workers, metrics) = alone();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (read_end, write_end) = passing::pipe().unwrap();
        let unread = &OutputBudget::new(1 << 20);
        let client = "test".into();
        let around = Around {
            client,
            version: SESSION_VERSION,
            drains: workers,
            unread,
            metrics,
            map_deadline: MINUTE,
        };
        let link = SessionLink::new(SessionId(1), ours, write_end, around);
        exchange.session_began(&link);
        Self { exchange, link, pending: Pending::default(), _client: (theirs, read_end) }
    }

    fn call(&self, verb: SessionKind) -> Call {
        Call::begin(&self.exchange, &self.link, &self.pending, verb, 1, &Bytes::new(), &Requests::new(0))
    }

    /// Items of a verb that were counted, and calls.
    fn counted(&self, verb: Verb, reason: Option<Reason>) -> (u64, u64) {
        let calls = &self.exchange.metrics().calls;
        let outcome: Outcome = reason.map_or(Ok(()), Err).into();
        (calls.items.at((verb, outcome)).get(), calls.seconds.at((verb,)).get_sample_count())
    }

    fn reserved(&self, call: &Call) -> Vec<Result<Room, Failure>> {
        let layout =
            tensorlane_proto::Layout::contiguous(DType::U8, tensorlane_proto::Shape::new(&[TENSOR]).unwrap());
        let descriptor = tensorlane_proto::Descriptor::host(layout.unwrap());
        let item = v1::ReserveItem { descriptor: Some((&descriptor).into()), ..v1::ReserveItem::default() };
        let request = v1::ReserveRequest { items: vec![item], deadline_ms: 0 };
        let (tell, told) = std::sync::mpsc::channel();
        self.exchange.reserve(call.caller(), request, move |outcome| tell.send(outcome).unwrap());
        // As a client does: it maps every segment that it is to write.
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Ok(outcome) = told.recv_timeout(Duration::from_millis(5)) {
                return outcome.unwrap();
            }
            assert!(Instant::now() < deadline, "no answer");
            for segment in 0..4 {
                self.link.mapped(v1::SegmentMapped { segment, error: String::new() });
            }
        }
    }
}

#[test]
fn a_reservation_whose_segment_cannot_be_opened_has_failed_and_nothing_else() {
    let scene = Scene::new();
    let call = scene.call(SessionKind::Reserve);
    let rooms = scene.reserved(&call);
    // Announced for writing; it has to be opened once more when it is not any longer.
    scene.link.retire(rooms[0].as_ref().map(|room| room.block.segment_id()).unwrap());
    call.deliver_reserved(Ok(rooms), &NoDescriptors);
    assert_eq!(scene.counted(Verb::Reserve, Some(Reason::Internal)), (1, 1));
    assert_eq!(scene.counted(Verb::Reserve, None), (0, 1));
    assert_eq!(scene.exchange.store().totals().0.tensors, 0, "its room goes back");
    assert!(scene.pending.lock().is_empty());
}

#[test]
fn an_acquired_tensor_whose_segment_cannot_be_opened_is_not_got() {
    let scene = Scene::new();
    let call = scene.call(SessionKind::Reserve);
    let rooms = scene.reserved(&call);
    let (id, segment) = rooms[0].as_ref().map(|room| (room.id.0, room.block.segment_id())).unwrap();
    call.answer_reserved(Ok(rooms));
    let seal = v1::SealRequest { items: vec![v1::SealItem { id, ..v1::SealItem::default() }] };
    let call = scene.call(SessionKind::Seal);
    let sealed = scene.exchange.seal(&call.caller(), seal);
    call.answer(Ok(sealed));
    assert_eq!(scene.counted(Verb::Seal, None), (1, 1));
    scene.link.retire(segment);

    let call = scene.call(SessionKind::Acquire);
    let by = Holder::Session(scene.link.id());
    let taken =
        scene.exchange.store().lease_many(by, Some(by), [tensorlane_proto::ledger::TensorId(id)].into_iter());
    assert!(taken[0].is_ok());
    let before = scene.exchange.store().totals().0.leases;
    call.deliver_acquired(Ok(taken), 0, &NoDescriptors);
    assert_eq!(scene.counted(Verb::Acquire, Some(Reason::Internal)), (1, 1));
    assert_eq!(scene.counted(Verb::Acquire, None), (0, 1));
    let got = scene.exchange.metrics().moves.get_bytes.at((Transport::Local, Moved::Done)).get();
    assert_eq!((got, scene.exchange.store().totals().0.leases), (0, before - 1));
}

#[test]
fn a_call_that_nobody_answers_is_counted_whether_its_client_is_there_or_not() {
    let scene = Scene::new();
    drop(scene.call(SessionKind::Lookup));
    assert_eq!(scene.counted(Verb::Lookup, Some(Reason::Cancelled)), (1, 1));
    let call = scene.call(SessionKind::Lookup);
    scene.link.cut();
    drop(call);
    assert_eq!(scene.counted(Verb::Lookup, Some(Reason::Cancelled)), (2, 2));
}
