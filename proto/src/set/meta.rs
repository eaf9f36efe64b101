//! `meta.json` of one level of a directory, as tensordict 0.15.3 writes it: format version 1, read also without a version.
//!
//! ```text
//! {"obs": {"device": "cpu", "shape": [4, 6], "dtype": "torch.float32", "is_nested": false},
//!  "next": {"type": "TensorDict"},
//!  "shape": [4], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>",
//!  "_format_version": 1, "_class": "tensordict:TensorDict"}
//! ```

mod json;

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use thiserror::Error;

use self::json::{Object, to_python_json};
use super::class::{ClassMeta, STACK_DIM};
use super::value::beyond_64_bits;

/// File of each level of a directory of tensordict, which has a [`Level`].
pub const LEVEL_META: &str = "meta.json";
/// The newest format version of tensordict that is read, and the one that is written.
const FORMAT_VERSION: u64 = 1;
/// Keys that tensordict keeps for itself. A leaf of that name is lost when tensordict saves it.
const RESERVED: [&str; 8] =
    ["shape", "device", "_type", "_format_version", "_class", "_names", "_tensordict", ".tensorlane"];
const TENSORDICT: &str = "<class 'tensordict._td.TensorDict'>";
const NON_TENSOR: &str = "<class 'tensordict.tensorclass.NonTensorData'>";

/// Content of one `meta.json`.
#[derive(Clone, Debug, PartialEq)]
pub enum Level {
    /// A tree: its keys are files and directories beside the `meta.json`.
    Tree {
        /// Leading dimensions that all below share.
        batch: Vec<u64>,
        /// Names of the batch dimensions.
        names: Option<Vec<Option<String>>>,
        /// Keys in the order of the file.
        entries: Vec<(String, LevelEntry)>,
    },
    /// A value that is no tensor.
    Value(Value),
    /// A lazy stack or a tensorclass, whose tensors are in directories beside the `meta.json`.
    Class(ClassMeta),
}

/// Entry under a key of a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelEntry {
    /// A tensor: the file `<key>.memmap`.
    Tensor(TensorMeta),
    /// A directory with a `meta.json` of its own.
    Below {
        /// Name of the class, such as `TensorDict` or `NonTensorData`.
        class: String,
    },
}

/// Description of one file of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMeta {
    /// Sizes of the dimensions.
    pub shape: Vec<u64>,
    /// The element type in torch's words.
    pub dtype: String,
}

/// Why a `meta.json` is not taken, or cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LevelError {
    /// No JSON object.
    #[error("it is no JSON object: {0}")]
    Json(String),
    /// A format that came after this release.
    #[error(
        "it has format version {0}; versions up to {FORMAT_VERSION} are read: save it again by tensordict 0.15"
    )]
    Version(String),
    /// A key that stands twice, of which one reader takes the first and another one the last.
    #[error("the key {key:?} stands there twice; give each key once")]
    KeyTwice {
        /// The key.
        key: String,
    },
    /// A whole number that would become another one.
    #[error("the number {0} has more than 64 bits, which JSON of this release cannot keep; save it as text")]
    Number(String),
    /// A class that has another form.
    #[error(
        "it is of the class {0}; TensorDict, NonTensorData, lazy stacks and tensorclasses over a TensorDict or a stack are read: convert it by `.to_tensordict()` first"
    )]
    Class(String),
    /// A value that is out of place.
    #[error("{key} is {found}, not {wanted}")]
    Field {
        /// The key.
        key: String,
        /// Value that stands there.
        found: String,
        /// Value that should stand there.
        wanted: &'static str,
    },
    /// A nested tensor has no one shape.
    #[error("{key} is a nested tensor, which is not read; pad it, or save its parts apart")]
    Nested {
        /// The key.
        key: String,
    },
    /// A key that tensordict would lose.
    #[error("the key {key:?} is one that tensordict keeps for itself and would lose; rename it")]
    Reserved {
        /// The key.
        key: String,
    },
}

