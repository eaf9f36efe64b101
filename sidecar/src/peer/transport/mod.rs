//! The ways in which the bytes of a pull come. Whether they may come at all (the lease, the head, the end, the deadline) is
//! decided on the control connection and the same for all of them; see docs/decisions/012-transports.md.
//!
//! A way is added here: a number in `tensor.proto` and a case of [`Way`], the functions of [`Transport`], a place in [`Ways`],
//! and a line in the list of the conformance suite (`tests/transports.rs`). The compiler names the matches over [`Way`].

use std::time::Instant;

use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::{self, SameNode};

use super::calls::PullCall;
use super::paths::FallBack;
use super::record_writer::OutgoingPull;
use super::send_error::SendError;

pub(super) mod lanes;
pub(super) mod measure;
pub(super) mod shm;
mod stream;

use lanes::Lanes;
pub use lanes::LanesConfig;
pub use lanes::quic::quic_settings;
use shm::Shm;
pub(super) use stream::Stream;

/// A way, as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As chunks on the control connection.
    Stream,
    /// As they are asked for, on lanes.
    Lanes,
    /// Likewise, on lanes that are streams of one QUIC connection.
    Quic,
    /// Not at all: they are mapped where they are.
    Shm,
}

impl Way {
    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Lanes => "lanes",
            Self::Quic => "quic",
            Self::Shm => "shm",
        }
    }

    /// The transport that it is part of.
    pub fn transport(self) -> negotiate::Transport {
        match self {
            Self::Stream | Self::Lanes => negotiate::Transport::Tcp,
            Self::Quic => negotiate::Transport::Quic,
            Self::Shm => negotiate::Transport::Shm,
        }
    }

    /// Returns whether the bytes of a call may come this way instead of that one on the same connection: the other way
    /// round they would go in a circle.
    pub(super) fn may_follow(self, before: Self) -> bool {
        let place = |way| match way {
            Self::Shm | Self::Quic => 0,
            Self::Lanes => 1,
            Self::Stream => 2,
        };
        place(self) > place(before)
    }
}

impl From<Way> for v1::Way {
    fn from(way: Way) -> Self {
        match way {
            Way::Stream => Self::Stream,
            Way::Lanes => Self::Lanes,
            Way::Quic => Self::Quic,
            Way::Shm => Self::Shm,
        }
    }
}

impl TryFrom<i32> for Way {
    type Error = prost::UnknownEnumValue;

    fn try_from(number: i32) -> Result<Self, Self::Error> {
        Ok(match v1::Way::try_from(number)? {
            v1::Way::Stream => Self::Stream,
            v1::Way::Lanes => Self::Lanes,
            v1::Way::Quic => Self::Quic,
            v1::Way::Shm => Self::Shm,
        })
    }
}

/// Answer whether a pull should come a way now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suits {
    /// Way that it should come.
    Yes,
    /// Another way is as good or better.
    No,
    /// Way that it should come, but cannot.
    Missed(FallBack),
}

/// A way, on one control connection. Nothing here waits for a socket or a thread.
pub(super) trait Transport: Send + Sync {
    /// Returns the name of this way.
    fn way(&self) -> Way;
    /// Reader: whether a pull of so many bytes should come this way now.
    fn suits(&self, bytes: u64) -> Suits;
    /// Owner: a pull is leased. Sends its head; its bytes follow, or can be asked for from now on.
    fn serve(&self, head: Vec<u8>, bulk: OutgoingPull) -> Result<(), SendError>;
    /// Owner: no more bytes of a pull are wanted. `end`: the reader gave up and may wait for a last frame; this is one.
    fn close(&self, call: u64, end: Option<Vec<u8>>) -> Result<(), SendError>;
    /// Reader: the head of a pull is here. Has what is missing brought. Called under the lock of the peer's calls.
    /// After the deadline nobody wants it.
    fn bring(&self, call: u64, deadline: Instant, pull: &mut PullCall);
    /// Reader: does what `bring` could not do under a lock, and whatever time asks for. Called without locks, after
    /// `bring` and now and then; at the latest then, where it says when.
    fn tend(&self) -> Option<Instant>;
    /// The control connection has ended: nothing more comes or goes, and whoever waits is woken.
    fn end(&self);
}

/// The ways of one control connection.
pub(super) struct Ways {
    stream: Stream,
    lanes: Option<Lanes>,
    quic: Option<Lanes>,
    shm: Option<Shm>,
    /// From how many bytes on lanes are missed, which the other end does not take.
    missed_from: Option<u64>,
}

/// Choice that was made for a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) way: Way,
    /// The way that would have been better, and why it is not this one.
    pub(super) missed: Option<(Way, FallBack)>,
}

