//! Runs programs: shows the command, streams its output or keeps it in a log, and says how it ended.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::deadline::{self, Sign};
use crate::failure::Failure;
use crate::place::Place;
use crate::style::Style;

/// A cold build on two slow cores ends long before; a job that hangs costs this much and no more.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// Variables by which `cargo run` tells xtask about itself. Handed down, it makes build scripts of dependencies run
/// again.
const NOT_INHERITED: &[&str] =
    &["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];

/// A single program to be run, with everything that decides what it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(String, OsString)>,
    directory: Option<PathBuf>,
    limit: Duration,
}

/// End of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Finished {
    /// The exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Set if it ran past its limit and was killed.
    pub(crate) timed_out: bool,
    /// Wall time.
    pub(crate) took: Duration,
}

impl Finished {
    /// Returns whether it ended with exit code 0.
    pub(crate) fn succeeded(self) -> bool {
        self.code == Some(0)
    }

    /// The code to exit with in its place: its own, or 1 where it has none that fits.
    pub(crate) fn exit_code(self) -> u8 {
        self.code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }

    /// Text on how it ended, for a person.
    pub(crate) fn shown(self) -> String {
        match (self.timed_out, self.code) {
            (true, _) => format!("killed after {:.0} min, its limit", self.took.as_secs_f64() / 60.0),
            (false, Some(code)) => format!("exit code {code}"),
            (false, None) => "ended by a signal".to_owned(),
        }
    }
}

impl Job {
    /// A program of the system or a built one.
    pub(crate) fn new<A: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.as_ref().to_os_string(),
            arguments: arguments.into_iter().map(|argument| argument.as_ref().to_os_string()).collect(),
            environment: Vec::new(),
            directory: None,
            limit: LIMIT,
        }
    }

    /// The cargo that started this program.
    pub(crate) fn cargo<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), arguments)
    }

    /// Adds arguments at the end.
    pub(crate) fn with<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_os_string()));
        self
    }

    /// Sets a variable of its environment.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.to_owned(), value.as_ref().to_os_string()));
        self
    }

    /// Lets it run longer than any other, or less long.
    pub(crate) fn at_most(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it elsewhere than at the top of the repository.
    pub(crate) fn inside(mut self, directory: PathBuf) -> Self {
        self.directory = Some(directory);
        self
    }

    /// The command as one would type it.
    pub(crate) fn shown(&self) -> String {
        let program = Path::new(&self.program).file_name().unwrap_or(&self.program);
        let variables = self.environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = std::iter::once(quoted(program)).chain(self.arguments.iter().map(|word| quoted(word)));
        variables.chain(words).collect::<Vec<_>>().join(" ")
    }

    /// Runs it with this program's own terminal.
    pub(crate) fn streamed(&self, place: &Place, style: Style) -> Result<Finished, Failure> {
        println!("{}", style.faint(&format!("$ {}", self.shown())));
        self.ended(&mut self.command(place), &Sign::Silent)
    }

    /// Runs it with this program's own terminal and without a word of our own: the output is somebody's input.
    pub(crate) fn attached(&self, place: &Place) -> Result<Finished, Failure> {
        self.ended(&mut self.command(place), &Sign::Silent)
    }

    /// Runs it with both outputs appended to a log, by whose name a line says what runs.
    pub(crate) fn logged(&self, log: &Path, place: &Place, style: Style) -> Result<Finished, Failure> {
        let speaker = log.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        println!("    {speaker}: {}", style.faint(&format!("$ {}", self.shown())));
        if let Some(directory) = log.parent() {
            fs::create_dir_all(directory).map_err(|error| Failure::file("make", directory, &error))?;
        }
        let failed = |error: std::io::Error| Failure::file("write", log, &error);
        let mut file = OpenOptions::new().create(true).append(true).open(log).map_err(failed)?;
        writeln!(file, "$ {}", self.shown()).map_err(failed)?;
        let errors = file.try_clone().map_err(failed)?;
        let mut command = self.command(place);
        command.stdin(Stdio::null()).stdout(file).stderr(errors).env("CARGO_TERM_COLOR", "never");
        self.ended(&mut command, &Sign::EachMinute(speaker))
    }

    /// Returns whether it runs and ends well; its output is thrown away.
    pub(crate) fn works(&self, place: &Place) -> bool {
        let mut command = self.command(place);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.ended(&mut command, &Sign::Silent).is_ok_and(Finished::succeeded)
    }

    fn command(&self, place: &Place) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(self.directory.as_deref().unwrap_or(place.root()));
        for (name, _) in env::vars_os() {
            let told_to_xtask_alone =
                name.to_str().is_some_and(|name| NOT_INHERITED.iter().any(|start| name.starts_with(start)));
            if told_to_xtask_alone {
                command.env_remove(name);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn ended(&self, command: &mut Command, sign: &Sign) -> Result<Finished, Failure> {
        let started = Instant::now();
        let child = command.spawn().map_err(|error| {
            Failure::new(format!("cannot start `{}`: {error}", self.shown()))
                .remedy("`cargo xtask setup` installs the tools of the system that are missing")
        })?;
        let ended = deadline::wait(child, self.limit, sign)?;
        Ok(Finished { code: ended.status.code(), timed_out: ended.timed_out, took: started.elapsed() })
    }
}

/// A word as a shell would need it.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into_owned() } else { format!("'{word}'") }
}

/// The last lines of a log.
pub(crate) fn tail(text: &str, lines: usize) -> Vec<&str> {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> Place {
        let directory = env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        Place::at(&directory)
    }

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let job = Job::new("/somewhere/bin/cargo", ["test", "--test", "local_*"])
            .env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(job.shown(), "RUSTDOCFLAGS='-D warnings' cargo test --test 'local_*'");
    }

    #[test]
    fn a_log_has_the_command_and_both_outputs_in_order() {
        let place = scratch("log");
        let log = place.log("a");
        let job = Job::new("sh", ["-c", "echo one; echo two >&2; echo three; exit 4"]);
        let finished = job.logged(&log, &place, Style::plain()).unwrap();
        assert_eq!((finished.code, finished.succeeded(), finished.exit_code()), (Some(4), false, 4));
        let text = fs::read_to_string(&log).unwrap();
        assert_eq!(tail(&text, 3), ["one", "two", "three"]);
        assert!(text.starts_with("$ sh -c "), "{text}");
        fs::remove_dir_all(place.root()).unwrap();
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure_that_names_it() {
        let failure = Job::new("no-such-program", ["x"])
            .ended(&mut Command::new("no-such-program"), &Sign::Silent)
            .unwrap_err();
        assert!(failure.what().contains("cannot start `no-such-program x`"), "{failure:?}");
    }

    #[test]
    fn the_tail_of_a_short_log_is_all_of_it() {
        assert_eq!(tail("a\nb", 60), ["a", "b"]);
        assert_eq!(tail("a\nb\nc", 2), ["b", "c"]);
        assert!(tail("", 60).is_empty());
    }

    #[test]
    fn a_job_does_not_learn_which_package_xtask_is() {
        let place = scratch("environment");
        assert!(env::var_os("CARGO_PKG_NAME").is_some(), "this test needs to be run by cargo");
        assert!(Job::new("sh", ["-c", "test -z \"$CARGO_PKG_NAME$CARGO_MANIFEST_DIR\""]).works(&place));
        fs::remove_dir_all(place.root()).unwrap();
    }
}
