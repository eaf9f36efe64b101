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
/// Bytes of the text of a failure, beyond which it is cut. Texts quote what their caller said, which may be megabytes.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// Bytes of one detail, beyond which it is cut: names and references are shorter.
pub const DETAIL_BYTES_MAX: usize = 1 << 10;

/// Bytes of the text of a failure that is kept with many others.
const BRIEF_BYTES_MAX: usize = 512;

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
        let message = cut(message.into(), MESSAGE_BYTES_MAX);
        Failure { code: reason.code(), reason, message, details: Vec::new() }
    }

    /// Adds a value that was wrong. Beyond [`MAX_DETAILS`] it is dropped, beyond [`DETAIL_BYTES_MAX`] it is cut.
    #[must_use]
    pub fn with(mut self, key: impl Into<Cow<'static, str>>, value: impl fmt::Display) -> Failure {
        if self.details.len() < MAX_DETAILS {
            let key = match key.into() {
                Cow::Owned(key) => Cow::Owned(cut(key, DETAIL_BYTES_MAX)),
                key @ Cow::Borrowed(_) => key,
            };
            self.details.push((key, cut(value.to_string(), DETAIL_BYTES_MAX)));
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
            message: cut(message.into(), MESSAGE_BYTES_MAX),
            details: Vec::new(),
        };
        if known.is_ok() { failure } else { failure.with("reason", reason) }
    }

    /// Failure as another peer may hear it: without who holds what here.
    #[must_use]
    pub fn for_peer(mut self) -> Failure {
        self.details.retain(|(key, _)| !key.starts_with(HOLDER_DETAIL));
        self
    }

    /// Failure without details and in a few words, for whoever keeps many.
    #[must_use]
    pub fn brief(self) -> Failure {
        Failure { message: cut(self.message, BRIEF_BYTES_MAX), details: Vec::new(), ..self }
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

/// Text of so many bytes at most, the last of which say that it was cut.
fn cut(mut text: String, most: usize) -> String {
    const MARK: &str = "…";
    if text.len() > most {
        let end = (0..=most - MARK.len()).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push_str(MARK);
        text.shrink_to_fit();
    }
    text
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
    fn texts_that_quote_megabytes_are_cut_between_letters() {
        let long = "é".repeat(1 << 20);
        let failure =
            Failure::new(Reason::InvalidArgument, long.clone()).with("name", &long).with(long.clone(), 1);
        let heard = Failure::received(Code::Unavailable, &long, long.clone());
        for text in [&failure.message, &heard.message] {
            assert!(text.len() <= MESSAGE_BYTES_MAX && text.ends_with("é…"), "{}", text.len());
        }
        for (key, value) in failure.details.iter().chain(&heard.details) {
            assert!(key.len() <= DETAIL_BYTES_MAX && value.len() <= DETAIL_BYTES_MAX);
        }
        assert_eq!(failure.detail("name").unwrap().len(), DETAIL_BYTES_MAX - 1);
        let brief = failure.brief();
        assert!(brief.message.len() <= BRIEF_BYTES_MAX && brief.details.is_empty());
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
