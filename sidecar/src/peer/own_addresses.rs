//! Look at where the addresses lead that others are told for this peer: it dials them itself, as far as the key. Others find out
//! that one is wrong when they dial; this peer may connect to all of them first, and would never hear of it.
//!
//! Decisions are pure; what dials stands at the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tensorlane_proto::{Fingerprint, PeerName};

use super::connect::{self, Refused};
use super::handshake::{self, HandshakeError};
use super::race::ATTEMPTS_MAX;
use super::shared::Shared;
use crate::backoff::Backoff;

/// Waits between two looks, while one address or another does not lead back.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Occupant at an address of this peer.
#[derive(Debug, PartialEq, Eq)]
enum Occupant {
    /// Key of this peer.
    Own,
    /// Another key, and the peers that list it.
    Other(Fingerprint, Vec<PeerName>),
    /// Words that are none of a sidecar, with the error.
    Alien(String),
    /// Silence or a refusal, with the error.
    Nobody(String),
}

/// Result of a look after which there is something to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Misdirection {
    told: String,
    /// True if somebody has to change settings.
    is_wrong: bool,
}

/// Looks at the own addresses, and the result of the last one.
#[derive(Debug, Default, Clone)]
pub(super) struct OwnAddresses(Arc<Mutex<Looks>>);

/// A look under way. Where it is dropped before its end, as by a panic or without a thread, it has found nothing out.
struct Look(Option<OwnAddresses>);

impl Look {
    fn end(mut self, found: Option<&[(String, Occupant)]>) -> Option<Misdirection> {
        self.0.take()?.end(found, Instant::now(), rand::random())
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if let Some(looks) = self.0.take() {
            looks.end(None, Instant::now(), 1.0);
        }
    }
}

#[derive(Debug, Default)]
struct Looks {
    /// A look is under way.
    running: bool,
    /// Addresses of the last look.
    addresses: Vec<String>,
    /// Looks in a row after which not every address led back.
    failed: u32,
    /// Time of the next look at the same addresses; none once all led back.
    next: Option<Instant>,
    misdirection: Option<Misdirection>,
}

// === impl OwnAddresses ===

impl OwnAddresses {
    /// Words for people, if not every address leads back.
    pub(super) fn told(&self) -> Option<String> {
        self.0.lock().misdirection.as_ref().map(|found| found.told.clone())
    }

    /// Begins a look, if it is time for one.
    fn begin(&self, addresses: &[String], now: Instant) -> bool {
        let mut looks = self.0.lock();
        let is_due = looks.addresses != addresses || looks.next.is_some_and(|next| next <= now);
        if looks.running || !is_due {
            return false;
        }
        if looks.addresses != addresses {
            *looks = Looks { addresses: addresses.to_vec(), ..Looks::default() };
        }
        looks.running = true;
        true
    }

    /// Ends a look; none where it found nothing out. Gives what is to be told and was not told before. `chance` is 0 to 1.
    fn end(&self, found: Option<&[(String, Occupant)]>, now: Instant, chance: f64) -> Option<Misdirection> {
        let mut looks = self.0.lock();
        let before = looks.misdirection.clone();
        if let Some(found) = found {
            looks.misdirection = judge(found);
        }
        let is_settled = found.is_some() && looks.misdirection.is_none();
        looks.running = false;
        looks.failed = if is_settled { 0 } else { looks.failed.saturating_add(1) };
        looks.next = (!is_settled).then(|| now + BACKOFF.jittered(looks.failed, chance));
        looks.misdirection.clone().filter(|now| before.as_ref() != Some(now))
    }
}

/// Judges what was found at each address.
fn judge(found: &[(String, Occupant)]) -> Option<Misdirection> {
    const MEND: &str =
        "set peers.advertise to an address of this peer alone, or correct its entry in the peers file";
    let told = |(address, answer): &(String, Occupant)| {
        let elsewhere = |what: &str| {
            Some(format!(
                "the address {address} that others are told for this peer does not lead back to it: {what}; {MEND}"
            ))
        };
        match answer {
            Occupant::Own => None,
            Occupant::Other(key, names) if names.is_empty() => {
                elsewhere(&format!("a sidecar answers there whose key {key} no listed peer has"))
            }
            Occupant::Other(key, names) => {
                let names: Vec<_> = names.iter().map(PeerName::as_str).collect();
                elsewhere(&format!("{} answers there, with the key {key}", names.join(" or ")))
            }
            Occupant::Alien(error) => elsewhere(&format!("what answers there is no sidecar ({error})")),
            Occupant::Nobody(error) => Some(format!(
                "nobody answers this peer at {address}, its address for others ({error}): no matter if they reach it there all the \
                 same, as through a NAT"
            )),
        }
    };
    let all: Vec<String> = found.iter().filter_map(told).collect();
    let is_wrong = found.iter().any(|(_, answer)| matches!(answer, Occupant::Other(..) | Occupant::Alien(_)));
    (!all.is_empty()).then(|| Misdirection { told: all.join("; "), is_wrong })
}

