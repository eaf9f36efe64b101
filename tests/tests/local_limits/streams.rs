//! Streams over gRPC that were begun and stand still: their deadline ends them, and until then they are called by name.

use std::process::Command;
use std::time::{Duration, Instant};

use tensorlane_client::{AcquireOptions, Client, HolderStatus, PutOptions};
use tensorlane_proto::generated::tensorlane_client::TensorlaneClient;
use tensorlane_proto::{DType, Failure, Reason, generated as v1};
use tensorlane_tests::sidecar::bin_dir;
use tensorlane_tests::tensors::{put_pattern, u8s};
use tensorlane_tests::wait::PATIENCE;
use tensorlane_tests::{Sidecar, SidecarOptions, failure_in_time, until, where_the_machine_runs_on};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

const MIB: u64 = 1 << 20;

type Grpc = TensorlaneClient<Channel>;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A connection to the gRPC socket of a sidecar, by a client that has a name.
async fn connect(sidecar: &Sidecar) -> Grpc {
    let path = sidecar.sockets().join("grpc.sock");
    // It is there a moment after the socket of sessions.
    until("gRPC is served", || path.exists());
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    TensorlaneClient::new(endpoint.user_agent("standstill").unwrap().connect().await.unwrap())
}

fn chunk(part: v1::put_chunk::Part, deadline_ms: u64) -> v1::PutChunk {
    v1::PutChunk { part: Some(part), deadline_ms }
}

/// A put of so many MiB that sends half of them and then nothing more.
fn half_a_put(mut grpc: Grpc, mib: u64, deadline_ms: u64) -> JoinHandle<Result<(), Status>> {
    use v1::put_chunk::Part;
    let descriptor =
        v1::Descriptor { dtype: u32::from(DType::U8.code()), shape: vec![mib * MIB], ..Default::default() };
    let keep = v1::Keep { name: "half".to_owned(), ..v1::Keep::default() };
    let item = v1::PutItem { descriptor: Some(descriptor), keep: Some(keep), ..v1::PutItem::default() };
    let bytes = (0..mib / 2).map(|_| chunk(Part::Data(vec![7; MIB as usize].into()), 0));
    let chunks: Vec<_> = std::iter::once(chunk(Part::Item(item), deadline_ms)).chain(bytes).collect();
    tokio::spawn(async move {
        grpc.put(tokio_stream::iter(chunks).chain(tokio_stream::pending())).await.map(|_| ())
    })
}

/// The refusal of a put of 4 MiB that sends half of them and then nothing more. On a busy machine its deadline may pass before half
/// of it has come: then it is put again.
async fn half_came(grpc: Grpc, deadline_ms: u64) -> Status {
    let last = Instant::now() + PATIENCE;
    loop {
        let status = half_a_put(grpc.clone(), 4, deadline_ms).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        if status.message().contains("2097152 bytes were missing") || Instant::now() > last {
            return status;
        }
    }
}

/// A request in a session over gRPC.
fn within<T>(session: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("tensorlane-session", session.parse().unwrap());
    request
}

/// Chunk of a Fill, of a MiB.
fn filling(id: u64, offset: u64) -> v1::FillChunk {
    v1::FillChunk { id, offset, data: vec![7; MIB as usize].into() }
}

/// A Fill of a reservation that sends one MiB and then nothing more.
fn half_a_fill(mut grpc: Grpc, session: &str, id: u64) -> JoinHandle<Result<(), Status>> {
    let stream = tokio_stream::iter([filling(id, 0)]).chain(tokio_stream::pending());
    let request = within(session, stream);
    tokio::spawn(async move { grpc.fill(request).await.map(|_| ()) })
}

/// A get of a named tensor of which only the head is read. On a busy machine its deadline may pass before the head has come: then
/// it is asked again.
async fn unread_get(mut grpc: Grpc, name: &str, deadline_ms: u64) -> Streaming<v1::GetChunk> {
    let kind = Some(v1::target::Kind::Name(name.to_owned()));
    let target = Some(v1::Target { kind, peer: String::new() });
    let items = vec![v1::GetItem { target, selection: None }];
    let request = v1::GetRequest { items, deadline_ms, ..v1::GetRequest::default() };
    let last = Instant::now() + PATIENCE;
    loop {
        let late = match grpc.get(request.clone()).await {
            Ok(answers) => {
                let mut stream = answers.into_inner();
                match stream.message().await {
                    Ok(chunk) => {
                        let part = chunk.and_then(|chunk| chunk.part);
                        assert!(matches!(part, Some(v1::get_chunk::Part::Head(_))), "{part:?}");
                        return stream;
                    }
                    Err(status) => status,
                }
            }
            Err(status) => status,
        };
        assert!(late.code() == Code::DeadlineExceeded && Instant::now() < last, "{late:?}");
    }
}

