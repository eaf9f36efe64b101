//! A stream of manifests cut into documents as kubectl cuts it: at lines of `---`.

/// A document with the line that separates it from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// Line of `---` before the document; empty if there is none.
    pub(super) separator: &'a str,
    /// Everything behind that, up to the next one.
    pub(super) body: &'a str,
    /// Line at which the body begins, counted from 1.
    pub(super) line: usize,
}

impl<'a> Piece<'a> {
    /// Comments and empty lines before anything else.
    pub(super) fn head(&self) -> &'a str {
        let is_head = |line: &&str| line.trim().is_empty() || line.starts_with('#');
        let bytes = self.body.split_inclusive('\n').take_while(is_head).map(str::len).sum();
        &self.body[..bytes]
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
            pieces.push(Piece { separator: &stream[separator], body: &stream[begin..at], line: first_line });
            (separator, begin, first_line) = (at..end, end, number + 1);
        }
        at = end;
    }
    pieces.push(Piece { separator: &stream[separator], body: &stream[begin..], line: first_line });
    pieces
}

/// Three dashes, and nothing but a comment behind them.
fn separates(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| {
        let said = rest.trim();
        said.is_empty() || (said.starts_with('#') && rest.starts_with([' ', '\t']))
    })
}
