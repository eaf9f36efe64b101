//! A process of our own program that answers lines of JSON on its standard input with lines of JSON on its standard
//! output. It ends when its input does, so that it never outlives who started it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::{env, io};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cores;
use crate::hosts::Host;
use crate::process::Process;

/// The side that asks.
#[derive(Debug)]
pub struct Worker {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    // Dropped last: the end of its input has ended it by then.
    process: Process,
}

/// Place in which a worker runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct At<'a> {
    /// Host that the worker runs on; here if none.
    pub host: Option<&'a Host>,
    /// The one core that it may use; any if none.
    pub core: Option<usize>,
}

impl Worker {
    /// Starts this program with other arguments. The first of them is its name in errors.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start(at: At<'_>, arguments: &[&OsStr]) -> Result<Self> {
        let program = env::current_exe().context("the path of this program is not known")?;
        Self::start_program(at, &program, arguments, &[])
    }

    /// Starts another program that answers likewise, with these variables in its environment.
    ///
    /// # Errors
    /// It could not be started.
    pub fn start_program(
        at: At<'_>,
        program: &Path,
        arguments: &[&OsStr],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut command = at.host.map_or_else(|| Command::new(program), |host| host.command(program));
        command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let what = arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let process = cores::on(at.core, || Process::start(format!("`{what}`"), &mut command))
            .context("cannot stay on one core")??;
        let (input, output) = process.with_child(|child| (child.stdin.take(), child.stdout.take()));
        let input = input.context("a worker without input")?;
        Ok(Self { input, output: BufReader::new(output.context("a worker without output")?), process })
    }

    /// Sends a question and reads the answer.
    ///
    /// # Errors
    /// The worker ended, or answered something else.
    pub fn ask<A: DeserializeOwned>(&mut self, question: &impl Serialize) -> Result<A> {
        self.tell(question)?;
        self.answer()
    }

    /// Sends a question; [`Worker::answer`] reads the answer.
    ///
    /// # Errors
    /// The worker ended.
    pub fn tell(&mut self, question: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(question)? + "\n";
        self.input.write_all(line.as_bytes()).with_context(|| format!("{} ended", self.process.what()))
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// The worker ended, or answered something else.
    pub fn answer<A: DeserializeOwned>(&mut self) -> Result<A> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        let what = self.process.what();
        read.ok().filter(|read| *read > 0).with_context(|| format!("{what} ended without an answer"))?;
        serde_json::from_str(&line).with_context(|| format!("{what} answered {line:?}"))
    }

    /// Waits until it says nothing more, which is when it has ended.
    ///
    /// # Errors
    /// Its output cannot be read.
    pub fn end_of_output(&mut self) -> Result<()> {
        io::copy(&mut self.output, &mut io::sink())?;
        Ok(())
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.process
    }
}

/// The side that answers: every line of the input gets a line of the output, until the input ends.
///
/// # Errors
/// What `answer` fails with, which ends the process.
pub fn serve<Q: DeserializeOwned, A: Serialize>(mut answer: impl FnMut(Q) -> Result<A>) -> Result<()> {
    for line in io::stdin().lines() {
        let question = serde_json::from_str(&line?).context("a question that is none")?;
        say(&answer(question)?)?;
    }
    Ok(())
}

/// Says one thing without having been asked.
///
/// # Errors
/// Nobody listens any more.
pub fn say(answer: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(answer)? + "\n";
    let mut output = io::stdout().lock();
    output.write_all(line.as_bytes())?;
    Ok(output.flush()?)
}

/// Says that this worker is ready and waits for the end of its input, while other threads work.
///
/// # Errors
/// Nobody listens any more.
pub fn ready_until_end_of_input() -> Result<()> {
    say(&true)?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
