//! Talking to a workload: one line to it, one line from it.
//!
//! What it can be told stands in `bin/workload.rs`. Where it runs is the business of who made the dialogue.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::wait::PATIENCE;

/// A line that ends the listening, for who listens at a pipe that has no end of its own.
pub(crate) const END: &str = "nobody listens any more";

/// Both directions to a workload.
pub struct Dialogue {
    input: Option<Box<dyn Write + Send>>,
    answers: Receiver<String>,
    patience: Duration,
}

impl Dialogue {
    /// Speaks into `input` and listens to `output`, by a thread that ends with it.
    pub(crate) fn new(input: impl Write + Send + 'static, output: impl Read + Send + 'static) -> Self {
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line == END || send.send(line).is_err() {
                    return;
                }
            }
        });
        Self { input: Some(Box::new(input)), answers, patience: PATIENCE }
    }

    /// With so much patience for each answer, for what is longer under way than a process of this machine.
    pub(crate) fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Tells it something, and does not wait for the answer.
    ///
    /// # Panics
    /// Where it does not listen any more.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input was not closed");
        writeln!(input, "{line}").expect("the workload listens");
    }

    /// Tells it something, and does not wait for the answer; whether it still listens.
    pub(crate) fn try_tell(&mut self, line: &str) -> bool {
        self.input.as_mut().is_some_and(|input| writeln!(input, "{line}").is_ok())
    }

    /// Tells it nothing more, upon which it ends.
    pub(crate) fn close(&mut self) {
        self.input = None;
    }

    /// Returns the next answer, which must begin with `word`, without that word.
    ///
    /// # Panics
    /// Where it says something else, or nothing.
    #[track_caller]
    pub fn expect(&mut self, word: &str) -> String {
        self.expect_within(word, self.patience)
    }

    /// As [`Dialogue::expect`], for what takes its time.
    ///
    /// # Panics
    /// As [`Dialogue::expect`].
    #[track_caller]
    pub fn expect_within(&mut self, word: &str, patience: Duration) -> String {
        let answer = self.answer_within(patience);
        let rest = answer.strip_prefix(word).unwrap_or_else(|| panic!("not {word:?} but {answer:?}"));
        rest.trim_start().to_owned()
    }

    /// Returns the next answer.
    ///
    /// # Panics
    /// Where there is none.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        self.answer_within(self.patience)
    }

    /// Returns the next answer, for what takes its time.
    ///
    /// # Panics
    /// Where there is none.
    #[track_caller]
    pub fn answer_within(&mut self, patience: Duration) -> String {
        self.answers.recv_timeout(patience).unwrap_or_else(|e| panic!("the workload does not answer: {e}"))
    }

    /// Returns the next answer; none if none comes in time.
    pub fn try_answer(&mut self, patience: Duration) -> Option<String> {
        self.answers.recv_timeout(patience).ok()
    }

    /// Tells it something and gives its answer, which must begin with `word`.
    ///
    /// # Panics
    /// As [`Dialogue::expect`].
    #[track_caller]
    pub fn ask(&mut self, line: &str, word: &str) -> String {
        self.tell(line);
        self.expect(word)
    }
}

impl std::fmt::Debug for Dialogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialogue").field("open", &self.input.is_some()).finish_non_exhaustive()
    }
}