impl Level {
    /// Reads the bytes of a `meta.json`.
    ///
    /// # Errors
    /// [`LevelError`], with the key and what stands there.
    pub fn read(bytes: &[u8]) -> Result<Self, LevelError> {
        let Object(fields) =
            serde_json::from_slice(bytes).map_err(|error| LevelError::Json(error.to_string()))?;
        if let Some(number) = str::from_utf8(bytes).ok().and_then(beyond_64_bits) {
            return Err(LevelError::Number(number.to_owned()));
        }
        let mut seen = HashSet::with_capacity(fields.len());
        for (key, _) in &fields {
            if !seen.insert(key.as_str()) {
                return Err(LevelError::KeyTwice { key: key.clone() });
            }
        }
        let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        match field("_format_version") {
            None | Some(Value::Object(_)) => {}
            Some(version) if version.as_u64().is_some_and(|version| version <= FORMAT_VERSION) => {}
            Some(version) => return Err(LevelError::Version(version.to_string())),
        }
        let class = field("_type").and_then(Value::as_str).unwrap_or(TENSORDICT);
        if class.ends_with(".NonTensorData'>") {
            return match field("data") {
                Some(data) => Ok(Self::Value(data.clone())),
                // Pickled beside it, which is never read.
                None => Err(LevelError::Class(format!("{class} with pickled data"))),
            };
        }
        if !class.ends_with(".TensorDict'>") {
            let text = str::from_utf8(bytes).map_err(|error| LevelError::Json(error.to_string()))?;
            return class_meta(text, class, &fields).map(Self::Class);
        }
        let batch = match field("shape") {
            None => Vec::new(),
            Some(shape) => sizes(shape).ok_or_else(|| wrong("shape", shape, "a list of sizes"))?,
        };
        let names = match field("_names") {
            None | Some(Value::Object(_)) => None,
            Some(found) => {
                let names: Option<Vec<Option<String>>> = serde_json::from_value(found.clone()).ok();
                // With another number of them, tensordict opens no such directory.
                let names = names.filter(|names| names.len() == batch.len());
                Some(names.ok_or_else(|| {
                    wrong("_names", found, "a name or null for each size of the batch shape")
                })?)
            }
        };
        let mut entries = Vec::new();
        for (key, value) in &fields {
            if let Value::Object(about) = value {
                entries.push((key.clone(), entry(key, about)?));
            }
        }
        Ok(Self::Tree { batch, names, entries })
    }

    /// Classes of one tree, from the outside in, of the texts of their `meta.json`: none, a lazy stack, a tensorclass, or a
    /// tensorclass and the lazy stack that it is over.
    ///
    /// # Errors
    /// [`LevelError`] of a text that is no class, or of one that does not follow the one before.
    pub fn classes(texts: &[String]) -> Result<Vec<ClassMeta>, LevelError> {
        let mut classes: Vec<ClassMeta> = Vec::new();
        for text in texts {
            let Self::Class(class) = Self::read(text.as_bytes())? else {
                return Err(LevelError::Class(text.clone()));
            };
            let follows = match classes.as_slice() {
                [] => true,
                [outer] => class.is_stack && !outer.is_stack,
                _ => false,
            };
            if !follows {
                return Err(LevelError::Class(class.name));
            }
            classes.push(class);
        }
        Ok(classes)
    }

