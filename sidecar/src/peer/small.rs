//! The answer to a pull of many small tensors: a frame that is written as it goes over the wire. The bytes of tensors stay where
//! they lie until it is sealed.
//!
//! It has an outcome for each id, in order. As many tensors as fit are in it; the first one that does not, and all after it, say
//! so, and are to be asked for again. What is written is a `PulledMany`.

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tensorlane_memory::Chunk;
use tensorlane_proto::frame::{HEADER_BYTES, Header, PEER_BODY_MAX, PeerKind, REPLY};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Failure, Reason};

use super::gather_frame::GatherFrame;

/// Bytes kept for the failure of each small tensor that does not fit any more. 4,096 times that is 400 KiB of 4 MiB.
const FAILURE_ROOM: usize = 100;
/// Bytes of a tensor in the answer beside its own and its descriptor: four keys, three lengths and a checksum are at most 18.
const AROUND: usize = 18;
/// Bytes of a tensor that are copied into the frame: fewer are copied in less time than they are referred to.
const COPIED_MAX: usize = 512;

/// Fields of the messages that are written here.
mod field {
    pub(super) const TENSORS: u32 = 1;
    pub(super) const DESCRIPTOR: u32 = 1;
    pub(super) const DATA: u32 = 2;
    pub(super) const CRC32C: u32 = 3;
    pub(super) const FAILURE: u32 = 4;
}

/// A small tensor as it goes into an answer.
pub struct SmallTensor<'a> {
    /// Meaning of its bytes, a `v1::Descriptor`.
    pub descriptor: &'a [u8],
    /// Bytes of the tensor, packed.
    pub bytes: SmallBytes<'a>,
    /// CRC-32C of them, where the tensor has one.
    pub crc32c: Option<u32>,
}

/// The bytes of a small tensor.
pub enum SmallBytes<'a> {
    /// Bytes that lie together.
    Lie(Chunk),
    /// Bytes that had to be packed, and are copied.
    Packed(&'a [u8]),
}

/// An answer that is being written.
pub struct SmallAnswer {
    frame: GatherFrame,
    /// Number of bytes of tensors and failures that may come yet.
    room: usize,
    /// Bytes of tensors in it.
    bytes: u64,
}

// === impl SmallAnswer ===

impl SmallAnswer {
    /// The beginning of an answer with so many outcomes.
    pub(super) fn new(items: usize) -> Self {
        // Every one that does not fit still needs room to say so.
        let room = (PEER_BODY_MAX as usize).saturating_sub(items * FAILURE_ROOM);
        let mut frame = GatherFrame::default();
        frame.own().resize(HEADER_BYTES, 0);
        Self { frame, room, bytes: 0 }
    }

    /// Returns whether no more tensors fit: then there is no use in reading them.
    pub fn is_full(&self) -> bool {
        self.room == 0
    }

    /// Makes room for what stands around the bytes of tensors, with so many bytes of descriptors in it.
    pub fn expect(&mut self, tensors: usize, described: usize) {
        self.frame.own().reserve((described + tensors * AROUND).min(self.room));
    }

    /// The next outcome: a tensor, or that it does not fit.
    pub fn tensor(&mut self, tensor: SmallTensor<'_>) {
        let SmallTensor { descriptor, bytes, crc32c } = tensor;
        let data = bytes.len();
        let described = length_delimited(descriptor.len());
        let length = described + if data == 0 { 0 } else { length_delimited(data) } + crc32c.map_or(0, |_| 5);
        if !self.begin(length) {
            return;
        }
        self.key(field::DESCRIPTOR, descriptor.len());
        self.frame.own().extend_from_slice(descriptor);
        if data > 0 {
            self.key(field::DATA, data);
            self.data(bytes);
        }
        if let Some(crc32c) = crc32c {
            encode_key(field::CRC32C, WireType::ThirtyTwoBit, self.frame.own());
            self.frame.own().extend_from_slice(&crc32c.to_le_bytes());
        }
        self.bytes += data as u64;
    }

    /// The next outcome: why the tensor cannot be had.
    pub fn failed(&mut self, failure: &Failure) {
        let failure = v1::Failure::from(&failure.clone().for_peer()).encode_to_vec();
        if self.begin(length_delimited(failure.len())) {
            self.failure(&failure);
        }
    }

    /// The next outcome: that it does not fit.
    pub fn does_not_fit(&mut self) {
        self.room = 0;
        let full = Failure::new(Reason::LimitExceeded, "the answer is full; ask for this one again");
        let failure = v1::Failure::from(&full).encode_to_vec();
        self.key(field::TENSORS, length_delimited(failure.len()));
        self.failure(&failure);
    }

    /// The frame that answers a call, and how many bytes of tensors are in it.
    pub(super) fn into_frame(mut self, call: u64) -> (GatherFrame, u64) {
        // Within the room, and what was kept for failures: always under the limit of a frame.
        let length = (self.frame.len() - HEADER_BYTES) as u32;
        let header = Header { length, kind: PeerKind::PullMany.into(), flags: REPLY, call };
        self.frame.own()[..HEADER_BYTES].copy_from_slice(&header.encode());
        (self.frame, self.bytes)
    }

