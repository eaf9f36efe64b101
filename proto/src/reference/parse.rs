//! From text to a reference, each part in its one spelling.
//!
//! The order of the checks is the order of what a user can do about them: length, version, checksum, parts.

use super::shape::{MAX_REFERENCE_DIMS, RefShape};
use super::*;
use crate::identity::hex_u128;
use crate::layout::MAX_DIMS;

/// Parts of the reference that was read before: those of the next one that are spelled the same are shared with it, which
/// spares their checks and their memory.
#[derive(Debug, Default)]
pub struct SharedParts {
    exchange: Option<ExchangeName>,
    peer: Option<PeerName>,
    shape: Option<(Box<str>, RefShape)>,
}

impl SharedParts {
    fn exchange(&mut self, text: &str) -> Result<ExchangeName, ReferenceError> {
        name(&mut self.exchange, Part::Exchange, text)
    }

    fn peer(&mut self, text: &str) -> Result<PeerName, ReferenceError> {
        name(&mut self.peer, Part::Peer, text)
    }

    fn shape(&mut self, text: &str) -> Result<RefShape, ReferenceError> {
        match &self.shape {
            Some((known, shape)) if **known == *text => Ok(shape.clone()),
            _ => {
                let shape = ref_shape(text).ok_or_else(|| wrong(Part::Shape, text))?;
                Ok(self.shape.insert((text.into(), shape)).1.clone())
            }
        }
    }
}

/// The name that is known, if it is spelled like this; else the one that this is.
fn name<N: Clone + AsRef<str> + FromStr>(
    known: &mut Option<N>,
    part: Part,
    text: &str,
) -> Result<N, ReferenceError> {
    match known {
        Some(known) if known.as_ref() == text => Ok(known.clone()),
        _ => Ok(known.insert(text.parse().map_err(|_| wrong(part, text))?).clone()),
    }
}

pub(super) fn parse(bytes: &[u8], shared: &mut SharedParts) -> Result<Reference, ReferenceError> {
    if bytes.len() > MAX_REFERENCE_BYTES {
        return Err(ReferenceError::TooLong { bytes: bytes.len() });
    }
    let after_scheme = bytes.strip_prefix(SCHEME.as_bytes()).ok_or(ReferenceError::NotAReference)?;
    let colon = after_scheme.iter().position(|&b| b == b':').ok_or(ReferenceError::NotAReference)?;
    let (version, rest) = (&after_scheme[..colon], &after_scheme[colon + 1..]);
    if version != VERSION.as_bytes() {
        return Err(ReferenceError::VersionUnknown(shown(version)));
    }
    parts(checked(bytes, rest)?, shared)
}

/// Text that stands between the version and the checksum, if the checksum is right.
fn checked<'a>(whole: &[u8], rest: &'a [u8]) -> Result<&'a str, ReferenceError> {
    let slash = rest.iter().rposition(|&b| b == b'/').ok_or(ReferenceError::ChecksumMissing)?;
    let digits = &rest[slash + 1..];
    let given = hex_u128(digits).filter(|_| digits.len() == 8).ok_or(ReferenceError::ChecksumMissing)?;
    let covered = &whole[..whole.len() - digits.len() - 1];
    if u128::from(checksum::crc32c(covered)) != given {
        return Err(ReferenceError::ChecksumWrong);
    }
    // Nobody of ours writes anything but ASCII; what is not text has no right checksum of ours.
    str::from_utf8(&rest[..slash]).map_err(|_| ReferenceError::ChecksumWrong)
}

fn parts(text: &str, shared: &mut SharedParts) -> Result<Reference, ReferenceError> {
    let mut left = Some(text);
    let mut next = || part(&mut left);
    let (Some(exchange), Some(peer), Some(incarnation), Some(id), Some(kind), Some(bytes), None) =
        (next(), next(), next(), next(), next(), next(), next())
    else {
        return Err(ReferenceError::PartCount { parts: text.split('/').count() + 1 });
    };
    let (dtype, shape) = kind.split_once('.').ok_or_else(|| wrong(Part::Shape, kind))?;
    Ok(Reference {
        exchange: shared.exchange(exchange)?,
        peer: shared.peer(peer)?,
        incarnation: incarnation.parse().map_err(|_| wrong(Part::Incarnation, incarnation))?,
        id: decimal(id).ok_or_else(|| wrong(Part::Id, id))?,
        dtype: dtype.parse().map_err(|_| wrong(Part::DType, dtype))?,
        shape: shared.shape(shape)?,
        bytes: decimal(bytes)
            .filter(|&bytes| bytes <= MAX_TENSOR_BYTES)
            .ok_or_else(|| wrong(Part::Bytes, bytes))?,
    })
}

/// Text that comes before the next slash, byte by byte: each remote get parses a reference, and a search for characters
/// is three times the work.
fn part<'a>(left: &mut Option<&'a str>) -> Option<&'a str> {
    let text = left.take()?;
    let Some(slash) = text.bytes().position(|b| b == b'/') else { return Some(text) };
    *left = Some(&text[slash + 1..]);
    Some(&text[..slash])
}

fn wrong(part: Part, text: &str) -> ReferenceError {
    ReferenceError::Part { part, text: shown(text.as_bytes()) }
}

/// The beginning of something that may be long and hostile.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned()
}

/// A number without sign, blanks or leading zeros.
fn decimal(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if bytes.is_empty() || bytes.len() > 20 || (bytes[0] == b'0' && bytes.len() > 1) {
        return None;
    }
    bytes.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

fn ref_shape(text: &str) -> Option<RefShape> {
    if let Some(digest) = text.strip_prefix('r') {
        let (rank, crc) = digest.split_once('.')?;
        let rank = u8::try_from(decimal(rank)?).ok()?;
        let spelled_out = usize::from(rank) <= MAX_REFERENCE_DIMS;
        if spelled_out || usize::from(rank) > MAX_DIMS || crc.len() != 8 {
            return None;
        }
        let crc32c = u32::try_from(hex_u128(crc.as_bytes())?).ok()?;
        return Some(RefShape::Digest { rank, crc32c });
    }
    let mut dims = [0; MAX_REFERENCE_DIMS];
    let mut rank = 0;
    if !text.is_empty() {
        for size in text.split('x') {
            *dims.get_mut(rank)? = decimal(size)?;
            rank += 1;
        }
    }
    Shape::new(&dims[..rank]).ok().map(RefShape::Dims)
}
