//! Logs: one line an event on standard error, as JSON for machines or as text for people.
//!
//! info: something worked that was asked for. warn: something failed and was mended. error: somebody must act.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::Mutex;

use tracing::Subscriber;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry, fmt};

use self::output::Output;
use crate::config::{Log, LogFormat};

mod output;

/// Why there are no logs.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// `log.level` cannot be read.
    #[error("log.level: {0}")]
    Level(#[from] ParseError),
    /// Somebody else logs already.
    #[error("logging was started before: {0}")]
    Twice(#[from] TryInitError),
}

/// Filter that drops what others log at each attempt and we log once; `log.level` can bring it back.
const QUIET: &str = "kube_client=off";

/// Message of the line that tells of those that were dropped.
const DROPPED: &str = "lines of this log were dropped: nobody read standard error";

/// Starts logging of the whole process to standard error, panics included.
///
/// # Errors
/// The level cannot be read, or logging was started before.
pub fn start(log: &Log) -> Result<(), LoggingError> {
    let notice = match log.format {
        LogFormat::Json => notice_in_json,
        LogFormat::Text => notice_in_text,
    };
    subscriber(log, Mutex::new(Output::new(io::stderr(), notice)))?.try_init()?;
    std::panic::set_hook(Box::new(panicked));
    Ok(())
}

/// Says to standard error why the process ends. It waits no longer for whoever reads than the log does.
pub fn say(why: &dyn std::fmt::Display) {
    let line = format!("tensorlane-sidecar: {why}\n");
    // An output takes everything.
    _ = Output::new(io::stderr(), notice_in_text).write(line.as_bytes());
}

/// Logs a panic. The hook of the standard library would write itself, and a full standard error would stop the thread
/// before anybody knows that it panicked.
fn panicked(panic: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(%backtrace, "{panic}");
    } else {
        tracing::error!("{panic}");
    }
}

fn notice_in_json(dropped: u64) -> String {
    serde_json::json!({ "level": "WARN", "message": DROPPED, "lines": dropped }).to_string()
}

fn notice_in_text(dropped: u64) -> String {
    format!("WARN {DROPPED} lines={dropped}")
}

fn subscriber<W>(log: &Log, writer: W) -> Result<impl Subscriber + Send + Sync + 'static, ParseError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let levels: Targets = format!("{QUIET},{}", log.level).parse()?;
    let lines = fmt::layer().with_writer(writer);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match log.format {
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
        LogFormat::Text => lines.with_ansi(false).boxed(),
    };
    Ok(tracing_subscriber::registry().with(lines.with_filter(levels)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::config::Config;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: &str, format: &str) -> Vec<String> {
        let config = Config::of(&[("log.level", level), ("log.format", format)]).unwrap();
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(&config.log, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(peer = "a", bytes = 7, "tensor\nmoved");
            tracing::debug!("detail");
            tracing::error!(target: "kube_client::client::builder", "failed");
        });
        let text = String::from_utf8(lines.0.lock().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn an_event_is_one_line_of_json_with_its_fields() {
        let lines = logged("info", "json");
        assert_eq!(lines.len(), 1, "{lines:?}");
        let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"INFO".into(), &"tensor\nmoved".into()));
        assert_eq!((&line["peer"], &line["bytes"]), (&"a".into(), &7.into()));
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn the_level_holds_for_all_and_a_module_can_have_its_own() {
        assert_eq!(logged("error", "json").len(), 0);
        assert_eq!(logged("debug", "json").len(), 2);
        assert_eq!(logged("error,tensorlane_sidecar::logging=debug", "json").len(), 2);
        assert_eq!(logged("error,kube_client=error", "json").len(), 1, "a quiet one speaks if told to");
    }

    #[test]
    fn text_is_for_people() {
        let lines = logged("info", "text");
        assert!(
            lines[0].contains("INFO") && !lines[0].contains('{') && !lines[0].contains('\x1b'),
            "{lines:?}"
        );
    }
}
