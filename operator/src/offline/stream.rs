//! A stream of manifests cut into documents as kubectl cuts it: at lines of `---`, and behind each of several documents of
//! JSON.

use serde::de::IgnoredAny;

/// A document with the line that separates it from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// Line of `---` before the document; empty if there is none.
    pub(super) separator: &'a str,
    /// Everything behind that, up to the next one.
    pub(super) body: &'a str,
    /// Line at which the body begins, counted from 1.
    pub(super) line: usize,
    /// Set if the document is JSON with other JSON before or behind it, and no line of `---` between them.
    pub(super) of_json: bool,
}

impl<'a> Piece<'a> {
    /// Comments and empty lines before anything else.
    pub(super) fn head(&self) -> &'a str {
        let is_head = |line: &&str| line.trim().is_empty() || line.starts_with('#');
        let bytes = self.body.split_inclusive('\n').take_while(is_head).map(str::len).sum();
        &self.body[..bytes]
    }

    /// Space behind everything else.
    pub(super) fn tail(&self) -> &'a str {
        &self.body[self.body.trim_end().len()..]
    }
}

/// Cuts a stream. Separators and bodies, one behind the other, are the stream.
pub(super) fn cut(stream: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut separator, mut begin, mut first_line) = (0..0, 0, 1);
    let mut at = 0;
    for (number, line) in (1..).zip(stream.split_inclusive('\n')) {
        let end = at + line.len();
        if separates(line) {
            add(&mut pieces, &stream[separator], &stream[begin..at], first_line);
            (separator, begin, first_line) = (at..end, end, number + 1);
        }
        at = end;
    }
    add(&mut pieces, &stream[separator], &stream[begin..], first_line);
    pieces
}

/// Adds the documents of a body, each with the space behind it.
fn add<'a>(pieces: &mut Vec<Piece<'a>>, separator: &'a str, body: &'a str, line: usize) {
    let begins = begins_of_json(body);
    let of_json = begins.len() > 1;
    let begins = if of_json { begins } else { vec![0] };
    for (index, begin) in begins.iter().enumerate() {
        let end = begins.get(index + 1).copied().unwrap_or(body.len());
        pieces.push(Piece {
            separator: if index == 0 { separator } else { "" },
            body: &body[*begin..end],
            line: line + body[..*begin].matches('\n').count(),
            of_json,
        });
    }
}

/// Bytes at which the documents of a body begin that has nothing but objects of JSON; empty where it has anything else.
fn begins_of_json(body: &str) -> Vec<usize> {
    let mut values = serde_json::Deserializer::from_str(body).into_iter::<IgnoredAny>();
    let (mut begins, mut at) = (Vec::new(), 0);
    while body[at..].trim_start().starts_with('{') {
        begins.push(if begins.is_empty() { 0 } else { body.len() - body[at..].trim_start().len() });
        match values.next() {
            Some(Ok(_)) => at = values.byte_offset(),
            _ => return Vec::new(),
        }
    }
    if body[at..].trim_start().is_empty() { begins } else { Vec::new() }
}

/// The most letters that are shown of a line.
const SHOWN_MAX: usize = 40;

/// Line with dashes before something else than a comment, counted from 1, and the beginning of that. A template that takes the
/// end of a line away makes such a line of its separator.
pub(super) fn no_separator(stream: &str) -> Option<(usize, String)> {
    let mut lines = (1..).zip(stream.split_inclusive('\n'));
    let (number, line) = lines.find(|(_, line)| line.starts_with("---") && !separates(line))?;
    Some((number, line["---".len()..].trim().chars().take(SHOWN_MAX).collect()))
}

/// Three dashes, and nothing but a comment behind them.
fn separates(line: &str) -> bool {
    let said = line.strip_prefix("---").map(str::trim);
    said.is_some_and(|said| said.is_empty() || said.starts_with('#'))
}
