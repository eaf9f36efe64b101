//! Names of files for keys, as tensordict 0.15 writes them: what a file system or a shell could misread is `%XX`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::KEY_BYTES_MAX;

/// Ending of the file of a tensor.
pub const LEAF_ENDING: &str = ".memmap";

/// Characters that are escaped beside control characters.
const ESCAPED: &[char] = &['/', '<', '>', ':', '"', '|', '?', '*', '\\', ' ', '%', '\u{7f}'];

/// The name of the file or directory of a key, without an ending. None where it is longer than 255 bytes.
#[must_use]
pub fn file_name(key: &str) -> Option<String> {
    let name = match key {
        "" => "%".to_owned(),
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => key.chars().fold(String::with_capacity(key.len()), escaped),
    };
    (name.len() <= KEY_BYTES_MAX).then_some(name)
}

/// Names that a file or directory of a key may have, with its ending. The first one is that of tensordict today. The other one is the key
/// as it is, which releases without escapes wrote, unless it leads out of its directory. Empty where the first has more than 255 bytes.
#[must_use]
pub fn names_of(key: &str, ending: &str) -> Vec<String> {
    let Some(name) = file_name(key).map(|name| name + ending).filter(|name| name.len() <= KEY_BYTES_MAX)
    else {
        return Vec::new();
    };
    let plain = format!("{key}{ending}");
    let leads_out = plain.contains(['/', '\0']) || matches!(plain.as_str(), "" | "." | "..");
    if leads_out || plain == name { vec![name] } else { vec![name, plain] }
}

/// Names that keys have taken in one directory: two keys of one name would be read as one another.
#[derive(Debug, Default)]
pub struct Names(HashMap<String, String>);

impl Names {
    /// Takes a name for a key.
    ///
    /// # Errors
    /// The key that has it.
    pub fn take(&mut self, name: &str, key: &str) -> Result<(), String> {
        match self.0.entry(name.to_owned()) {
            Entry::Occupied(taken) => Err(taken.get().clone()),
            Entry::Vacant(free) => {
                free.insert(key.to_owned());
                Ok(())
            }
        }
    }
}

/// A name with one more character of its key.
fn escaped(mut name: String, character: char) -> String {
    if character.is_ascii_control() || ESCAPED.contains(&character) {
        name.push_str(&format!("%{:02X}", u32::from(character)));
    } else {
        name.push(character);
    }
    name
}

/// The key whose file has this name; none where no key has.
#[must_use]
pub fn key_of_file(name: &str) -> Option<String> {
    if name == "%" {
        return Some(String::new());
    }
    let mut key = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((plain, after)) = rest.split_once('%') {
        key.push_str(plain);
        let code = after.get(..2)?;
        key.push(char::from(u8::from_str_radix(code, 16).ok()?));
        rest = after.get(2..)?;
    }
    key.push_str(rest);
    (file_name(&key)? == name).then_some(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_files_are_those_of_tensordict() {
        for (key, name) in [
            ("obs", "obs"),
            ("a/b", "a%2Fb"),
            ("a b", "a%20b"),
            ("100%", "100%25"),
            ("", "%"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("...", "..."),
            ("tab\t", "tab%09"),
            ("Größe", "Größe"),
            ("layer.0.weight", "layer.0.weight"),
        ] {
            assert_eq!(file_name(key).as_deref(), Some(name), "{key:?}");
            assert_eq!(key_of_file(name).as_deref(), Some(key), "{name:?}");
        }
    }

    #[test]
    fn a_name_that_no_key_has_is_none() {
        for name in ["a%", "a%2", "a%zz", "a%41", "a b", "%2e"] {
            assert_eq!(key_of_file(name), None, "{name:?}");
        }
        assert_eq!(file_name(&"x".repeat(256)), None);
    }

    #[test]
    fn a_key_is_looked_for_as_it_is_too_unless_that_leads_out_of_the_directory() {
        for (key, ending, names) in [
            ("obs", LEAF_ENDING, &["obs.memmap"][..]),
            ("a b", LEAF_ENDING, &["a%20b.memmap", "a b.memmap"]),
            ("a b", "", &["a%20b", "a b"]),
            ("a%20b", "", &["a%2520b", "a%20b"]),
            ("..", LEAF_ENDING, &["%2E%2E.memmap", "...memmap"]),
            ("", LEAF_ENDING, &["%.memmap", ".memmap"]),
            ("..", "", &["%2E%2E"]),
            (".", "", &["%2E"]),
            ("", "", &["%"]),
            ("../a b", "", &["..%2Fa%20b"]),
            ("/etc", LEAF_ENDING, &["%2Fetc.memmap"]),
            ("a\0", LEAF_ENDING, &["a%00.memmap"]),
        ] {
            assert_eq!(names_of(key, ending), names, "{key:?}");
        }
        assert_eq!(names_of(&"x".repeat(255), "").len(), 1);
        assert!(names_of(&"x".repeat(249), LEAF_ENDING).is_empty());
    }

    #[test]
    fn a_name_is_taken_by_one_key() {
        let mut names = Names::default();
        assert_eq!(names.take("a%20b.memmap", "a b"), Ok(()));
        assert_eq!(names.take("a%20b.memmap", "a%20b"), Err("a b".to_owned()));
        assert_eq!(names.take("a%20b", "a%20b"), Ok(()));
    }

    proptest! {
        #[test]
        fn a_key_survives_its_file_name(key in ".{0,40}") {
            if let Some(name) = file_name(&key) {
                prop_assert_eq!(key_of_file(&name), Some(key));
            }
        }
    }
}
