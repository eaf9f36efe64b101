//! JSON as YAML of which kubectl, and every other reader of YAML 1.1 or 1.2, makes the same JSON again.
//!
//! A text that any of them could take for something else is quoted. Scripts of several lines stay blocks.

use serde_json::{Map, Value};

use super::scalar;

/// The most characters of a key that stands before its colon without a mark, with room for escapes.
const KEY_MAX: usize = 200;

/// The YAML of a value, with a line end.
pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => entries(&mut out, map, 0, ""),
        Value::Array(list) if !list.is_empty() => items(&mut out, list, 0),
        other => {
            out.push_str(flat(other, 0).trim_start());
            out.push('\n');
        }
    }
    out
}

/// Writes the entries of a map, the first one behind `lead`.
fn entries(out: &mut String, map: &Map<String, Value>, indent: usize, lead: &str) {
    for (number, (key, value)) in map.iter().enumerate() {
        match number {
            0 if !lead.is_empty() => out.push_str(lead),
            _ => out.extend(std::iter::repeat_n(' ', indent)),
        }
        let name = inline(key);
        if name.len() > KEY_MAX {
            out.push_str("? ");
            out.push_str(&name);
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
        } else {
            out.push_str(&name);
        }
        out.push(':');
        behind(out, value, indent);
    }
}

/// Writes a value behind a colon.
fn behind(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            entries(out, map, indent + 2, "");
        }
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            items(out, list, indent);
        }
        other => {
            out.push_str(&flat(other, indent));
            out.push('\n');
        }
    }
}

fn items(out: &mut String, list: &[Value], indent: usize) {
    for value in list {
        let dash = format!("{:indent$}-", "");
        match value {
            Value::Object(map) if !map.is_empty() => entries(out, map, indent + 2, &format!("{dash} ")),
            Value::Array(list) if !list.is_empty() => {
                out.push_str(&dash);
                out.push('\n');
                items(out, list, indent + 2);
            }
            other => {
                out.push_str(&dash);
                out.push_str(&flat(other, indent));
                out.push('\n');
            }
        }
    }
}

/// A scalar, or an empty list or map, with the space before it.
fn flat(value: &Value, indent: usize) -> String {
    match value {
        Value::String(text) if is_block(text) => block(text, indent + 2),
        Value::String(text) => format!(" {}", inline(text)),
        other => format!(" {other}"),
    }
}

/// A text on one line: as it is where nobody takes it for anything else, else in double quotes.
fn inline(text: &str) -> String {
    let first = text.bytes().next();
    let begins = first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'/' || byte == b'_');
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"/_.-:@=+,%()[]{}*;$ ".contains(&byte);
    let is_plain = begins
        && text.bytes().all(usual)
        && !text.contains(": ")
        && !text.ends_with([':', ' '])
        && scalar::plain(text).is_ok_and(|value| value.is_string());
    if is_plain { text.to_owned() } else { quoted(text) }
}

fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            other if is_printable(other) => out.push(other),
            other if (other as u32) < 0x100 => out.push_str(&format!("\\x{:02x}", other as u32)),
            other => out.push_str(&format!("\\u{:04x}", other as u32)),
        }
    }
    out.push('"');
    out
}

/// Returns whether every reader takes a character as it is, and for no end of a line.
fn is_printable(character: char) -> bool {
    match character {
        '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => false,
        ' '..='~' | '\u{a0}'.. => true,
        _ => false,
    }
}

/// Returns whether a text is written as a literal block: several lines, of which the first begins with no space.
fn is_block(text: &str) -> bool {
    let first = text.chars().next();
    text.trim_end_matches('\n').contains('\n')
        && first.is_some_and(|first| !first.is_whitespace() && first != '#')
        && text.chars().all(|character| character == '\n' || character == '\t' || is_printable(character))
}

fn block(text: &str, indent: usize) -> String {
    let (body, chomping) = match text.strip_suffix('\n') {
        None => (text, "-"),
        Some(body) if body.ends_with('\n') => (body, "+"),
        Some(body) => (body, ""),
    };
    let mut out = format!(" |{chomping}");
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', indent));
            out.push_str(line);
        }
    }
    out
}
