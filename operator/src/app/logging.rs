//! Logs: one line of JSON an event.
//!
//! Libraries are not ours to vouch for: a client of Kubernetes logs whole answers that it cannot read, and such an
//! answer may be a Secret. So the level holds for our own crates, other ones never say more than `info`, and the client
//! says nothing. Each of its errors is logged by whoever called it.

use tensorlane_proto::crd::LogLevel;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

/// The client of Kubernetes. Its module of one request logs the body of an answer.
const CLIENT: &str = "kube_client";

/// Prefix of our own crates.
const OURS: &str = "tensorlane";

/// Makes what takes the events of the process, and writes those up to this level.
pub fn subscriber<W>(level: LogLevel, writer: W) -> impl Subscriber + Send + Sync + 'static
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let level: LevelFilter = level.as_str().parse().unwrap_or(LevelFilter::INFO);
    let targets = Targets::new()
        .with_default(level.min(LevelFilter::INFO))
        .with_target(OURS, level)
        .with_target(CLIENT, LevelFilter::OFF);
    let lines = tracing_subscriber::fmt::layer().json().with_writer(writer);
    tracing_subscriber::registry().with(lines.with_filter(targets))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: LogLevel) -> Vec<String> {
        let lines = Lines::default();
        let writer = lines.clone();
        tracing::subscriber::with_default(subscriber(level, move || writer.clone()), || {
            tracing::warn!("ours");
            tracing::debug!("our detail");
            tracing::warn!(target: "kube_client::client", "the body of a Secret");
            tracing::error!(target: "kube_client::client::builder", "failed with status");
            tracing::warn!(target: "kube_runtime::watcher", "theirs");
            tracing::debug!(target: "hyper::proto", "bytes of theirs");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_client_of_kubernetes_logs_nothing_at_any_level_and_others_no_detail() {
        for (level, wanted) in [
            (LogLevel::Error, &[][..]),
            (LogLevel::Info, &["ours", "theirs"]),
            (LogLevel::Trace, &["ours", "our detail", "theirs"]),
        ] {
            let lines = logged(level);
            let said =
                |word: &&str| lines.iter().any(|line| line.contains(&format!("\"message\":\"{word}\"")));
            assert!(lines.len() == wanted.len() && wanted.iter().all(said), "{level:?}: {lines:?}");
        }
    }
}
