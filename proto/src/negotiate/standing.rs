//! Standing of every transport between two peers: not only why none better than the one that was taken, but also why
//! not each that comes after it. For whoever is shown routes; nothing that is moved depends on it.

use std::fmt;

use super::choose::Pair;
use super::*;

/// Outcome for a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Taken as the route.
    Taken,
    /// Transport that would do, and another one is the route.
    Fits(Passed),
    /// Transport that cannot be had, or must not be.
    Refused(Why),
}

impl Standing {
    /// The label in replies.
    pub const fn as_str(self) -> &'static str {
        match self {
            Standing::Taken => "taken",
            Standing::Fits(_) => "fits",
            Standing::Refused(_) => "refused",
        }
    }

    /// The label of the reason; empty for the one that is taken.
    pub const fn why(self) -> &'static str {
        match self {
            Standing::Taken => "",
            Standing::Fits(passed) => passed.as_str(),
            Standing::Refused(why) => why.as_str(),
        }
    }
}

/// Reason for which a transport that would do is not the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Passed {
    /// The one that is taken comes before it, whatever is measured: memory of the node before any network.
    BetterTaken,
    /// The exchange prefers the other one.
    NotPreferred,
    /// Measured to be slower.
    Slower,
    /// Measured, and not faster by enough to change over.
    NotFaster,
    /// Not both were measured: the pair stays with the one that it has.
    NotCompared,
    /// Taken for tensors that lie in GPU memory, which this one does not.
    GpuMemory,
}

impl Passed {
    /// The label in replies.
    pub const fn as_str(self) -> &'static str {
        match self {
            Passed::BetterTaken => "better_taken",
            Passed::NotPreferred => "not_preferred",
            Passed::Slower => "slower",
            Passed::NotFaster => "not_faster",
            Passed::NotCompared => "not_compared",
            Passed::GpuMemory => "gpu_memory",
        }
    }
}

/// A transport between two peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Transport that came into question.
    pub transport: Transport,
    /// Outcome for it.
    pub standing: Standing,
    /// Goodput that it was measured to bring, bytes a second.
    pub goodput: Option<f64>,
}

/// `quic: fits, slower`
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.transport, self.standing.as_str())?;
        match self.standing.why() {
            "" => Ok(()),
            why => write!(f, ", {why}"),
        }
    }
}

/// Standing of every transport between two peers (or within one), the best first: the one that [`negotiate`] takes for
/// the same arguments, and why not each other one, those that come after it included.
pub fn candidates(
    ours: &Offer,
    theirs: &Offer,
    what: &What,
    policy: &Policy,
    measured: &Measured,
) -> Vec<Candidate> {
    let pair = Pair { ours, theirs, what, policy, measured };
    let route = negotiate(ours, theirs, what, policy, measured);
    let taken = route.ok().map(|route| route.transport);
    let one = |transport| {
        let standing = pair.standing(transport, taken);
        Candidate { transport, standing, goodput: measured.goodput(transport) }
    };
    pair.thinkable().iter().copied().map(one).collect()
}

impl Pair<'_> {
    /// The transports that are shown: those that come into question, and the one that would for memory of another kind.
    fn thinkable(&self) -> &'static [Transport] {
        match self.ours.is_same_peer(self.theirs) {
            true => &[Transport::Local, Transport::CudaIpc],
            false => &[Transport::Shm, Transport::CudaIpc, Transport::Tcp, Transport::Quic],
        }
    }

    fn standing(&self, transport: Transport, taken: Option<Transport>) -> Standing {
        if taken == Some(transport) {
            return Standing::Taken;
        }
        if self.ours.versions.newest_common(self.theirs.versions).is_none() {
            return Standing::Refused(Why::NoCommonVersion);
        }
        if !self.candidates().contains(&transport) {
            return self.out_of_question(transport);
        }
        match (self.unfit(transport), taken) {
            (Some(why), _) => Standing::Refused(why),
            (None, Some(taken)) => Standing::Fits(self.passed(transport, taken)),
            // Where anything is fit there is a route: a comparison sends nobody away.
            (None, None) => Standing::Refused(Why::NotSupported),
        }
    }

    /// Standing of one that does not carry the memory that the tensor is in: what it would need besides says more. That for GPU memory
    /// is told for a tensor that would lie there.
    fn out_of_question(&self, transport: Transport) -> Standing {
        if transport == Transport::CudaIpc {
            let what = What { device: Device::Cuda { index: 0, uuid: None }, ..*self.what };
            let of_gpu = Pair { what: &what, ..*self };
            return of_gpu.unfit(transport).map_or(Standing::Fits(Passed::GpuMemory), Standing::Refused);
        }
        let lacks = self.unavailable(transport);
        let why = lacks.filter(|why| matches!(why, Why::OtherNode | Why::Policy | Why::NotOffered));
        Standing::Refused(why.unwrap_or(Why::NotSupported))
    }

    /// Reason for which one that is fit is not the one that was taken.
    fn passed(&self, transport: Transport, taken: Transport) -> Passed {
        let is_network = |one| matches!(one, Transport::Tcp | Transport::Quic);
        if !is_network(transport) || !is_network(taken) {
            return Passed::BetterTaken;
        }
        if self.policy.prefer == Some(taken) {
            return Passed::NotPreferred;
        }
        match (self.measured.goodput(transport), self.measured.goodput(taken)) {
            (Some(mine), Some(its)) if mine < its => Passed::Slower,
            (Some(_), Some(_)) => Passed::NotFaster,
            _ => Passed::NotCompared,
        }
    }
}
