//! Text of files and of others on its way to a terminal.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_lines_end_as_they_did() {
        assert_eq!(printable("\u{1b}[31mred\rok\n"), "\\u{1b}[31mred\\rok\n");
        assert!(matches!(printable("Größe\n"), Cow::Borrowed(_)));
    }
}
