//! Complaints of what went wrong, on standard error: a sentence for people, or one object of JSON for programs. Knows
//! nothing of what was asked for.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Write};

use serde_json::{Value, json};
use tensorlane_client::Error;
use tensorlane_proto::text::variable;
use tensorlane_proto::{Code, Failure, Reason};

use crate::output::{Format, printable, wants_colours};

/// Says on standard error what went wrong.
pub(crate) fn complain(error: &anyhow::Error, format: Format) {
    let told = match format {
        Format::Json => object(error).to_string(),
        Format::Text => text(error, wants_colours(&io::stderr())),
    };
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "{told}");
}

/// Says on standard error what is worth knowing.
pub(crate) fn warn(what: &str, format: Format) {
    let (yellow, plain) = if wants_colours(&io::stderr()) { ("\x1b[1;33m", "\x1b[0m") } else { ("", "") };
    let told = match format {
        Format::Json => json!({ "warning": what }).to_string(),
        Format::Text => format!("{yellow}warning:{plain} {}", printable(what)),
    };
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "{told}");
}

/// Says on standard error what was done.
#[cfg(feature = "kubernetes")]
pub(crate) fn note(what: &str, format: Format) {
    let told = match format {
        Format::Json => json!({ "note": what }).to_string(),
        Format::Text => printable(what).into_owned(),
    };
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "{told}");
}

/// Says how the command was called wrongly, where `words`, which it was called with, ask for JSON or hold control characters. Else
/// it is clap's to say.
pub(crate) fn misuse<'a>(error: &clap::Error, words: impl IntoIterator<Item = &'a OsStr>) -> Option<String> {
    if !error.use_stderr() {
        return None;
    }
    let words: Vec<&OsStr> = words.into_iter().collect();
    let whole = error.render().to_string();
    if !ask_for_json(words.iter().copied()) {
        // clap shows a terminal the words as they are, and a shell makes words of the names of files.
        let is_odd = |word: &OsStr| word.to_string_lossy().chars().any(char::is_control);
        return words.into_iter().any(is_odd).then(|| printable(whole.trim_end()).into_owned());
    }
    let told = whole.split("\n\nUsage:").next().unwrap_or(&whole);
    let told = told.split("\n\nFor more information").next().unwrap_or(told);
    let told = told.strip_prefix("error: ").unwrap_or(told);
    // Of several lines, as of values that are possible, one.
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(parts(Some(Code::InvalidArgument), None, &told, &json!({}), None).to_string())
}

/// Returns whether words of a command line that cannot be read ask for JSON.
fn ask_for_json<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> bool {
    let mut before = None;
    words.into_iter().any(|word| {
        let (word, last) = (word.to_str(), before);
        before = word;
        let is_apart = word == Some("json") && matches!(last, Some("-o" | "--output"));
        is_apart || matches!(word, Some("-ojson" | "-o=json" | "--output=json"))
    })
}

/// The result of a call about something that has a name: the error says which, unless it does so already.
pub(crate) fn about<T>(name: &str, result: tensorlane_client::Result<T>) -> anyhow::Result<T> {
    result.map_err(|error| {
        let told = matches!(&error, Error::Refused(failure) if failure.detail("name") == Some(name));
        if told { error.into() } else { anyhow::Error::from(error).context(name.to_owned()) }
    })
}

fn text(error: &anyhow::Error, colours: bool) -> String {
    let (red, plain) = if colours { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    let mut told = format!("{red}error:{plain} {}", printable(&sentence(error, ToString::to_string)));
    let known = of_client(error);
    if let Some(advice) = known.and_then(advice) {
        told.push_str("\nhint: ");
        told.push_str(advice);
    }
    // In Kubernetes nobody sets variables of the sidecar by hand.
    if let Some(Error::Refused(failure)) = known
        && std::env::var_os("KUBERNETES_SERVICE_HOST").is_none()
        && let Some(variables) = variables(&failure.message)
    {
        told.push_str("\nhint: ");
        told.push_str(&variables);
    }
    told
}

/// Sections of the sidecar's settings that refusals name.
const SECTIONS: [&str; 6] = ["arena", "limits", "sets", "peers", "deadlines", "gc"];

/// `arena.size is the variable TENSORLANE_ARENA_SIZE`, of the settings that a message names without that.
fn variables(message: &str) -> Option<String> {
    let words = message.split(|c: char| c.is_whitespace() || ",;:()`".contains(c));
    let is_setting = |word: &&str| {
        let (section, name) = word.split_once('.').unwrap_or_default();
        SECTIONS.contains(&section) && !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic())
    };
    let settings: BTreeSet<&str> = words.map(|word| word.trim_end_matches('.')).filter(is_setting).collect();
    let told = settings.into_iter().map(|setting| (setting, variable(setting)));
    let told = told.filter(|(_, variable)| !message.contains(variable.as_str()));
    let told: Vec<String> = told.map(|(of, variable)| format!("{of} is {variable}")).collect();
    (!told.is_empty()).then(|| format!("of the sidecar's variables {}", told.join(", ")))
}

fn object(error: &anyhow::Error) -> Value {
    let known = of_client(error);
    let failure = known.and_then(|known| match known {
        Error::Refused(failure) => Some(&**failure),
        _ => None,
    });
    // The reason and the details stand beside it.
    let message = sentence(error, |cause| match cause.downcast_ref::<Error>() {
        Some(Error::Refused(failure)) => failure.message.clone(),
        _ => cause.to_string(),
    });
    let details = |failure: &Failure| -> Value {
        failure.details.iter().map(|(key, value)| (key.to_string(), Value::from(value.as_str()))).collect()
    };
    let details = failure.map_or_else(|| json!({}), details);
    let reason = failure.map(|failure| failure.reason);
    parts(known.and_then(code), reason, &message, &details, known.and_then(advice))
}

