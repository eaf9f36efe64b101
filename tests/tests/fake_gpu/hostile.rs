//! Sessions that lie or break the protocol. They have no driver: the stand-in's memory is imitated where something must look like it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use prost::Message;
use rustix::fs::{MemfdFlags, SealFlags};
use tensorlane_client::AcquireOptions;
use tensorlane_proto::frame::{GPU_SINCE, STAGE_SINCE, SessionKind};
use tensorlane_proto::{DType, Failure, Reason, generated as v1, wire};
use tensorlane_tests::gpu::{GpuDriver, GpuWorkload, descriptors};
use tensorlane_tests::raw::RawSession;
use tensorlane_tests::{Sidecar, SidecarOptions, reason, until, where_the_machine_runs_on};

use crate::GRANULE;

/// Imitation of an allocation of the stand-in on that device.
pub(crate) fn imitation(device: u8, bytes: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create(format!("fake-gpu:{device}:{bytes}"), flags).unwrap();
    rustix::fs::ftruncate(&memory, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    memory
}

/// The stand-in's name of a device.
fn uuid(device: u8) -> Vec<u8> {
    [b"fake-gpu-memory".as_slice(), &[device]].concat()
}

/// A tensor of 100 bytes that only its name keeps.
pub(crate) fn request(name: &str, bytes: u64, device: u8) -> v1::PutGpuRequest {
    let place = v1::Device { cuda_index: Some(0), cuda_uuid: uuid(device).into() };
    let descriptor = v1::Descriptor {
        dtype: DType::U8 as u32,
        shape: vec![100],
        device: Some(place),
        ..v1::Descriptor::default()
    };
    let keep = v1::Keep { name: name.to_owned(), no_lease: true, ..v1::Keep::default() };
    let (descriptor, keep) = (Some(descriptor), Some(keep));
    v1::PutGpuRequest { descriptor, keep, allocation: 1, allocation_bytes: bytes }
}

pub(crate) fn put(
    session: &mut RawSession,
    request: &v1::PutGpuRequest,
    memory: BorrowedFd<'_>,
) -> Result<(), Failure> {
    session.send_with(SessionKind::PutGpu, request, &[memory]);
    let reply: v1::PutResponse = session.reply()?;
    match reply.results.into_iter().next().and_then(|result| result.outcome) {
        Some(v1::stored_result::Outcome::Stored(_)) => Ok(()),
        Some(v1::stored_result::Outcome::Failure(failure)) => Err(wire::failure(failure)),
        None => panic!("no result"),
    }
}

#[test]
fn who_lies_about_size_or_gpu_is_found_out_before_anything_is_read() {
    let sidecar = Sidecar::start();
    let mut liar = RawSession::begin_in(&sidecar, GPU_SINCE);
    let small = imitation(0, GRANULE);
    put(&mut liar, &request("long", 2 * GRANULE, 0), small.as_fd()).unwrap();
    put(&mut liar, &request("odd", GRANULE + 1, 0), small.as_fd()).unwrap();
    put(&mut liar, &request("elsewhere", GRANULE, 0), imitation(1, GRANULE).as_fd()).unwrap();
    put(&mut liar, &request("nowhere", GRANULE, 9), small.as_fd()).unwrap();
    put(&mut liar, &request("honest", GRANULE, 0), small.as_fd()).unwrap();
    let mut reader = GpuWorkload::start(&sidecar, &GpuDriver::fake().with("FAKE_CUDA_DEVICES", 2));
    let expected = [
        ("long", "wrong_size"),
        ("odd", "size"),
        ("elsewhere", "wrong_device"),
        ("nowhere", "no_such_device"),
    ];
    for (name, label) in expected {
        assert_eq!(reader.ask(&format!("get {name}"), "error"), label, "{name}");
    }
    let mut alone = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    assert_eq!(alone.ask("get elsewhere", "error"), "not_importable", "of a GPU that is not reached");
    reader.ask("get honest", "got");
    assert_eq!(descriptors(reader.pid(), "memfd:fake-gpu"), 1, "nothing of what was refused is left");
    let names: Vec<&str> = expected.iter().map(|(name, _)| *name).chain(["honest"]).collect();
    sidecar.client().unname(&names).unwrap();
    drop((liar, reader, alone));
    until("the sidecar holds nothing", || descriptors(sidecar.pid(), "memfd:fake-gpu") == 0);
    sidecar.assert_all_free();
}

#[test]
fn what_is_no_memory_of_a_gpu_is_refused_by_the_sidecar_or_by_the_driver() {
    let sidecar = Sidecar::start();
    let folder = tempfile::tempdir().unwrap();
    let mut session = RawSession::begin_in(&sidecar, GPU_SINCE);
    let (socket, _other) = UnixStream::pair().unwrap();
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    let directory = File::open(folder.path()).unwrap();
    for (what, descriptor) in
        [("socket", socket.as_fd()), ("pipe", pipe.as_fd()), ("directory", directory.as_fd())]
    {
        let refused = put(&mut session, &request("a", GRANULE, 0), descriptor).unwrap_err();
        assert_eq!(refused.reason, Reason::InvalidArgument, "{refused}");
        assert!(refused.message.contains(what), "{refused}");
    }
    let memfd = rustix::fs::memfd_create("any", MemfdFlags::CLOEXEC).unwrap();
    let truncated = File::create(folder.path().join("truncated")).unwrap();
    let null = File::open("/dev/null").unwrap();
    let mut reader = GpuWorkload::start(&sidecar, &GpuDriver::fake());
    for (name, descriptor) in
        [("memfd", memfd.as_fd()), ("truncated", truncated.as_fd()), ("null", null.as_fd())]
    {
        put(&mut session, &request(name, GRANULE, 0), descriptor).unwrap();
        assert_eq!(reader.ask(&format!("get {name}"), "error"), "not_importable", "{name}");
    }
    sidecar.client().unname(&["memfd", "truncated", "null"]).unwrap();
    drop((session, reader));
    until("the sidecar let go of it", || descriptors(sidecar.pid(), "/truncated") == 0);
    sidecar.assert_all_free();
}

#[test]
fn requests_that_do_not_hold_together_are_refused_and_their_descriptors_closed() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin_in(&sidecar, GPU_SINCE);
    let memory = imitation(0, GRANULE);
    let good = request("a", GRANULE, 0);
    let described = |change: &dyn Fn(&mut v1::Descriptor)| {
        let mut request = good.clone();
        change(request.descriptor.as_mut().unwrap());
        request
    };
    let device = |uuid: &[u8]| v1::Device { cuda_index: Some(0), cuda_uuid: uuid.to_vec().into() };
    let cases = [
        (described(&|d| d.device = None), Reason::InvalidArgument),
        (described(&|d| d.device = Some(device(b""))), Reason::InvalidArgument),
        (described(&|d| d.device = Some(device(b"short"))), Reason::InvalidArgument),
        (described(&|d| d.shape = vec![0]), Reason::InvalidArgument),
        (described(&|d| d.shape = vec![GRANULE + 1]), Reason::InvalidArgument),
        (described(&|d| d.byte_length = 99), Reason::LayoutMismatch),
        (described(&|d| d.dtype = 9_999), Reason::DTypeUnknown),
        (v1::PutGpuRequest { allocation: 0, ..good.clone() }, Reason::InvalidArgument),
        (v1::PutGpuRequest { allocation_bytes: 99, ..good.clone() }, Reason::InvalidArgument),
        (v1::PutGpuRequest { allocation_bytes: u64::MAX, ..good.clone() }, Reason::LimitExceeded),
        (
            v1::PutGpuRequest {
                keep: Some(v1::Keep { no_lease: true, ..v1::Keep::default() }),
                ..good.clone()
            },
            Reason::WouldVanish,
        ),
    ];
    for (request, expected) in cases {
        let refused = put(&mut session, &request, memory.as_fd()).unwrap_err();
        assert_eq!(refused.reason, expected, "{request:?}: {refused}");
    }
    let open: Result<v1::OpenGpuResponse, _> =
        session.call(SessionKind::OpenGpu, &v1::OpenGpuRequest { id: 77 });
    assert_eq!(open.unwrap_err().reason, Reason::NotFound);
    until("their descriptors are closed", || descriptors(sidecar.pid(), "memfd:fake-gpu") == 0);
    put(&mut session, &good, memory.as_fd()).expect("the session goes on");
    sidecar.client().unname(&["a"]).unwrap();
    drop(session);
    sidecar.assert_all_free();
}

