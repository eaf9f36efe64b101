//! A document of YAML, or of JSON, as the JSON that kubectl would send for it: anchors, merge keys and repeated keys
//! included. It is read by a port of libyaml, of which kubectl's library is one, too; `dialect` knows where they differ.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read as _;
use std::panic;

use libyaml_safer::{Encoding, EventData, MappingStyle, Mark, Parser, ScalarStyle, SequenceStyle};
use serde_json::{Map, Value};

use super::BYTES_MAX;
use super::{dialect, scalar};

/// The most bytes that a document may take once its aliases are followed.
const GROWN_MAX: usize = 4 * BYTES_MAX;
/// The most levels of lists and maps.
const DEPTH_MAX: usize = 256;
/// Begin of the tags of YAML itself, such as that of `!!int`.
const YAML_TAG: &str = "tag:yaml.org,2002:";
/// Bytes that a value costs beside its text.
const VALUE_BYTES: usize = 32;

/// Fault of a document in which the parser gave up at such a tag.
const TAG_WITH_A_COMMA: &str = "a comma stands right behind a tag such as !!str, and kubectl takes it for a part of that: put a space before it";

/// A document, or what stands for one.
#[derive(Debug, PartialEq)]
pub(super) struct Document {
    /// The first document of the text; null where there is none.
    pub(super) value: Value,
    /// Set if another one follows it, which kubectl does not read.
    pub(super) more: bool,
}

/// Fault of a document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Counted from 1.
    pub(super) line: usize,
    /// Sentence without its end.
    pub(super) text: String,
}

/// Reads the first document of a text.
///
/// # Errors
/// The text is not YAML, or kubectl would not take it.
pub(super) fn read(text: &str) -> Result<Document, Fault> {
    // As kubectl does: JSON has escapes of its own, which YAML does not take.
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(Document { value, more: false });
    }
    // The parser has places at which it gives up with a panic, such as a tag with a comma behind it.
    let read = panic::catch_unwind(|| read_yaml(text));
    read.unwrap_or_else(|_| {
        let (line, fault) = match dialect::line_of_a_tag_with_a_comma(text) {
            Some(line) => (line, TAG_WITH_A_COMMA),
            None => (1, "the parser gave up: write its tags in another form"),
        };
        Err(Fault { line, text: fault.to_owned() })
    })
}

fn read_yaml(text: &str) -> Result<Document, Fault> {
    let colon = dialect::stand_in(text);
    let mut text = Cow::Borrowed(text);
    let mut respelled = 0;
    loop {
        let error = match read_once(&text, colon) {
            Ok(document) => return Ok(document),
            Err(Halt::Ours(fault)) => return Err(fault),
            Err(Halt::Parsers(error)) => error,
        };
        let next = dialect::respelled(&text, &error, colon);
        let Some(next) = next.filter(|_| respelled < dialect::RESPELLED_MAX) else {
            return Err(fault(&error));
        };
        text = Cow::Owned(next);
        respelled += 1;
    }
}

/// Place at which a reading stopped.
enum Halt {
    /// The parser does not know the form.
    Parsers(libyaml_safer::Error),
    /// The parser took it, and it is refused here.
    Ours(Fault),
}

/// Reads the text as the parser does. `colon`: the letter that stands for colons of plain texts.
fn read_once(text: &str, colon: Option<char>) -> Result<Document, Halt> {
    let mut reader = Reader { colon, ..Reader::default() };
    // kubectl ends each line, and so the last one.
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let mut parser = Parser::new();
    parser.set_encoding(Encoding::Utf8);
    parser.set_input(text.as_bytes().chain(end.as_bytes()));
    let mut is_read = false;
    while !is_read {
        let event = parser.parse().map_err(Halt::Parsers)?;
        is_read = matches!(event.data, EventData::DocumentEnd { .. } | EventData::StreamEnd);
        let line = line_of(event.start_mark);
        let written = between(text, event.start_mark, event.end_mark);
        let taken = match dialect::refusal(&event.data, written, reader.is_in_flow()) {
            Some(refusal) => Err(refusal.to_owned()),
            None => reader.take(event.data),
        };
        taken.map_err(|text| Halt::Ours(Fault { line, text }))?;
    }
    // Behind its end nothing is read: what stands there, whether it is YAML or not, is lost to kubectl.
    let more = !matches!(parser.parse().map(|event| event.data), Ok(EventData::StreamEnd));
    Ok(Document { value: reader.root, more })
}

/// Fault that the parser found, with what it was reading.
fn fault(error: &libyaml_safer::Error) -> Fault {
    let mark = error.problem_mark().or_else(|| error.context_mark());
    let text = match (error.problem(), error.context()) {
        ("", _) => error.to_string(),
        (problem @ "found unexpected ':'", _) => {
            format!("{problem} before a comma, brace or bracket: put a space behind it, or quote the text")
        }
        (problem, Some(context)) => format!("{problem} {context}"),
        (problem, None) => problem.to_owned(),
    };
    Fault { line: mark.map_or(1, line_of), text }
}

/// Line of a mark, counted from 1.
fn line_of(mark: Mark) -> usize {
    usize::try_from(mark.line).unwrap_or(usize::MAX).saturating_add(1)
}

/// Text between two marks.
fn between(text: &str, start: Mark, end: Mark) -> &str {
    let at = |mark: Mark| usize::try_from(mark.index).unwrap_or(usize::MAX);
    text.get(at(start)..at(end)).unwrap_or_default()
}