fn parts(
    code: Option<Code>,
    reason: Option<Reason>,
    message: &str,
    details: &Value,
    hint: Option<&str>,
) -> Value {
    json!({
        "code": code.map(Code::as_str),
        "reason": reason.map(Reason::as_str),
        "message": message,
        "details": details,
        "hint": hint,
    })
}

/// The error of the client, where it was that.
fn of_client(error: &anyhow::Error) -> Option<&Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// The gRPC code that goes with an error; that of the sidecar where it was the sidecar that refused.
fn code(error: &Error) -> Option<Code> {
    Some(match error {
        Error::Refused(failure) => failure.code,
        Error::SidecarUnreachable { .. } | Error::SessionLost { .. } => Code::Unavailable,
        Error::DeadlineExceeded { .. } => Code::DeadlineExceeded,
        Error::Withdrawn => Code::Cancelled,
        Error::InvalidArgument(_) => Code::InvalidArgument,
        Error::Resources { .. } => Code::ResourceExhausted,
        _ => return None,
    })
}

/// Names the option of this command that helps, if there is one.
fn advice(error: &Error) -> Option<&'static str> {
    if matches!(error, Error::SessionLost { .. }) {
        return Some("call again; put again what is still needed and had no name");
    }
    match error.reason()? {
        Reason::NameTaken => Some("take another name; `put --replace` gives the name to the new tensor"),
        Reason::ArenaFull => {
            Some("`tensorlane status` shows what fills the arena; --deadline 5m waits longer for room")
        }
        Reason::AmbiguousName => Some("get it with --peer PEER"),
        _ => None,
    }
}

/// The error and its causes in one line, without those that the one before tells already.
fn sentence(error: &anyhow::Error, words: impl Fn(&(dyn std::error::Error + 'static)) -> String) -> String {
    let mut told: Vec<String> = Vec::new();
    for cause in error.chain().map(words) {
        if !told.last().is_some_and(|last| last.contains(&cause)) {
            told.push(cause);
        }
    }
    told.join(": ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn told(error: &anyhow::Error) -> String {
        sentence(error, ToString::to_string)
    }

    #[test]
    fn a_cause_that_was_told_is_not_told_again() {
        let error = anyhow::anyhow!("no such file").context("cannot open x: no such file").context("weights");
        assert_eq!(told(&error), "weights: cannot open x: no such file");
    }

    #[test]
    fn a_name_that_the_error_tells_is_not_told_again() {
        let failure =
            |detail: &str| Failure::new(Reason::NotFound, "nothing is named x here").with("name", detail);
        let said = |detail| told(&about::<()>("x", Err(failure(detail).into())).unwrap_err());
        assert_eq!(said("x"), "NOT_FOUND: nothing is named x here");
        assert_eq!(said("y"), "x: NOT_FOUND: nothing is named x here (name=y)");
    }

    #[test]
    fn settings_that_a_message_names_are_told_as_variables_too() {
        let told =
            variables("9 bytes can never fit: raise arena.size, or `limits.setFiles`; see arena.size.");
        let expected = "of the sidecar's variables arena.size is TENSORLANE_ARENA_SIZE, limits.setFiles is \
                        TENSORLANE_LIMITS_SET_FILES";
        assert_eq!(told.as_deref(), Some(expected));
        for none in [
            "set sets.root (TENSORLANE_SETS_ROOT) to one",
            "cannot open model.file",
            "arena. It",
            "a/arena.size",
        ] {
            assert_eq!(variables(none), None, "{none}");
        }
    }

    #[test]
    fn an_error_is_one_object_for_programs() {
        let failure = Failure::new(Reason::NameTaken, "the name m is taken").with("name", "m");
        let error = anyhow::Error::from(Error::from(failure)).context("weights");
        let expected = json!({
            "code": "ALREADY_EXISTS",
            "reason": "NAME_TAKEN",
            "message": "weights: the name m is taken",
            "details": { "name": "m" },
            "hint": "take another name; `put --replace` gives the name to the new tensor",
        });
        assert_eq!(object(&error), expected);
        let other = object(&anyhow::anyhow!("cannot open x"));
        assert_eq!((&other["code"], &other["reason"]), (&Value::Null, &Value::Null));
        assert_eq!((&other["message"], &other["details"]), (&json!("cannot open x"), &json!({})));
        let withdrawn = object(&Error::Withdrawn.into());
        assert_eq!((&withdrawn["code"], &withdrawn["reason"]), (&json!("CANCELLED"), &Value::Null));
    }

    #[test]
    fn whoever_asks_for_json_gets_it_where_the_command_was_called_wrongly_too() {
        let misused = |line: &str| {
            let words: Vec<&OsStr> = line.split(' ').map(OsStr::new).collect();
            misuse(&Args::try_parse_from(&words).unwrap_err(), words.iter().copied())
        };
        for line in ["t -o json get", "t get -ojson", "t --output=json get", "t get --output json"] {
            let object: Value = serde_json::from_str(&misused(line).unwrap()).unwrap();
            assert_eq!(object["code"], "INVALID_ARGUMENT", "{line}");
            let message = object["message"].as_str().unwrap();
            assert!(message.contains("required") && !message.contains("Usage"), "{line}: {message}");
        }
        for line in ["t get", "t -o text get", "t -o json --help"] {
            assert_eq!(misused(line), None, "{line}");
        }
        // Words that would move the cursor are never shown as they are.
        let told = misused("t put a b\u{1b}[31m\u{7}\u{9b}").unwrap();
        assert!(
            told.contains("unexpected argument") && !told.contains(['\u{1b}', '\u{7}', '\u{9b}']),
            "{told:?}"
        );
    }
}
