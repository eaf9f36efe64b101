//! Short commands whose answer is wanted: quiet where they succeed, and quoted where they do not.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use crate::cluster::process::{BY, marker};
use crate::failure::Failure;
use crate::run::{Job, tail};

/// Seconds that a short command may take. They take milliseconds, and an import of an image some seconds.
const LIMIT: &str = "120";

/// Number of lines that are shown of a failed command's words.
const TAIL: usize = 5;

/// Text that a command wrote to its standard output.
pub(crate) fn told<A: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String, Failure> {
    let arguments: Vec<A> = arguments.into_iter().collect();
    let shown = Job::new(program.as_ref(), &arguments).shown();
    let mut command = Command::new("timeout");
    command.arg(LIMIT).arg(program).args(&arguments).env(BY, marker()).stdin(Stdio::null());
    let output =
        command.output().map_err(|error| Failure::new(format!("cannot start `{shown}`: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let why: String = tail(&words, TAIL).iter().map(|line| format!("\n    | {line}")).collect();
    Err(Failure::new(format!("`{shown}`: {}{why}", output.status)))
}

/// Returns whether a command ends well; what it says is thrown away.
pub(crate) fn works<A: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = A>,
) -> bool {
    told(program, arguments).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_given_and_a_failure_is_quoted() {
        assert_eq!(told("echo", ["a", "b"]).unwrap(), "a b\n");
        let failure = told("sh", ["-c", "echo no room >&2; exit 3"]).unwrap_err();
        assert!(failure.what().contains("exit status: 3\n    | no room"), "{failure:?}");
        assert!(works("true", [""; 0]) && !works("false", [""; 0]));
    }
}
