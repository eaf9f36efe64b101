//! Between the vocabulary and the messages of the wire. The only place where a message becomes a proven value.
//!
//! What comes from outside is proven here, with a typed [`Failure`] that names the value that was wrong; what goes out
//! cannot fail. Knows no socket and no verb.

use crate::descriptor::{Descriptor, Metadata};
use crate::device::Device;
use crate::dtype::DType;
use crate::failure::{Code, Failure, Reason};
use crate::generated as v1;
use crate::identity::{Incarnation, PeerName};
use crate::layout::{Layout, Shape, Strides};
use crate::ledger::{RetryId, TensorName};
use crate::negotiate::{Offer, Require, Transport, TransportOffer, VersionRange};
use crate::selection::{Range, Selection};

/// Proves a descriptor: element type, shape, strides and byte length must agree.
pub fn descriptor(message: v1::Descriptor) -> Result<Descriptor, Failure> {
    let dtype = u16::try_from(message.dtype).ok().and_then(DType::from_code).ok_or_else(|| {
        Failure::new(
            Reason::DTypeUnknown,
            format!("{} is not the number of an element type; docs/protocol.md lists them", message.dtype),
        )
        .with("dtype", message.dtype)
    })?;
    let shape = Shape::new(&message.shape)?;
    let strides = (!message.strides.is_empty()).then(|| Strides::new(&message.strides));
    let bytes = (message.byte_length != 0).then_some(message.byte_length);
    let layout = Layout::new(dtype, shape, strides, bytes)?;
    let device = message.device.as_ref().map_or(Ok(Device::Host), device)?;
    let metadata = Metadata::new(message.metadata)?;
    Ok(Descriptor { layout, device, metadata })
}

/// Offer of a peer; transports that this version does not know are passed over.
pub fn offer(peer: PeerName, incarnation: Incarnation, message: &v1::Offer) -> Offer {
    let versions = message.versions.iter().filter_map(|v| u16::try_from(*v).ok());
    let (min, max) = (versions.clone().min().unwrap_or(0), versions.max().unwrap_or(0));
    let read = |t: &v1::TransportOffer| {
        let transport = transport(t.transport)?;
        Some(t.addresses.iter().fold(TransportOffer::new(transport), TransportOffer::at))
    };
    Offer {
        peer,
        incarnation,
        versions: VersionRange { min, max },
        transports: message.transports.iter().filter_map(read).collect(),
        node: None,
        gpus: Vec::new(),
        require: require(message.require),
    }
}

fn device(message: &v1::Device) -> Result<Device, Failure> {
    let Some(index) = message.cuda_index else { return Ok(Device::Host) };
    if message.cuda_uuid.is_empty() {
        return Ok(Device::Cuda { index, uuid: None });
    }
    let uuid = <[u8; 16]>::try_from(&message.cuda_uuid[..]).map_err(|_| {
        Failure::new(
            Reason::InvalidArgument,
            format!("the UUID of a CUDA device has 16 bytes, not {}", message.cuda_uuid.len()),
        )
    })?;
    Ok(Device::Cuda { index, uuid: Some(uuid) })
}

/// Reads a selection; whether it fits a tensor is proven by [`Selection::resolve`], how large it is here already.
pub fn selection(message: Option<v1::Selection>) -> Result<Selection, Failure> {
    check_selection(message.as_ref())?;
    Ok(match message.and_then(|m| m.kind) {
        None => Selection::All,
        Some(v1::selection::Kind::Rows(rows)) => Selection::rows(rows.indices),
        Some(v1::selection::Kind::Ranges(ranges)) => {
            Selection::Ranges(ranges.dimensions.into_iter().map(range).collect())
        }
    })
}

