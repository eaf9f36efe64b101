//! Scalars as kubectl resolves them: by the rules of its YAML library, which are those of YAML 1.1 and its own.
//!
//! `0400` is 256, `yes` is true, `1_000` is a number, and a date is text. The rules follow the resolution table of
//! `sigs.k8s.io/yaml` 1.6; the tests hold what that library printed.

use serde_json::{Number, Value};

/// Meaning of an unquoted scalar without a tag.
///
/// # Errors
/// An infinity or no number at all: JSON has neither.
pub(super) fn plain(text: &str) -> Result<Value, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Ok(Value::Bool(true));
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(Value::Bool(false));
        }
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Err(format!(
            "{text} has no form in JSON, which Kubernetes speaks: write a number, or quote it"
        ));
    }
    let number = match text.as_bytes().first() {
        Some(b'0'..=b'9' | b'+' | b'-' | b'.') => number(&text.replace('_', "")),
        _ => None,
    };
    Ok(number.map_or_else(|| Value::String(text.to_owned()), Value::Number))
}

/// Meaning of a scalar with a tag of YAML itself, such as `int`; other tags make text of it.
///
/// # Errors
/// The text is nothing of that kind.
pub(super) fn tagged(tag: &str, text: &str) -> Result<Value, String> {
    let resolved = match tag {
        "null" | "bool" | "int" | "float" => plain(text)?,
        "binary" => return binary(text),
        _ => return Ok(Value::String(text.to_owned())),
    };
    let fits = match &resolved {
        Value::Null => tag == "null",
        Value::Bool(_) => tag == "bool",
        Value::Number(number) => tag == "float" || (tag == "int" && !number.is_f64()),
        _ => false,
    };
    if fits { Ok(resolved) } else { Err(format!("{text:?} is no !!{tag}")) }
}

/// Name of a key, which JSON has as text alone.
///
/// # Errors
/// Null, a list or a map.
pub(super) fn key(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        _ => Err("a key is null, a list or a map: keys are text".to_owned()),
    }
}

fn binary(text: &str) -> Result<Value, String> {
    let compact = text.split_ascii_whitespace().collect();
    let bytes: Option<k8s_openapi::ByteString> = serde_json::from_value(Value::String(compact)).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes.0).ok());
    text.map(Value::String).ok_or_else(|| "a !!binary is no base64 of UTF-8".to_owned())
}

/// Number that a text without underscores is, if it is one.
fn number(text: &str) -> Option<Number> {
    if let Some(whole) = integer(text) {
        return Some(whole);
    }
    if !looks_like_a_float(text) {
        return None;
    }
    let float: f64 = text.parse().ok()?;
    // Amounts such as 1e3 are read as whole numbers by whoever wants one.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if float.fract() == 0.0 && float.abs() <= EXACT {
        return Some(Number::from(float as i64));
    }
    Number::from_f64(float)
}

/// As Go's `ParseInt` with base 0 reads it, and `ParseUint` behind it.
fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (base, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    // A second sign is none to `from_str_radix` alone.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let whole = u64::from_str_radix(digits, base).ok()?;
    match negative {
        true => i64::try_from(-i128::from(whole)).ok().map(Number::from),
        false => Some(Number::from(whole)),
    }
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`, as that library has it.
fn looks_like_a_float(text: &str) -> bool {
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa = match mantissa.split_once('.') {
        Some(("", fraction)) => !fraction.is_empty() && digits(fraction),
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let exponent = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    mantissa && exponent && text.parse().is_ok_and(f64::is_finite)
}
