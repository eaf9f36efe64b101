//! Colours, on a terminal only and never under `NO_COLOR`.

use std::io::IsTerminal;

/// Style: whether words are coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    colours: bool,
}

impl Style {
    /// Colours if both outputs are terminals and the user does not refuse them.
    pub(crate) fn of_this_terminal() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        Self { colours: terminal && !refused }
    }

    /// Never a colour.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self { colours: false }
    }

    /// Headings.
    pub(crate) fn strong(self, text: &str) -> String {
        self.wrapped("1", text)
    }

    /// Text about what went well.
    pub(crate) fn good(self, text: &str) -> String {
        self.wrapped("32", text)
    }

    /// Text about what failed.
    pub(crate) fn bad(self, text: &str) -> String {
        self.wrapped("1;31", text)
    }

    /// Text about what was left out, and notes.
    pub(crate) fn warned(self, text: &str) -> String {
        self.wrapped("33", text)
    }

    /// Commands and other small print.
    pub(crate) fn faint(self, text: &str) -> String {
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
    fn a_plain_style_adds_nothing() {
        assert_eq!(Style::plain().bad("x"), "x");
    }

    #[test]
    fn a_coloured_word_ends_its_colour() {
        assert_eq!(Style { colours: true }.good("ok"), "\x1b[32mok\x1b[0m");
    }
}
