//! The files under `tests/cluster/config`: text with `{{places}}` to be filled in.

use crate::failure::Failure;

/// A value for each place.
#[derive(Debug, Clone, Default)]
pub(crate) struct Values(Vec<(&'static str, String)>);

impl Values {
    /// Adds a further one.
    pub(crate) fn with(mut self, place: &'static str, value: impl Into<String>) -> Self {
        self.0.push((place, value.into()));
        self
    }

    /// The text with every place filled; a place without a value is a mistake.
    pub(crate) fn fill(&self, text: &str) -> Result<String, Failure> {
        let mut filled = text.to_owned();
        for (place, value) in &self.0 {
            filled = filled.replace(&format!("{{{{{place}}}}}"), value);
        }
        let left = filled.split_once("{{").and_then(|(_, rest)| rest.split_once("}}"));
        match left.filter(|(place, _)| place.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')) {
            None => Ok(filled),
            Some((place, _)) => {
                Err(Failure::new(format!("a configuration has no value for {{{{{place}}}}}"))
                    .remedy("add it where the values are made, in xtask/src/cluster"))
            }
        }
    }

    /// The arguments in a text: one a line, without comments.
    pub(crate) fn arguments(&self, text: &str) -> Result<Vec<String>, Failure> {
        let filled = self.fill(text)?;
        Ok(filled
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(str::to_owned)
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_and_comments_left_out() {
        let values = Values::default().with("api", "1.2.3.4").with("pki", "/p");
        let arguments = values.arguments("--a={{api}}\n# why\n--b={{pki}}/{{pki}}\n\n").unwrap();
        assert_eq!(arguments, ["--a=1.2.3.4", "--b=/p//p"]);
    }

    #[test]
    fn a_place_without_a_value_is_named() {
        let failure = Values::default().with("api", "x").fill("{{api}} {{apo}}").unwrap_err();
        assert!(failure.what().contains("{{apo}}"), "{failure:?}");
    }
}
