use serde_json::json;

use super::*;

/// Output of tensordict 0.15.3 for a TensorDict with two tensors, a tree and a value.
const WRITTEN: &str = r#"{"obs": {"device": "cpu", "shape": [4, 6], "dtype": "torch.float32", "is_nested": false}, "a b/\u00f6": {"device": "cpu", "shape": [4, 2], "dtype": "torch.bfloat16", "is_nested": false}, "next": {"type": "TensorDict"}, "label": {"type": "NonTensorData"}, "shape": [4], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>", "_format_version": 1, "_class": "tensordict:TensorDict", "_names": ["time"]}"#;
const VALUE: &str = r#"{"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "data": [1, 2, {"x": null}], "_metadata": null, "_is_non_tensor": true}"#;

fn tensor(shape: &[u64], dtype: &str) -> LevelEntry {
    LevelEntry::Tensor(TensorMeta { shape: shape.to_vec(), dtype: dtype.to_owned() })
}

fn below(class: &str) -> LevelEntry {
    LevelEntry::Below { class: class.to_owned() }
}

#[test]
fn a_level_of_tensordict_is_read_and_written_byte_for_byte() {
    let level = Level::read(WRITTEN.as_bytes()).unwrap();
    let entries = vec![
        ("obs".to_owned(), tensor(&[4, 6], "torch.float32")),
        ("a b/ö".to_owned(), tensor(&[4, 2], "torch.bfloat16")),
        ("next".to_owned(), below("TensorDict")),
        ("label".to_owned(), below("NonTensorData")),
    ];
    assert_eq!(level, Level::Tree { batch: vec![4], names: Some(vec![Some("time".to_owned())]), entries });
    assert_eq!(String::from_utf8(level.write().unwrap()).unwrap(), WRITTEN);
}

#[test]
fn a_value_of_tensordict_is_read_and_written_byte_for_byte() {
    let level = Level::read(VALUE.as_bytes()).unwrap();
    assert_eq!(level, Level::Value(json!([1, 2, {"x": null}])));
    assert_eq!(String::from_utf8(level.write().unwrap()).unwrap(), VALUE);
}

#[test]
fn a_lazy_stack_and_a_tensorclass_are_read_with_their_values_and_written_byte_for_byte() {
    let class = |text: &str| {
        let level = Level::read(text.as_bytes()).unwrap();
        assert_eq!(level.write().unwrap(), text.as_bytes());
        let Level::Class(class) = level else { panic!("a class") };
        class
    };
    let stack = class(r#"{"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 1}"#);
    assert!(stack.is_stack && stack.name == "LazyStackedTensorDict");
    assert_eq!(stack.values, [("stack_dim".to_owned(), json!(1))]);
    // Blanks, the order of keys and the form of numbers stay what they are.
    let step = class(
        r#"{"_type":  "<class 'replay.make.<locals>.Step'>", "label": {"b": 1e-05, "a": 2.50}, "note": null,
            "shape": [3], "_format_version": 1, "_class": "replay:Step"}"#,
    );
    assert!(!step.is_stack && step.name == "Step");
    let values = [("label", json!({"a": 2.5, "b": 1e-5})), ("note", Value::Null), ("shape", json!([3]))];
    assert_eq!(step.values, values.map(|(key, value)| (key.to_owned(), value)));
}

#[test]
fn a_level_without_a_version_is_read() {
    let old = r#"{"a": {"device": "cpu", "shape": [1], "dtype": "torch.uint8"}, "shape": [], "device": "None",
        "_type": "<class 'tensordict._td.TensorDict'>"}"#;
    let entries = vec![("a".to_owned(), tensor(&[1], "torch.uint8"))];
    assert_eq!(Level::read(old.as_bytes()).unwrap(), Level::Tree { batch: vec![], names: None, entries });
}

