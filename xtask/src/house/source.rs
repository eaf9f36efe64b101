//! Sources of a crate, as text.

use std::fs;
use std::path::Path;

use crate::failure::Failure;

/// Sources of a folder with a crate: its library, its programs and its suites.
#[derive(Debug)]
pub(crate) struct Crate {
    /// Folder, from the top of the repository.
    pub(crate) folder: String,
    /// All of its files that are written by hand.
    pub(crate) sources: Vec<Source>,
}

/// File of a crate.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path from the top of the repository.
    pub(crate) path: String,
    /// Name of the compiled unit: empty for the library, `bin/NAME` for a program, `tests` for suites.
    pub(crate) unit: String,
    /// Segments of the module's path in its unit; none for the root.
    pub(crate) module: Vec<String>,
    /// Text of the file.
    pub(crate) text: String,
}

impl Crate {
    /// Reads a crate. Generated files are left out, and so are crates that lie inside.
    ///
    /// # Errors
    /// A folder or file that cannot be read.
    pub(crate) fn read(root: &Path, folder: &str) -> Result<Self, Failure> {
        let mut found = Self { folder: folder.to_owned(), sources: Vec::new() };
        for part in ["src", "tests"] {
            let top = root.join(folder).join(part);
            if top.is_dir() {
                found.enter(root, &top, part, "rs")?;
            }
        }
        found.sources.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    /// Reads the modules of Python in a folder.
    ///
    /// # Errors
    /// A folder or file that cannot be read.
    pub(crate) fn of_python(root: &Path, folder: &str) -> Result<Self, Failure> {
        let mut found = Self { folder: folder.to_owned(), sources: Vec::new() };
        for end in ["py", "pyi"] {
            found.enter(root, &root.join(folder), "", end)?;
        }
        Ok(found)
    }

    fn enter(&mut self, root: &Path, directory: &Path, part: &str, end: &str) -> Result<(), Failure> {
        let failed = |error| Failure::file("read", directory, &error);
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("generated")) {
                continue;
            }
            if path.is_dir() && !path.join("Cargo.toml").is_file() {
                self.enter(root, &path, part, end)?;
            } else if path.extension().is_some_and(|found| found == end) {
                let text = fs::read_to_string(&path).map_err(|error| Failure::file("read", &path, &error))?;
                let short = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                self.sources.push(Source::of(&self.folder, part, short, text));
            }
        }
        Ok(())
    }
}

impl Source {
    fn of(folder: &str, part: &str, path: String, text: String) -> Self {
        let (unit, module) = place_of(folder, part, &path);
        Self { path, unit, module, text }
    }

    #[cfg(test)]
    pub(crate) fn at(path: &str, text: &str) -> Self {
        Self::of("crate", "src", path.to_owned(), text.to_owned())
    }

    /// Returns whether it is compiled for tests only.
    pub(crate) fn is_test(&self) -> bool {
        self.unit == "tests" || self.module.iter().any(|name| name == "tests")
    }
}

/// Unit and module of a file.
fn place_of(folder: &str, part: &str, path: &str) -> (String, Vec<String>) {
    let inside = path.strip_prefix(folder).unwrap_or(path).trim_start_matches('/');
    let inside = inside.strip_prefix(part).unwrap_or(inside).trim_start_matches('/');
    let mut words: Vec<String> = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    let mut unit = if part == "tests" { part.to_owned() } else { String::new() };
    if part == "src" && words.first().is_some_and(|word| word == "bin") && words.len() > 1 {
        unit = format!("bin/{}", words[1]);
        words.drain(..2);
    }
    if words.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        words.pop();
    }
    (unit, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_module_and_its_unit() {
        let place = |path: &str| {
            let (unit, module) = place_of("client", "src", &format!("client/src/{path}"));
            (unit, module.join("::"))
        };
        assert_eq!(place("lib.rs"), (String::new(), String::new()));
        assert_eq!(place("pipe/mod.rs"), (String::new(), "pipe".into()));
        assert_eq!(place("pipe/read.rs"), (String::new(), "pipe::read".into()));
        assert_eq!(place("bin/tensorlane/main.rs"), ("bin/tensorlane".into(), String::new()));
        assert_eq!(place("bin/tensorlane/put/file.rs"), ("bin/tensorlane".into(), "put::file".into()));
        assert_eq!(place("bin/one.rs"), ("bin/one".into(), String::new()));
    }
}
