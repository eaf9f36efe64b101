//! Single copy of a tensor a node: before a tensor of a peer elsewhere is brought here, the sidecars of this node are
//! asked for theirs. What is decided is in [`next`], which is pure; the other side of it is in `lend`.
//!
//! ```text
//!   somebody has it ───────────────────> map it there
//!   it is on its way to somebody ──────> wait with them, then map it there
//!   several ask each other ────────────> the one whose name comes first goes first, the others wait for it
//!   else ──────────────────────────────> bring it here, and let those wait who ask meanwhile
//! ```
//! Nobody is needed for this: who does not answer has nothing. At worst a node has a copy more than one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::frame::INLINE_BYTES_MAX;
use tensorlane_proto::generated as v1;
use tensorlane_proto::negotiate::{Encryption, Transport};
use tensorlane_proto::reference::Reference;
use tensorlane_proto::selection::Selection;

use super::Exchange;
use super::fetch::{Fetch, Waiting, expected_layout};
use super::gather::Gather;
use super::lend::CopyStage;
use super::target::target_of;
use super::transfer::{Arrived, Came};
use crate::peer::{CALLS_MAX, MapFailed, MapOrder, Mapped, PeerKey};

/// Time that a neighbour may take to say whether it has a copy. One that does not is not asked for a while.
const ANSWER: Duration = Duration::from_millis(500);
/// Time that a neighbour may take to give what it has.
const GIVING: Duration = Duration::from_secs(2);
/// Number of times that the neighbours are asked for one tensor: again where one that had it, or was getting it, did
/// not give it.
const ROUNDS_MAX: u32 = 3;
/// Least time for which a copy on its way is waited for; else half of the time that is left, so that the other half is
/// left to bring it.
const WAITING_MIN: Duration = Duration::from_secs(2);
/// Most time for that, however much is left, and beside what its bytes take at [`SLOWEST`]: a neighbour that says for ever that it
/// is on its way costs so much, and a tensor that comes slower than that has two copies on the node.
const WAITING_MAX: Duration = Duration::from_secs(30);
/// Bytes a second that are expected of a copy on its way at least.
const SLOWEST: u64 = 16 << 20;
/// Most tensors that are waited for at neighbours; more are brought here. Half of the calls that one connection takes at a
/// time, for those that map what has come are behind them.
const WAITS_MAX: usize = CALLS_MAX / 2;

/// Word of a peer of this node about its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyStatus {
    /// Mappable now.
    Here,
    /// Coming: on its way.
    Coming,
    /// Asking others itself, and going on before us.
    Asking,
    /// None: the peer has no copy.
    No,
}

/// Step that is done about a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    Map(PeerKey),
    Wait(PeerKey),
    Bring,
}

/// Decides what is done after all have answered. `ahead`: those that asked us meanwhile, and go first.
fn next(words: &[(PeerKey, CopyStatus)], ahead: &[PeerKey]) -> Next {
    let says = |word: CopyStatus| words.iter().filter(move |(_, said)| *said == word).map(|(who, _)| who);
    let first = || says(CopyStatus::Asking).chain(ahead).min_by(|a, b| a.name.cmp(&b.name));
    if let Some(holder) = says(CopyStatus::Here).next() {
        return Next::Map(holder.clone());
    }
    // All of those that ask each other wait for the same one, or for the one that goes on already.
    says(CopyStatus::Coming).next().or_else(first).map_or(Next::Bring, |holder| Next::Wait(holder.clone()))
}

/// Time for which a copy of so many bytes that is on its way is waited for, where so much is left.
fn waiting_time(left: Duration, bytes: u64) -> Duration {
    let most = WAITING_MAX + Duration::from_secs(bytes / SLOWEST);
    left.min(WAITING_MIN.max(left / 2).min(most))
}

// === impl Exchange ===

impl Exchange {
    /// Has a whole tensor brought here, or mapped from a copy of this node.
    pub(super) fn bring(self: &Arc<Self>, fetch: Fetch) {
        self.ask_neighbours(fetch, 0);
    }

