//! From the error of one operation to a failure: the one place where that is decided.

use super::{Failure, Reason};
use crate::descriptor::MetadataError;
use crate::dtype::DTypeError;
use crate::identity::IdentityError;
use crate::layout::LayoutError;
use crate::negotiate::NoRoute;
use crate::reference::ReferenceError;
use crate::selection::SelectionError;

impl From<DTypeError> for Failure {
    fn from(error: DTypeError) -> Failure {
        Failure::new(Reason::DTypeUnknown, error.to_string())
    }
}

impl From<LayoutError> for Failure {
    fn from(error: LayoutError) -> Failure {
        let reason = match &error {
            LayoutError::TooManyDims { .. }
            | LayoutError::TooManyElements { .. }
            | LayoutError::TooManyBytes { .. }
            | LayoutError::StrideTooLarge { .. } => Reason::TooLarge,
            LayoutError::StrideCount { .. }
            | LayoutError::NegativeStride { .. }
            | LayoutError::SubByteStrides { .. }
            | LayoutError::ByteLength { .. } => Reason::LayoutMismatch,
        };
        let failure = Failure::new(reason, error.to_string());
        match error {
            LayoutError::ByteLength { needed, given, .. } => {
                failure.with("needed_bytes", needed).with("given_bytes", given)
            }
            _ => failure,
        }
    }
}

impl From<MetadataError> for Failure {
    fn from(error: MetadataError) -> Failure {
        let reason = match &error {
            MetadataError::EmptyKey | MetadataError::DuplicateKey { .. } => Reason::InvalidArgument,
            MetadataError::TooManyEntries
            | MetadataError::KeyTooLong { .. }
            | MetadataError::ValueTooLong { .. }
            | MetadataError::TooManyBytes { .. } => Reason::TooLarge,
        };
        Failure::new(reason, error.to_string())
    }
}

impl From<SelectionError> for Failure {
    fn from(error: SelectionError) -> Failure {
        let reason = match &error {
            SelectionError::TooManyRanges { .. }
            | SelectionError::TooManyRows { .. }
            | SelectionError::Result(_) => Reason::TooLarge,
            SelectionError::ZeroStep { .. } => Reason::InvalidArgument,
            SelectionError::MoreRangesThanDims { .. }
            | SelectionError::RangeOutside { .. }
            | SelectionError::RowOutside { .. }
            | SelectionError::ScalarHasNoRows
            | SelectionError::NotByteAligned { .. } => Reason::SelectionOutOfRange,
        };
        Failure::new(reason, error.to_string())
    }
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Failure {
        Failure::new(Reason::InvalidArgument, error.to_string())
    }
}

impl From<ReferenceError> for Failure {
    fn from(error: ReferenceError) -> Failure {
        Failure::new(Reason::ReferenceMalformed, error.to_string())
    }
}

impl From<NoRoute> for Failure {
    fn from(error: NoRoute) -> Failure {
        let reason = if error.is_transient() { Reason::PeerUnreachable } else { Reason::RequirementNotMet };
        let failure = Failure::new(reason, error.to_string());
        error
            .refusals
            .iter()
            .fold(failure, |failure, refusal| failure.with(refusal.transport.as_str(), refusal.why.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::layout::{Layout, Shape};
    use crate::selection::Selection;

    #[test]
    fn a_byte_count_that_disagrees_says_both_numbers() {
        let shape = Shape::new(&[2]).unwrap();
        let failure: Failure = Layout::new(DType::F32, shape, None, Some(9)).unwrap_err().into();
        assert_eq!(failure.reason, Reason::LayoutMismatch);
        assert_eq!((failure.detail("needed_bytes"), failure.detail("given_bytes")), (Some("8"), Some("9")));
    }

    #[test]
    fn a_row_outside_is_out_of_range_and_a_million_ranges_are_too_large() {
        let layout = Layout::contiguous(DType::F32, Shape::new(&[2]).unwrap()).unwrap();
        let reason = |selection: Selection| Failure::from(selection.resolve(&layout).unwrap_err()).reason;
        assert_eq!(reason(Selection::rows([2])), Reason::SelectionOutOfRange);
        assert_eq!(reason(Selection::Ranges(vec![crate::Range::FULL; 1_000_000])), Reason::TooLarge);
    }
}