impl Ways {
    pub(super) fn new(
        stream: Stream,
        (lanes, missed_from): (Option<Lanes>, Option<u64>),
        quic: Option<Lanes>,
        shm: Option<Shm>,
    ) -> Self {
        Self { stream, lanes, quic, shm, missed_from }
    }

    fn all(&self) -> impl Iterator<Item = &dyn Transport> {
        let lanes = [&self.quic, &self.lanes].into_iter().flatten().map(|lanes| lanes as &dyn Transport);
        let shm = self.shm.as_ref().map(|shm| shm as &dyn Transport);
        lanes.chain(shm).chain([&self.stream as &dyn Transport])
    }

    /// A way, if this connection has it.
    pub(super) fn of(&self, way: Way) -> Option<&dyn Transport> {
        self.all().find(|transport| transport.way() == way)
    }

    /// The way for a pull of so many bytes, by the transport that was chosen for it.
    pub(super) fn choose(&self, bytes: u64, chosen: negotiate::Transport) -> Choice {
        let by_quic = chosen == negotiate::Transport::Quic;
        let quic = self.quic.as_ref().filter(|_| by_quic);
        // Who is given QUIC may insist on encryption; what takes its place has it too.
        let lanes = self.lanes.as_ref().filter(|lanes| !by_quic || !lanes.is_plain());
        let not_offered = quic.is_none() && self.missed_from.is_some_and(|from| bytes >= from);
        let mut missed = not_offered.then_some((Way::Lanes, FallBack::LanesNotOffered));
        for lanes in quic.into_iter().chain(lanes) {
            match lanes.suits(bytes) {
                Suits::Yes => return Choice { way: lanes.way(), missed },
                Suits::No => {}
                Suits::Missed(why) => missed = missed.or(Some((lanes.way(), why))),
            }
        }
        Choice { way: Way::Stream, missed }
    }

    /// The way on which a pull goes on that has waited in vain for this one.
    pub(super) fn instead_of(&self, way: Way) -> Way {
        let lanes = self.lanes.as_ref().filter(|lanes| way == Way::Quic && !lanes.is_plain());
        lanes.filter(|lanes| lanes.suits(u64::MAX) == Suits::Yes).map_or(Way::Stream, Transport::way)
    }

    /// The way on which a pull goes on whose landing several writers have: on another connection it may be another one.
    pub(super) fn go_on(&self, way: Way) -> Option<Way> {
        let other = match way {
            Way::Quic => self.lanes.as_ref().filter(|lanes| !lanes.is_plain()),
            Way::Stream | Way::Lanes | Way::Shm => self.quic.as_ref(),
        };
        self.lanes_of(way).or(other).map(Transport::way)
    }

    /// Returns whether what comes this way can be read on the wire.
    pub(super) fn is_plain(&self, way: Way) -> bool {
        self.lanes_of(way).is_some_and(Lanes::is_plain)
    }

    /// The way in which another peer's tensor comes, by the transport that was chosen for it at its owner; none where there is
    /// none that is good enough.
    pub(super) fn for_aid(&self, chosen: negotiate::Transport, encrypted: bool) -> Option<Way> {
        let lanes = self.lanes.as_ref().filter(|lanes| !encrypted || !lanes.is_plain());
        let (first, second) = match chosen {
            negotiate::Transport::Quic => (self.quic.as_ref(), lanes),
            _ => (lanes, self.quic.as_ref()),
        };
        let hopeful = |lanes: &&Lanes| lanes.suits(u64::MAX) == Suits::Yes;
        first.into_iter().chain(second).find(hopeful).map(Transport::way)
    }

    /// Lanes that are connections, which have more to do than other ways: they are bound from outside.
    pub(super) fn lanes(&self) -> Option<&Lanes> {
        self.lanes.as_ref()
    }

    /// Lanes on QUIC.
    pub(super) fn quic(&self) -> Option<&Lanes> {
        self.quic.as_ref()
    }

    /// Lanes of a way.
    pub(super) fn lanes_of(&self, way: Way) -> Option<&Lanes> {
        match way {
            Way::Stream | Way::Shm => None,
            Way::Lanes => self.lanes(),
            Way::Quic => self.quic(),
        }
    }

    /// Shared memory, which has more to do than other ways: both ends meet, and maps have no landing.
    pub(super) fn shm(&self) -> Option<&Shm> {
        self.shm.as_ref()
    }

    /// Returns whether tensors can be mapped now.
    pub(super) fn maps(&self) -> bool {
        self.shm.as_ref().is_some_and(|shm| shm.same_node() == SameNode::Proven)
    }

    /// Does what is due; returns when it is to be done again at the latest, if that is soon.
    pub(super) fn tend(&self) -> Option<Instant> {
        self.all().filter_map(Transport::tend).min()
    }

    pub(super) fn end(&self) {
        self.all().for_each(Transport::end);
    }
}
