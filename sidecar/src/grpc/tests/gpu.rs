//! Tensors in GPU memory over gRPC: they are known and leased. Their bytes are streamed once a process has copied them out, and refused
//! where there is none.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::world::{World, all, get, named, unname};
use crate::exchange::Caller;
use crate::output_budget::OutputBudget;
use crate::session::{Around, SessionLink};
use tensorlane_proto::generated as v1;
use tensorlane_proto::ledger::{Holder, SessionId};

/// A session on the socket, and the other end of its socket.
fn begin(world: &World, id: u64) -> (Caller, Arc<SessionLink>, UnixStream) {
    let (socket, other) = UnixStream::pair().unwrap();
    let (_, events) = tensorlane_memory::passing::pipe().unwrap();
    let around = Around {
        client: "test".into(),
        version: tensorlane_proto::frame::SESSION_VERSION,
        drains: crate::workers::Workers::default(),
        unread: &OutputBudget::new(1 << 20),
        metrics: Arc::clone(&world.metrics),
        map_deadline: Duration::from_secs(20),
    };
    let link = SessionLink::new(SessionId(id), socket, events, around);
    world.exchange.session_began(&link);
    let holder = Some(Holder::Session(link.id()));
    let cancel = crate::cancel::Cancel::default();
    (Caller { holder, link: Some(Arc::clone(&link)), on_behalf: None, cancel }, link, other)
}

/// Puts one through a session on the socket, which only its name keeps.
fn put(world: &World, name: &str) {
    let (caller, _link, _other) = begin(world, 77);
    let device = v1::Device { cuda_index: Some(0), cuda_uuid: vec![7; 16].into() };
    let descriptor =
        v1::Descriptor { dtype: 2, shape: vec![10], device: Some(device), ..v1::Descriptor::default() };
    let keep = v1::Keep { name: name.to_owned(), no_lease: true, ..v1::Keep::default() };
    let request = v1::PutGpuRequest {
        descriptor: Some(descriptor),
        keep: Some(keep),
        allocation: 1,
        allocation_bytes: 2 << 20,
    };
    let memory = std::fs::File::open("/dev/null").unwrap();
    let reply = world.exchange.put_gpu(&caller, request, memory.into());
    assert!(matches!(reply.results[0].outcome, Some(v1::stored_result::Outcome::Stored(_))), "{reply:?}");
    world.exchange.session_ended(SessionId(77));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_in_gpu_memory_are_refused_with_a_reason_and_never_streamed() {
    let world = World::new().await;
    put(&world, "on-gpu");
    assert_eq!(world.exchange.store().gpu_held().orphaned, 2 << 20);
    let (mut client, session) = world.session().await;
    let mut stream = client.get(get(vec![all(named("on-gpu"))])).await.unwrap().into_inner();
    let chunk = stream.message().await.unwrap().unwrap();
    match chunk.part {
        Some(v1::get_chunk::Part::Failure(why)) => assert_eq!(why.reason, "NO_GPU_PROCESS"),
        other => panic!("{other:?}"),
    }
    assert!(stream.message().await.unwrap().is_none(), "nothing follows");
    let request = v1::AcquireRequest { items: vec![all(named("on-gpu"))], ..v1::AcquireRequest::default() };
    let reply = client.acquire(session.with(request)).await.unwrap().into_inner();
    match &reply.results[0].outcome {
        Some(v1::acquire_result::Outcome::Acquired(leased)) => {
            assert_eq!(leased.location, None);
            let id = leased.id;
            let release = v1::ReleaseRequest { ids: vec![id], still_mapped: Vec::new() };
            client.release(session.with(release)).await.unwrap();
        }
        other => panic!("{other:?}"),
    }
    unname(&mut client, "on-gpu").await;
    assert_eq!(world.exchange.store().gpu_held().tensors, 0);
    drop((client, session));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_in_gpu_memory_are_streamed_once_a_process_has_copied_them_out() {
    let world = World::new().await;
    put(&world, "on-gpu");
    let (caller, link, other) = begin(&world, 78);
    let ask = |report| {
        let (send, answer) = channel();
        let cuda_uuids = vec![vec![7; 16].into()];
        let request = v1::StageRequest { cuda_uuids, report, ..v1::StageRequest::default() };
        // The last one ends with the session, and nobody listens.
        let tell = move |outcome| drop(send.send(outcome));
        world.exchange.stage_next(&caller, &request, tell);
        answer
    };
    let waits = ask(None);
    let (mut client, _session) = world.session().await;
    let mut getter = client.clone();
    // By a task of its own: the answer begins once there is a copy.
    let got = tokio::spawn(async move { getter.get(get(vec![all(named("on-gpu"))])).await });
    let deadline = Instant::now() + Duration::from_secs(60);
    let order = loop {
        if let Ok(outcome) = waits.recv_timeout(Duration::from_millis(5)) {
            break outcome.unwrap().order.unwrap();
        }
        assert!(Instant::now() < deadline, "no order");
        // As a client does: it maps every segment that it is to write.
        for segment in 0..8 {
            link.mapped(v1::SegmentMapped { segment, error: String::new() });
        }
    };
    assert_eq!(order.location.unwrap().bytes, 10);
    let over = v1::StageReport { order: order.order, written: 10, over: true, failure: None };
    let _next = ask(Some(over));
    let mut stream = got.await.unwrap().unwrap().into_inner();
    let head = stream.message().await.unwrap().unwrap();
    match head.part {
        Some(v1::get_chunk::Part::Head(head)) => assert!(head.moved.unwrap().staged),
        other => panic!("{other:?}"),
    }
    let data = stream.message().await.unwrap().unwrap();
    assert!(matches!(data.part, Some(v1::get_chunk::Part::Data(data)) if data.len() == 10));
    unname(&mut client, "on-gpu").await;
    world.exchange.session_ended(SessionId(78));
    // In its queue lies the descriptor that says that the segment is mapped.
    drop((stream, client, other));
    world.end().await;
}
