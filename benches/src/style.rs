//! Colours, on a terminal only and never under `NO_COLOR`.

use std::io::IsTerminal;

/// Style: whether words are coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    colours: bool,
}

impl Style {
    /// Colours if the output is a terminal and the user does not refuse them.
    pub fn of_this_terminal() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colours: std::io::stdout().is_terminal() && !refused }
    }

    /// Never a colour.
    pub const fn plain() -> Self {
        Self { colours: false }
    }

    /// Headings.
    pub fn strong(self, text: &str) -> String {
        self.wrapped("1", text)
    }

    /// Style of what went well.
    pub fn good(self, text: &str) -> String {
        self.wrapped("32", text)
    }

    /// Style of what failed.
    pub fn bad(self, text: &str) -> String {
        self.wrapped("1;31", text)
    }

    /// Small print.
    pub fn faint(self, text: &str) -> String {
        self.wrapped("2", text)
    }

    fn wrapped(self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coloured_word_ends_its_colour_and_a_plain_one_has_none() {
        assert_eq!(Style { colours: true }.good("ok"), "\x1b[32mok\x1b[0m");
        assert_eq!(Style::plain().bad("x"), "x");
    }
}