#[test]
fn descriptors_that_were_not_announced_end_the_session_and_are_closed() {
    let sidecar = Sidecar::start();
    let memory = imitation(0, GRANULE);
    let (one, two) = ([memory.as_fd()], [memory.as_fd(), memory.as_fd()]);
    let good = request("a", GRANULE, 0);
    type Attack<'a> = &'a dyn Fn(&mut RawSession);
    let attacks: [(&str, Attack<'_>); 5] = [
        ("none where one belongs", &|session| {
            session.send(SessionKind::PutGpu, &good);
        }),
        ("two where one belongs", &|session| {
            session.send_with(SessionKind::PutGpu, &good, &two);
        }),
        ("one with a frame that has none, and another frame", &|session| {
            session.send_with(SessionKind::Status, &v1::StatusRequest {}, &one);
            session.send(SessionKind::Status, &v1::StatusRequest {});
        }),
        ("more and more of them", &|session| {
            for _ in 0..8 {
                session.send_with(SessionKind::Status, &v1::StatusRequest {}, &one);
            }
        }),
        ("an event that only the sidecar sends", &|session| {
            session.send(SessionKind::GpuFreed, &v1::GpuFreed { allocation: 1, reusable: true });
        }),
    ];
    for (what, attack) in attacks {
        let mut session = RawSession::begin_in(&sidecar, GPU_SINCE);
        attack(&mut session);
        session.wait_until_cut();
        until(what, || descriptors(sidecar.pid(), "memfd:fake-gpu") == 0);
    }
    sidecar.assert_all_free();
}

#[test]
fn a_client_from_before_gpu_memory_gets_none_and_sends_none() {
    let sidecar = Sidecar::start();
    let mut producer = RawSession::begin_in(&sidecar, GPU_SINCE);
    put(&mut producer, &request("a", GRANULE, 0), imitation(0, GRANULE).as_fd()).unwrap();
    let mut old = RawSession::begin_in(&sidecar, GPU_SINCE - 1);
    let target = v1::Target { kind: Some(v1::target::Kind::Name("a".to_owned())), peer: String::new() };
    let item = v1::GetItem { target: Some(target), selection: None };
    let request = v1::AcquireRequest { items: vec![item], ..v1::AcquireRequest::default() };
    let reply: v1::AcquireResponse = old.call(SessionKind::Acquire, &request).unwrap();
    match &reply.results[0].outcome {
        Some(v1::acquire_result::Outcome::Failure(why)) => assert_eq!(why.reason, "NO_GPU_PROCESS"),
        other => panic!("{other:?}"),
    }
    old.send(SessionKind::OpenGpu, &v1::OpenGpuRequest { id: 1 });
    old.wait_until_cut();
    let client = sidecar.client();
    until("nothing leases it", || client.describe("a").unwrap().leases == 0);
    client.unname(&["a"]).unwrap();
    drop((client, producer));
    sidecar.assert_all_free();
}

#[test]
fn a_session_may_hold_so_many_allocations_and_no_more() {
    let sidecar = Sidecar::start();
    let mut session = RawSession::begin_in(&sidecar, GPU_SINCE);
    let memory = imitation(0, GRANULE);
    let mut put_one = |number: u64| {
        let keep = Some(v1::Keep::default());
        put(&mut session, &v1::PutGpuRequest { keep, ..request("", GRANULE, 0) }, memory.as_fd())
            .map_err(|refused| (number, refused))
    };
    for number in 0..1_024 {
        put_one(number).unwrap();
    }
    let (_, refused) = put_one(1_024).unwrap_err();
    assert_eq!(refused.reason, Reason::LimitExceeded, "{refused}");
    until("the one too many is closed", || descriptors(sidecar.pid(), "memfd:fake-gpu") == 1_024);
    drop(session);
    until("the sidecar holds nothing", || descriptors(sidecar.pid(), "memfd:fake-gpu") == 0);
    sidecar.assert_all_free();
}

/// Waits for the answer to Stage, and acknowledges segments as a client that maps them does.
fn staged(session: &mut RawSession) -> Result<v1::StageResponse, Failure> {
    loop {
        let (header, body) = session.next_frame().expect("the session goes on");
        match SessionKind::try_from(header.kind) {
            Ok(SessionKind::Segment) => {
                let frame = v1::SegmentFrame::decode(&body[..]).unwrap();
                let mapped = v1::SegmentMapped { segment: frame.segment, error: String::new() };
                session.send(SessionKind::SegmentMapped, &mapped);
            }
            Ok(SessionKind::Stage) if header.is_failed() => {
                return Err(wire::failure(v1::Failure::decode(&body[..]).unwrap()));
            }
            Ok(SessionKind::Stage) => return Ok(v1::StageResponse::decode(&body[..]).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_stager_that_lies_gets_nothing_to_a_reader() {
    where_the_machine_runs_on(|| {
        let sidecar = Sidecar::start();
        let mut liar = RawSession::begin_in(&sidecar, STAGE_SINCE);
        put(&mut liar, &request("a", GRANULE, 0), imitation(0, GRANULE).as_fd()).unwrap();
        let client = sidecar.client();
        let read = || {
            let client = client.clone();
            std::thread::spawn(move || reason(client.acquire("a", &AcquireOptions::new()).map(drop)))
        };
        let stage = |report| {
            let cuda_uuids = vec![uuid(0).into()];
            v1::StageRequest { cuda_uuids, report, ..v1::StageRequest::default() }
        };
        let over = |order, written| v1::StageReport { order, written, over: true, failure: None };
        for uuids in [vec![], vec![vec![1; 15].into()], vec![uuid(0).into(); 65]] {
            liar.send(
                SessionKind::Stage,
                &v1::StageRequest { cuda_uuids: uuids, ..v1::StageRequest::default() },
            );
            assert_eq!(staged(&mut liar).unwrap_err().reason, Reason::InvalidArgument);
        }
        liar.send(SessionKind::Stage, &stage(None));
        liar.send(SessionKind::Stage, &stage(None));
        assert_eq!(staged(&mut liar).unwrap_err().reason, Reason::InvalidArgument, "two calls at a time");
        // More bytes than there are.
        let reader = read();
        let order = staged(&mut liar).unwrap().order.unwrap();
        assert_eq!(order.location.unwrap().bytes, 100);
        liar.send(SessionKind::Stage, &stage(Some(over(order.order, 101))));
        assert_eq!(reader.join().unwrap(), Reason::StagingFailed);
        // Another order than its own, then the next call without a word of its own.
        let reader = read();
        let order = staged(&mut liar).unwrap().order.unwrap().order;
        liar.send(SessionKind::Stage, &stage(Some(v1::StageReport { order: order + 1, ..over(0, 50) })));
        // It may not have heard of it, once.
        assert!(staged(&mut liar).unwrap().order.unwrap().order > order);
        liar.send(SessionKind::Stage, &stage(Some(over(order, 50))));
        assert_eq!(reader.join().unwrap(), Reason::StagerStalled);
        // Never a word again.
        let reader = read();
        staged(&mut liar).unwrap().order.unwrap();
        assert_eq!(reader.join().unwrap(), Reason::StagerStalled);
        // None that is there: it ends with its order.
        drop(liar);
        let gone = || reason(client.acquire("a", &AcquireOptions::new()).map(drop)) == Reason::NoGpuProcess;
        until("the liar is gone", gone);
        client.unname(&["a"]).unwrap();
        drop(client);
        sidecar.assert_all_free();
    });
}

#[test]
fn a_descriptor_for_which_the_sidecar_has_no_room_ends_its_session_alone_and_the_log_says_what_to_do() {
    const LIMIT: u64 = 64;
    let narrow = format!("ulimit -n {LIMIT} && exec \"$0\" \"$@\"");
    let sidecar = Sidecar::with(SidecarOptions::default().prefix(["sh", "-c", &narrow]));
    let client = sidecar.client();
    let memory = imitation(0, GRANULE);
    let mut greedy = RawSession::begin_in(&sidecar, GPU_SINCE);
    // Each is kept by a lease of the session alone, and its descriptor with it.
    let given = (1..=LIMIT).take_while(|&allocation| {
        let keep = Some(v1::Keep::default());
        let request = v1::PutGpuRequest { allocation, keep, ..request("", GRANULE, 0) };
        greedy.send_with(SessionKind::PutGpu, &request, &[memory.as_fd()]);
        greedy.next_frame().is_some()
    });
    let given = given.count() as u64;
    assert!(0 < given && given < LIMIT, "{given} descriptors of {LIMIT}");
    until("the log says so", || sidecar.logged("session cut").is_some());
    let told = sidecar.logged("session cut").unwrap()["error"].to_string();
    assert!(told.contains("raise the sidecar's limit of open files"), "{told}");
    // Whoever was there before goes on, whoever comes is served.
    until("its memory is given back", || descriptors(sidecar.pid(), "memfd:fake-gpu") == 0);
    until("its session has ended", || client.status().unwrap().sessions == 1);
    let mut next = RawSession::begin_in(&sidecar, GPU_SINCE);
    put(&mut next, &request("a", GRANULE, 0), memory.as_fd()).unwrap();
    client.unname(&["a"]).unwrap();
    drop((next, client));
    sidecar.assert_all_free();
}
