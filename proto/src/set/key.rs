//! Names of files for keys, as tensordict 0.15 writes them: what a file system or a shell could misread is `%XX`.

use super::KEY_BYTES_MAX;

/// Characters that are escaped beside control characters.
const ESCAPED: &[char] = &['/', '<', '>', ':', '"', '|', '?', '*', '\\', ' ', '%', '\u{7f}'];

/// The name of the file or directory of a key, without an ending. None where it is longer than 255 bytes.
#[must_use]
pub fn file_name(key: &str) -> Option<String> {
    let name = match key {
        "" => "%".to_owned(),
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => key.chars().map(escaped).collect(),
    };
    (name.len() <= KEY_BYTES_MAX).then_some(name)
}

fn escaped(character: char) -> String {
    if character.is_ascii_control() || ESCAPED.contains(&character) {
        format!("%{:02X}", u32::from(character))
    } else {
        character.into()
    }
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

    proptest! {
        #[test]
        fn a_key_survives_its_file_name(key in ".{0,40}") {
            if let Some(name) = file_name(&key) {
                prop_assert_eq!(key_of_file(&name), Some(key));
            }
        }
    }
}