    fn ask_neighbours(self: &Arc<Self>, fetch: Fetch, round: u32) {
        if !self.is_wanted(&fetch.reference) {
            let cancelled = Failure::new(Reason::Cancelled, "the caller gave up");
            return self.whole_arrived(&fetch.reference, Err(cancelled));
        }
        let neighbours = if round < ROUNDS_MAX { self.neighbours_for(&fetch) } else { Vec::new() };
        let Some(peers) = self.peers.get().filter(|_| !neighbours.is_empty()) else {
            self.stage(&fetch.reference, |_| ((), CopyStage::Coming));
            return self.bring_here(fetch);
        };
        self.stage(&fetch.reference, |_| ((), CopyStage::Asking(Vec::new())));
        let until = fetch.terms.deadline.min(Instant::now() + ANSWER);
        let (exchange, asked) = (Arc::clone(self), neighbours.clone());
        let reference = fetch.reference.clone();
        let gather = Gather::new(
            neighbours.len(),
            Box::new(move |words: Result<Vec<_>, Failure>| {
                exchange.told(fetch, round, asked, words.unwrap_or_default());
            }),
        );
        for (at, neighbour) in neighbours.iter().enumerate() {
            let (place, wanted) = (Arc::clone(&gather), reference.clone());
            let told = move |answer: Result<v1::Inquired, Failure>| {
                place.put(at, answer.map(|answer| word(answer, &wanted)));
            };
            let (name, life) = (&neighbour.name, neighbour.incarnation);
            peers.inquire(name, Some(life), question(&reference, Duration::ZERO), until, told);
        }
        gather.arm();
    }

    /// Nobody of this node has it.
    fn bring_here(self: &Arc<Self>, mut fetch: Fetch) {
        fetch.turn += 1;
        self.redirect(&fetch);
        if fetch.only_here.is_none() {
            return self.fetch_whole(fetch);
        }
        for Waiting { fetch, place } in self.end_fetch(&fetch.reference, false) {
            match fetch.only_here {
                Some(failure) => place.put(Err(*failure)),
                // It came later, and wants less.
                None => self.begin_again(fetch, place),
            }
        }
    }

    /// True if a neighbour could have what may not come from its owner.
    pub(super) fn may_be_lent(&self, fetch: &Fetch, failure: &Failure) -> bool {
        let is_whole = fetch.selection == Selection::All;
        is_whole && failure.reason == Reason::RequirementNotMet && !self.neighbours_for(fetch).is_empty()
    }

    /// Peers to ask for a tensor: nobody if memory may not be shared, their copies are not trusted, or the tensor is small.
    fn neighbours_for(&self, fetch: &Fetch) -> Vec<PeerKey> {
        let bytes = expected_layout(&fetch.reference).map_or(0, |layout| layout.bytes());
        let routes = &self.settings.routes;
        // A copy of another pod may have come to the node on plain lanes.
        let unread =
            fetch.terms.require.and(routes.require).encrypted && routes.encryption != Encryption::Tls;
        if bytes <= INLINE_BYTES_MAX as u64 || !routes.may_share() || routes.own_copies || unread {
            return Vec::new();
        }
        self.neighbours()
    }

    /// The peers of this node whose policy shares memory.
    fn neighbours(&self) -> Vec<PeerKey> {
        let Some(peers) = self.peers.get() else { return Vec::new() };
        let shares = |peer: &PeerKey| {
            peers.offer(&peer.name).is_some_and(|offer| offer.transport(Transport::Shm).is_some())
        };
        peers.neighbours().into_iter().filter(shares).collect()
    }

    /// All neighbours have answered, or had the time to.
    fn told(
        self: &Arc<Self>,
        fetch: Fetch,
        round: u32,
        asked: Vec<PeerKey>,
        words: Vec<Result<CopyStatus, Failure>>,
    ) {
        let in_time = fetch.terms.deadline > Instant::now();
        let mut said = Vec::with_capacity(asked.len());
        for (who, word) in asked.into_iter().zip(words) {
            match word {
                Ok(word) => said.push((who, word)),
                Err(failure) if failure.reason == Reason::DeadlineExceeded && in_time => {
                    self.was_late(&who);
                }
                Err(_) => {}
            }
        }
        // Whoever is not on this node asks for nothing that it could map.
        let here = self.neighbours();
        let next = self.stage(&fetch.reference, |before| {
            let ahead: Vec<PeerKey> =
                before.ahead().iter().filter(|who| here.contains(who)).cloned().collect();
            let next = next(&said, &ahead);
            let stage = if next == Next::Bring { CopyStage::Coming } else { CopyStage::Alone };
            (next, stage)
        });
        match next {
            Next::Map(holder) => self.map_copy(fetch, round, holder),
            Next::Wait(holder) => self.wait_for_copy(fetch, round, holder),
            Next::Bring => self.bring_here(fetch),
        }
    }

