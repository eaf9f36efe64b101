//! Parts of a message of a channel: where each lies in a slot, and what says so to the reader. Pure.
//!
//! A message is either plain bytes, whose layout is empty, or parts with descriptors, each at a multiple of [`ALIGN`] bytes.

use prost::Message as _;

use crate::failure::{Failure, Reason};
use crate::generated as v1;
use crate::{Descriptor, decoded, wire};

/// Alignment of a part in its slot, in bytes: a cache line, and what vector units ask for.
pub const ALIGN: u64 = 64;
/// Most parts of a message.
pub const PARTS_MAX: usize = 1_024;
/// Readers of one channel at most. Each costs a cursor of 128 bytes, and the writer a look at it for each message.
pub const READERS_MAX: u32 = 1_024;

/// Places of the parts in a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    parts: Vec<PlacedPart>,
    bytes: u64,
}

/// Part of a message, with its place in the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedPart {
    /// Meaning of its bytes.
    pub descriptor: Descriptor,
    /// Offset in the slot, in bytes.
    pub offset: u64,
}

impl Parts {
    /// Places parts one after the other.
    ///
    /// # Errors
    /// TOO_LARGE for more parts than a message has, or more bytes than can be counted.
    pub fn of(descriptors: impl IntoIterator<Item = Descriptor>) -> Result<Self, Failure> {
        let mut placed = Self::default();
        for descriptor in descriptors {
            if placed.parts.len() == PARTS_MAX {
                let message = format!("a message has at most {PARTS_MAX} parts; send several");
                return Err(Failure::new(Reason::TooLarge, message).with("most", PARTS_MAX));
            }
            let offset = placed.bytes.next_multiple_of(ALIGN);
            let end = offset.checked_add(descriptor.layout.bytes());
            placed.bytes = end.ok_or_else(|| {
                Failure::new(Reason::TooLarge, "the parts of a message have more than 2^64 bytes")
            })?;
            placed.parts.push(PlacedPart { descriptor, offset });
        }
        Ok(placed)
    }

    /// The parts, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[PlacedPart] {
        &self.parts
    }

    /// A part by its index.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where there are fewer.
    pub fn get(&self, index: usize) -> Result<&PlacedPart, Failure> {
        let fewer = || format!("part {index} of a message of {} parts", self.parts.len());
        self.parts.get(index).ok_or_else(|| Failure::new(Reason::InvalidArgument, fewer()))
    }

    /// Bytes from the first part's begin to the last one's end.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether these are parts with just these descriptors.
    #[must_use]
    pub fn are<'a>(&self, descriptors: impl ExactSizeIterator<Item = &'a Descriptor>) -> bool {
        self.parts.len() == descriptors.len()
            && self.parts.iter().zip(descriptors).all(|(part, descriptor)| part.descriptor == *descriptor)
    }

    /// The layout as the ring carries it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let parts = self.parts.iter().map(|part| v1::Descriptor::from(&part.descriptor)).collect();
        v1::ChannelLayout { parts }.encode_to_vec()
    }

    /// Reads a layout of the ring, which anybody may have written, for a message of `bytes`.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn decode(layout: &[u8]) -> Result<Self, String> {
        let layout: v1::ChannelLayout = decoded::decode(layout).map_err(|error| error.to_string())?;
        let descriptors = layout.parts.into_iter().map(wire::descriptor);
        let descriptors: Vec<Descriptor> =
            descriptors.collect::<Result<_, _>>().map_err(|failure| failure.message)?;
        Self::of(descriptors).map_err(|failure| failure.message)
    }
}

/// Checks that as many readers may come as the first message of a channel waits for. `readers_max` is 0 for the most of all.
///
/// # Errors
/// INVALID_ARGUMENT with both numbers.
pub fn check_expected(expected: u32, readers_max: u32) -> Result<(), Failure> {
    let most = if readers_max == 0 { READERS_MAX } else { readers_max };
    if expected <= most {
        return Ok(());
    }
    let message = format!(
        "{expected} readers are expected of a channel that has {most} at most, so its first message would wait for ever; expect fewer \
         (expect_readers), or let it have more (readers_max, at most {READERS_MAX})"
    );
    Err(Failure::new(Reason::InvalidArgument, message).with("expect_readers", expected).with("most", most))
}

