//! The suites of the crate `tests`, found by the names of their files.

use std::fs;
use std::path::Path;

/// The suites under `tests/tests` whose names start with `prefix`, sorted.
///
/// A suite is `NAME.rs` or `NAME/main.rs`, as cargo sees it. A directory that does not exist has none.
pub(crate) fn suites(root: &Path, prefix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join("tests").join("tests")) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            match name.strip_suffix(".rs") {
                Some(stem) => Some(stem.to_owned()),
                None => entry.path().join("main.rs").is_file().then_some(name),
            }
        })
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_files_and_directories_with_a_main() {
        let root = std::env::temp_dir().join(format!("xtask-suites-{}", std::process::id()));
        let tests = root.join("tests").join("tests");
        fs::create_dir_all(tests.join("local_peers")).unwrap();
        fs::create_dir_all(tests.join("local_shared")).unwrap();
        for file in
            ["local_put.rs", "netns_tls.rs", "local_peers/main.rs", "local_shared/mod.rs", "local_notes.md"]
        {
            fs::write(tests.join(file), "").unwrap();
        }
        assert_eq!(suites(&root, "local_"), ["local_peers", "local_put"]);
        assert_eq!(suites(&root, "netns_"), ["netns_tls"]);
        fs::remove_dir_all(&root).unwrap();
        assert!(suites(&root, "local_").is_empty());
    }
}