fn kept(client: &Client) -> Vec<HolderStatus> {
    client.status().unwrap().holders
}

fn arena_full(client: &Client) -> Failure {
    let hurried = client.with_deadline(Duration::from_millis(50));
    let full = failure_in_time(|| hurried.reserve(&u8s(200 * MIB)));
    assert_eq!(full.reason, Reason::ArenaFull, "{full}");
    full
}

#[test]
fn half_sent_puts_are_ended_with_what_was_missing_and_the_arena_has_its_bytes_back() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("deadlines.default", "5s"));
    runtime().block_on(async {
        let grpc = connect(&sidecar).await;
        let puts: Vec<_> = (0..20).map(|_| tokio::spawn(half_came(grpc.clone(), 0))).collect();
        for put in puts {
            let status = put.await.unwrap();
            for part in ["2097152 of 4194304 bytes of tensor 1", "2097152 bytes were missing", "within 5s"] {
                assert!(status.message().contains(part), "{part} is not in {}", status.message());
            }
        }
        // The client and its connection are still there.
        sidecar.assert_all_free();
        drop(grpc);
    });
}

#[test]
fn half_sent_fills_are_ended_and_their_reservations_are_written_again_or_given_back() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("deadlines.default", "5s"));
    let client = sidecar.client();
    runtime().block_on(async {
        let mut grpc = connect(&sidecar).await;
        let mut events = grpc.session(v1::SessionRequest {}).await.unwrap().into_inner();
        let session = events.message().await.unwrap().expect("the first event says the id").session_id;
        let descriptor =
            v1::Descriptor { dtype: u32::from(DType::U8.code()), shape: vec![2 * MIB], ..Default::default() };
        let item = v1::ReserveItem { descriptor: Some(descriptor), ..v1::ReserveItem::default() };
        let request = v1::ReserveRequest { items: vec![item; 8], deadline_ms: 0 };
        let reserved = grpc.reserve(within(&session, request)).await.unwrap().into_inner().results;
        let ids: Vec<u64> = reserved
            .iter()
            .map(|result| match &result.outcome {
                Some(v1::reserve_result::Outcome::Reserved(reserved)) => reserved.id,
                other => panic!("{other:?}"),
            })
            .collect();
        let fills: Vec<_> = ids.iter().map(|id| half_a_fill(grpc.clone(), &session, *id)).collect();
        for fill in fills {
            let status = fill.await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
            assert!(
                status.message().contains("no message of this call became whole within 5s"),
                "{status:?}"
            );
        }
        // They are the session's still: one is written from the beginning, the others are given back.
        let whole = tokio_stream::iter([filling(ids[0], 0), filling(ids[0], MIB)]);
        assert_eq!(grpc.fill(within(&session, whole)).await.unwrap().into_inner().bytes, 2 * MIB);
        let keep = v1::Keep { name: "filled".to_owned(), no_lease: true, ..v1::Keep::default() };
        let item = v1::SealItem { id: ids[0], keep: Some(keep), ..v1::SealItem::default() };
        let sealed = grpc.seal(within(&session, v1::SealRequest { items: vec![item] })).await.unwrap();
        let sealed = sealed.into_inner().results;
        assert!(matches!(sealed[0].outcome, Some(v1::stored_result::Outcome::Stored(_))), "{sealed:?}");
        let abort = v1::AbortRequest { ids: ids[1..].to_vec() };
        let aborted = grpc.abort(within(&session, abort)).await.unwrap().into_inner().results;
        assert!(aborted.iter().all(|done| done.failure.is_none()), "{aborted:?}");
        let tensor = client.acquire("filled", &AcquireOptions::new()).unwrap();
        assert!(tensor.to_vec() == vec![7u8; 2 * MIB as usize]);
        drop(tensor);
        client.unname(&["filled"]).unwrap().remove(0).unwrap();
        drop(client);
        sidecar.assert_all_free();
        drop((events, grpc));
    });
}

#[test]
fn a_put_with_a_deadline_is_ended_by_it_however_patient_the_sidecar_is() {
    let sidecar = Sidecar::start();
    runtime().block_on(async {
        let grpc = connect(&sidecar).await;
        let status = half_came(grpc.clone(), 300).await;
        assert!(status.message().contains("the deadline of this call passed"), "{status:?}");
        assert!(status.message().contains("2097152 bytes were missing"), "{status:?}");
        sidecar.assert_all_free();
        drop(grpc);
    });
}

