//! Secret parts of the webhook's path: who knows one is the API server, or was told it by somebody who may read its
//! configuration.
//!
//! ```text
//!   made           announced                  next one made       next one announced       the next but one made
//!    |--accepted----|---------------------------|-------------------|------------------------|  dropped
//!    0              10 min (the first: at once)  a day               + 10 min                 two days
//! ```
//!
//! A part that stays for ever would be simpler. But an API server that does not reach the webhook names the whole path
//! in its error: to whoever made the pod, in an Event and in its log. The next one is made only by a leader that has
//! written the newest into the configuration. So nothing that is called is ever dropped, however long nobody leads.

use std::fmt;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::names::MUTATE_PATH;

/// The key of the Secret under which the secret parts are.
pub const PATHS_KEY: &str = "paths.json";

/// Age of the newest at which the next one is made: a day. Less costs API servers a look at the configuration each
/// time.
pub const CHANGE_AFTER_SECONDS: u64 = 24 * 3600;

/// Time that a secret part is accepted before it is announced. Replicas look at the Secret every 10 s; the rest is
/// for one that cannot read it for a while.
pub const ANNOUNCE_AFTER_SECONDS: u64 = 600;

/// The most secret parts that are kept: the one that is called, and the next or the one before.
const KEPT_MAX: usize = 2;

/// The letters of a secret part: 128 bits, in hexadecimal.
const LETTERS: usize = 32;

/// Path with its secret part. Nothing prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretPath(String);

/// Secret part of the path, as it is kept in the Secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SecretPart {
    /// Time at which it was made, in seconds since 1970.
    made: u64,
    part: String,
}

/// The secret parts, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretPaths {
    parts: Vec<SecretPart>,
}

/// The Secret does not keep what it should. What it keeps is not said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the Secret's {PATHS_KEY} cannot be read: delete that key of the Secret, and it is made again")]
pub struct BadPaths;

impl SecretPath {
    /// Path with this part.
    fn of(part: &str) -> SecretPath {
        SecretPath(format!("{MUTATE_PATH}/{part}"))
    }

    /// The path, for the configuration of the webhook alone.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether a caller's path is this one, in a time that says nothing of where they differ.
    pub fn is(&self, called: &str) -> bool {
        self.0.as_bytes().ct_eq(called.as_bytes()).into()
    }

    /// Text without the path, if it is in there.
    pub fn out_of(&self, text: &str) -> String {
        text.replace(&self.0, &format!("{MUTATE_PATH}/…"))
    }
}

impl fmt::Debug for SecretPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MUTATE_PATH}/…")
    }
}

impl fmt::Debug for SecretPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretPart").field("made", &self.made).finish_non_exhaustive()
    }
}

impl SecretPaths {
    /// Reads the bytes of the Secret.
    ///
    /// # Errors
    /// They are something else, or a part of them is easy to guess.
    pub fn read(bytes: &[u8]) -> Result<SecretPaths, BadPaths> {
        let read: SecretPaths = serde_json::from_slice(bytes).map_err(|_| BadPaths)?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_good = |one: &SecretPart| one.part.len() == LETTERS && one.part.bytes().all(is_hex);
        if read.parts.iter().all(is_good) { Ok(read) } else { Err(BadPaths) }
    }

    /// The bytes for the Secret.
    ///
    /// # Errors
    /// Never, for this type.
    pub fn to_bytes(&self) -> Result<Vec<u8>, BadPaths> {
        serde_json::to_vec(self).map_err(|_| BadPaths)
    }

    /// Paths after what is to be done now; none if nothing changes. `written` is the path that this replica,
    /// leading, has written into the configuration.
    pub fn after(&self, now: u64, written: Option<&SecretPath>) -> Option<SecretPaths> {
        let newest = self.parts.last();
        let is_due = |newest: &SecretPart| {
            let is_written = written.is_some_and(|written| written.is(SecretPath::of(&newest.part).as_str()));
            is_written && now.saturating_sub(newest.made) >= CHANGE_AFTER_SECONDS
        };
        if newest.is_some_and(|newest| !is_due(newest)) {
            return None;
        }
        let next = SecretPart { made: now, part: format!("{:032x}", rand::random::<u128>()) };
        let before = self.parts.iter().rev().take(KEPT_MAX - 1).rev();
        Some(SecretPaths { parts: before.cloned().chain([next]).collect() })
    }