/// Judges one dial; none where it says nothing of whose the address is. `own`: keys of this peer.
fn occupant(
    dialed: Result<Fingerprint, Refused>,
    own: [Fingerprint; 2],
    names_of: impl FnOnce(&Fingerprint) -> Vec<PeerName>,
) -> Option<Occupant> {
    Some(match dialed {
        Ok(key) if own.contains(&key) => Occupant::Own,
        Ok(key) => Occupant::Other(key, names_of(&key)),
        // Whoever has no seat says so before its key.
        Err(refused) if refused.no_seat().is_some() => return None,
        Err(
            refused @ (Refused::NoKey
            | Refused::Handshake(
                HandshakeError::Tls(_) | HandshakeError::TooMuch | HandshakeError::NoCertificate,
            )),
        ) => Occupant::Alien(refused.to_string()),
        Err(refused) => Occupant::Nobody(refused.to_string()),
    })
}

/// Looks at the addresses on a thread of its own, if it is time to. `listed`: those that the table of peers has of this one.
pub(super) fn tend(shared: &Arc<Shared>, listed: Option<&[String]>, now: Instant) {
    let Some(advertised) = &shared.config.own_addresses else { return };
    let addresses = listed.unwrap_or(advertised).to_vec();
    if !shared.own_addresses.begin(&addresses, now) {
        return;
    }
    let (on_thread, look) = (Arc::clone(shared), Look(Some(shared.own_addresses.clone())));
    let work = move || {
        let found: Option<Vec<_>> = addresses
            .into_iter()
            .map(|address| ask(&on_thread, &address).map(|answer| (address, answer)))
            .collect();
        match look.end(found.as_deref()) {
            Some(Misdirection { told, is_wrong: true }) => {
                tracing::warn!(told, "an own address leads elsewhere");
            }
            Some(Misdirection { told, .. }) => tracing::info!(told, "nobody answers at an own address"),
            None => {}
        }
    };
    // Without a thread the look is dropped, and so over.
    shared.spawn("tl-peer-dial", work);
}

/// Finds out who answers at an address: where it is a name, at the first of its addresses at which somebody does.
fn ask(shared: &Arc<Shared>, address: &str) -> Option<Occupant> {
    let most = shared.config.handshake;
    let until = Instant::now() + most;
    let found = match shared.config.resolver.resolve(address, until) {
        Ok(found) => found,
        Err(error) => return Some(Occupant::Nobody(error.to_string())),
    };
    let mut last = Occupant::Nobody("the name stands for no address".to_owned());
    for address in found.iter().take(ATTEMPTS_MAX) {
        let before = shared.keys().fingerprint;
        let dialed = key_at(shared, address, until).map_err(|refused| refused.after(most));
        let own = [before, shared.keys().fingerprint];
        match occupant(dialed, own, |key| shared.known.claimants(key))? {
            nobody @ Occupant::Nobody(_) => last = nobody,
            somebody => return Some(somebody),
        }
    }
    Some(last)
}

