//! Owner of a key. The directory says who claims it; the handshake has proven it; where several peers claim one key,
//! the one at the other end says which of them it is.
//!
//! A peer writes its own entry of the directory, so it can list the key of another one. It cannot prove it: whoever gets
//! through the handshake has the key, and nobody else. So a copied key costs its owner nothing, and its copier gets nothing:
//! who calls itself by the copier's name needs the key too. What a holder of a contested key has said once is remembered, so
//! that nobody greets it under the copier's name: it would take that for a new connection of ours, and close the one it has.

use std::collections::HashMap;

use parking_lot::Mutex;
use tensorlane_proto::{Fingerprint, PeerName};

use super::api::Known;
use super::connect::{Refused, shown};
use super::shared::Shared;

/// A key that was proven, and the peers that it may belong to.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) fingerprint: Fingerprint,
    names: Vec<PeerName>,
}

/// Contested keys, and what their holders called themselves. No more than the directory has of them.
#[derive(Default)]
pub(super) struct Proven(Mutex<HashMap<Fingerprint, PeerName>>);

// === impl Claim ===

impl Claim {
    /// Peers that may have proven this key, other than ourselves; the directory is asked again once where it knows
    /// nobody.
    ///
    /// # Errors
    /// A key of nobody, or not of the one that was dialed.
    pub(super) fn of(
        fingerprint: Fingerprint,
        shared: &Shared,
        wanted: Option<&PeerName>,
    ) -> Result<Self, Refused> {
        let known = &*shared.known;
        let mut names = known.claimants(&fingerprint);
        if names.is_empty() {
            known.refresh();
            names = known.claimants(&fingerprint);
        }
        if names.len() > 1
            && let Some(holder) =
                shared.proven.among(&fingerprint, &names).or_else(|| connected(shared, &fingerprint, &names))
        {
            names = vec![holder];
        }
        names.retain(|name| *name != shared.me.peer);
        let Some(first) = names.first() else { return Err(Refused::UnknownKey(fingerprint)) };
        match wanted {
            Some(wanted) if !names.contains(wanted) => {
                Err(Refused::WrongPeer { wanted: wanted.clone(), found: first.clone() })
            }
            _ => Ok(Self { fingerprint, names }),
        }
    }

    /// All that it may belong to.
    pub(super) fn names(&self) -> &[PeerName] {
        &self.names
    }

    /// Settles the name of the peer, by what it calls itself.
    ///
    /// # Errors
    /// None of them, or not the one that was dialed.
    pub(super) fn settle(
        &self,
        said: &str,
        shared: &Shared,
        wanted: Option<&PeerName>,
    ) -> Result<PeerName, Refused> {
        let found = self.names.iter().find(|name| name.as_str() == said);
        let name = found.ok_or_else(|| Refused::WrongName {
            here: shared.me.peer.clone(),
            said: shown(said),
            listed: self.names.iter().map(PeerName::as_str).collect::<Vec<_>>().join(" and "),
        })?;
        if self.names.len() > 1 {
            shared.proven.remember(self.fingerprint, name.clone(), &*shared.known);
        }
        match wanted {
            Some(wanted) if wanted != name => {
                Err(Refused::WrongPeer { wanted: wanted.clone(), found: name.clone() })
            }
            _ => Ok(name.clone()),
        }
    }
}

/// The one of them that has a connection which was made with this key.
fn connected(shared: &Shared, fingerprint: &Fingerprint, names: &[PeerName]) -> Option<PeerName> {
    let has_it = |name: &&PeerName| {
        let peer = shared.known_peer(name);
        peer.is_some_and(|peer| {
            peer.state.lock().link.as_ref().is_some_and(|link| link.fingerprint == *fingerprint)
        })
    };
    names.iter().find(has_it).cloned()
}

// === impl Proven ===

impl Proven {
    /// The holder of a contested key, as long as it claims it.
    fn among(&self, fingerprint: &Fingerprint, names: &[PeerName]) -> Option<PeerName> {
        self.0.lock().get(fingerprint).filter(|holder| names.contains(holder)).cloned()
    }

    fn remember(&self, fingerprint: Fingerprint, holder: PeerName, known: &dyn Known) {
        let mut proven = self.0.lock();
        proven.retain(|key, _| known.claimants(key).len() > 1);
        proven.insert(fingerprint, holder);
    }
}