    /// Waits until a copy is with a neighbour, then maps it.
    fn wait_for_copy(self: &Arc<Self>, mut fetch: Fetch, round: u32, holder: PeerKey) {
        fetch.turn += 1;
        let begun = self.peers_or_fail().cloned().ok().zip(self.waits_at_neighbours.enter(WAITS_MAX));
        let Some((peers, place)) = begun else { return self.ask_neighbours(fetch, ROUNDS_MAX) };
        let left = fetch.terms.deadline.saturating_duration_since(Instant::now());
        let wait = waiting_time(left, fetch.reference.bytes());
        let (deadline, reference) = (Instant::now() + wait, fetch.reference.clone());
        let question = question(&reference, wait);
        let (exchange, waiting) = (Arc::clone(self), fetch.clone());
        let (name, life) = (holder.name.clone(), holder.incarnation);
        self.redirect(&fetch);
        let handle = peers.inquire(&name, Some(life), question, deadline, move |answer| {
            drop(place);
            match answer.map(|answer| word(answer, &reference)) {
                Ok(CopyStatus::Here) => exchange.map_copy(waiting, round, holder),
                // It takes too long, for whatever reason: there is the owner.
                Err(failure) if failure.reason == Reason::DeadlineExceeded => {
                    exchange.was_late(&holder);
                    exchange.ask_neighbours(waiting, ROUNDS_MAX);
                }
                Ok(CopyStatus::Coming | CopyStatus::Asking | CopyStatus::No) | Err(_) => {
                    exchange.ask_neighbours(waiting, round + 1);
                }
            }
        });
        self.pulling(&fetch, handle);
    }

    /// A neighbour costs time: for a while it is not asked.
    fn was_late(&self, holder: &PeerKey) {
        if let Some(peers) = self.peers.get() {
            peers.was_late(&holder.name);
        }
    }

    /// Maps the copy of a neighbour; everyone who waits for the tensor gets theirs.
    fn map_copy(self: &Arc<Self>, mut fetch: Fetch, round: u32, holder: PeerKey) {
        fetch.turn += 1;
        let begun = self.peers_or_fail().cloned().ok().zip(expected_layout(&fetch.reference));
        let Some((peers, layout)) = begun else { return self.ask_neighbours(fetch, round + 1) };
        let reference = &fetch.reference;
        let owner = PeerKey { name: reference.peer().clone(), incarnation: reference.incarnation() };
        let deadline = fetch.terms.deadline.min(Instant::now() + GIVING);
        let order = MapOrder {
            id: reference.id(),
            owner: Some(owner),
            bytes: layout.bytes(),
            gpus: Vec::new(),
            deadline,
        };
        let (exchange, wanted) = (Arc::clone(self), fetch.clone());
        let (name, life) = (holder.name.clone(), holder.incarnation);
        self.redirect(&fetch);
        let handle = peers.map(&name, Some(life), order, move |outcome| {
            let mapped = match outcome {
                Ok(mapped) => arrived(&wanted.reference, mapped, &holder),
                // It was let go meanwhile.
                Err(MapFailed::Owner(failure)) if failure.reason == Reason::NotFound => {
                    return exchange.ask_neighbours(wanted, round + 1);
                }
                Err(_) => None,
            };
            if let Some(arrived) = mapped {
                exchange.metrics.moves.neighbours.inc();
                return exchange.whole_arrived(&wanted.reference, Ok(arrived));
            }
            // It says that it has what it does not give: the next round is without it.
            exchange.was_late(&holder);
            exchange.ask_neighbours(wanted, round + 1);
        });
        self.pulling(&fetch, handle);
    }
}

