//! Mistakes in a configuration, all of them at once.

use std::fmt;

/// A thing that is wrong, where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// A dotted path with its file, or the name of a variable.
    pub place: String,
    /// The value found there, shortened.
    pub value: String,
    /// Text of what is wrong with it.
    pub wrong: String,
    /// Text of what is accepted in its place.
    pub accepted: String,
}

/// Every mistake of a configuration; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes(pub Vec<Mistake>);

/// The most characters of a value that a mistake repeats.
const VALUE_CHARS_MAX: usize = 80;

impl Mistake {
    pub(crate) fn new(place: impl Into<String>, value: &str, wrong: impl Into<String>) -> Mistake {
        let value = value.chars().take(VALUE_CHARS_MAX).collect();
        Mistake { place: place.into(), value, wrong: wrong.into(), accepted: String::new() }
    }

    pub(crate) fn accepted(mut self, accepted: impl Into<String>) -> Mistake {
        self.accepted = accepted.into();
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place)?;
        if !self.value.is_empty() {
            write!(f, " = {:?}", self.value)?;
        }
        write!(f, ": {}", self.wrong)?;
        if !self.accepted.is_empty() {
            write!(f, "; accepted: {}", self.accepted)?;
        }
        Ok(())
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0.len() == 1 { "mistake" } else { "mistakes" };
        write!(f, "{} {plural} in the configuration:", self.0.len())?;
        self.0.iter().try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}
