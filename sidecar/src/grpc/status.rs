//! A failure as gRPC says it: code, sentence, and google.rpc.ErrorInfo with the reason and the numbers.

use std::collections::HashMap;

use tensorlane_proto::failure::{Failure, Reason};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of our reasons.
pub(super) const DOMAIN: &str = "tensorlane.dev";

/// A status travels in headers, which clients bound (often at 8 KiB): the sentence gets this much of it.
const MESSAGE_BYTES_MAX: usize = 1024;
/// And each detail this much.
const DETAIL_BYTES_MAX: usize = 128;

/// The failure of a whole call.
pub(super) fn status(failure: &Failure) -> Status {
    let code = Code::from_i32(failure.code.number());
    let details: HashMap<String, String> = failure
        .details
        .iter()
        .map(|(key, value)| (key.to_string(), cut(value, DETAIL_BYTES_MAX).to_owned()))
        .collect();
    let info = ErrorDetails::with_error_info(failure.reason.as_str(), DOMAIN, details);
    Status::with_error_details(code, cut(&failure.message, MESSAGE_BYTES_MAX), info)
}

/// Failure of whatever broke off because its thread has panicked.
pub(super) fn broke_off() -> Failure {
    Failure::new(Reason::Internal, "this call broke off inside the sidecar, whose log says where")
}

/// Reason for which no further message of a client's stream can be read.
pub(super) fn broken(status: &Status) -> Failure {
    // Where it is one of ours, it says why already.
    if let Some(ours) = status.get_details_error_info().filter(|info| info.domain == DOMAIN)
        && let Ok(reason) = ours.reason.parse()
    {
        let failure = Failure::new(reason, status.message());
        return ours.metadata.into_iter().fold(failure, |failure, (key, value)| failure.with(key, value));
    }
    let reason = match status.code() {
        Code::OutOfRange | Code::ResourceExhausted => Reason::TooLarge,
        Code::Internal | Code::InvalidArgument => Reason::InvalidArgument,
        _ => Reason::Cancelled,
    };
    Failure::new(reason, format!("the stream broke, and nothing of it was kept: {}", status.message()))
}

/// At most so many bytes of a text, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    match text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= most).last() {
        Some(end) => &text[..end],
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_carries_reason_and_numbers() {
        let failure = Failure::new(Reason::ArenaFull, "full").with("free_bytes", 7);
        let status = status(&failure);
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "full"));
        let info = status.get_details_error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("ARENA_FULL", DOMAIN));
        assert_eq!(info.metadata["free_bytes"], "7");
    }

    #[test]
    fn a_status_fits_into_headers_whatever_was_said() {
        let long = "ü".repeat(100_000);
        let status = status(&Failure::new(Reason::TooLarge, long.clone()).with("name", long));
        assert_eq!(status.message().len(), MESSAGE_BYTES_MAX);
        assert_eq!(status.get_details_error_info().unwrap().metadata["name"].len(), DETAIL_BYTES_MAX);
    }
}
