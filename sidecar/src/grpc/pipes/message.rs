//! A message that comes in over a stream: its parts, which of them become tensors, and what is missing. Pure.

use bytes::Bytes;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{DType, Descriptor, Layout, Shape, wire};

use super::super::coming::{ComingBytes, check_first, described};

/// Most bytes of payloads that travel inside a message, all together; larger ones become tensors.
const INLINE_MAX: u64 = 16 << 10;
/// Most bytes of a message's metadata, and of one part's.
const METADATA_MAX: usize = 64 << 10;
const PART_METADATA_MAX: usize = 4 << 10;
/// Most payloads, and most tensors, of one message.
const PARTS_MAX: usize = 1_024;

/// Message that has begun to come.
pub(super) struct Draft {
    pub(super) metadata: Bytes,
    pub(super) parts: Vec<DraftPart>,
    pub(super) coming: ComingBytes,
    /// Set where it is understood, and larger than a message may be.
    pub(super) refused: Option<Failure>,
}

/// Part of a message.
pub(super) struct DraftPart {
    /// Number of its bytes.
    pub(super) bytes: u64,
    /// Meaning of them; none for a payload.
    pub(super) descriptor: Option<Descriptor>,
    /// Words about it.
    pub(super) metadata: Bytes,
    /// The tensor that it becomes; none where it travels inside the message.
    pub(super) stored: Option<Descriptor>,
}

// === impl Draft ===

impl Draft {
    /// A message of these parts, and the first bytes of each.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for parts that are not to be understood, TOO_LARGE for too many of them, or too many bytes in one message of
    /// the stream.
    pub(super) fn of(message: v1::PipeStreamMessage) -> Result<(Self, Vec<Bytes>), Failure> {
        let v1::PipeStreamMessage { metadata, parts, .. } = message;
        // Nothing more is made of so many. What decoding has made of them is counted nowhere: see `limits::MESSAGE_BYTES_MAX`.
        if parts.len() > 2 * PARTS_MAX {
            return Err(too_large(parts.len(), 2 * PARTS_MAX, "parts a message has"));
        }
        let (mut coming, mut first) = (ComingBytes::default(), Vec::with_capacity(parts.len()));
        let mut drafted = Vec::with_capacity(parts.len());
        let mut room = INLINE_MAX;
        for (index, part) in parts.into_iter().enumerate() {
            let v1::PipeStreamPart { descriptor, bytes, data, metadata } = part;
            let descriptor = descriptor.map(wire::descriptor).transpose().map_err(|mut failure| {
                failure.message = format!("the descriptor of part {index}: {}", failure.message);
                failure
            })?;
            let bytes = match &descriptor {
                Some(descriptor) => described(index, bytes, descriptor.layout.bytes())?,
                None => bytes,
            };
            let stored = match &descriptor {
                Some(descriptor) => Some(descriptor.clone()),
                None if bytes <= room => {
                    room -= bytes;
                    None
                }
                None => Some(plain(bytes)?),
            };
            coming.push(bytes)?;
            first.push(data);
            drafted.push(DraftPart { bytes, descriptor, metadata, stored });
        }
        check_first(&first)?;
        let refused = above_limits(&metadata, &drafted);
        Ok((Self { metadata, parts: drafted, coming, refused }, first))
    }
}

fn above_limits(metadata: &Bytes, parts: &[DraftPart]) -> Option<Failure> {
    if metadata.len() > METADATA_MAX {
        return Some(too_large(metadata.len(), METADATA_MAX, "bytes of metadata a message has"));
    }
    let tensors = parts.iter().filter(|part| part.descriptor.is_some()).count();
    let most = tensors.max(parts.len() - tensors);
    if most > PARTS_MAX {
        return Some(too_large(most, PARTS_MAX, "payloads or tensors a message has"));
    }
    let longest = parts.iter().map(|part| part.metadata.len()).max().unwrap_or(0);
    (longest > PART_METADATA_MAX)
        .then(|| too_large(longest, PART_METADATA_MAX, "bytes of metadata a part has"))
}

/// Descriptor of plain bytes.
fn plain(bytes: u64) -> Result<Descriptor, Failure> {
    let layout = Shape::new(&[bytes]).and_then(|shape| Layout::contiguous(DType::U8, shape));
    Ok(Descriptor::host(layout?))
}

fn too_large(given: usize, most: usize, what: &str) -> Failure {
    let message = format!("{given} are more than the {most} {what} at most; split the message");
    Failure::new(Reason::TooLarge, message).with("given", given).with("most", most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(bytes: u64) -> v1::PipeStreamPart {
        v1::PipeStreamPart { bytes, ..Default::default() }
    }

    fn tensor(shape: &[u64]) -> v1::PipeStreamPart {
        let layout = Layout::contiguous(DType::F32, Shape::new(shape).unwrap()).unwrap();
        v1::PipeStreamPart { descriptor: Some((&Descriptor::host(layout)).into()), ..Default::default() }
    }

    fn draft(parts: Vec<v1::PipeStreamPart>) -> Draft {
        Draft::of(v1::PipeStreamMessage { parts, ..Default::default() }).unwrap().0
    }

    #[test]
    fn payloads_travel_inside_while_there_is_room_and_are_tensors_then() {
        let draft = draft(vec![payload(10), payload(INLINE_MAX - 10), tensor(&[2]), payload(0), payload(1)]);
        let stored: Vec<bool> = draft.parts.iter().map(|part| part.stored.is_some()).collect();
        assert_eq!(stored, [false, false, true, false, true]);
        assert_eq!(draft.parts[4].stored.as_ref().unwrap().layout.bytes(), 1);
        assert_eq!((draft.parts[2].bytes, draft.refused.is_none()), (8, true));
    }

    #[test]
    fn what_is_larger_than_a_message_may_be_is_refused_and_its_bytes_are_known() {
        let metadata = Bytes::from(vec![0; METADATA_MAX + 1]);
        let message = v1::PipeStreamMessage { metadata, parts: vec![payload(7)], deadline_ms: 0 };
        let (mut large, _) = Draft::of(message).unwrap();
        assert_eq!(large.refused.map(|failure| failure.reason), Some(Reason::TooLarge));
        large.coming.take(0, 7).unwrap();
        assert!(large.coming.is_whole());
        let about = v1::PipeStreamPart { metadata: vec![0; PART_METADATA_MAX + 1].into(), ..tensor(&[1]) };
        for parts in [vec![about], vec![payload(0); PARTS_MAX + 1], vec![tensor(&[0]); PARTS_MAX + 1]] {
            let message = v1::PipeStreamMessage { parts, ..Default::default() };
            assert!(Draft::of(message).unwrap().0.refused.is_some());
        }
        let both = [vec![payload(0); PARTS_MAX], vec![tensor(&[0]); PARTS_MAX]].concat();
        assert!(draft(both).refused.is_none());
    }

    #[test]
    fn what_cannot_be_understood_fails() {
        let lies = v1::PipeStreamPart { bytes: 9, ..tensor(&[2]) };
        let unknown = v1::PipeStreamPart { descriptor: Some(v1::Descriptor::default()), ..payload(0) };
        let many = vec![payload(0); 2 * PARTS_MAX + 1];
        for parts in [vec![lies], vec![unknown], vec![payload(u64::MAX), payload(1)], many] {
            assert!(Draft::of(v1::PipeStreamMessage { parts, ..Default::default() }).is_err());
        }
    }
}