/// A value, and the bytes that it costs.
type Costed = (Value, usize);

#[derive(Default)]
struct Reader {
    /// Letter that stands for a colon in plain texts.
    colon: Option<char>,
    open: Vec<Open>,
    anchors: HashMap<String, Costed>,
    grown: usize,
    kept: usize,
    root: Value,
}

/// A list or a map whose end has not come.
struct Open {
    anchor: Option<String>,
    /// Set if it stands in braces or brackets.
    is_flow: bool,
    cost: usize,
    of: Of,
}

enum Of {
    List(Vec<Value>),
    Map { entries: Map<String, Value>, key: Option<Key> },
}

enum Key {
    Named(String),
    /// `<<`: the value's entries are taken over.
    Merge,
}

impl Reader {
    fn take(&mut self, event: EventData) -> Result<(), String> {
        match event {
            EventData::Scalar { anchor, tag, value, plain_implicit, style, .. } => {
                let value = self.with_colons(value, style);
                let is_plain = style == ScalarStyle::Plain && plain_implicit;
                let merges = is_plain && tag.is_none() && value == "<<";
                let cost = VALUE_BYTES + value.len();
                let value = resolve(value, is_plain, tag.as_deref())?;
                self.complete((value, cost), anchor, merges)
            }
            EventData::Alias { anchor } => {
                let value = self.anchors.get(&anchor).cloned();
                let value = value.ok_or_else(|| {
                    match self.open.iter().any(|open| open.anchor.as_ref() == Some(&anchor)) {
                        true => format!("the alias *{anchor} stands inside of what it names"),
                        false => format!("the alias *{anchor} names nothing before it"),
                    }
                });
                self.complete(value?, None, false)
            }
            EventData::SequenceStart { anchor, style, .. } => {
                self.begin(anchor, style == SequenceStyle::Flow, Of::List(Vec::new()))
            }
            EventData::MappingStart { anchor, style, .. } => {
                let of = Of::Map { entries: Map::new(), key: None };
                self.begin(anchor, style == MappingStyle::Flow, of)
            }
            EventData::SequenceEnd | EventData::MappingEnd => {
                let Some(Open { anchor, cost, of, .. }) = self.open.pop() else { return Ok(()) };
                let value = match of {
                    Of::List(items) => Value::Array(items),
                    Of::Map { entries, .. } => Value::Object(entries),
                };
                // Its parts are counted already.
                self.grown -= cost;
                self.complete((value, cost + VALUE_BYTES), anchor, false)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether what comes next stands in braces or brackets.
    fn is_in_flow(&self) -> bool {
        self.open.last().is_some_and(|open| open.is_flow)
    }

    /// A text with its colons.
    fn with_colons(&self, value: String, style: ScalarStyle) -> String {
        match self.colon {
            Some(colon) if style == ScalarStyle::Plain && value.contains(colon) => value.replace(colon, ":"),
            _ => value,
        }
    }

    fn begin(&mut self, anchor: Option<String>, is_flow: bool, of: Of) -> Result<(), String> {
        if self.open.len() == DEPTH_MAX {
            return Err(format!("there are more than {DEPTH_MAX} levels: make it flatter"));
        }
        // From here on the name is this value's, which is not whole yet.
        anchor.iter().for_each(|anchor| drop(self.anchors.remove(anchor)));
        self.open.push(Open { anchor, is_flow, cost: 0, of });
        Ok(())
    }

    /// A value has come whole: it goes where it belongs.
    fn complete(
        &mut self,
        (value, cost): Costed,
        anchor: Option<String>,
        merges: bool,
    ) -> Result<(), String> {
        self.grown += cost;
        if self.grown > GROWN_MAX {
            return Err(format!("its aliases make more than {GROWN_MAX} bytes of it: write less of them"));
        }
        if let Some(anchor) = anchor {
            // What is kept for aliases is memory, too, whether one comes or not.
            self.kept += cost;
            if self.kept > GROWN_MAX {
                return Err(format!("its anchors hold more than {GROWN_MAX} bytes: write fewer of them"));
            }
            self.anchors.insert(anchor, (value.clone(), cost));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = value;
            return Ok(());
        };
        open.cost += cost;
        match &mut open.of {
            Of::List(items) => items.push(value),
            Of::Map { entries, key } => match key.take() {
                None if merges => *key = Some(Key::Merge),
                None => *key = Some(Key::Named(scalar::key(&value)?)),
                Some(Key::Merge) => merge(entries, value)?,
                Some(Key::Named(name)) => _ = entries.insert(name, value),
            },
        }
        Ok(())
    }
}

/// Takes entries over: those that come later win, whatever was written in the map itself before; of a list, the first map wins.
fn merge(entries: &mut Map<String, Value>, value: Value) -> Result<(), String> {
    let maps = match value {
        Value::Array(items) => items,
        other => vec![other],
    };
    for map in maps.into_iter().rev() {
        let Value::Object(map) = map else {
            return Err("<< takes a map, or a list of maps".to_owned());
        };
        entries.extend(map);
    }
    Ok(())
}

fn resolve(text: String, is_plain: bool, tag: Option<&str>) -> Result<Value, String> {
    match tag.map(|tag| tag.strip_prefix(YAML_TAG)) {
        Some(Some(kind)) => scalar::tagged(kind, &text),
        None if is_plain => scalar::plain(&text),
        _ => Ok(Value::String(text)),
    }
}
