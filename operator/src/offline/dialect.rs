//! Forms of YAML about which kubectl's library and the parser differ. What kubectl takes is spelled anew for the parser; what
//! kubectl refuses is refused.
//!
//! | form | kubectl | the parser |
//! |---|---|---|
//! | `"\'"` | an apostrophe | refuses it |
//! | `{emptyDir:}`, `[a:, b]` | a text that ends with a colon | refuses it |
//! | `"\/"` | refuses it | a slash |
//! | `[a?b]` | refuses it | a text |
//! | `%YAML 1.2` | refuses it | takes it |
//! | `[!!str, b]` | a list of `b` alone, whose tag is `!!str,` | gives up |

use libyaml_safer::{Error, EventData, ScalarStyle};

/// The most forms of a document that are spelled anew: each costs one more reading of it.
pub(super) const RESPELLED_MAX: usize = 200;

/// Letter that can stand for a colon, since the text has it nowhere.
pub(super) fn stand_in(text: &str) -> Option<char> {
    ('\u{e000}'..='\u{f8ff}').find(|letter| !text.contains(*letter))
}

/// The text with the form at which the parser stopped in a spelling that it knows, if kubectl takes that form. A colon is `colon`
/// then.
pub(super) fn respelled(text: &str, error: &Error, colon: Option<char>) -> Option<String> {
    let at = usize::try_from(error.problem_mark()?.index).ok()?;
    let (before, behind) = text.split_at_checked(at)?;
    let (letter, rest) = match error.problem() {
        "found unknown escape character" => ('\'', behind.strip_prefix("\\'")?),
        "found unexpected ':'" => {
            let rest = behind.strip_prefix(':')?;
            (colon.filter(|_| rest.starts_with([',', ']', '}']))?, rest)
        }
        _ => return None,
    };
    Some(format!("{before}{letter}{rest}"))
}

/// The first line with a tag that a comma ends, counted from 1. Words in quotes and comments may look like one.
pub(super) fn line_of_a_tag_with_a_comma(text: &str) -> Option<usize> {
    let ends_a_tag = |line: &str| {
        let mut tags = line.split('!').skip(1).filter_map(|rest| rest.split(char::is_whitespace).next());
        tags.any(|tag| tag.contains(','))
    };
    text.lines().position(ends_a_tag).map(|index| index + 1)
}

/// Reason for which kubectl refuses what the parser took. `written`: how it is written; `in_flow`: it stands in braces or
/// brackets.
pub(super) fn refusal(event: &EventData, written: &str, in_flow: bool) -> Option<&'static str> {
    match event {
        EventData::DocumentStart { version_directive: Some(version), .. } if version.minor != 1 => {
            Some("its %YAML line names another version than 1.1, and kubectl reads no other: leave it out")
        }
        EventData::Scalar { style: ScalarStyle::DoubleQuoted, .. } if escapes_a_slash(written) => {
            Some("found unknown escape character: a slash stands without a backslash before it")
        }
        EventData::Scalar { style: ScalarStyle::Plain, value, .. } if in_flow && value.contains('?') => {
            Some("kubectl takes no ? in a text within braces or brackets: quote the text")
        }
        _ => None,
    }
}

/// Returns whether a backslash that is no escaped one stands before a slash.
fn escapes_a_slash(written: &str) -> bool {
    let mut letters = written.chars();
    while let Some(letter) = letters.next() {
        if letter == '\\' && letters.next() == Some('/') {
            return true;
        }
    }
    false
}