#[test]
fn a_level_that_is_not_read_is_refused_by_what_is_wrong() {
    let said = |text: &str| Level::read(text.as_bytes()).unwrap_err();
    assert!(matches!(said("[]"), LevelError::Json(_)));
    assert!(matches!(said(r#"{"a": NaN}"#), LevelError::Json(_)));
    assert_eq!(said(r#"{"_format_version": 2}"#), LevelError::Version("2".into()));
    for class in ["tensordict.tensorclass.NonTensorStack", "tensordict.nn.params.TensorDictParams", "Step"] {
        let text = format!(r#"{{"_type": "<class '{class}'>"}}"#);
        assert!(matches!(said(&text), LevelError::Class(_)), "{class}");
    }
    assert!(matches!(said(r#"{"_type": "replay.Step"}"#), LevelError::Class(_)));
    let pickled = r#"{"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "_metadata": null}"#;
    assert!(matches!(said(pickled), LevelError::Class(class) if class.ends_with("pickled data")));
    assert_eq!(said(r#"{"a": {"shape": [1], "is_nested": true}}"#), LevelError::Nested { key: "a".into() });
    for (text, key, found) in [
        (r#"{"shape": [-1]}"#, "shape", "[-1]"),
        (r#"{"a": {"shape": 3, "dtype": "torch.uint8"}}"#, "a.shape", "3"),
        (r#"{"a": {"shape": [1]}}"#, "a.dtype", "null"),
        (r#"{"a": {"type": 1}}"#, "a.type", "1"),
        (r#"{"shape": [4], "_names": [1]}"#, "_names", "[1]"),
        (r#"{"shape": [4], "_names": ["time", null]}"#, "_names", r#"["time",null]"#),
        (r#"{"shape": [4], "_names": null}"#, "_names", "null"),
        (r#"{"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>"}"#, "stack_dim", "null"),
        (
            r#"{"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": -1}"#,
            "stack_dim",
            "-1",
        ),
    ] {
        let LevelError::Field { key: at, found: what, .. } = said(text) else { panic!("{text}") };
        assert_eq!((at.as_str(), what.as_str()), (key, found));
    }
}

#[test]
fn a_key_that_tensordict_would_lose_is_not_written() {
    for key in RESERVED {
        let entries = vec![(key.to_owned(), tensor(&[1], "torch.uint8"))];
        let level = Level::Tree { batch: vec![], names: None, entries };
        assert_eq!(level.write(), Err(LevelError::Reserved { key: key.to_owned() }));
    }
}

#[test]
fn a_tree_of_the_name_of_its_own_description_is_not_written() {
    let level =
        |entry| Level::Tree { batch: vec![], names: None, entries: vec![(LEVEL_META.to_owned(), entry)] };
    let refused = level(below("TensorDict")).write();
    assert_eq!(refused, Err(LevelError::Reserved { key: LEVEL_META.to_owned() }));
    // The file of a tensor has an ending of its own.
    assert!(level(tensor(&[1], "torch.uint8")).write().is_ok());
}

#[test]
fn a_key_that_stands_twice_is_refused_whichever_a_reader_would_take() {
    let leaf = r#"{"shape": [1], "dtype": "torch.uint8"}"#;
    for (text, key) in [
        (format!(r#"{{"a": {leaf}, "b": {leaf}, "a": {leaf}}}"#), "a"),
        (format!(r#"{{"a": {leaf}, "a": {{"type": "TensorDict"}}}}"#), "a"),
        (r#"{"shape": [4], "shape": [5]}"#.to_owned(), "shape"),
        (r#"{"_format_version": 1, "_format_version": 2}"#.to_owned(), "_format_version"),
        (VALUE.replace("\"_metadata\": null", "\"data\": 7"), "data"),
    ] {
        assert_eq!(Level::read(text.as_bytes()), Err(LevelError::KeyTwice { key: key.to_owned() }), "{text}");
    }
}

#[test]
fn bytes_cut_at_any_place_are_refused() {
    for end in 0..WRITTEN.len() {
        assert!(Level::read(&WRITTEN.as_bytes()[..end]).is_err(), "{end}");
    }
}
