//! A document of YAML, or of JSON, as the JSON that kubectl would send for it: anchors, merge keys and repeated keys
//! included.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Value};

use super::BYTES_MAX;
use super::scalar;

/// The most bytes that a document may take once its aliases are followed.
const GROWN_MAX: usize = 4 * BYTES_MAX;
/// The most levels of lists and maps.
const DEPTH_MAX: usize = 256;
/// Bytes that a value costs beside its text.
const VALUE_BYTES: usize = 32;

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
    let mut reader = Reader::default();
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| Fault { line: error.marker().line(), text: error.info().to_owned() })?;
        documents += usize::from(matches!(event, Event::DocumentStart(_)));
        if documents > 1 {
            return Ok(Document { value: reader.root, more: true });
        }
        reader.take(event).map_err(|text| Fault { line: span.start.line(), text })?;
    }
    Ok(Document { value: reader.root, more: false })
}

/// A value, and the bytes that it costs.
type Costed = (Value, usize);

#[derive(Default)]
struct Reader {
    open: Vec<Open>,
    anchors: HashMap<usize, Costed>,
    grown: usize,
    kept: usize,
    root: Value,
}

/// A list or a map whose end has not come.
struct Open {
    anchor: usize,
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
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = resolve(&text, style, tag.as_deref())?;
                let merges = style == ScalarStyle::Plain && tag.is_none() && text == "<<";
                self.complete((value, VALUE_BYTES + text.len()), anchor, merges)
            }
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned();
                self.complete(value.ok_or("an alias stands inside of what it names")?, 0, false)
            }
            Event::SequenceStart(anchor, _) => self.begin(anchor, Of::List(Vec::new())),
            Event::MappingStart(anchor, _) => self.begin(anchor, Of::Map { entries: Map::new(), key: None }),
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { anchor, cost, of }) = self.open.pop() else { return Ok(()) };
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

    fn begin(&mut self, anchor: usize, of: Of) -> Result<(), String> {
        if self.open.len() == DEPTH_MAX {
            return Err(format!("there are more than {DEPTH_MAX} levels: make it flatter"));
        }
        self.open.push(Open { anchor, cost: 0, of });
        Ok(())
    }

    /// A value has come whole: it goes where it belongs.
    fn complete(&mut self, (value, cost): Costed, anchor: usize, merges: bool) -> Result<(), String> {
        self.grown += cost;
        if self.grown > GROWN_MAX {
            return Err(format!("its aliases make more than {GROWN_MAX} bytes of it: write less of them"));
        }
        if anchor != 0 {
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

fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    match tag {
        Some(tag) if tag.is_yaml_core_schema() => scalar::tagged(&tag.suffix, text),
        None if style == ScalarStyle::Plain => scalar::plain(text),
        _ => Ok(Value::String(text.to_owned())),
    }
}