    /// The path that the API server is to call; none before the first one is made.
    pub fn announced(&self, now: u64) -> Option<SecretPath> {
        let ripe = |one: &&SecretPart| now.saturating_sub(one.made) >= ANNOUNCE_AFTER_SECONDS;
        let announced = self.parts.iter().rev().find(ripe).or(self.parts.first());
        announced.map(|one| SecretPath::of(&one.part))
    }

    /// The paths whose callers are taken for the API server.
    pub fn accepted(&self) -> Vec<SecretPath> {
        self.parts.iter().map(|one| SecretPath::of(&one.part)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = CHANGE_AFTER_SECONDS;

    fn first(now: u64) -> SecretPaths {
        SecretPaths::default().after(now, None).unwrap()
    }

    #[test]
    fn the_first_path_is_announced_at_once_and_nobody_guesses_it() {
        let (one, other) = (first(1000), first(1000));
        let path = one.announced(1000).unwrap();
        assert_eq!(one.accepted(), std::slice::from_ref(&path));
        assert_ne!(Some(path.clone()), other.announced(1000));
        let part = path.as_str().strip_prefix("/mutate/").unwrap();
        assert_eq!(part.len(), 32);
        // As API servers want each part of a path: a name of DNS.
        crate::dns::Label::new("part", part).unwrap();
    }

    #[test]
    fn a_path_is_its_own_and_no_other_one() {
        let path = first(0).announced(0).unwrap();
        let text = path.as_str().to_owned();
        assert!(path.is(&text));
        let others = [
            "",
            "/",
            "/mutate",
            "/mutate/",
            &text[..text.len() - 1],
            &format!("{text}/"),
            &text.to_uppercase(),
        ];
        assert!(!others.iter().any(|other| path.is(other)));
    }

    #[test]
    fn no_path_is_printed() {
        let paths = first(7);
        let path = paths.announced(7).unwrap();
        let part = path.as_str().rsplit('/').next().unwrap();
        let said = format!("{paths:?} {path:?}");
        assert!(!said.contains(part) && said.contains("made: 7") && said.contains("/mutate/…"), "{said}");
        assert_eq!(path.out_of(&format!("Post {:?}: no", path.as_str())), "Post \"/mutate/…\": no");
    }

    #[test]
    fn only_a_leader_that_has_written_the_newest_path_makes_the_next_one() {
        let paths = first(0);
        let written = paths.announced(0);
        assert_eq!(paths.after(DAY - 1, written.as_ref()), None);
        assert_eq!(paths.after(100 * DAY, None), None, "nobody leads");
        assert_eq!(paths.after(100 * DAY, first(0).announced(0).as_ref()), None, "another one is called");
        let both = paths.after(DAY, written.as_ref()).unwrap();
        assert_eq!(both.accepted().len(), 2);
        assert_eq!(both.after(100 * DAY, written.as_ref()), None, "the newest is not called yet");
    }

    /// Ten days, minute by minute. A replica has seen the Secret ten minutes ago, the API server calls what was
    /// announced twenty minutes ago.
    #[test]
    fn in_ten_days_no_path_is_called_that_a_replica_does_not_accept() {
        let mut paths = first(0);
        let (mut seen, mut called) = (Vec::new(), Vec::new());
        let mut changes = 0;
        for now in (0..10 * DAY).step_by(60) {
            let announced = paths.announced(now).unwrap();
            called.push(announced.clone());
            if let Some(next) = paths.after(now, Some(&announced)) {
                paths = next;
                changes += 1;
            }
            seen.push(paths.accepted());
            assert!(seen[seen.len().saturating_sub(10)].contains(called.last().unwrap()), "{now}");
            assert!(paths.accepted().contains(&called[called.len().saturating_sub(20)]), "{now}");
        }
        assert_eq!(changes, 9);
        assert!(!paths.accepted().contains(&called[0]), "what was called once is not accepted for ever");
    }

    #[test]
    fn what_is_no_secret_part_is_refused_with_the_remedy_and_not_shown() {
        let paths = first(5);
        assert_eq!(SecretPaths::read(&paths.to_bytes().unwrap()), Ok(paths));
        for text in [
            r#"{"parts": [{"made": 1, "part": ""}]}"#,
            r#"{"parts": [{"made": 1, "part": "x/../y"}]}"#,
            "hello",
        ] {
            let error = SecretPaths::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("delete that key") && !error.contains("hello"), "{error}");
        }
    }
}
