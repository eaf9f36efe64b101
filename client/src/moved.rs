//! Way in which the bytes of a reply came here, so that no slow road stays unseen.

use std::fmt;
use std::time::Duration;

use tensorlane_proto::generated as v1;
use tensorlane_proto::{Transport, wire};

/// Way in which the bytes of one tensor came to this peer.
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
    /// The ways within the transport, in the order in which they were tried; none within a pod.
    pub paths: Vec<Path>,
    /// Peers whose sidecars sent the bytes, with how many, where others than the owner did; a name that is empty stands for
    /// those beyond the first 16.
    pub senders: Vec<(String, u64)>,
    /// Set if they were copied out of GPU memory, by a process that reaches it; the refusal of `cuda_ipc` says why.
    pub staged: bool,
}

/// A way within a transport between two peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As chunks on the control connection.
    Stream,
    /// On connections of their own.
    Lanes,
    /// On streams of a QUIC connection.
    Quic,
    /// Not at all: they were mapped where they are.
    Shm,
}

impl Way {
    /// The word in output and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Lanes => "lanes",
            Self::Quic => "quic",
            Self::Shm => "shm",
        }
    }

    fn of(number: i32) -> Option<Self> {
        Some(match v1::Way::try_from(number).ok()? {
            v1::Way::Stream => Self::Stream,
            v1::Way::Lanes => Self::Lanes,
            v1::Way::Quic => Self::Quic,
            v1::Way::Shm => Self::Shm,
        })
    }
}

/// A part of the bytes, and the way that they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The way; none where this release does not know it.
    pub way: Option<Way>,
    /// Bytes that came this way; those that came twice, because a connection was lost in between, count twice.
    pub bytes: u64,
    /// Connections of its own that carried them; 0 for the control connection.
    pub lanes: u32,
    /// Of these bytes, those that came without encryption, on plain lanes.
    pub plain_bytes: u64,
    /// Reason why the rest did not come this way, a stable label such as `no_lane`; none if it was not left.
    pub left: Option<String>,
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
        Self {
            transport: Some(Transport::Local),
            bytes: 0,
            took: Duration::ZERO,
            refusals: Vec::new(),
            paths: Vec::new(),
            senders: Vec::new(),
            staged: false,
        }
    }

    /// Report with another reason for which the tensor was copied out of GPU memory.
    #[cfg(feature = "gpu")]
    pub(crate) fn staged_for(&self, why: &str) -> Self {
        let mut moved = self.clone();
        let of_gpu = |refused: &&mut Refused| refused.transport == Some(Transport::CudaIpc);
        if let Some(refused) = moved.refusals.iter_mut().find(of_gpu) {
            why.clone_into(&mut refused.why);
        }
        moved
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
        let path = |path: v1::Path| Path {
            way: Way::of(path.way),
            bytes: path.bytes,
            lanes: path.lanes,
            plain_bytes: path.plain_bytes,
            left: (!path.left.is_empty()).then_some(path.left),
        };
        Self {
            transport: wire::transport(message.transport),
            bytes: message.bytes,
            took: Duration::try_from_secs_f64(message.seconds).unwrap_or_default(),
            refusals: message.refusals.into_iter().map(refused).collect(),
            paths: message.paths.into_iter().map(path).collect(),
            senders: message.senders.into_iter().map(|sender| (sender.peer, sender.bytes)).collect(),
            staged: message.staged,
        }
    }
}

/// `tcp by 2 lanes (lanes_broke), then stream from a and b, staged, not shm: other_node`
impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_transport(f, self.transport)?;
        let transport = self.transport.map(Transport::as_str);
        for (at, path) in self.paths.iter().enumerate() {
            let path = path.to_string();
            // `quic`, not `quic by quic`.
            if at > 0 || transport != Some(path.as_str()) {
                write!(f, "{}{path}", if at == 0 { " by " } else { ", then " })?;
            }
        }
        for (at, (peer, _)) in self.senders.iter().enumerate() {
            f.write_str(if at == 0 { " from " } else { " and " })?;
            f.write_str(if peer.is_empty() { "others" } else { peer })?;
        }
        if self.staged {
            f.write_str(", staged")?;
        }
        for refused in &self.refusals {
            f.write_str(", not ")?;
            write_transport(f, refused.transport)?;
            write!(f, ": {}", refused.why)?;
        }
        Ok(())
    }
}

/// `2 plain lanes (lanes_broke)`
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = match self.plain_bytes {
            0 => "",
            plain if plain < self.bytes => "partly plain ",
            _ => "plain ",
        };
        match (self.way, self.lanes) {
            (Some(Way::Lanes | Way::Quic), 1) => write!(f, "1 {plain}lane")?,
            (Some(Way::Lanes | Way::Quic), lanes @ 2..) => write!(f, "{lanes} {plain}lanes")?,
            (way, _) => f.write_str(way.map_or("unknown", Way::as_str))?,
        }
        match &self.left {
            Some(why) => write!(f, " ({why})"),
            None => Ok(()),
        }
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
        let message = v1::Moved {
            transport: v1::Transport::Tcp.into(),
            bytes: 8,
            seconds: 0.5,
            refusals,
            ..v1::Moved::default()
        };
        let moved = Moved::from(message);
        assert_eq!(moved.to_string(), "tcp, not shm: other_node");
        assert_eq!(moved.rate(), Some(16.0));
    }

    #[test]
    fn the_ways_are_told_with_the_reason_why_one_was_left() {
        let path = |way: i32, lanes, left: &str| v1::Path {
            way,
            bytes: 2,
            lanes,
            left: left.into(),
            ..v1::Path::default()
        };
        let shown = |paths: Vec<v1::Path>| {
            let transport = v1::Transport::Tcp.into();
            Moved::from(v1::Moved { transport, paths, ..v1::Moved::default() }).to_string()
        };
        assert_eq!(shown(vec![path(1, 3, "")]), "tcp by 3 lanes");
        assert_eq!(shown(vec![path(0, 0, "")]), "tcp by stream");
        let broken = vec![path(1, 1, "lanes_broke"), path(0, 0, "")];
        assert_eq!(shown(broken), "tcp by 1 lane (lanes_broke), then stream");
        assert_eq!(shown(vec![path(1, 0, "no_lane"), path(0, 0, "")]), "tcp by lanes (no_lane), then stream");
        assert_eq!(shown(vec![path(77, 0, "")]), "tcp by unknown");
        let plain = |plain_bytes| v1::Path { plain_bytes, ..path(1, 3, "") };
        assert_eq!(shown(vec![plain(2)]), "tcp by 3 plain lanes");
        assert_eq!(shown(vec![plain(1)]), "tcp by 3 partly plain lanes");
        let small = v1::Path { way: v1::Way::Quic.into(), ..path(0, 0, "") };
        let quic = |paths| v1::Moved { transport: v1::Transport::Quic.into(), paths, ..v1::Moved::default() };
        assert_eq!(Moved::from(quic(vec![small.clone()])).to_string(), "quic");
        assert_eq!(Moved::from(quic(vec![small, path(0, 0, "")])).to_string(), "quic, then stream");
    }

    #[test]
    fn seconds_that_are_none_do_no_harm() {
        let message = v1::Moved { seconds: f64::NAN, ..v1::Moved::default() };
        assert_eq!(Moved::from(message).rate(), None);
    }
}
