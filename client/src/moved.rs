//! How the bytes of a reply came here, so that no slow road stays unseen.

use std::fmt;
use std::time::Duration;

use tensorlane_proto::generated as v1;
use tensorlane_proto::{Transport, wire};

/// How the bytes of one tensor came to this peer.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The transport that was used; none where the sidecar names one that this release does not know.
    pub transport: Option<Transport>,
    /// Bytes that crossed it; 0 for a local map.
    pub bytes: u64,
    /// From the request to the last byte.
    pub took: Duration,
    /// The better transports that were refused, best first.
    pub refusals: Vec<Refused>,
}

/// A transport that would have been better, and why it was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The transport; none where this release does not know it.
    pub transport: Option<Transport>,
    /// A stable label such as `other_node`.
    pub why: String,
}

impl Moved {
    /// A map of memory that is here already.
    pub(crate) const fn local() -> Self {
        Self { transport: Some(Transport::Local), bytes: 0, took: Duration::ZERO, refusals: Vec::new() }
    }

    /// Bytes a second; none where nothing moved.
    pub fn rate(&self) -> Option<f64> {
        let seconds = self.took.as_secs_f64();
        (self.bytes > 0 && seconds > 0.0).then(|| self.bytes as f64 / seconds)
    }
}

impl From<v1::Moved> for Moved {
    fn from(message: v1::Moved) -> Self {
        let refused = |refusal: v1::Refusal| Refused {
            transport: wire::transport(refusal.transport),
            why: refusal.why,
        };
        Self {
            transport: wire::transport(message.transport),
            bytes: message.bytes,
            took: Duration::try_from_secs_f64(message.seconds).unwrap_or_default(),
            refusals: message.refusals.into_iter().map(refused).collect(),
        }
    }
}

/// `tcp, not shm: other_node`
impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_transport(f, self.transport)?;
        for refused in &self.refusals {
            f.write_str(", not ")?;
            write_transport(f, refused.transport)?;
            write!(f, ": {}", refused.why)?;
        }
        Ok(())
    }
}

fn write_transport(f: &mut fmt::Formatter<'_>, transport: Option<Transport>) -> fmt::Result {
    f.write_str(transport.map_or("unknown", Transport::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_prints_with_the_refusals_that_led_to_it() {
        let refusals = vec![v1::Refusal { transport: v1::Transport::Shm.into(), why: "other_node".into() }];
        let message = v1::Moved { transport: v1::Transport::Tcp.into(), bytes: 8, seconds: 0.5, refusals };
        let moved = Moved::from(message);
        assert_eq!(moved.to_string(), "tcp, not shm: other_node");
        assert_eq!(moved.rate(), Some(16.0));
    }

    #[test]
    fn seconds_that_are_none_do_no_harm() {
        let message = v1::Moved { seconds: f64::NAN, ..v1::Moved::default() };
        assert_eq!(Moved::from(message).rate(), None);
    }
}
