//! Messages of which parts are encoded already: the same bytes on the wire as their namesakes in [`generated`], in which a
//! descriptor or a way that is the same for a thousand tensors is made, or read, once.
//!
//! A field of a message that is written twice is merged by its namesake and replaced here; nobody of ours writes that.
//!
//! [`generated`]: crate::generated

use bytes::{Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use prost::{Message, Oneof};

use crate::descriptor::{Descriptor, Metadata};
use crate::generated as v1;

/// The number of `metadata` in a [`v1::Descriptor`].
const METADATA: u32 = 6;

/// A [`v1::Descriptor`]: equal descriptors are equal bytes, with metadata in the order of its keys.
pub fn descriptor(descriptor: &Descriptor) -> Bytes {
    with_metadata(&without_metadata(descriptor), &descriptor.metadata)
}

/// A [`v1::Descriptor`] without its metadata: what is apart for each tensor where many share their metadata.
pub fn without_metadata(descriptor: &Descriptor) -> Bytes {
    v1::Descriptor::without_metadata(descriptor).encode_to_vec().into()
}

/// Encodes what [`descriptor`] does, from a descriptor [`without_metadata`] and metadata.
pub fn with_metadata(descriptor: &Bytes, metadata: &Metadata) -> Bytes {
    if metadata.is_empty() {
        return descriptor.clone();
    }
    let entry_bytes = |(key, value)| text_bytes(1, key) + text_bytes(2, value);
    let entries = metadata.iter().map(entry_bytes);
    let bytes: usize =
        entries.map(|bytes| key_len(METADATA) + encoded_len_varint(bytes as u64) + bytes).sum();
    let mut encoded = BytesMut::with_capacity(descriptor.len() + bytes);
    encoded.extend_from_slice(descriptor);
    for (key, value) in metadata.iter() {
        encode_key(METADATA, WireType::LengthDelimited, &mut encoded);
        encode_varint(entry_bytes((key, value)) as u64, &mut encoded);
        put_text(1, key, &mut encoded);
        put_text(2, value, &mut encoded);
    }
    encoded.freeze()
}

/// Bytes of a field of an entry; one that is empty is left out.
fn text_bytes(field: u32, text: &str) -> usize {
    if text.is_empty() { 0 } else { key_len(field) + encoded_len_varint(text.len() as u64) + text.len() }
}

fn put_text(field: u32, text: &str, to: &mut BytesMut) {
    if !text.is_empty() {
        encode_key(field, WireType::LengthDelimited, to);
        encode_varint(text.len() as u64, to);
        to.extend_from_slice(text.as_bytes());
    }
}

/// [`v1::Acquired`].
#[derive(Clone, PartialEq, Message)]
pub struct Acquired {
    /// The lease.
    #[prost(fixed64, tag = "1")]
    pub id: u64,
    /// Location of the block.
    #[prost(message, optional, tag = "2")]
    pub location: Option<v1::Location>,
    /// A [`v1::Descriptor`].
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub descriptor: Option<Bytes>,
    /// True if bytes were copied on this peer to answer.
    #[prost(bool, tag = "4")]
    pub copied: bool,
    /// A [`v1::Moved`].
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub moved: Option<Bytes>,
    /// CRC-32C of the whole tensor, where that is known.
    #[prost(fixed32, optional, tag = "6")]
    pub crc32c: Option<u32>,
}

/// [`v1::AcquireResult`].
#[derive(Clone, PartialEq, Message)]
pub struct AcquireResult {
    /// Leased, or why not.
    #[prost(oneof = "Outcome", tags = "1, 2")]
    pub outcome: Option<Outcome>,
}

/// [`v1::acquire_result::Outcome`].
#[derive(Clone, PartialEq, Oneof)]
pub enum Outcome {
    /// Leased tensor.
    #[prost(message, tag = "1")]
    Acquired(Acquired),
    /// Failure to lease it.
    #[prost(message, tag = "2")]
    Failure(v1::Failure),
}

/// [`v1::AcquireResponse`], [`v1::RedeemResponse`], which is the same, and [`v1::SetReadResponse`].
#[derive(Clone, PartialEq, Message)]
pub struct AcquireResponse {
    /// Results, one for each item.
    #[prost(message, repeated, tag = "1")]
    pub results: Vec<AcquireResult>,
    /// Version of the set that was read; 0 in an answer that has none.
    #[prost(uint64, tag = "2")]
    pub version: u64,
}

/// [`v1::PulledSmall`].
#[derive(Clone, PartialEq, Message)]
pub struct PulledSmall {
    /// A [`v1::Descriptor`].
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub descriptor: Option<Bytes>,
    /// The bytes of the tensor.
    #[prost(bytes = "bytes", tag = "2")]
    pub data: Bytes,
    /// CRC-32C of them where the tensor has one.
    #[prost(fixed32, optional, tag = "3")]
    pub crc32c: Option<u32>,
    /// Reason for which it could not be had.
    #[prost(message, optional, boxed, tag = "4")]
    pub failure: Option<Box<v1::Failure>>,
}

/// [`v1::PulledMany`].
#[derive(Clone, PartialEq, Message)]
pub struct PulledMany {
    /// Tensors, one for each id.
    #[prost(message, repeated, tag = "1")]
    pub tensors: Vec<PulledSmall>,
}

/// Reads parts of one kind of which many are alike: one with the same bytes as the one before is the same.
#[derive(Debug)]
pub struct Alike<T> {
    before: Option<(Bytes, T)>,
}

impl<T> Default for Alike<T> {
    fn default() -> Self {
        Self { before: None }
    }
}

impl<T: Clone> Alike<T> {
    /// Reads with `read` what stands in `bytes`, unless it is what stood in those before.
    ///
    /// # Errors
    /// Those of `read`, after which what stood before is known still.
    pub fn read<E>(&mut self, bytes: Bytes, read: impl FnOnce(&Bytes) -> Result<T, E>) -> Result<T, E> {
        if let Some((known, value)) = &self.before
            && *known == bytes
        {
            return Ok(value.clone());
        }
        let value = read(&bytes)?;
        self.before = Some((bytes, value.clone()));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::device::Device;
    use crate::dtype::DType;
    use crate::layout::{Layout, Shape};
    use crate::wire;

    fn message(dtype: u32, shape: Vec<u64>) -> v1::Descriptor {
        let metadata = HashMap::from([("k".to_owned(), dtype.to_string())]);
        v1::Descriptor { dtype, shape, byte_length: 7, metadata, ..v1::Descriptor::default() }
    }

    fn acquired() -> impl Strategy<Value = v1::Acquired> {
        let shape = proptest::option::of((any::<u32>(), prop::collection::vec(any::<u64>(), 0..4)));
        let place = proptest::option::of((any::<u32>(), any::<u64>(), any::<u64>()));
        let moved = proptest::option::of((0..9i32, any::<u64>()));
        let crc32c = proptest::option::of(any::<u32>());
        (any::<u64>(), place, shape, any::<bool>(), moved, crc32c).prop_map(
            |(id, place, shape, copied, moved, crc32c)| v1::Acquired {
                id,
                location: place.map(|(segment, offset, bytes)| v1::Location { segment, offset, bytes }),
                descriptor: shape.map(|(dtype, shape)| message(dtype, shape)),
                copied,
                moved: moved.map(|(transport, bytes)| v1::Moved { transport, bytes, ..v1::Moved::default() }),
                crc32c,
            },
        )
    }

    fn failure() -> v1::Failure {
        v1::Failure { reason: "NOT_FOUND".into(), message: "gone".into(), ..v1::Failure::default() }
    }

    proptest! {
        #[test]
        fn an_answer_is_the_same_bytes_either_way(all in prop::collection::vec(acquired(), 0..4)) {
            use v1::acquire_result::Outcome as Plain;
            let failed = v1::AcquireResult { outcome: Some(Plain::Failure(failure())) };
            let result = |one: v1::Acquired| v1::AcquireResult { outcome: Some(Plain::Acquired(one)) };
            let plain =
                v1::AcquireResponse { results: all.into_iter().map(result).chain([failed]).collect() };
            let read = AcquireResponse::decode(&plain.encode_to_vec()[..]).unwrap();
            prop_assert_eq!(read.encode_to_vec(), plain.encode_to_vec());
            for (read, plain) in read.results.iter().zip(&plain.results) {
                let (Some(Outcome::Acquired(read)), Some(Plain::Acquired(plain))) = (&read.outcome, &plain.outcome)
                else {
                    continue;
                };
                let descriptor = read.descriptor.clone().map(|bytes| v1::Descriptor::decode(bytes).unwrap());
                let moved = read.moved.clone().map(|bytes| v1::Moved::decode(bytes).unwrap());
                prop_assert_eq!((&descriptor, &moved), (&plain.descriptor, &plain.moved));
            }
        }

        #[test]
        fn small_tensors_are_the_same_bytes_either_way(
            all in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..9)), 0..4),
        ) {
            let small = |(dtype, data): (u32, Vec<u8>)| v1::PulledSmall {
                descriptor: Some(message(dtype, vec![3])),
                data: data.into(),
                crc32c: Some(dtype),
                failure: None,
            };
            let failed = v1::PulledSmall { failure: Some(failure()), ..v1::PulledSmall::default() };
            let plain = v1::PulledMany { tensors: all.into_iter().map(small).chain([failed]).collect() };
            let read = PulledMany::decode(&plain.encode_to_vec()[..]).unwrap();
            prop_assert_eq!(read.encode_to_vec(), plain.encode_to_vec());
        }
    }

    #[test]
    fn equal_descriptors_are_equal_bytes_whatever_metadata_they_have() {
        let layout = Layout::contiguous(DType::F32, Shape::new(&[2, 3]).unwrap()).unwrap();
        let entries = || (0..20).map(|key| (format!("key {key}"), format!("value {key}")));
        let device = Device::Cuda { index: 1, uuid: Some([7; 16]) };
        let one = Descriptor { layout, device, metadata: Metadata::new(entries()).unwrap() };
        let other = Descriptor { metadata: Metadata::new(entries().rev()).unwrap(), ..one.clone() };
        assert_eq!(descriptor(&one), descriptor(&other));
        let read = v1::Descriptor::decode(descriptor(&one)).unwrap();
        assert_eq!(read, v1::Descriptor::from(&one));
        assert_eq!(wire::descriptor(read).unwrap(), one);
    }

    #[test]
    fn what_is_alike_is_read_once() {
        let (mut alike, mut times) = (Alike::default(), 0);
        let mut read = |text: &'static str| {
            alike.read(Bytes::from_static(text.as_bytes()), |bytes| {
                times += 1;
                if bytes.is_empty() { Err("nothing") } else { Ok(bytes.len()) }
            })
        };
        let lengths = [read("ab"), read("ab"), read(""), read("ab"), read("c"), read("ab")];
        assert_eq!(lengths, [Ok(2), Ok(2), Err("nothing"), Ok(2), Ok(1), Ok(2)]);
        assert_eq!(times, 4);
    }
}