/// Question to a neighbour.
fn question(reference: &Reference, wait: Duration) -> v1::Inquire {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    v1::Inquire { targets: vec![target_of(reference)], wait_ms, copies: true, ..v1::Inquire::default() }
}

/// Word that it answers.
fn word(answer: v1::Inquired, wanted: &Reference) -> CopyStatus {
    use v1::describe_result::Outcome;
    match answer.results.into_iter().next().and_then(|result| result.outcome) {
        Some(Outcome::Description(said)) if said.reference == wanted.encode() => {
            if said.here {
                CopyStatus::Here
            } else {
                CopyStatus::Coming
            }
        }
        Some(Outcome::Failure(failure)) if failure.reason == Reason::NotSealed.as_str() => CopyStatus::Asking,
        Some(_) | None => CopyStatus::No,
    }
}

/// A copy that was mapped, if it is one of the tensor. Nothing was moved, so that there is nothing to sum.
fn arrived(reference: &Reference, mapped: Mapped, holder: &PeerKey) -> Option<Arrived> {
    let Mapped { block, descriptor, crc32c, seconds, .. } = mapped;
    let layout = &descriptor.layout;
    let fits = layout.dtype() == reference.dtype() && reference.shape().matches(layout.shape());
    if !fits || !layout.is_contiguous() {
        tracing::warn!(holder = %holder.name, %layout, %reference, "a neighbour shows something else for a tensor");
        return None;
    }
    let came = Came::lent(seconds, holder);
    Some(Arrived { descriptor, crc32c, block, gpu: None, came, pull_guard: None })
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use tensorlane_proto::Incarnation;

    use super::*;

    fn peer(name: &str) -> PeerKey {
        PeerKey { name: name.parse().unwrap(), incarnation: Incarnation(1) }
    }

    #[test]
    fn a_copy_that_is_here_is_better_than_one_on_its_way_and_that_is_better_than_another() {
        let words =
            [(peer("a"), CopyStatus::No), (peer("b"), CopyStatus::Coming), (peer("c"), CopyStatus::Here)];
        assert_eq!(next(&words, &[peer("a")]), Next::Map(peer("c")));
        assert_eq!(next(&words[..2], &[peer("a")]), Next::Wait(peer("b")));
        assert_eq!(next(&words[..1], &[]), Next::Bring);
        assert_eq!(next(&[], &[]), Next::Bring);
    }

    #[test]
    fn a_copy_on_its_way_is_waited_for_half_of_the_time_that_is_left_and_not_for_an_hour() {
        let [second, hour] = [1, 3600].map(Duration::from_secs);
        assert_eq!(waiting_time(second, 1), second);
        assert_eq!(waiting_time(3 * second, 1), WAITING_MIN);
        assert_eq!(waiting_time(30 * second, 1), 15 * second);
        assert_eq!(waiting_time(hour, 1 << 20), WAITING_MAX);
        assert_eq!(waiting_time(hour, 100 * SLOWEST), WAITING_MAX + 100 * second);
        assert_eq!(waiting_time(hour, u64::MAX), hour / 2, "much takes long");
    }

    #[test]
    fn whoever_goes_first_is_waited_for_and_of_several_the_first_by_name() {
        let words = [(peer("a"), CopyStatus::No), (peer("b"), CopyStatus::No)];
        assert_eq!(next(&words, &[peer("b"), peer("a")]), Next::Wait(peer("a")));
    }

    #[test]
    fn all_of_those_that_ask_each_other_wait_for_the_same_one_or_for_one_that_goes_on_already() {
        let asking = [(peer("c"), CopyStatus::Asking), (peer("b"), CopyStatus::Asking)];
        assert_eq!(next(&asking, &[]), Next::Wait(peer("b")));
        assert_eq!(next(&asking, &[peer("a")]), Next::Wait(peer("a")));
        let coming = [(peer("b"), CopyStatus::Asking), (peer("c"), CopyStatus::Coming)];
        assert_eq!(next(&coming, &[peer("a")]), Next::Wait(peer("c")));
    }
}
