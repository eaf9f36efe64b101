//! Rows of mutable sets over gRPC, as a program in another language reads and writes them.

use bytes::Bytes;
use tensorlane_proto::generated as v1;
use tensorlane_proto::generated::set_commit_chunk::Part as CommitPart;
use tensorlane_proto::generated::set_read_chunk::Part as ReadPart;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Response, Status};

use crate::streams::Grpc;

/// Bytes of a chunk: they are cut in the midst of rows.
const CHUNK_BYTES: usize = 100_003;

/// Rows that were read.
#[derive(Debug)]
pub struct StreamRows {
    /// The head.
    pub head: v1::SetReadHead,
    /// Bytes of each leaf, in the order of the head.
    pub leaves: Vec<Vec<u8>>,
}

/// A commit whose stream has not ended. Dropped, its call is given up.
pub struct HalfCommit<'a> {
    grpc: &'a Grpc,
    chunks: Option<mpsc::UnboundedSender<v1::SetCommitChunk>>,
    call: JoinHandle<Result<Response<v1::SetCommitResponse>, Status>>,
}

// === impl Grpc ===

impl Grpc {
    /// Makes a mutable set.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn set_create(&self, spec: v1::SetSpec) -> Result<v1::SetInfo, Status> {
        let mut client = self.client();
        let created = self.wait(client.set_create(v1::SetCreateRequest { spec: Some(spec) }))?;
        Ok(created.into_inner().set.unwrap())
    }

    /// A mutable set as it is now; waits for one that is not there.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn set_open(&self, set: &str, wait_ms: u64) -> Result<v1::SetInfo, Status> {
        let mut client = self.client();
        let request = v1::SetOpenRequest { set: set.to_owned(), wait_ms, ..v1::SetOpenRequest::default() };
        Ok(self.wait(client.set_open(request))?.into_inner().set.unwrap())
    }

    /// Reads rows to the end of their stream.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn set_read(&self, request: v1::SetReadRequest) -> Result<StreamRows, Status> {
        let mut client = self.client();
        self.wait(async move {
            let mut answer = client.set_read(request).await?.into_inner();
            let Some(ReadPart::Head(head)) = answer.message().await?.and_then(|first| first.part) else {
                panic!("the head comes first")
            };
            let (mut leaves, mut last) = (vec![Vec::new(); head.leaves.len()], 0);
            while let Some(chunk) = answer.message().await? {
                let Some(ReadPart::Bytes(v1::SetBytes { leaf, data })) = chunk.part else {
                    panic!("bytes follow the head")
                };
                assert!(leaf >= last && (1..=1 << 20).contains(&data.len()), "{leaf}: {}", data.len());
                leaves[leaf as usize].extend_from_slice(&data);
                last = leaf;
            }
            Ok(StreamRows { head, leaves })
        })
    }

    /// Sends all messages of a commit.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn set_commit(&self, chunks: Vec<v1::SetCommitChunk>) -> Result<v1::SetCommitResponse, Status> {
        let mut client = self.client();
        Ok(self.wait(client.set_commit(tokio_stream::iter(chunks)))?.into_inner())
    }

    /// Sends some messages of a commit, whose stream does not end.
    pub fn half_commit(&self, first: Vec<v1::SetCommitChunk>) -> HalfCommit<'_> {
        let (chunks, stream) = mpsc::unbounded_channel();
        first.into_iter().for_each(|chunk| chunks.send(chunk).unwrap());
        let mut client = self.client();
        let call = self.spawn(async move { client.set_commit(UnboundedReceiverStream::new(stream)).await });
        HalfCommit { grpc: self, chunks: Some(chunks), call }
    }
}

// === impl HalfCommit ===

impl HalfCommit<'_> {
    /// Ends the stream well, and waits for the answer.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn finish(mut self) -> Result<v1::SetCommitResponse, Status> {
        self.chunks = None;
        Ok(self.grpc.wait(&mut self.call).unwrap()?.into_inner())
    }
}

impl Drop for HalfCommit<'_> {
    fn drop(&mut self) {
        self.call.abort();
    }
}

/// A leaf of a layout.
#[must_use]
pub fn leaf(key: &str, dtype: tensorlane_proto::DType, row_shape: &[u64]) -> v1::SetLeaf {
    v1::SetLeaf { key: key.to_owned(), dtype: dtype.code().into(), row_shape: row_shape.to_vec() }
}

/// A head without rows: all of them.
#[must_use]
pub fn head(set: &str, keys: &[&str]) -> v1::SetCommitHead {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    v1::SetCommitHead { set: set.to_owned(), keys, ..v1::SetCommitHead::default() }
}

/// Messages of a whole commit: its head, and the bytes of each leaf in chunks, which take turns.
#[must_use]
pub fn commit(head: v1::SetCommitHead, leaves: &[&[u8]]) -> Vec<v1::SetCommitChunk> {
    let mut pieces: Vec<(usize, u32, &[u8])> = (0..)
        .zip(leaves)
        .flat_map(|(leaf, data)| {
            data.chunks(CHUNK_BYTES).enumerate().map(move |(at, piece)| (at, leaf, piece))
        })
        .collect();
    pieces.sort_by_key(|(at, leaf, _)| (*at, *leaf));
    let chunks = pieces.into_iter().map(|(_, leaf, piece)| bytes(leaf, piece));
    std::iter::once(first(head)).chain(chunks).collect()
}

/// The first message of a commit.
#[must_use]
pub fn first(head: v1::SetCommitHead) -> v1::SetCommitChunk {
    v1::SetCommitChunk { part: Some(CommitPart::Head(head)) }
}

/// Bytes of a leaf of a commit.
#[must_use]
pub fn bytes(leaf: u32, data: &[u8]) -> v1::SetCommitChunk {
    let bytes = v1::SetBytes { leaf, data: Bytes::copy_from_slice(data) };
    v1::SetCommitChunk { part: Some(CommitPart::Bytes(bytes)) }
}

/// Rows of a range.
#[must_use]
pub fn range(start: u64, stop: u64, step: u64) -> Option<v1::Selection> {
    let range = v1::Range { start: Some(start), stop: Some(stop), step: Some(step) };
    let ranges = v1::Ranges { dimensions: vec![range] };
    Some(v1::Selection { kind: Some(v1::selection::Kind::Ranges(ranges)) })
}

/// Rows of a list.
#[must_use]
pub fn list(rows: &[u64]) -> Option<v1::Selection> {
    let rows = v1::Rows { indices: rows.to_vec() };
    Some(v1::Selection { kind: Some(v1::selection::Kind::Rows(rows)) })
}