/// Checks that the tensors of a message have the types and shapes of those that are fixed. No parts stand for plain bytes.
///
/// # Errors
/// LAYOUT_MISMATCH with both.
pub fn check_layout(fixed: &Parts, found: &Parts) -> Result<(), Failure> {
    let is_same = |(one, other): (&PlacedPart, &PlacedPart)| one.descriptor.layout == other.descriptor.layout;
    if fixed.parts.len() == found.parts.len() && fixed.parts.iter().zip(&found.parts).all(is_same) {
        return Ok(());
    }
    let told = |part: &PlacedPart| part.descriptor.layout.to_string();
    let [expected, found] = [fixed, found].map(|parts| match parts.as_slice() {
        [] => "plain bytes".to_owned(),
        parts => parts.iter().map(told).collect::<Vec<_>>().join(", "),
    });
    let message = format!(
        "the message has {found}, and the layout of the channel was fixed to {expected} by its first message; write tensors of these \
         types and shapes, or make the channel without a fixed layout"
    );
    Err(Failure::new(Reason::LayoutMismatch, message).with("expected", expected).with("found", found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Layout, Shape};

    fn tensor(dtype: DType, shape: &[u64]) -> Descriptor {
        Descriptor::host(Layout::contiguous(dtype, Shape::new(shape).unwrap()).unwrap())
    }

    #[test]
    fn parts_lie_one_after_the_other_at_lines() {
        let parts = Parts::of([tensor(DType::U8, &[3]), tensor(DType::F32, &[2, 2]), tensor(DType::U8, &[])]);
        let parts = parts.unwrap();
        assert_eq!(parts.as_slice().iter().map(|part| part.offset).collect::<Vec<_>>(), [0, 64, 128]);
        assert_eq!(parts.bytes(), 129);
    }

    #[test]
    fn a_layout_reads_as_it_was_written() {
        let parts = Parts::of([tensor(DType::BF16, &[7, 2]), tensor(DType::U8, &[0])]).unwrap();
        assert_eq!(Parts::decode(&parts.encode()), Ok(parts.clone()));
        assert!(parts.are([tensor(DType::BF16, &[7, 2]), tensor(DType::U8, &[0])].iter()));
        assert!(!parts.are([tensor(DType::BF16, &[7, 2])].iter()));
        assert_eq!(Parts::decode(b"").unwrap(), Parts::default());
    }

    #[test]
    fn a_layout_of_nonsense_is_refused() {
        assert!(Parts::decode(&[0xff; 9]).is_err());
        let negative = v1::Descriptor { dtype: 0, ..Default::default() };
        assert!(Parts::decode(&v1::ChannelLayout { parts: vec![negative] }.encode_to_vec()).is_err());
    }

    #[test]
    fn a_layout_that_is_fixed_is_types_and_shapes_and_neither_words_nor_bytes() {
        let parts = |shape: &[u64]| Parts::of([tensor(DType::F32, shape)]).unwrap();
        let (fixed, plain) = (parts(&[2, 3]), Parts::default());
        assert_eq!((check_layout(&fixed, &parts(&[2, 3])), check_layout(&plain, &plain)), (Ok(()), Ok(())));
        for other in [parts(&[3, 2]), plain.clone()] {
            let refused = check_layout(&fixed, &other).unwrap_err();
            assert_eq!(refused.reason, Reason::LayoutMismatch);
            let told = fixed.as_slice()[0].descriptor.layout.to_string();
            assert_eq!(refused.detail("expected"), Some(&*told), "{refused}");
        }
        let refused = check_layout(&plain, &fixed).unwrap_err();
        assert_eq!(refused.detail("expected"), Some("plain bytes"));
    }

    #[test]
    fn more_readers_than_a_channel_may_have_are_not_expected() {
        for (expected, readers_max) in [(0, 1), (2, 2), (READERS_MAX, 0)] {
            assert_eq!(check_expected(expected, readers_max), Ok(()));
        }
        let refused = check_expected(3, 2).unwrap_err();
        assert_eq!((refused.reason, refused.detail("most")), (Reason::InvalidArgument, Some("2")));
        assert_eq!(refused.detail("expect_readers"), Some("3"), "{refused}");
        assert_eq!(check_expected(READERS_MAX + 1, 0).unwrap_err().detail("most"), Some("1024"));
    }

    #[test]
    fn more_parts_than_a_message_has_are_refused() {
        assert!(Parts::of((0..=PARTS_MAX).map(|_| tensor(DType::U8, &[]))).is_err());
    }
}
