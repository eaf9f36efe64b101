//! Streams of Put over gRPC with mutated messages: each is answered, stored whole or refused, and the sidecar goes on.

use prost::Message;
use tensorlane_fuzz::{Target, fuzz};
use tensorlane_proto::generated as v1;
use tensorlane_tests::streams::Grpc;
use tensorlane_tests::{Sidecar, SidecarOptions, until};
use tonic::Code;
use v1::put_chunk::Part;

use super::{bytes_of, item};

/// Name that keeps what is stored, one at a time.
const NAME: &str = "mutated";
/// Time that a stream may wait for room, in milliseconds.
const PATIENCE_MS: u64 = 50;

/// Messages of a stream, one behind the other, each behind its length.
fn joined(parts: impl IntoIterator<Item = Part>) -> Vec<u8> {
    let chunk = |part| v1::PutChunk { part: Some(part), deadline_ms: PATIENCE_MS };
    parts.into_iter().flat_map(|part| chunk(part).encode_length_delimited_to_vec()).collect()
}

/// The messages that bytes begin with. What they keep, and how long they wait, is said by the test.
fn chunks(mut bytes: &[u8]) -> Vec<v1::PutChunk> {
    let mut chunks = Vec::new();
    while let Ok(mut chunk) = v1::PutChunk::decode_length_delimited(&mut bytes) {
        chunk.deadline_ms = PATIENCE_MS;
        if let Some(Part::Item(item)) = &mut chunk.part {
            item.keep = Some(v1::Keep { name: NAME.into(), ..v1::Keep::default() });
        }
        chunks.push(chunk);
        if bytes.is_empty() {
            break;
        }
    }
    chunks
}

#[test]
fn mutated_streams_of_puts_are_answered_and_leave_nothing_behind() {
    let sidecar = Sidecar::with(SidecarOptions::default().admin());
    let whole = || Part::Item(item(bytes_of(9), &[1; 9]));
    let head = |data: &[u8]| Part::Item(item(bytes_of(300_000), data));
    let rest = || Part::Data(vec![2; 150_000].into());
    let corpus = vec![
        joined([whole()]),
        joined([head(&[]), Part::Data(vec![2; 300_000].into())]),
        joined([head(&[1; 1000]), Part::Data(vec![2; 149_000].into()), rest(), whole()]),
    ];
    // The memory is the sidecar's, and bounded there by its arena.
    let target = Target {
        name: "PutChunk",
        corpus,
        times: 0,
        spare: 0,
        meter: |run| {
            run();
            0
        },
    };
    let (grpc, client, names) = (Grpc::of(&sidecar), sidecar.client(), sidecar.client());
    fuzz(target, move |bytes| {
        let answer = grpc.put(chunks(bytes));
        let is_stored =
            |result: &v1::StoredResult| matches!(result.outcome, Some(v1::stored_result::Outcome::Stored(_)));
        let stored = match &answer {
            Ok(response) => response.results.iter().any(is_stored),
            Err(status) => {
                assert!(!matches!(status.code(), Code::Internal | Code::Unknown), "{status:?}");
                false
            }
        };
        if stored {
            names.unname(&[NAME]).unwrap();
        }
        stored
    });
    assert_eq!(sidecar.metric("tensorlane_sidecar_panics_total", &[]), 0.0);
    until("what the streams had is free", || client.status().unwrap().tensors == 0);
    drop(client);
    sidecar.assert_all_free();
}