    /// Begins an outcome of so many bytes, if it fits; else says so.
    fn begin(&mut self, length: usize) -> bool {
        let whole = length_delimited(length);
        if whole > self.room {
            self.does_not_fit();
            return false;
        }
        self.room -= whole;
        self.key(field::TENSORS, length);
        true
    }

    fn failure(&mut self, failure: &[u8]) {
        self.key(field::FAILURE, failure.len());
        self.frame.own().extend_from_slice(failure);
    }

    fn data(&mut self, bytes: SmallBytes<'_>) {
        match bytes {
            SmallBytes::Lie(chunk) if chunk.as_ref().len() > COPIED_MAX => self.frame.piece(chunk),
            SmallBytes::Lie(chunk) => self.frame.own().extend_from_slice(chunk.as_ref()),
            SmallBytes::Packed(bytes) => self.frame.own().extend_from_slice(bytes),
        }
    }

    fn key(&mut self, field: u32, length: usize) {
        encode_key(field, WireType::LengthDelimited, self.frame.own());
        encode_varint(length as u64, self.frame.own());
    }
}

// === impl SmallBytes ===

impl SmallBytes<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Lie(chunk) => chunk.as_ref().len(),
            Self::Packed(bytes) => bytes.len(),
        }
    }
}

/// Bytes of a field with so many bytes, under one of the first 15 numbers.
fn length_delimited(length: usize) -> usize {
    key_len(field::TENSORS) + encoded_len_varint(length as u64) + length
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tensorlane_proto::encoded;

    use super::*;
    use crate::peer::tests::world::{arena, sealed};

    type One = Option<(Vec<u8>, Vec<u8>, Option<u32>)>;

    fn one() -> impl Strategy<Value = One> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..300);
        prop::option::of((bytes(), bytes(), prop::option::of(any::<u32>())))
    }

    proptest! {
        #[test]
        fn an_answer_is_what_the_message_would_be(all in prop::collection::vec(one(), 0..20)) {
            let gone = Failure::new(Reason::NotFound, "it is gone");
            let (mut answer, mut message) = (SmallAnswer::new(all.len()), encoded::PulledMany::default());
            for one in all {
                let Some((descriptor, data, crc32c)) = one else {
                    answer.failed(&gone);
                    let failure = Some(Box::new((&gone).into()));
                    message.tensors.push(encoded::PulledSmall { failure, ..Default::default() });
                    continue;
                };
                answer.tensor(SmallTensor { descriptor: &descriptor, bytes: SmallBytes::Packed(&data), crc32c });
                let (data, descriptor) = (data.into(), Some(descriptor.into()));
                message.tensors.push(encoded::PulledSmall { descriptor, data, crc32c, failure: None });
            }
            let bytes: usize = message.tensors.iter().map(|tensor| tensor.data.len()).sum();
            let expected = tensorlane_proto::frame::encode(PeerKind::PullMany.into(), REPLY, 7, &message);
            let (frame, counted) = answer.into_frame(7);
            prop_assert_eq!((frame.together(), counted), (expected, bytes as u64));
        }
    }

    #[test]
    fn bytes_that_lie_together_are_the_same_as_those_that_are_copied() {
        let arena = arena(1 << 20);
        for length in [0, 1, COPIED_MAX as u64, COPIED_MAX as u64 + 1, 64 << 10] {
            let block = sealed(&arena, length, 3);
            let bytes = block.chunk(0..length).unwrap();
            let written = |bytes: SmallBytes<'_>| {
                let mut answer = SmallAnswer::new(2);
                answer.tensor(SmallTensor { descriptor: b"d", bytes, crc32c: Some(9) });
                answer.failed(&Failure::new(Reason::NotFound, "the next one"));
                let (frame, counted) = answer.into_frame(7);
                (frame.together(), counted)
            };
            let lying = written(SmallBytes::Lie(block.owned_chunk(0..length).unwrap()));
            assert_eq!(lying, written(SmallBytes::Packed(bytes)), "of {length} bytes");
        }
        arena.stop();
    }

    #[test]
    fn a_full_answer_says_so_of_all_that_come_after_and_stays_under_the_limit() {
        const ITEMS: usize = 4096;
        let data = vec![7; 64 << 10];
        let mut answer = SmallAnswer::new(ITEMS);
        for item in 0..ITEMS {
            // After the first that does not fit none may, however small.
            let bytes = SmallBytes::Packed(if item < 100 { &data } else { &[] });
            answer.tensor(SmallTensor { descriptor: b"d", bytes, crc32c: Some(1) });
        }
        assert!(answer.is_full());
        let (frame, bytes) = answer.into_frame(1);
        let frame = frame.together();
        assert!(frame.len() <= HEADER_BYTES + PEER_BODY_MAX as usize);
        let message = encoded::PulledMany::decode(&frame[HEADER_BYTES..]).unwrap();
        let came = message.tensors.iter().take_while(|tensor| tensor.failure.is_none()).count();
        assert_eq!((message.tensors.len(), bytes), (ITEMS, (came * data.len()) as u64));
        assert!((50..64).contains(&came), "{came} of 64 KiB beside room for 4,096 failures");
        assert!(message.tensors[came..].iter().all(|tensor| {
            tensor.failure.as_ref().is_some_and(|failure| failure.reason == "LIMIT_EXCEEDED")
        }));
    }
}
