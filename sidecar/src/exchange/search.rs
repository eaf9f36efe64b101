//! Search for several names: what was found of them here and at peers, and what is said of those that were not. Pure.

use std::collections::{BTreeSet, HashMap};
use std::str::FromStr;
use std::time::Duration;

use prost::Message;
use tensorlane_proto::failure::{Failure, Reason};
use tensorlane_proto::generated as v1;
use tensorlane_proto::identity::PeerName;
use tensorlane_proto::ledger::TensorName;
use tensorlane_proto::reference::Reference;
use tensorlane_proto::wire;

use super::waits::Key;
use crate::clock;

/// Most bytes of a description of another peer: four times what metadata, names and a reference may have together.
const DESCRIPTION_BYTES_MAX: usize = 128 << 10;
/// Most peers that an error names.
const SHOWN: usize = 8;

/// Meaning of a name.
#[derive(Debug, Clone)]
pub(super) enum Found<T> {
    /// A tensor of this peer, with what was made of it in the moment in which the name was seen.
    Here(T),
    /// Another peer's.
    There(Box<There>),
}

/// A tensor of another peer, as it describes it.
#[derive(Debug, Clone)]
pub(super) struct There {
    pub(super) reference: Reference,
    pub(super) description: v1::Description,
}

/// Results for names of this peer, in order: none for a name that it does not have.
pub(super) type Looked<T> = Vec<Option<Result<T, Failure>>>;

/// Names that are looked for.
pub(super) struct Search<T> {
    wanted: Vec<(Option<PeerName>, TensorName)>,
    found: Vec<Option<Result<Found<T>, Failure>>>,
    remote: HashMap<usize, Vec<There>>,
    /// Peers that did not answer a question in time: what they have is not known.
    pub(super) silent: BTreeSet<PeerName>,
    /// Reasons why peers that are asked by name could not be asked the last time.
    absent: HashMap<PeerName, Failure>,
}

/// Reason for which a search ends, for names that were not found.
pub(super) enum End {
    /// All were asked as long as they had, so long; so many peers are listed and were not asked. `rounds`: how many were, where
    /// peers were asked in rounds.
    Over { limit: Duration, unasked: usize, rounds: Option<usize> },
    /// For this reason.
    Failed(Failure),
}

// === impl Search ===

impl<T> Search<T> {
    pub(super) fn new(wanted: Vec<(Option<PeerName>, TensorName)>) -> Self {
        let found = wanted.iter().map(|_| None).collect();
        Self { wanted, found, remote: HashMap::new(), silent: BTreeSet::new(), absent: HashMap::new() }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.found.iter().all(Option::is_some)
    }

    /// Looks for names at this peer, `me`: for one of them, or for all.
    pub(super) fn look_here(
        &mut self,
        me: &PeerName,
        only: Option<&TensorName>,
        look: impl Fn(&[&TensorName]) -> Looked<T>,
    ) {
        let is_asked = |(peer, name): &(Option<PeerName>, TensorName)| {
            peer.as_ref().is_none_or(|p| p == me) && only.is_none_or(|only| only == name)
        };
        let missing = self.wanted.iter().zip(&mut self.found);
        let missing = missing.filter(|(wanted, found)| found.is_none() && is_asked(wanted));
        let (names, places): (Vec<_>, Vec<_>) = missing.map(|((_, name), found)| (name, found)).unzip();
        if names.is_empty() {
            return;
        }
        for (place, seen) in places.into_iter().zip(look(&names)) {
            *place = seen.map(|seen| seen.map(Found::Here));
        }
    }

    /// The names that are not found, as they are waited for.
    pub(super) fn missing(&self) -> Vec<Key> {
        let missing = self.wanted.iter().zip(&self.found).filter(|(_, found)| found.is_none());
        missing.map(|((at, name), _)| Key { at: at.clone(), name: name.clone() }).collect()
    }

    /// Returns the peers to be asked, each with the indices of its names.
    pub(super) fn questions(&self, me: &PeerName, connected: &[PeerName]) -> HashMap<PeerName, Vec<usize>> {
        let mut asked: HashMap<PeerName, Vec<usize>> = HashMap::new();
        for (index, (peer, _)) in self.wanted.iter().enumerate().filter(|(i, _)| self.found[*i].is_none()) {
            match peer {
                Some(peer) if peer != me => asked.entry(peer.clone()).or_default().push(index),
                Some(_) => {}
                None => connected.iter().for_each(|p| asked.entry(p.clone()).or_default().push(index)),
            }
        }
        asked
    }