#[test]
fn a_put_into_a_full_arena_hears_of_the_arena_and_not_of_its_deadline() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    let full = client.reserve(&u8s(200 * MIB)).unwrap();
    runtime().block_on(async {
        let grpc = connect(&sidecar).await;
        // Half of it is passed over, and then nothing more comes.
        let status = half_a_put(grpc.clone(), 60, 300).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let details = String::from_utf8_lossy(status.details()).into_owned();
        assert!(details.contains("ARENA_FULL") && details.contains("holder_1"), "{details}");
        drop(grpc);
    });
    drop((full, client));
    sidecar.assert_all_free();
}

#[test]
fn a_deadline_does_not_end_a_put_whose_bytes_come() {
    where_the_machine_runs_on(put_beyond_a_deadline);
}

fn put_beyond_a_deadline() {
    use v1::put_chunk::Part;
    // Each comes long before the deadline, and all of them do not.
    const BYTES: u64 = 100;
    let sidecar = Sidecar::start();
    runtime().block_on(async {
        let mut grpc = connect(&sidecar).await;
        let descriptor =
            v1::Descriptor { dtype: u32::from(DType::U8.code()), shape: vec![BYTES], ..Default::default() };
        let keep = v1::Keep { name: "slow".to_owned(), ..v1::Keep::default() };
        let item = v1::PutItem { descriptor: Some(descriptor), keep: Some(keep), ..v1::PutItem::default() };
        let bytes = (0..BYTES).map(|_| chunk(Part::Data(vec![7].into()), 0));
        let chunks: Vec<_> = std::iter::once(chunk(Part::Item(item), 8_000)).chain(bytes).collect();
        let (send, receive) = tokio::sync::mpsc::channel(1);
        let slow = tokio::spawn(async move {
            let mut pace = tokio::time::interval(Duration::from_millis(100));
            for chunk in chunks {
                pace.tick().await;
                send.send(chunk).await.unwrap();
            }
        });
        let stored = grpc.put(tokio_stream::wrappers::ReceiverStream::new(receive)).await;
        let results = stored.expect("it moves beyond its deadline").into_inner().results;
        slow.await.unwrap();
        assert!(matches!(results[0].outcome, Some(v1::stored_result::Outcome::Stored(_))), "{results:?}");
    });
    sidecar.client().unname(&["slow"]).unwrap().remove(0).unwrap();
    sidecar.assert_all_free();
}

#[test]
fn a_deadline_does_not_end_a_get_that_is_read() {
    where_the_machine_runs_on(get_beyond_a_deadline);
}

fn get_beyond_a_deadline() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    drop(put_pattern(&client, 1, 16 * MIB, &PutOptions::named("w")).unwrap());
    runtime().block_on(async {
        let grpc = connect(&sidecar).await;
        // Each chunk, of a MiB, is taken long before the deadline, and all of them are not.
        let mut stream = unread_get(grpc.clone(), "w", 6_000).await;
        let mut pace = tokio::time::interval(Duration::from_millis(500));
        let mut bytes = 0;
        while let Some(chunk) = stream.message().await.expect("it moves beyond its deadline") {
            pace.tick().await;
            if let Some(v1::get_chunk::Part::Data(data)) = chunk.part {
                bytes += data.len() as u64;
            }
        }
        assert_eq!(bytes, 16 * MIB);
        drop(grpc);
    });
    client.unname(&["w"]).unwrap().remove(0).unwrap();
    drop(client);
    sidecar.assert_all_free();
}

#[test]
fn gets_that_nobody_reads_give_back_what_they_lease_and_say_so() {
    for (patience, deadline_ms) in [("1s", 0), ("60s", 300)] {
        let sidecar = Sidecar::with(SidecarOptions::default().set("deadlines.default", patience));
        let client = sidecar.client();
        drop(put_pattern(&client, 1, 16 * MIB, &PutOptions::named("w")).unwrap());
        client.flush().unwrap();
        runtime().block_on(async {
            let grpc = connect(&sidecar).await;
            let mut unread = unread_get(grpc.clone(), "w", deadline_ms).await;
            client.unname(&["w"]).unwrap().remove(0).unwrap();
            until("nothing is leased", || client.status().unwrap().leases == 0);
            drop(client);
            sidecar.assert_all_free();
            // Its reader hears of it when it reads on.
            let ended = loop {
                match unread.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("half of a tensor ended well"),
                    Err(status) => break status,
                }
            };
            assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended:?}");
            assert!(ended.message().contains("bytes of tensor 1 of 1 went out"), "{ended:?}");
            drop(grpc);
        });
    }
}

