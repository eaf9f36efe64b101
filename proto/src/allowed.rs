//! Other peers that may do something, by patterns of the names under which they were authenticated.

use std::fmt;
use std::sync::Arc;

use crate::failure::{Failure, Reason};
use crate::generated as v1;
use crate::identity::PeerName;

/// Most patterns of one list.
pub const PATTERNS_MAX: usize = 64;
/// Longest pattern, in bytes: as long as the name of a peer may be.
pub const PATTERN_BYTES_MAX: usize = 253;

/// Most bytes that the lists of one kind take on the heap of a sidecar, all together: some 470 of the longest ones.
pub const LISTS_BYTES_MAX: u64 = 8 << 20;

/// Other peers that may do something. A list of patterns costs their bytes, and copies of it nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AllowedPeers {
    /// Every peer of the exchange.
    #[default]
    All,
    /// Peers whose names fit a pattern: none, if there is no pattern.
    Only(Arc<[String]>),
}

impl AllowedPeers {
    /// Reads what a caller said. `what` is the name of the list for people.
    ///
    /// # Errors
    /// TOO_LARGE for more patterns, or a longer one, than may be.
    pub fn read(said: Option<&v1::PeerPatterns>, what: &str) -> Result<Self, Failure> {
        let Some(said) = said else { return Ok(Self::All) };
        check_patterns(&said.patterns, what)?;
        Ok(Self::Only(said.patterns.as_slice().into()))
    }

    /// Returns the bytes that its patterns take on the heap.
    pub fn heap_bytes(&self) -> u64 {
        match self {
            Self::All => 0,
            Self::Only(patterns) => {
                patterns.iter().map(|pattern| (size_of::<String>() + pattern.len()) as u64).sum()
            }
        }
    }

    /// Checks that it finds room beside the lists that are kept. `what` is their name for people.
    ///
    /// # Errors
    /// LIMIT_EXCEEDED.
    pub fn check_room<'a>(
        &self,
        kept: impl IntoIterator<Item = &'a Self>,
        what: &str,
    ) -> Result<(), Failure> {
        let bytes = self.heap_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let there: u64 = kept.into_iter().map(Self::heap_bytes).sum();
        if there.saturating_add(bytes) <= LISTS_BYTES_MAX {
            return Ok(());
        }
        let message = format!(
            "{what} take {there} bytes, and this one {bytes}; at most {LISTS_BYTES_MAX} together: join patterns by `*`, or end some of \
             those that have lists"
        );
        Err(Failure::new(Reason::LimitExceeded, message).with("limit", LISTS_BYTES_MAX))
    }

    /// Returns the message that says it.
    pub fn message(&self) -> Option<v1::PeerPatterns> {
        match self {
            Self::All => None,
            Self::Only(patterns) => Some(v1::PeerPatterns { patterns: patterns.to_vec() }),
        }
    }

    /// Returns whether a peer is among them.
    pub fn allow(&self, peer: &PeerName) -> bool {
        match self {
            Self::All => true,
            Self::Only(patterns) => any_matches(patterns, peer),
        }
    }
}

impl fmt::Display for AllowedPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Only(patterns) if patterns.is_empty() => f.write_str("none"),
            Self::Only(patterns) => f.write_str(&patterns.join(", ")),
        }
    }
}

/// Checks the bounds of a list of patterns. `what` is its name for people.
///
/// # Errors
/// TOO_LARGE.
pub fn check_patterns(patterns: &[String], what: &str) -> Result<(), Failure> {
    if patterns.len() <= PATTERNS_MAX && patterns.iter().all(|pattern| pattern.len() <= PATTERN_BYTES_MAX) {
        return Ok(());
    }
    let message = format!(
        "{what} has at most {PATTERNS_MAX} patterns of peers, of {PATTERN_BYTES_MAX} bytes each; join some by `*`"
    );
    Err(Failure::new(Reason::TooLarge, message).with("patterns", patterns.len()))
}

/// Returns whether the name of a peer fits one of the patterns.
pub fn any_matches(patterns: &[String], peer: &PeerName) -> bool {
    patterns.iter().any(|pattern| matches(pattern, peer.as_str()))
}

/// Returns whether a text fits a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, mut patterns)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(head) else { return false };
    while let Some((part, after)) = patterns.split_once('*') {
        let Some(at) = rest.find(part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
        patterns = after;
    }
    rest.ends_with(patterns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, text) in
            [("*", "a"), ("rollout-*", "rollout-12"), ("a*c*e", "abcde"), ("a", "a"), ("*-0", "x-0")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("", "a"), ("rollout-*", "trainer"), ("a*c", "ab"), ("a", "ab"), ("ab*b", "ab")]
        {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    fn only(patterns: &[&str]) -> AllowedPeers {
        AllowedPeers::Only(patterns.iter().map(|one| (*one).to_owned()).collect())
    }

    fn peer(name: &str) -> PeerName {
        name.parse().unwrap()
    }

    #[test]
    fn a_list_allows_the_names_that_fit_one_of_its_patterns() {
        let readers = only(&["rollout-*", "eval"]);
        for (name, allowed) in [("rollout-1", true), ("eval", true), ("rollout", false), ("eval-1", false)] {
            assert_eq!(readers.allow(&peer(name)), allowed, "{name}");
        }
        assert!(AllowedPeers::All.allow(&peer("anyone")) && only(&["*"]).allow(&peer("anyone")));
        assert!(!only(&[]).allow(&peer("anyone")));
    }

    #[test]
    fn a_list_that_is_absent_is_another_one_than_an_empty_list() {
        let none = v1::PeerPatterns::default();
        assert_eq!(AllowedPeers::read(None, "readers"), Ok(AllowedPeers::All));
        assert_eq!(AllowedPeers::read(Some(&none), "readers"), Ok(only(&[])));
        assert_eq!((AllowedPeers::All.message(), only(&[]).message()), (None, Some(none)));
        let told = ["all", "none", "a, b*"].map(str::to_owned);
        assert_eq!([AllowedPeers::All, only(&[]), only(&["a", "b*"])].map(|list| list.to_string()), told);
    }

    #[test]
    fn too_many_and_too_long_patterns_are_refused() {
        let read = |patterns| AllowedPeers::read(Some(&v1::PeerPatterns { patterns }), "readers");
        assert!(read(vec!["p".repeat(PATTERN_BYTES_MAX); PATTERNS_MAX]).is_ok());
        for patterns in [vec![String::new(); PATTERNS_MAX + 1], vec!["p".repeat(PATTERN_BYTES_MAX + 1)]] {
            let refused = read(patterns).unwrap_err();
            assert_eq!(refused.reason, Reason::TooLarge);
            assert!(refused.message.contains("readers has at most 64"), "{refused}");
        }
    }
}
