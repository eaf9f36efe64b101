//! Plain values of a set: what JSON says of them and what every reader of it can keep.

use serde_json::Value;

/// Most lists and objects of a plain value inside one another: a reader's JSON has a bound of its own, some levels above.
pub const VALUE_DEPTH_MAX: usize = 64;

/// Returns whether no more than [`VALUE_DEPTH_MAX`] lists and objects stand inside one another.
pub(super) fn is_shallow(value: &Value) -> bool {
    fn below(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(items) => left > 0 && items.iter().all(|item| below(item, left - 1)),
            Value::Object(fields) => left > 0 && fields.values().all(|item| below(item, left - 1)),
            _ => true,
        }
    }
    below(value, VALUE_DEPTH_MAX)
}

/// The first whole number of a JSON text that 64 bits cannot say. Read as JSON it would become another one, a fraction.
#[must_use]
pub fn beyond_64_bits(json: &str) -> Option<&str> {
    let is_of_number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    let (mut rest, mut in_text, mut escaped) = (json, false, false);
    while let Some(c) = rest.chars().next() {
        if in_text {
            (in_text, escaped) = (escaped || c != '"', !escaped && c == '\\');
        } else if c.is_ascii_digit() || c == '-' {
            let number = &rest[..rest.find(|c| !is_of_number(c)).unwrap_or(rest.len())];
            let is_whole = !number.contains(['.', 'e', 'E']);
            if is_whole && number.parse::<u64>().is_err() && number.parse::<i64>().is_err() {
                return Some(number);
            }
            rest = &rest[number.len()..];
            continue;
        } else {
            in_text = c == '"';
        }
        rest = &rest[c.len_utf8()..];
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_that_64_bits_cannot_say_are_found_and_nothing_else() {
        let found = |text| beyond_64_bits(text);
        assert_eq!(
            found(r#"{"a": [18446744073709551615, -9223372036854775808, 1e300, 12345678901234567890.5]}"#),
            None
        );
        assert_eq!(found(r#"{"a": [1, 18446744073709551616]}"#), Some("18446744073709551616"));
        assert_eq!(found("-9223372036854775809"), Some("-9223372036854775809"));
        assert_eq!(found(r#"["99999999999999999999", "a\"99999999999999999999", "é\\"]"#), None);
        assert_eq!(
            found(r#"["\\", 338362349285073402871628416374]"#),
            Some("338362349285073402871628416374")
        );
    }

    #[test]
    fn fractions_are_read_as_they_were_written() {
        for number in [31.245_270_191_439_438_f64, 0.1 + 0.2, f64::MIN_POSITIVE, 1.797e308, 2.5e-17] {
            let text = serde_json::to_string(&number).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap().as_f64(), Some(number), "{text}");
        }
        let read: Value = serde_json::from_str("31.245270191439438").unwrap();
        assert_eq!(read.to_string(), "31.245270191439438");
    }

    #[test]
    fn values_have_64_containers_inside_one_another_at_most() {
        let deep = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
        assert!(is_shallow(&deep(VALUE_DEPTH_MAX)));
        assert!(!is_shallow(&deep(VALUE_DEPTH_MAX + 1)));
        assert!(!is_shallow(&json!({"a": deep(VALUE_DEPTH_MAX)})));
    }
}
