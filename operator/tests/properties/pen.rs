//! Writes trees as people do: block and flow style, every style of quoting, comments, breaks of lines, indents of two and of four.

use serde_json::Value;
use tensorlane_fuzz::Dice;

use crate::people::{Key, Node};

/// Words that are no texts where nothing stands around them, and begins of what may be a number or a date.
const NO_TEXTS: [&str; 13] =
    ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan", "e", "x"];

/// Writes a document, which is a map.
pub(crate) fn written(root: &Node, dice: &mut Dice) -> String {
    let Node::Map(entries) = root else { panic!("a document is a map") };
    let mut pen = Pen { dice, out: String::new(), is_kept: false };
    pen.between(0);
    pen.block_map(entries, 0, false);
    pen.out
}

struct Pen<'a> {
    dice: &'a mut Dice,
    out: String,
    /// Set behind a block whose last empty lines are its own: one more would be, too.
    is_kept: bool,
}

impl Pen<'_> {
    /// Comments and empty lines, where a line begins.
    fn between(&mut self, indent: usize) {
        if !std::mem::take(&mut self.is_kept) && self.dice.one_in(10) {
            self.out.push('\n');
        }
        if self.dice.one_in(10) {
            self.out += &format!("{:indent$}# a comment: 'with' {{marks}}\n", "");
        }
    }

    fn end_of_line(&mut self) {
        let ends = ["\n", "\n", "\n", "\n", " # a comment: it's one\n", "  \n"];
        self.out += self.dice.pick(&ends).unwrap();
    }

    /// Writes a map; the first entry goes on behind a dash if there is one.
    fn block_map(&mut self, entries: &[(Key, Node)], indent: usize, behind_dash: bool) {
        for (number, (key, node)) in entries.iter().enumerate() {
            if number > 0 || !behind_dash {
                self.between(indent);
                self.out += &format!("{:indent$}", "");
            }
            let (key, asked) = (self.key(key), self.dice.one_in(16));
            match asked {
                true => self.out += &format!("? {key}\n{:indent$}:", ""),
                false => self.out += &format!("{key}:"),
            }
            self.behind(node, indent, false);
        }
    }

    fn block_list(&mut self, items: &[Node], indent: usize) {
        for item in items {
            self.between(indent);
            self.out += &format!("{:indent$}-", "");
            match item {
                Node::Map(entries) if !entries.is_empty() && self.dice.percent(80) => {
                    let spaces = 1 + self.dice.below(3);
                    self.out += &" ".repeat(spaces);
                    self.block_map(entries, indent + 1 + spaces, true);
                }
                other => self.behind(other, indent, true),
            }
        }
    }

    /// Writes what stands behind a colon or a dash, with the end of its line.
    fn behind(&mut self, node: &Node, indent: usize, in_list: bool) {
        let inner = indent + self.dice.pick(&[2, 2, 2, 4]).unwrap();
        match node {
            Node::Named(name, node) => {
                self.out += &format!(" &{name}");
                self.behind(node, indent, in_list);
            }
            Node::Text(text) => self.text(text, indent),
            Node::Map(entries) if !entries.is_empty() && !self.flows() => {
                self.end_of_line();
                self.block_map(entries, inner, false);
            }
            Node::List(items) if !items.is_empty() && !self.flows() => {
                self.end_of_line();
                let beside = !in_list && self.dice.one_in(2);
                self.block_list(items, if beside { indent } else { inner });
            }
            Node::Spelled("", _) => self.end_of_line(),
            other => {
                self.out.push(' ');
                let flow = self.flow(other, inner);
                self.out += &flow;
                self.end_of_line();
            }
        }
    }

    fn flows(&mut self) -> bool {
        self.dice.one_in(4)
    }

    /// A node within brackets, or a scalar alone.
    fn flow(&mut self, node: &Node, indent: usize) -> String {
        match node {
            Node::Spelled(text, value) => match text.contains([',', ':']) || text.is_empty() {
                true => quoted_value(value),
                false => (*text).to_owned(),
            },
            Node::Text(text) => self.inline(text, indent, true),
            Node::Alias(name) => format!("*{name}"),
            Node::Named(name, node) => format!("&{name} {}", self.flow(node, indent)),
            Node::List(items) => {
                let items: Vec<String> = items.iter().map(|item| self.flow(item, indent)).collect();
                self.bracketed(["[", "]"], &items, indent)
            }
            Node::Map(entries) => {
                let mut all = Vec::new();
                for (key, node) in entries {
                    let key = self.key(key);
                    let adjacent = key.starts_with('"') && self.dice.one_in(2);
                    let colon = if adjacent { ":" } else { ": " };
                    all.push(format!("{key}{colon}{}", self.flow(node, indent)));
                }
                self.bracketed(["{", "}"], &all, indent)
            }
        }
    }

    fn bracketed(&mut self, [begin, end]: [&str; 2], parts: &[String], indent: usize) -> String {
        let line = format!("\n{:indent$}", "");
        let comment = format!(" # why{line}");
        let (open, between, close) = match self.dice.below(6) {
            0 => (line.as_str(), format!(",{line}"), line.as_str()),
            1 => ("", format!(",{comment}"), ""),
            2 => (" ", ", ".to_owned(), " "),
            _ => ("", ", ".to_owned(), ""),
        };
        if parts.is_empty() {
            format!("{begin}{end}")
        } else {
            format!("{begin}{open}{}{close}{end}", parts.join(&between))
        }
    }

    fn key(&mut self, key: &Key) -> String {
        match key {
            Key::Spelled(text, _) => (*text).to_owned(),
            Key::Merge => "<<".to_owned(),
            // A name may go on in no other line.
            Key::Text(text) => match self.dice.below(4) {
                0 => double_quoted(text, self.dice, None),
                1 => single_quoted(text, None).unwrap_or_else(|| double_quoted(text, self.dice, None)),
                _ => plain(text).unwrap_or_else(|| double_quoted(text, self.dice, None)),
            },
        }
    }

    /// Writes a text behind a colon or a dash, as a block or not.
    fn text(&mut self, text: &str, indent: usize) {
        let inner = indent + 2;
        let printable = text.chars().all(|letter| letter >= ' ' || letter == '\n' || letter == '\t');
        let block = match self.dice.below(3) {
            0 if printable && !text.trim_matches('\n').is_empty() => Some(literal(text, inner)),
            1 => folded(text, inner),
            _ => None,
        };
        match block {
            Some(block) => {
                self.is_kept = text.ends_with("\n\n");
                self.out += &format!(" {block}");
            }
            None => {
                let inline = self.inline(text, inner, false);
                self.out += &format!(" {inline}");
                self.end_of_line();
            }
        }
    }

    /// A text in one of the styles that may stand in a line; it may go on in the next.
    fn inline(&mut self, text: &str, indent: usize, in_flow: bool) -> String {
        let breaks = self.dice.one_in(4).then_some(indent);
        let fits = |text: &String| !in_flow || !text.contains([',', '[', ']', '{', '}']);
        let style = match self.dice.below(3) {
            0 => plain(text).filter(fits).map(|text| broken(&text, breaks)),
            1 => single_quoted(text, breaks),
            _ => None,
        };
        style.unwrap_or_else(|| double_quoted(text, self.dice, breaks))
    }
}

