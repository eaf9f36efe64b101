//! Words of doc comments and names of types.

use std::collections::BTreeMap;

use super::source::{Crate, Source};

/// Words that no doc comment begins with: they document nothing.
const PRONOUNS: [&str; 23] = [
    "It", "Its", "They", "Their", "That", "This", "These", "Those", "One", "What", "Whatever", "Who",
    "Whoever", "Whose", "How", "Which", "Where", "Wherever", "Whether", "There", "He", "We", "You",
];

/// Names that every crate may use more than once.
const COMMON: [&str; 4] = ["Error", "Config", "Options", "Args"];

/// Names that occur more than once in a crate today. Whoever renames one takes it away here; none is added.
const REPEATED: [(&str, &str); 16] = [
    ("client", "Delivered"),
    ("client", "Message"),
    ("client", "Place"),
    ("client", "Tensor"),
    ("memory", "Place"),
    ("operator", "Namespace"),
    ("operator", "Note"),
    ("proto", "Refusal"),
    ("python", "Given"),
    ("sidecar", "Arena"),
    ("sidecar", "Counters"),
    ("sidecar", "Directory"),
    ("sidecar", "Known"),
    ("sidecar", "Me"),
    ("sidecar", "Peers"),
    ("sidecar", "Threads"),
];

/// Finds doc comments that begin with a pronoun.
pub(crate) fn pronouns(source: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    let mut inside = false;
    for (number, line) in source.text.lines().enumerate() {
        let line = line.trim_start();
        let comment = doc_comment(line, source.path.ends_with(".rs"));
        if let Some(comment) = comment.filter(|_| !inside) {
            let first = comment.trim_start().split(|letter: char| !letter.is_alphanumeric()).next();
            if let Some(word) = first.filter(|word| PRONOUNS.contains(word)) {
                faults.push(format!(
                    "{}:{}: a doc comment begins with `{word}`; begin with what it documents",
                    source.path,
                    number + 1
                ));
            }
        }
        inside = comment.is_some();
    }
    faults
}

/// Text of a line of a doc comment of Rust, or of the first line of a docstring of Python.
fn doc_comment(line: &str, is_rust: bool) -> Option<&str> {
    match is_rust {
        true => line.strip_prefix("///").or_else(|| line.strip_prefix("//!")),
        false => line.strip_prefix("\"\"\""),
    }
}

/// Finds public and crate-wide types of one name in one unit, and entries of [`REPEATED`] that have gone.
pub(crate) fn repeated(read: &Crate) -> Vec<String> {
    let mut places: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for source in read.sources.iter().filter(|source| !source.is_test()) {
        for (number, line) in source.text.lines().enumerate() {
            if let Some(name) = type_of(line).filter(|name| !COMMON.contains(name)) {
                places.entry((&source.unit, name)).or_default().push(format!(
                    "{}:{}",
                    source.path,
                    number + 1
                ));
            }
        }
    }
    let known = |name: &str| REPEATED.contains(&(read.folder.as_str(), name));
    let several = places.iter().filter(|(_, places)| places.len() > 1);
    let mut faults: Vec<String> = several
        .clone()
        .filter(|((_, name), _)| !known(name))
        .map(|((_, name), places)| format!("{}: several types are called `{name}`", places.join(", ")))
        .collect();
    let gone = REPEATED.iter().filter(|(folder, name)| {
        *folder == read.folder && !several.clone().any(|((_, repeated), _)| repeated == name)
    });
    faults.extend(gone.map(|(folder, name)| {
        format!("{folder}: `{name}` is one type now; take it away from REPEATED in xtask/src/house/words.rs")
    }));
    faults
}

/// Name of the public or crate-wide type that a line declares.
fn type_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "))?;
    let name =
        ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    name.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .next()
        .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Crate {
        let sources = files.iter().map(|(path, text)| Source::at(path, text)).collect();
        Crate { folder: "crate".into(), sources }
    }

    #[test]
    fn a_pronoun_is_found_at_the_beginning_of_a_doc_comment_alone() {
        let text = "//! How it is.\n/// Name of a thing.\n/// What follows is text.\nfn a() {}\n    /// Its name.\n/// Italics\n// It is";
        let faults = pronouns(&Source::at("crate/src/a.rs", text));
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("crate/src/a.rs:1: ") && faults[0].contains("`How`"), "{faults:?}");
        assert!(faults[1].starts_with("crate/src/a.rs:5: ") && faults[1].contains("`Its`"), "{faults:?}");
    }

    #[test]
    fn docstrings_of_python_are_held_to_the_same() {
        let text =
            "\"\"\"Channels.\"\"\"\ndef name():\n    \"\"\"What it is called.\"\"\"\n    return \"It\"\n";
        let faults = pronouns(&Source::at("python/tensorlane/a.py", text));
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("python/tensorlane/a.py:3: "), "{faults:?}");
    }

    #[test]
    fn a_name_is_one_type_in_a_unit() {
        let text = "pub struct Peer {}\npub(crate) enum Kind<T> {}\nstruct Own;\npub(super) struct Near;\npub struct Error;";
        let twice = read(&[("crate/src/a.rs", text), ("crate/src/b.rs", text)]);
        let faults = repeated(&twice);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert_eq!(faults[0], "crate/src/a.rs:2, crate/src/b.rs:2: several types are called `Kind`");
        let apart =
            read(&[("crate/src/a.rs", text), ("crate/src/bin/p/a.rs", text), ("crate/src/tests.rs", text)]);
        assert!(repeated(&apart).is_empty());
    }
}