/// Checks how large a selection is, without reading it.
///
/// # Errors
/// TOO_LARGE, as [`selection`] would say.
pub fn check_selection(message: Option<&v1::Selection>) -> Result<(), Failure> {
    use crate::selection::{MAX_RANGES, MAX_ROWS, SelectionError};
    match message.and_then(|message| message.kind.as_ref()) {
        Some(v1::selection::Kind::Rows(v1::Rows { indices })) if indices.len() > MAX_ROWS => {
            Err(SelectionError::TooManyRows { rows: indices.len() }.into())
        }
        Some(v1::selection::Kind::Ranges(v1::Ranges { dimensions })) if dimensions.len() > MAX_RANGES => {
            Err(SelectionError::TooManyRanges { ranges: dimensions.len() }.into())
        }
        _ => Ok(()),
    }
}

fn range(message: v1::Range) -> Range {
    Range { start: message.start, stop: message.stop, step: message.step.unwrap_or(1) }
}

/// Requirement that a route must satisfy.
pub fn require(message: Option<v1::Require>) -> Require {
    message.map_or_else(Require::default, |m| Require {
        zero_copy: m.zero_copy,
        same_node: m.same_node,
        encrypted: m.encrypted,
    })
}

/// A retry id: 16 bytes, or none.
pub fn retry(bytes: &[u8]) -> Result<Option<RetryId>, Failure> {
    if bytes.is_empty() {
        return Ok(None);
    }
    <[u8; 16]>::try_from(bytes).map(|id| Some(RetryId(id))).map_err(|_| {
        Failure::new(Reason::InvalidArgument, format!("a retry id has 16 bytes, not {}", bytes.len()))
    })
}

/// A name, or none where it is empty.
pub fn name(text: &str) -> Result<Option<TensorName>, Failure> {
    if text.is_empty() {
        return Ok(None);
    }
    TensorName::new(text).map(Some).map_err(|e| Failure::new(Reason::InvalidArgument, e.to_string()))
}

/// The failure that another side reported.
pub fn failure(message: v1::Failure) -> Failure {
    let code = Code::from_number(i32::try_from(message.code).unwrap_or(2));
    let mut failure = Failure::received(code, &message.reason, message.message);
    for (key, value) in message.details {
        failure = failure.with(key, value);
    }
    failure
}

// === impl From: what goes out ===

impl From<&Failure> for v1::Failure {
    fn from(failure: &Failure) -> Self {
        Self {
            code: u32::try_from(failure.code.number()).unwrap_or(2),
            reason: failure.reason.as_str().to_owned(),
            message: failure.message.clone(),
            details: failure.details.iter().map(|(k, v)| (k.to_string(), v.clone())).collect(),
        }
    }
}

impl From<&Layout> for v1::Descriptor {
    fn from(layout: &Layout) -> Self {
        Self {
            dtype: u32::from(layout.dtype().code()),
            shape: layout.shape().to_vec(),
            strides: layout.strides().map(|s| s.to_vec()).unwrap_or_default(),
            byte_length: layout.bytes(),
            device: None,
            metadata: std::collections::HashMap::new(),
        }
    }
}

impl v1::Descriptor {
    /// All of it but what the user wrote beside it.
    pub(crate) fn without_metadata(descriptor: &Descriptor) -> Self {
        let device = match descriptor.device {
            Device::Host => None,
            Device::Cuda { index, uuid } => Some(v1::Device {
                cuda_index: Some(index),
                cuda_uuid: uuid.map(|u| u.to_vec().into()).unwrap_or_default(),
            }),
        };
        Self { device, ..Self::from(&descriptor.layout) }
    }
}

impl From<&Descriptor> for v1::Descriptor {
    fn from(descriptor: &Descriptor) -> Self {
        let metadata = descriptor.metadata.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        Self { metadata, ..Self::without_metadata(descriptor) }
    }
}

impl From<&Selection> for v1::Selection {
    fn from(selection: &Selection) -> Self {
        use v1::selection::Kind;
        let kind = match selection {
            Selection::All => None,
            Selection::Rows(rows) => Some(Kind::Rows(v1::Rows { indices: rows.to_vec() })),
            Selection::Ranges(ranges) => {
                let dimensions = ranges
                    .iter()
                    .map(|r| v1::Range { start: r.start, stop: r.stop, step: Some(r.step) })
                    .collect();
                Some(Kind::Ranges(v1::Ranges { dimensions }))
            }
        };
        Self { kind }
    }
}