    /// Names of any peer that nobody has yet, by their indices.
    pub(super) fn open(&self) -> Vec<usize> {
        let wanted = self.wanted.iter().zip(&self.found).enumerate();
        let is_open = |index: &usize| self.remote.get(index).is_none_or(Vec::is_empty);
        let missing = wanted.filter(|(_, ((peer, _), found))| peer.is_none() && found.is_none());
        missing.map(|(index, _)| index).filter(is_open).collect()
    }

    pub(super) fn name(&self, index: usize) -> &TensorName {
        &self.wanted[index].1
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &TensorName> {
        self.wanted.iter().map(|(_, name)| name)
    }

    /// True if a name is still looked for.
    pub(super) fn misses(&self, name: &TensorName) -> bool {
        self.wanted.iter().zip(&self.found).any(|((_, wanted), found)| found.is_none() && wanted == name)
    }

    /// A peer told of a name while it was waited for: the first that has it is the answer. A peer that is not there may come.
    pub(super) fn told(&mut self, key: &Key, told: &Result<There, Failure>) {
        match (&key.at, told) {
            (Some(peer), Err(failure)) if is_absence(failure) => {
                // It is kept with each name that is waited for, and its words are the peer's.
                self.absent.insert(peer.clone(), failure.clone().brief());
                return;
            }
            // It is there, and has no such name yet.
            (Some(peer), Err(failure)) if failure.reason == Reason::NotFound => {
                self.absent.remove(peer);
                self.silent.remove(peer);
                return;
            }
            _ => {}
        }
        let missing = self.wanted.iter().zip(&mut self.found).filter(|(_, found)| found.is_none());
        for ((at, name), found) in missing {
            if *at == key.at && *name == key.name {
                *found = Some(told.clone().map(|there| Found::There(Box::new(there))));
            }
        }
    }

    /// Takes what a peer said of the names it was asked for.
    pub(super) fn answered(
        &mut self,
        peer: &PeerName,
        names: &[usize],
        outcome: Result<v1::Inquired, Failure>,
    ) {
        let results = match outcome {
            Ok(inquired) => {
                self.silent.remove(peer);
                self.absent.remove(peer);
                inquired.results
            }
            // What a peer refuses that was asked for by name is the answer; one that is late or not there is told of at the
            // end. One of many is just absent.
            Err(failure) => {
                self.silent.insert(peer.clone());
                if is_absence(&failure) {
                    self.absent.insert(peer.clone(), failure);
                } else if failure.reason != Reason::DeadlineExceeded {
                    self.failed(names, &failure);
                }
                return;
            }
        };
        for (index, result) in names.iter().zip(results) {
            match there(result) {
                Ok(there) if there.reference.peer() == peer => {
                    let all = self.remote.entry(*index).or_default();
                    all.retain(|t| t.reference.peer() != peer);
                    all.push(there);
                }
                // A name of a copy, or of somebody else's tensor, is nothing that this peer can speak for.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Ends the search for names of one peer with a failure.
    pub(super) fn failed(&mut self, names: &[usize], failure: &Failure) {
        for index in names {
            if self.wanted[*index].0.is_some() && self.found[*index].is_none() {
                self.found[*index] = Some(Err(failure.clone()));
            }
        }
    }

    /// Settles names that peers have: one owner is the answer; two are an error that names both. Returns whether there
    /// was any.
    pub(super) fn settle_remote(&mut self) -> bool {
        let any = !self.remote.is_empty();
        for (index, theirs) in self.remote.drain() {
            if self.found[index].is_some() {
                continue;
            }
            self.found[index] = match theirs.as_slice() {
                [] => None,
                [one] => Some(Ok(Found::There(Box::new(one.clone())))),
                several => Some(Err(ambiguous(&self.wanted[index].1, several))),
            };
        }
        any
    }

    /// A result for each name. `lists`: the table of peers has a peer of this name.
    pub(super) fn finish(
        self,
        end: &End,
        lists: impl Fn(&PeerName) -> bool,
    ) -> Vec<Result<Found<T>, Failure>> {
        let Self { wanted, found, silent, absent, .. } = self;
        let (limit, unasked, rounds) = match end {
            End::Over { limit, unasked, rounds } => (*limit, *unasked, *rounds),
            End::Failed(failure) => {
                let failed = |found: Option<_>| found.unwrap_or_else(|| Err(failure.clone()));
                return found.into_iter().map(failed).collect();
            }
        };
        let missing = |(peer, name): (Option<PeerName>, TensorName)| match peer {
            Some(peer) if absent.contains_key(&peer) => absent[&peer].clone(),
            Some(peer) if silent.contains(&peer) => not_told(&peer, &name, limit),
            Some(peer) => not_found(&name, &format!("at {peer}"), ""),
            None if rounds.is_some() => {
                let asked = rounds.unwrap_or_default().saturating_sub(silent.len());
                in_rounds(&name, (asked, &silent, unasked), limit, &meant_apart(&name, &lists))
            }
            None if silent.is_empty() => {
                let scope = format!("here or at any connected peer{}", not_asked(unasked));
                not_found(&name, &scope, &meant_apart(&name, &lists))
            }
            None => {
                let silent: Vec<&str> = silent.iter().map(PeerName::as_str).collect();
                let scope = format!("here or at any peer that answered, which {} did not", silent.join(", "));
                not_found(&name, &scope, &meant_apart(&name, &lists)).with("silent", silent.join(","))
            }
        };
        found
            .into_iter()
            .zip(wanted)
            .map(|(found, wanted)| found.unwrap_or_else(|| Err(missing(wanted))))
            .collect()
    }
}

/// Returns whether a failure says that the peer is not there, so that it may come.
fn is_absence(failure: &Failure) -> bool {
    matches!(failure.reason, Reason::PeerUnreachable | Reason::PeerUnknown)
}

/// Of a name that nobody has. `apart`: what [`meant_apart`] says of it.
fn not_found(name: &TensorName, scope: &str, apart: &str) -> Failure {
    let why = format!(
        "nothing is named {name} {scope}{apart}; `tensorlane ls` (List) shows the names of a peer, and a call with a wait (`--wait \
         10s`) waits until the name is given"
    );
    Failure::new(Reason::NotFound, why).with("name", name)
}

/// `; a is a peer: its name models/x is meant by --peer a models/x`, where a name begins as with a listed peer; or nothing.
fn meant_apart(name: &TensorName, lists: impl Fn(&PeerName) -> bool) -> String {
    let parts = name.as_str().split_once('/').filter(|(_, rest)| TensorName::new(rest).is_ok());
    let parts = parts.and_then(|(peer, rest)| Some((peer.parse::<PeerName>().ok()?, rest)));
    let Some((peer, rest)) = parts.filter(|(peer, _)| lists(peer)) else { return String::new() };
    format!("; {peer} is a peer: its name {rest} is meant by `--peer {peer} {rest}`")
}

/// Of a name that was looked for at more peers than are connected at a time.
fn in_rounds(
    name: &TensorName,
    (asked, silent, unasked): (usize, &BTreeSet<PeerName>, usize),
    limit: Duration,
    apart: &str,
) -> Failure {
    let mut left = String::new();
    if !silent.is_empty() {
        let first: Vec<&str> = silent.iter().take(SHOWN).map(PeerName::as_str).collect();
        let more = if silent.len() > SHOWN { ", ..." } else { "" };
        left.push_str(&format!("; {} did not answer: {}{more}", silent.len(), first.join(", ")));
    }
    if unasked > 0 {
        left.push_str(&format!("; {unasked} more were not asked within {}", clock::told(limit)));
    }
    let why = format!(
        "nothing is named {name} here or at any of {asked} peers that answered{left}{apart}. More peers are listed than have seats here, \
         so they are asked in rounds: `--peer PEER {name}` asks one of them, which is the fast way"
    );
    let failure = Failure::new(Reason::NotFound, why).with("name", name).with("asked", asked);
    if silent.is_empty() && unasked == 0 { failure } else { failure.with("unknown", silent.len() + unasked) }
}

/// ` (1 peer is listed and not connected, so it was not asked; --peer asks it)`, or nothing.
fn not_asked(unasked: usize) -> String {
    match unasked {
        0 => String::new(),
        1 => " (1 peer is listed and not connected, so it was not asked; `--peer PEER` asks it)".to_owned(),
        more => format!(
            " ({more} peers are listed and not connected, so they were not asked; `--peer PEER` asks one of them)"
        ),
    }
}

/// Of a peer that did not answer it is not known what it has.
fn not_told(peer: &PeerName, name: &TensorName, limit: Duration) -> Failure {
    let why = format!(
        "{peer} did not say within {} whether it has {name}; `tensorlane routes` tells how it is reached, a wait gives it longer",
        clock::told(limit)
    );
    Failure::new(Reason::PeerUnreachable, why).with("name", name)
}

/// A peer's description, with its reference proven.
pub(super) fn there(result: v1::DescribeResult) -> Result<There, Failure> {
    use v1::describe_result::Outcome;
    match result.outcome {
        Some(Outcome::Description(description)) => {
            // It is kept until others have answered, too, and told to everyone who waits.
            let bytes = description.encoded_len();
            if bytes > DESCRIPTION_BYTES_MAX {
                let why = format!(
                    "the peer describes a tensor in {bytes} bytes; {DESCRIPTION_BYTES_MAX} are the most"
                );
                return Err(Failure::new(Reason::Internal, why));
            }
            let reference = Reference::from_str(&description.reference)?;
            Ok(There { reference, description })
        }
        Some(Outcome::Failure(failure)) => Err(wire::failure(failure)),
        None => Err(Failure::new(Reason::Internal, "the peer gave no answer for this item")),
    }
}

fn ambiguous(name: &TensorName, owners: &[There]) -> Failure {
    let peers: Vec<&str> = owners.iter().map(|o| o.reference.peer().as_str()).collect();
    Failure::new(
        Reason::AmbiguousName,
        format!("{name} is the name of tensors of {}; say which peer's is meant", peers.join(" and ")),
    )
    .with("peers", peers.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words for a name that was looked for everywhere, where peers a and b are listed.
    fn told(name: &str, unasked: usize, rounds: Option<usize>) -> String {
        let search = Search::<()>::new(vec![(None, TensorName::new(name).unwrap())]);
        let end = End::Over { limit: Duration::from_secs(2), unasked, rounds };
        let mut results = search.finish(&end, |peer| ["a", "b"].contains(&peer.as_str()));
        results.remove(0).map(drop).unwrap_err().message
    }

    #[test]
    fn a_peer_that_is_not_there_may_come_and_its_absence_is_the_answer_at_the_end_alone() {
        let (peer, name): (PeerName, _) = ("a".parse().unwrap(), TensorName::new("x").unwrap());
        let key = Key { at: Some(peer.clone()), name: name.clone() };
        let end = End::Over { limit: Duration::from_secs(2), unasked: 0, rounds: None };
        let new = || Search::<()>::new(vec![(Some(peer.clone()), name.clone())]);
        let reason =
            |search: Search<()>| search.finish(&end, |_| true).remove(0).map(drop).unwrap_err().reason;
        for reason_of in [Reason::PeerUnreachable, Reason::PeerUnknown] {
            let failure = Failure::new(reason_of, "nobody listens there");
            let (mut asked, mut waited) = (new(), new());
            asked.answered(&peer, &[0], Err(failure.clone()));
            waited.told(&key, &Err(failure));
            for search in [asked, waited] {
                assert!(!search.is_complete() && search.misses(&name));
                assert_eq!(reason(search), reason_of);
            }
        }
        let mut came = new();
        came.answered(&peer, &[0], Err(Failure::new(Reason::PeerUnreachable, "nobody listens there")));
        came.answered(&peer, &[0], Ok(v1::Inquired::default()));
        assert_eq!(reason(came), Reason::NotFound);
        let mut came_without = new();
        came_without.told(&key, &Err(Failure::new(Reason::PeerUnknown, "no other peer a is listed")));
        came_without.told(&key, &Err(Failure::new(Reason::NotFound, "nothing is named x")));
        assert!(came_without.misses(&name));
        assert_eq!(reason(came_without), Reason::NotFound);
        let mut refused = new();
        refused.answered(&peer, &[0], Err(Failure::new(Reason::LimitExceeded, "too many calls")));
        assert!(refused.is_complete());
    }

    #[test]
    fn a_description_that_no_tensor_has_is_no_answer() {
        let world = |bytes: usize| v1::DescribeResult {
            outcome: Some(v1::describe_result::Outcome::Description(v1::Description {
                names: vec!["n".repeat(bytes)],
                ..v1::Description::default()
            })),
        };
        let refused = there(world(DESCRIPTION_BYTES_MAX)).map(drop).unwrap_err();
        assert!(
            refused.reason == Reason::Internal && refused.message.contains("131072 are the most"),
            "{refused}"
        );
        assert_ne!(there(world(9)).map(drop).unwrap_err().reason, Reason::Internal, "it has no reference");
    }

    #[test]
    fn a_name_that_begins_as_with_a_peer_is_told_how_that_peer_is_asked() {
        let apart = "; a is a peer: its name models/x is meant by `--peer a models/x`";
        assert!(told("a/models/x", 0, None).contains(apart), "{}", told("a/models/x", 0, None));
        assert!(told("a/models/x", 0, Some(3)).contains(apart), "{}", told("a/models/x", 0, Some(3)));
        for other in ["c/models/x", "a", "a//x", "models/a"] {
            assert!(!told(other, 0, None).contains("is a peer"), "{other}");
        }
    }

    #[test]
    fn peers_that_were_not_asked_are_told_with_what_asks_them() {
        assert!(
            told("x", 1, None)
                .contains("(1 peer is listed and not connected, so it was not asked; `--peer PEER`")
        );
        assert!(
            told("x", 2, None).contains("(2 peers are listed and not connected"),
            "{}",
            told("x", 2, None)
        );
        assert!(!told("x", 0, None).contains("listed"), "{}", told("x", 0, None));
    }
}