/// Key that is shown at an address. Nothing is said there beyond the handshake.
fn key_at(shared: &Arc<Shared>, address: &SocketAddr, until: Instant) -> Result<Fingerprint, Refused> {
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let (socket, _guard) = connect::connect(shared, address, None, left)?;
    let keys = shared.keys();
    let secured = handshake::client(&keys.client, &socket, until)?;
    (keys.fingerprint_of)(&secured.certificate).ok_or(Refused::NoKey)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::seats::NoSeat;
    use super::*;

    const KEYS: [Fingerprint; 2] = [Fingerprint([1; 32]), Fingerprint([2; 32])];

    fn other(names: &[&str]) -> Occupant {
        Occupant::Other(Fingerprint([3; 32]), names.iter().map(|name| name.parse().unwrap()).collect())
    }

    fn judged(answers: Vec<Occupant>) -> Option<Misdirection> {
        let at = |(number, answer)| (format!("h{number}:1"), answer);
        judge(&answers.into_iter().enumerate().map(at).collect::<Vec<_>>())
    }

    #[test]
    fn an_address_that_leads_to_another_is_wrong_and_one_where_nobody_answers_is_worth_knowing() {
        assert_eq!(judged(vec![Occupant::Own, Occupant::Own]), None);
        let nobody = || Occupant::Nobody("Connection refused".to_owned());
        for (answer, is_wrong, parts) in [
            (
                other(&["a"]),
                true,
                ["h1:1", "does not lead back to it: a answers", "sha256:0303", "peers.advertise"],
            ),
            (other(&["a", "c"]), true, ["h1:1", "a or c answers", "sha256:0303", "peers.advertise"]),
            (other(&[]), true, ["h1:1", "sha256:0303", "no listed peer has", "peers.advertise"]),
            (
                Occupant::Alien("bad record".to_owned()),
                true,
                ["h1:1", "no sidecar (bad record)", "back", "peers.advertise"],
            ),
            (
                nobody(),
                false,
                ["nobody answers this peer at h1:1", "(Connection refused)", "no matter", "NAT"],
            ),
        ] {
            let verdict = judged(vec![Occupant::Own, answer, Occupant::Own]).unwrap();
            assert_eq!(verdict.is_wrong, is_wrong, "{verdict:?}");
            for part in parts {
                assert!(verdict.told.contains(part), "{part} is not in {}", verdict.told);
            }
        }
        let both = judged(vec![nobody(), other(&["a"])]).unwrap();
        assert!(both.is_wrong && both.told.contains("h0:1") && both.told.contains("h1:1"), "{both:?}");
    }

    #[test]
    fn a_dial_says_whose_an_address_is_by_the_key_alone() {
        let judged = |dialed| occupant(dialed, KEYS, |_| Vec::new());
        // The key may be changed while it is looked at.
        assert_eq!(KEYS.map(|key| judged(Ok(key))), [Some(Occupant::Own), Some(Occupant::Own)]);
        assert_eq!(judged(Ok(Fingerprint([3; 32]))), Some(other(&[])));
        let told = NoSeat { most: 4, retry: BACKOFF.first };
        assert_eq!(judged(Err(HandshakeError::NoSeat(told).into())), None);
        let tls = HandshakeError::Tls(rustls::Error::HandshakeNotComplete);
        assert!(matches!(judged(Err(tls.into())), Some(Occupant::Alien(_))));
        for silent in
            [HandshakeError::Closed.into(), io::Error::from(io::ErrorKind::ConnectionRefused).into()]
        {
            assert!(matches!(judged(Err(silent)), Some(Occupant::Nobody(_))));
        }
    }

    #[test]
    fn a_look_that_panics_is_over_and_another_begins_later() {
        let (looks, now) = (OwnAddresses::default(), Instant::now());
        let addresses = ["a:1".to_owned()];
        assert!(looks.begin(&addresses, now));
        let look = Look(Some(looks.clone()));
        let work = move || {
            let _look = look;
            panic!("part of the test");
        };
        assert!(std::thread::spawn(work).join().is_err());
        assert!(looks.begin(&addresses, Instant::now() + BACKOFF.longest));
    }

    #[test]
    fn a_look_is_repeated_ever_later_until_all_lead_back_and_begun_anew_for_other_addresses() {
        let (looks, now) = (OwnAddresses::default(), Instant::now());
        let at = |address: &str| vec![address.to_owned()];
        let found = |answer| [("a:1".to_owned(), answer)];
        assert!(looks.begin(&at("a:1"), now) && !looks.begin(&at("a:1"), now), "one at a time");
        assert!(looks.end(Some(&found(other(&["b"]))), now, 1.0).is_some_and(|new| new.is_wrong));
        assert!(!looks.begin(&at("a:1"), now), "not at once");
        let mut then = now;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            then += Duration::from_secs(seconds);
            assert!(looks.begin(&at("a:1"), then), "after {seconds} s");
            assert_eq!(looks.end(Some(&found(other(&["b"]))), then, 1.0), None, "it was told before");
        }
        then += BACKOFF.longest;
        assert!(looks.begin(&at("a:1"), then));
        looks.end(None, then, 1.0);
        assert!(looks.told().is_some(), "a look that finds nothing out takes nothing back");
        // Told anew, it is another one.
        assert!(looks.begin(&at("a:2"), then));
        assert_eq!(looks.told(), None);
        looks.end(Some(&found(Occupant::Own)), then, 1.0);
        assert!(looks.told().is_none() && !looks.begin(&at("a:2"), then + BACKOFF.longest * 9));
        assert!(looks.begin(&at("a:1"), then));
    }
}
