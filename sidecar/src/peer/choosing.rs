//! Findings of pulls about `tcp` and `quic` to a peer, by which the next one goes.

use std::time::Instant;

use tensorlane_proto::negotiate::Measured;
use tensorlane_proto::{PeerName, Reason, Transport};

use super::api::{PullFailed, Pulled};
use super::calls::PullDone;
use super::peers::Peers;
use super::remote::Peer;
use super::transport::lanes::Lanes;
use super::transport::measure::Outcome;

impl Peers {
    /// Measures a pull whose transport is a choice.
    pub(super) fn measuring(
        &self,
        name: &PeerName,
        transport: Transport,
        bytes: u64,
        done: PullDone,
    ) -> PullDone {
        let Some(peer) = self.shared.known_peer(name).filter(|_| self.has_choice(bytes)) else { return done };
        let begun = Instant::now();
        let pull = peer.goodput.lock().began(transport, bytes, begun);
        Box::new(move |outcome| {
            let now = Instant::now();
            let learned = learned(&outcome, bytes, (now - begun).as_secs_f64());
            peer.goodput.lock().ended(pull, learned, now);
            done(outcome);
        })
    }

    /// Returns whether `tcp` or `quic` is a choice for so many bytes.
    pub fn has_choice(&self, bytes: u64) -> bool {
        bytes >= self.choice_from() && self.has_quic()
    }

    /// Returns whether this sidecar has a port for `quic`.
    pub fn has_quic(&self) -> bool {
        self.shared.config.lanes.quic > 0
    }

    /// From how many bytes on it is one.
    pub fn choice_from(&self) -> u64 {
        self.shared.config.lanes.from
    }

    /// Knowledge of the ways to a peer, for the choice of one for so many bytes. `pulls`: a pull begins now, which may
    /// be one to find out more.
    #[must_use]
    pub fn measured(&self, name: &PeerName, bytes: u64, pulls: bool) -> Measured {
        let met = self.met(name);
        let Some(peer) = self.shared.known_peer(name).filter(|_| self.has_choice(bytes)) else { return met };
        let now = Instant::now();
        let ready = pulls && is_ready_for_trial(&peer, now);
        let goodput = peer.goodput.lock();
        let tried = if pulls { goodput.for_pull(now, ready) } else { goodput.measured(now) };
        // Where there is nothing else, what stood still is tried again.
        let has_no_quic =
            [met.absent, met.unreached, tried.cooling].iter().any(|lacks| lacks.contains(Transport::Quic));
        let is_last = |one| one == Transport::Tcp && has_no_quic;
        let cooling = met.cooling.iter().chain(tried.cooling.iter()).filter(|one| !is_last(*one)).collect();
        let Measured { current, tcp_goodput, quic_goodput, .. } = tried;
        Measured { cooling, current, tcp_goodput, quic_goodput, ..met }
    }
}

/// Returns whether the transport that is not in use is to be tried, and can be without waiting for a connection. Has
/// one made where it is not there.
fn is_ready_for_trial(peer: &Peer, now: Instant) -> bool {
    let goodput = *peer.goodput.lock();
    if !goodput.is_trial_due(now) {
        return false;
    }
    let link = peer.state.lock().link.clone();
    goodput.idle() == Transport::Tcp
        || link.and_then(|link| link.ways.quic().map(Lanes::is_ready)).unwrap_or(false)
}

/// Outcome of a pull for the transport that was chosen for it.
fn learned(outcome: &Result<Pulled, PullFailed>, bytes: u64, seconds: f64) -> Outcome {
    match outcome {
        // What others sent says nothing of the way to the owner.
        Ok(pulled) if pulled.paths.senders().are_others() => Outcome::Unknown,
        // Of one that came in several ways nobody knows which part of the time was whose.
        Ok(pulled) => match pulled.paths.as_slice() {
            [path] if path.left.is_none() => Outcome::Came,
            _ => Outcome::Unknown,
        },
        Err(failed) => match failed.failure.reason {
            Reason::DeadlineExceeded | Reason::Cancelled => Outcome::FellShort(bytes, seconds),
            _ => Outcome::Unknown,
        },
    }
}