#[test]
fn a_full_arena_names_those_who_keep_it() {
    let sidecar = Sidecar::start();
    let client = sidecar.client();
    drop(put_pattern(&client, 1, 16 * MIB, &PutOptions::named("w")).unwrap());
    client.flush().unwrap();
    // A native session that begins a tensor and does not seal it.
    let reserved = client.reserve(&u8s(12 * MIB)).unwrap();
    runtime().block_on(async {
        let grpc = connect(&sidecar).await;
        let puts: Vec<_> = (0..20).map(|_| half_a_put(grpc.clone(), 4, 0)).collect();
        let unread = unread_get(grpc.clone(), "w", 0).await;
        until("all keep their blocks", || {
            kept(&client).iter().find(|h| h.kind == "put").is_some_and(|puts| puts.streams >= 14)
        });
        // The same tensor for the same client: one line, and its bytes once.
        let again = [unread_get(grpc.clone(), "w", 0).await, unread_get(grpc.clone(), "w", 0).await];
        let full = arena_full(&client);
        let lines: Vec<_> = (1..=6).filter_map(|n| full.detail(&format!("holder_{n}"))).collect();
        assert_eq!(lines.len(), 3, "{full}");
        let process = format!("process {}", std::process::id());
        let expected = ["half-sent puts over gRPC", "3 unread gets over gRPC", "session "];
        for (line, said) in lines.iter().zip(expected) {
            assert!(line.contains(said) && line.contains(&process), "{line}: {full}");
            assert!(!line.starts_with("session 0"), "{line}");
        }
        let get = lines[1];
        assert!(get.contains("(standstill tonic/") && get.ends_with(": 16777216 bytes"), "{get}");
        assert!(lines[2].ends_with(": 12582912 bytes in 0 leases and 1 reservations"), "{}", lines[2]);

        let holders = kept(&client);
        assert_eq!(holders.len(), 3);
        let get = &holders[1];
        assert_eq!((get.kind.as_str(), get.bytes, get.process), ("get", 16 * MIB, std::process::id()));
        assert_eq!((get.streams, get.leases), (3, 1));
        let session = &holders[2];
        assert_eq!((session.kind.as_str(), session.bytes, session.reservations), ("session", 12 * MIB, 1));

        let run = |arguments: &[&str]| {
            let mut command = Command::new(bin_dir().join("tensorlane"));
            let output = command.args(arguments).env("TENSORLANE_SOCKETS", sidecar.sockets());
            String::from_utf8(output.output().unwrap().stdout).unwrap()
        };
        let told = run(&["status"]);
        assert!(told.contains("16.0 MiB by unread get over gRPC") && told.contains("3 streams"), "{told}");
        let json: serde_json::Value = serde_json::from_str(&run(&["-o", "json", "status"])).unwrap();
        assert_eq!(json["holders"][2]["reservations"], 1, "{json}");
        drop((unread, again, grpc));
        puts.iter().for_each(JoinHandle::abort);
    });
    client.unname(&["w"]).unwrap().remove(0).unwrap();
    drop(reserved);
    drop(client);
    sidecar.assert_all_free();
}

/// Bytes of memory that is no tensor's, of a process.
fn own_memory(sidecar: &Sidecar) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sidecar.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("its resident memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn two_hundred_gets_that_nobody_reads_take_a_fraction_of_their_bytes() {
    let sidecar = Sidecar::with(SidecarOptions::default().set("limits.unreadBytes", "64Mi"));
    let client = sidecar.client();
    drop(put_pattern(&client, 1, 16 * MIB, &PutOptions::named("w")).unwrap());
    let before = own_memory(&sidecar);
    runtime().block_on(async {
        let mut unread = Vec::new();
        for _ in 0..100 {
            // What nobody reads fills the window of its connection: a third one would not even get its head.
            let grpc = connect(&sidecar).await;
            for _ in 0..2 {
                unread.push(unread_get(grpc.clone(), "w", 0).await);
            }
        }
        until("all of them are known", || {
            kept(&client).first().is_some_and(|gets| gets.streams == 200 && gets.bytes == 16 * MIB)
        });
        let grown = own_memory(&sidecar).saturating_sub(before);
        assert!(grown < 90 * MIB, "200 streams took {grown} bytes");
        drop(unread);
    });
    client.unname(&["w"]).unwrap().remove(0).unwrap();
    drop(client);
    sidecar.assert_all_free();
}
