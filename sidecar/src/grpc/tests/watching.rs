//! Watches over gRPC: one stream of what there is and of each change.

use tensorlane_proto::DType;
use tensorlane_proto::generated as v1;
use tensorlane_proto::revision::Revision;
use tonic::Streaming;

use super::super::call::outcome;
use super::world::{Client, World, data, header, info, item};
use crate::cancel::Cancel;
use crate::exchange::Caller;

async fn put(client: &mut Client, name: &str) {
    let chunks = vec![header(item(DType::U8, &[4], name)), data(&[1, 2, 3, 4])];
    client.put(tokio_stream::iter(chunks)).await.unwrap();
}

fn of(prefix: &str) -> v1::WatchRequest {
    v1::WatchRequest { prefix: prefix.to_owned(), page_size: 2, ..Default::default() }
}

async fn next(stream: &mut Streaming<v1::WatchResponse>) -> v1::WatchResponse {
    stream.message().await.unwrap().unwrap()
}

fn names(answer: &v1::WatchResponse) -> Vec<(v1::NameEventKind, &str)> {
    answer.events.iter().map(|event| (event.kind(), event.name.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_has_all_pages_of_what_there_is_and_then_each_change() {
    use v1::NameEventKind::{Appeared, Gone, Present};
    let world = World::new().await;
    let (mut writer, mut reader) = (world.client().await, world.client().await);
    for name in ["a/1", "a/2", "a/3", "b"] {
        put(&mut writer, name).await;
    }
    let mut stream = reader.watch(of("a/")).await.unwrap().into_inner();
    let first = next(&mut stream).await;
    assert_eq!(names(&first), [(Present, "a/1"), (Present, "a/2")]);
    assert!(first.snapshot && first.next_page_token == "a/2" && !first.events[0].reference.is_empty());
    let last = next(&mut stream).await;
    assert_eq!((names(&last), last.next_page_token.as_str()), (vec![(Present, "a/3")], ""));
    assert_eq!(last.revision, first.revision);
    put(&mut writer, "a/4").await;
    let appeared = next(&mut stream).await;
    assert!(!appeared.snapshot && names(&appeared) == [(Appeared, "a/4")]);
    writer.unname(v1::UnnameRequest { names: vec!["b".to_owned(), "a/1".to_owned()] }).await.unwrap();
    assert_eq!(names(&next(&mut stream).await), [(Gone, "a/1")]);
    drop(stream);

    let again = v1::WatchRequest { after: last.revision, ..of("a/") };
    let mut stream = reader.watch(again).await.unwrap().into_inner();
    assert_eq!(names(&next(&mut stream).await), [(Appeared, "a/4"), (Gone, "a/1")]);
    let all = ["a/2", "a/3", "a/4"].map(str::to_owned).to_vec();
    writer.unname(v1::UnnameRequest { names: all }).await.unwrap();
    drop((stream, reader));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_cannot_go_on_ends_with_the_reason_and_a_sidecar_that_ends_with_another() {
    let world = World::new().await;
    let mut client = world.client().await;
    let other = v1::WatchRequest { after: format!("{}9.0", "0".repeat(31)), ..of("") };
    for (request, reason) in [
        (other, "WATCH_CUT"),
        (v1::WatchRequest { after: "yesterday".to_owned(), ..of("") }, "INVALID_ARGUMENT"),
        (v1::WatchRequest { peer: "elsewhere".to_owned(), ..of("") }, "PEER_UNREACHABLE"),
    ] {
        let mut stream = client.watch(request).await.unwrap().into_inner();
        let refused = stream.message().await.unwrap_err();
        assert_eq!(info(&refused).reason, reason, "{refused}");
    }
    let mut stream = client.watch(of("")).await.unwrap().into_inner();
    assert!(next(&mut stream).await.events.is_empty());
    world.exchange.close();
    assert_eq!(info(&stream.message().await.unwrap_err()).reason, "DRAINING");
    drop((stream, client));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_at_its_deadline_says_up_to_which_change_of_other_names_there_was_nothing() {
    let world = World::new().await;
    let mut client = world.client().await;
    let ask = async |after: &str, deadline_ms| {
        let request = v1::WatchRequest { after: after.to_owned(), deadline_ms, ..of("a/") };
        let caller = Caller { holder: None, link: None, on_behalf: None, cancel: Cancel::default() };
        outcome(|done| world.exchange.watch(&caller, &request, done), drop).await.unwrap()
    };
    let begun = ask("", 0).await;
    put(&mut client, "b").await;
    let change = async {
        while world.exchange.waiting_for_names().0 == 0 {
            tokio::task::yield_now().await;
        }
        put(&mut client, "c").await;
    };
    let (answer, ()) = tokio::join!(ask(&begun.revision, 1_000), change);
    assert!(answer.events.is_empty());
    let [begun, reached]: [Revision; 2] =
        [&begun.revision, &answer.revision].map(|text| text.parse().unwrap());
    assert_eq!(reached, Revision { sequence: begun.sequence + 2, ..begun });
    let all = ["b", "c"].map(str::to_owned).to_vec();
    client.unname(v1::UnnameRequest { names: all }).await.unwrap();
    drop(client);
    world.end().await;
}
