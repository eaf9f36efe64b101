//! Failures that can happen, and their names everywhere.
//!
//! A failure has a gRPC code for the carriers, a [`Reason`] for programs, a sentence for people, and the numbers
//! that were wrong as details. Errors of single operations become failures in `convert`; nothing here knows how a
//! failure travels.

use std::borrow::Cow;
use std::fmt;

mod convert;
mod reason;

pub use reason::{Code, Reason};

/// The most details of a failure. A failure is small, whoever made it.
pub const MAX_DETAILS: usize = 32;

/// Beginning of details that say who holds what at a peer. They are for clients of its pod, and other peers do not hear them.
pub const HOLDER_DETAIL: &str = "holder_";

/// A call that failed, and left nothing behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The gRPC code.
    pub code: Code,
    /// The cause, stable and for programs.
    pub reason: Reason,
    /// Text of what happened and what to do, for people.
    pub message: String,
    /// The values that were wrong: lower-case names with underscores, units last.
    pub details: Vec<(Cow<'static, str>, String)>,
}

impl Failure {
    /// A failure with the code that belongs to its reason.
    pub fn new(reason: Reason, message: impl Into<String>) -> Failure {
        Failure { code: reason.code(), reason, message: message.into(), details: Vec::new() }
    }

    /// Adds a value that was wrong. Beyond [`MAX_DETAILS`] it is dropped.
    #[must_use]
    pub fn with(mut self, key: impl Into<Cow<'static, str>>, value: impl fmt::Display) -> Failure {
        if self.details.len() < MAX_DETAILS {
            self.details.push((key.into(), value.to_string()));
        }
        self
    }

    /// A failure as it came over a wire. A reason that this release does not know becomes [`Reason::Internal`] with
    /// the code that came, and the word is kept as the detail `reason`.
    pub fn received(code: Code, reason: &str, message: impl Into<String>) -> Failure {
        let known = reason.parse::<Reason>();
        let failure = Failure {
            code,
            reason: known.unwrap_or(Reason::Internal),
            message: message.into(),
            details: Vec::new(),
        };
        if known.is_ok() { failure } else { failure.with("reason", reason) }
    }

    /// The same as another peer may hear it: without who holds what here.
    #[must_use]
    pub fn for_peer(mut self) -> Failure {
        self.details.retain(|(key, _)| !key.starts_with(HOLDER_DETAIL));
        self
    }

    /// The value of a detail.
    pub fn detail(&self, key: &str) -> Option<&str> {
        self.details.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// `ARENA_FULL: 4 GiB do not fit now (free_bytes=1024, held_bytes=0)`: what the sentence tells is not told again.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)?;
        let untold = self.details.iter().filter(|(_, value)| !tells(&self.message, value));
        let untold: Vec<String> = untold.map(|(key, value)| format!("{key}={value}")).collect();
        if untold.is_empty() { Ok(()) } else { write!(f, " ({})", untold.join(", ")) }
    }
}

/// Returns whether a value stands in a sentence, as a word of its own.
fn tells(sentence: &str, value: &str) -> bool {
    let is_apart = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    sentence.match_indices(value).any(|(at, _)| {
        is_apart(sentence[..at].chars().next_back()) && is_apart(sentence[at + value.len()..].chars().next())
    })
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_prints_its_reason_its_sentence_and_its_numbers() {
        let failure = Failure::new(Reason::ArenaFull, "the tensor does not fit now");
        assert_eq!(failure.to_string(), "ARENA_FULL: the tensor does not fit now");
        let failure = failure.with("free_bytes", 1024).with("held_bytes", 0);
        assert_eq!(
            failure.to_string(),
            "ARENA_FULL: the tensor does not fit now (free_bytes=1024, held_bytes=0)"
        );
        assert_eq!((failure.code, failure.detail("free_bytes")), (Code::ResourceExhausted, Some("1024")));
    }

    #[test]
    fn a_detail_that_the_sentence_tells_is_not_printed_again() {
        let failure = Failure::new(Reason::NotFound, "nothing is named a/b here, in 1024 bytes");
        let failure = failure.with("name", "a/b").with("bytes", 1024).with("count", 24);
        let printed = "NOT_FOUND: nothing is named a/b here, in 1024 bytes (count=24)";
        assert_eq!(failure.to_string(), printed);
    }

    #[test]
    fn a_reason_of_a_newer_release_keeps_its_code_and_its_word() {
        let failure = Failure::received(Code::Unavailable, "MOON_PHASE", "wait");
        assert_eq!((failure.code, failure.reason), (Code::Unavailable, Reason::Internal));
        assert_eq!(failure.detail("reason"), Some("MOON_PHASE"));
    }

    #[test]
    fn a_failure_for_a_peer_does_not_say_who_holds_what() {
        let full = Failure::new(Reason::ArenaFull, "full")
            .with("free_bytes", 1)
            .with("holder_1", "session 3 (trainer)");
        assert_eq!(full.for_peer(), Failure::new(Reason::ArenaFull, "full").with("free_bytes", 1));
    }

    #[test]
    fn details_are_bounded() {
        let failure = (0..100).fold(Failure::new(Reason::Internal, "x"), |f, i| f.with("i", i));
        assert_eq!(failure.details.len(), MAX_DETAILS);
    }
}
