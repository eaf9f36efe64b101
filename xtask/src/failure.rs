//! Failure of a command of xtask: why it could not do its work, and what helps.

use std::fmt::Display;
use std::io;
use std::path::Path;

use crate::style::Style;

/// Description of what went wrong, and the next thing to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    what: String,
    remedy: Option<String>,
    usage: bool,
}

impl Failure {
    /// Something did not work.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: None, usage: false }
    }

    /// The command line cannot be understood (exit code 2).
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self { usage: true, ..Self::new(what) }.remedy("`cargo xtask help` lists every command and option")
    }

    /// A file or directory could not be used.
    pub(crate) fn file(verb: &str, path: &Path, error: &dyn Display) -> Self {
        Self::new(format!("cannot {verb} {}: {error}", path.display()))
    }

    /// The failure of a removal, unless there was nothing to remove.
    pub(crate) fn unless_gone(removed: io::Result<()>, path: &Path) -> Result<(), Self> {
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Self::file("remove", path, &error)),
            _ => Ok(()),
        }
    }

    /// Adds what to do about it.
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Description of what went wrong, without the remedy.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// 2 for a command line that makes no sense, else 1.
    pub(crate) fn exit_code(&self) -> u8 {
        if self.usage { 2 } else { 1 }
    }

    /// The failure for a person: what, and below it what to do.
    pub(crate) fn shown(&self, style: Style) -> String {
        let first = format!("{} {}", style.bad("error:"), self.what);
        match &self.remedy {
            Some(remedy) => format!("{first}\n  {} {remedy}", style.strong("try:")),
            None => first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_to_do() {
        let failure = Failure::new("no weights").remedy("install pip");
        assert_eq!(failure.shown(Style::plain()), "error: no weights\n  try: install pip");
        assert_eq!(failure.exit_code(), 1);
    }

    #[test]
    fn a_wrong_command_line_has_its_own_exit_code() {
        assert_eq!(Failure::usage("unknown command").exit_code(), 2);
    }
}