/// A value that a spelling stands for, where the spelling itself has no place.
fn quoted_value(value: &Value) -> String {
    value.to_string()
}

/// The text as it is, where it is nothing else.
fn plain(text: &str) -> Option<String> {
    let begins = text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '/');
    let usual = text
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || "/_.- ".contains(letter) || !letter.is_ascii());
    let ends = !text.ends_with(' ') && !text.contains("  ");
    let is_word = NO_TEXTS.iter().any(|word| text.eq_ignore_ascii_case(word));
    (begins && usual && ends && !is_word).then(|| text.to_owned())
}

fn single_quoted(text: &str, breaks: Option<usize>) -> Option<String> {
    let fits = text.chars().all(|letter| letter >= ' ');
    fits.then(|| format!("'{}'", broken(&text.replace('\'', "''"), breaks)))
}

/// The text with escapes: those that it needs, and some that it does not.
fn double_quoted(text: &str, dice: &mut Dice, breaks: Option<usize>) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            // kubectl takes that, too.
            '\'' if dice.one_in(2) => out += "\\'",
            '\n' => out += "\\n",
            '\t' => out += "\\t",
            letter if letter < ' ' => out += &format!("\\x{:02x}", u32::from(letter)),
            letter if letter > '\u{ffff}' => out += &format!("\\U{:08X}", u32::from(letter)),
            letter if letter != ' ' && dice.one_in(12) => out += &format!("\\u{:04x}", u32::from(letter)),
            letter => out.push(letter),
        }
    }
    format!("\"{}\"", broken(&out, breaks))
}

/// The text with its first space between two words, if there is one, as a break of the line.
fn broken(text: &str, breaks: Option<usize>) -> String {
    let Some(indent) = breaks else { return text.to_owned() };
    let letters: Vec<char> = text.chars().collect();
    let between = |at: &usize| {
        letters[*at] == ' ' && letters[at - 1].is_alphanumeric() && letters[at + 1].is_alphanumeric()
    };
    match (1..letters.len().saturating_sub(1)).find(between) {
        None => text.to_owned(),
        Some(at) => {
            let [before, after] = [&letters[..at], &letters[at + 1..]].map(String::from_iter);
            format!("{before}\n{:indent$}{after}", "")
        }
    }
}

/// The text as a literal block.
fn literal(text: &str, indent: usize) -> String {
    let body = text.trim_end_matches('\n');
    let chomping = ["-", "", "+"][(text.len() - body.len()).min(2)];
    let begins_with_space = body.trim_start_matches('\n').starts_with([' ', '\t']) || body.starts_with('\n');
    let indicator = if begins_with_space { "2" } else { "" };
    let mut out = format!("|{indicator}{chomping}\n");
    for line in body.split('\n') {
        out += &if line.is_empty() { "\n".to_owned() } else { format!("{:indent$}{line}\n", "") };
    }
    out + &"\n".repeat((text.len() - body.len()).saturating_sub(1))
}

/// The text as a folded block, where its lines are such that nothing of them is lost.
fn folded(text: &str, indent: usize) -> Option<String> {
    let body = text.trim_end_matches('\n');
    let lines: Vec<&str> = body.split('\n').collect();
    let is_usual = |line: &&str| {
        !line.is_empty() && !line.starts_with([' ', '\t']) && line.chars().all(|letter| letter >= ' ')
    };
    if text.len() - body.len() > 1 || !lines.iter().all(is_usual) {
        return None;
    }
    let chomping = if text.len() == body.len() { "-" } else { "" };
    let lines: Vec<String> =
        lines.iter().map(|line| format!("{:indent$}{}", "", broken(line, Some(indent)))).collect();
    Some(format!(">{chomping}\n{}\n", lines.join("\n\n")))
}
