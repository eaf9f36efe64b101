//! Answers about the test cluster of the commands for people: `kubectl tensorlane`, and `tensorlane` in a pod.

use serde_json::Value;

use crate::cluster::{PATIENCE, cluster, within};

/// Exit code of a command, and what it said.
#[derive(Debug, Clone)]
pub struct Answer {
    code: Option<i32>,
    /// Standard output of the command, and after it the standard error.
    pub text: String,
    words: String,
}

impl Answer {
    fn of(words: &[&str]) -> Self {
        let output = cluster(words);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Self { code: output.status.code(), text, words: words.join(" ") }
    }

    /// Returns whether it ended with this exit code and said all of this.
    pub fn is(&self, code: i32, parts: &[&str]) -> bool {
        self.code == Some(code) && parts.iter().all(|part| self.text.contains(part))
    }

    /// The first of many answers that is so, or else the last one, which the caller then looks at.
    pub fn first(is_so: impl Fn(&Answer) -> bool, ask: impl Fn() -> Answer) -> Answer {
        let mut last = ask();
        within(PATIENCE, || {
            if !is_so(&last) {
                last = ask();
            }
            is_so(&last).then_some(())
        });
        last
    }

    /// Asserts that it did.
    ///
    /// # Panics
    /// Where it ended otherwise, or left something out.
    #[track_caller]
    pub fn says(&self, code: i32, parts: &[&str]) {
        let left_out: Vec<&&str> = parts.iter().filter(|part| !self.text.contains(**part)).collect();
        let Self { words, text, .. } = self;
        assert_eq!(self.code, Some(code), "{words}: {text}");
        assert!(left_out.is_empty(), "{words}: {left_out:?} is not in\n{text}");
    }

    /// JSON that it printed.
    ///
    /// # Panics
    /// Where it printed something else.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{}: {error}: {}", self.words, self.text))
    }
}

/// `kubectl tensorlane` about a namespace, with these words. kubectl finds the plugin beside the suites.
///
/// # Panics
/// Where kubectl does not start.
pub fn kubectl_tensorlane(namespace: &str, words: &[&str]) -> Answer {
    Answer::of(&[&["kubectl", "tensorlane", "--namespace", namespace], words].concat())
}

/// `tensorlane` in the user's container of a pod, with these words.
///
/// # Panics
/// Where kubectl does not start.
pub fn tensorlane_in(namespace: &str, pod: &str, words: &[&str]) -> Answer {
    let exec = ["kubectl", "--namespace", namespace, "exec", pod, "--container=main", "--", "tensorlane"];
    Answer::of(&[&exec, words].concat())
}
