//! Text of files and of others on its way to a terminal, and how the settings are called that it names.

use std::borrow::Cow;

/// Escapes control characters, but for ends of lines: what others wrote cannot move the cursor.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_kept = |c: char| !c.is_control() || c == '\n';
    if text.chars().all(is_kept) {
        return text.into();
    }
    let shown = |c: char| if is_kept(c) { c.to_string() } else { c.escape_default().to_string() };
    text.chars().map(shown).collect::<String>().into()
}

/// Beginning of the variables of all settings of the sidecar.
pub const VARIABLES_BEGIN: &str = "TENSORLANE_";

/// The variable of a setting of the sidecar: `arena.size` is `TENSORLANE_ARENA_SIZE`, `gc.ticketTtl` is `TENSORLANE_GC_TICKET_TTL`.
#[must_use]
pub fn variable(path: &str) -> String {
    let mut name = String::from(VARIABLES_BEGIN);
    for letter in path.chars() {
        match letter {
            '.' => name.push('_'),
            upper if upper.is_ascii_uppercase() => name.extend(['_', upper]),
            lower => name.push(lower.to_ascii_uppercase()),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_lines_end_as_they_did() {
        assert_eq!(printable("\u{1b}[31mred\rok\n"), "\\u{1b}[31mred\\rok\n");
        assert!(matches!(printable("Größe\n"), Cow::Borrowed(_)));
    }
}
