//! Why the format's own library refuses a header, with the key and the offset that are wrong: its own words name
//! neither.
//!
//! Offsets are those that the header tells: from the first byte behind it.

use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value};

use crate::file::METADATA;

/// The first fault of a header that was refused, of a file that holds `held` bytes behind it. `otherwise`: what the
/// library said, for a fault that is not known here.
pub(crate) fn find(json: &[u8], held: u64, otherwise: &str) -> String {
    let fields: Map<String, Value> = match serde_json::from_slice(json) {
        Ok(Value::Object(fields)) => fields,
        Ok(other) => return format!("its header is {}, and not an object: {ANEW}", kind(&other)),
        Err(error) => return of_text(json, &error),
    };
    metadata(&fields)
        .or_else(|| match infos(&fields) {
            Err(fault) => Some(fault),
            Ok(infos) => offsets(&infos, held),
        })
        .unwrap_or_else(|| otherwise.to_owned())
}

/// Advice for a header that cannot be mended by hand.
const ANEW: &str = "it is of another format, or was damaged: write it anew";

/// A header that is no JSON. Zero bytes behind the JSON are a habit of some writers.
fn of_text(json: &[u8], error: &serde_json::Error) -> String {
    let text = json.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let zeros = json.len() - text;
    if zeros > 0 && serde_json::from_slice::<Map<String, Value>>(&json[..text]).is_ok() {
        return format!(
            "its header is filled up with {zeros} zero bytes behind the JSON, from byte {} of the file on; the format \
             fills it up with spaces: write it anew",
            8 + text
        );
    }
    format!("its header is not the JSON of that format; {ANEW}: {error}")
}

/// Metadata are texts by text, or null as a whole.
fn metadata(fields: &Map<String, Value>) -> Option<String> {
    let entries = match fields.get(METADATA)? {
        Value::Null => return None,
        Value::Object(entries) => entries,
        other => return Some(format!("its {METADATA} is {}, and not an object of texts", kind(other))),
    };
    let (key, value) = entries.iter().find(|(_, value)| !value.is_string())?;
    Some(format!("its {METADATA} has {} at the key {key:?}; the format has texts there only", kind(value)))
}

type Named<'a> = (&'a str, TensorInfo);

/// All tensors, in the order of their bytes.
fn infos(fields: &Map<String, Value>) -> Result<Vec<Named<'_>>, String> {
    let tensors = fields.iter().filter(|(name, _)| *name != METADATA);
    let info = |(name, value): (&'_ String, &Value)| {
        serde_json::from_value(value.clone()).map_err(|error| format!("tensor {name:?}: {error}"))
    };
    let mut infos = tensors
        .map(|(name, value)| Ok((name.as_str(), info((name, value))?)))
        .collect::<Result<Vec<Named<'_>>, String>>()?;
    infos.sort_by_key(|(_, info)| info.data_offsets);
    Ok(infos)
}

/// Every byte belongs to one tensor, and every tensor has as many as its shape says.
fn offsets(infos: &[Named<'_>], held: u64) -> Option<String> {
    let mut covered = 0;
    let mut before = None;
    for (name, info) in infos {
        let (begin, end) = info.data_offsets;
        if end < begin {
            return Some(format!("tensor {name:?}: its bytes begin at {begin} and end before, at {end}"));
        }
        if let Some((other, from)) = before.filter(|_| begin < covered) {
            return Some(format!(
                "tensor {name:?}: its bytes {begin} to {end} begin inside of those of {other:?}, which are {from} to \
                 {covered}; no two tensors may share bytes"
            ));
        }
        if begin > covered {
            return Some(format!(
                "bytes {covered} to {begin}, before those of {name:?}, belong to no tensor"
            ));
        }
        if let Some(fault) = size(info) {
            return Some(format!("tensor {name:?}: {fault}"));
        }
        if end as u64 > held {
            return Some(format!(
                "tensor {name:?}: its bytes {begin} to {end} are not inside the file, which holds {held}; it was cut, \
                 or is still being written"
            ));
        }
        (covered, before) = (end, Some((name, begin)));
    }
    (held > covered as u64).then(|| {
        let last = infos.last().map_or_else(String::new, |(name, _)| format!(", behind those of {name:?},"));
        format!(
            "bytes {covered} to {held}{last} belong to no tensor; something was written behind the file's end"
        )
    })
}

/// Says how the bytes of a tensor and its shape disagree; none if they agree.
fn size(info: &TensorInfo) -> Option<String> {
    let (begin, end) = info.data_offsets;
    let (dtype, shape) = (info.dtype, &info.shape);
    let elements = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
    let Some(bits) = elements.and_then(|elements| elements.checked_mul(dtype.bitsize())) else {
        return Some(format!("a shape of {shape:?} is larger than any memory"));
    };
    if !bits.is_multiple_of(8) {
        return Some(format!(
            "{dtype} of shape {shape:?} has {bits} bits, which are no whole number of bytes"
        ));
    }
    let needed = bits / 8;
    (end - begin != needed).then(|| {
        format!("its bytes {begin} to {end} are {}; {dtype} of shape {shape:?} has {needed}", end - begin)
    })
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
