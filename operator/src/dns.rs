//! Names that others wrote, before they become a part of a path of the API server.
//!
//! Kubernetes names objects by RFC 1123. A client of its API writes a name into the path of a request as it is, so that
//! `x/secrets/y` in place of a namespace names another object, which is read with the rights of whoever asks. Everything
//! that a review, an owner's reference or a command line names becomes a [`Label`] or a [`Subdomain`] first. The names in
//! the metadata of an object that the API server gave are those that it has checked itself.

use std::fmt;

use thiserror::Error;

/// The most bytes of a label.
const LABEL_BYTES_MAX: usize = 63;

/// The most bytes of a subdomain.
const SUBDOMAIN_BYTES_MAX: usize = 253;

/// The most letters of a wrong name that are shown.
const SHOWN_MAX: usize = 80;

/// Text that is no name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{what} {name:?} is no name of Kubernetes: write lowercase letters, digits and '-'{dots}, at most {most} bytes"
)]
pub struct BadName {
    what: &'static str,
    name: String,
    dots: &'static str,
    most: usize,
}

/// DNS label: the name of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(String);

/// DNS subdomain: the name of almost every other object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subdomain(String);

impl Label {
    /// Takes a name of 1 to 63 lowercase letters, digits and `-`, with neither end a `-`; `what` it names is for the error.
    ///
    /// # Errors
    /// The text is no such name.
    pub fn new(what: &'static str, text: &str) -> Result<Label, BadName> {
        let most = LABEL_BYTES_MAX;
        if text.len() <= most && is_label(text) {
            return Ok(Label(text.to_owned()));
        }
        Err(BadName { what, name: shown(text), dots: "", most })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Subdomain {
    /// Takes a name of labels with `.` between them, at most 253 bytes; `what` it names is for the error.
    ///
    /// # Errors
    /// The text is no such name.
    pub fn new(what: &'static str, text: &str) -> Result<Subdomain, BadName> {
        let most = SUBDOMAIN_BYTES_MAX;
        if text.len() <= most && text.split('.').all(is_label) {
            return Ok(Subdomain(text.to_owned()));
        }
        Err(BadName { what, name: shown(text), dots: ", with '.' between them", most })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Subdomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Letters, digits and `-`, with neither end a `-`; of any length.
fn is_label(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(|byte| is_letter(*byte)))
        && bytes.iter().all(|byte| is_letter(*byte) || *byte == b'-')
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that lead a path elsewhere, or are no names for another reason.
    const WRONG: [&str; 16] = [
        "",
        ".",
        "..",
        "../x",
        "x/secrets/y",
        "x?watch=true",
        "x#y",
        "x%2fy",
        "x y",
        "x\ny",
        "-x",
        "x-",
        "X",
        "ä",
        "a..b",
        ".a",
    ];

    #[test]
    fn whatever_leads_a_path_elsewhere_is_neither_label_nor_subdomain() {
        for text in WRONG {
            assert!(Label::new("namespace", text).is_err(), "{text:?}");
            assert!(Subdomain::new("claim", text).is_err(), "{text:?}");
        }
        assert!(Label::new("namespace", "a.b").is_err());
    }

    #[test]
    fn names_of_kubernetes_are_taken_up_to_their_most_bytes() {
        for text in ["a", "0", "ml", "kube-system", "a--b", &"x".repeat(63)] {
            assert_eq!(Label::new("namespace", text).unwrap().as_str(), text);
        }
        for text in ["a.b-c.0", "trainer-7d9f-x2", &["x".repeat(126), "y".repeat(126)].join(".")] {
            assert_eq!(Subdomain::new("claim", text).unwrap().as_str(), text);
        }
        assert!(Label::new("namespace", &"x".repeat(64)).is_err());
        assert!(Subdomain::new("claim", &"x".repeat(254)).is_err());
    }

    #[test]
    fn an_error_names_what_was_wrong_and_what_to_write_and_is_short() {
        let error = Label::new("namespace", "a/b").unwrap_err().to_string();
        assert!(error.contains("namespace \"a/b\"") && error.contains("at most 63 bytes"), "{error}");
        assert!(Subdomain::new("claim", &"/".repeat(1 << 20)).unwrap_err().to_string().len() < 300);
    }
}