impl From<Require> for v1::Require {
    fn from(require: Require) -> Self {
        Self { zero_copy: require.zero_copy, same_node: require.same_node, encrypted: require.encrypted }
    }
}

impl From<Transport> for v1::Transport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Local => Self::Local,
            Transport::Shm => Self::Shm,
            Transport::CudaIpc => Self::CudaIpc,
            Transport::Tcp => Self::Tcp,
            Transport::Quic => Self::Quic,
        }
    }
}

/// The transport of a reply; none for a number that this version does not know.
pub fn transport(number: i32) -> Option<Transport> {
    match v1::Transport::try_from(number).ok()? {
        v1::Transport::Unspecified => None,
        v1::Transport::Local => Some(Transport::Local),
        v1::Transport::Shm => Some(Transport::Shm),
        v1::Transport::CudaIpc => Some(Transport::CudaIpc),
        v1::Transport::Tcp => Some(Transport::Tcp),
        v1::Transport::Quic => Some(Transport::Quic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> v1::Descriptor {
        let layout = Layout::contiguous(DType::F32, Shape::new(&[2, 3]).unwrap()).unwrap();
        v1::Descriptor::from(&Descriptor::host(layout))
    }

    #[test]
    fn a_selection_that_is_not_read_has_the_same_limits() {
        use crate::selection::{MAX_RANGES, MAX_ROWS};
        let rows = |count| v1::selection::Kind::Rows(v1::Rows { indices: vec![0; count] });
        let ranges =
            |count| v1::selection::Kind::Ranges(v1::Ranges { dimensions: vec![v1::Range::default(); count] });
        for (kind, is_allowed) in [
            (rows(MAX_ROWS), true),
            (rows(MAX_ROWS + 1), false),
            (ranges(MAX_RANGES), true),
            (ranges(MAX_RANGES + 1), false),
        ] {
            let message = v1::Selection { kind: Some(kind) };
            let checked = check_selection(Some(&message)).map_err(|failure| failure.reason);
            assert_eq!(checked.is_ok(), is_allowed);
            assert_eq!(checked.err(), selection(Some(message)).err().map(|failure| failure.reason));
        }
        assert!(check_selection(None).is_ok());
    }

    #[test]
    fn a_descriptor_survives_the_wire() {
        let mut sent = message();
        sent.metadata.insert("layer".into(), "7".into());
        sent.device = Some(v1::Device { cuda_index: Some(1), cuda_uuid: vec![7; 16].into() });
        let proven = descriptor(sent.clone()).unwrap();
        assert_eq!(proven.device, Device::Cuda { index: 1, uuid: Some([7; 16]) });
        assert_eq!(v1::Descriptor::from(&proven), sent);
    }

    #[test]
    fn what_disagrees_is_refused_by_name() {
        let wrong_length = v1::Descriptor { byte_length: 23, ..message() };
        assert_eq!(descriptor(wrong_length).unwrap_err().reason, Reason::LayoutMismatch);
        let no_dtype = v1::Descriptor { dtype: 0, ..message() };
        assert_eq!(descriptor(no_dtype).unwrap_err().reason, Reason::DTypeUnknown);
        let overflowing = v1::Descriptor { shape: vec![u64::MAX, u64::MAX], byte_length: 0, ..message() };
        assert!(descriptor(overflowing).is_err());
    }

    #[test]
    fn a_million_ranges_are_refused_before_they_are_looked_at() {
        let dimensions = vec![v1::Range { start: None, stop: None, step: None }; 1_000_000];
        let kind = Some(v1::selection::Kind::Ranges(v1::Ranges { dimensions }));
        assert!(selection(Some(v1::Selection { kind })).is_err());
    }

    #[test]
    fn a_failure_keeps_reason_and_numbers_across_the_wire() {
        let sent = Failure::new(Reason::ArenaFull, "full").with("free_bytes", 12);
        assert_eq!(failure(v1::Failure::from(&sent)), sent);
    }
}
