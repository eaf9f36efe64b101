//! Findings: what was looked at and how it stands, for people and for programs. Every problem says what to do.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Value, json};
use tensorlane_proto::text::printable;

/// Level at which something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Not possible to look at.
    Unknown,
    /// Something does not work.
    Problem,
}

impl Level {
    const fn as_str(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Unknown => "unknown",
            Level::Problem => "problem",
        }
    }
}

/// Finding about a thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Level at which it stands.
    pub level: Level,
    /// The namespace that it is of, where several were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Subject that was looked at: a stable word, such as `webhook`.
    pub about: &'static str,
    /// Words for what was found.
    pub found: String,
    /// Remedy, if something does not work.
    pub remedy: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn ok(about: &'static str, found: impl Into<String>) -> Finding {
        Finding { level: Level::Ok, namespace: None, about, found: found.into(), remedy: None }
    }

    /// Worth knowing.
    pub fn note(about: &'static str, found: impl Into<String>) -> Finding {
        Finding { level: Level::Note, ..Finding::ok(about, found) }
    }

    /// Worth knowing, and what to do about it if it matters.
    pub fn advice(about: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Note, ..Finding::problem(about, found, remedy) }
    }

    /// Finding that something could not be looked at, and what to do so that it can.
    pub fn unknown(about: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Unknown, ..Finding::problem(about, found, remedy) }
    }

    /// Something does not work, and what to do.
    pub fn problem(about: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Problem, remedy: Some(remedy.into()), ..Finding::ok(about, found) }
    }

    /// Finding of one namespace among several.
    #[must_use]
    pub fn of(self, namespace: &str) -> Finding {
        Finding { namespace: Some(namespace.to_owned()), ..self }
    }

    /// Subject that was looked at, and its place.
    fn place(&self) -> String {
        self.namespace.as_ref().map_or(self.about.to_owned(), |of| format!("{of}/{}", self.about))
    }
}

/// The exit code for these findings: 0 where nothing is wrong, 1 where something is, 3 where nothing wrong was found but
/// not everything could be looked at.
pub fn exit_code(findings: &[Finding]) -> u8 {
    let any = |level| findings.iter().any(|finding| finding.level == level);
    match (any(Level::Problem), any(Level::Unknown)) {
        (true, _) => 1,
        (false, true) => 3,
        (false, false) => 0,
    }
}

/// For people: a line each, and below it what to do. What pods and objects say of themselves cannot move the cursor.
pub fn text(findings: &[Finding]) -> String {
    let about = findings.iter().map(|finding| finding.place().len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<7}  {:<about$}  {}",
            finding.level.as_str(),
            finding.place(),
            printable(&finding.found)
        );
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "{:<7}  {:<about$}  -> {}", "", "", printable(remedy));
        }
    }
    text
}

/// For programs.
pub fn json(findings: &[Finding]) -> Value {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    json!({
        "problems": count(Level::Problem),
        "unknown": count(Level::Unknown),
        "findings": findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_beats_what_is_not_known_and_that_beats_what_is_well() {
        let (ok, note) = (Finding::ok("a", "x"), Finding::note("a", "x"));
        let (unknown, problem) = (Finding::unknown("a", "x", "y"), Finding::problem("a", "x", "y"));
        assert_eq!(exit_code(&[]), 0);
        assert_eq!(exit_code(&[ok.clone(), note]), 0);
        assert_eq!(exit_code(&[ok.clone(), unknown.clone()]), 3);
        assert_eq!(exit_code(&[problem, ok, unknown]), 1);
    }

    #[test]
    fn people_read_columns_and_programs_read_words() {
        let all = [Finding::ok("sockets", "there"), Finding::problem("peers", "none", "look")];
        assert_eq!(
            text(&all),
            "ok       sockets  there\nproblem  peers    none\n                  -> look\n"
        );
        let [there, none] = all.clone();
        assert_eq!(
            text(&[there.of("ml"), none]),
            "ok       ml/sockets  there\nproblem  peers       none\n                     -> look\n"
        );
        let forged = [Finding::note("sidecar", "its last words: \u{1b}[31mred\rok")];
        assert_eq!(text(&forged), "note     sidecar  its last words: \\u{1b}[31mred\\rok\n");
        let json = json(&all);
        assert_eq!((&json["problems"], &json["findings"][1]["level"]), (&json!(1), &json!("problem")));
        assert_eq!(
            json["findings"][0].get("remedy"),
            Some(&Value::Null),
            "every finding has the same fields"
        );
    }
}
