//! A message that comes in over a stream: its parts, where their bytes go, and what is missing. Pure.

use bytes::Bytes;
use tensorlane_proto::channel::{PARTS_MAX, Parts};
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::{Descriptor, wire};

use super::super::coming::{ComingBytes, Landing, check_first, described};

/// Message that has begun to come.
pub(super) struct Incoming {
    /// Descriptors; none for plain bytes, which are one part.
    pub(super) descriptors: Option<Vec<Descriptor>>,
    coming: ComingBytes,
}

// === impl Incoming ===

impl Incoming {
    /// A message of these parts, and the first bytes of each.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for parts that are not to be understood, TOO_LARGE for too many of them, or too many bytes in one message of
    /// the stream.
    pub(super) fn of(parts: Vec<v1::ChannelPart>) -> Result<(Self, Vec<Bytes>), Failure> {
        // Nothing more is made of so many. What decoding has made of them is counted nowhere: see `limits::MESSAGE_BYTES_MAX`.
        if parts.len() > PARTS_MAX {
            let message = format!("a message of {} parts; at most {PARTS_MAX}: send several", parts.len());
            return Err(Failure::new(Reason::TooLarge, message).with("most", PARTS_MAX));
        }
        let plain = match parts.as_slice() {
            [] => true,
            [only] => only.descriptor.is_none(),
            [_, ..] => false,
        };
        let mut incoming = Self { descriptors: (!plain).then(Vec::new), coming: ComingBytes::default() };
        let mut first = Vec::with_capacity(parts.len());
        for (index, part) in parts.into_iter().enumerate() {
            let v1::ChannelPart { descriptor, mut bytes, data } = part;
            if let Some(descriptors) = &mut incoming.descriptors {
                let descriptor = descriptor.ok_or_else(|| {
                    let message = format!(
                        "part {index} has no descriptor: plain bytes are the only part of their message"
                    );
                    Failure::new(Reason::InvalidArgument, message)
                })?;
                let descriptor = wire::descriptor(descriptor).map_err(|mut failure| {
                    failure.message = format!("the descriptor of part {index}: {}", failure.message);
                    failure
                })?;
                bytes = described(index, bytes, descriptor.layout.bytes())?;
                descriptors.push(descriptor);
            }
            incoming.coming.push(bytes)?;
            first.push(data);
        }
        check_first(&first)?;
        Ok((incoming, first))
    }

    /// Bytes of a plain message.
    pub(super) fn plain_bytes(&self) -> u64 {
        self.coming.first()
    }

    /// Returns whether all bytes have come.
    pub(super) fn is_whole(&self) -> bool {
        self.coming.is_whole()
    }

    /// Takes the next bytes of a part: where they go.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a part that there is not, or more bytes than it has; TOO_LARGE for a chunk of too many.
    pub(super) fn take(&mut self, part: u32, bytes: usize) -> Result<Landing, Failure> {
        self.coming.take(part, bytes)
    }

    /// Parts with their places in a slot.
    ///
    /// # Errors
    /// TOO_LARGE for more parts than a message has.
    pub(super) fn placed(&self) -> Result<Option<Parts>, Failure> {
        self.descriptors.as_ref().map(|all| Parts::of(all.iter().cloned())).transpose()
    }
}

#[cfg(test)]
mod tests {
    use tensorlane_proto::frame::CHUNK_BYTES_MAX;
    use tensorlane_proto::{DType, Layout, Shape};

    use super::*;

    fn tensor(shape: &[u64]) -> v1::ChannelPart {
        let layout = Layout::contiguous(DType::F32, Shape::new(shape).unwrap()).unwrap();
        let descriptor = Some((&Descriptor::host(layout)).into());
        v1::ChannelPart { descriptor, ..Default::default() }
    }

    fn plain(bytes: u64, data: &'static [u8]) -> v1::ChannelPart {
        v1::ChannelPart { descriptor: None, bytes, data: Bytes::from_static(data) }
    }

    #[test]
    fn bytes_of_parts_land_one_behind_the_other_in_any_order_of_parts() {
        let (mut message, first) = Incoming::of(vec![tensor(&[2]), tensor(&[0]), tensor(&[1])]).unwrap();
        assert!(first.iter().all(Bytes::is_empty) && !message.is_whole());
        assert_eq!(message.take(2, 4), Ok(Landing { part: 2, offset: 0 }));
        assert_eq!(message.take(0, 3), Ok(Landing { part: 0, offset: 0 }));
        assert_eq!(message.take(0, 5), Ok(Landing { part: 0, offset: 3 }));
        assert!(message.is_whole());
        assert_eq!(message.take(1, 0), Ok(Landing { part: 1, offset: 0 }));
    }

    #[test]
    fn plain_bytes_are_the_only_part_and_no_part_is_none() {
        let (message, first) = Incoming::of(vec![plain(7, b"abc")]).unwrap();
        assert_eq!((message.plain_bytes(), first[0].len(), message.descriptors.is_none()), (7, 3, true));
        let (message, _) = Incoming::of(Vec::new()).unwrap();
        assert!(message.is_whole() && message.descriptors.is_none());
        let refused = Incoming::of(vec![tensor(&[1]), plain(1, b"")]).map(drop).unwrap_err();
        assert_eq!(refused.reason, Reason::InvalidArgument);
    }

    #[test]
    fn bytes_that_no_part_has_room_for_are_refused_with_what_is_missing() {
        let (mut message, _) = Incoming::of(vec![plain(4, b"")]).unwrap();
        message.take(0, 1).unwrap();
        let refused = message.take(0, 4).unwrap_err();
        assert_eq!((refused.reason, refused.detail("missing_bytes")), (Reason::InvalidArgument, Some("3")));
        assert_eq!(message.take(1, 0).unwrap_err().reason, Reason::InvalidArgument);
        assert_eq!(message.take(0, CHUNK_BYTES_MAX + 1).unwrap_err().reason, Reason::TooLarge);
    }

    #[test]
    fn a_length_that_contradicts_its_descriptor_is_refused() {
        let lies = v1::ChannelPart { bytes: 9, ..tensor(&[2]) };
        assert_eq!(Incoming::of(vec![lies]).map(drop).unwrap_err().reason, Reason::LayoutMismatch);
        let unknown = v1::ChannelPart { descriptor: Some(v1::Descriptor::default()), ..Default::default() };
        assert!(Incoming::of(vec![unknown]).is_err());
        let huge = vec![v1::ChannelPart { descriptor: None, bytes: u64::MAX, ..Default::default() }];
        assert!(Incoming::of(huge).is_ok(), "it is refused where the slot is known");
    }
}