    /// The bytes that tensordict would write.
    ///
    /// # Errors
    /// [`LevelError::Reserved`].
    pub fn write(&self) -> Result<Vec<u8>, LevelError> {
        let field = |name: &str, value| (name.to_owned(), Field::Value(value));
        let fields = match self {
            Self::Value(data) => vec![
                field("_type", json!(NON_TENSOR)),
                field("data", data.clone()),
                field("_metadata", Value::Null),
                field("_is_non_tensor", json!(true)),
            ],
            Self::Tree { batch, names, entries } => {
                let mut fields = Vec::with_capacity(entries.len() + 6);
                for (key, entry) in entries {
                    // A tree is a directory of its name, which is that of the file beside it.
                    let is_file = matches!(entry, LevelEntry::Below { .. }) && key == LEVEL_META;
                    if is_file || RESERVED.contains(&key.as_str()) {
                        return Err(LevelError::Reserved { key: key.clone() });
                    }
                    fields.push((key.clone(), Field::About(entry.to_json())));
                }
                fields.push(field("shape", json!(batch)));
                fields.push(field("device", json!("cpu")));
                fields.push(field("_type", json!(TENSORDICT)));
                fields.push(field("_format_version", json!(FORMAT_VERSION)));
                fields.push(field("_class", json!("tensordict:TensorDict")));
                fields.extend(names.as_ref().map(|names| field("_names", json!(names))));
                fields
            }
            Self::Class(class) => return Ok(class.text.clone().into_bytes()),
        };
        to_python_json(&Object(fields)).map_err(|error| LevelError::Json(error.to_string()))
    }
}

/// A field of a `meta.json` that is written: objects keep the order of their own fields.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Field {
    Value(Value),
    About(Object),
}

impl LevelEntry {
    fn to_json(&self) -> Object {
        let field = |name: &str, value| (name.to_owned(), value);
        match self {
            Self::Tensor(TensorMeta { shape, dtype }) => Object(vec![
                field("device", json!("cpu")),
                field("shape", json!(shape)),
                field("dtype", json!(dtype)),
                field("is_nested", json!(false)),
            ]),
            Self::Below { class } => Object(vec![field("type", json!(class))]),
        }
    }
}

/// Checks that a shape begins with the batch shape of the tree that it is in.
///
/// # Errors
/// Text that says both shapes, and what to do.
pub fn check_batch(shape: &[u64], batch: &[u64]) -> Result<(), String> {
    if shape.starts_with(batch) {
        return Ok(());
    }
    Err(format!("its shape {shape:?} does not begin with the batch shape {batch:?}; save the set again"))
}

fn class_meta(text: &str, class: &str, fields: &[(String, Value)]) -> Result<ClassMeta, LevelError> {
    let found = ClassMeta::of(text, class, fields).ok_or_else(|| LevelError::Class(class.to_owned()))?;
    if found.is_stack {
        let missing = Value::Null;
        let dim = found.values.first().map_or(&missing, |(_, dim)| dim);
        if !dim.is_u64() {
            return Err(wrong(STACK_DIM, dim, "the number of a dimension"));
        }
    }
    Ok(found)
}

fn entry(key: &str, about: &Map<String, Value>) -> Result<LevelEntry, LevelError> {
    let at = |field: &str| format!("{key}.{field}");
    if let Some(class) = about.get("type") {
        let class = class.as_str().ok_or_else(|| wrong(&at("type"), class, "the name of a class"))?;
        return Ok(LevelEntry::Below { class: class.to_owned() });
    }
    if about.get("is_nested").is_some_and(|nested| *nested != Value::Bool(false)) {
        return Err(LevelError::Nested { key: key.to_owned() });
    }
    let missing = Value::Null;
    let (shape, dtype) = (about.get("shape").unwrap_or(&missing), about.get("dtype").unwrap_or(&missing));
    Ok(LevelEntry::Tensor(TensorMeta {
        shape: sizes(shape).ok_or_else(|| wrong(&at("shape"), shape, "a list of sizes"))?,
        dtype: dtype.as_str().ok_or_else(|| wrong(&at("dtype"), dtype, "the name of a type"))?.to_owned(),
    }))
}

fn sizes(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}

fn wrong(key: &str, found: &Value, wanted: &'static str) -> LevelError {
    LevelError::Field { key: key.to_owned(), found: found.to_string(), wanted }
}

#[cfg(test)]
mod tests;
